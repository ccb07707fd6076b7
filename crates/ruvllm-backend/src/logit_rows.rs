//! Rows of a pass that want logits, and how many logits of each.

/// Rows of a segment that want logits.
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
    /// This many at the end, and of each the approximate logits as well ([`States::approx`](crate::States::approx)), where the
    /// head has a shortlist: they do not depend on what else is asked for.
    Approx {
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
    pub fn count(self, n: usize) -> usize {
        match self {
            LogitRows::None => 0,
            LogitRows::Last => n.min(1),
            LogitRows::Tail(n_tail)
            | LogitRows::Top { n_tail, .. }
            | LogitRows::TailOfStates(n_tail)
            | LogitRows::Approx { n_tail, .. } => n.min(n_tail),
            LogitRows::All => n,
        }
    }

    /// Returns of how many of `n` rows the final hidden state is wanted: those at the end that want logits, or all.
    pub fn n_states(self, n: usize) -> usize {
        match self {
            LogitRows::TailOfStates(_) | LogitRows::Approx { has_states: true, .. } => n,
            wanted => wanted.count(n),
        }
    }

    /// Returns which rows of a part of a segment want logits, behind which `n_left` rows are to come.
    pub fn before(self, n_left: usize) -> LogitRows {
        match self {
            LogitRows::Last if n_left > 0 => LogitRows::None,
            LogitRows::Tail(n_tail) => LogitRows::Tail(n_tail.saturating_sub(n_left)),
            LogitRows::Top { n_tail, n_best } => LogitRows::Top { n_tail: n_tail.saturating_sub(n_left), n_best },
            LogitRows::TailOfStates(n_tail) => LogitRows::TailOfStates(n_tail.saturating_sub(n_left)),
            LogitRows::Approx { n_tail, n_best, has_states } => {
                LogitRows::Approx { n_tail: n_tail.saturating_sub(n_left), n_best, has_states }
            }
            wanted => wanted,
        }
    }
}
