//! How many tokens to guess, and when to stop guessing (the figures are those of ADR 21).

/// The fewest guesses of a pass, and the most: all can be taken back. Who asks allows fewer, eight unless it was measured
/// that more are worth it here.
const AHEAD: (usize, usize) = (2, 32);
/// What guessed rows cost, as a share of a pass of one row: so much each, and so much more each behind the fourth, where
/// arithmetic begins to count beside reading the weights.
const ROW_COST: f32 = 0.1;
const FAR_ROW_COST: f32 = 0.12;
/// The weight of a pass in the running mean of what is gained.
const WEIGHT: f32 = 0.25;
/// The gain that a request begins with: its first wrong guesses are no reason to rest, since answers seldom begin as their
/// prompt goes on.
const CREDIT: f32 = 0.15;
/// Passes without guesses after guesses did not pay: at first, and at most.
const REST: (usize, usize) = (16, 512);

/// Decides by what guesses brought so far.
pub(super) struct Pace {
    /// What a guess costs beside its row, as a share of a pass of one row.
    guess_cost: f32,
    n_ahead: usize,
    /// Passes gained by a pass with guesses, less what its rows cost: a running mean.
    gain: f32,
    /// Passes to go without guesses, and how many the next time.
    resting: usize,
    rest: usize,
}

impl Pace {
    /// Makes a pace for guesses of which each costs `guess_cost` passes of one row, beside its row.
    pub(super) fn new(guess_cost: f32) -> Pace {
        Pace { guess_cost, n_ahead: 4, gain: CREDIT, resting: 0, rest: REST.0 }
    }

    /// Returns how many tokens to guess in the pass at hand, if as many are allowed.
    pub(super) fn n_ahead(&mut self) -> usize {
        if self.resting > 0 {
            self.resting -= 1;
            return 0;
        }
        self.n_ahead
    }

    /// Takes note of a pass with guesses.
    pub(super) fn learn(&mut self, n_guessed: usize, n_right: usize) {
        let cost = (ROW_COST + self.guess_cost) * n_guessed as f32 + FAR_ROW_COST * n_guessed.saturating_sub(4) as f32;
        let gain = n_right as f32 - cost;
        self.gain += WEIGHT * (gain - self.gain);
        // Where passes gained much of late, what was wrong is an exception: text goes on as it stood before.
        let n_ahead = if n_right == n_guessed { 2 * self.n_ahead } else { (n_right + 1).max(self.gain as usize / 2) };
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
        let mut pace = Pace::new(0.0);
        let ahead: Vec<usize> = (0..4)
            .map(|_| {
                let n = pace.n_ahead();
                pace.learn(n, n);
                n
            })
            .collect();
        assert_eq!(ahead, [4, 8, 16, 32]);
        assert_eq!(pace.n_ahead(), 32);
        // What is wrong where much was right is soon forgotten, and not where it is wrong again and again.
        pace.learn(32, 3);
        assert_eq!(pace.n_ahead(), 4);
        (0..4).for_each(|_| pace.learn(32, 32));
        pace.learn(32, 1);
        assert_eq!(pace.n_ahead(), 6);
        pace.learn(6, 0);
        assert_eq!(pace.n_ahead(), 4);
        // Of 5,000 passes in which every guess is wrong few have guesses.
        let mut n_guessed = 0;
        for _ in 0..5000 {
            let n = pace.n_ahead();
            n_guessed += n;
            if n > 0 {
                pace.learn(n, 0);
            }
        }
        assert!(n_guessed < 60, "{n_guessed}");
    }
}
