//! Locally typical sampling (Meister 2022, arXiv:2202.00666): only what surprises about as much as is to be expected.

use super::candidates::Candidates;

/// Keeps those whose surprise is closest to the entropy, as many as it takes for their probabilities to pass `p`.
pub(super) fn apply(candidates: &mut Candidates, p: f32) {
    if p >= 1.0 {
        return;
    }
    candidates.softmax();
    let entropy = candidates.entropy();
    candidates.sort_by_key(|candidate| (-candidate.p.ln() - entropy).abs());
    let mut sum = 0.0f64;
    let passed = candidates.items().iter().position(|candidate| {
        sum += f64::from(candidate.p);
        sum > f64::from(p)
    });
    candidates.truncate(passed.map_or(usize::MAX, |at| at + 1));
}
