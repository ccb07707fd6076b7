//! The log-odds mixing weight: how much of MicroLoRA a request has, by how much it has helped this request and those before.
//!
//! ```text
//! gain     g = ln p₁[token] - ln p₀[token]     what all of it gains for a token that came, in nats, within ±3
//! evidence e ← 0.995·e + g                     over a request
//! strength s = sigmoid(trust + e)              of the change, for the next piece of tokens; below 0.02: none
//! trust    t ← t + r·(clamp(e, -3, 1) - t)     at a request's end; r = quality · min(1/4, tokens/512)
//! ```
//! `e` is the logarithm of the odds that the request is of the kind that was learned (Bayes' rule over two models, with a fading
//! memory as in the fixed share of Herbster & Warmuth 1998). Without it, text of another kind lost 1 to 2 %. A request of another kind
//! pays what it takes to find that out, some `-ln(1 - s)` nats of the strength that it begins with, so no request begins with all of it:
//! with a trust of up to 3 the GPL lost 0.4 % behind a manual, with 1 next to nothing, and the manual gained as much.

/// How much of the evidence stays with each token.
const KEEP: f32 = 0.995;
/// The most that a single token counts, in nats.
const GAIN_MAX: f32 = 3.0;
/// The surest that a request begins, that it is helped and that it is not.
const TRUST_MAX: f32 = 1.0;
const DOUBT_MAX: f32 = 3.0;
/// The most that one request moves it.
const RATE_MAX: f32 = 0.25;
/// Tokens of a request that would move it all the way.
const N_TOKENS: f32 = 512.0;
/// A weaker change is none.
const STRENGTH_MIN: f32 = 0.02;

/// Log odds by a request's tokens that MicroLoRA helps it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LogOdds {
    /// Log odds, in nats.
    sum: f32,
    n_tokens: u32,
}

impl LogOdds {
    /// Adds what all of the change gained for an observed token, in nats.
    pub(crate) fn push(&mut self, gain: f32) {
        if gain.is_finite() {
            self.sum = KEEP * self.sum + gain.clamp(-GAIN_MAX, GAIN_MAX);
            self.n_tokens += 1;
        }
    }
}

/// Log odds that a request begins with, by those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct MixingWeight(f32);

impl MixingWeight {
    /// Returns what a snapshot keeps.
    pub(crate) fn value(self) -> f32 {
        self.0
    }

    /// Reads it.
    pub(crate) fn from_value(value: f32) -> MixingWeight {
        MixingWeight(value.clamp(-DOUBT_MAX, TRUST_MAX))
    }

    /// Returns how much of the change a request has, 0 to 1.
    pub(crate) fn strength(self, log_odds: &LogOdds) -> f32 {
        let strength = 1.0 / (1.0 + (-self.0 - log_odds.sum).exp());
        if strength < STRENGTH_MIN { 0.0 } else { strength }
    }

    /// Ingests the log odds of a request of some quality, 0 to 1.
    pub(crate) fn ingest(&mut self, log_odds: &LogOdds, quality: f32) {
        let rate = quality * (log_odds.n_tokens as f32 / N_TOKENS).min(RATE_MAX);
        self.0 += rate * (log_odds.sum.clamp(-DOUBT_MAX, TRUST_MAX) - self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_odds_of(gains: impl IntoIterator<Item = f32>) -> LogOdds {
        let mut log_odds = LogOdds::default();
        gains.into_iter().for_each(|gain| log_odds.push(gain));
        log_odds
    }

    #[test]
    fn a_request_that_is_helped_has_all_and_another_none() {
        let mixing_weight = MixingWeight::default();
        assert_eq!(mixing_weight.strength(&log_odds_of([])), 0.5);
        assert!(mixing_weight.strength(&log_odds_of([0.05; 200])) > 0.95);
        assert_eq!(mixing_weight.strength(&log_odds_of([-0.05; 200])), 0.0);
        // It forgets: what was true of the beginning need not be of the end.
        assert!(mixing_weight.strength(&log_odds_of([0.05; 600].into_iter().chain([-0.05; 400]))) < 0.1);
        // No token tells everything, and what is no number tells nothing.
        assert!(mixing_weight.strength(&log_odds_of([90.0])) < 0.96);
        assert_eq!(mixing_weight.strength(&log_odds_of([f32::NAN, f32::INFINITY])), 0.5);
    }

    #[test]
    fn requests_move_where_the_next_begins() {
        let (mut mixing_weight, good, bad) =
            (MixingWeight::default(), log_odds_of([0.05; 512]), log_odds_of([-0.05; 512]));
        for _ in 0..20 {
            mixing_weight.ingest(&good, 1.0);
        }
        assert!((0.7..0.74).contains(&mixing_weight.strength(&log_odds_of([]))), "{mixing_weight:?}");
        assert_eq!(MixingWeight::from_value(mixing_weight.value()), mixing_weight);
        let before = mixing_weight;
        mixing_weight.ingest(&bad, 0.0);
        mixing_weight.ingest(&log_odds_of([]), 1.0);
        assert_eq!(mixing_weight, before);
        for _ in 0..20 {
            mixing_weight.ingest(&bad, 1.0);
        }
        assert!((0.02..0.1).contains(&mixing_weight.strength(&log_odds_of([]))), "{mixing_weight:?}");
    }
}
