//! LFM2: layers of attention and layers of short convolutions.

use super::keys::{KeyRule, Keys, keys};
use super::shared::{COMMON, VOCAB_SIZE, common};
use super::{Architecture, PLAIN, TensorRule, tensors};
use crate::error::ConvertError;
use crate::hf::config::Assumed::{Count, Flag, Float};
use crate::hf::config::{Config, absent};

const TENSORS: &[TensorRule] = tensors! {
    "model.embed_tokens" => "token_embd";
    "model.embedding_norm" => "token_embd_norm";
    "lm_head" => "output";
    "model.layers.{}.operator_norm" => "blk.{}.attn_norm";
    "model.layers.{}.ffn_norm" => "blk.{}.ffn_norm";
    "model.layers.{}.self_attn.q_proj" => "blk.{}.attn_q";
    "model.layers.{}.self_attn.k_proj" => "blk.{}.attn_k";
    "model.layers.{}.self_attn.v_proj" => "blk.{}.attn_v";
    "model.layers.{}.self_attn.out_proj" => "blk.{}.attn_output";
    "model.layers.{}.self_attn.q_layernorm" => "blk.{}.attn_q_norm";
    "model.layers.{}.self_attn.k_layernorm" => "blk.{}.attn_k_norm";
    "model.layers.{}.conv.conv" => "blk.{}.shortconv.conv", Squeezed;
    "model.layers.{}.conv.in_proj" => "blk.{}.shortconv.in_proj";
    "model.layers.{}.conv.out_proj" => "blk.{}.shortconv.out_proj";
    "model.layers.{}.feed_forward.w1" => "blk.{}.ffn_gate";
    "model.layers.{}.feed_forward.w3" => "blk.{}.ffn_up";
    "model.layers.{}.feed_forward.w2" => "blk.{}.ffn_down";
};

const KEYS: &[KeyRule] = keys! {
    "shortconv.l_cache" <- NeedCount ["conv_L_cache"];
    "attention.layer_norm_rms_epsilon" <- NeedFloat ["norm_eps"];
};

pub(super) const ALL: &[Architecture] = &[Architecture {
    classes: &["Lfm2ForCausalLM", "LFM2ForCausalLM"],
    name: "lfm2",
    prefixes: &["lfm."],
    tensors: &[TENSORS],
    keys: &[COMMON, VOCAB_SIZE, KEYS],
    computed,
    assumed: &[
        ("max_position_embeddings", Count(128_000)),
        ("norm_eps", Float(1e-5)),
        ("rope_theta", Float(1_000_000.0)),
        ("num_key_value_heads", Count(8)),
        ("conv_L_cache", Count(3)),
        ("block_multiple_of", Count(256)),
        ("block_ffn_dim_multiplier", Float(1.0)),
        ("block_auto_adjust_ff_dim", Flag(true)),
    ],
    ..PLAIN
}];

fn computed(config: &Config, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    common(config, keys)?;
    let n_kv_heads = config.n_kv_heads()?;
    let n_layers = config.n_layers()?;
    let attends: Vec<bool> = match (config.get(&["layer_types"]), config.get(&["full_attn_idxs"])) {
        (Some(types), _) => types.as_array().into_iter().flatten().map(|kind| kind != "conv").collect(),
        (None, Some(layers)) => {
            let layers = layers.as_array().cloned().unwrap_or_default();
            (0..n_layers).map(|layer| layers.iter().any(|one| one.as_u64() == Some(layer as u64))).collect()
        }
        (None, None) => return Err(absent(&["layer_types"])),
    };
    let heads: Vec<i32> = attends.iter().map(|&attends| if attends { n_kv_heads as i32 } else { 0 }).collect();
    keys.set("attention.head_count_kv", heads);
    keys.count("feed_forward_length", n_ff(config)?);
    Ok(())
}

/// Returns the width of the feed-forward part, which configurations may give before its adjustment.
fn n_ff(config: &Config) -> Result<usize, ConvertError> {
    let n_ff = config.positive(&["block_ff_dim", "intermediate_size"])?;
    if !config.is("block_auto_adjust_ff_dim") {
        return Ok(n_ff);
    }
    let multiplier = config.float_if_any(&["block_ffn_dim_multiplier"])?.unwrap_or(1.0);
    let n_ff = (multiplier * (2 * n_ff / 3) as f64) as usize;
    let n_ff = n_ff.checked_next_multiple_of(config.positive(&["block_multiple_of"])?);
    n_ff.ok_or_else(|| ConvertError::invalid("config.json: 'block_ffn_dim_multiplier' makes rows of no possible width"))
}
