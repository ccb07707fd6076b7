//! The samplers that cut candidates away: top-k, top-p (Holtzman 2019), min-p (Nguyen 2024), and their softmax.

use super::Candidate;

/// Sorts likeliest first, lower id first among equals.
fn by_rank(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// Keeps the `k` likeliest, sorted; `k = 0` keeps all.
pub(super) fn top_k(candidates: &mut Vec<Candidate>, k: usize) {
    if k > 0 && k < candidates.len() {
        candidates.select_nth_unstable_by(k - 1, by_rank);
        candidates.truncate(k);
    }
    candidates.sort_unstable_by(by_rank);
}

/// Keeps the shortest run of sorted candidates whose probabilities reach `p`; always at least one.
pub(super) fn top_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p >= 1.0 {
        return;
    }
    probabilities(candidates, 1.0);
    let mut sum = 0.0f64;
    let reached = candidates.iter().position(|candidate| {
        sum += f64::from(candidate.p);
        sum >= f64::from(p)
    });
    candidates.truncate(reached.map_or(candidates.len(), |last| last + 1));
}

/// Keeps sorted candidates at least `p` times as likely as the first.
pub(super) fn min_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p <= 0.0 {
        return;
    }
    let Some(first) = candidates.first().map(|candidate| candidate.logit) else { return };
    let keep = candidates.iter().take_while(|candidate| candidate.logit >= first + p.ln()).count();
    candidates.truncate(keep.max(1));
}

/// Fills in the probabilities of sorted candidates at a temperature.
pub(super) fn probabilities(candidates: &mut [Candidate], temperature: f32) {
    let Some(first) = candidates.first().map(|candidate| candidate.logit) else { return };
    let mut sum = 0.0f64;
    for candidate in candidates.iter_mut() {
        candidate.p = ((candidate.logit - first) / temperature).exp();
        sum += f64::from(candidate.p);
    }
    candidates.iter_mut().for_each(|candidate| candidate.p = (f64::from(candidate.p) / sum) as f32);
}
