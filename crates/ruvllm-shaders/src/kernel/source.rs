//! The text of a kernel: declarations and constants, then the parts that it uses, then its own body.

use super::{GRID_X, KV_BLOCK, Kernel, KvType, Reduction, RowTile, ShaderActivation, TOP_K_MAX, TileType};
use crate::binding::PASS_BINDINGS;
use crate::format::WeightFormat;
use crate::params;
use crate::params::{
    ADAPTERS_MAX, ActivateParams, AddParams, AttentionMergeParams, AttentionParams, CausalConvParams, CombineParams,
    ConvParams, CopyHeadsParams, EmbedParams, ExpertLinearParams, KvAppendParams, LOW_RANK_F32, LOW_RANK_GAIN,
    LOW_RANK_PLACE_WORDS, LinearParams, LowRankParams, NO_ADAPTER, NormParams, RopeParams, RouteParams, RowRecord,
    ScanParams, SoftmaxParams, TopKParams, TopKPartsParams,
};

/// Flags by their names in WGSL.
const FLAGS: [(&str, u32); 8] = [
    ("HAS_BIAS", params::flags::HAS_BIAS),
    ("ACCUMULATE", params::flags::ACCUMULATE),
    ("HAS_WEIGHT", params::flags::HAS_WEIGHT),
    ("HAS_GATE", params::flags::HAS_GATE),
    ("HAS_SINKS", params::flags::HAS_SINKS),
    ("NORMALIZE", params::flags::NORMALIZE),
    ("HAS_EXPERTS", params::flags::HAS_EXPERTS),
    ("SLOT_IS_EXPERT", params::flags::SLOT_IS_EXPERT),
];

impl Kernel {
    /// The kernel as WGSL, whose entry point is `main`.
    pub fn source(&self) -> String {
        let mut text = format!("// {}: made by ruvllm-shaders of the files in src/wgsl.\n", self.name());
        if self.needs().f16 {
            text += "enable f16;\n";
        }
        text += self.params_wgsl();
        text += RowRecord::WGSL;
        for (i, binding) in self.bindings().iter().enumerate() {
            text += &binding.wgsl(0, i);
        }
        for (i, binding) in PASS_BINDINGS.iter().enumerate() {
            text += &binding.wgsl(1, i);
        }
        for (name, value) in FLAGS {
            text += &format!("const {name}: u32 = {value}u;\n");
        }
        text += &format!("const WG: u32 = {}u;\n", self.workgroup_len());
        text += &self.constants();
        text += match self.reduction() {
            Some(Reduction::Subgroup) => include_str!("../wgsl/reduce_subgroup.wgsl"),
            Some(Reduction::Shared) => include_str!("../wgsl/reduce_shared.wgsl"),
            None => include_str!("../wgsl/reduce_none.wgsl"),
        };
        if let Some(format) = self.format() {
            text += &format!("const RAGGED: bool = {};\n", format.is_ragged());
            text += include_str!("../wgsl/words.wgsl");
            if matches!(format, WeightFormat::IQ4_NL | WeightFormat::IQ4_XS) {
                text += include_str!("../wgsl/iq4_values.wgsl");
            }
            text += format.decoder();
        }
        self.bodies().iter().fold(text, |text, body| text + body)
    }

    /// WGSL of the constants that only this operation has.
    fn constants(&self) -> String {
        match *self {
            Kernel::MatVec { rows, .. } => {
                let (n_rows, n_outs) = (rows.n_rows(), rows.n_outs());
                format!("const GRID_X: u32 = {GRID_X}u;\n{}", tile_constants(n_rows, n_outs))
            }
            Kernel::ExpertMatVec { .. } => tile_constants(1, RowTile::One.n_outs()),
            Kernel::MatMul { tile, .. } => match tile {
                TileType::F32 => "alias Quad = vec4<f32>;\n".to_owned(),
                TileType::F16 => "alias Quad = vec4<f16>;\n".to_owned(),
            },
            Kernel::Norm { is_centred, .. } => format!("const CENTRED: bool = {is_centred};\n{}", n_sums(1)),
            Kernel::Rope { is_neox } => format!("const NEOX: bool = {is_neox};\n"),
            Kernel::Activate { function, is_gated } => {
                let is_clamped = function == ShaderActivation::ClampedSwiglu;
                let name = function.wgsl();
                format!(
                    "const GATED: bool = {is_gated};\nconst CLAMPED: bool = {is_clamped};\n\
                     fn activation(x: f32) -> f32 {{\n    return {name}(x);\n}}\n"
                )
            }
            Kernel::KvAppend { kv } => format!("const BLOCK: u32 = {KV_BLOCK}u;\n{}", kv_wgsl(kv)),
            Kernel::Attention { heads, kv, is_split, width, .. } => {
                let (n_heads, n_values, kv) = (heads.n_heads(), width.n_values(), kv_wgsl(kv));
                format!(
                    "const BLOCK: u32 = {KV_BLOCK}u;\nconst HEADS: u32 = {n_heads}u;\nconst HEAD_MAX: u32 = {n_values}u;\n\
                     const SPLIT: bool = {is_split};\n{}{kv}",
                    n_sums(n_heads)
                )
            }
            Kernel::Scan { has_heads } => format!("const HEADS: bool = {has_heads};\n"),
            Kernel::LowRankShrink { .. } => low_rank_constants() + &n_sums(1),
            Kernel::LowRankExpand => low_rank_constants(),
            Kernel::Softmax { .. } | Kernel::TopK { .. } | Kernel::RouteExperts { .. } => n_sums(1),
            Kernel::TopKParts | Kernel::TopKMerge => format!("const K_MAX: u32 = {TOP_K_MAX}u;\n"),
            Kernel::ShortConv => format!("const BLOCK: u32 = {KV_BLOCK}u;\n"),
            Kernel::Embed { .. }
            | Kernel::AttentionMerge
            | Kernel::Add
            | Kernel::Gather
            | Kernel::CopyHeads
            | Kernel::CombineExperts
            | Kernel::ConvAppend
            | Kernel::CausalConv => String::new(),
        }
    }

    /// WGSL of the operation: the parts it uses, then its own.
    fn bodies(&self) -> &'static [&'static str] {
        match *self {
            Kernel::MatVec { .. } => &[
                include_str!("../wgsl/store.wgsl"),
                include_str!("../wgsl/dot.wgsl"),
                include_str!("../wgsl/matvec.wgsl"),
            ],
            Kernel::ExpertMatVec { .. } => &[
                include_str!("../wgsl/store.wgsl"),
                include_str!("../wgsl/dot.wgsl"),
                include_str!("../wgsl/expert_matvec.wgsl"),
            ],
            Kernel::MatMul { .. } => &[include_str!("../wgsl/store.wgsl"), include_str!("../wgsl/matmul.wgsl")],
            Kernel::Embed { .. } => &[include_str!("../wgsl/embed.wgsl")],
            Kernel::Norm { .. } => &[include_str!("../wgsl/norm.wgsl")],
            Kernel::Rope { .. } => &[include_str!("../wgsl/rope.wgsl")],
            Kernel::Activate { .. } => {
                &[include_str!("../wgsl/activations.wgsl"), include_str!("../wgsl/activate.wgsl")]
            }
            Kernel::Add => &[include_str!("../wgsl/activations.wgsl"), include_str!("../wgsl/add.wgsl")],
            Kernel::Gather => &[include_str!("../wgsl/gather.wgsl")],
            Kernel::KvAppend { .. } => {
                &[include_str!("../wgsl/kv_layout.wgsl"), include_str!("../wgsl/kv_append.wgsl")]
            }
            Kernel::Attention { .. } => {
                &[include_str!("../wgsl/kv_layout.wgsl"), include_str!("../wgsl/attention.wgsl")]
            }
            Kernel::AttentionMerge => &[include_str!("../wgsl/attention_merge.wgsl")],
            Kernel::Softmax { .. } => &[include_str!("../wgsl/softmax.wgsl")],
            Kernel::TopK { .. } => &[include_str!("../wgsl/best.wgsl"), include_str!("../wgsl/top_k.wgsl")],
            Kernel::TopKParts => &[include_str!("../wgsl/top_k_tile.wgsl"), include_str!("../wgsl/top_k_parts.wgsl")],
            Kernel::TopKMerge => &[include_str!("../wgsl/top_k_tile.wgsl"), include_str!("../wgsl/top_k_merge.wgsl")],
            Kernel::RouteExperts { .. } => &[
                include_str!("../wgsl/activations.wgsl"),
                include_str!("../wgsl/best.wgsl"),
                include_str!("../wgsl/route_experts.wgsl"),
            ],
            Kernel::CombineExperts => &[include_str!("../wgsl/combine_experts.wgsl")],
            Kernel::ConvAppend => &[include_str!("../wgsl/conv_append.wgsl")],
            Kernel::ShortConv => &[include_str!("../wgsl/short_conv.wgsl")],
            Kernel::CopyHeads => &[include_str!("../wgsl/copy_heads.wgsl")],
            Kernel::CausalConv => &[include_str!("../wgsl/activations.wgsl"), include_str!("../wgsl/causal_conv.wgsl")],
            Kernel::Scan { .. } => &[include_str!("../wgsl/scan.wgsl")],
            Kernel::LowRankShrink { .. } => {
                &[include_str!("../wgsl/low_rank.wgsl"), include_str!("../wgsl/low_rank_shrink.wgsl")]
            }
            Kernel::LowRankExpand => {
                &[include_str!("../wgsl/low_rank.wgsl"), include_str!("../wgsl/low_rank_expand.wgsl")]
            }
        }
    }

    /// WGSL of the struct of parameters.
    fn params_wgsl(&self) -> &'static str {
        match self {
            Kernel::MatVec { .. } | Kernel::MatMul { .. } => LinearParams::WGSL,
            Kernel::ExpertMatVec { .. } => ExpertLinearParams::WGSL,
            Kernel::Embed { .. } => EmbedParams::WGSL,
            Kernel::Norm { .. } => NormParams::WGSL,
            Kernel::Rope { .. } => RopeParams::WGSL,
            Kernel::Activate { .. } => ActivateParams::WGSL,
            Kernel::Add | Kernel::Gather => AddParams::WGSL,
            Kernel::KvAppend { .. } => KvAppendParams::WGSL,
            Kernel::Attention { .. } => AttentionParams::WGSL,
            Kernel::AttentionMerge => AttentionMergeParams::WGSL,
            Kernel::Softmax { .. } => SoftmaxParams::WGSL,
            Kernel::TopK { .. } => TopKParams::WGSL,
            Kernel::TopKParts | Kernel::TopKMerge => TopKPartsParams::WGSL,
            Kernel::RouteExperts { .. } => RouteParams::WGSL,
            Kernel::CombineExperts => CombineParams::WGSL,
            Kernel::ConvAppend | Kernel::ShortConv => ConvParams::WGSL,
            Kernel::CopyHeads => CopyHeadsParams::WGSL,
            Kernel::CausalConv => CausalConvParams::WGSL,
            Kernel::Scan { .. } => ScanParams::WGSL,
            Kernel::LowRankShrink { .. } | Kernel::LowRankExpand => LowRankParams::WGSL,
        }
    }
}

fn kv_wgsl(kv: KvType) -> &'static str {
    match kv {
        KvType::F16 => include_str!("../wgsl/kv_f16.wgsl"),
        KvType::F32 => include_str!("../wgsl/kv_f32.wgsl"),
    }
}

/// WGSL of how adapters lie on the device.
fn low_rank_constants() -> String {
    format!(
        "const ADAPTERS: u32 = {ADAPTERS_MAX}u;\nconst NO_ADAPTER: u32 = {NO_ADAPTER}u;\n\
         const PLACE_WORDS: u32 = {LOW_RANK_PLACE_WORDS}u;\nconst FACTOR_F32: u32 = {LOW_RANK_F32}u;\n\
         const FACTOR_GAIN: u32 = {LOW_RANK_GAIN}u;\n"
    )
}

/// WGSL of the sizes of a tile of products.
fn tile_constants(n_rows: u32, n_outs: u32) -> String {
    format!("const ROWS: u32 = {n_rows}u;\nconst OUTS: u32 = {n_outs}u;\n{}", n_sums(n_rows * n_outs))
}

/// WGSL of the number of sums that are made at once.
fn n_sums(n: u32) -> String {
    format!("const N_SUMS: u32 = {n}u;\n")
}
