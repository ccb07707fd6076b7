//! Divisions by groups.

use std::collections::BTreeMap;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::fastgrnn::shuffle;

/// Returns the fold of each row, 0 to `k - 1`: all rows of a group are in one fold, and folds are about equally large.
/// With fewer groups than folds every row is a group of its own.
///
/// # Panics
/// `k` is 0.
pub fn grouped_folds(groups: &[u64], k: usize, seed: u64) -> Vec<usize> {
    assert!(k > 0, "rows are divided into at least one fold");
    let mut members: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (i, &group) in groups.iter().enumerate() {
        members.entry(group).or_default().push(i);
    }
    if members.len() < k {
        members = (0..groups.len()).map(|i| (i as u64, vec![i])).collect();
    }
    let mut order: Vec<Vec<usize>> = members.into_values().collect();
    shuffle(&mut order, &mut ChaCha8Rng::seed_from_u64(seed));
    // The largest first, each to the fold that has least so far; among equal ones chance has decided.
    order.sort_by_key(|rows| std::cmp::Reverse(rows.len()));
    let (mut sizes, mut folds) = (vec![0; k], vec![0; groups.len()]);
    for rows in order {
        let fold = (0..k).min_by_key(|&fold| sizes[fold]).expect("there is at least one fold");
        sizes[fold] += rows.len();
        rows.into_iter().for_each(|i| folds[i] = fold);
    }
    folds
}

/// Draws as many groups as there are, with replacement, `n_draws` times, and returns the bounds within which 95 % of
/// `statistic` of the drawn rows lie. Draws whose statistic is not finite are left out.
pub fn bootstrap(groups: &[u64], n_draws: usize, seed: u64, mut statistic: impl FnMut(&[usize]) -> f64) -> (f64, f64) {
    let mut members: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (i, &group) in groups.iter().enumerate() {
        members.entry(group).or_default().push(i);
    }
    let members: Vec<Vec<usize>> = members.into_values().collect();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut values = Vec::with_capacity(n_draws);
    let mut rows = Vec::new();
    for _ in 0..n_draws {
        rows.clear();
        for _ in 0..members.len() {
            rows.extend_from_slice(&members[(random.next_u64() % members.len() as u64) as usize]);
        }
        values.push(statistic(&rows));
    }
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values.get((share * values.len() as f64) as usize).copied().unwrap_or(f64::NAN);
    (at(0.025), at(0.975))
}
