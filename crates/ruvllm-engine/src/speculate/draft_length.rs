//! Length of drafts, and when to stop drafting (the figures are those of docs/lab/speculation.md).

/// The fewest draft tokens of a pass, and the most: all can be taken back. Who asks allows fewer, eight unless it was measured
/// that more are worth it here.
const AHEAD: (usize, usize) = (2, 32);
/// What drafted rows cost, as a share of a pass of one row: so much each, and so much more each behind the fourth, where
/// arithmetic begins to count beside reading the weights.
const ROW_COST: f32 = 0.1;
const FAR_ROW_COST: f32 = 0.12;
/// The weight of a pass in the running mean of what is gained.
const WEIGHT: f32 = 0.25;
/// The gain that a request begins with: its first rejected drafts are no reason to rest, since answers seldom begin as their
/// prompt goes on.
const CREDIT: f32 = 0.15;
/// Passes without draft tokens after draft tokens did not pay: at first, and at most.
const REST: (usize, usize) = (16, 512);

/// Decides by what draft tokens brought so far.
pub(super) struct DraftLength {
    /// What a draft token costs beside its row, as a share of a pass of one row.
    draft_cost: f32,
    n_ahead: usize,
    /// Passes gained by a pass with draft tokens, less what its rows cost: a running mean.
    gain: f32,
    /// Passes to go without draft tokens, and how many the next time.
    resting: usize,
    rest: usize,
}

impl DraftLength {
    /// Makes the length of drafts of which each token costs `draft_cost` passes of one row, beside its row.
    pub(super) fn new(draft_cost: f32) -> DraftLength {
        DraftLength { draft_cost, n_ahead: 4, gain: CREDIT, resting: 0, rest: REST.0 }
    }

    /// Returns how many tokens to draft in the pass at hand, if as many are allowed.
    pub(super) fn n_ahead(&mut self) -> usize {
        if self.resting > 0 {
            self.resting -= 1;
            return 0;
        }
        self.n_ahead
    }

    /// Takes note of a pass with draft tokens.
    pub(super) fn learn(&mut self, n_drafted: usize, n_accepted: usize) {
        let cost = (ROW_COST + self.draft_cost) * n_drafted as f32 + FAR_ROW_COST * n_drafted.saturating_sub(4) as f32;
        let gain = n_accepted as f32 - cost;
        self.gain += WEIGHT * (gain - self.gain);
        // Where passes gained much of late, what was wrong is an exception: text goes on as it stood before.
        let n_ahead =
            if n_accepted == n_drafted { 2 * self.n_ahead } else { (n_accepted + 1).max(self.gain as usize / 2) };
        self.n_ahead = n_ahead.clamp(AHEAD.0, AHEAD.1);
        if self.gain < 0.0 {
            (self.resting, self.gain, self.n_ahead) = (self.rest, 0.0, AHEAD.0);
            self.rest = (2 * self.rest).min(REST.1);
        } else if gain > 0.0 {
            self.rest = REST.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_guessed_while_it_is_right_and_nothing_while_it_is_wrong() {
        let mut draft_length = DraftLength::new(0.0);
        let ahead: Vec<usize> = (0..4)
            .map(|_| {
                let n = draft_length.n_ahead();
                draft_length.learn(n, n);
                n
            })
            .collect();
        assert_eq!(ahead, [4, 8, 16, 32]);
        assert_eq!(draft_length.n_ahead(), 32);
        // What is wrong where much was right is soon forgotten, and not where it is wrong again and again.
        draft_length.learn(32, 3);
        assert_eq!(draft_length.n_ahead(), 4);
        (0..4).for_each(|_| draft_length.learn(32, 32));
        draft_length.learn(32, 1);
        assert_eq!(draft_length.n_ahead(), 6);
        draft_length.learn(6, 0);
        assert_eq!(draft_length.n_ahead(), 4);
        // Of 5,000 passes in which every draft token is rejected few have draft tokens.
        let mut n_drafted = 0;
        for _ in 0..5000 {
            let n = draft_length.n_ahead();
            n_drafted += n;
            if n > 0 {
                draft_length.learn(n, 0);
            }
        }
        assert!(n_drafted < 60, "{n_drafted}");
    }
}
