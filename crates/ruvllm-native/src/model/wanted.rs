//! What a pass has to get right: the rows whose logits are wanted, and the largest of them.

use ruvllm_backend::LogitRows;

use super::Batch;

/// Returns how many of the largest logits count in the rows of a pass; `None` where all do.
pub(crate) fn n_best(wanted: &[LogitRows]) -> Option<usize> {
    let wanting = wanted.iter().filter(|rows| rows.count(usize::MAX) > 0);
    let counts = wanting.map(|rows| match rows {
        LogitRows::Top { n_best, .. } => Some((*n_best).max(1)),
        LogitRows::Approx { n_best, .. } => n_best.map(|n_best| n_best.max(1)),
        _ => None,
    });
    counts.reduce(|a, b| Some(a?.max(b?))).flatten()
}

/// Moves the rows that want logits to the front of those whose states are wanted, and returns how many they are.
pub(super) fn keep_logit_rows(batch: &Batch<'_>, rows: &mut Vec<u32>, states: &mut [f32], n_embd: usize) -> usize {
    let (mut first, mut kept) = (0, 0);
    for (segment, wanted) in batch.rows.iter().zip(batch.wanted) {
        let (n_states, n) = (wanted.n_states(segment.n), wanted.count(segment.n));
        let from = first + n_states - n;
        if from != kept {
            states.copy_within(from * n_embd..(from + n) * n_embd, kept * n_embd);
            rows.copy_within(from..from + n, kept);
        }
        (first, kept) = (first + n_states, kept + n);
    }
    rows.truncate(kept);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_logits_count_if_one_row_wants_them() {
        let top = |n_best| LogitRows::Top { n_tail: 1, n_best };
        assert_eq!(n_best(&[top(1), LogitRows::None, top(40)]), Some(40));
        assert_eq!(n_best(&[top(1), LogitRows::Last]), None);
        assert_eq!(n_best(&[LogitRows::All, top(1)]), None);
        assert_eq!(n_best(&[LogitRows::None, LogitRows::Tail(0)]), None);
    }
}
