//! simd128: tiles of 8 rows by one activation row. Products are rounded before they are added.

use super::{Job, R};
use crate::lanes::simd128::sum4;
use std::arch::wasm32::*;

/// # Safety
/// As [`super::Kernel`] says.
#[target_feature(enable = "simd128")]
pub(in super::super) unsafe fn run(job: &Job<'_>) {
    for i in 0..job.rows.len() {
        let x = job.act(i);
        let mut w: [&[f32]; R] = [&[]; R];
        for (r, w) in w.iter_mut().enumerate() {
            *w = job.weights(r);
        }
        let mut acc = [f32x4_splat(0.0); R];
        for k in (0..job.kc).step_by(4) {
            // SAFETY: `k + 4 <= kc`, the length of every slice, for `kc` is a multiple of 16.
            let v = unsafe { v128_load(x.as_ptr().add(k).cast()) };
            for r in 0..R {
                // SAFETY: as above.
                let w = unsafe { v128_load(w[r].as_ptr().add(k).cast()) };
                acc[r] = f32x4_add(acc[r], f32x4_mul(w, v));
            }
        }
        for (r, acc) in acc.into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { job.put(i, r, sum4(acc)) };
        }
    }
}
