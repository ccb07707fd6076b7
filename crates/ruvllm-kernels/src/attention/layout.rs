//! What a cache holds: formats, the bytes of a layer's keys and values in each, and where they lie.

use std::fmt;

/// Positions in a block.
pub const BLOCK_TOKENS: usize = 16;
/// Blocks in a unit of [`KvFormat::Q4`] and [`KvFormat::Q2`].
pub const UNIT_BLOCKS: usize = 4;
/// Positions in such a unit.
pub const UNIT_TOKENS: usize = UNIT_BLOCKS * BLOCK_TOKENS;
/// Values of a token that share a scale.
pub(super) const V_GROUP: usize = 64;
/// K and V of a layer take a multiple of this many bytes of a unit: a cache line.
const LINE: usize = 64;

/// Shape of a layer's keys and values of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvShape {
    /// Key/value heads.
    pub n_kv_heads: usize,
    /// Length of a key (and query) head.
    pub k_dim: usize,
    /// Length of a value (and output) head; may differ from `k_dim`.
    pub v_dim: usize,
}

impl KvShape {
    /// Returns the distance between the values of neighbouring positions: `v_dim` rounded up to a whole vector.
    pub fn v_stride(self) -> usize {
        self.v_dim.next_multiple_of(16)
    }

    /// Returns the elements of K in one block.
    pub fn k_block_len(self) -> usize {
        self.n_kv_heads * self.k_dim * BLOCK_TOKENS
    }

    /// Returns the elements of V in one block.
    pub fn v_block_len(self) -> usize {
        self.n_kv_heads * BLOCK_TOKENS * self.v_stride()
    }

    /// Returns the length of a key head, rounded up to a whole vector.
    pub(super) fn k_stride(self) -> usize {
        self.k_dim.next_multiple_of(16)
    }

    /// Returns the groups of values that share a scale.
    pub(super) fn v_groups(self) -> usize {
        self.v_dim.div_ceil(V_GROUP)
    }
}

/// Format of the keys and values of a block, the most exact first.
///
/// Blocks lie in *units*: one block of F32, F16 and Q8, [`UNIT_BLOCKS`] blocks of Q4 and Q2, which share scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum KvFormat {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// 8 bits and a scale: of each channel of K over 16 positions, of each 64 values of a token.
    Q8,
    /// 4 bits, a scale and a minimum: of each channel of K over 64 positions, of each 64 values of a token.
    Q4,
    /// As Q4 with 2 bits.
    Q2,
}

impl KvFormat {
    /// The number of formats.
    pub const COUNT: usize = 5;
    /// All formats, by their number.
    pub const ALL: [KvFormat; KvFormat::COUNT] =
        [KvFormat::F32, KvFormat::F16, KvFormat::Q8, KvFormat::Q4, KvFormat::Q2];

    /// Returns the format's name: `f32`, `f16`, `q8`, `q4`, `q2`.
    pub const fn name(self) -> &'static str {
        match self {
            KvFormat::F32 => "f32",
            KvFormat::F16 => "f16",
            KvFormat::Q8 => "q8",
            KvFormat::Q4 => "q4",
            KvFormat::Q2 => "q2",
        }
    }

    /// Returns whether rows are written to blocks of this format as they come ([`store`](super::store)).
    pub const fn is_exact(self) -> bool {
        matches!(self, KvFormat::F32 | KvFormat::F16)
    }

    /// Returns whether blocks have minima and share their unit's scales.
    pub(super) const fn is_packed(self) -> bool {
        matches!(self, KvFormat::Q4 | KvFormat::Q2)
    }

    /// Returns the blocks of a unit.
    pub const fn blocks_per_unit(self) -> usize {
        match self {
            KvFormat::F32 | KvFormat::F16 | KvFormat::Q8 => 1,
            KvFormat::Q4 | KvFormat::Q2 => UNIT_BLOCKS,
        }
    }

    /// Returns the bytes of a layer's keys in one unit, whole cache lines.
    pub fn k_bytes(self, shape: KvShape) -> usize {
        (shape.n_kv_heads * self.k_head_bytes(shape)).next_multiple_of(LINE)
    }

    /// Returns the bytes of a layer's values in one unit, whole cache lines.
    pub fn v_bytes(self, shape: KvShape) -> usize {
        (shape.n_kv_heads * self.v_head_bytes(shape)).next_multiple_of(LINE)
    }

    /// Returns the bytes of one head's keys in a unit.
    pub(super) fn k_head_bytes(self, shape: KvShape) -> usize {
        let (scales, column) = match self {
            KvFormat::F32 => (0, 4 * BLOCK_TOKENS),
            KvFormat::F16 => (0, 2 * BLOCK_TOKENS),
            KvFormat::Q8 => (1, BLOCK_TOKENS),
            KvFormat::Q4 => (2, UNIT_TOKENS / 2),
            KvFormat::Q2 => (2, UNIT_TOKENS / 4),
        };
        scales * 2 * shape.k_stride() + shape.k_dim * column
    }

    /// Returns the bytes of one head's values in a unit.
    pub(super) fn v_head_bytes(self, shape: KvShape) -> usize {
        let groups = shape.v_groups();
        match self {
            KvFormat::F32 => 4 * BLOCK_TOKENS * shape.v_stride(),
            KvFormat::F16 => 2 * BLOCK_TOKENS * shape.v_stride(),
            KvFormat::Q8 => BLOCK_TOKENS * (2 * groups + shape.v_stride()),
            KvFormat::Q4 => UNIT_TOKENS * groups * (4 + V_GROUP / 2),
            KvFormat::Q2 => UNIT_TOKENS * groups * (4 + V_GROUP / 4),
        }
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An entry of a page table: a format and the number of a block of that format, `unit · blocks_per_unit + sub-block`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct KvBlock(u32);

impl KvBlock {
    /// Bits of the block's number; the format is above them.
    const INDEX_BITS: u32 = 29;

    /// Blocks a format can have at most.
    pub const MAX_BLOCKS: usize = 1 << KvBlock::INDEX_BITS;

    /// Returns block `index` of `format`.
    ///
    /// # Panics
    /// If `index` is not less than [`KvBlock::MAX_BLOCKS`].
    pub const fn new(format: KvFormat, index: usize) -> KvBlock {
        assert!(index < KvBlock::MAX_BLOCKS, "a format has at most 2^29 blocks");
        KvBlock((format as u32) << KvBlock::INDEX_BITS | index as u32)
    }

    /// Returns the block's format.
    pub const fn format(self) -> KvFormat {
        KvFormat::ALL[(self.0 >> KvBlock::INDEX_BITS) as usize]
    }

    /// Returns the block's number among those of its format.
    pub const fn index(self) -> usize {
        (self.0 & (KvBlock::MAX_BLOCKS as u32 - 1)) as usize
    }

    /// Returns the unit it lies in.
    pub const fn unit(self) -> usize {
        self.index() / self.format().blocks_per_unit()
    }

    /// Returns its place in the unit.
    pub const fn sub(self) -> usize {
        self.index() % self.format().blocks_per_unit()
    }
}

impl fmt::Debug for KvBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.format(), self.index())
    }
}

/// One layer of a block: the layer's part of the block's unit, and its place there.
#[derive(Clone, Copy, Debug)]
pub struct KvPart<'a> {
    /// The block's format.
    pub format: KvFormat,
    /// The block's place in its unit.
    pub sub: usize,
    /// [`KvFormat::k_bytes`] of keys.
    pub k: &'a [u8],
    /// [`KvFormat::v_bytes`] of values.
    pub v: &'a [u8],
}

impl KvPart<'_> {
    /// Asserts the lengths.
    pub(super) fn check(&self, shape: KvShape) {
        let KvPart { format, sub, k, v } = *self;
        assert!(sub < format.blocks_per_unit(), "sub-block {sub} of a unit of {format}");
        assert_eq!((k.len(), v.len()), (format.k_bytes(shape), format.v_bytes(shape)), "bytes of a unit of {format}");
    }
}

/// One layer's part of the units of one format: unit `u` has its keys at `u · stride + k_at`, its values at
/// `u · stride + v_at`. Units of a format nobody uses have no bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct KvUnits<'a> {
    /// All units, every layer's.
    pub bytes: &'a [u8],
    /// Bytes of a unit.
    pub stride: usize,
    /// Where the layer's keys begin in a unit.
    pub k_at: usize,
    /// Where the layer's values begin in a unit.
    pub v_at: usize,
}

impl<'a> KvUnits<'a> {
    /// Returns the number of whole units.
    pub fn n_units(&self) -> usize {
        self.bytes.len().checked_div(self.stride).unwrap_or(0)
    }

    /// Asserts that the parts lie inside a unit.
    fn check(&self, format: KvFormat, shape: KvShape) {
        let KvUnits { bytes, stride, k_at, v_at } = *self;
        let (k, v) = (k_at..k_at + format.k_bytes(shape), v_at..v_at + format.v_bytes(shape));
        let apart = k.end <= v.start || v.end <= k.start;
        let fits = k.end <= stride && v.end <= stride && apart && [stride, k_at, v_at].iter().all(|n| n % 4 == 0);
        let is_empty = bytes.is_empty();
        assert!(is_empty || fits, "{format} units of {stride} bytes do not hold keys at {k:?} and values at {v:?}");
    }
}

/// [`KvUnits`] of a format for writing.
#[derive(Debug)]
pub struct KvUnitsMut<'a> {
    /// The format; exact.
    pub format: KvFormat,
    /// As in [`KvUnits`]; starts at a multiple of 4.
    pub bytes: &'a mut [u8],
    /// As in [`KvUnits`].
    pub stride: usize,
    /// As in [`KvUnits`].
    pub k_at: usize,
    /// As in [`KvUnits`].
    pub v_at: usize,
}

impl KvUnitsMut<'_> {
    /// Asserts that the format is exact and the parts lie inside a unit; returns the number of units.
    pub(super) fn check(&self, shape: KvShape) -> usize {
        assert!(self.format.is_exact(), "rows are written to f16 and f32 blocks, not to {}", self.format);
        let units = KvUnits { bytes: self.bytes, stride: self.stride, k_at: self.k_at, v_at: self.v_at };
        units.check(self.format, shape);
        units.n_units()
    }
}

/// One layer of the cache, in all formats.
#[derive(Clone, Copy, Debug, Default)]
pub struct KvLayer<'a> {
    units: [KvUnits<'a>; KvFormat::COUNT],
}

impl<'a> KvLayer<'a> {
    /// Returns the layer with units of `format` as well.
    pub fn with(mut self, format: KvFormat, units: KvUnits<'a>) -> KvLayer<'a> {
        self.units[format as usize] = units;
        self
    }

    /// Returns the units of a format.
    pub fn units(&self, format: KvFormat) -> &KvUnits<'a> {
        &self.units[format as usize]
    }

    /// Returns the layer's part of a block.
    ///
    /// # Panics
    /// If the layer has no such block.
    #[inline]
    pub fn part(&self, shape: KvShape, block: KvBlock) -> KvPart<'a> {
        let (format, units) = (block.format(), self.units(block.format()));
        let start = block.unit() * units.stride;
        let k = &units.bytes[start + units.k_at..][..format.k_bytes(shape)];
        let v = &units.bytes[start + units.v_at..][..format.v_bytes(shape)];
        KvPart { format, sub: block.sub(), k, v }
    }

    /// Asserts that every format's parts lie inside its units; returns the blocks of each.
    pub(super) fn check(&self, shape: KvShape) -> [usize; KvFormat::COUNT] {
        KvFormat::ALL.map(|format| {
            self.units(format).check(format, shape);
            self.units(format).n_units() * format.blocks_per_unit()
        })
    }
}
