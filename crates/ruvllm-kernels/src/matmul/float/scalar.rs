//! Plain loops over 16 lanes.

use super::{Job, LANES, R};

/// # Safety
/// As [`super::Kernel`] says.
pub(in super::super) unsafe fn run(job: &Job<'_>) {
    for i in 0..job.rows.len() {
        for r in 0..R {
            // SAFETY: the caller's promise.
            unsafe { job.put(i, r, dot(job.weights(r), job.act(i))) };
        }
    }
}

fn dot(w: &[f32], x: &[f32]) -> f32 {
    let mut acc = [0.0; LANES];
    for (w, x) in w.as_chunks::<LANES>().0.iter().zip(x.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            acc[lane] += w[lane] * x[lane];
        }
    }
    let mut n = LANES;
    while n > 1 {
        n /= 2;
        for lane in 0..n {
            acc[lane] += acc[lane + n];
        }
    }
    acc[0]
}
