//! DeepSeek 2 and 3: attention over a row that heads share.

use serde_json::Value as Json;

use super::keys::{KeyRule, Keys, keys};
use super::shared::{ATTENTION, COMMON, EDGES, EXPERTS, GATED_MLP, PRE_NORMS, VOCAB_SIZE, common};
use super::{Architecture, PLAIN, TensorRule, tensors};
use crate::error::ConvertError;
use crate::hf::config::Assumed::{Count, Float};
use crate::hf::config::Config;

const TENSORS: &[TensorRule] = tensors! {
    "model.layers.{}.self_attn.q_a_proj" => "blk.{}.attn_q_a";
    "model.layers.{}.self_attn.q_b_proj" => "blk.{}.attn_q_b";
    "model.layers.{}.self_attn.q_a_layernorm" => "blk.{}.attn_q_a_norm";
    "model.layers.{}.self_attn.kv_a_proj_with_mqa" => "blk.{}.attn_kv_a_mqa";
    "model.layers.{}.self_attn.kv_a_layernorm" => "blk.{}.attn_kv_a_norm";
    "model.layers.{}.self_attn.kv_b_proj" => "blk.{}.attn_k_b|blk.{}.attn_v_b", LatentKv;
    "model.layers.{}.mlp.gate.e_score_correction_bias" => "blk.{}.exp_probs_b.bias";
    "model.layers.{}.mlp.shared_experts.gate_proj" => "blk.{}.ffn_gate_shexp";
    "model.layers.{}.mlp.shared_experts.up_proj" => "blk.{}.ffn_up_shexp";
    "model.layers.{}.mlp.shared_experts.down_proj" => "blk.{}.ffn_down_shexp";
};

const KEYS: &[KeyRule] = keys! {
    "attention.q_lora_rank" <- Count ["q_lora_rank"];
    "attention.kv_lora_rank" <- NeedCount ["kv_lora_rank"];
    "attention.value_length" <- NeedCount ["kv_lora_rank"];
    "attention.value_length_mla" <- NeedCount ["v_head_dim"];
    "expert_feed_forward_length" <- NeedCount ["moe_intermediate_size", "intermediate_size"];
    "expert_weights_scale" <- Float ["routed_scaling_factor"];
    "rope.dimension_count" <- NeedCount ["qk_rope_head_dim"];
};

pub(super) const ALL: &[Architecture] = &[Architecture {
    classes: &["DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"],
    name: "deepseek2",
    tensors: &[EDGES, PRE_NORMS, ATTENTION, TENSORS, GATED_MLP, EXPERTS],
    keys: &[COMMON, VOCAB_SIZE, KEYS],
    computed,
    assumed: &[
        ("max_position_embeddings", Count(2048)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10000.0)),
        ("kv_lora_rank", Count(512)),
    ],
    ..PLAIN
}];

fn computed(config: &Config, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    common(config, keys)?;
    // Heads share one key in the file.
    keys.count("attention.head_count_kv", 1);
    let has_experts = config.get(&["n_routed_experts"]).is_some();
    let n_dense = match config.count_if_any(&["first_k_dense_replace"])? {
        Some(n) => n,
        None if has_experts => 0,
        None => config.n_layers()?,
    };
    keys.count("leading_dense_block_count", n_dense);
    let n_rot = config.count(&["qk_rope_head_dim"])?;
    keys.count("attention.key_length", config.count(&["kv_lora_rank"])? + n_rot);
    keys.count("attention.key_length_mla", config.count(&["qk_nope_head_dim"])? + n_rot);
    keys.count("expert_shared_count", config.count_if_any(&["n_shared_experts"])?.unwrap_or(0));
    if config.is("norm_topk_prob") {
        keys.set("expert_weights_norm", true);
    }
    if let Some(x) = config.rope().get("mscale_all_dim").and_then(Json::as_f64) {
        keys.float("rope.scaling.yarn_log_multiplier", 0.1 * x);
    }
    Ok(())
}
