//! Llama, Mistral and Mixtral; SmolLM 3; Granite, dense and with experts.

use super::keys::{KeyRule, Keys, keys};
use super::shared::{COMMON, EDGES, EXPERTS, GATED_MLP, PRE_NORMS, VOCAB_SIZE, common, llama3_factors, rotate_heads};
use super::{Architecture, PLAIN, TensorRule, VocabKind, tensors};
use crate::error::ConvertError;
use crate::hf::config::Assumed::{As, Count, Float, Ratio};
use crate::hf::config::{Assumed, Config};

/// Attention whose rotation is by neighbours in the file.
const ATTENTION: &[TensorRule] = tensors! {
    "model.layers.{}.self_attn.q_proj" => "blk.{}.attn_q", PermuteQ;
    "model.layers.{}.self_attn.k_proj" => "blk.{}.attn_k", PermuteK;
    "model.layers.{}.self_attn.v_proj" => "blk.{}.attn_v";
    "model.layers.{}.self_attn.o_proj" => "blk.{}.attn_output";
};

/// Mixtral's experts, and Granite's.
const SPARSE: &[TensorRule] = tensors! {
    "model.layers.{}.block_sparse_moe.gate" => "blk.{}.ffn_gate_inp";
    "model.layers.{}.block_sparse_moe.experts.{}.w1" => "blk.{}.ffn_gate_exps", Stack;
    "model.layers.{}.block_sparse_moe.experts.{}.w3" => "blk.{}.ffn_up_exps", Stack;
    "model.layers.{}.block_sparse_moe.experts.{}.w2" => "blk.{}.ffn_down_exps", Stack;
};
const GRANITE_SPARSE: &[TensorRule] = tensors! {
    "model.layers.{}.block_sparse_moe.router.layer" => "blk.{}.ffn_gate_inp";
    "model.layers.{}.block_sparse_moe.input_linear" => "blk.{}.ffn_gate_exps|blk.{}.ffn_up_exps", Halves;
    "model.layers.{}.block_sparse_moe.output_linear" => "blk.{}.ffn_down_exps";
    "model.layers.{}.shared_mlp.input_linear" => "blk.{}.ffn_gate_shexp|blk.{}.ffn_up_shexp", Halves;
    "model.layers.{}.shared_mlp.output_linear" => "blk.{}.ffn_down_shexp";
};

const TENSORS: &[&[TensorRule]] = &[EDGES, PRE_NORMS, ATTENTION, GATED_MLP, EXPERTS, SPARSE, GRANITE_SPARSE];

const GRANITE: &[KeyRule] = keys! {
    "attention.scale" <- Float ["attention_multiplier"];
    "embedding_scale" <- Float ["embedding_multiplier"];
    "residual_scale" <- Float ["residual_multiplier"];
    "logit_scale" <- Float ["logits_scaling"];
    "expert_shared_feed_forward_length" <- Count ["shared_intermediate_size"];
};

const ASSUMED: &[(&str, Assumed)] = &[
    ("max_position_embeddings", Count(2048)),
    ("rms_norm_eps", Float(1e-6)),
    ("rope_theta", Float(10000.0)),
    ("num_key_value_heads", As("num_attention_heads")),
    ("head_dim", Ratio("hidden_size", "num_attention_heads")),
];

/// Parts that the models of this file share.
const LIKE_LLAMA: Architecture = Architecture {
    tensors: TENSORS,
    keys: &[COMMON, VOCAB_SIZE],
    computed,
    made: llama3_factors,
    vocab: VocabKind::Llama,
    ..PLAIN
};

pub(super) const ALL: &[Architecture] = &[
    Architecture {
        classes: &["LlamaForCausalLM", "LLaMAForCausalLM", "LlamaModel"],
        name: "llama",
        prefixes: &["text_model."],
        may_be_bare: true,
        assumed: ASSUMED,
        ..LIKE_LLAMA
    },
    Architecture {
        classes: &["MistralForCausalLM"],
        name: "llama",
        assumed: &[
            ("max_position_embeddings", Count(131_072)),
            ("rms_norm_eps", Float(1e-6)),
            ("rope_theta", Float(10000.0)),
            ("num_key_value_heads", Count(8)),
        ],
        ..LIKE_LLAMA
    },
    Architecture {
        classes: &["MixtralForCausalLM"],
        name: "llama",
        assumed: &[
            ("max_position_embeddings", Count(131_072)),
            ("rms_norm_eps", Float(1e-5)),
            ("rope_theta", Float(1_000_000.0)),
            ("num_key_value_heads", Count(8)),
            ("num_local_experts", Count(8)),
            ("num_experts_per_tok", Count(2)),
        ],
        ..LIKE_LLAMA
    },
    Architecture {
        classes: &["SmolLM3ForCausalLM"],
        name: "smollm3",
        assumed: &[
            ("max_position_embeddings", Count(32768)),
            ("rms_norm_eps", Float(1e-6)),
            ("rope_theta", Float(2_000_000.0)),
            ("num_key_value_heads", Count(4)),
        ],
        ..LIKE_LLAMA
    },
    Architecture {
        classes: &["GraniteForCausalLM"],
        name: "granite",
        keys: &[COMMON, VOCAB_SIZE, GRANITE],
        assumed: GRANITE_ASSUMED,
        ..LIKE_LLAMA
    },
    Architecture {
        classes: &["GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"],
        name: "granitemoe",
        keys: &[COMMON, VOCAB_SIZE, GRANITE],
        assumed: GRANITE_ASSUMED,
        ..LIKE_LLAMA
    },
];

const GRANITE_ASSUMED: &[(&str, Assumed)] = &[
    ("max_position_embeddings", Count(2048)),
    ("rms_norm_eps", Float(1e-6)),
    ("rope_theta", Float(10000.0)),
    ("num_key_value_heads", As("num_attention_heads")),
    ("embedding_multiplier", Float(1.0)),
    ("logits_scaling", Float(1.0)),
    ("residual_multiplier", Float(1.0)),
    ("attention_multiplier", Float(1.0)),
];

fn computed(config: &Config, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    common(config, keys)?;
    rotate_heads(config, keys)
}
