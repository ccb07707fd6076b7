//! The register kernels that read exact blocks, once over groups of 16 floats.

use super::quant::{load_values, store_scores, store_values};
use super::vector::Kernels;
use super::{BLOCK_TOKENS, SPAN_TOKENS, ScoreArgs, ValueArgs};
use crate::lanes::Lanes;
use half::f16;
use ruvllm_cpu::prefetch::LINE_BYTES;

/// An element as its 16 floats.
pub(super) trait Loaded: Copy {
    /// # Safety
    /// As for [`Lanes`].
    unsafe fn load<L: Lanes>(from: *const Self) -> L::V;
}

impl Loaded for f16 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const f16) -> L::V {
        // SAFETY: the caller keeps the contract of `Lanes`.
        unsafe { L::load_f16(from) }
    }
}

impl Loaded for f32 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const f32) -> L::V {
        // SAFETY: the caller keeps the contract of `Lanes`.
        unsafe { L::load_f32(from) }
    }
}

/// Elements of type `T` in a cache line.
const fn line<T>() -> usize {
    LINE_BYTES / size_of::<T>()
}

impl<T: Loaded> Kernels for T {
    #[inline(always)]
    unsafe fn scores<L: Lanes, const R: usize, const B: usize>(args: &mut ScoreArgs<'_>) {
        let (k_dim, q) = (args.shape.k_dim, args.q.as_ptr());
        let (q_stride, n_blocks) = (args.shape.k_stride(), args.blocks.len());
        let columns_per_line = line::<T>() / BLOCK_TOKENS;
        for first in (0..n_blocks).step_by(B) {
            // Past the last block, it is scored again and dropped.
            let keys: [*const T; B] =
                std::array::from_fn(|b| args.blocks.get((first + b).min(n_blocks - 1)).bytes.as_ptr().cast());
            let next: [*const T; B] = std::array::from_fn(|b| args.next.of(first + b, keys[b]));
            // SAFETY: the caller enabled the instruction set.
            let mut sums = [[unsafe { L::splat(0.0) }; B]; R];
            let mut d = 0;
            while d + columns_per_line <= k_dim {
                for next in &next {
                    args.next.level.prefetch(next.wrapping_add(d * BLOCK_TOKENS));
                }
                for i in 0..columns_per_line {
                    // SAFETY: `d + i` is less than `k_dim`; the rest is the caller's.
                    unsafe { score_column::<L, T, R, B>(&mut sums, q.add(d + i), q_stride, &keys, d + i) };
                }
                d += columns_per_line;
            }
            while d < k_dim {
                // SAFETY: as above.
                unsafe { score_column::<L, T, R, B>(&mut sums, q.add(d), q_stride, &keys, d) };
                d += 1;
            }
            // SAFETY: `sums` are those of the blocks from `first` on.
            unsafe { store_scores::<L, R, B>(args, first, &sums) };
        }
    }

    #[inline(always)]
    unsafe fn values<L: Lanes, const R: usize, const W: usize>(args: &mut ValueArgs<'_>, column: usize) {
        let (v_stride, p) = (args.shape.v_stride(), args.p.as_ptr());
        // SAFETY: the columns lie inside a row, and there are `R` rows.
        let mut sums = unsafe { load_values::<L, R, W>(args, column) };
        let mut token = args.tokens.start;
        while token < args.tokens.end {
            let block = token / BLOCK_TOKENS;
            let end = args.tokens.end.min((block + 1) * BLOCK_TOKENS);
            let first: *const T = args.blocks.get(block).bytes.as_ptr().cast();
            // SAFETY: the block's head has 16 rows of `v_stride`.
            let mut v = unsafe { first.add(token % BLOCK_TOKENS * v_stride + column) };
            let mut next = args.next.of(block, v).wrapping_add(column);
            while token < end {
                for line in 0..(16 * W).div_ceil(line::<T>()) {
                    args.next.level.prefetch(next.wrapping_add(line * self::line::<T>()));
                }
                next = next.wrapping_add(v_stride);
                let mut row = [sums[0][0]; W];
                for (w, row) in row.iter_mut().enumerate() {
                    // SAFETY: as above.
                    *row = unsafe { T::load::<L>(v.add(16 * w)) };
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: every row of `p` has the tokens.
                    let weight = unsafe { L::splat(*p.add(r * SPAN_TOKENS + token)) };
                    for (sum, &value) in sums.iter_mut().zip(&row) {
                        // SAFETY: the caller enabled the instruction set.
                        *sum = unsafe { L::fma(weight, value, *sum) };
                    }
                }
                v = v.wrapping_add(v_stride);
                token += 1;
            }
        }
        // SAFETY: as for the loads.
        unsafe { store_values::<L, R, W>(args, column, &sums) };
    }
}

/// Adds column `d` of `B` blocks to the scores of `R` rows; `q`: that column's queries, rows `q_stride` apart.
///
/// # Safety
/// As for [`Kernels::scores`]; `d` is less than `k_dim`.
#[inline(always)]
unsafe fn score_column<L: Lanes, T: Loaded, const R: usize, const B: usize>(
    sums: &mut [[L::V; B]; R],
    q: *const f32,
    q_stride: usize,
    keys: &[*const T; B],
    d: usize,
) {
    let mut column = [sums[0][0]; B];
    for (column, keys) in column.iter_mut().zip(keys) {
        // SAFETY: a block's head has `k_dim` columns of 16.
        *column = unsafe { T::load::<L>(keys.add(d * BLOCK_TOKENS)) };
    }
    for (r, sums) in sums.iter_mut().enumerate() {
        // SAFETY: `q` has `R` rows of `q_stride`.
        let x = unsafe { L::splat(*q.add(r * q_stride)) };
        for (sum, &column) in sums.iter_mut().zip(&column) {
            // SAFETY: the caller enabled the instruction set.
            *sum = unsafe { L::fma(x, column, *sum) };
        }
    }
}
