//! Plain loops; sums in f64.

pub(super) fn exp(x: &mut [f32]) {
    for v in x {
        *v = v.exp();
    }
}

pub(super) fn max(x: &[f32]) -> f32 {
    x.iter().fold(f32::NEG_INFINITY, |max, &v| max.max(v))
}

pub(super) fn sum(x: &[f32]) -> f32 {
    x.iter().map(|&v| f64::from(v)).sum::<f64>() as f32
}

pub(super) fn exp_sum(x: &mut [f32], max: f32) -> f32 {
    let mut total = 0.0;
    for v in x {
        *v = (*v - max).exp();
        total += f64::from(*v);
    }
    total as f32
}

pub(super) fn sum_exp(x: &[f32], max: f32) -> f32 {
    x.iter().map(|&v| f64::from((v - max).exp())).sum::<f64>() as f32
}

/// The other rows compile this loop with their own features.
#[inline(always)]
pub(super) fn scale(x: &mut [f32], factor: f32) {
    for v in x {
        *v *= factor;
    }
}
