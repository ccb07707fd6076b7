//! Samplers against their definitions, expected distributions and llama.cpp.

use super::dry::Breakers;
use super::*;

mod golden;

fn sampler(params: SamplingParams, n_vocab: usize) -> Sampler {
    Sampler::assemble(&params, n_vocab, Told::default(), || Ok(Breakers::default())).expect("valid parameters")
}

fn open(temperature: f32) -> SamplingParams {
    SamplingParams { temperature, top_k: 0, top_p: 1.0, min_p: 0.0, seed: Some(7), ..SamplingParams::default() }
}

fn draw(sampler: &mut Sampler, logits: &mut [f32]) -> u32 {
    sampler.sample(logits, |_| {}).expect("finite logits").id
}

/// Draws 20,000 tokens and compares each share with its probability (5 standard deviations).
fn check_shares(params: SamplingParams, logits: &[f32], expected: &[f64]) {
    const N: usize = 20_000;
    let mut sampler = sampler(params, logits.len());
    let mut counts = vec![0usize; logits.len()];
    for _ in 0..N {
        counts[draw(&mut sampler, &mut logits.to_vec()) as usize] += 1;
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

/// Probabilities .64 .24 .09 .03.
const FOUR: [f32; 4] = [2.0, 1.0, 0.0, -1.0];

fn two() -> [f64; 4] {
    let p = softmax(&[2.0, 1.0]);
    [p[0], p[1], 0.0, 0.0]
}

#[test]
fn greedy_takes_the_first_of_equals_and_skips_nan() {
    let mut sampler = sampler(SamplingParams::greedy(), 4);
    assert_eq!(draw(&mut sampler, &mut [f32::NAN, 1.0, 3.0, 3.0]), 2);
    let error = sampler.sample(&mut [f32::NAN; 4], |_| {}).expect_err("no number");
    assert_eq!(error.kind(), ErrorKind::Model);
    let error = sampler.sample(&mut [1.0; 4], |logits| logits.fill(f32::NEG_INFINITY)).expect_err("nothing is left");
    assert_eq!(error.to_string(), "every token is ruled out; allow some by bias or grammar");
}

#[test]
fn greedy_is_the_same_by_the_whole_chain() {
    // Typical sampling cannot be skipped, and at 1 less a rounding it keeps all.
    let whole = SamplingParams { typical_p: 1.0 - f32::EPSILON, repeat_penalty: 1.2, ..SamplingParams::greedy() };
    let plain = SamplingParams { typical_p: 1.0, ..whole.clone() };
    let (mut whole, mut plain) = (sampler(whole, 50), sampler(plain, 50));
    for round in 0..200u32 {
        let logits: Vec<f32> = (0..50u32).map(|id| ((id * 7919 + round * 104_729) % 89) as f32 / 10.0).collect();
        let (a, b) = (draw(&mut whole, &mut logits.clone()), draw(&mut plain, &mut logits.clone()));
        assert_eq!(a, b);
        [&mut whole, &mut plain].into_iter().for_each(|sampler| sampler.accept(a));
    }
}

#[test]
fn temperature_shapes_the_distribution() {
    check_shares(open(1.0), &FOUR, &softmax(&[2.0, 1.0, 0.0, -1.0]));
    check_shares(open(0.5), &FOUR, &softmax(&[4.0, 2.0, 0.0, -2.0]));
}

#[test]
fn dynamic_temperature_follows_the_entropy() {
    let dynamic = SamplingParams { dynatemp_range: 0.5, ..open(1.0) };
    let p = softmax(&[2.0, 1.0, 0.0, -1.0]);
    let entropy: f64 = -p.iter().map(|p| p * p.ln()).sum::<f64>();
    let t = 0.5 + entropy / 4f64.ln();
    check_shares(dynamic.clone(), &FOUR, &softmax(&[2.0 / t, 1.0 / t, 0.0, -1.0 / t]));
    // As uncertain as can be: the upper end. Nothing is left to shape.
    check_shares(dynamic, &[1.0; 4], &[0.25; 4]);
}

#[test]
fn top_k_keeps_the_k_most_likely() {
    let p = two();
    check_shares(SamplingParams { top_k: 2, ..open(1.0) }, &[0.0, 2.0, -1.0, 1.0], &[0.0, p[0], 0.0, p[1]]);
}

#[test]
fn top_p_keeps_the_shortest_run_that_reaches_p() {
    // 0.7 needs two, 0.6 needs one.
    check_shares(SamplingParams { top_p: 0.7, ..open(1.0) }, &FOUR, &two());
    check_shares(SamplingParams { top_p: 0.6, ..open(1.0) }, &FOUR, &[1.0, 0.0, 0.0, 0.0]);
    // More than are sorted at first: of 1,000 equals the first 400.
    let mut expected = [0.0; 1000];
    expected[..400].fill(1.0 / 400.0);
    check_shares(SamplingParams { top_p: 0.39999, ..open(1.0) }, &[1.0; 1000], &expected);
}

#[test]
fn min_p_is_relative_to_the_most_likely() {
    // e^-1 = .37 of the most likely stays at .3, e^-2 = .14 goes.
    check_shares(SamplingParams { min_p: 0.3, ..open(1.0) }, &FOUR, &two());
}

#[test]
fn typical_keeps_what_surprises_as_expected() {
    // Entropy .95 nats; surprises .44 1.44 2.44 3.44: the second is closest (.49), then the first (.51).
    check_shares(SamplingParams { typical_p: 0.2, ..open(1.0) }, &FOUR, &[0.0, 1.0, 0.0, 0.0]);
    check_shares(SamplingParams { typical_p: 0.5, ..open(1.0) }, &FOUR, &two());
}

#[test]
fn top_n_sigma_counts_standard_deviations() {
    // Mean .5, standard deviation 1.118: one of them below 2 is .88.
    check_shares(SamplingParams { top_n_sigma: 1.0, ..open(1.0) }, &FOUR, &two());
    check_shares(SamplingParams { top_n_sigma: 3.0, ..open(1.0) }, &FOUR, &softmax(&[2.0, 1.0, 0.0, -1.0]));
}

#[test]
fn xtc_leaves_the_least_of_the_obvious() {
    // Above .2 are two; half of the time only the second of them and what is below is left.
    let (all, rest) = (softmax(&[2.0, 1.0, 0.0, -1.0]), softmax(&[1.0, 0.0, -1.0]));
    let half = |i: usize| 0.5 * all[i] + if i > 0 { 0.5 * rest[i - 1] } else { 0.0 };
    let params = SamplingParams { xtc_probability: 0.5, xtc_threshold: 0.2, ..open(1.0) };
    check_shares(params.clone(), &FOUR, &[half(0), half(1), half(2), half(3)]);
    check_shares(SamplingParams { xtc_threshold: 0.3, ..params }, &FOUR, &all);
}

#[test]
fn mirostat_reaches_the_surprise_asked_for() {
    let logits: Vec<f32> = (1..=500).map(|rank: i32| -1.1 * (rank as f32).ln()).collect();
    let p = softmax(&logits.iter().map(|&l| f64::from(l)).collect::<Vec<_>>());
    for (mirostat, tau) in [(Mirostat::V1, 3.0), (Mirostat::V2, 3.0), (Mirostat::V2, 4.5)] {
        let mut sampler = sampler(SamplingParams { mirostat, mirostat_tau: tau, ..open(1.0) }, logits.len());
        let drawn: Vec<u32> = (0..4000).map(|_| draw(&mut sampler, &mut logits.clone())).collect();
        // Surprise is told by what the cut leaves; by the whole distribution it is more.
        let surprise = drawn.iter().map(|&id| -p[id as usize].log2()).sum::<f64>() / 4000.0;
        let kept: f64 = p.iter().take(1 + *drawn.iter().max().expect("some") as usize).sum();
        let at_most = surprise + kept.log2();
        assert!((f64::from(tau) - 0.7..=f64::from(tau) + 0.7).contains(&at_most), "{mirostat:?} {tau}: {at_most}");
    }
}

#[test]
fn penalties_count_what_is_recent() {
    let params = SamplingParams { repeat_penalty: 2.0, repeat_last_n: 2, ..SamplingParams::greedy() };
    let mut once = sampler(params.clone(), 3);
    let frequency = SamplingParams { frequency_penalty: 0.5, presence_penalty: 0.25, repeat_penalty: 1.0, ..params };
    let mut each = sampler(frequency, 3);
    for (ids, divided, taken) in [
        (&[0, 0][..], [2.0, 1.0, -1.0], [2.75, 1.0, -1.0]),
        (&[2], [2.0, 1.0, -2.0], [3.25, 1.0, -1.75]),
        (&[1], [4.0, 0.5, -2.0], [4.0, 0.25, -1.75]),
        (&[1], [4.0, 0.5, -1.0], [4.0, -0.25, -1.0]),
    ] {
        for (sampler, expected) in [(&mut once, divided), (&mut each, taken)] {
            ids.iter().for_each(|&id| sampler.accept(id));
            let mut logits = [4.0, 1.0, -1.0];
            draw(sampler, &mut logits);
            assert_eq!(logits, expected, "after {ids:?}");
        }
    }
}

#[test]
fn repetitions_cost_by_their_length() {
    let params =
        SamplingParams { dry_multiplier: 1.0, dry_base: 2.0, dry_penalty_last_n: 12, ..SamplingParams::greedy() };
    // The last n tokens stand further up, before `next`: 2^(n - 2), less than two are free.
    for (history, next, cost) in [
        (&[1, 2, 3, 4, 9, 2, 3][..], 4, 1.0),
        (&[1, 2, 3, 4, 9, 1, 2, 3], 4, 2.0),
        (&[1, 2, 3, 4, 9, 3], 4, 0.0),
        (&[5, 5, 5, 5], 5, 2.0),
        // Out of reach: it is more than 12 tokens ago.
        (&[1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 3], 4, 0.0),
    ] {
        let mut sampler = sampler(params.clone(), 10);
        history.iter().for_each(|&id| sampler.accept(id));
        let mut logits = [0.0; 10];
        draw(&mut sampler, &mut logits);
        assert_eq!(logits[next], -cost, "{history:?}");
    }
}

#[test]
fn penalties_are_the_same_before_and_after_a_cut() {
    use SamplerKind::{Dry, Penalties, Temperature, TopK};
    let order = vec![Penalties, Dry, TopK, Temperature];
    let early = SamplingParams { repeat_penalty: 1.5, dry_multiplier: 1.0, top_k: 20, order, ..open(0.0) };
    // A cut that keeps all, first.
    let late = SamplingParams { order: vec![TopK, Penalties, Dry, Temperature], ..early.clone() };
    let (mut early, mut late) = (sampler(early, 20), sampler(late, 20));
    assert_ne!(early.chain, late.chain);
    for i in 0..100u32 {
        let logits: Vec<f32> = (0..20u32).map(|id| ((id * 37 + i * 11) % 23) as f32 / 8.0).collect();
        let a = draw(&mut early, &mut logits.clone());
        assert_eq!(a, draw(&mut late, &mut logits.clone()));
        [&mut early, &mut late].into_iter().for_each(|sampler| sampler.accept(a % 4));
    }
}

#[test]
fn a_bias_is_added_first() {
    let params = SamplingParams { logit_bias: vec![(3, 3.0), (0, f32::NEG_INFINITY)], ..open(1.0) };
    let p = softmax(&[1.0, 0.0, 2.0]);
    check_shares(params.clone(), &FOUR, &[0.0, p[0], p[1], p[2]]);
    let greedy = SamplingParams { temperature: 0.0, ..params };
    assert_eq!(draw(&mut sampler(greedy, 4), &mut FOUR.clone()), 3);
}

#[test]
fn the_most_likely_are_found_in_one_look() {
    let mut rng = Rng::new(3);
    for round in 0..200 {
        let n = 1 + round * 7;
        let mut logits: Vec<f32> = (0..n).map(|_| (rng.uniform() * 40.0) as f32 as u32 as f32).collect();
        if round % 3 == 0 {
            logits.iter_mut().step_by(2).for_each(|logit| *logit = f32::NEG_INFINITY);
        }
        for k in [1, 2, 40, 1000] {
            let (mut at_once, mut all) = (Candidates::new(n), Candidates::new(n));
            at_once.fill_top(&logits, k);
            all.fill(&logits);
            all.keep(k);
            assert_eq!(at_once.items(), all.items(), "{k} of {n}");
        }
    }
}

#[test]
fn log_probabilities_are_the_models_own() {
    let params = SamplingParams { logit_bias: vec![(2, 100.0)], ..SamplingParams::greedy() };
    let mut sampler =
        Sampler::assemble(&params, 4, Told { n_top: Some(2), is_of_draw: false }, || Ok(Breakers::default()))
            .expect("valid");
    let chosen = sampler.sample(&mut [1.0, 2.0, -1.0, 1.0], |_| {}).expect("numbers");
    let p = softmax(&[1.0, 2.0, -1.0, 1.0]);
    let told = chosen.logprobs.expect("they were asked for");
    assert_eq!(chosen.id, 2);
    assert!((f64::from(told.logprob) - p[2].ln()).abs() < 1e-6);
    assert_eq!(told.top.iter().map(|top| top.0).collect::<Vec<_>>(), [1, 0]);
    assert!(told.top.iter().all(|&(id, logprob)| (f64::from(logprob) - p[id as usize].ln()).abs() < 1e-6));
    let error = Sampler::assemble(&params, 4, Told { n_top: Some(5), is_of_draw: false }, || Ok(Breakers::default()))
        .err()
        .expect("too many");
    assert_eq!(error.to_string(), "log-probabilities of 5 tokens are more than the vocabulary of 4 has");
}

#[test]
fn a_seed_repeats_its_draws() {
    let draws = |seed| {
        let mut sampler = sampler(SamplingParams { seed: Some(seed), ..open(1.0) }, 64);
        (0..64).map(|_| draw(&mut sampler, &mut [0.0; 64])).collect::<Vec<_>>()
    };
    assert_eq!(draws(1), draws(1));
    assert_ne!(draws(1), draws(2));
}

#[test]
fn parameters_out_of_range_are_named() {
    let default = SamplingParams::default;
    for (params, word) in [
        (SamplingParams { temperature: -1.0, ..default() }, "temperature"),
        (SamplingParams { top_p: 1.5, ..default() }, "top-p"),
        (SamplingParams { min_p: f32::NAN, ..default() }, "min-p"),
        (SamplingParams { typical_p: -0.5, ..default() }, "typical-p"),
        (SamplingParams { repeat_penalty: 0.0, ..default() }, "repeat penalty"),
        (SamplingParams { xtc_probability: 2.0, ..default() }, "xtc probability"),
        (SamplingParams { mirostat_tau: f32::INFINITY, ..default() }, "mirostat tau"),
        (SamplingParams { logit_bias: vec![(1, f32::NAN)], ..default() }, "bias NaN of token 1"),
        (SamplingParams { dry_sequence_breakers: vec!["x".repeat(41)], ..default() }, "41 bytes"),
        (SamplingParams { order: vec![SamplerKind::TopK; 2], ..default() }, "top_k stands twice"),
    ] {
        let line = params.validate().expect_err("out of range").to_string();
        assert!(line.contains(word), "{line}");
    }
    let outside = SamplingParams { logit_bias: vec![(4, 1.0)], ..default() };
    let error =
        Sampler::assemble(&outside, 4, Told::default(), || Ok(Breakers::default())).err().expect("no such token");
    assert_eq!(error.to_string(), "the bias of token 4 is outside the vocabulary of 4");
    assert_eq!("top-k".parse(), Ok(SamplerKind::TopK));
    assert!("sort".parse::<SamplerKind>().is_err_and(|line| line.contains("temperature")));
}

#[test]
fn what_is_looked_at_in_blocks_is_found_as_one_by_one() {
    let mut state = 88_172_645_463_325_252_u64;
    let mut logit = || {
        // xorshift64 (Marsaglia 2003); many equals, some that are no number.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        match state % 12 {
            0 => f32::NAN,
            1 => f32::NEG_INFINITY,
            2 => -0.0,
            _ => (state >> 40) as f32 % 64.0 - 32.0,
        }
    };
    for n in [1, 15, 16, 17, 63, 64, 65, 1000, 5000] {
        let logits: Vec<f32> = (0..n).map(|_| logit()).collect();
        let numbers = || logits.iter().enumerate().filter(|(_, logit)| **logit > f32::NEG_INFINITY);
        let first = numbers().fold(None, |best: Option<(usize, &f32)>, this| match best {
            Some(best) if *best.1 >= *this.1 => Some(best),
            _ => Some(this),
        });
        assert_eq!(argmax(&logits), first.map(|(id, _)| id as u32));
        for k in [1, 3, 40, 200] {
            let (mut all, mut top) = (Candidates::new(n), Candidates::new(n));
            all.fill(&logits);
            all.keep(k);
            top.fill_top(&logits, k);
            assert_eq!(top.items(), all.items(), "the {k} most likely of {n}");
        }
    }
}

#[test]
fn how_many_logits_a_choice_depends_on() {
    let n_best = |params: SamplingParams| sampler(params, 100).n_best();
    let default = SamplingParams::default;
    assert_eq!(n_best(SamplingParams::greedy()), Some(1));
    assert_eq!(n_best(SamplingParams { top_k: 3, ..SamplingParams::greedy() }), Some(1));
    assert_eq!(n_best(default()), Some(40));
    assert_eq!(n_best(SamplingParams { top_k: 0, ..default() }), None);
    assert_eq!(n_best(SamplingParams { repeat_penalty: 1.1, ..default() }), None);
    assert_eq!(n_best(SamplingParams { repeat_penalty: 1.1, ..SamplingParams::greedy() }), None);
    assert_eq!(n_best(SamplingParams { logit_bias: vec![(3, 1.0)], ..SamplingParams::greedy() }), None);
    assert_eq!(n_best(SamplingParams { mirostat: Mirostat::V2, ..default() }), None);
    assert_eq!(n_best(SamplingParams { top_n_sigma: 1.0, ..default() }), None, "it comes before top-k");
    let (temperature, dynatemp_range) = (0.0, 0.5);
    assert_eq!(n_best(SamplingParams { temperature, dynatemp_range, top_k: 7, ..default() }), Some(7));
    let order = vec![SamplerKind::Temperature, SamplerKind::TopK];
    let hot = SamplingParams { order, temperature: 3.0, ..default() };
    assert_eq!(
        n_best(hot.clone()),
        None,
        "a quotient may be equal where logits are not, so that others are the k best"
    );
    assert_eq!(n_best(SamplingParams { temperature: 1.0, ..hot }), Some(40), "it divides nothing");
}

/// Returns the row with nothing but its `n` largest logits, the lower id first among equals.
fn only_largest(row: &[f32], n: usize) -> Vec<f32> {
    let mut ids: Vec<usize> = (0..row.len()).collect();
    ids.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).expect("numbers").then(a.cmp(&b)));
    let mut only = vec![f32::NEG_INFINITY; row.len()];
    ids.into_iter().take(n).for_each(|id| only[id] = row[id]);
    only
}

#[test]
fn a_choice_is_the_same_from_the_largest_logits_alone() {
    let default = SamplingParams::default;
    let several = [
        default(),
        SamplingParams::greedy(),
        SamplingParams { top_k: 1, ..default() },
        SamplingParams { top_p: 1.0, min_p: 0.0, temperature: 1.7, ..default() },
        SamplingParams { top_k: 100, top_p: 0.99, min_p: 0.0, temperature: 3.0, ..default() },
        SamplingParams { top_k: 128, typical_p: 0.6, xtc_probability: 0.5, xtc_threshold: 0.05, ..default() },
        SamplingParams { dynatemp_range: 0.5, ..default() },
    ];
    for (params, n_vocab) in several.iter().flat_map(|params| [30, 129, 1000].map(|n_vocab| (params, n_vocab))) {
        for seed in 0..60u64 {
            let params = SamplingParams { seed: Some(seed), ..params.clone() };
            let (mut whole, mut largest) = (sampler(params.clone(), n_vocab), sampler(params, n_vocab));
            let n_best = whole.n_best().expect("no others count");
            for round in 0..4u64 {
                // In every second row few numbers are different, and in some most are ruled out.
                let logits = (0..n_vocab as u64).map(|id| {
                    let x = (id * 7919 + (seed * 4 + round) * 104_729) % 1_009;
                    match round {
                        0 => x as f32 / 50.0,
                        1 => (x % 7) as f32 * if id % 2 == 0 { 0.5 } else { -0.0 },
                        2 if id % 9 != seed % 9 => f32::NEG_INFINITY,
                        _ => (x % 40) as f32 / 10.0 - 2.0,
                    }
                });
                let logits: Vec<f32> = logits.collect();
                let id = draw(&mut whole, &mut logits.clone());
                // A batch may want more of a row than this one does.
                let n = n_best + [0, 17][seed as usize % 2];
                assert_eq!(draw(&mut largest, &mut only_largest(&logits, n)), id, "{n} of {n_vocab}, seed {seed}");
            }
        }
    }
}
