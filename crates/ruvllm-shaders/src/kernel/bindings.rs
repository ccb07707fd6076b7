//! Bindings of each kernel.

use super::Kernel;
use crate::binding::{Binding, PARAMS_BINDING};

impl Kernel {
    /// Bindings of group 0: the parameters, then the buffers in order. Group 1 is [`PASS_BINDINGS`](crate::PASS_BINDINGS).
    pub fn bindings(&self) -> Vec<Binding> {
        let own: &[Binding] = match self {
            Kernel::MatVec { .. } | Kernel::MatMul { .. } => &LINEAR,
            Kernel::ExpertMatVec { .. } => &EXPERT_LINEAR,
            Kernel::Embed { .. } => &[Binding::read("w", "array<u32>"), Binding::write("y", "array<f32>")],
            Kernel::Norm { .. } => &NORM,
            Kernel::Rope { .. } => &[Binding::read("angles", "array<vec2<f32>>"), Binding::write("x", "array<f32>")],
            Kernel::Activate { .. } => &ACTIVATE,
            Kernel::Add => &ADD,
            Kernel::Gather | Kernel::CopyHeads | Kernel::Softmax { .. } => {
                &[Binding::read("x", "array<f32>"), Binding::write("y", "array<f32>")]
            }
            Kernel::KvAppend { .. } => &KV_APPEND,
            Kernel::Attention { .. } => &ATTENTION,
            Kernel::AttentionMerge => &[Binding::read("splits", "array<f32>"), Binding::write("y", "array<f32>")],
            Kernel::TopK { .. } => &TOP_K,
            Kernel::TopKParts => &[Binding::read("x", "array<u32>"), Binding::write("part_ids", "array<u32>")],
            Kernel::TopKMerge => &TOP_K_MERGE,
            Kernel::RouteExperts { .. } => &ROUTE,
            Kernel::CombineExperts => &COMBINE,
            Kernel::ConvAppend => &[Binding::read("x", "array<f32>"), Binding::write("inputs", "array<f32>")],
            Kernel::ShortConv => &SHORT_CONV,
            Kernel::CausalConv => &CAUSAL_CONV,
            Kernel::Scan { .. } => &SCAN,
            Kernel::LowRankShrink { .. } => &LOW_RANK_SHRINK,
            Kernel::LowRankExpand => &LOW_RANK_EXPAND,
        };
        std::iter::once(PARAMS_BINDING).chain(own.iter().copied()).collect()
    }
}

const LINEAR: [Binding; 4] = [
    Binding::read("w", "array<u32>"),
    Binding::read("x", "array<vec4<f32>>"),
    Binding::read("bias", "array<f32>"),
    Binding::write("y", "array<f32>"),
];

const EXPERT_LINEAR: [Binding; 5] = [
    Binding::read("w", "array<u32>"),
    Binding::read("x", "array<vec4<f32>>"),
    Binding::read("bias", "array<f32>"),
    Binding::read("experts", "array<u32>"),
    Binding::write("y", "array<f32>"),
];

const NORM: [Binding; 4] = [
    Binding::read("x", "array<f32>"),
    Binding::read("weight", "array<f32>"),
    Binding::read("bias", "array<f32>"),
    Binding::write("y", "array<f32>"),
];

const ACTIVATE: [Binding; 3] =
    [Binding::read("a", "array<f32>"), Binding::read("b", "array<f32>"), Binding::write("y", "array<f32>")];

const ADD: [Binding; 3] =
    [Binding::read("x", "array<f32>"), Binding::read("gate", "array<f32>"), Binding::write("y", "array<f32>")];

const KV_APPEND: [Binding; 4] = [
    Binding::read("k", "array<f32>"),
    Binding::read("v", "array<f32>"),
    Binding::write("k_cache", "array<u32>"),
    Binding::write("v_cache", "array<u32>"),
];

const ATTENTION: [Binding; 5] = [
    Binding::read("q", "array<f32>"),
    Binding::read("k_cache", "array<u32>"),
    Binding::read("v_cache", "array<u32>"),
    Binding::read("sinks", "array<f32>"),
    Binding::write("y", "array<f32>"),
];

const TOP_K: [Binding; 3] =
    [Binding::read("x", "array<f32>"), Binding::write("ids", "array<u32>"), Binding::write("values", "array<f32>")];

const TOP_K_MERGE: [Binding; 3] =
    [Binding::read("x", "array<u32>"), Binding::read("part_ids", "array<u32>"), Binding::write("pairs", "array<u32>")];

const ROUTE: [Binding; 4] = [
    Binding::read("x", "array<f32>"),
    Binding::read("choice_bias", "array<f32>"),
    Binding::write("experts", "array<u32>"),
    Binding::write("expert_weights", "array<f32>"),
];

const COMBINE: [Binding; 3] = [
    Binding::read("x", "array<f32>"),
    Binding::read("expert_weights", "array<f32>"),
    Binding::write("y", "array<f32>"),
];

const SHORT_CONV: [Binding; 4] = [
    Binding::read("x", "array<f32>"),
    Binding::read("inputs", "array<f32>"),
    Binding::read("taps", "array<f32>"),
    Binding::write("y", "array<f32>"),
];

const CAUSAL_CONV: [Binding; 5] = [
    Binding::read("x", "array<f32>"),
    Binding::read("taps", "array<f32>"),
    Binding::read("bias", "array<f32>"),
    Binding::write("state", "array<f32>"),
    Binding::write("y", "array<f32>"),
];

const SCAN: [Binding; 6] = [
    Binding::read("x", "array<f32>"),
    Binding::read("dt", "array<f32>"),
    Binding::read("bc", "array<f32>"),
    Binding::read("weights", "array<f32>"),
    Binding::write("state", "array<f32>"),
    Binding::write("y", "array<f32>"),
];

const LOW_RANK_SHRINK: [Binding; 5] = [
    Binding::read("x", "array<f32>"),
    Binding::read("bank", "array<u32>"),
    Binding::read("members", "array<vec2<u32>>"),
    Binding::read("experts", "array<u32>"),
    Binding::write("t", "array<f32>"),
];

const LOW_RANK_EXPAND: [Binding; 6] = [
    Binding::read("t", "array<f32>"),
    Binding::read("bank", "array<u32>"),
    Binding::read("members", "array<vec2<u32>>"),
    Binding::read("experts", "array<u32>"),
    Binding::read("bias", "array<f32>"),
    Binding::write("y", "array<f32>"),
];
