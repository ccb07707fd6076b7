//! NEON: 16 floats are four registers.

use super::Lanes;
use half::f16;
use std::arch::aarch64::*;
use std::arch::asm;

/// Four registers.
pub struct NeonQuads;

/// Applies an operation to each of four registers.
macro_rules! each {
    ($op:ident($($x:ident),+)) => {
        // SAFETY: NEON is part of every aarch64 CPU.
        unsafe { [$op($($x[0]),+), $op($($x[1]),+), $op($($x[2]),+), $op($($x[3]),+)] }
    };
}

/// Converts the lower (`fcvtl`) and upper (`fcvtl2`) four halves; the intrinsics for it are not stable.
#[inline(always)]
fn widen(halves: uint16x8_t) -> [float32x4_t; 2] {
    let (low, high): (float32x4_t, float32x4_t);
    // SAFETY: both instructions are part of every aarch64 CPU and touch nothing but these registers.
    unsafe {
        asm!(
            "fcvtl {low:v}.4s, {halves:v}.4h",
            "fcvtl2 {high:v}.4s, {halves:v}.8h",
            halves = in(vreg) halves,
            low = out(vreg) low,
            high = lateout(vreg) high,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    [low, high]
}

/// [`Lanes::times_power`] of one register, by two factors of half the power each.
#[inline]
#[target_feature(enable = "neon")]
fn times_power(x: float32x4_t, n: float32x4_t) -> float32x4_t {
    let n = vcvtq_s32_f32(n);
    let half = vshrq_n_s32::<1>(n);
    let power = |n| vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n, vdupq_n_s32(127))));
    vmulq_f32(vmulq_f32(x, power(half)), power(vsubq_s32(n, half)))
}

// SAFETY: each function is what its name says, of four times 4 lanes.
unsafe impl Lanes for NeonQuads {
    type V = [float32x4_t; 4];
    type U = [uint32x4_t; 4];
    const REGISTERS: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> [float32x4_t; 4] {
        // SAFETY: NEON is part of every aarch64 CPU.
        unsafe { [vdupq_n_f32(x); 4] }
    }

    #[inline(always)]
    unsafe fn load_f32(from: *const f32) -> [float32x4_t; 4] {
        // SAFETY: 16 elements are there, as the caller says.
        unsafe { [vld1q_f32(from), vld1q_f32(from.add(4)), vld1q_f32(from.add(8)), vld1q_f32(from.add(12))] }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> [float32x4_t; 4] {
        let from: *const u16 = from.cast();
        // SAFETY: 16 elements are there, as the caller says.
        let (a, b) = unsafe { (widen(vld1q_u16(from)), widen(vld1q_u16(from.add(8)))) };
        [a[0], a[1], b[0], b[1]]
    }

    #[inline(always)]
    unsafe fn load_twice(from: *const f32) -> [float32x4_t; 4] {
        // SAFETY: 8 elements are there, as the caller says.
        unsafe {
            let (a, b) = (vld1q_f32(from), vld1q_f32(from.add(4)));
            [vzip1q_f32(a, a), vzip2q_f32(a, a), vzip1q_f32(b, b), vzip2q_f32(b, b)]
        }
    }

    #[inline(always)]
    unsafe fn swap_pairs(x: [float32x4_t; 4]) -> [float32x4_t; 4] {
        each!(vrev64q_f32(x))
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, x: [float32x4_t; 4]) {
        for (i, x) in x.into_iter().enumerate() {
            // SAFETY: 16 places are there, as the caller says.
            unsafe { vst1q_f32(to.add(4 * i), x) };
        }
    }

    #[inline(always)]
    unsafe fn fma(a: [float32x4_t; 4], b: [float32x4_t; 4], c: [float32x4_t; 4]) -> [float32x4_t; 4] {
        each!(vfmaq_f32(c, a, b))
    }

    #[inline(always)]
    unsafe fn fms(a: [float32x4_t; 4], b: [float32x4_t; 4], c: [float32x4_t; 4]) -> [float32x4_t; 4] {
        let c = each!(vnegq_f32(c));
        each!(vfmaq_f32(c, a, b))
    }

    #[inline(always)]
    unsafe fn fma_alternating(a: [float32x4_t; 4], b: [float32x4_t; 4], c: [float32x4_t; 4]) -> [float32x4_t; 4] {
        // SAFETY: NEON is part of every aarch64 CPU; 4 floats.
        let signs = [unsafe { vld1q_f32([-1.0, 1.0, -1.0, 1.0].as_ptr()) }; 4];
        let c = each!(vmulq_f32(c, signs));
        each!(vfmaq_f32(c, a, b))
    }

    #[inline(always)]
    unsafe fn add(a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        each!(vaddq_f32(a, b))
    }

    #[inline(always)]
    unsafe fn sub(a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        each!(vsubq_f32(a, b))
    }

    #[inline(always)]
    unsafe fn mul(a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        each!(vmulq_f32(a, b))
    }

    #[inline(always)]
    unsafe fn abs(a: [float32x4_t; 4]) -> [float32x4_t; 4] {
        each!(vabsq_f32(a))
    }

    #[inline(always)]
    unsafe fn max(a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        let above = each!(vcgtq_f32(a, b));
        each!(vbslq_f32(above, a, b))
    }

    #[inline(always)]
    unsafe fn min(a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        let below = each!(vcltq_f32(a, b));
        each!(vbslq_f32(below, a, b))
    }

    #[inline(always)]
    unsafe fn whole(a: [float32x4_t; 4]) -> [float32x4_t; 4] {
        each!(vrndnq_f32(a))
    }

    #[inline(always)]
    unsafe fn times_power(x: [float32x4_t; 4], n: [float32x4_t; 4]) -> [float32x4_t; 4] {
        each!(times_power(x, n))
    }

    #[inline(always)]
    unsafe fn reduce_max(a: [float32x4_t; 4]) -> f32 {
        // SAFETY: NEON is part of every aarch64 CPU.
        unsafe { vmaxvq_f32(vmaxq_f32(vmaxq_f32(a[0], a[1]), vmaxq_f32(a[2], a[3]))) }
    }

    #[inline(always)]
    unsafe fn reduce_add(a: [float32x4_t; 4]) -> f32 {
        // SAFETY: NEON is part of every aarch64 CPU.
        unsafe { vaddvq_f32(vaddq_f32(vaddq_f32(a[0], a[1]), vaddq_f32(a[2], a[3]))) }
    }

    #[inline(always)]
    unsafe fn div(a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        each!(vdivq_f32(a, b))
    }

    #[inline(always)]
    unsafe fn select_lt(
        a: [float32x4_t; 4],
        b: [float32x4_t; 4],
        x: [float32x4_t; 4],
        y: [float32x4_t; 4],
    ) -> [float32x4_t; 4] {
        let below = each!(vcltq_f32(a, b));
        each!(vbslq_f32(below, x, y))
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> [float32x4_t; 4] {
        // SAFETY: 16 elements are there, as the caller says.
        let x = unsafe {
            let x = vld1q_s8(from.cast());
            let (low, high) = (vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x));
            [vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)]
        };
        each!(vcvtq_f32_s32(x))
    }

    #[inline(always)]
    unsafe fn load_u16(from: *const u8) -> [uint32x4_t; 4] {
        // SAFETY: 16 elements are there, as the caller says; loads of bytes need no alignment.
        unsafe {
            let (low, high) = (vreinterpretq_u16_u8(vld1q_u8(from)), vreinterpretq_u16_u8(vld1q_u8(from.add(16))));
            [vmovl_u16(vget_low_u16(low)), vmovl_high_u16(low), vmovl_u16(vget_low_u16(high)), vmovl_high_u16(high)]
        }
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> [uint32x4_t; 4] {
        // SAFETY: 16 elements are there, as the caller says.
        unsafe {
            let x = vld1q_u8(from);
            let (low, high) = (vmovl_u8(vget_low_u8(x)), vmovl_high_u8(x));
            [vmovl_u16(vget_low_u16(low)), vmovl_high_u16(low), vmovl_u16(vget_low_u16(high)), vmovl_high_u16(high)]
        }
    }

    #[inline(always)]
    unsafe fn store_u16(to: *mut u8, x: [uint32x4_t; 4]) {
        // SAFETY: 16 places are there, as the caller says; stores of bytes need no alignment.
        unsafe {
            let (low, high) = (vmovn_high_u32(vmovn_u32(x[0]), x[1]), vmovn_high_u32(vmovn_u32(x[2]), x[3]));
            vst1q_u8(to, vreinterpretq_u8_u16(low));
            vst1q_u8(to.add(16), vreinterpretq_u8_u16(high));
        }
    }

    #[inline(always)]
    unsafe fn store_u8(to: *mut u8, x: [uint32x4_t; 4]) {
        // SAFETY: 16 places are there, as the caller says.
        unsafe {
            let (low, high) = (vmovn_high_u32(vmovn_u32(x[0]), x[1]), vmovn_high_u32(vmovn_u32(x[2]), x[3]));
            vst1q_u8(to, vmovn_high_u16(vmovn_u16(low), high));
        }
    }

    #[inline(always)]
    unsafe fn shift_right(x: [uint32x4_t; 4], n: u32) -> [uint32x4_t; 4] {
        // SAFETY: NEON is part of every aarch64 CPU.
        unsafe {
            let n = vdupq_n_s32(-(n as i32));
            [vshlq_u32(x[0], n), vshlq_u32(x[1], n), vshlq_u32(x[2], n), vshlq_u32(x[3], n)]
        }
    }

    #[inline(always)]
    unsafe fn code<const BITS: u32>(x: [uint32x4_t; 4], at: u32) -> [float32x4_t; 4] {
        // SAFETY: NEON is part of every aarch64 CPU.
        unsafe {
            let mask = vdupq_n_u32((1 << BITS) - 1);
            Self::shift_right(x, BITS * at).map(|x| vcvtq_f32_u32(vandq_u32(x, mask)))
        }
    }

    #[inline(always)]
    unsafe fn insert(x: [uint32x4_t; 4], code: [uint32x4_t; 4], shift: u32) -> [uint32x4_t; 4] {
        // SAFETY: NEON is part of every aarch64 CPU.
        let code = unsafe {
            let n = vdupq_n_s32(shift as i32);
            [vshlq_u32(code[0], n), vshlq_u32(code[1], n), vshlq_u32(code[2], n), vshlq_u32(code[3], n)]
        };
        each!(vorrq_u32(x, code))
    }

    #[inline(always)]
    unsafe fn round(a: [float32x4_t; 4]) -> [uint32x4_t; 4] {
        let x = each!(vcvtnq_s32_f32(a));
        each!(vreinterpretq_u32_s32(x))
    }
}
