//! simd128: 16 bytes an iteration, widened to 16 bits, pairs of products added to 32.

use std::arch::wasm32::*;

/// Bytes of a vector.
const LANES: usize = 16;

#[inline]
#[target_feature(enable = "simd128")]
fn load(bytes: &[i8; LANES]) -> v128 {
    // SAFETY: 16 bytes.
    unsafe { v128_load(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "simd128")]
fn multiply_add(sum: v128, x: v128, q: [v128; 2]) -> v128 {
    let sum = i32x4_add(sum, i32x4_dot_i16x8(i16x8_extend_low_i8x16(x), q[0]));
    i32x4_add(sum, i32x4_dot_i16x8(i16x8_extend_high_i8x16(x), q[1]))
}

#[inline]
#[target_feature(enable = "simd128")]
fn widen(q: v128) -> [v128; 2] {
    [i16x8_extend_low_i8x16(q), i16x8_extend_high_i8x16(q)]
}

#[inline]
#[target_feature(enable = "simd128")]
fn total(sum: v128) -> i32 {
    let halves = i32x4_add(sum, i32x4_shuffle::<2, 3, 0, 1>(sum, sum));
    i32x4_extract_lane::<0>(halves) + i32x4_extract_lane::<1>(halves)
}

#[target_feature(enable = "simd128")]
pub(super) fn dots(query: &[i8], rows: &[i8], out: &mut [i32]) {
    let query = query.as_chunks::<LANES>().0;
    let n = query.len();
    let rows = rows.as_chunks::<LANES>().0;
    let (out4, out_tail) = out.as_chunks_mut::<4>();
    let (rows4, rows_tail) = rows.split_at(out4.len() * 4 * n);
    for (out, rows) in out4.iter_mut().zip(rows4.chunks_exact((4 * n).max(1))) {
        let mut sums = [i32x4_splat(0); 4];
        for (k, q) in query.iter().enumerate() {
            let q = widen(load(q));
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = multiply_add(*sum, load(&rows[i * n + k]), q);
            }
        }
        *out = sums.map(|sum| total(sum));
    }
    for (out, row) in out_tail.iter_mut().zip(rows_tail.chunks_exact(n.max(1))) {
        let sums = row.iter().zip(query);
        *out = total(sums.fold(i32x4_splat(0), |sum, (x, q)| multiply_add(sum, load(x), widen(load(q)))));
    }
}
