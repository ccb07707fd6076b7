//! NEON: tiles of 8 rows by up to 2 activation rows, 16 sums in 32 registers.

use super::{Job, R};
use std::arch::aarch64::*;

/// # Safety
/// As [`super::Kernel`] says.
#[target_feature(enable = "neon")]
pub(in super::super) unsafe fn run(job: &Job<'_>) {
    let mut i = 0;
    while i < job.rows.len() {
        // SAFETY: the caller's promise; `i + MR` stays within the job's rows.
        i += unsafe { if job.rows.len() - i >= 2 { tile::<2>(job, i) } else { tile::<1>(job, i) } };
    }
}

/// # Safety
/// As [`super::Kernel`] says, with `i + MR` within the job's rows.
#[target_feature(enable = "neon")]
unsafe fn tile<const MR: usize>(job: &Job<'_>, i: usize) -> usize {
    let mut x: [&[f32]; MR] = [&[]; MR];
    for (m, x) in x.iter_mut().enumerate() {
        *x = job.act(i + m);
    }
    let mut w: [&[f32]; R] = [&[]; R];
    for (r, w) in w.iter_mut().enumerate() {
        *w = job.weights(r);
    }
    let mut acc = [[vdupq_n_f32(0.0); MR]; R];
    for k in (0..job.kc).step_by(4) {
        let mut v = [vdupq_n_f32(0.0); MR];
        for m in 0..MR {
            // SAFETY: `k + 4 <= kc`, the length of every slice, for `kc` is a multiple of 16.
            v[m] = unsafe { vld1q_f32(x[m].as_ptr().add(k)) };
        }
        for r in 0..R {
            // SAFETY: as above.
            let w = unsafe { vld1q_f32(w[r].as_ptr().add(k)) };
            for m in 0..MR {
                acc[r][m] = vfmaq_f32(acc[r][m], w, v[m]);
            }
        }
    }
    for r in 0..R {
        for m in 0..MR {
            // SAFETY: the caller's promise.
            unsafe { job.put(i + m, r, vaddvq_f32(acc[r][m])) };
        }
    }
    MR
}
