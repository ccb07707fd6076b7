//! Samplers against their definitions and expected distributions.

use super::*;

fn sampler(params: SamplingParams, n_vocab: usize) -> Sampler {
    Sampler::new(&params, n_vocab).expect("valid parameters")
}

fn open(temperature: f32) -> SamplingParams {
    SamplingParams { temperature, top_k: 0, top_p: 1.0, min_p: 0.0, seed: Some(7), ..SamplingParams::default() }
}

/// Draws 20,000 tokens and compares each share with its probability (5 standard deviations).
fn check_shares(params: SamplingParams, logits: &[f32], expected: &[f64]) {
    const N: usize = 20_000;
    let mut sampler = sampler(params, logits.len());
    let mut counts = vec![0usize; logits.len()];
    for _ in 0..N {
        counts[sampler.sample(&mut logits.to_vec()).expect("finite logits") as usize] += 1;
    }
    for (id, (&count, &p)) in counts.iter().zip(expected).enumerate() {
        let (share, sigma) = (count as f64 / N as f64, (p * (1.0 - p) / N as f64).sqrt());
        assert!((share - p).abs() <= 5.0 * sigma + 1e-12, "token {id}: share {share}, expected {p}");
    }
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|l| l.exp()).sum();
    logits.iter().map(|l| l.exp() / sum).collect()
}

#[test]
fn greedy_takes_the_first_of_equals_and_skips_nan() {
    let mut sampler = sampler(SamplingParams::greedy(), 4);
    assert_eq!(sampler.sample(&mut [f32::NAN, 1.0, 3.0, 3.0]).expect("numbers"), 2);
    let error = sampler.sample(&mut [f32::NAN; 4]).expect_err("no number");
    assert_eq!(error.kind(), ErrorKind::Model);
}

#[test]
fn temperature_shapes_the_distribution() {
    let logits = [2.0, 1.0, 0.0, -1.0];
    check_shares(open(1.0), &logits, &softmax(&[2.0, 1.0, 0.0, -1.0]));
    check_shares(open(0.5), &logits, &softmax(&[4.0, 2.0, 0.0, -2.0]));
}

#[test]
fn top_k_keeps_the_k_likeliest() {
    let two = softmax(&[2.0, 1.0]);
    check_shares(SamplingParams { top_k: 2, ..open(1.0) }, &[0.0, 2.0, -1.0, 1.0], &[0.0, two[0], 0.0, two[1]]);
}

#[test]
fn top_p_keeps_the_shortest_run_that_reaches_p() {
    // Probabilities .64 .24 .09 .03: 0.7 needs two, 0.6 needs one.
    let two = softmax(&[2.0, 1.0]);
    check_shares(SamplingParams { top_p: 0.7, ..open(1.0) }, &[2.0, 1.0, 0.0, -1.0], &[two[0], two[1], 0.0, 0.0]);
    check_shares(SamplingParams { top_p: 0.6, ..open(1.0) }, &[2.0, 1.0, 0.0, -1.0], &[1.0, 0.0, 0.0, 0.0]);
}

#[test]
fn min_p_is_relative_to_the_likeliest() {
    // e^-1 = .37 of the likeliest stays at .3, e^-2 = .14 goes.
    let two = softmax(&[2.0, 1.0]);
    check_shares(SamplingParams { min_p: 0.3, ..open(1.0) }, &[2.0, 1.0, 0.0, -1.0], &[two[0], two[1], 0.0, 0.0]);
}

#[test]
fn repeat_penalty_counts_a_token_once_and_forgets_it() {
    let params = SamplingParams { repeat_penalty: 2.0, repeat_last_n: 2, ..SamplingParams::greedy() };
    let mut sampler = sampler(params, 3);
    sampler.accept(0);
    sampler.accept(0);
    let mut logits = [4.0, 1.0, -1.0];
    assert_eq!(sampler.sample(&mut logits).expect("numbers"), 0);
    assert_eq!(logits, [2.0, 1.0, -1.0]);
    sampler.accept(2);
    sampler.accept(1);
    let mut logits = [4.0, 1.0, -1.0];
    sampler.sample(&mut logits).expect("numbers");
    assert_eq!(logits, [4.0, 0.5, -2.0]);
}

#[test]
fn a_seed_repeats_its_draws() {
    let draw = |seed| {
        let mut sampler = sampler(SamplingParams { seed: Some(seed), ..open(1.0) }, 64);
        (0..64).map(|_| sampler.sample(&mut [0.0; 64]).expect("numbers")).collect::<Vec<_>>()
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

#[test]
fn parameters_out_of_range_are_named() {
    for (params, word) in [
        (SamplingParams { temperature: -1.0, ..SamplingParams::default() }, "temperature"),
        (SamplingParams { top_p: 1.5, ..SamplingParams::default() }, "top-p"),
        (SamplingParams { min_p: f32::NAN, ..SamplingParams::default() }, "min-p"),
        (SamplingParams { repeat_penalty: 0.0, ..SamplingParams::default() }, "repeat penalty"),
    ] {
        let line = params.validate().expect_err("out of range").to_string();
        assert!(line.contains(word), "{line}");
    }
}
