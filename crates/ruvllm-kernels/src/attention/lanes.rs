//! The register kernels, written once over groups of 16 floats; each instruction set says what its 16 floats are.

use super::{BLOCK_TOKENS, FoldArgs, ScoreArgs, SoftmaxArgs, ValueArgs, ahead_of};
use half::f16;

/// 16 floats in registers: one AVX-512 vector, two of AVX2, four of NEON.
///
/// All functions are `#[inline(always)]`, so that they become part of the caller, which enables the instruction set.
///
/// # Safety
/// Callers enable the instruction set; pointers lead 16 elements, at any alignment.
pub(super) unsafe trait Lanes {
    type V: Copy;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load_f32(from: *const f32) -> Self::V;
    unsafe fn load_f16(from: *const f16) -> Self::V;
    unsafe fn store(to: *mut f32, x: Self::V);
    /// `a·b + c`, rounded once.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn abs(a: Self::V) -> Self::V;
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn exp(a: Self::V) -> Self::V;
    /// The largest lane.
    unsafe fn reduce_max(a: Self::V) -> f32;
    /// The sum of all lanes, in an order that is always the same.
    unsafe fn reduce_add(a: Self::V) -> f32;
    /// Asks for the cache line at `from`, which may lead anywhere.
    unsafe fn prefetch<T>(from: *const T);
    /// Lane by lane, `x` where `a < b`, else `y`.
    unsafe fn select_lt(a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;
}

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
    64 / size_of::<T>()
}

/// Scores of `R` rows, `B` blocks at a time; `R·B` accumulators, one per row and 16 positions.
///
/// # Safety
/// The instruction set of `L` is enabled, and `args` were checked.
#[inline(always)]
pub(super) unsafe fn scores<L: Lanes, T: Loaded, const R: usize, const B: usize>(args: &mut ScoreArgs<'_>) {
    let (k_dim, q, out) = (args.shape.k_dim, args.q.as_ptr(), args.out.as_mut_ptr());
    let (q_stride, n_blocks) = (args.shape.k_stride(), args.blocks.len());
    let columns_per_line = line::<T>() / BLOCK_TOKENS;
    for first in (0..n_blocks).step_by(B) {
        // Past the last block, it is scored again and dropped.
        let keys: [*const T; B] =
            std::array::from_fn(|b| args.blocks[(first + b).min(n_blocks - 1)].bytes.as_ptr().cast());
        let ahead: [*const T; B] = std::array::from_fn(|b| ahead_of(args.ahead, first + b, keys[b]));
        // SAFETY: the caller enabled the instruction set.
        let mut sums = [[unsafe { L::splat(0.0) }; B]; R];
        let mut d = 0;
        while d + columns_per_line <= k_dim {
            for ahead in &ahead {
                // SAFETY: the caller enabled the instruction set.
                unsafe { L::prefetch(ahead.wrapping_add(d * BLOCK_TOKENS)) };
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
        for (r, sums) in sums.iter().enumerate() {
            for (b, &sum) in sums.iter().enumerate().take(n_blocks - first) {
                // SAFETY: `out` has 16 places per block in each row.
                unsafe { L::store(out.add(r * args.out_stride + (first + b) * BLOCK_TOKENS), sum) };
            }
        }
    }
}

/// Adds column `d` of `B` blocks to the scores of `R` rows; `q`: that column's queries, rows `q_stride` apart.
///
/// # Safety
/// As for [`scores`]; `d` is less than `k_dim`.
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

/// Weighted values of `R` rows, `W` vectors at a time, then single ones.
///
/// # Safety
/// The instruction set of `L` is enabled, and `args` were checked.
#[inline(always)]
pub(super) unsafe fn values<L: Lanes, T: Loaded, const R: usize, const W: usize>(args: &mut ValueArgs<'_>) {
    let (mut column, v_stride) = (0, args.shape.v_stride());
    while column + 16 * W <= v_stride {
        // SAFETY: the columns lie inside a row; the rest is the caller's.
        unsafe { values_at::<L, T, R, W>(args, column) };
        column += 16 * W;
    }
    while column < v_stride {
        // SAFETY: as above; a row is whole vectors.
        unsafe { values_at::<L, T, R, 1>(args, column) };
        column += 16;
    }
}

/// Columns `column .. column + 16 W` of [`values`]; `R·W` accumulators.
///
/// # Safety
/// As for [`values`]; the columns lie inside a row.
#[inline(always)]
unsafe fn values_at<L: Lanes, T: Loaded, const R: usize, const W: usize>(args: &mut ValueArgs<'_>, column: usize) {
    let (v_stride, p, out) = (args.shape.v_stride(), args.p.as_ptr(), args.out.as_mut_ptr());
    // SAFETY: the caller enabled the instruction set.
    let mut sums = [[unsafe { L::splat(0.0) }; W]; R];
    for (r, sums) in sums.iter_mut().enumerate() {
        for (w, sum) in sums.iter_mut().enumerate() {
            // SAFETY: `out` has `R` rows of `v_stride`.
            *sum = unsafe { L::load_f32(out.add(r * v_stride + column + 16 * w)) };
        }
    }
    let mut token = args.tokens.start;
    while token < args.tokens.end {
        let block = token / BLOCK_TOKENS;
        let end = args.tokens.end.min((block + 1) * BLOCK_TOKENS);
        let first: *const T = args.blocks[block].bytes.as_ptr().cast();
        // SAFETY: the block's head has 16 rows of `v_stride`.
        let mut v = unsafe { first.add(token % BLOCK_TOKENS * v_stride + column) };
        let mut ahead = ahead_of(args.ahead, block, v).wrapping_add(column);
        while token < end {
            for line in 0..(16 * W).div_ceil(line::<T>()) {
                // SAFETY: the caller enabled the instruction set.
                unsafe { L::prefetch(ahead.wrapping_add(line * self::line::<T>())) };
            }
            ahead = ahead.wrapping_add(v_stride);
            let mut row = [sums[0][0]; W];
            for (w, row) in row.iter_mut().enumerate() {
                // SAFETY: as above.
                *row = unsafe { T::load::<L>(v.add(16 * w)) };
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                // SAFETY: every row of `p` has the tokens.
                let weight = unsafe { L::splat(*p.add(r * args.p_stride + token)) };
                for (sum, &value) in sums.iter_mut().zip(&row) {
                    // SAFETY: the caller enabled the instruction set.
                    *sum = unsafe { L::fma(weight, value, *sum) };
                }
            }
            v = v.wrapping_add(v_stride);
            token += 1;
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        for (w, &sum) in sums.iter().enumerate() {
            // SAFETY: as for the loads.
            unsafe { L::store(out.add(r * v_stride + column + 16 * w), sum) };
        }
    }
}

/// The softmax of a row's span; 16 partial sums by position modulo 16, then added.
///
/// # Safety
/// The instruction set of `L` is enabled, and `args` were checked.
#[inline(always)]
pub(super) unsafe fn softmax<L: Lanes>(args: &mut SoftmaxArgs<'_>) -> (f32, f32) {
    if args.softcap.is_some() || args.alibi.is_some() {
        // SAFETY: the caller keeps the contract.
        unsafe { bend::<L>(args) };
    }
    args.scores[..args.visible.start].fill(f32::NEG_INFINITY);
    args.scores[args.visible.end..].fill(f32::NEG_INFINITY);
    // SAFETY: the caller enabled the instruction set; loads and stores are of chunks of 16.
    unsafe {
        let mut max = L::splat(f32::NEG_INFINITY);
        for chunk in args.scores.chunks_exact(16) {
            max = L::max(max, L::load_f32(chunk.as_ptr()));
        }
        let max = L::reduce_max(max);
        let (shift, mut sum) = (L::splat(max), L::splat(0.0));
        for chunk in args.scores.chunks_exact_mut(16) {
            let weight = L::exp(L::sub(L::load_f32(chunk.as_ptr()), shift));
            L::store(chunk.as_mut_ptr(), weight);
            sum = L::add(sum, weight);
        }
        (max, L::reduce_add(sum))
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

/// The soft cap and ALiBi.
///
/// # Safety
/// As for [`softmax`].
#[inline(always)]
unsafe fn bend<L: Lanes>(args: &mut SoftmaxArgs<'_>) {
    let steps: [f32; 16] = std::array::from_fn(|i| i as f32);
    for (i, chunk) in args.scores.chunks_exact_mut(16).enumerate() {
        // SAFETY: the caller enabled the instruction set; loads and stores are of chunks of 16.
        unsafe {
            let mut score = L::load_f32(chunk.as_ptr());
            if let Some(cap) = args.softcap {
                score = L::mul(L::splat(cap), tanh::<L>(L::mul(score, L::splat(1.0 / cap))));
            }
            if let Some((slope, distance)) = args.alibi {
                let distance = L::sub(L::splat(distance - (16 * i) as f32), L::load_f32(steps.as_ptr()));
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
/// values at a time.
macro_rules! entries {
    ($lanes:ident, $features:literal, $($n_rows:literal: $n_blocks:literal $n_vectors:literal),+) => {
        $crate::attention::lanes::entries!(@rows scores_f32 scores ScoreArgs f32 $lanes, $features, $($n_rows: $n_blocks),+);
        $crate::attention::lanes::entries!(@rows scores_f16 scores ScoreArgs f16 $lanes, $features, $($n_rows: $n_blocks),+);
        $crate::attention::lanes::entries!(@rows values_f32 values ValueArgs f32 $lanes, $features, $($n_rows: $n_vectors),+);
        $crate::attention::lanes::entries!(@rows values_f16 values ValueArgs f16 $lanes, $features, $($n_rows: $n_vectors),+);

        /// Rows the kernels take at most.
        pub(super) const CHUNK_ROWS: usize = [$($n_rows),+].len();
        /// Scores by format.
        pub(super) const SCORES: [unsafe fn(&mut ScoreArgs<'_>); 2] = [scores_f32, scores_f16];
        /// Values by format.
        pub(super) const VALUES: [unsafe fn(&mut ValueArgs<'_>); 2] = [values_f32, values_f16];

        #[target_feature(enable = $features)]
        pub(super) fn softmax(args: &mut SoftmaxArgs<'_>) -> (f32, f32) {
            // SAFETY: the features are enabled here, and `Table::softmax` checked the arguments.
            unsafe { lanes::softmax::<$lanes>(args) }
        }

        #[target_feature(enable = $features)]
        pub(super) fn fold(args: &mut FoldArgs<'_>) -> (f32, f32) {
            // SAFETY: the features are enabled here, and `Table::fold` checked the arguments.
            unsafe { lanes::fold::<$lanes>(args) }
        }
    };
    (@rows $name:ident $kernel:ident $args:ident $type:ident $lanes:ident, $features:literal, $($n_rows:literal: $n:literal),+) => {
        #[target_feature(enable = $features)]
        fn $name(args: &mut $args<'_>) {
            match args.n_rows {
                // SAFETY: the features are enabled here, and `Table` checked the arguments.
                $($n_rows => unsafe { lanes::$kernel::<$lanes, $type, $n_rows, $n>(args) },)+
                n_rows => unreachable!("{n_rows} rows in a chunk"),
            }
        }
    };
}
pub(super) use entries;
