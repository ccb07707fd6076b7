//! AVX-512: 16 floats are one register.

use super::Lanes;
use half::f16;
use std::arch::x86_64::*;

/// One register.
pub struct Zmm;

// SAFETY: each function is what its name says, of 16 lanes.
unsafe impl Lanes for Zmm {
    type V = __m512;
    type U = __m512i;
    const REGISTERS: usize = 1;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: the caller enabled the instruction set.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load_f32(from: *const f32) -> __m512 {
        // SAFETY: 16 elements are there, as the caller says; no alignment is needed.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> __m512 {
        // SAFETY: 16 elements are there, as the caller says; no alignment is needed.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_twice(from: *const f32) -> __m512 {
        // SAFETY: 8 elements are there, as the caller says; no alignment is needed.
        unsafe {
            let twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
            _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(from)))
        }
    }

    #[inline(always)]
    unsafe fn swap_pairs(x: __m512) -> __m512 {
        // SAFETY: the caller enabled the instruction set.
        unsafe { _mm512_permute_ps::<0b10_11_00_01>(x) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, x: __m512) {
        // SAFETY: 16 places are there, as the caller says; no alignment is needed.
        unsafe { _mm512_storeu_ps(to, x) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the caller enabled the instruction set.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn fms(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the caller enabled the instruction set.
        unsafe { _mm512_fmsub_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn fma_alternating(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the caller enabled the instruction set.
        unsafe { _mm512_fmaddsub_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller enabled the instruction set.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller enabled the instruction set.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller enabled the instruction set.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn abs(a: __m512) -> __m512 {
        // SAFETY: the caller enabled the instruction set.
        unsafe { _mm512_abs_ps(a) }
    }

    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller enabled the instruction set.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller enabled the instruction set.
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn whole(a: __m512) -> __m512 {
        // SAFETY: the caller enabled the instruction set.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }

    #[inline(always)]
    unsafe fn times_power(x: __m512, n: __m512) -> __m512 {
        // SAFETY: the caller enabled the instruction set.
        unsafe { _mm512_scalef_ps(x, n) }
    }

    #[inline(always)]
    unsafe fn reduce_max(a: __m512) -> f32 {
        // SAFETY: the caller enabled the instruction set.
        unsafe { _mm512_reduce_max_ps(a) }
    }

    #[inline(always)]
    unsafe fn reduce_add(a: __m512) -> f32 {
        // SAFETY: the caller enabled the instruction set.
        unsafe { _mm512_reduce_add_ps(a) }
    }

    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller enabled the instruction set.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn select_lt(a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 {
        // SAFETY: the caller enabled the instruction set.
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x) }
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> __m512 {
        // SAFETY: 16 elements are there, as the caller says; no alignment is needed.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_u16(from: *const u8) -> __m512i {
        // SAFETY: 16 elements are there, as the caller says; no alignment is needed.
        unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> __m512i {
        // SAFETY: 16 elements are there, as the caller says; no alignment is needed.
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store_u16(to: *mut u8, x: __m512i) {
        // SAFETY: 16 places are there, as the caller says; no alignment is needed.
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(x)) }
    }

    #[inline(always)]
    unsafe fn store_u8(to: *mut u8, x: __m512i) {
        // SAFETY: 16 places are there, as the caller says; no alignment is needed.
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(x)) }
    }

    #[inline(always)]
    unsafe fn shift_right(x: __m512i, n: u32) -> __m512i {
        // SAFETY: the caller enabled the instruction set.
        unsafe { _mm512_srl_epi32(x, _mm_cvtsi32_si128(n as i32)) }
    }

    /// A look into a table of 16 floats, which sees the lowest 4 bits only: no mask, no conversion.
    #[inline(always)]
    unsafe fn code<const BITS: u32>(x: __m512i, at: u32) -> __m512 {
        const { assert!(BITS == 4 || BITS == 2) };
        let floats: [f32; 16] = const {
            let mut floats = [0.0; 16];
            let mut i = 0;
            while i < 16 {
                floats[i] = (i & ((1 << BITS) - 1)) as f32;
                i += 1;
            }
            floats
        };
        // SAFETY: the caller enabled the instruction set; there are 16 floats.
        unsafe { _mm512_permutexvar_ps(Self::shift_right(x, BITS * at), _mm512_loadu_ps(floats.as_ptr())) }
    }

    #[inline(always)]
    unsafe fn insert(x: __m512i, code: __m512i, shift: u32) -> __m512i {
        // SAFETY: the caller enabled the instruction set.
        unsafe { _mm512_or_si512(x, _mm512_sll_epi32(code, _mm_cvtsi32_si128(shift as i32))) }
    }

    #[inline(always)]
    unsafe fn round(a: __m512) -> __m512i {
        // SAFETY: the caller enabled the instruction set; the rounding mode is the default.
        unsafe { _mm512_cvtps_epi32(a) }
    }
}
