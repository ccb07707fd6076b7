//! Random numbers with a seed.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A generator of test data.
pub(crate) struct Random(ChaCha8Rng);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(ChaCha8Rng::seed_from_u64(seed))
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.0.next_u32() as u8
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0.next_u32() as usize % n
    }

    /// A number within ±1.
    pub(crate) fn float(&mut self) -> f32 {
        (self.0.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}
