//! Top-p, or nucleus sampling (Holtzman 2019, arXiv:1904.09751): only what makes up most of the probability.

use super::candidates::Candidates;

/// Keeps the shortest run of the most likely whose probabilities reach `p`; always at least one.
pub(super) fn apply(candidates: &mut Candidates, p: f32) {
    if p >= 1.0 {
        return;
    }
    candidates.softmax();
    let mut sum = 0.0f64;
    candidates.keep_until(|candidate| {
        sum += f64::from(candidate.p);
        sum >= f64::from(p)
    });
}
