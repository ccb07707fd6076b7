//! Constants that kernels are specialised by.

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

/// Values that the keys and values of a head may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeadWidth {
    /// Up to 256.
    Normal,
    /// Up to 640: heads in the space of a short row (latent attention).
    Wide,
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
    pub(super) fn n_outs(self) -> u32 {
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

impl HeadWidth {
    /// The smallest for heads of so many values; `None` if there is none.
    pub fn of(n_values: usize) -> Option<HeadWidth> {
        [HeadWidth::Normal, HeadWidth::Wide].into_iter().find(|width| n_values <= width.n_values() as usize)
    }

    /// Number of values.
    pub fn n_values(self) -> u32 {
        match self {
            HeadWidth::Normal => 256,
            HeadWidth::Wide => 640,
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
    pub(super) fn wgsl(self) -> &'static str {
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
