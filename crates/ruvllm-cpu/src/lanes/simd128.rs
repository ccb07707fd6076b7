//! WebAssembly's simd128: 16 floats are four registers.
//!
//! There is no fused multiply-add without relaxed SIMD, whose result depends on the machine: [`Lanes::fma`] and its like round
//! twice here, so results differ from other instruction sets' in the last bits, and are the same in every browser.

use super::Lanes;
use half::f16;
use std::arch::wasm32::*;

/// Four registers.
pub struct WasmQuads;

/// Applies an operation to each of four registers.
macro_rules! each {
    ($op:ident($($x:ident),+)) => {
        [$op($($x[0]),+), $op($($x[1]),+), $op($($x[2]),+), $op($($x[3]),+)]
    };
}

/// Converts the f16 in the lower halves of four lanes. Subnormals, infinities and NaN are kept.
#[inline(always)]
pub fn widen_f16(halves: v128) -> v128 {
    let magnitude = v128_and(halves, u32x4_splat(0x7fff));
    // The exponent's bias grows by 112: a product by 2^112, which is exact for subnormals as well.
    let floats = f32x4_mul(u32x4_shl(magnitude, 13), f32x4_splat(f32::from_bits(0x7780_0000)));
    let not_finite = v128_and(u32x4_ge(magnitude, u32x4_splat(0x7c00)), u32x4_splat(0x7f80_0000));
    let sign = u32x4_shl(v128_and(halves, u32x4_splat(0x8000)), 16);
    v128_or(v128_or(floats, not_finite), sign)
}

/// Adds up the four lanes: neighbours of halves, then these.
#[inline(always)]
pub fn sum4(x: v128) -> f32 {
    let halves = f32x4_add(x, i32x4_shuffle::<2, 3, 0, 1>(x, x));
    f32x4_extract_lane::<0>(halves) + f32x4_extract_lane::<1>(halves)
}

/// Returns 16 unsigned bytes as four vectors of integers.
#[inline(always)]
fn widen_u8(x: v128) -> [v128; 4] {
    let (low, high) = (u16x8_extend_low_u8x16(x), u16x8_extend_high_u8x16(x));
    [
        u32x4_extend_low_u16x8(low),
        u32x4_extend_high_u16x8(low),
        u32x4_extend_low_u16x8(high),
        u32x4_extend_high_u16x8(high),
    ]
}

/// Returns 16 signed bytes as four vectors of floats.
#[inline(always)]
pub fn widen_i8(x: v128) -> [v128; 4] {
    let (low, high) = (i16x8_extend_low_i8x16(x), i16x8_extend_high_i8x16(x));
    [
        i32x4_extend_low_i16x8(low),
        i32x4_extend_high_i16x8(low),
        i32x4_extend_low_i16x8(high),
        i32x4_extend_high_i16x8(high),
    ]
    .map(|x| f32x4_convert_i32x4(x))
}

/// Returns the lower 16 bits of eight lanes.
#[inline(always)]
fn low_halves(a: v128, b: v128) -> v128 {
    i16x8_shuffle::<0, 2, 4, 6, 8, 10, 12, 14>(a, b)
}

/// [`Lanes::times_power`] of one register, by two factors of half the power each.
#[inline(always)]
fn times_power(x: v128, n: v128) -> v128 {
    let n = i32x4_trunc_sat_f32x4(n);
    let half = i32x4_shr(n, 1);
    let power = |n| i32x4_shl(i32x4_add(n, i32x4_splat(127)), 23);
    f32x4_mul(f32x4_mul(x, power(half)), power(i32x4_sub(n, half)))
}

#[inline(always)]
fn negated(x: [v128; 4]) -> [v128; 4] {
    each!(f32x4_neg(x))
}

#[inline(always)]
fn product(a: [v128; 4], b: [v128; 4]) -> [v128; 4] {
    each!(f32x4_mul(a, b))
}

#[inline(always)]
fn total(a: [v128; 4], b: [v128; 4]) -> [v128; 4] {
    each!(f32x4_add(a, b))
}

// SAFETY: each function is what its name says, of four times 4 lanes.
unsafe impl Lanes for WasmQuads {
    type V = [v128; 4];
    type U = [v128; 4];
    const REGISTERS: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> [v128; 4] {
        [f32x4_splat(x); 4]
    }

    #[inline(always)]
    unsafe fn load_f32(from: *const f32) -> [v128; 4] {
        let from: *const v128 = from.cast();
        // SAFETY: 16 elements are there, as the caller says.
        unsafe { [v128_load(from), v128_load(from.add(1)), v128_load(from.add(2)), v128_load(from.add(3))] }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> [v128; 4] {
        // SAFETY: 16 elements are there, as the caller says.
        unsafe { Self::load_u16(from.cast()) }.map(widen_f16)
    }

    #[inline(always)]
    unsafe fn load_twice(from: *const f32) -> [v128; 4] {
        let from: *const v128 = from.cast();
        // SAFETY: 8 elements are there, as the caller says.
        let (a, b) = unsafe { (v128_load(from), v128_load(from.add(1))) };
        [
            i32x4_shuffle::<0, 0, 1, 1>(a, a),
            i32x4_shuffle::<2, 2, 3, 3>(a, a),
            i32x4_shuffle::<0, 0, 1, 1>(b, b),
            i32x4_shuffle::<2, 2, 3, 3>(b, b),
        ]
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, x: [v128; 4]) {
        let to: *mut v128 = to.cast();
        for (i, x) in x.into_iter().enumerate() {
            // SAFETY: 16 places are there, as the caller says.
            unsafe { v128_store(to.add(i), x) };
        }
    }

    #[inline(always)]
    unsafe fn swap_pairs(x: [v128; 4]) -> [v128; 4] {
        x.map(|x| i32x4_shuffle::<1, 0, 3, 2>(x, x))
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> [v128; 4] {
        // SAFETY: 16 elements are there, as the caller says.
        widen_i8(unsafe { v128_load(from.cast()) })
    }

    #[inline(always)]
    unsafe fn load_u16(from: *const u8) -> [v128; 4] {
        let from: *const v128 = from.cast();
        // SAFETY: 16 elements are there, as the caller says; loads need no alignment.
        let (a, b) = unsafe { (v128_load(from), v128_load(from.add(1))) };
        [u32x4_extend_low_u16x8(a), u32x4_extend_high_u16x8(a), u32x4_extend_low_u16x8(b), u32x4_extend_high_u16x8(b)]
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> [v128; 4] {
        // SAFETY: 16 elements are there, as the caller says.
        widen_u8(unsafe { v128_load(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store_u16(to: *mut u8, x: [v128; 4]) {
        let to: *mut v128 = to.cast();
        // SAFETY: 16 places are there, as the caller says; stores need no alignment.
        unsafe {
            v128_store(to, low_halves(x[0], x[1]));
            v128_store(to.add(1), low_halves(x[2], x[3]));
        }
    }

    #[inline(always)]
    unsafe fn store_u8(to: *mut u8, x: [v128; 4]) {
        let (low, high) = (low_halves(x[0], x[1]), low_halves(x[2], x[3]));
        let bytes = i8x16_shuffle::<0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30>(low, high);
        // SAFETY: 16 places are there, as the caller says.
        unsafe { v128_store(to.cast(), bytes) };
    }

    #[inline(always)]
    unsafe fn shift_right(x: [v128; 4], n: u32) -> [v128; 4] {
        x.map(|x| u32x4_shr(x, n))
    }

    #[inline(always)]
    unsafe fn code<const BITS: u32>(x: [v128; 4], at: u32) -> [v128; 4] {
        x.map(|x| f32x4_convert_i32x4(v128_and(u32x4_shr(x, BITS * at), u32x4_splat((1 << BITS) - 1))))
    }

    #[inline(always)]
    unsafe fn insert(x: [v128; 4], code: [v128; 4], shift: u32) -> [v128; 4] {
        let code = code.map(|code| u32x4_shl(code, shift));
        each!(v128_or(x, code))
    }

    #[inline(always)]
    unsafe fn round(a: [v128; 4]) -> [v128; 4] {
        a.map(|a| i32x4_trunc_sat_f32x4(f32x4_nearest(a)))
    }

    #[inline(always)]
    unsafe fn fma(a: [v128; 4], b: [v128; 4], c: [v128; 4]) -> [v128; 4] {
        total(product(a, b), c)
    }

    #[inline(always)]
    unsafe fn fms(a: [v128; 4], b: [v128; 4], c: [v128; 4]) -> [v128; 4] {
        total(product(a, b), negated(c))
    }

    #[inline(always)]
    unsafe fn fma_alternating(a: [v128; 4], b: [v128; 4], c: [v128; 4]) -> [v128; 4] {
        let signs = [f32x4(-1.0, 1.0, -1.0, 1.0); 4];
        total(product(a, b), product(c, signs))
    }

    #[inline(always)]
    unsafe fn add(a: [v128; 4], b: [v128; 4]) -> [v128; 4] {
        total(a, b)
    }

    #[inline(always)]
    unsafe fn sub(a: [v128; 4], b: [v128; 4]) -> [v128; 4] {
        each!(f32x4_sub(a, b))
    }

    #[inline(always)]
    unsafe fn mul(a: [v128; 4], b: [v128; 4]) -> [v128; 4] {
        product(a, b)
    }

    #[inline(always)]
    unsafe fn div(a: [v128; 4], b: [v128; 4]) -> [v128; 4] {
        each!(f32x4_div(a, b))
    }

    #[inline(always)]
    unsafe fn abs(a: [v128; 4]) -> [v128; 4] {
        each!(f32x4_abs(a))
    }

    #[inline(always)]
    unsafe fn max(a: [v128; 4], b: [v128; 4]) -> [v128; 4] {
        // `pmax(b, a)` is `a` where it is larger, else `b`.
        each!(f32x4_pmax(b, a))
    }

    #[inline(always)]
    unsafe fn min(a: [v128; 4], b: [v128; 4]) -> [v128; 4] {
        each!(f32x4_pmin(b, a))
    }

    #[inline(always)]
    unsafe fn whole(a: [v128; 4]) -> [v128; 4] {
        each!(f32x4_nearest(a))
    }

    #[inline(always)]
    unsafe fn times_power(x: [v128; 4], n: [v128; 4]) -> [v128; 4] {
        each!(times_power(x, n))
    }

    #[inline(always)]
    unsafe fn reduce_max(a: [v128; 4]) -> f32 {
        let most = f32x4_max(f32x4_max(a[0], a[1]), f32x4_max(a[2], a[3]));
        let halves = f32x4_max(most, i32x4_shuffle::<2, 3, 0, 1>(most, most));
        f32x4_extract_lane::<0>(f32x4_max(halves, i32x4_shuffle::<1, 0, 3, 2>(halves, halves)))
    }

    #[inline(always)]
    unsafe fn reduce_add(a: [v128; 4]) -> f32 {
        sum4(f32x4_add(f32x4_add(a[0], a[1]), f32x4_add(a[2], a[3])))
    }

    #[inline(always)]
    unsafe fn select_lt(a: [v128; 4], b: [v128; 4], x: [v128; 4], y: [v128; 4]) -> [v128; 4] {
        let below = each!(f32x4_lt(a, b));
        each!(v128_bitselect(x, y, below))
    }
}
