//! The register kernels, written once over 16 floats; each instruction set says how large its tiles are.

use super::{FoldArgs, MaxSum, SPAN_TOKENS, ScoreArgs, SoftmaxArgs, ValueArgs, whole_blocks};
use crate::lanes::{self, Lanes, exp};
use crate::softmax::vector::exp_sum;
use std::ops::Range;

/// The kernels over blocks of one format.
pub(super) trait Kernels {
    /// Scores of `R` rows, `B` blocks at a time; `R·B` accumulators, one per row and 16 positions.
    ///
    /// # Safety
    /// The instruction set of `L` is enabled, and `args` were checked for `R` rows.
    unsafe fn scores<L: Lanes, const R: usize, const B: usize>(args: &mut ScoreArgs<'_>);

    /// Weighted values of `R` rows, columns `column .. column + 16 W` of them; `R·W` accumulators.
    ///
    /// # Safety
    /// As for `scores`; `column` is a multiple of `16 W`, and the columns lie inside a row.
    unsafe fn values<L: Lanes, const R: usize, const W: usize>(args: &mut ValueArgs<'_>, column: usize);
}

/// Scores of `R` rows, `B` blocks at a time.
///
/// # Safety
/// As for [`Kernels::scores`].
#[inline(always)]
pub(super) unsafe fn scores<L: Lanes, T: Kernels, const R: usize, const B: usize>(args: &mut ScoreArgs<'_>) {
    // SAFETY: the caller's.
    unsafe { T::scores::<L, R, B>(args) }
}

/// Weighted values of `R` rows, `W` vectors at a time, then single ones.
///
/// # Safety
/// As for [`Kernels::scores`].
#[inline(always)]
pub(super) unsafe fn values<L: Lanes, T: Kernels, const R: usize, const W: usize>(args: &mut ValueArgs<'_>) {
    let (mut column, v_stride) = (0, args.shape.v_stride());
    while column + 16 * W <= v_stride {
        // SAFETY: the columns lie inside a row; the rest is the caller's.
        unsafe { T::values::<L, R, W>(args, column) };
        column += 16 * W;
    }
    while column < v_stride {
        // SAFETY: as above; a row is whole vectors.
        unsafe { T::values::<L, R, 1>(args, column) };
        column += 16;
    }
}

/// The softmax of rows of a span; 16 partial sums by position modulo 16, then added. The maxima of all rows come first, so
/// that no row's exponentials wait for its maximum.
///
/// # Safety
/// The instruction set of `L` is enabled, and `args` were checked.
#[inline(always)]
pub(super) unsafe fn softmax<L: Lanes>(args: &mut SoftmaxArgs<'_>) {
    let SoftmaxArgs { scores, visible, softcap, alibi, totals } = args;
    for (r, row) in scores.chunks_exact_mut(SPAN_TOKENS).enumerate() {
        let whole = whole_blocks(&visible[r]);
        // SAFETY: the caller enabled the instruction set; loads are of chunks of 16.
        unsafe {
            bend::<L>(row, whole.clone(), *softcap, alibi.map(|rows| rows[r]));
            row[whole.start..visible[r].start].fill(f32::NEG_INFINITY);
            row[visible[r].end..whole.end].fill(f32::NEG_INFINITY);
            // One vector of maxima: with the four of `softmax::vector::max` a span is slower (0.92 to 1.02).
            let mut max = L::splat(f32::NEG_INFINITY);
            for chunk in row[whole].chunks_exact(16) {
                max = L::max(max, L::load_f32(chunk.as_ptr()));
            }
            totals[r].max = L::reduce_max(max);
        }
    }
    for (r, row) in scores.chunks_exact_mut(SPAN_TOKENS).enumerate() {
        // SAFETY: the caller enabled the instruction set.
        totals[r].sum = unsafe { exp_sum::<L>(&mut row[whole_blocks(&visible[r])], totals[r].max) };
    }
}

/// Adds a span to a row's running result: both rescaled to the larger maximum. Returns those of both.
///
/// # Safety
/// The instruction set of `L` is enabled, and `args` were checked.
#[inline(always)]
pub(super) unsafe fn fold<L: Lanes>(args: &mut FoldArgs<'_>) -> MaxSum {
    let FoldArgs { total, span, .. } = *args;
    let new_max = total.max.max(span.max);
    // SAFETY: the caller enabled the instruction set; loads and stores are of chunks of 16.
    unsafe {
        let old_scale = exp::<L>(L::splat(total.max - new_max));
        let scale = exp::<L>(L::splat(span.max - new_max));
        for (out, values) in args.out.chunks_exact_mut(16).zip(args.values.chunks_exact(16)) {
            let old = L::mul(L::load_f32(out.as_ptr()), old_scale);
            L::store(out.as_mut_ptr(), L::fma(L::load_f32(values.as_ptr()), scale, old));
        }
        let sum = L::fma(L::splat(span.sum), scale, L::mul(L::splat(total.sum), old_scale));
        MaxSum { max: new_max, sum: L::reduce_max(sum) }
    }
}

/// The soft cap and ALiBi, on `whole` blocks of a row.
///
/// # Safety
/// As for [`softmax`].
#[inline(always)]
unsafe fn bend<L: Lanes>(row: &mut [f32], whole: Range<usize>, softcap: Option<f32>, alibi: Option<(f32, f32)>) {
    if softcap.is_none() && alibi.is_none() {
        return;
    }
    let steps: [f32; 16] = std::array::from_fn(|i| i as f32);
    for (start, chunk) in whole.clone().step_by(16).zip(row[whole].chunks_exact_mut(16)) {
        // SAFETY: the caller enabled the instruction set; loads and stores are of chunks of 16.
        unsafe {
            let mut score = L::load_f32(chunk.as_ptr());
            if let Some(cap) = softcap {
                score = lanes::softcap::<L>(score, cap);
            }
            if let Some((slope, distance)) = alibi {
                let distance = L::sub(L::splat(distance - start as f32), L::load_f32(steps.as_ptr()));
                score = L::sub(score, L::mul(L::splat(slope), L::abs(distance)));
            }
            L::store(chunk.as_mut_ptr(), score);
        }
    }
}

/// Writes the entry points of an instruction set: for `n_rows` rows, `n_blocks` blocks of keys or `n_vectors` groups of 16
/// values at a time, of packed formats `n_packed` (up to 4) of both.
macro_rules! entries {
    (@tiles $lanes:ident, $features:literal,
     $($n_rows:literal: $n_blocks:literal $n_vectors:literal $n_packed:literal),+) => {
        $crate::attention::vector::entries!(@format f32 scores_f32 values_f32 $lanes, $features, $($n_rows: $n_blocks $n_vectors),+);
        $crate::attention::vector::entries!(@format f16 scores_f16 values_f16 $lanes, $features, $($n_rows: $n_blocks $n_vectors),+);
        $crate::attention::vector::entries!(@format Q8 scores_q8 values_q8 $lanes, $features, $($n_rows: $n_blocks $n_vectors),+);
        $crate::attention::vector::entries!(@format Q4 scores_q4 values_q4 $lanes, $features, $($n_rows: $n_packed $n_packed),+);
        $crate::attention::vector::entries!(@format Q2 scores_q2 values_q2 $lanes, $features, $($n_rows: $n_packed $n_packed),+);

        /// Rows the kernels take at most.
        pub(in crate::attention) const CHUNK_ROWS: usize = [$($n_rows),+].len();
        /// Scores by format.
        pub(in crate::attention) const SCORES: [unsafe fn(&mut ScoreArgs<'_>); KvFormat::COUNT] =
            [scores_f32, scores_f16, scores_q8, scores_q4, scores_q2];
        /// Values by format.
        pub(in crate::attention) const VALUES: [unsafe fn(&mut ValueArgs<'_>); KvFormat::COUNT] =
            [values_f32, values_f16, values_q8, values_q4, values_q2];
    };
    (@format $format:ident $scores:ident $values:ident $lanes:ident, $features:literal,
     $($n_rows:literal: $n_blocks:literal $n_vectors:literal),+) => {
        #[target_feature(enable = $features)]
        fn $scores(args: &mut ScoreArgs<'_>) {
            match args.n_rows {
                // SAFETY: the features are enabled here, and `AttentionKernels` checked the arguments.
                $($n_rows => unsafe { vector::scores::<$lanes, $format, $n_rows, $n_blocks>(args) },)+
                n_rows => unreachable!("{n_rows} rows in a chunk"),
            }
        }

        #[target_feature(enable = $features)]
        fn $values(args: &mut ValueArgs<'_>) {
            match args.n_rows {
                // SAFETY: the features are enabled here, and `AttentionKernels` checked the arguments.
                $($n_rows => unsafe { vector::values::<$lanes, $format, $n_rows, $n_vectors>(args) },)+
                n_rows => unreachable!("{n_rows} rows in a chunk"),
            }
        }
    };
    (@plain $name:ident $module:ident $args:ident $result:ty, $lanes:ident, $features:literal) => {
        #[target_feature(enable = $features)]
        pub(super) fn $name(args: &mut $args<'_>) -> $result {
            // SAFETY: the features are enabled here, and `AttentionKernels` checked the arguments.
            unsafe { $module::$name::<$lanes>(args) }
        }
    };
    ($lanes:ident, $features:literal, $($tiles:tt)+) => {
        $crate::attention::vector::entries!(@tiles $lanes, $features, $($tiles)+);
        $crate::attention::vector::entries!(@plain softmax vector SoftmaxArgs (), $lanes, $features);
        $crate::attention::vector::entries!(@plain fold vector FoldArgs $crate::attention::MaxSum, $lanes, $features);
        $crate::attention::vector::entries!(@plain mins quant MinArgs (), $lanes, $features);
        $crate::attention::vector::entries!(@plain quantize quantize QuantizeArgs (), $lanes, $features);
        $crate::attention::vector::entries!(@plain dequantize quantize DequantizeArgs (), $lanes, $features);
    };
}
pub(super) use entries;
