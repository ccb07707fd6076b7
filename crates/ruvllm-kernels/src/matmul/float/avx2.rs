//! AVX2: tiles of 4 rows by up to 2 activation rows; 8 sums hide the latency of two FMA units.

use super::{Job, R};
use std::arch::x86_64::*;

/// # Safety
/// As [`super::Kernel`] says.
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
pub(in super::super) unsafe fn run(job: &Job<'_>) {
    let mut i = 0;
    while i < job.rows.len() {
        // SAFETY: the caller's promise; `i + MR` stays within the job's rows.
        i += unsafe { if job.rows.len() - i >= 2 { tile::<4, 2>(job, i) } else { tile::<8, 1>(job, i) } };
    }
}

/// # Safety
/// As [`super::Kernel`] says, with `i + MR` within the job's rows.
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn tile<const NR: usize, const MR: usize>(job: &Job<'_>, i: usize) -> usize {
    let mut x: [&[f32]; MR] = [&[]; MR];
    for (m, x) in x.iter_mut().enumerate() {
        *x = job.act(i + m);
    }
    for first in (0..R).step_by(NR) {
        let mut w: [&[f32]; NR] = [&[]; NR];
        for (r, w) in w.iter_mut().enumerate() {
            *w = job.weights(first + r);
        }
        let mut acc = [[_mm256_setzero_ps(); MR]; NR];
        for k in (0..job.kc).step_by(8) {
            let mut v = [_mm256_setzero_ps(); MR];
            for m in 0..MR {
                // SAFETY: `k + 8 <= kc`, the length of every slice, for `kc` is a multiple of 16.
                v[m] = unsafe { _mm256_loadu_ps(x[m].as_ptr().add(k)) };
            }
            for r in 0..NR {
                // SAFETY: as above.
                let w = unsafe { _mm256_loadu_ps(w[r].as_ptr().add(k)) };
                for m in 0..MR {
                    acc[r][m] = _mm256_fmadd_ps(w, v[m], acc[r][m]);
                }
            }
        }
        for r in 0..NR {
            for m in 0..MR {
                // SAFETY: the caller's promise.
                unsafe { job.put(i + m, first + r, hsum(acc[r][m])) };
            }
        }
    }
    MR
}

/// Adds the lanes, halves upon halves.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
pub(super) fn hsum(v: __m256) -> f32 {
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
}
