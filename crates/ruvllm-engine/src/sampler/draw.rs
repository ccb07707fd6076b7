//! Draws: the random numbers of a request, and the token they choose.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::candidates::{Candidate, Candidates};

/// A stream of random numbers that a seed determines, on every machine and in every version.
#[derive(Clone)]
pub(super) struct Rng(ChaCha8Rng);

impl Rng {
    pub(super) fn new(seed: u64) -> Rng {
        Rng(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Returns a uniform value in [0, 1) of 53 random bits.
    pub(super) fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Draws a candidate by its probability, which it fills in; `None` if there is none that is possible.
pub(super) fn draw(candidates: &mut Candidates, rng: &mut Rng) -> Option<Candidate> {
    let mut point = rng.uniform();
    candidates.softmax();
    for candidate in candidates.items() {
        point -= f64::from(candidate.p);
        if point < 0.0 {
            return Some(*candidate);
        }
    }
    // The sum of the probabilities may be a rounding below 1.
    candidates.items().iter().rev().find(|candidate| candidate.p > 0.0).copied()
}
