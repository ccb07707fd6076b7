//! Kernels: an operation, specialised by constants, as WGSL text.

mod bindings;
mod source;

use crate::format::WeightFormat;
use crate::params::{AttentionParams, KvAppendParams};

/// Number of tokens in a block of the KV cache.
pub const KV_BLOCK: u32 = 16;

/// Most workgroups in the first dimension of a grid; more go to the third. WebGPU grants 65,535.
const GRID_X: u32 = 32_768;

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
}

/// Way in which the lanes of a workgroup add up their parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// By subgroups, then over them. The device needs the feature.
    Subgroup,
    /// By a tree in shared memory.
    Shared,
}

/// Rows of inputs that a workgroup multiplies with each weight it decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowTile {
    /// One: decoding of one sequence.
    One,
    /// Up to four.
    Four,
    /// Up to sixteen.
    Sixteen,
}

/// Heads of queries that a workgroup computes for each key it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeadTile {
    /// One: as many heads of keys as of queries.
    One,
    /// Up to four.
    Four,
}

/// Numbers in the tiles of a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TileType {
    /// 32 bits.
    F32,
    /// 16 bits, four products added in 16 bits, the rest in 32. The device needs the feature.
    F16,
}

/// Numbers of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    /// 16 bits.
    F16,
    /// 32 bits.
    F32,
}

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShaderActivation {
    /// `x·sigmoid(x)`
    Silu,
    /// GELU by its tanh approximation.
    GeluTanh,
    /// The exact GELU.
    GeluErf,
    /// `max(x, 0)`
    Relu,
    /// `max(x, 0)²`
    ReluSqr,
    /// The clamped gate of gpt-oss, always gated.
    ClampedSwiglu,
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
    /// pairs of a rotation, heads of a merge, words that [`Kernel::kv_words`] counts, workgroups that [`Kernel::attention_tiles`] counts; 1
    /// where a workgroup has a row.
    pub n: u32,
    /// Rows.
    pub rows: u32,
    /// Slots of experts, splits of attention; 1 where there are none.
    pub slots: u32,
}

impl RowTile {
    /// Number of rows.
    pub fn n_rows(self) -> u32 {
        match self {
            RowTile::One => 1,
            RowTile::Four => 4,
            RowTile::Sixteen => 16,
        }
    }

    /// The smallest tile for so many rows: more go in several tiles.
    pub fn of(n_rows: usize) -> RowTile {
        match n_rows {
            0 | 1 => RowTile::One,
            2..=4 => RowTile::Four,
            _ => RowTile::Sixteen,
        }
    }

    /// Outputs that a workgroup computes.
    fn n_outs(self) -> u32 {
        if self == RowTile::Sixteen { 2 } else { 4 }
    }
}

impl HeadTile {
    /// Number of heads.
    pub fn n_heads(self) -> u32 {
        match self {
            HeadTile::One => 1,
            HeadTile::Four => 4,
        }
    }
}

impl KvType {
    /// Values in a word of the cache.
    pub fn values_per_word(self) -> u32 {
        match self {
            KvType::F16 => 2,
            KvType::F32 => 1,
        }
    }
}

/// Both reductions.
const REDUCTIONS: [Reduction; 2] = [Reduction::Subgroup, Reduction::Shared];

impl ShaderActivation {
    /// Every function.
    pub const ALL: [ShaderActivation; 6] = [
        ShaderActivation::Silu,
        ShaderActivation::GeluTanh,
        ShaderActivation::GeluErf,
        ShaderActivation::Relu,
        ShaderActivation::ReluSqr,
        ShaderActivation::ClampedSwiglu,
    ];

    /// Name of the WGSL function.
    fn wgsl(self) -> &'static str {
        match self {
            ShaderActivation::Silu => "silu",
            ShaderActivation::GeluTanh => "gelu_tanh",
            ShaderActivation::GeluErf => "gelu_erf",
            ShaderActivation::Relu => "relu",
            ShaderActivation::ReluSqr => "relu_sqr",
            // Its gate is the kernel's own.
            ShaderActivation::ClampedSwiglu => "silu",
        }
    }
}

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
                    let tiles = [HeadTile::One, HeadTile::Four];
                    all.extend(tiles.map(|heads| Kernel::Attention { kv, heads, is_split, reduction }));
                }
            }
            all.push(Kernel::Softmax { reduction });
            all.push(Kernel::TopK { reduction });
            all.push(Kernel::RouteExperts { reduction });
        }
        for function in ShaderActivation::ALL {
            let is_only_gated = function == ShaderActivation::ClampedSwiglu;
            let gated: &[bool] = if is_only_gated { &[true] } else { &[false, true] };
            all.extend(gated.iter().map(|&is_gated| Kernel::Activate { function, is_gated }));
        }
        all.extend([false, true].map(|is_neox| Kernel::Rope { is_neox }));
        all.extend([KvType::F16, KvType::F32].map(|kv| Kernel::KvAppend { kv }));
        all.extend([Kernel::AttentionMerge, Kernel::Add, Kernel::Gather, Kernel::CombineExperts]);
        all.extend([Kernel::ConvAppend, Kernel::ShortConv]);
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
            Kernel::KvAppend { kv } => format!("kv_append_{}", kv_name(kv)),
            Kernel::Attention { kv, heads, is_split, .. } => {
                let split = if is_split { "_split" } else { "" };
                format!("attention_{}_h{}{split}", kv_name(kv), heads.n_heads())
            }
            Kernel::AttentionMerge => "attention_merge".to_owned(),
            Kernel::Softmax { .. } => "softmax".to_owned(),
            Kernel::TopK { .. } => "top_k".to_owned(),
            Kernel::RouteExperts { .. } => "route_experts".to_owned(),
            Kernel::CombineExperts => "combine_experts".to_owned(),
            Kernel::ConvAppend => "conv_append".to_owned(),
            Kernel::ShortConv => "short_conv".to_owned(),
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
            | Kernel::RouteExperts { reduction } => Some(reduction),
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
            Kernel::RouteExperts { .. } | Kernel::AttentionMerge => 64,
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
            | Kernel::ShortConv => [n.div_ceil(self.workgroup_len()), rows, slots],
            Kernel::Norm { .. }
            | Kernel::Attention { .. }
            | Kernel::AttentionMerge
            | Kernel::Softmax { .. }
            | Kernel::TopK { .. }
            | Kernel::RouteExperts { .. } => [n, rows, slots],
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
