//! Qwen 2 and 3, dense and with experts.

use super::keys::{KeyRule, keys};
use super::shared::{ATTENTION, COMMON, EDGES, EXPERTS, GATED_MLP, HEAD_NORMS, PRE_NORMS, common};
use super::{Architecture, PLAIN, TensorRule, VocabKind, tensors};
use crate::hf::config::Assumed::{self, Count, Float};

/// Expert that every token visits.
const SHARED_EXPERT: &[TensorRule] = tensors! {
    "model.layers.{}.mlp.shared_expert_gate" => "blk.{}.ffn_gate_inp_shexp";
    "model.layers.{}.mlp.shared_expert.gate_proj" => "blk.{}.ffn_gate_shexp";
    "model.layers.{}.mlp.shared_expert.up_proj" => "blk.{}.ffn_up_shexp";
    "model.layers.{}.mlp.shared_expert.down_proj" => "blk.{}.ffn_down_shexp";
};

const TENSORS: &[&[TensorRule]] = &[EDGES, PRE_NORMS, ATTENTION, HEAD_NORMS, GATED_MLP, EXPERTS, SHARED_EXPERT];

const MOE: &[KeyRule] = keys! {
    "expert_feed_forward_length" <- Count ["moe_intermediate_size"];
    "expert_shared_feed_forward_length" <- Count ["shared_expert_intermediate_size"];
};

const QWEN2: &[(&str, Assumed)] = &[
    ("max_position_embeddings", Count(32768)),
    ("num_key_value_heads", Count(32)),
    ("rms_norm_eps", Float(1e-6)),
    ("rope_theta", Float(10000.0)),
];

pub(super) const ALL: &[Architecture] = &[
    Architecture {
        classes: &["Qwen2ForCausalLM", "Qwen2Model"],
        name: "qwen2",
        may_be_bare: true,
        tensors: TENSORS,
        keys: &[COMMON],
        computed: common,
        assumed: QWEN2,
        vocab: VocabKind::SpmOrBpe,
        ..PLAIN
    },
    Architecture {
        classes: &["Qwen2MoeForCausalLM"],
        name: "qwen2moe",
        may_be_bare: true,
        tensors: TENSORS,
        keys: &[COMMON, MOE],
        computed: common,
        assumed: &[
            ("max_position_embeddings", Count(32768)),
            ("num_key_value_heads", Count(16)),
            ("rms_norm_eps", Float(1e-6)),
            ("rope_theta", Float(10000.0)),
            ("num_experts_per_tok", Count(4)),
            ("num_experts", Count(60)),
            ("moe_intermediate_size", Count(1408)),
            ("shared_expert_intermediate_size", Count(5632)),
        ],
        ..PLAIN
    },
    Architecture {
        classes: &["Qwen3ForCausalLM", "Qwen3Model"],
        name: "qwen3",
        may_be_bare: true,
        tensors: TENSORS,
        keys: &[COMMON],
        computed: common,
        assumed: &[
            ("max_position_embeddings", Count(32768)),
            ("num_key_value_heads", Count(32)),
            ("head_dim", Count(128)),
            ("rms_norm_eps", Float(1e-6)),
            ("rope_theta", Float(10000.0)),
        ],
        vocab: VocabKind::SpmOrBpe,
        ..PLAIN
    },
    Architecture {
        classes: &["Qwen3MoeForCausalLM"],
        name: "qwen3moe",
        may_be_bare: true,
        tensors: TENSORS,
        keys: &[COMMON, MOE],
        computed: common,
        assumed: &[
            ("max_position_embeddings", Count(32768)),
            ("num_key_value_heads", Count(4)),
            ("rms_norm_eps", Float(1e-6)),
            ("rope_theta", Float(10000.0)),
            ("num_experts_per_tok", Count(8)),
            ("num_experts", Count(128)),
            ("moe_intermediate_size", Count(768)),
        ],
        ..PLAIN
    },
];
