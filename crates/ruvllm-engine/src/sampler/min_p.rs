//! Min-p (Nguyen 2024, arXiv:2407.01082): only what is not too far behind the most likely.

use super::candidates::Candidates;

/// Keeps those at least `p` times as likely as the most likely.
pub(super) fn apply(candidates: &mut Candidates, p: f32) {
    if p <= 0.0 {
        return;
    }
    let least = candidates.max() + p.ln();
    candidates.retain(|candidate| candidate.logit >= least);
}
