//! Shared helpers of the criterion benches: settings that keep a full run short, repeatable data, the matrices of the
//! three reference models, and how fast memory is read.
//!
//! Every bench answers a question its own `//!` asks. Cases are named so that `cargo xtask bench` can compare them: one
//! part of the name, between slashes, is the row of a kernel's table, usually as [`ruvllm_kernels::Isa::name`] writes it.

pub mod read;
pub mod shapes;

use std::time::Duration;

use criterion::Criterion;

/// Returns the settings all benches run with: 15 samples in 0.7 seconds, 0.2 seconds to warm up. There are hundreds of
/// cases; the medians repeat within a few per cent on a quiet machine.
pub fn criterion() -> Criterion {
    let settings = Criterion::default().sample_size(15).nresamples(2_000).without_plots();
    settings.warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(700))
}

/// Returns whether the benches only run once, as tests (`-- --test`): then no time is spent on realistic memory.
pub fn runs_as_test() -> bool {
    std::env::args().any(|arg| arg == "--test")
}

/// Returns `n` values in -1..1 that are the same in every run with the same `seed`.
pub fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut state = Mix(seed);
    (0..n).map(|_| (state.next() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// Returns `n` bytes that are the same in every run with the same `seed`.
pub fn bytes(n: usize, seed: u64) -> Vec<u8> {
    let mut state = Mix(seed);
    (0..n).map(|_| (state.next() >> 56) as u8).collect()
}

/// Returns `n` bytes that make plausible blocks of any type: the sign and exponent bits of every second byte are small,
/// so that no field that is an f16 is an infinity or a NaN.
pub fn blocks(n: usize) -> Vec<u8> {
    let mut state = Mix(1);
    let mut blocks = vec![0; n];
    for word in blocks.chunks_mut(8) {
        let bytes = (state.next() & 0x3bff_3bff_3bff_3bff).to_le_bytes();
        word.copy_from_slice(&bytes[..word.len()]);
    }
    blocks
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Mix(u64);

impl Mix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn data_repeats_and_stays_in_range() {
        let values = super::values(1000, 7);
        assert_eq!(values, super::values(1000, 7));
        assert_ne!(values, super::values(1000, 8));
        assert!(values.iter().all(|value| (-1.0..1.0).contains(value)));
        let mean = values.iter().sum::<f32>() / 1000.0;
        assert!(mean.abs() < 0.06, "{mean}");
        assert_eq!(super::bytes(3, 1).len(), 3);
    }

    #[test]
    fn blocks_hold_finite_halves() {
        let blocks = super::blocks(1001);
        assert_eq!(blocks.len(), 1001);
        let pairs = blocks.as_chunks::<2>().0;
        assert!(pairs.iter().all(|pair| half::f16::from_le_bytes(*pair).is_finite()));
    }
}
