//! The register kernels, written once over groups of 16 floats; each instruction set says what its 16 floats are.

use super::{FoldArgs, SPAN_TOKENS, ScoreArgs, SoftmaxArgs, ValueArgs, whole_blocks};
use half::f16;
use std::ops::Range;

/// 16 floats in registers: one AVX-512 vector, two of AVX2, four of NEON.
///
/// All functions are `#[inline(always)]`, so that they become part of the caller, which enables the instruction set.
///
/// # Safety
/// Callers enable the instruction set; pointers lead 16 elements, at any alignment.
pub(crate) unsafe trait Lanes {
    /// 16 floats.
    type V: Copy;
    /// 16 integers of 32 bits.
    type U: Copy;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load_f32(from: *const f32) -> Self::V;
    unsafe fn load_f16(from: *const f16) -> Self::V;
    unsafe fn store(to: *mut f32, x: Self::V);
    /// 16 signed bytes.
    unsafe fn load_i8(from: *const u8) -> Self::V;
    /// 16 integers of 16 bits without a sign, at any address.
    unsafe fn load_u16(from: *const u8) -> Self::U;
    /// 16 bytes without a sign.
    unsafe fn load_u8(from: *const u8) -> Self::U;
    /// The lower 16 bits of each lane.
    unsafe fn store_u16(to: *mut u8, x: Self::U);
    /// The lower 8 bits of each lane.
    unsafe fn store_u8(to: *mut u8, x: Self::U);
    unsafe fn shift_right(x: Self::U, n: u32) -> Self::U;
    /// `BITS` (2 or 4) bits of each lane from bit `BITS·at` on, as floats.
    unsafe fn code<const BITS: u32>(x: Self::U, at: u32) -> Self::V;
    /// `x | code << shift`
    unsafe fn insert(x: Self::U, code: Self::U, shift: u32) -> Self::U;
    /// To the nearest integers, ties to even.
    unsafe fn round(a: Self::V) -> Self::U;
    /// `a·b + c`, rounded once.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn abs(a: Self::V) -> Self::V;
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn exp(a: Self::V) -> Self::V;
    /// `exp` of each.
    #[inline(always)]
    unsafe fn exps<const N: usize>(a: [Self::V; N]) -> [Self::V; N] {
        // SAFETY: the caller's.
        a.map(|a| unsafe { Self::exp(a) })
    }
    /// The largest lane.
    unsafe fn reduce_max(a: Self::V) -> f32;
    /// The sum of all lanes, in an order that is always the same.
    unsafe fn reduce_add(a: Self::V) -> f32;
    /// Lane by lane, `x` where `a < b`, else `y`.
    unsafe fn select_lt(a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;
}

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
            let mut max = L::splat(f32::NEG_INFINITY);
            for chunk in row[whole].chunks_exact(16) {
                max = L::max(max, L::load_f32(chunk.as_ptr()));
            }
            totals[r].0 = L::reduce_max(max);
        }
    }
    for (r, row) in scores.chunks_exact_mut(SPAN_TOKENS).enumerate() {
        // SAFETY: as above, and stores are of chunks of 16.
        unsafe {
            let (shift, mut sum) = (L::splat(totals[r].0), L::splat(0.0));
            let mut chunks = row[whole_blocks(&visible[r])].chunks_exact_mut(64);
            for chunk in &mut chunks {
                weigh::<L, 4>(chunk, shift, &mut sum);
            }
            for chunk in chunks.into_remainder().chunks_exact_mut(16) {
                weigh::<L, 1>(chunk, shift, &mut sum);
            }
            totals[r].1 = L::reduce_add(sum);
        }
    }
}

/// Turns `16 N` scores into weights, which are added to `sum` in order.
///
/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
unsafe fn weigh<L: Lanes, const N: usize>(scores: &mut [f32], shift: L::V, sum: &mut L::V) {
    assert_eq!(scores.len(), 16 * N);
    let scores = scores.as_mut_ptr();
    // SAFETY: the caller enabled the instruction set; 16 floats are there `N` times.
    unsafe {
        let weights = L::exps(std::array::from_fn::<_, N, _>(|i| L::sub(L::load_f32(scores.add(16 * i)), shift)));
        for (i, weight) in weights.into_iter().enumerate() {
            L::store(scores.add(16 * i), weight);
            *sum = L::add(*sum, weight);
        }
    }
}

/// Adds a span to a row's running result: both rescaled to the larger maximum. Returns the maximum and the sum of both.
///
/// # Safety
/// The instruction set of `L` is enabled, and `args` were checked.
#[inline(always)]
pub(super) unsafe fn fold<L: Lanes>(args: &mut FoldArgs<'_>) -> (f32, f32) {
    let ((old_max, old_sum), (max, sum)) = (args.total, args.span);
    let new_max = old_max.max(max);
    // SAFETY: the caller enabled the instruction set; loads and stores are of chunks of 16.
    unsafe {
        let old_scale = L::exp(L::splat(old_max - new_max));
        let scale = L::exp(L::splat(max - new_max));
        for (out, values) in args.out.chunks_exact_mut(16).zip(args.values.chunks_exact(16)) {
            let old = L::mul(L::load_f32(out.as_ptr()), old_scale);
            L::store(out.as_mut_ptr(), L::fma(L::load_f32(values.as_ptr()), scale, old));
        }
        let sum = L::fma(L::splat(sum), scale, L::mul(L::splat(old_sum), old_scale));
        (new_max, L::reduce_max(sum))
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
                score = L::mul(L::splat(cap), tanh::<L>(L::mul(score, L::splat(1.0 / cap))));
            }
            if let Some((slope, distance)) = alibi {
                let distance = L::sub(L::splat(distance - start as f32), L::load_f32(steps.as_ptr()));
                score = L::sub(score, L::mul(L::splat(slope), L::abs(distance)));
            }
            L::store(chunk.as_mut_ptr(), score);
        }
    }
}

/// The hyperbolic tangent: a polynomial below 0.625 (Moshier, Cephes `tanhf`), `1 - 2/(e^2x + 1)` above; within 2^-22 of
/// the value, relatively. NaN stays NaN.
///
/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
unsafe fn tanh<L: Lanes>(x: L::V) -> L::V {
    // SAFETY: the caller enabled the instruction set.
    unsafe {
        let (zero, one, two, ten) = (L::splat(0.0), L::splat(1.0), L::splat(2.0), L::splat(10.0));
        let square = L::mul(x, x);
        let mut sum = L::splat(-5.704_988_7e-3);
        for coefficient in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
            sum = L::fma(sum, square, L::splat(coefficient));
        }
        let small = L::fma(L::mul(sum, square), x, x);
        let size = L::abs(x);
        // From 10 on the tangent is 1 in f32; the bound keeps the exponential finite.
        let bounded = L::select_lt(ten, size, ten, size);
        let large = L::sub(one, L::div(two, L::add(L::exp(L::mul(two, bounded)), one)));
        let large = L::select_lt(x, zero, L::sub(zero, large), large);
        L::select_lt(size, L::splat(0.625), small, large)
    }
}

/// Writes the entry points of an instruction set: for `n_rows` rows, `n_blocks` blocks of keys or `n_vectors` groups of 16
/// values at a time, of packed formats `n_packed` (up to 4) of both.
macro_rules! entries {
    (@tiles $lanes:ident, $features:literal,
     $($n_rows:literal: $n_blocks:literal $n_vectors:literal $n_packed:literal),+) => {
        $crate::attention::lanes::entries!(@format f32 scores_f32 values_f32 $lanes, $features, $($n_rows: $n_blocks $n_vectors),+);
        $crate::attention::lanes::entries!(@format f16 scores_f16 values_f16 $lanes, $features, $($n_rows: $n_blocks $n_vectors),+);
        $crate::attention::lanes::entries!(@format Q8 scores_q8 values_q8 $lanes, $features, $($n_rows: $n_blocks $n_vectors),+);
        $crate::attention::lanes::entries!(@format Q4 scores_q4 values_q4 $lanes, $features, $($n_rows: $n_packed $n_packed),+);
        $crate::attention::lanes::entries!(@format Q2 scores_q2 values_q2 $lanes, $features, $($n_rows: $n_packed $n_packed),+);

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
                // SAFETY: the features are enabled here, and `Table` checked the arguments.
                $($n_rows => unsafe { lanes::scores::<$lanes, $format, $n_rows, $n_blocks>(args) },)+
                n_rows => unreachable!("{n_rows} rows in a chunk"),
            }
        }

        #[target_feature(enable = $features)]
        fn $values(args: &mut ValueArgs<'_>) {
            match args.n_rows {
                // SAFETY: the features are enabled here, and `Table` checked the arguments.
                $($n_rows => unsafe { lanes::values::<$lanes, $format, $n_rows, $n_vectors>(args) },)+
                n_rows => unreachable!("{n_rows} rows in a chunk"),
            }
        }
    };
    (@plain $name:ident $module:ident $args:ident $result:ty, $lanes:ident, $features:literal) => {
        #[target_feature(enable = $features)]
        pub(super) fn $name(args: &mut $args<'_>) -> $result {
            // SAFETY: the features are enabled here, and `Table` checked the arguments.
            unsafe { $module::$name::<$lanes>(args) }
        }
    };
    ($lanes:ident, $features:literal, $($tiles:tt)+) => {
        $crate::attention::lanes::entries!(@tiles $lanes, $features, $($tiles)+);
        $crate::attention::lanes::entries!(@plain softmax lanes SoftmaxArgs (), $lanes, $features);
        $crate::attention::lanes::entries!(@plain fold lanes FoldArgs (f32, f32), $lanes, $features);
        $crate::attention::lanes::entries!(@plain mins quant MinArgs (), $lanes, $features);
        $crate::attention::lanes::entries!(@plain quantize quantize QuantizeArgs (), $lanes, $features);
        $crate::attention::lanes::entries!(@plain dequantize quantize DequantizeArgs (), $lanes, $features);
    };
}
pub(super) use entries;
