//! The exponential and the hyperbolic tangent of 16 floats.
//!
//! ```text
//! e^x:     n = round(x·log2 e);  r = x - n·ln 2            |r| <= ln 2 / 2
//!          e^x = 2^n · (1 + r + r²·P(r))                   P of degree 5
//! tanh x:  x + x³·R(x²)                                    |x| < 0.625
//!          ±(1 - e^-2|x|) / (1 + e^-2|x|)                  otherwise
//! ```
//! - `ln 2` is split in two so that `n·LN_2_HI` is exact: `r` keeps all its bits (Cody & Waite 1980).
//! - `2^n` is applied in two factors (one `scalef` with AVX-512), so results below the normal range lose precision
//!   gradually and reach 0 instead of wrapping.
//! - `P` and `R` are from Cephes, `expf` and `tanhf` (S. L. Moshier).

use super::Lanes;

/// Below this the exponential is 0 (half the smallest subnormal is e^-103.97).
const X_MIN: f32 = -104.0;
/// Above 88.73 the exponential is infinite; larger arguments are cut to this one.
const X_MAX: f32 = 89.0;
/// The upper 12 bits of ln 2: its product with any `n` here is exact.
const LN_2_HI: f32 = 0.693_359_4;
/// `ln 2 - LN_2_HI`.
const LN_2_LO: f32 = -2.121_944_4e-4;
/// `P`, highest power first.
const P: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_66, 0.5];
/// Below this the tangent is a polynomial.
const TANH_SMALL: f32 = 0.625;
/// `R`, highest power first.
const R: [f32; 5] = [-5.704_988_7e-3, 2.063_908_8e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1];

/// `e^x`, within 2 ulp; a NaN stays NaN.
///
/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
pub unsafe fn exp<L: Lanes>(x: L::V) -> L::V {
    // SAFETY: the caller's.
    unsafe { side_by_side::<L, 1>([x])[0] }
}

/// [`exp`] of each, side by side as far as registers reach: each of its steps waits for the one before.
///
/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
pub unsafe fn exps<L: Lanes, const N: usize>(mut x: [L::V; N]) -> [L::V; N] {
    // SAFETY: the caller's.
    unsafe {
        if N * L::REGISTERS <= 4 {
            return side_by_side::<L, N>(x);
        }
        for x in &mut x {
            *x = exp::<L>(*x);
        }
    }
    x
}

#[inline(always)]
unsafe fn side_by_side<L: Lanes, const N: usize>(mut x: [L::V; N]) -> [L::V; N] {
    // SAFETY: the caller enabled the instruction set.
    unsafe {
        let (mut n, one) = ([L::splat(0.0); N], L::splat(1.0));
        for (x, n) in x.iter_mut().zip(&mut n) {
            *x = L::max(L::splat(X_MIN), L::min(L::splat(X_MAX), *x)); // a NaN stays
            *n = L::whole(L::mul(*x, L::splat(std::f32::consts::LOG2_E)));
        }
        for part in [-LN_2_HI, -LN_2_LO] {
            for (r, n) in x.iter_mut().zip(&n) {
                *r = L::fma(*n, L::splat(part), *r);
            }
        }
        let r = x;
        let mut p = [L::splat(P[0]); N];
        for &coefficient in &P[1..] {
            for (p, r) in p.iter_mut().zip(&r) {
                *p = L::fma(*p, *r, L::splat(coefficient));
            }
        }
        for ((p, r), n) in p.iter_mut().zip(&r).zip(&n) {
            *p = L::times_power(L::add(L::fma(*p, L::mul(*r, *r), *r), one), *n);
        }
        p
    }
}

/// The hyperbolic tangent, within 4 ulp; a NaN stays NaN.
///
/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
unsafe fn tanh<L: Lanes>(x: L::V) -> L::V {
    // SAFETY: the caller enabled the instruction set.
    unsafe {
        let (zero, one, size, square) = (L::splat(0.0), L::splat(1.0), L::abs(x), L::mul(x, x));
        let small = L::fma(L::mul(polynomial::<L>(&R, square), square), x, x);
        let e = exp::<L>(L::mul(size, L::splat(-2.0)));
        let large = L::div(L::sub(one, e), L::add(one, e));
        let large = L::select_lt(x, zero, L::sub(zero, large), large);
        L::select_lt(size, L::splat(TANH_SMALL), small, large)
    }
}

/// `cap·tanh(x/cap)`
///
/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
pub unsafe fn softcap<L: Lanes>(x: L::V, cap: f32) -> L::V {
    // SAFETY: the caller's.
    unsafe { L::mul(L::splat(cap), tanh::<L>(L::mul(x, L::splat(1.0 / cap)))) }
}

/// The polynomial of `coefficients`, highest power first, at `x`.
///
/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
pub unsafe fn polynomial<L: Lanes>(coefficients: &[f32], x: L::V) -> L::V {
    // SAFETY: the caller enabled the instruction set.
    unsafe {
        let mut sum = L::splat(coefficients[0]);
        for &coefficient in &coefficients[1..] {
            sum = L::fma(sum, x, L::splat(coefficient));
        }
        sum
    }
}
