//! Gemma 1 to 3: norms count from 1, the head is the embeddings.

use serde_json::Value as Json;

use super::keys::{KeyRule, Keys, keys};
use super::shared::{ATTENTION, COMMON, GATED_MLP, blocks_and_rope, common};
use super::{Architecture, PLAIN, TensorRule, VocabKind, tensors};
use crate::error::ConvertError;
use crate::hf::config::Assumed::{Count, Float};
use crate::hf::config::Config;

const EDGES: &[TensorRule] = tensors! {
    "model.embed_tokens" => "token_embd";
    "model.norm" => "output_norm", PlusOne;
    "lm_head" => "output", Skip;
};
const EDGES_3: &[TensorRule] = tensors! {
    "model.embed_tokens" => "token_embd", Tokens;
    "model.norm" => "output_norm", PlusOne;
    "lm_head" => "output";
};
const NORMS: &[TensorRule] = tensors! {
    "model.layers.{}.input_layernorm" => "blk.{}.attn_norm", PlusOne;
    "model.layers.{}.post_attention_layernorm" => "blk.{}.ffn_norm", PlusOne;
};
const NORMS_OF_SUMS: &[TensorRule] = tensors! {
    "model.layers.{}.input_layernorm" => "blk.{}.attn_norm", PlusOne;
    "model.layers.{}.post_attention_layernorm" => "blk.{}.post_attention_norm", PlusOne;
    "model.layers.{}.pre_feedforward_layernorm" => "blk.{}.ffn_norm", PlusOne;
    "model.layers.{}.post_feedforward_layernorm" => "blk.{}.post_ffw_norm", PlusOne;
    "model.layers.{}.self_attn.q_norm" => "blk.{}.attn_q_norm", PlusOne;
    "model.layers.{}.self_attn.k_norm" => "blk.{}.attn_k_norm", PlusOne;
};

const KEYS: &[KeyRule] = keys! {
    "context_length" <- NeedCount ["max_position_embeddings"];
    "embedding_length" <- NeedCount ["hidden_size"];
    "feed_forward_length" <- NeedCount ["intermediate_size"];
    "attention.head_count" <- NeedCount ["num_attention_heads"];
    "attention.head_count_kv" <- NeedCount ["num_key_value_heads", "num_attention_heads"];
    "attention.layer_norm_rms_epsilon" <- NeedFloat ["rms_norm_eps"];
    "attention.key_length" <- NeedCount ["head_dim"];
    "attention.value_length" <- NeedCount ["head_dim"];
};
const CAPS: &[KeyRule] = keys! {
    "attn_logit_softcapping" <- NeedFloat ["attn_logit_softcapping"];
    "final_logit_softcapping" <- NeedFloat ["final_logit_softcapping"];
    "attention.sliding_window" <- NeedCount ["sliding_window"];
};

pub(super) const ALL: &[Architecture] = &[
    Architecture {
        classes: &["GemmaForCausalLM"],
        name: "gemma",
        tensors: &[EDGES, NORMS, ATTENTION, GATED_MLP],
        keys: &[KEYS],
        computed: blocks_and_rope,
        assumed: &[
            ("max_position_embeddings", Count(8192)),
            ("num_key_value_heads", Count(16)),
            ("head_dim", Count(256)),
            ("rms_norm_eps", Float(1e-6)),
        ],
        vocab: VocabKind::Gemma1,
        ..PLAIN
    },
    Architecture {
        classes: &["Gemma2ForCausalLM"],
        name: "gemma2",
        tensors: &[EDGES, NORMS_OF_SUMS, ATTENTION, GATED_MLP],
        keys: &[KEYS, CAPS],
        computed: blocks_and_rope,
        assumed: &[
            ("max_position_embeddings", Count(8192)),
            ("num_key_value_heads", Count(4)),
            ("head_dim", Count(256)),
            ("rms_norm_eps", Float(1e-6)),
            ("sliding_window", Count(4096)),
            ("attn_logit_softcapping", Float(50.0)),
            ("final_logit_softcapping", Float(30.0)),
        ],
        vocab: VocabKind::Gemma,
        ..PLAIN
    },
    Architecture {
        classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
        name: "gemma3",
        tensors: &[EDGES_3, NORMS_OF_SUMS, ATTENTION, GATED_MLP],
        keys: &[COMMON],
        computed: gemma3,
        assumed: &[
            ("max_position_embeddings", Count(131_072)),
            ("hidden_size", Count(2304)),
            ("intermediate_size", Count(9216)),
            ("num_hidden_layers", Count(26)),
            ("num_attention_heads", Count(8)),
            ("num_key_value_heads", Count(4)),
            ("head_dim", Count(256)),
            ("rms_norm_eps", Float(1e-6)),
            ("rope_theta", Float(1_000_000.0)),
            ("rope_local_base_freq", Float(10000.0)),
            ("sliding_window", Count(4096)),
            ("vocab_size", Count(262_208)),
        ],
        vocab: VocabKind::Gemma,
        ..PLAIN
    },
];

fn gemma3(config: &Config, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    common(config, keys)?;
    if config.get(&["attn_logit_softcapping"]).is_some() {
        return Err(ConvertError::unsupported("config.json: Gemma 3 with 'attn_logit_softcapping' is not converted"));
    }
    if let Some(cap) = config.float_if_any(&["final_logit_softcapping"])?.filter(|&cap| cap != 0.0) {
        keys.float("final_logit_softcapping", cap);
    }
    if config.get(&["sliding_window_pattern"]).and_then(Json::as_u64) != Some(1) {
        keys.count("attention.sliding_window", config.count(&["sliding_window"])?);
    }
    Ok(())
}
