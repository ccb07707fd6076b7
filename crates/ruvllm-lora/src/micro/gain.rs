//! What a change of a state gains for a token.

use super::HeadRows;
use crate::dot::dot;

/// Rows that are on their way while one is read.
const N_AHEAD: usize = 4;

/// Iterates over tokens with their probabilities, and has the head bring near those that come next.
pub(super) fn ahead<'a>(tokens: &'a [(u32, f32)], head: &'a dyn HeadRows) -> impl Iterator<Item = &'a (u32, f32)> {
    tokens
        .iter()
        .enumerate()
        .inspect(move |(i, _)| {
            if let Some(&(next, _)) = tokens.get(i + N_AHEAD) {
                head.expect(next);
            }
        })
        .map(|(_, token)| token)
}

/// Returns what a change of a state gains for a token that came: `ln p₁[target] - ln p₀[target]` in nats, `p₁` with the change
/// and `p₀` without it. `likeliest` are the likeliest tokens with probabilities that add up to 1, as they were at
/// `strength` times the change; they become those with all of it.
///
/// ```text
/// δ[t] = W[t]·change       p₁ ∝ p·exp((1 - strength)·δ)        p₀ ∝ p·exp(-strength·δ)
/// ```
///
/// # Panics
/// If a width differs.
pub fn gain(change: &[f32], likeliest: &mut [(u32, f32)], strength: f32, target: u32, head: &dyn HeadRows) -> f32 {
    let mut row = vec![0.0; change.len()];
    let mut delta = |token: u32| {
        head.row(token, &mut row);
        dot(&row, change)
    };
    let (mut with, mut without) = (0.0, 0.0);
    let of_target = delta(target);
    let deltas: Vec<f32> = ahead(likeliest, head).map(|&(token, _)| delta(token)).collect();
    for ((_, p), delta) in likeliest.iter_mut().zip(deltas) {
        without += *p * (-strength * delta).exp();
        *p *= ((1.0 - strength) * delta).exp();
        with += *p;
    }
    likeliest.iter_mut().for_each(|(_, p)| *p /= with);
    of_target - (with / without).ln()
}
