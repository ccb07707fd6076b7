//! gpt-oss: experts in MXFP4, whose gates and ups take turns.

use super::keys::{KeyRule, keys};
use super::shared::{ATTENTION, COMMON, EDGES, common};
use super::{Architecture, PLAIN, TensorRule, tensors};
use crate::hf::config::Assumed::{Count, Float};

const TENSORS: &[TensorRule] = tensors! {
    "model.layers.{}.input_layernorm" => "blk.{}.attn_norm";
    "model.layers.{}.post_attention_layernorm" => "blk.{}.post_attention_norm";
    "model.layers.{}.self_attn.sinks" => "blk.{}.attn_sinks.weight";
    "model.layers.{}.mlp.router" => "blk.{}.ffn_gate_inp";
    "model.layers.{}.mlp.experts.gate_up_proj" => "blk.{}.ffn_gate_exps.weight|blk.{}.ffn_up_exps.weight", InterleavedTransposed;
    "model.layers.{}.mlp.experts.gate_up_proj_bias" => "blk.{}.ffn_gate_exps.bias|blk.{}.ffn_up_exps.bias", Interleaved;
    "model.layers.{}.mlp.experts.gate_up_proj_blocks" => "blk.{}.ffn_gate_exps.weight|blk.{}.ffn_up_exps.weight", Mxfp4Interleaved;
    "model.layers.{}.mlp.experts.gate_up_proj_scales" => "", Skip;
    "model.layers.{}.mlp.experts.down_proj" => "blk.{}.ffn_down_exps.weight", TransposedExperts;
    "model.layers.{}.mlp.experts.down_proj_bias" => "blk.{}.ffn_down_exps.bias";
    "model.layers.{}.mlp.experts.down_proj_blocks" => "blk.{}.ffn_down_exps.weight", Mxfp4;
    "model.layers.{}.mlp.experts.down_proj_scales" => "", Skip;
};

const KEYS: &[KeyRule] = keys! {
    "attention.sliding_window" <- NeedCount ["sliding_window"];
    "expert_feed_forward_length" <- NeedCount ["intermediate_size"];
};

pub(super) const ALL: &[Architecture] = &[Architecture {
    classes: &["GptOssForCausalLM"],
    name: "gpt-oss",
    tensors: &[EDGES, ATTENTION, TENSORS],
    keys: &[COMMON, KEYS],
    computed: common,
    assumed: &[
        ("max_position_embeddings", Count(131_072)),
        ("num_key_value_heads", Count(8)),
        ("head_dim", Count(64)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(150_000.0)),
        ("sliding_window", Count(128)),
        ("num_local_experts", Count(128)),
        ("num_experts_per_tok", Count(4)),
    ],
    ..PLAIN
}];
