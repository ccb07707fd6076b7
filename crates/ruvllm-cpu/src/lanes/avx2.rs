//! AVX2 with FMA and F16C: 16 floats are two registers.

use super::Lanes;
use half::f16;
use std::arch::x86_64::*;

/// Two registers.
pub struct Ymm;

/// [`Lanes::times_power`] of one register, by two factors of half the power each.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn times_power(x: __m256, n: __m256) -> __m256 {
    let n = _mm256_cvtps_epi32(n);
    let half = _mm256_srai_epi32::<1>(n);
    let power = |n| _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127))));
    _mm256_mul_ps(_mm256_mul_ps(x, power(half)), power(_mm256_sub_epi32(n, half)))
}

// SAFETY: each function is what its name says, of twice 8 lanes.
unsafe impl Lanes for Ymm {
    type V = [__m256; 2];
    type U = [__m256i; 2];
    const REGISTERS: usize = 2;

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
    unsafe fn load_twice(from: *const f32) -> [__m256; 2] {
        // SAFETY: 8 elements are there, as the caller says; no alignment is needed.
        unsafe {
            let (x, twice) = (_mm256_loadu_ps(from), _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
            let four = _mm256_add_epi32(twice, _mm256_set1_epi32(4));
            [_mm256_permutevar8x32_ps(x, twice), _mm256_permutevar8x32_ps(x, four)]
        }
    }

    #[inline(always)]
    unsafe fn swap_pairs(x: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the caller enabled the instruction set.
        unsafe { [_mm256_permute_ps::<0b10_11_00_01>(x[0]), _mm256_permute_ps::<0b10_11_00_01>(x[1])] }
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
    unsafe fn fms(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the caller enabled the instruction set.
        unsafe { [_mm256_fmsub_ps(a[0], b[0], c[0]), _mm256_fmsub_ps(a[1], b[1], c[1])] }
    }

    #[inline(always)]
    unsafe fn fma_alternating(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the caller enabled the instruction set.
        unsafe { [_mm256_fmaddsub_ps(a[0], b[0], c[0]), _mm256_fmaddsub_ps(a[1], b[1], c[1])] }
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
    unsafe fn min(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the caller enabled the instruction set.
        unsafe { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn whole(a: [__m256; 2]) -> [__m256; 2] {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: the caller enabled the instruction set.
        unsafe { [_mm256_round_ps::<NEAREST>(a[0]), _mm256_round_ps::<NEAREST>(a[1])] }
    }

    #[inline(always)]
    unsafe fn times_power(x: [__m256; 2], n: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the caller enabled the instruction set.
        unsafe { [times_power(x[0], n[0]), times_power(x[1], n[1])] }
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
        unsafe {
            let a = _mm256_add_ps(a[0], a[1]);
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
        }
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

    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> [__m256; 2] {
        // SAFETY: 16 elements are there, as the caller says; no alignment is needed.
        unsafe {
            let x = _mm_loadu_si128(from.cast());
            let (low, high) = (_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(x)));
            [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
        }
    }

    #[inline(always)]
    unsafe fn load_u16(from: *const u8) -> [__m256i; 2] {
        // SAFETY: 16 elements are there, as the caller says; no alignment is needed.
        unsafe {
            let (low, high) = (_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(16).cast()));
            [_mm256_cvtepu16_epi32(low), _mm256_cvtepu16_epi32(high)]
        }
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> [__m256i; 2] {
        // SAFETY: 16 elements are there, as the caller says; no alignment is needed.
        unsafe {
            let x = _mm_loadu_si128(from.cast());
            [_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(x))]
        }
    }

    #[inline(always)]
    unsafe fn store_u16(to: *mut u8, x: [__m256i; 2]) {
        // SAFETY: 16 places are there, as the caller says; no alignment is needed.
        unsafe {
            let low = _mm256_set1_epi32(0xffff);
            let packed = _mm256_packus_epi32(_mm256_and_si256(x[0], low), _mm256_and_si256(x[1], low));
            // The pack works in halves of the register.
            _mm256_storeu_si256(to.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }
    }

    #[inline(always)]
    unsafe fn store_u8(to: *mut u8, x: [__m256i; 2]) {
        // SAFETY: 16 places are there, as the caller says; no alignment is needed.
        unsafe {
            let low = _mm256_set1_epi32(0xff);
            let packed = _mm256_packus_epi32(_mm256_and_si256(x[0], low), _mm256_and_si256(x[1], low));
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
            let bytes = _mm_packus_epi16(_mm256_castsi256_si128(packed), _mm256_extracti128_si256::<1>(packed));
            _mm_storeu_si128(to.cast(), bytes);
        }
    }

    #[inline(always)]
    unsafe fn shift_right(x: [__m256i; 2], n: u32) -> [__m256i; 2] {
        // SAFETY: the caller enabled the instruction set.
        unsafe {
            let n = _mm_cvtsi32_si128(n as i32);
            [_mm256_srl_epi32(x[0], n), _mm256_srl_epi32(x[1], n)]
        }
    }

    #[inline(always)]
    unsafe fn code<const BITS: u32>(x: [__m256i; 2], at: u32) -> [__m256; 2] {
        // SAFETY: the caller enabled the instruction set.
        unsafe {
            let mask = _mm256_set1_epi32((1 << BITS) - 1);
            Self::shift_right(x, BITS * at).map(|x| _mm256_cvtepi32_ps(_mm256_and_si256(x, mask)))
        }
    }

    #[inline(always)]
    unsafe fn insert(x: [__m256i; 2], code: [__m256i; 2], shift: u32) -> [__m256i; 2] {
        // SAFETY: the caller enabled the instruction set.
        unsafe {
            let shift = _mm_cvtsi32_si128(shift as i32);
            let (low, high) = (_mm256_sll_epi32(code[0], shift), _mm256_sll_epi32(code[1], shift));
            [_mm256_or_si256(x[0], low), _mm256_or_si256(x[1], high)]
        }
    }

    #[inline(always)]
    unsafe fn round(a: [__m256; 2]) -> [__m256i; 2] {
        // SAFETY: the caller enabled the instruction set; the rounding mode is the default.
        unsafe { [_mm256_cvtps_epi32(a[0]), _mm256_cvtps_epi32(a[1])] }
    }
}
