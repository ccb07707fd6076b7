//! The register kernels that read quantised blocks, once over groups of 16 floats. The inner loops see small integers
//! turned to floats: scales go into the queries and weights before, minima into what the sums start with. Keys of 8 bits,
//! whose scales hold for 16 positions only, are scaled as they are read: the queries would be scaled as often.

use super::layout::V_GROUP;
use super::vector::Kernels;
use super::{BLOCK_TOKENS, MinArgs, Part, SPAN_TOKENS, ScoreArgs, UNIT_BLOCKS, UNIT_TOKENS, ValueArgs};
use crate::lanes::Lanes;
use ruvllm_cpu::prefetch::LINE_BYTES;
use std::ptr;

/// [`KvFormat::Q8`](super::KvFormat::Q8) to the kernels.
pub(super) struct Q8;

/// [`KvFormat::Q4`](super::KvFormat::Q4) and [`KvFormat::Q2`](super::KvFormat::Q2) to the kernels: codes of `BITS` bits,
/// four to a lane.
pub(super) struct Packed<const BITS: u32>;

/// 16 factors, as the kernels read them one by one.
type Factors = [f32; 16];

/// A column of keys and its place among the scales at hand.
#[derive(Clone, Copy)]
struct Column {
    d: usize,
    i: usize,
}

impl Q8 {
    /// Adds a column of `B` blocks to the scores of `R` rows; `q`: that column's queries.
    ///
    /// # Safety
    /// As for [`Kernels::scores`]; the column is one of `k_dim`.
    #[inline(always)]
    unsafe fn column<L: Lanes, const R: usize, const B: usize>(
        sums: &mut [[L::V; B]; R],
        q: *const f32,
        k_stride: usize,
        keys: &[*const u8; B],
        scales: &[Factors; B],
        Column { d, i }: Column,
    ) {
        let mut column = [sums[0][0]; B];
        for (b, column) in column.iter_mut().enumerate() {
            // SAFETY: the head has `k_dim` columns of 16 codes after its scales.
            *column =
                unsafe { L::mul(L::load_i8(keys[b].add(2 * k_stride + d * BLOCK_TOKENS)), L::splat(scales[b][i])) };
        }
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: there are `R` rows of `k_stride`.
            let x = unsafe { L::splat(*q.add(r * k_stride)) };
            for (sum, &column) in sums.iter_mut().zip(&column) {
                // SAFETY: the caller enabled the instruction set.
                *sum = unsafe { L::fma(x, column, *sum) };
            }
        }
    }
}

impl Kernels for Q8 {
    /// Per head: `[k_stride]` scales, then `[k_dim][16]` codes.
    #[inline(always)]
    unsafe fn scores<L: Lanes, const R: usize, const B: usize>(args: &mut ScoreArgs<'_>) {
        let (k_dim, k_stride, n_blocks) = (args.shape.k_dim, args.shape.k_stride(), args.blocks.len());
        let (q, codes_at) = (args.q.as_ptr(), 2 * k_stride);
        for first in (0..n_blocks).step_by(B) {
            // Past the last block, it is scored again and dropped.
            let keys: [*const u8; B] =
                std::array::from_fn(|b| args.blocks.get((first + b).min(n_blocks - 1)).bytes.as_ptr());
            let next: [*const u8; B] = std::array::from_fn(|b| args.next.of(first + b, keys[b]));
            // SAFETY: the caller enabled the instruction set.
            let mut sums = [[unsafe { L::splat(0.0) }; B]; R];
            let mut scales = [[0.0; 16]; B];
            for d in (0..k_dim).step_by(16) {
                for (b, scales) in scales.iter_mut().enumerate() {
                    // SAFETY: scales are whole vectors.
                    unsafe {
                        args.next.level.prefetch(next[b].wrapping_add(2 * d));
                        L::store(scales.as_mut_ptr(), L::load_f16(keys[b].add(2 * d).cast()));
                    }
                }
                let n = (k_dim - d).min(16);
                // Four columns of codes are a cache line.
                for i in 0..n / 4 {
                    let at = codes_at + (d + 4 * i) * BLOCK_TOKENS;
                    for next in &next {
                        args.next.level.prefetch(next.wrapping_add(at));
                    }
                    for i in 4 * i..4 * i + 4 {
                        // SAFETY: `d + i` is less than `k_dim`; the rest is the caller's.
                        unsafe {
                            Q8::column::<L, R, B>(
                                &mut sums,
                                q.add(d + i),
                                k_stride,
                                &keys,
                                &scales,
                                Column { d: d + i, i },
                            )
                        };
                    }
                }
                for i in n / 4 * 4..n {
                    // SAFETY: as above.
                    unsafe {
                        Q8::column::<L, R, B>(&mut sums, q.add(d + i), k_stride, &keys, &scales, Column { d: d + i, i })
                    };
                }
            }
            // SAFETY: `sums` are those of the blocks from `first` on.
            unsafe { store_scores::<L, R, B>(args, first, &sums) };
        }
    }

    /// Per head: `[groups][16]` scales, then `[16][v_stride]` codes.
    #[inline(always)]
    unsafe fn values<L: Lanes, const R: usize, const W: usize>(args: &mut ValueArgs<'_>, column: usize) {
        let v_stride = args.shape.v_stride();
        let codes_at = 2 * BLOCK_TOKENS * args.shape.v_groups();
        let scales_at = 2 * BLOCK_TOKENS * (column / V_GROUP);
        // SAFETY: the columns lie inside a row, and there are `R` rows.
        unsafe {
            let mut sums = load_values::<L, R, W>(args, column);
            for block in args.tokens.start / BLOCK_TOKENS..args.tokens.end.div_ceil(BLOCK_TOKENS) {
                let v = args.blocks.get(block).bytes.as_ptr();
                let next = args.next.of(block, v);
                args.next.level.prefetch(next.wrapping_add(scales_at));
                let weights = weights::<L, R>(args, block, v.add(scales_at));
                for t in tokens_of(args, block) {
                    let at = codes_at + t * v_stride + column;
                    args.next.level.prefetch(next.wrapping_add(at));
                    let mut row = [sums[0][0]; W];
                    for (w, row) in row.iter_mut().enumerate() {
                        *row = L::load_i8(v.add(at + 16 * w));
                    }
                    add_row::<L, R, W>(&mut sums, &weights, t, &row);
                }
            }
            store_values::<L, R, W>(args, column, &sums);
        }
    }
}

impl<const BITS: u32> Packed<BITS> {
    /// Bytes of 64 codes.
    pub(super) const CODES: usize = 8 * BITS as usize;

    /// The 16 lanes of 64 codes.
    ///
    /// # Safety
    /// As for [`Lanes`]; the codes are there.
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const u8) -> L::U {
        // SAFETY: the caller's.
        unsafe { if BITS == 4 { L::load_u16(from) } else { L::load_u8(from) } }
    }

    /// Scores of `n` blocks from `first` on, which follow each other in one unit, `B` at a time. Per head: `[k_stride]`
    /// scales, `[k_stride]` minima, then `[k_dim]` columns of 64 codes, lane `t` with those of position `t` of each block.
    ///
    /// # Safety
    /// As for [`Kernels::scores`].
    #[inline(always)]
    unsafe fn unit_scores<L: Lanes, const R: usize, const B: usize>(args: &mut ScoreArgs<'_>, first: usize, n: usize) {
        let (k_stride, part) = (args.shape.k_stride(), args.blocks.get(first));
        let (keys, q) = (part.bytes.as_ptr(), args.q.as_ptr());
        let next = args.next.of(first, keys);
        // SAFETY: minima and queries are whole vectors, and there are `R` rows.
        unsafe {
            for line in (0..4 * k_stride).step_by(LINE_BYTES) {
                args.next.level.prefetch(next.wrapping_add(line));
            }
            let mut offsets = [L::splat(0.0); R];
            for d in (0..k_stride).step_by(16) {
                let min = L::load_f16(keys.add(2 * (k_stride + d)).cast());
                for (r, offset) in offsets.iter_mut().enumerate() {
                    *offset = L::fma(L::load_f32(q.add(r * k_stride + d)), min, *offset);
                }
            }
            for offset in &mut offsets {
                *offset = L::splat(L::reduce_add(*offset));
            }
            for b in (0..n).step_by(B) {
                let mut sums = [[L::splat(0.0); B]; R];
                for (sums, offset) in sums.iter_mut().zip(&offsets) {
                    *sums = [*offset; B];
                }
                // The first blocks of a unit prefetch for all.
                let next = if b == 0 { next } else { keys };
                Self::columns::<L, R, B>(args, &mut sums, keys, next, part.sub + b);
                store_scores::<L, R, B>(args, first + b, &sums);
            }
        }
    }

    /// Adds all columns of the blocks from `sub` on of a unit to the scores.
    ///
    /// # Safety
    /// As for [`Kernels::scores`]; `keys` are a head of a unit.
    #[inline(always)]
    unsafe fn columns<L: Lanes, const R: usize, const B: usize>(
        args: &ScoreArgs<'_>,
        sums: &mut [[L::V; B]; R],
        keys: *const u8,
        next: *const u8,
        sub: usize,
    ) {
        let (k_dim, k_stride, q) = (args.shape.k_dim, args.shape.k_stride(), args.q.as_ptr());
        let per_line = LINE_BYTES / Self::CODES;
        let mut scaled = [[0.0; 16]; R];
        // SAFETY: scales and queries are whole vectors; there are `R` rows and `k_dim` columns of codes.
        unsafe {
            for d in (0..k_dim).step_by(16) {
                let scale = L::load_f16(keys.add(2 * d).cast());
                for (r, scaled) in scaled.iter_mut().enumerate() {
                    L::store(scaled.as_mut_ptr(), L::mul(L::load_f32(q.add(r * k_stride + d)), scale));
                }
                let (n, codes) = ((k_dim - d).min(16), 4 * k_stride + d * Self::CODES);
                for line in 0..n / per_line {
                    args.next.level.prefetch(next.wrapping_add(codes + line * LINE_BYTES));
                    for i in line * per_line..(line + 1) * per_line {
                        Self::column::<L, R, B>(sums, &scaled, i, keys.add(codes + i * Self::CODES), sub);
                    }
                }
                for i in n / per_line * per_line..n {
                    Self::column::<L, R, B>(sums, &scaled, i, keys.add(codes + i * Self::CODES), sub);
                }
            }
        }
    }

    /// Adds the column whose queries are the `i`th of `scaled` and whose 64 codes are at `codes`.
    ///
    /// # Safety
    /// As for [`Kernels::scores`]; the codes are there.
    #[inline(always)]
    unsafe fn column<L: Lanes, const R: usize, const B: usize>(
        sums: &mut [[L::V; B]; R],
        scaled: &[Factors; R],
        i: usize,
        codes: *const u8,
        sub: usize,
    ) {
        // SAFETY: the caller's.
        unsafe {
            let codes = L::shift_right(Self::load::<L>(codes), BITS * sub as u32);
            let mut column = [sums[0][0]; B];
            for (b, column) in column.iter_mut().enumerate() {
                *column = L::code::<BITS>(codes, b as u32);
            }
            for (sums, scaled) in sums.iter_mut().zip(scaled) {
                let x = L::splat(scaled[i]);
                for (sum, &column) in sums.iter_mut().zip(&column) {
                    *sum = L::fma(x, column, *sum);
                }
            }
        }
    }
}

impl<const BITS: u32> Kernels for Packed<BITS> {
    #[inline(always)]
    unsafe fn scores<L: Lanes, const R: usize, const B: usize>(args: &mut ScoreArgs<'_>) {
        let mut first = 0;
        while first < args.blocks.len() {
            let part = args.blocks.get(first);
            let follows = |i: usize| {
                let other = args.blocks.get(first + i);
                ptr::eq(other.bytes, part.bytes) && other.sub == i
            };
            let is_whole = args.blocks.len() - first >= UNIT_BLOCKS && (0..UNIT_BLOCKS).all(follows);
            let n = if is_whole { UNIT_BLOCKS } else { 1 };
            // SAFETY: the caller's.
            unsafe {
                if is_whole {
                    Self::unit_scores::<L, R, B>(args, first, n);
                } else {
                    Self::unit_scores::<L, R, 1>(args, first, n);
                }
            }
            first += n;
        }
    }

    /// Per head: `[groups][64]` scales and minima of the positions, each group's scales first, then
    /// `[64][groups]` times 64 codes, lane `c` with those of columns `c`, `c + 16`, `c + 32` and `c + 48`.
    #[inline(always)]
    unsafe fn values<L: Lanes, const R: usize, const W: usize>(args: &mut ValueArgs<'_>, column: usize) {
        let (groups, group) = (args.shape.v_groups(), column / V_GROUP);
        let (scales_at, codes_at) = (4 * UNIT_TOKENS * group, 4 * UNIT_TOKENS * groups);
        let first_code = (column % V_GROUP / 16) as u32;
        // SAFETY: the columns lie inside a row, and there are `R` rows.
        unsafe {
            let mut sums = load_values::<L, R, W>(args, column);
            for block in args.tokens.start / BLOCK_TOKENS..args.tokens.end.div_ceil(BLOCK_TOKENS) {
                let Part { bytes, sub } = args.blocks.get(block);
                let v = bytes.as_ptr();
                let (scales, codes) = (scales_at + 2 * BLOCK_TOKENS * sub, codes_at + group * Self::CODES);
                let next = args.next.of(block, v);
                args.next.level.prefetch(next.wrapping_add(scales));
                args.next.level.prefetch(next.wrapping_add(scales + 2 * UNIT_TOKENS));
                let weights = weights::<L, R>(args, block, v.add(scales));
                for t in tokens_of(args, block) {
                    let at = codes + (sub * BLOCK_TOKENS + t) * groups * Self::CODES;
                    args.next.level.prefetch(next.wrapping_add(at));
                    let codes = L::shift_right(Self::load::<L>(v.add(at)), BITS * first_code);
                    let mut row = [sums[0][0]; W];
                    for (w, row) in row.iter_mut().enumerate() {
                        *row = L::code::<BITS>(codes, w as u32);
                    }
                    add_row::<L, R, W>(&mut sums, &weights, t, &row);
                }
            }
            store_values::<L, R, W>(args, column, &sums);
        }
    }
}

/// Writes the scores of `B` blocks from `first` on, as far as there are that many.
///
/// # Safety
/// The instruction set of `L` is enabled, and `args` were checked for `R` rows.
#[inline(always)]
pub(super) unsafe fn store_scores<L: Lanes, const R: usize, const B: usize>(
    args: &mut ScoreArgs<'_>,
    first: usize,
    sums: &[[L::V; B]; R],
) {
    let (out, n_blocks) = (args.out.as_mut_ptr(), args.blocks.len() - first);
    for (r, sums) in sums.iter().enumerate() {
        for (b, &sum) in sums.iter().enumerate().take(n_blocks) {
            // SAFETY: `out` has 16 places per block in each row.
            unsafe { L::store(out.add(r * SPAN_TOKENS + (first + b) * BLOCK_TOKENS), sum) };
        }
    }
}

/// Returns what columns `column .. column + 16 W` hold so far.
///
/// # Safety
/// The instruction set of `L` is enabled, `args` were checked for `R` rows, and the columns lie inside a row.
#[inline(always)]
pub(super) unsafe fn load_values<L: Lanes, const R: usize, const W: usize>(
    args: &ValueArgs<'_>,
    column: usize,
) -> [[L::V; W]; R] {
    let (v_stride, out) = (args.shape.v_stride(), args.out.as_ptr());
    // SAFETY: the caller enabled the instruction set.
    let mut sums = [[unsafe { L::splat(0.0) }; W]; R];
    for (r, sums) in sums.iter_mut().enumerate() {
        for (w, sum) in sums.iter_mut().enumerate() {
            // SAFETY: `out` has `R` rows of `v_stride`.
            *sum = unsafe { L::load_f32(out.add(r * v_stride + column + 16 * w)) };
        }
    }
    sums
}

/// The counterpart of [`load_values`].
///
/// # Safety
/// As there.
#[inline(always)]
pub(super) unsafe fn store_values<L: Lanes, const R: usize, const W: usize>(
    args: &mut ValueArgs<'_>,
    column: usize,
    sums: &[[L::V; W]; R],
) {
    let (v_stride, out) = (args.shape.v_stride(), args.out.as_mut_ptr());
    for (r, sums) in sums.iter().enumerate() {
        for (w, &sum) in sums.iter().enumerate() {
            // SAFETY: as for the loads.
            unsafe { L::store(out.add(r * v_stride + column + 16 * w), sum) };
        }
    }
}

/// Returns the weights of a block's 16 positions, times the scales at `scales`.
///
/// # Safety
/// The instruction set of `L` is enabled, `args` were checked for `R` rows, and 16 scales are there.
#[inline(always)]
unsafe fn weights<L: Lanes, const R: usize>(args: &ValueArgs<'_>, block: usize, scales: *const u8) -> [Factors; R] {
    let mut weights = [[0.0; 16]; R];
    // SAFETY: every row has a weight for each position of each block.
    unsafe {
        let scales = L::load_f16(scales.cast());
        for (r, weights) in weights.iter_mut().enumerate() {
            let p = L::load_f32(args.p.as_ptr().add(r * SPAN_TOKENS + block * BLOCK_TOKENS));
            L::store(weights.as_mut_ptr(), L::mul(p, scales));
        }
    }
    weights
}

/// Returns the positions of a block that count, from its first.
#[inline(always)]
fn tokens_of(args: &ValueArgs<'_>, block: usize) -> std::ops::Range<usize> {
    let start = block * BLOCK_TOKENS;
    args.tokens.start.max(start) - start..args.tokens.end.min(start + BLOCK_TOKENS) - start
}

/// Adds a position's values to each row, by its weight `t`.
///
/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
unsafe fn add_row<L: Lanes, const R: usize, const W: usize>(
    sums: &mut [[L::V; W]; R],
    weights: &[Factors; R],
    t: usize,
    row: &[L::V; W],
) {
    for (sums, weights) in sums.iter_mut().zip(weights) {
        // SAFETY: the caller enabled the instruction set.
        let weight = unsafe { L::splat(weights[t]) };
        for (sum, &value) in sums.iter_mut().zip(row) {
            // SAFETY: as above.
            *sum = unsafe { L::fma(weight, value, *sum) };
        }
    }
}

/// What each row's values start with: `out[r][c] = Σ_t p[r][t]·min[t][group of c]` over the packed blocks of a span, 16
/// partial sums by position modulo 16.
///
/// # Safety
/// The instruction set of `L` is enabled, and `args` were checked.
#[inline(always)]
pub(super) unsafe fn mins<L: Lanes>(args: &mut MinArgs<'_>) {
    let v_stride = args.shape.v_stride();
    for ((r, out), visible) in args.out.chunks_exact_mut(v_stride).enumerate().zip(args.visible) {
        let blocks = visible.start / BLOCK_TOKENS..visible.end.div_ceil(BLOCK_TOKENS);
        for (group, out) in out.chunks_mut(V_GROUP).enumerate() {
            // SAFETY: a group's 64 minima come after its 64 scales; `p` has 16 weights for each block.
            let sum = unsafe {
                let mut sums = L::splat(0.0);
                for block in blocks.clone() {
                    if args.formats[block].is_packed() {
                        let Part { bytes, sub } = args.blocks[block];
                        let head_at = args.head * args.formats[block].v_head_bytes(args.shape);
                        let at = head_at + 2 * (UNIT_TOKENS * (2 * group + 1) + sub * BLOCK_TOKENS);
                        let min = L::load_f16(bytes.as_ptr().add(at).cast());
                        let p = L::load_f32(args.p.as_ptr().add(r * SPAN_TOKENS + block * BLOCK_TOKENS));
                        sums = L::fma(p, min, sums);
                    }
                }
                L::reduce_add(sums)
            };
            out.fill(sum);
        }
    }
}
