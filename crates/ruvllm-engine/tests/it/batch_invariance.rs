//! Batch invariance: requests of mixed lengths, seeds and samplers give the same tokens alone and in a batch of sixteen,
//! with a cold cache and a warm one, drafted by the text so far, by a draft model, and not at all.

use std::path::Path;

use ruvllm_engine::{DraftOptions, Engine, GenerateRequest, LoadOptions, Mirostat, SamplingParams, Speculation};
use ruvllm_testkit::{Golden, real_model};

fn open(path: &Path, n_seq_max: usize, prefix_cache: bool) -> Engine {
    let draft = Some(DraftOptions { path: path.to_owned(), n_branches: 1 });
    let options =
        LoadOptions { n_ctx: Some(512), n_seq_max, n_threads: 2, prefix_cache, draft, ..LoadOptions::default() };
    Engine::load(path, &options, &mut |_| {}).expect("it loads")
}

fn request(i: u32) -> GenerateRequest {
    // Some begin alike, and repeat themselves.
    let words = |seed: u32, n: u32| (0..n).map(move |k| (k * k * 31 + seed * 7919) % (5 + seed % 90) + 7);
    let prompt: Vec<u32> = words(i % 4, (i % 5) * 17).chain(words(i, 1 + i * 37 % 50)).collect();
    let hot =
        SamplingParams { seed: Some(u64::from(i)), temperature: 0.5 + (i % 4) as f32 * 0.3, ..Default::default() };
    let sampling = match i % 7 {
        0 => SamplingParams::greedy(),
        1 => SamplingParams { top_k: 1 + i as usize % 50, ..hot },
        2 => SamplingParams { top_k: 0, top_p: 0.9, min_p: 0.0, ..hot },
        3 => SamplingParams { repeat_penalty: 1.3, frequency_penalty: 0.2, ..hot },
        4 => SamplingParams { typical_p: 0.9, xtc_probability: 0.4, xtc_threshold: 0.05, ..hot },
        5 => SamplingParams { dry_multiplier: 0.8, dynatemp_range: 0.3, ..hot },
        _ => SamplingParams { mirostat: Mirostat::V2, mirostat_tau: 3.0, ..hot },
    };
    let max_tokens = Some(1 + i as usize * 13 % 30);
    GenerateRequest { prompt, max_tokens, sampling, ignore_eos: i.is_multiple_of(2), ..Default::default() }
}

fn check(path: &Path, n: u32) {
    let mut cold = open(path, 1, false);
    let alone: Vec<Vec<u32>> = (0..n)
        .map(|i| {
            let request = GenerateRequest { speculation: Speculation::Off, ..request(i) };
            cold.generate(&request).expect("valid").for_each_token(|_| {}).expect("it runs").tokens
        })
        .collect();
    drop(cold);
    for speculation in [Speculation::Off, Speculation::Ngram, Speculation::Draft, Speculation::Auto] {
        // Sixteen at a time leave no rows for guesses but at the end; four do.
        let mut n_guessed = 0;
        for (n_at_once, n_rounds) in [(16, 2), (4, 1)] {
            let mut engine = open(path, n_at_once, true);
            for round in 0..n_rounds {
                let mut scheduler = engine.scheduler(&Default::default()).expect("valid options");
                for i in 0..n {
                    scheduler.submit(GenerateRequest { speculation, ..request(i) }).expect("valid");
                }
                let answers = scheduler.run().into_iter().map(|(_, answer)| answer.expect("it runs"));
                let mut n_cached = 0;
                for ((i, answer), expected) in answers.enumerate().zip(&alone) {
                    assert_eq!(&answer.tokens, expected, "request {i}, {speculation:?}, {n_at_once}, round {round}");
                    n_guessed += answer.timings.draft_tokens;
                    n_cached += answer.timings.cached_tokens;
                }
                assert!(n_cached > 0 && scheduler.stats().n_running_max == n_at_once);
            }
        }
        assert_eq!(n_guessed > 0, speculation != Speculation::Off, "{speculation:?}");
    }
}

#[test]
fn company_cache_and_guesses_change_no_token_of_200_requests() {
    check(&Golden::load("llama-a").model("f32"), 200);
}

#[test]
fn nor_of_a_real_model() {
    check(&real_model("smollm2:135m"), 18);
}
