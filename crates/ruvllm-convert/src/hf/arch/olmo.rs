//! OLMo 2, whose norms come after each part, and OLMoE.

use super::keys::Keys;
use super::shared::{ATTENTION, COMMON, EDGES, EXPERTS, GATED_MLP, HEAD_NORMS, PRE_NORMS, common};
use super::{Architecture, PLAIN, TensorRule, tensors};
use crate::error::ConvertError;
use crate::hf::config::Assumed::{As, Count, Float};
use crate::hf::config::Config;

const POST_NORMS: &[TensorRule] = tensors! {
    "model.layers.{}.post_attention_layernorm" => "blk.{}.post_attention_norm";
    "model.layers.{}.post_feedforward_layernorm" => "blk.{}.post_ffw_norm";
};

pub(super) const ALL: &[Architecture] = &[
    Architecture {
        classes: &["Olmo2ForCausalLM", "Olmo3ForCausalLM"],
        name: "olmo2",
        tensors: &[EDGES, POST_NORMS, ATTENTION, HEAD_NORMS, GATED_MLP],
        keys: &[COMMON],
        computed: olmo2,
        assumed: &[
            ("max_position_embeddings", Count(2048)),
            ("num_key_value_heads", As("num_attention_heads")),
            ("rms_norm_eps", Float(1e-5)),
            ("rope_theta", Float(10000.0)),
        ],
        ..PLAIN
    },
    Architecture {
        classes: &["OlmoeForCausalLM"],
        name: "olmoe",
        tensors: &[EDGES, PRE_NORMS, ATTENTION, HEAD_NORMS, EXPERTS],
        keys: &[COMMON],
        computed: olmoe,
        assumed: &[
            ("max_position_embeddings", Count(4096)),
            ("num_key_value_heads", As("num_attention_heads")),
            ("rope_theta", Float(10000.0)),
            ("num_experts_per_tok", Count(8)),
            ("num_experts", Count(64)),
        ],
        ..PLAIN
    },
];

fn olmo2(config: &Config, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    common(config, keys)?;
    let Some(window) = config.count_if_any(&["sliding_window"])? else { return Ok(()) };
    keys.count("attention.sliding_window", window);
    let pattern: Vec<bool> = match config.get(&["layer_types"]).and_then(|types| types.as_array()) {
        Some(types) => types.iter().map(|kind| kind == "sliding_attention").collect(),
        None => (0..config.n_layers()?).map(|layer| (layer + 1) % 4 != 0).collect(),
    };
    keys.set("attention.sliding_window_pattern", pattern);
    Ok(())
}

fn olmoe(config: &Config, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    common(config, keys)?;
    keys.float("attention.layer_norm_rms_epsilon", 1e-5);
    Ok(())
}
