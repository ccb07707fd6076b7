//! Mirostat (Basu 2020, arXiv:2007.14966): tokens that surprise as much as asked for, by feedback.

use super::candidates::Candidates;
use super::draw::{Rng, draw};

/// How many of the most likely tokens the first version looks at.
const LOOKED_AT: usize = 100;

/// The state of one request.
#[derive(Clone)]
pub(super) struct Feedback {
    /// The surprise aimed at, in bits, and how fast it is followed.
    tau: f32,
    eta: f32,
    /// The most surprise allowed now, in bits.
    mu: f32,
}

impl Feedback {
    pub(super) fn new(tau: f32, eta: f32) -> Feedback {
        Feedback { tau, eta, mu: 2.0 * tau }
    }

    /// Draws by the first version (algorithm 1); `n_vocab` is the number of tokens there are.
    pub(super) fn draw_v1(&mut self, candidates: &mut Candidates, n_vocab: usize, rng: &mut Rng) -> Option<u32> {
        candidates.softmax();
        candidates.sort();
        let k = self.n_kept(candidates, n_vocab);
        candidates.keep(k);
        self.draw(candidates, rng)
    }

    /// Draws by the second version (algorithm 2).
    pub(super) fn draw_v2(&mut self, candidates: &mut Candidates, rng: &mut Rng) -> Option<u32> {
        candidates.softmax();
        let mu = self.mu;
        // The first one is kept in any case; one that is too surprising is not.
        let mut n = 0;
        candidates.keep_until(|candidate| {
            let is_kept = -candidate.p.log2() <= mu;
            n += usize::from(is_kept);
            !is_kept
        });
        candidates.keep(n.max(1));
        self.draw(candidates, rng)
    }

    /// Estimates how many of sorted candidates have the surprise asked for together, by Zipf's law.
    fn n_kept(&self, candidates: &Candidates, n_vocab: usize) -> usize {
        let pairs = candidates.items().windows(2).take(LOOKED_AT - 1).take_while(|pair| pair[1].p > 0.0);
        let (mut products, mut squares) = (0.0f32, 0.0f32);
        for (i, pair) in pairs.enumerate() {
            let t = ((i + 2) as f32 / (i + 1) as f32).ln();
            products += t * (pair[0].p / pair[1].p).ln();
            squares += t * t;
        }
        if squares == 0.0 {
            return 1;
        }
        let s = products / squares;
        let epsilon = s - 1.0;
        let k = (epsilon * self.mu.exp2() / (1.0 - (n_vocab as f32).powf(-epsilon))).powf(1.0 / s);
        // A value out of range saturates, what is no number gives 0.
        (k as usize).max(1)
    }

    fn draw(&mut self, candidates: &mut Candidates, rng: &mut Rng) -> Option<u32> {
        let drawn = draw(candidates, rng)?;
        let surprise = -drawn.p.log2();
        self.mu -= self.eta * (surprise - self.tau);
        Some(drawn.id)
    }
}
