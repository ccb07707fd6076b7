//! Gradients against differences, training that repeats, and what it learns.

use std::ops::ControlFlow;

use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::network::{Network, Pass, context_bucket};
use super::train::{Fold, first_parameters, gradient};
use super::*;
use crate::error::RouterErrorKind;
use crate::rows::Rows;

fn number(random: &mut ChaCha8Rng) -> f32 {
    (random.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0
}

/// Outcomes of three models with every kind of knowledge and none.
fn mixed_outcomes(n: usize, width: usize, random: &mut ChaCha8Rng) -> Vec<Outcome> {
    let outcome = |i: usize| {
        let query = (0..width).map(|_| number(random)).collect();
        let quality = |random: &mut ChaCha8Rng| {
            (!i.is_multiple_of(3) || random.next_u32() & 1 == 0).then(|| number(random).abs())
        };
        let qualities = (0..3).map(|_| quality(random)).collect();
        let settings = Settings {
            n_context_tokens: random.next_u32() % 9000,
            temperature: 2.0 * number(random).abs(),
            top_p: number(random).abs(),
            quality: number(random).abs(),
        };
        Outcome { query, group: i as u64, qualities, settings: (i % 4 != 1).then_some(settings) }
    };
    (0..n).map(outcome).collect()
}

/// Every parameter's gradient against a difference of fourth order; the loss is summed in f64. At a step of 0.02 the
/// difference is off by 0.02⁴ times a fifth derivative, and by rounding: 1e-6/0.02.
#[test]
fn gradients_agree_with_differences() {
    let mut random = ChaCha8Rng::seed_from_u64(5);
    // The last chunk is not full; ranks are below and at what they can be.
    for (n_hidden, rank) in [(5, 3), (4, 9)] {
        let (width, n) = (super::network::CHUNK * 2 + 9, 6);
        let network = Network::new(width, 3, n_hidden, rank);
        let outcomes = mixed_outcomes(n, width, &mut random);
        let mut queries = Rows::new(width);
        outcomes.iter().for_each(|outcome| queries.push(&outcome.query).unwrap());
        let fold = Fold { queries: &queries, outcomes: &outcomes, learned: Vec::new(), left_out: Vec::new() };
        let mut parameters = first_parameters(&network, &mut random);
        parameters.iter_mut().for_each(|x| *x += 0.2 * number(&mut random));

        let rows: Vec<usize> = (0..n).collect();
        let found = gradient(&network, &parameters, &fold, &rows);
        let loss = |parameters: &[f32]| {
            let (mut pass, mut d) = (Pass::default(), Vec::new());
            let of_row = |i: &usize| {
                network.forward(parameters, queries.row(*i), &mut pass);
                f64::from(network.loss(&pass.logits, &outcomes[*i], &mut d))
            };
            rows.iter().map(of_row).sum::<f64>() / n as f64
        };
        let mut nudged = parameters.clone();
        for i in 0..parameters.len() {
            let step = 0.02f32;
            let mut at = |times: f32| {
                nudged[i] = parameters[i] + times * step;
                loss(&nudged)
            };
            let difference = (8.0 * (at(1.0) - at(-1.0)) - (at(2.0) - at(-2.0))) / (12.0 * f64::from(step));
            nudged[i] = parameters[i];
            let error = (difference - f64::from(found[i])).abs();
            assert!(error <= 2e-4 + 2e-3 * difference.abs(), "parameter {i}: {} and {difference}", found[i]);
        }
        assert!(found.iter().filter(|d| d.abs() > 1e-4).count() > found.len() / 2, "gradients are not zero");
    }
}

/// The strong model is right on everything, the weak one where the first two values have the same sign: nothing
/// linear. Groups share nothing else.
fn crossed_outcomes(n: usize) -> Vec<Outcome> {
    let mut random = ChaCha8Rng::seed_from_u64(2);
    let outcome = |i: usize| {
        let mut query: Vec<f32> = (0..16).map(|_| 0.3 * number(&mut random)).collect();
        query[0] = number(&mut random).signum();
        query[1] = number(&mut random).signum();
        let weak = f32::from(query[0] == query[1]);
        let settings = Settings {
            n_context_tokens: if query[0] > 0.0 { 4000 } else { 100 },
            temperature: if query[1] > 0.0 { 1.0 } else { 0.2 },
            top_p: 0.9,
            quality: 1.0,
        };
        Outcome { query, group: i as u64 / 4, qualities: vec![Some(weak), Some(1.0)], settings: Some(settings) }
    };
    (0..n).map(outcome).collect()
}

fn quick() -> TrainOptions {
    TrainOptions { n_members: 2, n_epochs: 60, rate: 0.02, l2: 1e-3, l2_recurrent: 1e-4, ..TrainOptions::default() }
}

fn train(outcomes: &[Outcome], options: &TrainOptions) -> Selector {
    Selector::train(&["weak", "strong"], outcomes, options, |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn what_is_not_linear_is_learned_with_half_the_weights() {
    let outcomes = crossed_outcomes(600);
    let (learned, unseen) = outcomes.split_at(400);
    let selector = train(learned, &quick());
    let (mut right, mut buckets) = (0, 0);
    for outcome in unseen {
        let found = selector.predict(&outcome.query).unwrap();
        right += usize::from((found.qualities[0] > 0.5) == (outcome.qualities[0] == Some(1.0)));
        let settings = outcome.settings.unwrap();
        buckets += usize::from(found.n_context_tokens() == CONTEXT_BUCKETS[context_bucket(settings.n_context_tokens)]);
        assert!((found.temperature - settings.temperature).abs() < 0.4, "{found:?}");
        assert!((found.top_p - 0.9).abs() < 0.1 && found.confidence > 0.8 && found.qualities[1] > 0.9, "{found:?}");
    }
    assert!(right >= 190 && buckets >= 190, "{right} and {buckets} of 200");
    let (all, not_zero) = selector.n_parameters();
    assert!(not_zero < all, "{not_zero} of {all}");
}

/// Thirty queries that say nothing: what is expected is the mean, though there are few steps to learn it in.
#[test]
fn without_evidence_the_mean_is_expected() {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let outcome = |i: usize| Outcome {
        query: (0..8).map(|_| number(&mut random)).collect(),
        group: i as u64,
        qualities: vec![Some(f32::from(!i.is_multiple_of(10))), Some(0.2)],
        settings: None,
    };
    let outcomes: Vec<Outcome> = (0..30).map(outcome).collect();
    let options = TrainOptions { n_epochs: 3, ..TrainOptions::default() };
    let qualities = train(&outcomes, &options).predict(&[0.0; 8]).unwrap().qualities;
    assert!((qualities[0] - 0.9).abs() < 0.1 && (qualities[1] - 0.2).abs() < 0.1, "{qualities:?}");
}

#[test]
fn training_repeats_bit_for_bit() {
    let outcomes = crossed_outcomes(80);
    let options = TrainOptions { n_epochs: 6, ..quick() };
    let bytes = train(&outcomes, &options).to_bytes();
    assert_eq!(train(&outcomes, &options).to_bytes(), bytes);
    assert_ne!(train(&outcomes, &TrainOptions { seed: 2, ..options }).to_bytes(), bytes);
}

/// As many values of each recurrent matrix are zero as were asked for.
#[test]
fn matrices_are_as_sparse_as_asked() {
    let outcomes = crossed_outcomes(80);
    let zeros = |keep: f32| {
        let selector =
            train(&outcomes, &TrainOptions { keep, n_epochs: 6, n_hidden: 10, rank: 4, n_members: 2, ..quick() });
        let (all, not_zero) = selector.n_parameters();
        all - not_zero
    };
    // W: 4·64 + 10·4, U: 4·10 + 10·4, of two members. Only 16 of a chunk's 64 values exist; the others keep their first
    // weights or are among the zeros.
    let n_values = 2 * (4 * 64 + 40 + 40 + 40);
    let (dense, sparse) = (zeros(1.0), zeros(0.25));
    assert_eq!(sparse - dense, n_values * 3 / 4, "{dense} and {sparse}");
}

#[test]
fn saved_selectors_answer_the_same() {
    let outcomes = crossed_outcomes(40);
    let selector = train(&outcomes, &TrainOptions { n_epochs: 3, ..quick() });
    let read = Selector::from_bytes(&selector.to_bytes()).unwrap();
    assert_eq!(read, selector);
    assert_eq!(read.predict(&outcomes[0].query).unwrap(), selector.predict(&outcomes[0].query).unwrap());
    assert_eq!(read.predict(&[0.0; 3]).unwrap_err().kind(), RouterErrorKind::Shape);
}

#[test]
fn what_cannot_be_learned_from_is_refused() {
    let outcomes = crossed_outcomes(40);
    let check = |outcomes: &[Outcome], options: &TrainOptions, kind| {
        let error = Selector::train(&["weak", "strong"], outcomes, options, |_| ControlFlow::Continue(())).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    };
    let spoiled = |spoil: fn(&mut Outcome)| {
        let mut outcomes = outcomes.clone();
        spoil(&mut outcomes[7]);
        outcomes
    };
    check(&outcomes[..9], &quick(), RouterErrorKind::Data);
    check(&spoiled(|outcome| outcome.qualities.push(None)), &quick(), RouterErrorKind::Shape);
    check(&spoiled(|outcome| outcome.query.truncate(3)), &quick(), RouterErrorKind::Shape);
    check(&spoiled(|outcome| outcome.query[1] = f32::INFINITY), &quick(), RouterErrorKind::Value);
    check(&spoiled(|outcome| outcome.qualities[0] = Some(1.5)), &quick(), RouterErrorKind::Value);
    check(&spoiled(|outcome| outcome.settings.as_mut().unwrap().top_p = f32::NAN), &quick(), RouterErrorKind::Value);
    check(&outcomes, &TrainOptions { n_members: 1, ..quick() }, RouterErrorKind::Value);
    let stopped = Selector::train(&["weak", "strong"], &outcomes, &quick(), |told| match told.epoch {
        1 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    });
    assert_eq!(stopped.unwrap_err().kind(), RouterErrorKind::Stopped);
    // Behind the last pass come the trees.
    let mut last = 0;
    let stopped = Selector::train(&["weak", "strong"], &outcomes, &quick(), |told| {
        let is_tree = told.epoch == std::mem::replace(&mut last, told.epoch);
        if is_tree { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(stopped.unwrap_err().kind(), RouterErrorKind::Stopped);
}

#[test]
fn buckets_hold_up_to_their_bound() {
    let check = |n_tokens, bucket| assert_eq!(context_bucket(n_tokens), bucket, "{n_tokens}");
    check(0, 0);
    check(512, 0);
    check(513, 1);
    check(32_768, 3);
    check(u32::MAX, 4);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Spoiled bytes are an error or a selector whose answers are numbers, and never a panic.
    #[test]
    fn spoiled_bytes_are_refused(at in 0usize..100_000, with in any::<u8>(), cut in any::<bool>()) {
        use std::sync::OnceLock;
        static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
        let options = TrainOptions { n_epochs: 1, n_hidden: 2, rank: 1, ..quick() };
        let mut bytes = BYTES.get_or_init(|| train(&crossed_outcomes(20), &options).to_bytes()).clone();
        // Half of the cases hit the header, where everything is decided.
        let at = if at % 2 == 0 { at % bytes.len() } else { at % 1000 };
        if cut { bytes.truncate(at) } else { bytes[at] = with }
        if let Ok(selector) = Selector::from_bytes(&bytes) {
            let _ = selector.predict(&vec![0.5; selector.n_query()]).unwrap();
        }
    }
}
