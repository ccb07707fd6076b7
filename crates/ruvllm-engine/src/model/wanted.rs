//! What is wanted of a pass: which rows' logits, and how many of each.

/// Which rows of a segment want logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitRows {
    /// None: the segment only fills the cache.
    None,
    /// The last one.
    Last,
    /// This many at the end.
    Tail(usize),
    /// Every one.
    All,
    /// This many at the end, and of each only the `n_best` largest logits: others may be -∞, which they are where that
    /// is faster.
    Top {
        /// How many rows.
        n_tail: usize,
        /// How many logits of each.
        n_best: usize,
    },
    /// This many at the end; of every row the final hidden state is wanted
    /// ([`States::rows`](crate::States::rows)).
    TailOfStates(usize),
    /// This many at the end, and of each the rough logits as well ([`States::rough`](crate::States::rough)), where the head has a
    /// screen: what that knows of them by five of the head's eight bits, which is the same whatever is asked for beside it.
    Rough {
        /// How many rows.
        n_tail: usize,
        /// How many of the largest logits of each are to be exact, as in [`LogitRows::Top`]; `None`: all.
        n_best: Option<usize>,
        /// Whether the final hidden state of every row is wanted, as in [`LogitRows::TailOfStates`].
        has_states: bool,
    },
}

impl LogitRows {
    /// Returns how many of `n` rows want logits.
    pub(crate) fn count(self, n: usize) -> usize {
        match self {
            LogitRows::None => 0,
            LogitRows::Last => n.min(1),
            LogitRows::Tail(n_tail)
            | LogitRows::Top { n_tail, .. }
            | LogitRows::TailOfStates(n_tail)
            | LogitRows::Rough { n_tail, .. } => n.min(n_tail),
            LogitRows::All => n,
        }
    }

    /// Returns of how many of `n` rows the final hidden state is wanted: those at the end that want logits, or all.
    pub(crate) fn n_states(self, n: usize) -> usize {
        match self {
            LogitRows::TailOfStates(_) | LogitRows::Rough { has_states: true, .. } => n,
            wanted => wanted.count(n),
        }
    }

    /// Returns which rows of a part of a segment want logits, behind which `n_left` rows are to come.
    pub(crate) fn before(self, n_left: usize) -> LogitRows {
        match self {
            LogitRows::Last if n_left > 0 => LogitRows::None,
            LogitRows::Tail(n_tail) => LogitRows::Tail(n_tail.saturating_sub(n_left)),
            LogitRows::Top { n_tail, n_best } => LogitRows::Top { n_tail: n_tail.saturating_sub(n_left), n_best },
            LogitRows::TailOfStates(n_tail) => LogitRows::TailOfStates(n_tail.saturating_sub(n_left)),
            LogitRows::Rough { n_tail, n_best, has_states } => {
                LogitRows::Rough { n_tail: n_tail.saturating_sub(n_left), n_best, has_states }
            }
            wanted => wanted,
        }
    }
}

/// Returns how many of the largest logits count in the rows of a pass; `None` where all do.
pub(crate) fn n_best(wanted: &[LogitRows]) -> Option<usize> {
    let wanting = wanted.iter().filter(|rows| rows.count(usize::MAX) > 0);
    let counts = wanting.map(|rows| match rows {
        LogitRows::Top { n_best, .. } => Some((*n_best).max(1)),
        LogitRows::Rough { n_best, .. } => n_best.map(|n_best| n_best.max(1)),
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
