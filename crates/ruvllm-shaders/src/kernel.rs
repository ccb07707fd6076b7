//! Kernels: an operation, specialised by constants, as WGSL text.

mod bindings;
mod source;
mod variants;

pub use variants::{HeadTile, HeadWidth, KvType, Reduction, RowTile, ShaderActivation, TileType};

use crate::format::WeightFormat;
use crate::params::{AttentionParams, KvAppendParams};

/// Number of tokens in a block of the KV cache.
pub const KV_BLOCK: u32 = 16;

/// Most workgroups in the first dimension of a grid; more go to the third. WebGPU grants 65,535.
const GRID_X: u32 = 32_768;

/// Most values that [`Kernel::TopKParts`] and [`Kernel::TopKMerge`] find of a row.
pub const TOP_K_MAX: u32 = 128;

/// Side of a tile of the matrix product of many rows.
const TILE: u32 = 64;

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Product of weights with few rows.
    MatVec {
        /// Format of the weights.
        format: WeightFormat,
        /// Rows that a workgroup computes at once.
        rows: RowTile,
        /// Way in which lanes add up.
        reduction: Reduction,
    },
    /// Product of the weights of chosen experts with rows.
    ExpertMatVec {
        /// Format of the weights.
        format: WeightFormat,
        /// Way in which lanes add up.
        reduction: Reduction,
    },
    /// Product of weights with many rows.
    MatMul {
        /// Format of the weights.
        format: WeightFormat,
        /// Numbers in shared memory.
        tile: TileType,
    },
    /// Rows of a table by token.
    Embed {
        /// Format of the table.
        format: WeightFormat,
    },
    /// RMSNorm or LayerNorm.
    Norm {
        /// Whether the mean is subtracted, as LayerNorm does.
        is_centred: bool,
        /// Way in which lanes add up.
        reduction: Reduction,
    },
    /// Rotation of positions.
    Rope {
        /// Whether halves are paired, as NeoX does, and not neighbours.
        is_neox: bool,
    },
    /// An activation.
    Activate {
        /// The function.
        function: ShaderActivation,
        /// Whether it is multiplied with a second input.
        is_gated: bool,
    },
    /// Addition to a row.
    Add,
    /// Copies of chosen rows.
    Gather,
    /// Copies of a part of each head of rows.
    CopyHeads,
    /// Writing to the KV cache.
    KvAppend {
        /// Numbers of the cache.
        kv: KvType,
    },
    /// Attention over the KV cache.
    Attention {
        /// Numbers of the cache.
        kv: KvType,
        /// Heads of queries that a workgroup computes at once.
        heads: HeadTile,
        /// Whether the keys of a row are split over workgroups: few rows with many keys.
        is_split: bool,
        /// Values that heads may have.
        width: HeadWidth,
        /// Way in which lanes add up.
        reduction: Reduction,
    },
    /// Putting the splits of attention together.
    AttentionMerge,
    /// Softmax of rows.
    Softmax {
        /// Way in which lanes add up.
        reduction: Reduction,
    },
    /// The k largest values of rows.
    TopK {
        /// Way in which lanes find the largest.
        reduction: Reduction,
    },
    /// The k largest values of parts of long rows.
    TopKParts,
    /// The k largest values of those that parts gave.
    TopKMerge,
    /// Choice of experts.
    RouteExperts {
        /// Way in which lanes add up.
        reduction: Reduction,
    },
    /// Weighted sum of what experts give.
    CombineExperts,
    /// Writing what short convolutions read.
    ConvAppend,
    /// Short convolution over what was written.
    ShortConv,
    /// Causal convolution of channels, whose last inputs are kept as state.
    CausalConv,
    /// Recurrence of a selective state space.
    Scan {
        /// Whether channels decay by heads, as in Mamba 2, and not each by itself.
        has_heads: bool,
    },
    /// First of the two low-rank products of adapters.
    LowRankShrink {
        /// Way in which lanes add up.
        reduction: Reduction,
    },
    /// Second of the two low-rank products of adapters.
    LowRankExpand,
}

/// Features that a device needs for a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceNeeds {
    /// Subgroup operations.
    pub subgroups: bool,
    /// 16-bit floats in shaders.
    pub f16: bool,
}

/// Work of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Things along a row: outputs of a product, values of an elementwise kernel (also of an embedding), groups of a norm,
    /// pairs of a rotation, heads of a merge, values of all heads of a copy, room for the ranks of a row's adapters, parts of a row, words that [`Kernel::kv_words`] counts, workgroups that [`Kernel::attention_tiles`] counts; 1
    /// where a workgroup has a row.
    pub n: u32,
    /// Rows.
    pub rows: u32,
    /// Slots of experts, splits of attention; 1 where there are none.
    pub slots: u32,
}

/// Both reductions.
const REDUCTIONS: [Reduction; 2] = [Reduction::Subgroup, Reduction::Shared];

impl Kernel {
    /// Every kernel: each operation with each of its constants.
    pub fn all() -> Vec<Kernel> {
        let mut all = Vec::new();
        for format in WeightFormat::ALL {
            all.push(Kernel::Embed { format });
            all.extend([TileType::F32, TileType::F16].map(|tile| Kernel::MatMul { format, tile }));
            for reduction in REDUCTIONS {
                let tiles = [RowTile::One, RowTile::Four, RowTile::Sixteen];
                all.extend(tiles.map(|rows| Kernel::MatVec { format, rows, reduction }));
                all.push(Kernel::ExpertMatVec { format, reduction });
            }
        }
        for reduction in REDUCTIONS {
            all.extend([false, true].map(|is_centred| Kernel::Norm { is_centred, reduction }));
            for kv in [KvType::F16, KvType::F32] {
                for is_split in [false, true] {
                    // Wide heads share their keys: there are always several.
                    let tiles = [
                        (HeadTile::One, HeadWidth::Normal),
                        (HeadTile::Four, HeadWidth::Normal),
                        (HeadTile::Four, HeadWidth::Wide),
                    ];
                    all.extend(tiles.map(|(heads, width)| Kernel::Attention { kv, heads, is_split, width, reduction }));
                }
            }
            all.push(Kernel::Softmax { reduction });
            all.push(Kernel::TopK { reduction });
            all.push(Kernel::RouteExperts { reduction });
            all.push(Kernel::LowRankShrink { reduction });
        }
        for function in ShaderActivation::ALL {
            let is_only_gated = function == ShaderActivation::ClampedSwiglu;
            let gated: &[bool] = if is_only_gated { &[true] } else { &[false, true] };
            all.extend(gated.iter().map(|&is_gated| Kernel::Activate { function, is_gated }));
        }
        all.extend([false, true].map(|is_neox| Kernel::Rope { is_neox }));
        all.extend([KvType::F16, KvType::F32].map(|kv| Kernel::KvAppend { kv }));
        all.extend([Kernel::AttentionMerge, Kernel::Add, Kernel::Gather, Kernel::CombineExperts]);
        all.extend([Kernel::ConvAppend, Kernel::ShortConv, Kernel::CopyHeads, Kernel::CausalConv]);
        all.extend([false, true].map(|has_heads| Kernel::Scan { has_heads }));
        all.extend([Kernel::LowRankExpand, Kernel::TopKParts, Kernel::TopKMerge]);
        all
    }

    /// Name of the kernel, e.g. `matvec_q4_k_r4`; with `_shared` if lanes add up in shared memory.
    pub fn name(&self) -> String {
        let base = match *self {
            Kernel::MatVec { format, rows, .. } => format!("matvec_{}_r{}", lower(format), rows.n_rows()),
            Kernel::ExpertMatVec { format, .. } => format!("expert_matvec_{}", lower(format)),
            Kernel::MatMul { format, tile: TileType::F32 } => format!("matmul_{}", lower(format)),
            Kernel::MatMul { format, tile: TileType::F16 } => format!("matmul_{}_half", lower(format)),
            Kernel::Embed { format } => format!("embed_{}", lower(format)),
            Kernel::Norm { is_centred, .. } => if is_centred { "layer_norm" } else { "rms_norm" }.to_owned(),
            Kernel::Rope { is_neox } => if is_neox { "rope_neox" } else { "rope_normal" }.to_owned(),
            Kernel::Activate { function: ShaderActivation::ClampedSwiglu, .. } => "clamped_swiglu".to_owned(),
            Kernel::Activate { function, is_gated: true } => format!("{}_gated", function.wgsl()),
            Kernel::Activate { function, .. } => function.wgsl().to_owned(),
            Kernel::Add => "add".to_owned(),
            Kernel::Gather => "gather".to_owned(),
            Kernel::CopyHeads => "copy_heads".to_owned(),
            Kernel::KvAppend { kv } => format!("kv_append_{}", kv_name(kv)),
            Kernel::Attention { kv, heads, is_split, width, .. } => {
                let split = if is_split { "_split" } else { "" };
                let wide = if width == HeadWidth::Wide { "_wide" } else { "" };
                format!("attention_{}_h{}{wide}{split}", kv_name(kv), heads.n_heads())
            }
            Kernel::AttentionMerge => "attention_merge".to_owned(),
            Kernel::Softmax { .. } => "softmax".to_owned(),
            Kernel::TopK { .. } => "top_k".to_owned(),
            Kernel::TopKParts => "top_k_parts".to_owned(),
            Kernel::TopKMerge => "top_k_merge".to_owned(),
            Kernel::RouteExperts { .. } => "route_experts".to_owned(),
            Kernel::CombineExperts => "combine_experts".to_owned(),
            Kernel::ConvAppend => "conv_append".to_owned(),
            Kernel::ShortConv => "short_conv".to_owned(),
            Kernel::CausalConv => "causal_conv".to_owned(),
            Kernel::Scan { has_heads } => if has_heads { "scan_heads" } else { "scan_channels" }.to_owned(),
            Kernel::LowRankShrink { .. } => "low_rank_shrink".to_owned(),
            Kernel::LowRankExpand => "low_rank_expand".to_owned(),
        };
        if self.reduction() == Some(Reduction::Shared) { base + "_shared" } else { base }
    }

    /// Way in which lanes add up, if they do.
    pub fn reduction(&self) -> Option<Reduction> {
        match *self {
            Kernel::MatVec { reduction, .. }
            | Kernel::ExpertMatVec { reduction, .. }
            | Kernel::Norm { reduction, .. }
            | Kernel::Attention { reduction, .. }
            | Kernel::Softmax { reduction }
            | Kernel::TopK { reduction }
            | Kernel::RouteExperts { reduction }
            | Kernel::LowRankShrink { reduction } => Some(reduction),
            _ => None,
        }
    }

    /// Format of the weights, if it reads some.
    pub fn format(&self) -> Option<WeightFormat> {
        match *self {
            Kernel::MatVec { format, .. }
            | Kernel::ExpertMatVec { format, .. }
            | Kernel::MatMul { format, .. }
            | Kernel::Embed { format } => Some(format),
            _ => None,
        }
    }

    /// Features that a device needs for it.
    pub fn needs(&self) -> DeviceNeeds {
        DeviceNeeds {
            subgroups: self.reduction() == Some(Reduction::Subgroup),
            f16: matches!(self, Kernel::MatMul { tile: TileType::F16, .. }),
        }
    }

    /// Number of lanes of a workgroup, all in the first dimension.
    pub fn workgroup_len(&self) -> u32 {
        match self {
            Kernel::MatVec { .. } | Kernel::ExpertMatVec { .. } | Kernel::Attention { .. } => 64,
            Kernel::RouteExperts { .. } | Kernel::AttentionMerge | Kernel::LowRankShrink { .. } => 64,
            // A lane computes many rows: small workgroups go to more cores.
            Kernel::CausalConv | Kernel::Scan { .. } => 64,
            _ => 256,
        }
    }

    /// Number of workgroups in each dimension.
    pub fn grid(&self, extent: Extent) -> [u32; 3] {
        let Extent { n, rows, slots } = extent;
        match self {
            Kernel::MatVec { rows: tile, .. } => {
                let n_tiles = n.div_ceil(tile.n_outs());
                [n_tiles.min(GRID_X), rows.div_ceil(tile.n_rows()), n_tiles.div_ceil(GRID_X)]
            }
            Kernel::ExpertMatVec { .. } => [n.div_ceil(RowTile::One.n_outs()), rows, slots],
            Kernel::MatMul { .. } => [n.div_ceil(TILE), rows.div_ceil(TILE), 1],
            Kernel::Embed { .. } => [(n / 4).div_ceil(self.workgroup_len()), rows, 1],
            Kernel::Rope { .. }
            | Kernel::Activate { .. }
            | Kernel::Add
            | Kernel::Gather
            | Kernel::KvAppend { .. }
            | Kernel::CombineExperts
            | Kernel::ConvAppend
            | Kernel::ShortConv
            | Kernel::CopyHeads
            | Kernel::CausalConv
            | Kernel::Scan { .. }
            | Kernel::LowRankExpand => [n.div_ceil(self.workgroup_len()), rows, slots],
            Kernel::Norm { .. }
            | Kernel::Attention { .. }
            | Kernel::AttentionMerge
            | Kernel::Softmax { .. }
            | Kernel::TopK { .. }
            | Kernel::TopKParts
            | Kernel::TopKMerge
            | Kernel::RouteExperts { .. }
            | Kernel::LowRankShrink { .. } => [n, rows, slots],
        }
    }

    /// Number of workgroups that attention needs for a row.
    pub fn attention_tiles(heads: HeadTile, params: &AttentionParams) -> u32 {
        params.n_kv_heads * (params.n_heads / params.n_kv_heads).div_ceil(heads.n_heads())
    }

    /// Number of words of the splits of a row, which attention gives to the merge.
    pub fn split_words(params: &AttentionParams) -> u32 {
        params.n_heads * params.n_splits * (params.v_dim + 2)
    }

    /// Number of words that a row writes to the KV cache.
    pub fn kv_words(kv: KvType, params: &KvAppendParams) -> u32 {
        params.n_kv_heads * (params.k_dim + params.v_dim) / kv.values_per_word()
    }
}

fn lower(format: WeightFormat) -> String {
    format.name().to_lowercase()
}

fn kv_name(kv: KvType) -> &'static str {
    match kv {
        KvType::F16 => "f16",
        KvType::F32 => "f32",
    }
}
