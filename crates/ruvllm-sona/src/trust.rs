//! How much of MicroLoRA a request has: as much as has helped it so far, and requests before it.
//!
//! ```text
//! gain     g = ln p₁[token] - ln p₀[token]     what all of it gains for a token that came, in nats, within ±3
//! evidence e ← 0.995·e + g                     over a request
//! strength s = sigmoid(trust + e)              of the change, for the next piece of tokens; below 0.02: none
//! trust    t ← t + r·(clamp(e, -3, 1) - t)     at a request's end; r = quality · min(1/4, tokens/512)
//! ```
//! `e` is the logarithm of the odds that the request is of the kind that was learned (Bayes' rule over two models, with a fading
//! memory as in the fixed share of Herbster & Warmuth 1998). Without it, text of another kind lost 1 to 2 %. A request of another kind
//! pays what it takes to find that out, some `-ln(1 - s)` nats of the strength that it begins with, so no request begins sure of it:
//! with a trust of up to 3 the GPL lost 0.4 % behind a manual, with 1 next to nothing, and the manual gained as much.

/// How much of the evidence stays with each token.
const KEEP: f32 = 0.995;
/// The most a single token tells, in nats.
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

/// What a request's tokens tell of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Evidence {
    /// Log odds, in nats.
    sum: f32,
    n_tokens: u32,
}

impl Evidence {
    /// Hears what all of the change gains for a token that came, in nats.
    pub(crate) fn push(&mut self, gain: f32) {
        if gain.is_finite() {
            self.sum = KEEP * self.sum + gain.clamp(-GAIN_MAX, GAIN_MAX);
            self.n_tokens += 1;
        }
    }
}

/// What requests told so far: log odds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Trust(f32);

impl Trust {
    /// Returns what a snapshot keeps.
    pub(crate) fn value(self) -> f32 {
        self.0
    }

    /// Reads it.
    pub(crate) fn from_value(value: f32) -> Trust {
        Trust(value.clamp(-DOUBT_MAX, TRUST_MAX))
    }

    /// Returns how much of the change a request has, 0 to 1.
    pub(crate) fn strength(self, evidence: &Evidence) -> f32 {
        let strength = 1.0 / (1.0 + (-self.0 - evidence.sum).exp());
        if strength < STRENGTH_MIN { 0.0 } else { strength }
    }

    /// Takes in what a request of some quality, 0 to 1, told.
    pub(crate) fn take_in(&mut self, evidence: &Evidence, quality: f32) {
        let rate = quality * (evidence.n_tokens as f32 / N_TOKENS).min(RATE_MAX);
        self.0 += rate * (evidence.sum.clamp(-DOUBT_MAX, TRUST_MAX) - self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(gains: impl IntoIterator<Item = f32>) -> Evidence {
        let mut evidence = Evidence::default();
        gains.into_iter().for_each(|gain| evidence.push(gain));
        evidence
    }

    #[test]
    fn a_request_that_is_helped_has_all_and_another_none() {
        let trust = Trust::default();
        assert_eq!(trust.strength(&heard([])), 0.5);
        assert!(trust.strength(&heard([0.05; 200])) > 0.95);
        assert_eq!(trust.strength(&heard([-0.05; 200])), 0.0);
        // It forgets: what was true of the beginning need not be of the end.
        assert!(trust.strength(&heard([0.05; 600].into_iter().chain([-0.05; 400]))) < 0.1);
        // No token tells everything, and what is no number tells nothing.
        assert!(trust.strength(&heard([90.0])) < 0.96);
        assert_eq!(trust.strength(&heard([f32::NAN, f32::INFINITY])), 0.5);
    }

    #[test]
    fn requests_move_where_the_next_begins() {
        let (mut trust, good, bad) = (Trust::default(), heard([0.05; 512]), heard([-0.05; 512]));
        for _ in 0..20 {
            trust.take_in(&good, 1.0);
        }
        assert!((0.7..0.74).contains(&trust.strength(&heard([]))), "{trust:?}");
        assert_eq!(Trust::from_value(trust.value()), trust);
        let before = trust;
        trust.take_in(&bad, 0.0);
        trust.take_in(&heard([]), 1.0);
        assert_eq!(trust, before);
        for _ in 0..20 {
            trust.take_in(&bad, 1.0);
        }
        assert!((0.02..0.1).contains(&trust.strength(&heard([]))), "{trust:?}");
    }
}
