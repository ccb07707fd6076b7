//! NEON: 16 bytes an instruction pair, products in 16 bits (at most `128·128`), pairs of them added to 32.

use std::arch::aarch64::*;

/// Bytes of a vector.
const LANES: usize = 16;

#[inline]
#[target_feature(enable = "neon")]
fn load(bytes: &[i8; LANES]) -> int8x16_t {
    // SAFETY: 16 bytes.
    unsafe { vld1q_s8(bytes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn multiply_add(sum: int32x4_t, x: int8x16_t, q: int8x16_t) -> int32x4_t {
    let sum = vpadalq_s16(sum, vmull_s8(vget_low_s8(x), vget_low_s8(q)));
    vpadalq_s16(sum, vmull_high_s8(x, q))
}

#[target_feature(enable = "neon")]
pub(super) fn dots(query: &[i8], rows: &[i8], out: &mut [i32]) {
    let query = query.as_chunks::<LANES>().0;
    let n = query.len();
    let rows = rows.as_chunks::<LANES>().0;
    let (out4, out_tail) = out.as_chunks_mut::<4>();
    let (rows4, rows_tail) = rows.split_at(out4.len() * 4 * n);
    for (out, rows) in out4.iter_mut().zip(rows4.chunks_exact((4 * n).max(1))) {
        let mut sums = [vdupq_n_s32(0); 4];
        for (k, q) in query.iter().enumerate() {
            let q = load(q);
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = multiply_add(*sum, load(&rows[i * n + k]), q);
            }
        }
        *out = sums.map(|sum| vaddvq_s32(sum));
    }
    for (out, row) in out_tail.iter_mut().zip(rows_tail.chunks_exact(n.max(1))) {
        let sum = row.iter().zip(query).fold(vdupq_n_s32(0), |sum, (x, q)| multiply_add(sum, load(x), load(q)));
        *out = vaddvq_s32(sum);
    }
}
