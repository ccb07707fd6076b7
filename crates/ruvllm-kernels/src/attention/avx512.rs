//! AVX-512: 16 floats are one register. 24 accumulators at most, 4 for keys or values, one for the broadcast.

use super::{FoldArgs, ScoreArgs, SoftmaxArgs, ValueArgs, lanes};
use crate::softmax;
use half::f16;
use std::arch::x86_64::*;

struct Zmm;

// SAFETY: each function is what its name says, of 16 lanes.
unsafe impl lanes::Lanes for Zmm {
    type V = __m512;

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
    unsafe fn exp(a: __m512) -> __m512 {
        // SAFETY: the caller enabled the instruction set.
        unsafe { softmax::avx512::exp(a) }
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
    unsafe fn prefetch<T>(from: *const T) {
        // SAFETY: a prefetch of any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
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
}

lanes::entries!(Zmm, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c", 1: 8 4, 2: 8 4, 3: 4 4, 4: 4 4, 5: 4 4, 6: 4 4, 7: 2 2, 8: 2 2);
