//! AVX2 with FMA and F16C: 16 floats are two registers. 12 accumulators at most, 2 for keys or values, one broadcast.

use super::{FoldArgs, ScoreArgs, SoftmaxArgs, ValueArgs, lanes};
use crate::softmax;
use half::f16;
use std::arch::x86_64::*;

struct Ymm;

// SAFETY: each function is what its name says, of twice 8 lanes.
unsafe impl lanes::Lanes for Ymm {
    type V = [__m256; 2];

    #[inline(always)]
    unsafe fn splat(x: f32) -> [__m256; 2] {
        // SAFETY: the caller enabled the instruction set.
        unsafe { [_mm256_set1_ps(x); 2] }
    }

    #[inline(always)]
    unsafe fn load_f32(from: *const f32) -> [__m256; 2] {
        // SAFETY: 16 elements are there, as the caller says; no alignment is needed.
        unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> [__m256; 2] {
        // SAFETY: 16 elements are there, as the caller says; no alignment is needed.
        unsafe { [_mm256_cvtph_ps(_mm_loadu_si128(from.cast())), _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast()))] }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, x: [__m256; 2]) {
        // SAFETY: 16 places are there, as the caller says; no alignment is needed.
        unsafe {
            _mm256_storeu_ps(to, x[0]);
            _mm256_storeu_ps(to.add(8), x[1]);
        }
    }

    #[inline(always)]
    unsafe fn fma(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the caller enabled the instruction set.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }

    #[inline(always)]
    unsafe fn add(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the caller enabled the instruction set.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn sub(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the caller enabled the instruction set.
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn mul(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the caller enabled the instruction set.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn abs(a: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the caller enabled the instruction set.
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            [_mm256_andnot_ps(sign, a[0]), _mm256_andnot_ps(sign, a[1])]
        }
    }

    #[inline(always)]
    unsafe fn max(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the caller enabled the instruction set.
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn exp(a: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the caller enabled the instruction set.
        unsafe { [softmax::avx2::exp(a[0]), softmax::avx2::exp(a[1])] }
    }

    #[inline(always)]
    unsafe fn reduce_max(a: [__m256; 2]) -> f32 {
        // SAFETY: the caller enabled the instruction set.
        unsafe {
            let a = _mm256_max_ps(a[0], a[1]);
            let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)))
        }
    }

    #[inline(always)]
    unsafe fn reduce_add(a: [__m256; 2]) -> f32 {
        // SAFETY: the caller enabled the instruction set.
        unsafe { softmax::avx2::hsum(_mm256_add_ps(a[0], a[1])) }
    }

    #[inline(always)]
    unsafe fn prefetch<T>(from: *const T) {
        // SAFETY: a prefetch of any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }

    #[inline(always)]
    unsafe fn div(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the caller enabled the instruction set.
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn select_lt(a: [__m256; 2], b: [__m256; 2], x: [__m256; 2], y: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the caller enabled the instruction set.
        unsafe {
            let (low, high) = (_mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0]), _mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1]));
            [_mm256_blendv_ps(y[0], x[0], low), _mm256_blendv_ps(y[1], x[1], high)]
        }
    }
}

lanes::entries!(Ymm, "avx2,fma,f16c,bmi2", 1: 4 4, 2: 2 2, 3: 1 1, 4: 1 1, 5: 1 1, 6: 1 1);
