//! The register tiles, written once over groups of 16 floats.

use super::{ExpandArgs, Factor, Q8_BLOCK, ShrinkArgs};
use crate::lanes::Lanes;
use half::f16;

/// A factor's elements, by address.
///
/// # Safety
/// `load` reads 16 elements from `at` on, which must exist; the instruction set of `L` must be enabled.
unsafe trait Elements: Copy {
    unsafe fn load<L: Lanes>(self, at: usize) -> L::V;
}

// SAFETY: reads exactly 16 elements.
unsafe impl Elements for *const f32 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(self, at: usize) -> L::V {
        // SAFETY: the caller's promise.
        unsafe { L::load_f32(self.add(at)) }
    }
}

// SAFETY: reads exactly 16 elements.
unsafe impl Elements for *const f16 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(self, at: usize) -> L::V {
        // SAFETY: the caller's promise.
        unsafe { L::load_f16(self.add(at)) }
    }
}

/// Quants and their scales.
#[derive(Clone, Copy)]
struct Q8(*const i8, *const f32);

// SAFETY: reads exactly 16 elements, of one block, and its scale.
unsafe impl Elements for Q8 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(self, at: usize) -> L::V {
        // SAFETY: the caller's promise; there is a scale for every block.
        unsafe { L::mul(L::load_i8(self.0.add(at).cast()), L::splat(*self.1.add(at / Q8_BLOCK))) }
    }
}

/// Calls `$run` with the factor's elements.
macro_rules! with_elements {
    ($factor:expr, |$elements:ident| $run:expr) => {
        match $factor {
            Factor::F32(values) => {
                let $elements = values.as_ptr();
                $run
            }
            Factor::F16(values) => {
                let $elements = values.as_ptr();
                $run
            }
            Factor::Q8 { quants, scales } => {
                let $elements = Q8(quants.as_ptr(), scales.as_ptr());
                $run
            }
        }
    };
}

/// Shrinks every row: `M` rows by `R` ranks at a time, single rows by 8 ranks.
///
/// # Safety
/// The instruction set of `L` is enabled, and `args` were checked.
#[inline(always)]
pub(super) unsafe fn shrink<L: Lanes, const M: usize, const R: usize>(args: &mut ShrinkArgs<'_>) {
    // SAFETY: the caller's promise.
    with_elements!(args.a, |a| unsafe { shrink_rows::<L, _, M, R>(args, a) });
}

/// # Safety
/// As for [`shrink`].
#[inline(always)]
unsafe fn shrink_rows<L: Lanes, E: Elements, const M: usize, const R: usize>(args: &mut ShrinkArgs<'_>, a: E) {
    let (n, mut row) = (args.x.len() / args.k, 0);
    while row < n {
        let step = if row + M <= n { M } else { 1 };
        let mut i = 0;
        while i < args.rank {
            // SAFETY: `step` rows and the ranks of the tile exist; the rest is the caller's promise.
            i += unsafe {
                match (step == 1, args.rank - i) {
                    (false, n) if n >= R => shrink_tile::<L, E, M, R>(args, a, row, i),
                    (false, _) => shrink_tile::<L, E, M, 1>(args, a, row, i),
                    (true, 8..) => shrink_tile::<L, E, 1, 8>(args, a, row, i),
                    (true, 4..) => shrink_tile::<L, E, 1, 4>(args, a, row, i),
                    (true, _) => shrink_tile::<L, E, 1, 1>(args, a, row, i),
                }
            };
        }
        row += step;
    }
}

/// # Safety
/// As for [`shrink`], with `M` rows from `row` on and `R` ranks from `i` on.
#[inline(always)]
unsafe fn shrink_tile<L: Lanes, E: Elements, const M: usize, const R: usize>(
    args: &mut ShrinkArgs<'_>,
    a: E,
    row: usize,
    i: usize,
) -> usize {
    let (k, stride, whole) = (args.k, args.stride, args.k / 16 * 16);
    // SAFETY: the caller enabled the instruction set. `at + 16 <= whole <= k` within rows of `x`; rows of `a` have
    // `stride >= k` rounded up to 16 elements.
    unsafe {
        let mut acc = [[L::splat(0.0); M]; R];
        let x = args.x.as_ptr().add(row * k);
        for at in (0..whole).step_by(16) {
            let x: [L::V; M] = std::array::from_fn(|m| L::load_f32(x.add(m * k + at)));
            for (r, acc) in acc.iter_mut().enumerate() {
                let a = a.load::<L>((i + r) * stride + at);
                for m in 0..M {
                    acc[m] = L::fma(a, x[m], acc[m]);
                }
            }
        }
        if whole < k {
            let mut padded = [[0.0; 16]; M];
            for (m, padded) in padded.iter_mut().enumerate() {
                padded[..k - whole].copy_from_slice(&args.x[(row + m) * k + whole..(row + m + 1) * k]);
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let a = a.load::<L>((i + r) * stride + whole);
                for m in 0..M {
                    acc[m] = L::fma(a, L::load_f32(padded[m].as_ptr()), acc[m]);
                }
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            for (m, &acc) in acc.iter().enumerate() {
                args.t[(row + m) * args.rank + i + r] = L::reduce_add(acc);
            }
        }
    }
    R
}

/// Expands every row: `M` rows by `C` vectors of columns at a time, single rows by 8 vectors.
///
/// # Safety
/// The instruction set of `L` is enabled, and `args` were checked.
#[inline(always)]
pub(super) unsafe fn expand<L: Lanes, const M: usize, const C: usize, const C1: usize>(args: &mut ExpandArgs<'_>) {
    // SAFETY: the caller's promise.
    with_elements!(args.b, |b| unsafe { expand_rows::<L, _, M, C, C1>(args, b) });
}

/// # Safety
/// As for [`expand`].
#[inline(always)]
unsafe fn expand_rows<L: Lanes, E: Elements, const M: usize, const C: usize, const C1: usize>(
    args: &mut ExpandArgs<'_>,
    b: E,
) {
    let (n, n_out, mut row) = (args.y.len() / args.n_out, args.n_out, 0);
    while row < n {
        let step = if row + M <= n { M } else { 1 };
        let mut j = 0;
        while j + 16 <= n_out {
            // SAFETY: `step` rows and the columns of the tile exist; the rest is the caller's promise.
            j += unsafe {
                match (step == 1, (n_out - j) / 16) {
                    (false, n) if n >= C => expand_tile::<L, E, M, C>(args, b, row, j),
                    (false, _) => expand_tile::<L, E, M, 1>(args, b, row, j),
                    (true, n) if n >= C1 => expand_tile::<L, E, 1, C1>(args, b, row, j),
                    (true, _) => expand_tile::<L, E, 1, 1>(args, b, row, j),
                }
            };
        }
        if j < n_out {
            for row in row..row + step {
                // SAFETY: as above; the last columns go through a buffer of 16.
                unsafe { expand_end::<L, E>(args, b, row, j) };
            }
        }
        row += step;
    }
}

/// # Safety
/// As for [`expand`], with `M` rows from `row` on and `16·C` columns from `j` on.
#[inline(always)]
unsafe fn expand_tile<L: Lanes, E: Elements, const M: usize, const C: usize>(
    args: &mut ExpandArgs<'_>,
    b: E,
    row: usize,
    j: usize,
) -> usize {
    let (rank, n_out) = (args.rank, args.n_out);
    let y = args.y.as_mut_ptr();
    // SAFETY: the caller enabled the instruction set, and `j + 16·C <= n_out` within rows of `y`, which are at most as
    // long as those of `b`; there are `rank` values of `t` a row.
    unsafe {
        let mut acc: [[L::V; C]; M] =
            std::array::from_fn(|m| std::array::from_fn(|c| L::load_f32(y.add((row + m) * n_out + j + 16 * c))));
        for i in 0..rank {
            let b: [L::V; C] = std::array::from_fn(|c| b.load::<L>(i * args.stride + j + 16 * c));
            for (m, acc) in acc.iter_mut().enumerate() {
                let t = L::splat(*args.t.get_unchecked((row + m) * rank + i));
                for c in 0..C {
                    acc[c] = L::fma(t, b[c], acc[c]);
                }
            }
        }
        for (m, acc) in acc.iter().enumerate() {
            for (c, &acc) in acc.iter().enumerate() {
                L::store(y.add((row + m) * n_out + j + 16 * c), acc);
            }
        }
    }
    16 * C
}

/// The last columns of a row, fewer than 16.
///
/// # Safety
/// As for [`expand`].
#[inline(always)]
unsafe fn expand_end<L: Lanes, E: Elements>(args: &mut ExpandArgs<'_>, b: E, row: usize, j: usize) {
    let y = &mut args.y[row * args.n_out + j..(row + 1) * args.n_out];
    let mut padded = [0.0; 16];
    padded[..y.len()].copy_from_slice(y);
    // SAFETY: the caller enabled the instruction set; rows of `b` are padded to whole vectors.
    unsafe {
        let mut acc = L::load_f32(padded.as_ptr());
        for (i, &t) in args.t[row * args.rank..(row + 1) * args.rank].iter().enumerate() {
            acc = L::fma(L::splat(t), b.load::<L>(i * args.stride + j), acc);
        }
        L::store(padded.as_mut_ptr(), acc);
    }
    y.copy_from_slice(&padded[..y.len()]);
}
