//! The largest logits that a pass has to get right.

use ruvllm_backend::LogitRows;

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
