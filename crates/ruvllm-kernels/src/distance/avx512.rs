//! AVX-512 VNNI: 64 bytes an instruction, four rows at a time.

use super::PADDING;
use std::arch::x86_64::*;

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[i8; PADDING]) -> __m512i {
    // SAFETY: 64 bytes; loadu needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// Adds the halves of a vector.
#[inline]
#[target_feature(enable = "avx512f")]
fn halve(x: __m512i) -> __m256i {
    _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64::<1>(x))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2")]
pub(super) fn dots(query: &[i8], rows: &[i8], out: &mut [i32]) {
    let (query, flip) = (query.as_chunks::<PADDING>().0, _mm512_set1_epi8(i8::MIN));
    let n = query.len();
    let mut bias = _mm512_setzero_si512();
    for q in query {
        bias = _mm512_dpbusd_epi32(bias, flip, load(q));
    }
    let bias = _mm512_reduce_add_epi32(bias);
    let rows = rows.as_chunks::<PADDING>().0;
    let (out4, out_tail) = out.as_chunks_mut::<4>();
    let (rows4, rows_tail) = rows.split_at(out4.len() * 4 * n);
    for (out, rows) in out4.iter_mut().zip(rows4.chunks_exact((4 * n).max(1))) {
        let mut sums = [_mm512_setzero_si512(); 4];
        for (k, q) in query.iter().enumerate() {
            let q = load(q);
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = _mm512_dpbusd_epi32(*sum, _mm512_xor_si512(load(&rows[i * n + k]), flip), q);
            }
        }
        let [a, b, c, d] = sums.map(|sum| halve(sum));
        let all = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
        let all = _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256::<1>(all));
        let all = _mm_sub_epi32(all, _mm_set1_epi32(bias));
        // SAFETY: four values of 32 bits.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), all) };
    }
    for (out, row) in out_tail.iter_mut().zip(rows_tail.chunks_exact(n.max(1))) {
        let mut sum = _mm512_setzero_si512();
        for (x, q) in row.iter().zip(query) {
            sum = _mm512_dpbusd_epi32(sum, _mm512_xor_si512(load(x), flip), load(q));
        }
        *out = _mm512_reduce_add_epi32(sum) - bias;
    }
}
