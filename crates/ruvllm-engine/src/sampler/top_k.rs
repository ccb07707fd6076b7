//! Top-k: only so many.

use super::candidates::Candidates;

/// Keeps the `k` most likely, sorted; `k = 0` keeps all.
pub(super) fn apply(candidates: &mut Candidates, k: usize) {
    if k > 0 {
        candidates.keep(k);
    }
}
