//! Rows and computations that several architectures share.

use serde_json::{Map, Value as Json};

use super::keys::{KeyRule, Keys, keys};
use super::{MadeTensor, TensorRule, tensors};
use crate::error::{ConvertError, shown};
use crate::hf::config::Config;

/// Embeddings, the last norm and the head.
pub(super) const EDGES: &[TensorRule] = tensors! {
    "model.embed_tokens" => "token_embd";
    "model.norm" => "output_norm";
    "lm_head" => "output";
};

/// Norms before attention and before the feed-forward part.
pub(super) const PRE_NORMS: &[TensorRule] = tensors! {
    "model.layers.{}.input_layernorm" => "blk.{}.attn_norm";
    "model.layers.{}.post_attention_layernorm" => "blk.{}.ffn_norm";
};

/// Attention.
pub(super) const ATTENTION: &[TensorRule] = tensors! {
    "model.layers.{}.self_attn.q_proj" => "blk.{}.attn_q";
    "model.layers.{}.self_attn.k_proj" => "blk.{}.attn_k";
    "model.layers.{}.self_attn.v_proj" => "blk.{}.attn_v";
    "model.layers.{}.self_attn.o_proj" => "blk.{}.attn_output";
};

/// Norms of the heads of queries and keys.
pub(super) const HEAD_NORMS: &[TensorRule] = tensors! {
    "model.layers.{}.self_attn.q_norm" => "blk.{}.attn_q_norm";
    "model.layers.{}.self_attn.k_norm" => "blk.{}.attn_k_norm";
};

/// The gated feed-forward part.
pub(super) const GATED_MLP: &[TensorRule] = tensors! {
    "model.layers.{}.mlp.gate_proj" => "blk.{}.ffn_gate";
    "model.layers.{}.mlp.up_proj" => "blk.{}.ffn_up";
    "model.layers.{}.mlp.down_proj" => "blk.{}.ffn_down";
};

/// Experts: one tensor each, or all in one.
pub(super) const EXPERTS: &[TensorRule] = tensors! {
    "model.layers.{}.mlp.gate" => "blk.{}.ffn_gate_inp";
    "model.layers.{}.mlp.experts.{}.gate_proj" => "blk.{}.ffn_gate_exps", Stack;
    "model.layers.{}.mlp.experts.{}.up_proj" => "blk.{}.ffn_up_exps", Stack;
    "model.layers.{}.mlp.experts.{}.down_proj" => "blk.{}.ffn_down_exps", Stack;
    "model.layers.{}.mlp.experts.gate_up_proj" => "blk.{}.ffn_gate_exps.weight|blk.{}.ffn_up_exps.weight", Halves;
    "model.layers.{}.mlp.experts.down_proj" => "blk.{}.ffn_down_exps.weight";
};

/// Keys of most architectures.
pub(super) const COMMON: &[KeyRule] = keys! {
    "context_length" <- Count ["max_position_embeddings", "n_ctx", "n_positions", "max_length", "max_sequence_length", "model_max_length"];
    "embedding_length" <- Count ["hidden_size", "n_embd", "dim"];
    "feed_forward_length" <- Count ["prefix_dense_intermediate_size", "dense_intermediate_size", "intermediate_size", "n_inner", "hidden_dim"];
    "attention.head_count" <- Count ["num_attention_heads", "n_head", "n_heads"];
    "attention.head_count_kv" <- Count ["num_key_value_heads", "n_kv_heads"];
    "attention.layer_norm_rms_epsilon" <- Float ["rms_norm_eps", "norm_eps"];
    "attention.layer_norm_epsilon" <- Float ["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"];
    "expert_count" <- Count ["num_local_experts", "num_experts", "n_routed_experts"];
    "expert_used_count" <- Count ["num_experts_per_tok", "num_experts_per_token", "top_k_experts"];
    "expert_group_count" <- Count ["n_group"];
    "expert_group_used_count" <- Count ["topk_group"];
    "attention.key_length" <- Count ["head_dim"];
    "attention.value_length" <- Count ["head_dim"];
};

/// Sets the number of layers, and what [`COMMON`] does not say: RoPE, the choice of experts, attention both ways.
pub(super) fn common(config: &Config, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    blocks(config, keys)?;
    rope(config, keys)?;
    if config.get(&["is_causal"]) == Some(&Json::Bool(false)) {
        keys.set("attention.causal", false);
    }
    let scores =
        config.get(&["score_function", "scoring_func", "score_func", "moe_router_activation", "expert_selection_fn"]);
    match scores.and_then(Json::as_str) {
        None => {}
        Some("softmax") => keys.count("expert_gating_func", 1),
        Some("sigmoid") => keys.count("expert_gating_func", 2),
        Some(other) => {
            let line = format!("config.json: experts are chosen by '{}', which is not converted", shown(other));
            return Err(ConvertError::unsupported(line));
        }
    }
    Ok(())
}

/// Sets the number of layers.
pub(super) fn blocks(config: &Config, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    keys.count("block_count", config.n_layers()?);
    Ok(())
}

/// Sets the number of layers, and of RoPE what loaders do not assume: base and scaling. The reference has neither in these files.
pub(super) fn blocks_and_rope(config: &Config, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    blocks(config, keys)?;
    let rope = config.rope();
    if let Some(kind @ ("llama3" | "longrope" | "su")) = rope.get("rope_type").and_then(Json::as_str) {
        let line = format!("config.json: RoPE is scaled by '{kind}', which is not converted for this architecture");
        return Err(ConvertError::unsupported(line));
    }
    scaling(rope, keys)?;
    if rope.contains_key("rope_theta") {
        let base = config.rope_number("rope_theta")?;
        if base != 10000.0 {
            keys.float("rope.freq_base", base);
        }
    }
    Ok(())
}

/// Sets how RoPE is scaled.
fn scaling(rope: &Map<String, Json>, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    let number = |name: &str| rope.get(name).and_then(Json::as_f64);
    let factor = number("factor");
    match (rope.get("rope_type").and_then(Json::as_str), factor) {
        (Some("linear"), Some(factor)) => {
            keys.set("rope.scaling.type", "linear");
            keys.float("rope.scaling.factor", factor);
        }
        (Some("yarn"), Some(factor)) => {
            keys.set("rope.scaling.type", "yarn");
            keys.float("rope.scaling.factor", factor);
            let n_ctx = number("original_max_position_embeddings")
                .ok_or_else(|| ConvertError::invalid("config.json: yarn lacks 'original_max_position_embeddings'"))?;
            keys.count("rope.scaling.original_context_length", n_ctx as usize);
            for (key, names) in [
                ("yarn_ext_factor", &["extrapolation_factor"][..]),
                ("yarn_attn_factor", &["attention_factor", "attn_factor"]),
                ("yarn_beta_fast", &["beta_fast"]),
                ("yarn_beta_slow", &["beta_slow"]),
            ] {
                if let Some(x) = names.iter().find_map(|name| number(name)) {
                    keys.float(&format!("rope.scaling.{key}"), x);
                }
            }
        }
        (Some("su" | "longrope"), _) => keys.set("rope.scaling.type", "longrope"),
        _ => {}
    }
    Ok(())
}

/// Sets the keys of RoPE.
fn rope(config: &Config, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    let rope = config.rope();
    scaling(rope, keys)?;
    if let Some(base) = rope.get("rope_theta").and_then(Json::as_f64) {
        keys.float("rope.freq_base", base);
    }
    if let Some(base) = config.rope_base_of_windows() {
        keys.float("rope.freq_base_swa", base);
    }
    Ok(())
}

/// Sets the dimensions that RoPE rotates to those of a head.
pub(super) fn rotate_heads(config: &Config, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    keys.count("rope.dimension_count", config.head_dim()?);
    Ok(())
}

/// Returns the share of a head that RoPE rotates.
pub(super) fn rotated_share(config: &Config) -> Option<f64> {
    config.rope().get("partial_rotary_factor").and_then(Json::as_f64)
}

/// Sets the dimensions that RoPE rotates to a share of a head: `default` where nothing else is said.
pub(super) fn rotate_share(config: &Config, keys: &mut Keys<'_>, default: f64) -> Result<(), ConvertError> {
    let share = rotated_share(config).unwrap_or(default);
    keys.count("rope.dimension_count", (share * (config.n_embd()? / config.n_heads()?) as f64) as usize);
    Ok(())
}

/// Sets `vocab_size`.
pub(super) const VOCAB_SIZE: &[KeyRule] = keys! {
    "vocab_size" <- NeedCount ["vocab_size"];
};

/// Makes the factors of Llama 3's RoPE, which slows what turns slowly. Numbers are f32 in each step, as the reference's.
pub(super) fn llama3_factors(config: &Config, _: &mut Keys<'_>) -> Result<Vec<MadeTensor>, ConvertError> {
    let rope = config.rope();
    let is_llama3 =
        rope.get("rope_type").and_then(Json::as_str).is_some_and(|kind| kind.eq_ignore_ascii_case("llama3"));
    if !is_llama3 {
        return Ok(Vec::new());
    }
    let number = |name: &str, default: f64| rope.get(name).and_then(Json::as_f64).unwrap_or(default);
    let (base, dim) = (number("rope_theta", 10000.0), config.head_dim()?);
    let (factor, low, high) = (number("factor", 8.0), number("low_freq_factor", 1.0), number("high_freq_factor", 4.0));
    let n_ctx = number("original_max_position_embeddings", 8192.0);
    let one = |i: usize| {
        let exponent = (2 * i) as f32 / dim as f32;
        let freq = 1.0 / (base.powf(f64::from(exponent)) as f32);
        let wavelength = (2.0 * std::f64::consts::PI) as f32 / freq;
        if wavelength < (n_ctx / high) as f32 {
            1.0
        } else if wavelength > (n_ctx / low) as f32 {
            factor as f32
        } else {
            let smooth = (n_ctx as f32 / wavelength - low as f32) / (high - low) as f32;
            1.0 / ((1.0 - smooth) / factor as f32 + smooth)
        }
    };
    Ok(vec![MadeTensor { name: "rope_freqs.weight", values: (0..dim / 2).map(one).collect() }])
}
