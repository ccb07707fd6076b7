//! AVX-512: tiles of 8 rows by up to 3 activation rows, 24 sums in 32 registers.

use super::{Job, LANES, R};
use std::arch::x86_64::*;

/// # Safety
/// As [`super::Kernel`] says.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
pub(in super::super) unsafe fn run(job: &Job<'_>) {
    let mut i = 0;
    while i < job.rows.len() {
        // SAFETY: the caller's promise; `i + MR` stays within the job's rows.
        i += unsafe {
            match job.rows.len() - i {
                3.. => tile::<3>(job, i),
                2 => tile::<2>(job, i),
                _ => tile::<1>(job, i),
            }
        };
    }
}

/// # Safety
/// As [`super::Kernel`] says, with `i + MR` within the job's rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn tile<const MR: usize>(job: &Job<'_>, i: usize) -> usize {
    let mut x: [&[f32]; MR] = [&[]; MR];
    for (m, x) in x.iter_mut().enumerate() {
        *x = job.act(i + m);
    }
    let mut w: [&[f32]; R] = [&[]; R];
    for (r, w) in w.iter_mut().enumerate() {
        *w = job.weights(r);
    }
    let mut acc = [[_mm512_setzero_ps(); MR]; R];
    for k in (0..job.kc).step_by(LANES) {
        let mut v = [_mm512_setzero_ps(); MR];
        for m in 0..MR {
            // SAFETY: `k + 16 <= kc`, the length of every slice, for `kc` is a multiple of 16.
            v[m] = unsafe { _mm512_loadu_ps(x[m].as_ptr().add(k)) };
        }
        for r in 0..R {
            // SAFETY: as above.
            let w = unsafe { _mm512_loadu_ps(w[r].as_ptr().add(k)) };
            for m in 0..MR {
                acc[r][m] = _mm512_fmadd_ps(w, v[m], acc[r][m]);
            }
        }
    }
    for r in 0..R {
        for m in 0..MR {
            // SAFETY: the caller's promise.
            unsafe { job.put(i + m, r, hsum(acc[r][m])) };
        }
    }
    MR
}

/// Halves upon halves, as the scalar row does. (The library's reduction leaves its order open.)
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
fn hsum(v: __m512) -> f32 {
    super::avx2::hsum(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)))
}
