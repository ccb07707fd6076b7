//! How sure a change of a mean is.

/// Tokens of a block: what stands near each other is not independent.
const BLOCK: usize = 256;
/// Draws of blocks.
const N_DRAWS: usize = 4000;

/// A relative change with the middle 95 % of its bootstrap.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Change {
    /// `mean(after) / mean(before) - 1`.
    pub mean: f64,
    /// The 2.5th and the 97.5th percentile.
    pub low: f64,
    pub high: f64,
}

/// Returns the relative change of the mean, by blocks of 256 tokens that are drawn 4,000 times with replacement; the same
/// draws every time.
pub fn change(before: &[f32], after: &[f32]) -> Change {
    let sum = |x: &[f32]| x.iter().map(|&x| f64::from(x)).sum::<f64>();
    let mean = ratio(sum(after), sum(before));
    let blocks: Vec<(f64, f64)> =
        before.chunks(BLOCK).zip(after.chunks(BLOCK)).map(|(b, a)| (sum(b), sum(a))).collect();
    if blocks.len() < 2 {
        return Change { mean, low: f64::NAN, high: f64::NAN };
    }
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut draw = || {
        // SplitMix64 (Steele et al. 2014).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * blocks.len() as u128) >> 64) as usize
    };
    let mut all: Vec<f64> = (0..N_DRAWS)
        .map(|_| {
            let (b, a) = (0..blocks.len()).map(|_| blocks[draw()]).fold((0.0, 0.0), |s, x| (s.0 + x.0, s.1 + x.1));
            ratio(a, b)
        })
        .collect();
    all.sort_by(f64::total_cmp);
    let at = |share: f64| all[(share * (N_DRAWS - 1) as f64).round() as usize];
    Change { mean, low: at(0.025), high: at(0.975) }
}

fn ratio(after: f64, before: f64) -> f64 {
    if before > 0.0 { after / before - 1.0 } else { 0.0 }
}

/// Returns the relative change of each stretch of `n` tokens.
pub fn curve(before: &[f32], after: &[f32], n: usize) -> Vec<f64> {
    let sum = |x: &[f32]| x.iter().map(|&x| f64::from(x)).sum::<f64>();
    before.chunks(n).zip(after.chunks(n)).map(|(b, a)| ratio(sum(a), sum(b))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_lies_within_its_interval() {
        let before: Vec<f32> = (0..5000).map(|i| 2.0 + (i % 7) as f32 * 0.1).collect();
        let after: Vec<f32> = before.iter().enumerate().map(|(i, x)| x * (0.85 + (i % 512) as f32 * 1e-4)).collect();
        let Change { mean, low, high } = change(&before, &after);
        assert!(low < mean && mean < high && (mean + 0.124).abs() < 0.01, "{low} {mean} {high}");
        assert_eq!(change(&before, &before).mean, 0.0);
        assert!(change(&before[..10], &after[..10]).low.is_nan());
        assert_eq!(curve(&before, &before, 1000), [0.0; 5]);
    }
}
