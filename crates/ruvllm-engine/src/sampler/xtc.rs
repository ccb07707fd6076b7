//! "Exclude top choices" (llama.cpp #9742): now and then the most obvious tokens are left out.

use super::candidates::Candidates;
use super::draw::Rng;

/// With `probability`, drops all of those at least as likely as `threshold` but the least likely of them.
pub(super) fn apply(candidates: &mut Candidates, probability: f32, threshold: f32, rng: &mut Rng) {
    // The threshold can be reached by two at most.
    if probability <= 0.0 || threshold > 0.5 || candidates.len() < 2 {
        return;
    }
    if rng.uniform() > f64::from(probability) {
        return;
    }
    candidates.softmax();
    candidates.sort();
    let n_above = candidates.items().iter().take_while(|candidate| candidate.p >= threshold).count();
    candidates.drop_first(n_above.saturating_sub(1));
}
