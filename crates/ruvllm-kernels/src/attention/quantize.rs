//! From one format to a smaller one: scales, codes and back. Each instruction set gives the same bytes.
//!
//! ```text
//! Q8: scale = max |x| / 127, rounded up to a half;  code = round(x / scale), ties to even
//! Q4: min = min x, rounded down to a half;  scale = (max x - min) / 15, rounded up;  code = round((x - min) / scale)
//! Q2: as Q4 with 3 for 15
//! ```
//! The values of a scale are a channel of K over the positions of a unit, or 64 values of a token. A value comes back
//! within half a scale. Values are brought into the range of halves before (±65504); what is not a number becomes the
//! largest. So no scale or minimum is ever infinite, and a weight of 0 cancels whatever it meets.
//!
//! Source: Liu et al. 2024 (KIVI, arXiv:2402.02750) for channels of K and tokens of V; the layout is ours.

use super::layout::V_GROUP;
use super::quant::Packed;
use super::{AttentionKernels, BLOCK_TOKENS, KvFormat, KvPart, KvShape, UNIT_BLOCKS, UNIT_TOKENS};
use crate::lanes::Lanes;
use half::f16;

/// The largest finite half.
const LARGEST: f32 = 65504.0;

/// One layer's unit to be made of blocks.
pub(super) struct QuantizeArgs<'a> {
    pub(super) shape: KvShape,
    /// The blocks in order of position, as many as the unit has.
    pub(super) from: &'a [KvPart<'a>],
    /// The unit's format; not exact.
    pub(super) to: KvFormat,
    pub(super) k: &'a mut [u8],
    pub(super) v: &'a mut [u8],
}

/// One layer's block to be read.
pub(super) struct DequantizeArgs<'a> {
    pub(super) shape: KvShape,
    pub(super) from: KvPart<'a>,
    /// `[n_kv_heads][k_dim][16]`
    pub(super) k: &'a mut [f32],
    /// `[n_kv_heads][16][v_stride]`
    pub(super) v: &'a mut [f32],
}

impl AttentionKernels {
    /// Makes one layer of a unit of format `to` from blocks of any formats, in order of position: one for
    /// [`KvFormat::Q8`], [`UNIT_BLOCKS`] for [`KvFormat::Q4`] and [`KvFormat::Q2`]. `k`, `v`:
    /// [`KvFormat::k_bytes`] and [`KvFormat::v_bytes`] of `to`. All positions of the blocks must have been written.
    ///
    /// # Panics
    /// If `to` is exact, or a length is not that of its format.
    pub fn quantize(&self, shape: KvShape, from: &[KvPart<'_>], to: KvFormat, k: &mut [u8], v: &mut [u8]) {
        assert!(!to.is_exact(), "quantize: {to} is no format to quantise to");
        assert_eq!(from.len(), to.blocks_per_unit(), "quantize: blocks for a unit of {to}");
        from.iter().for_each(|part| part.check(shape));
        assert_eq!((k.len(), v.len()), (to.k_bytes(shape), to.v_bytes(shape)), "quantize: bytes of a unit of {to}");
        // SAFETY: rows escape only through `available` and `pick`, which asked the CPU first.
        unsafe { (self.ops.quantize)(&mut QuantizeArgs { shape, from, to, k, v }) }
    }

    /// Reads one layer of a block of any format. `k`: `[n_kv_heads][k_dim][16]`, `v`: `[n_kv_heads][16][v_stride]`.
    ///
    /// # Panics
    /// If a length is another.
    pub fn dequantize(&self, shape: KvShape, from: KvPart<'_>, k: &mut [f32], v: &mut [f32]) {
        from.check(shape);
        assert_eq!((k.len(), v.len()), (shape.k_block_len(), shape.v_block_len()), "dequantize: floats of a block");
        // SAFETY: as above.
        unsafe { (self.ops.dequantize)(&mut DequantizeArgs { shape, from, k, v }) }
    }
}

/// Returns the smallest half that is no less than `x` (0 to 65504).
pub(super) fn half_above(x: f32) -> f16 {
    let half = f16::from_f32(x);
    // Of halves that are not negative, the next larger one has the next pattern.
    if half.to_f32() < x { f16::from_bits(half.to_bits() + 1) } else { half }
}

/// Returns the largest half that is no more than `x` (±65504).
pub(super) fn half_below(x: f32) -> f16 {
    let half = f16::from_f32(x);
    if half.to_f32() <= x {
        half
    } else if half.to_bits() == 0 || half.is_sign_negative() {
        // Away from zero; the largest below zero comes after both zeros.
        f16::from_bits((half.to_bits() | 0x8000) + 1)
    } else {
        f16::from_bits(half.to_bits() - 1)
    }
}

/// Brings a value into the range of halves; NaN becomes the largest.
pub(super) fn bounded(x: f32) -> f32 {
    if x < LARGEST { x.max(-LARGEST) } else { LARGEST }
}

/// A scale and a minimum, and what codes are computed with.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    pub(super) scale: f16,
    pub(super) min: f16,
    /// `1 / scale`, or 0.
    pub(super) inverse: f32,
}

impl Grid {
    /// For codes `-127..=127` of values up to `size` from zero.
    pub(super) fn symmetric(size: f32) -> Grid {
        Grid::new(half_above(size / 127.0), f16::ZERO)
    }

    /// For codes `0..=n` of values from `min` to `max`.
    pub(super) fn of_range(min: f32, max: f32, n: f32) -> Grid {
        // Adding 0 makes one zero of both.
        let min = half_below(min + 0.0);
        Grid::new(half_above((max - min.to_f32() + 0.0) / n), min)
    }

    fn new(scale: f16, min: f16) -> Grid {
        let inverse = if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() };
        Grid { scale, min, inverse }
    }
}

/// Brings values into the range of halves; NaN becomes the largest.
///
/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
unsafe fn bound<L: Lanes>(x: L::V) -> L::V {
    // SAFETY: the caller's.
    unsafe {
        let (largest, smallest) = (L::splat(LARGEST), L::splat(-LARGEST));
        let x = L::select_lt(x, largest, x, largest);
        L::select_lt(smallest, x, x, smallest)
    }
}

/// Half `at` of those at the beginning of `bytes`, in all lanes.
///
/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
unsafe fn splat_half<L: Lanes>(bytes: &[u8], at: usize) -> L::V {
    let half = f16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]);
    // SAFETY: the caller's.
    unsafe { L::splat(half.to_f32()) }
}

/// Where one head of a block lies, to be read 16 floats at a time.
#[derive(Clone, Copy)]
struct Head<'a> {
    shape: KvShape,
    format: KvFormat,
    sub: usize,
    k: &'a [u8],
    v: &'a [u8],
}

impl<'a> Head<'a> {
    fn new(shape: KvShape, part: &KvPart<'a>, head: usize) -> Head<'a> {
        let KvPart { format, sub, k, v } = *part;
        let (k_len, v_len) = (format.k_head_bytes(shape), format.v_head_bytes(shape));
        Head { shape, format, sub, k: &k[head * k_len..][..k_len], v: &v[head * v_len..][..v_len] }
    }

    /// Channel `d` of the block's keys.
    ///
    /// # Safety
    /// The instruction set of `L` is enabled, and `d` is less than `k_dim`.
    #[inline(always)]
    unsafe fn keys<L: Lanes>(&self, d: usize) -> L::V {
        let (k, k_stride) = (self.k.as_ptr(), self.shape.k_stride());
        // SAFETY: the slice is a head of the format: scales, minima and `k_dim` columns.
        unsafe {
            match self.format {
                KvFormat::F32 => L::load_f32(k.add(64 * d).cast()),
                KvFormat::F16 => L::load_f16(k.add(32 * d).cast()),
                KvFormat::Q8 => L::mul(L::load_i8(k.add(2 * k_stride + 16 * d)), splat_half::<L>(self.k, d)),
                KvFormat::Q4 => {
                    let codes = L::shift_right(L::load_u16(k.add(4 * k_stride + 32 * d)), 4 * self.sub as u32);
                    L::add(
                        L::mul(L::code::<4>(codes, 0), splat_half::<L>(self.k, d)),
                        splat_half::<L>(self.k, k_stride + d),
                    )
                }
                KvFormat::Q2 => {
                    let codes = L::shift_right(L::load_u8(k.add(4 * k_stride + 16 * d)), 2 * self.sub as u32);
                    L::add(
                        L::mul(L::code::<2>(codes, 0), splat_half::<L>(self.k, d)),
                        splat_half::<L>(self.k, k_stride + d),
                    )
                }
            }
        }
    }

    /// Values `column .. column + 16` of the block's position `t`.
    ///
    /// # Safety
    /// The instruction set of `L` is enabled; `t` is less than 16, `column` a multiple of 16 less than `v_stride`.
    #[inline(always)]
    unsafe fn values<L: Lanes>(&self, t: usize, column: usize) -> L::V {
        let (v, v_stride, groups) = (self.v.as_ptr(), self.shape.v_stride(), self.shape.v_groups());
        let (group, slot) = (column / V_GROUP, self.sub * BLOCK_TOKENS + t);
        // SAFETY: the slice is a head of the format: scales, minima and rows.
        unsafe {
            let (scale_at, min_at) = (2 * group * UNIT_TOKENS + slot, (2 * group + 1) * UNIT_TOKENS + slot);
            let (codes_at, shift) = (4 * groups * UNIT_TOKENS, (column % V_GROUP / 16) as u32);
            match self.format {
                KvFormat::F32 => L::load_f32(v.add(4 * (t * v_stride + column)).cast()),
                KvFormat::F16 => L::load_f16(v.add(2 * (t * v_stride + column)).cast()),
                KvFormat::Q8 => {
                    let codes = L::load_i8(v.add(2 * groups * BLOCK_TOKENS + t * v_stride + column));
                    L::mul(codes, splat_half::<L>(self.v, group * BLOCK_TOKENS + t))
                }
                KvFormat::Q4 => {
                    let codes = L::load_u16(v.add(codes_at + (slot * groups + group) * 32));
                    L::add(
                        L::mul(L::code::<4>(L::shift_right(codes, 4 * shift), 0), splat_half::<L>(self.v, scale_at)),
                        splat_half::<L>(self.v, min_at),
                    )
                }
                KvFormat::Q2 => {
                    let codes = L::load_u8(v.add(codes_at + (slot * groups + group) * 16));
                    L::add(
                        L::mul(L::code::<2>(L::shift_right(codes, 2 * shift), 0), splat_half::<L>(self.v, scale_at)),
                        splat_half::<L>(self.v, min_at),
                    )
                }
            }
        }
    }

    /// The up to 64 values of group `group` at position `t`, in bounds; past `v_dim` the first one again.
    ///
    /// # Safety
    /// As for `values`.
    #[inline(always)]
    unsafe fn group<L: Lanes>(&self, t: usize, group: usize) -> [L::V; UNIT_BLOCKS] {
        let (start, v_stride) = (group * V_GROUP, self.shape.v_stride());
        // SAFETY: columns past `v_stride` are not read.
        unsafe {
            let first = bound::<L>(self.values::<L>(t, start));
            let mut all = [first; UNIT_BLOCKS];
            for (i, x) in all.iter_mut().enumerate().skip(1) {
                if start + 16 * i < v_stride {
                    *x = bound::<L>(self.values::<L>(t, start + 16 * i));
                }
            }
            let n = self.shape.v_dim - start;
            if n < V_GROUP {
                let mut floats = [[0.0; 16]; UNIT_BLOCKS];
                for (to, &x) in floats.iter_mut().zip(&all) {
                    L::store(to.as_mut_ptr(), x);
                }
                let fill = floats[0][0];
                floats.as_flattened_mut()[n..].fill(fill);
                for (x, from) in all.iter_mut().zip(&floats) {
                    *x = L::load_f32(from.as_ptr());
                }
            }
            all
        }
    }
}

/// Writes half `at` of those at the beginning of `bytes`.
pub(super) fn put(bytes: &mut [u8], at: usize, half: f16) {
    bytes[2 * at..2 * at + 2].copy_from_slice(&half.to_le_bytes());
}

/// Makes a unit.
///
/// # Safety
/// The instruction set of `L` is enabled, and `args` were checked.
#[inline(always)]
pub(super) unsafe fn quantize<L: Lanes>(args: &mut QuantizeArgs<'_>) {
    let (shape, to) = (args.shape, args.to);
    let (k_len, v_len) = (to.k_head_bytes(shape), to.v_head_bytes(shape));
    args.k[shape.n_kv_heads * k_len..].fill(0);
    args.v[shape.n_kv_heads * v_len..].fill(0);
    for head in 0..shape.n_kv_heads {
        let k = &mut args.k[head * k_len..][..k_len];
        let v = &mut args.v[head * v_len..][..v_len];
        // Of Q8, all are the first.
        let heads: [Head<'_>; UNIT_BLOCKS] =
            std::array::from_fn(|b| Head::new(shape, &args.from[b.min(args.from.len() - 1)], head));
        // SAFETY: the caller's.
        unsafe {
            match to {
                KvFormat::Q4 => packed::<L, 4>(&heads, k, v),
                KvFormat::Q2 => packed::<L, 2>(&heads, k, v),
                _ => eights::<L>(&heads[0], k, v),
            }
        }
    }
}

/// One head of a block of [`KvFormat::Q8`].
///
/// # Safety
/// As for [`quantize`].
#[inline(always)]
unsafe fn eights<L: Lanes>(head: &Head<'_>, k: &mut [u8], v: &mut [u8]) {
    let KvShape { k_dim, .. } = head.shape;
    let (k_stride, v_stride, groups) = (head.shape.k_stride(), head.shape.v_stride(), head.shape.v_groups());
    k[2 * k_dim..2 * k_stride].fill(0);
    // SAFETY: every store is of 16 bytes of a slice of that length.
    unsafe {
        for d in 0..k_dim {
            let x = bound::<L>(head.keys::<L>(d));
            let grid = Grid::symmetric(L::reduce_max(L::abs(x)));
            put(k, d, grid.scale);
            let to = &mut k[2 * k_stride + BLOCK_TOKENS * d..][..BLOCK_TOKENS];
            L::store_u8(to.as_mut_ptr(), L::round(L::mul(x, L::splat(grid.inverse))));
        }
        for i in 0..BLOCK_TOKENS * groups {
            let (t, group) = (i / groups, i % groups);
            let all = head.group::<L>(t, group);
            let [a, b, c, d] = all;
            let size = L::max(L::max(L::abs(a), L::abs(b)), L::max(L::abs(c), L::abs(d)));
            let grid = Grid::symmetric(L::reduce_max(size));
            put(v, group * BLOCK_TOKENS + t, grid.scale);
            let row = &mut v[2 * groups * BLOCK_TOKENS + t * v_stride..][..v_stride][group * V_GROUP..];
            for (to, x) in row.chunks_exact_mut(16).zip(all) {
                L::store_u8(to.as_mut_ptr(), L::round(L::mul(x, L::splat(grid.inverse))));
            }
        }
    }
}

/// One head of a unit of packed codes.
///
/// # Safety
/// As for [`quantize`].
#[inline(always)]
unsafe fn packed<L: Lanes, const BITS: u32>(heads: &[Head<'_>; UNIT_BLOCKS], k: &mut [u8], v: &mut [u8]) {
    let shape = heads[0].shape;
    let (k_dim, k_stride, groups, codes) = (shape.k_dim, shape.k_stride(), shape.v_groups(), Packed::<BITS>::CODES);
    k[2 * k_dim..2 * k_stride].fill(0);
    k[2 * (k_stride + k_dim)..4 * k_stride].fill(0);
    // SAFETY: the caller's.
    unsafe {
        for d in 0..k_dim {
            let mut all = [L::splat(0.0); UNIT_BLOCKS];
            for (x, head) in all.iter_mut().zip(heads) {
                *x = bound::<L>(head.keys::<L>(d));
            }
            let grid = grid_of::<L, BITS>(&all);
            put(k, d, grid.scale);
            put(k, k_stride + d, grid.min);
            pack::<L, BITS>(&all, grid, &mut k[4 * k_stride + d * codes..][..codes]);
        }
        for i in 0..UNIT_TOKENS * groups {
            let (slot, group) = (i / groups, i % groups);
            let all = heads[slot / BLOCK_TOKENS].group::<L>(slot % BLOCK_TOKENS, group);
            let grid = grid_of::<L, BITS>(&all);
            put(v, 2 * group * UNIT_TOKENS + slot, grid.scale);
            put(v, (2 * group + 1) * UNIT_TOKENS + slot, grid.min);
            let at = 4 * groups * UNIT_TOKENS + (slot * groups + group) * codes;
            pack::<L, BITS>(&all, grid, &mut v[at..at + codes]);
        }
    }
}

/// The grid of 64 values.
///
/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
unsafe fn grid_of<L: Lanes, const BITS: u32>(all: &[L::V; UNIT_BLOCKS]) -> Grid {
    // SAFETY: the caller's.
    unsafe {
        let max = L::reduce_max(L::max(L::max(all[0], all[1]), L::max(all[2], all[3])));
        let zero = L::splat(0.0);
        let (a, b) =
            (L::max(L::sub(zero, all[0]), L::sub(zero, all[1])), L::max(L::sub(zero, all[2]), L::sub(zero, all[3])));
        let min = -L::reduce_max(L::max(a, b));
        Grid::of_range(min, max, ((1 << BITS) - 1) as f32)
    }
}

/// Writes the codes of 64 values.
///
/// # Safety
/// The instruction set of `L` is enabled, and `to` has as many bytes as the codes.
#[inline(always)]
unsafe fn pack<L: Lanes, const BITS: u32>(all: &[L::V; UNIT_BLOCKS], grid: Grid, to: &mut [u8]) {
    // SAFETY: the caller's.
    unsafe {
        let (min, inverse) = (L::splat(grid.min.to_f32()), L::splat(grid.inverse));
        let mut codes = L::round(L::mul(L::sub(all[0], min), inverse));
        for (j, &x) in all.iter().enumerate().skip(1) {
            codes = L::insert(codes, L::round(L::mul(L::sub(x, min), inverse)), j as u32 * BITS);
        }
        if BITS == 4 {
            L::store_u16(to.as_mut_ptr(), codes);
        } else {
            L::store_u8(to.as_mut_ptr(), codes);
        }
    }
}

/// Reads a block.
///
/// # Safety
/// The instruction set of `L` is enabled, and `args` were checked.
#[inline(always)]
pub(super) unsafe fn dequantize<L: Lanes>(args: &mut DequantizeArgs<'_>) {
    let (shape, v_stride) = (args.shape, args.shape.v_stride());
    let (k_len, v_len) = (shape.k_dim * BLOCK_TOKENS, BLOCK_TOKENS * v_stride);
    for head in 0..shape.n_kv_heads {
        let from = Head::new(shape, &args.from, head);
        // SAFETY: every store is of a chunk of 16 floats.
        unsafe {
            for (d, to) in args.k[head * k_len..][..k_len].chunks_exact_mut(16).enumerate() {
                L::store(to.as_mut_ptr(), from.keys::<L>(d));
            }
            for (i, to) in args.v[head * v_len..][..v_len].chunks_exact_mut(16).enumerate() {
                L::store(to.as_mut_ptr(), from.values::<L>(16 * i / v_stride, 16 * i % v_stride));
            }
        }
    }
}
