//! Command R7B (Cohere 2) and GLM 4.

use super::keys::{KeyRule, Keys, keys};
use super::shared::{ATTENTION, COMMON, EDGES, GATED_MLP, VOCAB_SIZE, common, rotate_share, rotated_share};
use super::{Architecture, PLAIN, TensorRule, VocabKind, tensors};
use crate::error::ConvertError;
use crate::hf::config::Assumed::{As, Count, Float, Ratio};
use crate::hf::config::Config;

/// Biases are all 0, and not written.
const COHERE2: &[TensorRule] = tensors! {
    "model.layers.{}.input_layernorm.weight" => "blk.{}.attn_norm.weight";
    "model.norm.bias" => "", Zeros;
    "model.layers.{}.input_layernorm.bias" => "", Zeros;
    "model.layers.{}.self_attn.q_proj.bias" => "", Zeros;
    "model.layers.{}.self_attn.k_proj.bias" => "", Zeros;
    "model.layers.{}.self_attn.v_proj.bias" => "", Zeros;
    "model.layers.{}.self_attn.o_proj.bias" => "", Zeros;
};
const COHERE2_KEYS: &[KeyRule] = keys! {
    "logit_scale" <- NeedFloat ["logit_scale"];
    "attention.sliding_window" <- NeedCount ["sliding_window"];
};

const GLM4: &[TensorRule] = tensors! {
    "model.layers.{}.input_layernorm" => "blk.{}.attn_norm";
    "model.layers.{}.post_self_attn_layernorm" => "blk.{}.post_attention_norm";
    "model.layers.{}.post_attention_layernorm" => "blk.{}.ffn_norm";
    "model.layers.{}.post_mlp_layernorm" => "blk.{}.post_ffw_norm";
    "model.layers.{}.mlp.gate_up_proj" => "blk.{}.ffn_up";
    "model.layers.{}.mlp.down_proj" => "blk.{}.ffn_down";
};

pub(super) const ALL: &[Architecture] = &[
    Architecture {
        classes: &["Cohere2ForCausalLM"],
        name: "cohere2",
        tensors: &[COHERE2, EDGES, ATTENTION, GATED_MLP],
        keys: &[COMMON, VOCAB_SIZE, COHERE2_KEYS],
        computed: cohere2,
        assumed: &[
            ("max_position_embeddings", Count(8192)),
            ("num_key_value_heads", As("num_attention_heads")),
            ("head_dim", Ratio("hidden_size", "num_attention_heads")),
            ("logit_scale", Float(0.0625)),
            ("layer_norm_eps", Float(1e-5)),
            ("rope_theta", Float(10000.0)),
            ("sliding_window", Count(4096)),
        ],
        ..PLAIN
    },
    Architecture {
        classes: &["Glm4ForCausalLM"],
        name: "glm4",
        tensors: &[EDGES, GLM4, ATTENTION],
        keys: &[COMMON],
        computed: glm4,
        assumed: &[
            ("max_position_embeddings", Count(131_072)),
            ("num_key_value_heads", Count(2)),
            ("head_dim", Count(128)),
            ("rms_norm_eps", Float(1.5625e-7)),
            ("rope_theta", Float(10000.0)),
            ("partial_rotary_factor", Float(0.5)),
        ],
        vocab: VocabKind::Glm4,
        ..PLAIN
    },
];

fn cohere2(config: &Config, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    common(config, keys)?;
    rotate_share(config, keys, 1.0)?;
    keys.set("rope.scaling.type", "none");
    Ok(())
}

fn glm4(config: &Config, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    common(config, keys)?;
    if config.rope().contains_key("mrope_section") {
        return Err(ConvertError::unsupported("config.json: GLM 4 with 'mrope_section' (images) is not converted"));
    }
    let share = rotated_share(config).unwrap_or(0.5);
    keys.count("rope.dimension_count", (share * config.head_dim()? as f64) as usize);
    Ok(())
}
