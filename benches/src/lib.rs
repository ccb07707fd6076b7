//! Shared helpers of the criterion benches: settings that keep a full run short, and repeatable data.
//!
//! Every bench answers a question its own `//!` asks. Cases are named so that `cargo xtask bench table` can compare
//! them: one part of the name, between slashes, is the instruction set as [`ruvllm_kernels::Isa::name`] writes it.

use std::time::Duration;

use criterion::Criterion;

/// Returns the settings all benches run with: some 20 samples in a second and a half, half a second to warm up. There
/// are hundreds of cases; the medians repeat within a few per cent on a quiet machine.
pub fn criterion() -> Criterion {
    let settings = Criterion::default().sample_size(20).without_plots();
    settings.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_millis(1500))
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
}
