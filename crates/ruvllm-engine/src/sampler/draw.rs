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

/// Candidates at least this likely race by themselves, of which there are at most as many as this goes into 1; the others
/// race as one.
const RACES_FROM: f32 = 1.0 / 1024.0;
/// What races for the others, and what chooses among them: no token has these ids.
const OTHERS: u64 = 1 << 40;
const AMONG_OTHERS: u64 = 1 << 41;

/// The random numbers of one draw, one for each token: whoever draws with the same ones from a distribution that is nearly
/// the same mostly draws the same token.
#[derive(Clone, Copy)]
struct Numbers(u64);

impl Numbers {
    /// Returns the number of a token, uniform in (0, 1) (SplitMix64, Steele 2014).
    fn of(self, id: u64) -> f64 {
        let z = self.0 ^ id.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Returns when a token of probability `p` arrives: exponentially distributed with rate `p`.
    fn arrival(self, id: u64, p: f64) -> f64 {
        -self.of(id).ln() / p
    }
}

/// Draws a candidate by its probability, which it fills in; `None` if there is none that is possible. Takes one value of
/// `rng`.
///
/// The first of exponential clocks to ring, each with its token's probability for a rate, is a token by its probability (the
/// Gumbel-max trick in other words). Drawn so, and not along the sum of the probabilities, a token is the same for a draft
/// model that thinks nearly alike.
pub(super) fn draw(candidates: &mut Candidates, rng: &mut Rng) -> Option<Candidate> {
    let numbers = Numbers(rng.0.next_u64());
    candidates.softmax();
    let (mut best, mut first, mut p_others) = (None, f64::INFINITY, 0.0);
    for candidate in candidates.items() {
        let p = f64::from(candidate.p);
        if candidate.p < RACES_FROM {
            p_others += p;
        } else if numbers.arrival(u64::from(candidate.id), p) < first {
            (best, first) = (Some(*candidate), numbers.arrival(u64::from(candidate.id), p));
        }
    }
    if p_others <= 0.0 || numbers.arrival(OTHERS, p_others) >= first {
        return best;
    }
    let mut point = numbers.of(AMONG_OTHERS) * p_others;
    let mut others = candidates.items().iter().filter(|candidate| candidate.p < RACES_FROM && candidate.p > 0.0);
    let mut last = None;
    others
        .find_map(|candidate| {
            point -= f64::from(candidate.p);
            last = Some(*candidate);
            (point < 0.0).then_some(*candidate)
        })
        // What is subtracted may be a rounding more than the sum.
        .or(last)
}
