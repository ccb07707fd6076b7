//! AVX2: 32 bytes an instruction, four rows at a time.

use std::arch::x86_64::*;

/// Bytes of a vector.
const LANES: usize = 32;

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[i8; LANES]) -> __m256i {
    // SAFETY: 32 bytes; loadu needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Adds the products of 32 bytes, by fours, to eight sums. `q` holds no -128.
#[inline]
#[target_feature(enable = "avx2")]
fn multiply_add(sum: __m256i, x: __m256i, q: __m256i) -> __m256i {
    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(q, x));
    _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
}

/// Adds up each of four vectors.
#[inline]
#[target_feature(enable = "avx2")]
fn add_up([a, b, c, d]: [__m256i; 4]) -> __m128i {
    let all = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
    _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256::<1>(all))
}

#[target_feature(enable = "avx2")]
pub(super) fn dots(query: &[i8], rows: &[i8], out: &mut [i32]) {
    let query = query.as_chunks::<LANES>().0;
    let n = query.len();
    let rows = rows.as_chunks::<LANES>().0;
    let (out4, out_tail) = out.as_chunks_mut::<4>();
    let (rows4, rows_tail) = rows.split_at(out4.len() * 4 * n);
    for (out, rows) in out4.iter_mut().zip(rows4.chunks_exact((4 * n).max(1))) {
        let mut sums = [_mm256_setzero_si256(); 4];
        for (k, q) in query.iter().enumerate() {
            let q = load(q);
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = multiply_add(*sum, load(&rows[i * n + k]), q);
            }
        }
        // SAFETY: four values of 32 bits.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), add_up(sums)) };
    }
    for (out, row) in out_tail.iter_mut().zip(rows_tail.chunks_exact(n.max(1))) {
        let zero = _mm256_setzero_si256();
        let sum = row.iter().zip(query).fold(zero, |sum, (x, q)| multiply_add(sum, load(x), load(q)));
        *out = _mm_cvtsi128_si32(add_up([sum, zero, zero, zero]));
    }
}
