//! Phi 2, and Phi 3 to 4-mini, whose RoPE has factors for short and long contexts.

use serde_json::Value as Json;

use super::keys::{KeyRule, Keys, keys};
use super::shared::{EDGES, PRE_NORMS, blocks, blocks_and_rope, rotated_share};
use super::{Architecture, MadeTensor, PLAIN, TensorRule, VocabKind, tensors};
use crate::error::{ConvertError, shown};
use crate::hf::config::Assumed::{As, Count, Float};
use crate::hf::config::Config;

const PHI2: &[TensorRule] = tensors! {
    "model.embed_tokens" => "token_embd";
    "model.final_layernorm" => "output_norm";
    "lm_head" => "output";
    "model.layers.{}.input_layernorm" => "blk.{}.attn_norm";
    "model.layers.{}.self_attn.q_proj" => "blk.{}.attn_q";
    "model.layers.{}.self_attn.k_proj" => "blk.{}.attn_k";
    "model.layers.{}.self_attn.v_proj" => "blk.{}.attn_v";
    "model.layers.{}.self_attn.dense" => "blk.{}.attn_output";
    "model.layers.{}.mlp.fc1" => "blk.{}.ffn_up";
    "model.layers.{}.mlp.fc2" => "blk.{}.ffn_down";
};
const PHI3: &[TensorRule] = tensors! {
    "model.layers.{}.self_attn.qkv_proj" => "blk.{}.attn_qkv";
    "model.layers.{}.self_attn.o_proj" => "blk.{}.attn_output";
    "model.layers.{}.mlp.gate_up_proj" => "blk.{}.ffn_up";
    "model.layers.{}.mlp.down_proj" => "blk.{}.ffn_down";
};

const PHI2_KEYS: &[KeyRule] = keys! {
    "context_length" <- NeedCount ["n_positions", "max_position_embeddings"];
    "embedding_length" <- NeedCount ["hidden_size", "n_embd"];
    "attention.head_count" <- NeedCount ["num_attention_heads", "n_head"];
    "attention.head_count_kv" <- NeedCount ["num_attention_heads", "n_head"];
    "attention.layer_norm_epsilon" <- NeedFloat ["layer_norm_epsilon", "layer_norm_eps"];
};
const PHI3_KEYS: &[KeyRule] = keys! {
    "context_length" <- NeedCount ["n_positions", "max_position_embeddings"];
    "embedding_length" <- NeedCount ["hidden_size", "n_embd"];
    "feed_forward_length" <- NeedCount ["intermediate_size"];
    "attention.head_count" <- NeedCount ["num_attention_heads", "n_head"];
    "attention.head_count_kv" <- NeedCount ["num_key_value_heads", "n_head_kv"];
    "attention.layer_norm_rms_epsilon" <- NeedFloat ["rms_norm_eps"];
};

pub(super) const ALL: &[Architecture] = &[
    Architecture {
        classes: &["PhiForCausalLM"],
        name: "phi2",
        tensors: &[PHI2],
        keys: &[PHI2_KEYS],
        computed: phi2,
        assumed: &[
            ("max_position_embeddings", Count(2048)),
            ("layer_norm_eps", Float(1e-5)),
            ("partial_rotary_factor", Float(0.5)),
        ],
        ..PLAIN
    },
    Architecture {
        classes: &["Phi3ForCausalLM"],
        name: "phi3",
        tensors: &[EDGES, PRE_NORMS, PHI3],
        keys: &[PHI3_KEYS],
        computed: phi3,
        made: factors,
        assumed: &[
            ("max_position_embeddings", Count(4096)),
            ("original_max_position_embeddings", Count(4096)),
            ("rms_norm_eps", Float(1e-5)),
            ("rope_theta", Float(10000.0)),
            ("num_key_value_heads", As("num_attention_heads")),
            ("partial_rotary_factor", Float(1.0)),
        ],
        vocab: VocabKind::Phi3,
        ..PLAIN
    },
];

/// Returns the dimensions of a head that are rotated.
fn n_rotated(config: &Config) -> Result<usize, ConvertError> {
    let share = rotated_share(config).unwrap_or(1.0);
    Ok((share * config.n_embd()? as f64) as usize / config.n_heads()?)
}

fn phi2(config: &Config, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    blocks_and_rope(config, keys)?;
    keys.count("feed_forward_length", 4 * config.n_embd()?);
    keys.count("rope.dimension_count", n_rotated(config)?);
    keys.set_global("tokenizer.ggml.add_bos_token", false);
    Ok(())
}

fn phi3(config: &Config, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    blocks(config, keys)?;
    keys.float("rope.freq_base", config.rope_number("rope_theta")?);
    let n_ctx_trained = config.rope_count("original_max_position_embeddings")?;
    keys.count("rope.scaling.original_context_length", n_ctx_trained);
    keys.count("rope.dimension_count", n_rotated(config)?);
    keys.count("attention.sliding_window", config.count_if_any(&["sliding_window"])?.unwrap_or(0));
    Ok(())
}

/// Takes the factors of RoPE for long and short contexts, and what they do to the size of queries and keys.
fn factors(config: &Config, keys: &mut Keys<'_>) -> Result<Vec<MadeTensor>, ConvertError> {
    let rope = config.rope();
    let list = |name: &str| -> Option<Vec<f32>> {
        rope.get(name)?.as_array()?.iter().map(|x| x.as_f64().map(|x| x as f32)).collect()
    };
    let Some(long) = list("long_factor").filter(|long| !long.is_empty()) else { return Ok(Vec::new()) };
    let short = list("short_factor").unwrap_or_default();
    let n = n_rotated(config)? / 2;
    if long.len() != n || short.len() != n {
        let line = format!(
            "config.json: RoPE has {} factors for long contexts and {} for short ones, {n} are needed",
            long.len(),
            short.len()
        );
        return Err(ConvertError::invalid(line));
    }
    let n_ctx = config.count(&["n_positions", "max_position_embeddings"])? as f64;
    let n_ctx_trained = config.rope_count("original_max_position_embeddings")? as f64;
    let scale = n_ctx / n_ctx_trained;
    let attention = match rope.get("rope_type").and_then(Json::as_str).unwrap_or_default().to_lowercase().as_str() {
        _ if scale <= 1.0 => 1.0,
        "su" | "longrope" => (1.0 + scale.ln() / n_ctx_trained.ln()).sqrt(),
        "yarn" => 0.1 * scale.ln() + 1.0,
        other => {
            let line = format!("config.json: RoPE is scaled by '{}', which is not converted", shown(other));
            return Err(ConvertError::unsupported(line));
        }
    };
    keys.float("rope.scaling.attn_factor", attention);
    Ok(vec![
        MadeTensor { name: "rope_factors_long.weight", values: long },
        MadeTensor { name: "rope_factors_short.weight", values: short },
    ])
}
