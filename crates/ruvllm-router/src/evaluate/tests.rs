//! Curves, calibration, bounds and folds against what is known otherwise.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::{Model, Rows, Weighing};

/// Rows of two models.
fn rows(all: &[[f32; 2]]) -> Rows {
    let mut rows = Rows::new(2);
    all.iter().for_each(|row| rows.push(row).unwrap());
    rows
}

/// What is paid is what the chosen answers cost, not what such answers cost on average.
#[test]
fn costs_are_those_of_the_chosen_answers() {
    let expected = Answers { qualities: rows(&[[0.9, 0.9], [0.1, 0.9]]), costs: rows(&[[1.0, 4.0], [1.0, 4.0]]) };
    let actual = Answers { qualities: rows(&[[1.0, 1.0], [0.0, 1.0]]), costs: rows(&[[2.0, 9.0], [1.0, 1.0]]) };
    let reached = &spent(&expected, &actual, &[Weighing::Within(0.05)]).unwrap()[0];
    assert_eq!((reached.cost, reached.quality_of_best, reached.shares.clone()), (1.5, 1.0, vec![0.5, 0.5]));
    assert!((reached.saved_of_best - 0.7).abs() < 1e-9, "{reached:?}");
    // A cheap model that is expected to say so much that it is dearer is not chosen.
    let dear = Answers { costs: rows(&[[5.0, 4.0], [1.0, 4.0]]), ..expected.clone() };
    assert_eq!(spent(&dear, &actual, &[Weighing::Within(0.05)]).unwrap()[0].shares, [0.0, 1.0]);
    let below = Answers { costs: rows(&[[1.0, 4.0], [-1.0, 4.0]]), ..expected.clone() };
    assert!(spent(&below, &actual, &[Weighing::Within(0.05)]).is_err());
    let short = Answers { costs: rows(&[[1.0, 4.0]]), ..expected };
    assert!(spent(&short, &actual, &[Weighing::Within(0.05)]).is_err());
}

/// Of ten queries the small model answers four as well; three of these are known to be easy, the fourth is taken for hard.
#[test]
fn a_weighing_keeps_what_is_asked_of_it() {
    let models = [("small", 1.0), ("large", 5.0)].map(|(name, cost)| Model { name: name.into(), cost });
    let easy = |i: u8| if i < 3 { 0.95 } else { f32::from(i) / 100.0 };
    let expected: Vec<[f32; 2]> = (0..10).map(|i| [easy(i), 0.97]).collect();
    let actual: Vec<[f32; 2]> = (0..10).map(|i: u8| [f32::from(i < 4), 1.0]).collect();
    let [expected, actual] = [expected, actual].map(|all| Answers::of_models(&models, rows(&all)).unwrap());
    let saved = |share: f64| {
        let by = weighing_that_keeps(&expected, &actual, share).unwrap();
        let reached = spent(&expected, &actual, &[by]).unwrap().remove(0);
        assert!(reached.quality_of_best >= share, "{reached:?}");
        reached.saved_of_best
    };
    assert!((saved(1.0) - 0.24).abs() < 1e-6, "{}", saved(1.0));
    assert!(saved(0.7) > 0.3 && (saved(0.0) - 0.8).abs() < 1e-6);
    assert!(weighing_that_keeps(&expected, &actual, 1.5).is_err());
    // Where nothing kept that much, quality alone counts.
    let never = Answers { qualities: rows(&[[1.0, 0.0]; 10]), costs: expected.costs.clone() };
    assert_eq!(weighing_that_keeps(&never, &actual, 1.0).unwrap(), Weighing::Price(0.0));
}

#[test]
fn curves_of_known_scores() {
    let (weak, strong) = ([0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0]);
    // Strong is better by 1/4 in all. The best order gains 1/4, 1/2, 1/2, 1/4.
    let best = cost_quality(&[3.0, 3.0, 2.0, 1.0], &weak, &strong);
    assert_eq!(best.points, [(0.0, 0.5), (0.5, 1.0), (0.75, 1.0), (1.0, 0.75)]);
    assert_eq!((best.quality_at(0.25), best.quality_at(1.0)), (0.75, 0.75));
    assert_eq!(best.cpt(0.5), Some(0.125));
    assert_eq!(best.cpt(3.0), None);
    // Trapezoids: 0.375 + 0.25 + 0.21875 = 0.84375, of 0.5 to 0.75.
    assert!((best.apgr() - (0.84375 - 0.5) / 0.25).abs() < 1e-12);
    let worst = cost_quality(&[0.0, 0.0, 1.0, 2.0], &weak, &strong);
    assert!(worst.apgr() < 0.0);
}

#[test]
fn calibration_of_known_pairs() {
    // Ten at 0.75 of which 6 happened, ten at 0.15 of which 2 happened.
    let pairs: Vec<(f32, f32)> = (0..10).flat_map(|i| [(0.75, f32::from(i < 6)), (0.15, f32::from(i < 2))]).collect();
    assert!((calibration_error(&pairs) - (0.15 + 0.05) / 2.0).abs() < 1e-6);
    let bins = calibration_bins(&pairs, 10);
    assert_eq!((bins[7].n, bins[1].n, bins[0].n), (10, 10, 0));
    assert_eq!(calibration_error(&[]), 0.0);
    assert_eq!(calibration_bins(&[(1.0, 1.0)], 4)[3].n, 1);
}

/// Logits three times too far from their base are divided by three; where they say nothing, hardly anything is left.
#[test]
fn temperatures_are_found() {
    for base in [0.0, 1.5] {
        let logits = (0..1000u32).map(|i| (i % 21) as f32 / 5.0 - 2.0);
        let told: Vec<(f32, f32)> = logits.map(|z| (base + 3.0 * z, crate::math::sigmoid(base + z))).collect();
        assert!((temperature_of(&told, base) - 3.0).abs() < 0.02, "{}", temperature_of(&told, base));
        let untold: Vec<(f32, f32)> = told.iter().map(|&(z, _)| (z, crate::math::sigmoid(base))).collect();
        assert!(temperature_of(&untold, base) > 9.9, "{}", temperature_of(&untold, base));
    }
}

#[test]
fn bounds_of_shares() {
    // Values of R's binom::binom.wilson.
    let (low, high) = wilson(8, 10);
    assert!((low - 0.490_162_5).abs() < 1e-6 && (high - 0.943_317_8).abs() < 1e-6, "{low} {high}");
    assert_eq!(wilson(0, 0), (0.0, 1.0));
    assert!(wilson(0, 20).0 == 0.0 && wilson(20, 20).1 == 1.0);
}

#[test]
fn classes_are_counted() {
    let mut confusion = Confusion::new(3);
    for (actual, predicted) in [(0, 0), (0, 0), (0, 1), (1, 1), (2, 1)] {
        confusion.add(actual, predicted);
    }
    assert_eq!((confusion.right(), confusion.row(0)), ((3, 5), &[2, 1, 0][..]));
    assert_eq!((confusion.f1(0), confusion.f1(1), confusion.f1(2)), (0.8, 0.5, 0.0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Groups stay together, every fold of equal groups is about equally large, and the seed decides.
    #[test]
    fn folds_keep_groups_whole(groups in prop::collection::vec(0u64..20, 30..200), k in 1usize..8, seed in 0u64..9) {
        let folds = grouped_folds(&groups, k, seed);
        let mut of_group = BTreeMap::new();
        if groups.iter().collect::<BTreeSet<_>>().len() >= k {
            for (group, fold) in groups.iter().zip(&folds) {
                prop_assert_eq!(of_group.entry(group).or_insert(fold), &fold);
            }
        }
        prop_assert!(folds.iter().all(|&fold| fold < k));
        prop_assert_eq!(folds.iter().collect::<BTreeSet<_>>().len(), k);
        prop_assert_eq!(folds, grouped_folds(&groups, k, seed));
    }

    /// Any scores: the curve ends at both models' means, and turning the scores around mirrors the gain of chance.
    #[test]
    fn curves_end_at_the_models(rows in prop::collection::vec((0u8..5, any::<bool>(), any::<bool>()), 1..60)) {
        let scores: Vec<f32> = rows.iter().map(|row| f32::from(row.0)).collect();
        let (weak, strong): (Vec<f32>, Vec<f32>) = rows.iter().map(|row| (f32::from(row.1), f32::from(row.2))).unzip();
        let mean = |of: &[f32]| of.iter().map(|&x| f64::from(x)).sum::<f64>() / of.len() as f64;
        let curve = cost_quality(&scores, &weak, &strong);
        prop_assert!((curve.quality_at(0.0) - mean(&weak)).abs() < 1e-9);
        prop_assert!((curve.quality_at(1.0) - mean(&strong)).abs() < 1e-9);
        if mean(&weak) != mean(&strong) {
            let turned = cost_quality(&scores.iter().map(|x| -x).collect::<Vec<_>>(), &weak, &strong);
            prop_assert!((curve.apgr() + turned.apgr() - 1.0).abs() < 1e-9, "{} {}", curve.apgr(), turned.apgr());
        }
    }
}

/// The bounds of a mean hold it, and grow when rows are bound into groups.
#[test]
fn groups_widen_bounds() {
    let values: Vec<f64> = (0..200).map(|i| f64::from(u8::from(i / 20 % 2 == 0))).collect();
    let width = |groups: Vec<u64>| {
        let (low, high) =
            bootstrap(&groups, 300, 3, |rows| rows.iter().map(|&i| values[i]).sum::<f64>() / rows.len() as f64);
        assert!(low < 0.5 && high > 0.5, "{low} {high}");
        high - low
    };
    assert!(width((0..200).map(|i| i / 20).collect()) > 2.0 * width((0..200).collect()));
}
