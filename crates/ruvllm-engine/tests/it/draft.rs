//! A draft model changes how fast an answer is and nothing else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ruvllm_engine::{
    DraftOptions, Engine, ErrorKind, GenerateRequest, GenerationSummary, GrammarSource, KvPolicy, LoadOptions,
    Mirostat, SamplingParams, Speculation, Timings,
};
use ruvllm_gguf::{GgufFile, GgufWriter};
use ruvllm_testkit::{Golden, real_model};
use serde_json::json;

/// Writes a model that thinks as `source` does at `n_times` its cost: behind its layers come others that add nothing.
fn deepened(source: &Path, n_times: usize, dir: &Path) -> PathBuf {
    let file = GgufFile::open(source).expect("a model");
    let mut writer = GgufWriter::from_file(&file);
    let key = format!("{}.block_count", file.metadata().str("general.architecture").expect("text").expect("named"));
    let n_layers = file.metadata().u32(&key).expect("a number").expect("it is there") as usize;
    writer.metadata_mut().set(&key, (n_layers * n_times) as u32);
    for tensor in file.tensors().filter(|tensor| tensor.name.starts_with("blk.0.")) {
        let adds = ["attn_output", "ffn_down"].iter().any(|name| tensor.name.contains(name));
        for layer in n_layers..n_layers * n_times {
            let name = tensor.name.replacen("blk.0.", &format!("blk.{layer}."), 1);
            let bytes = if adds { vec![0; tensor.n_bytes()] } else { file.data(tensor).to_vec() };
            writer.add_tensor(name, tensor.ty, &tensor.shape, bytes).expect("it fits");
        }
    }
    let path = dir.join(format!("{n_times}-times.gguf"));
    writer.write_file(&path).expect("it is written");
    path
}

/// Writes a model (of 32-bit floats) that thinks much as `source` does: its feed-forward layers add `factor` of theirs.
fn altered(source: &Path, factor: f32, dir: &Path) -> PathBuf {
    let file = GgufFile::open(source).expect("a model");
    let mut writer = GgufWriter::new();
    *writer.metadata_mut() = file.metadata().clone();
    for tensor in file.tensors() {
        let mut bytes = file.data(tensor).to_vec();
        if tensor.name.contains("ffn_down") {
            for value in bytes.chunks_exact_mut(4) {
                let scaled = factor * f32::from_le_bytes(value.try_into().expect("four bytes"));
                value.copy_from_slice(&scaled.to_le_bytes());
            }
        }
        writer.add_tensor(&tensor.name, tensor.ty, &tensor.shape, bytes).expect("it fits");
    }
    let path = dir.join(format!("altered-{factor}.gguf"));
    writer.write_file(&path).expect("it is written");
    path
}

/// A tiny model that costs sixteen times what `small` does and thinks the same, and a draft model.
struct Pair {
    dir: tempfile::TempDir,
    small: PathBuf,
    large: PathBuf,
}

impl Pair {
    fn of(name: &str) -> Pair {
        let (dir, small) = (tempfile::tempdir().expect("a folder"), Golden::load(name).model("f32"));
        let large = deepened(&small, 16, dir.path());
        Pair { dir, small, large }
    }

    /// Opens the large one; the draft model is the small one, its layers altered by `factor`.
    fn open(&self, factor: f32, n_branches: usize, n_seq_max: usize) -> Engine {
        let path = if factor == 1.0 { self.small.clone() } else { altered(&self.small, factor, self.dir.path()) };
        let draft = Some(DraftOptions { path, n_branches });
        let options = LoadOptions { n_ctx: Some(256), n_seq_max, n_threads: 2, draft, ..LoadOptions::default() };
        Engine::load(&self.large, &options, &mut |_| {}).expect("it loads")
    }
}

fn hot(seed: u64) -> SamplingParams {
    SamplingParams { seed: Some(seed), temperature: 0.7, ..SamplingParams::default() }
}

/// Requests of many ways to choose.
fn mixed(n: u32) -> Vec<GenerateRequest> {
    let request = |i: u32| {
        let prompt: Vec<u32> = (0..3 + i * 7 % 60).map(|k| (k * k * 31 + i * 17) % 200 + 7).collect();
        let seed = u64::from(i);
        let sampling = match i % 6 {
            0 => SamplingParams::greedy(),
            1 => hot(seed),
            2 => SamplingParams { repeat_penalty: 1.2, dry_multiplier: 0.4, frequency_penalty: 0.1, ..hot(seed) },
            3 => SamplingParams { mirostat: Mirostat::V2, mirostat_tau: 3.0, ..hot(seed) },
            4 => SamplingParams { xtc_probability: 0.5, typical_p: 0.9, dynatemp_range: 0.3, ..hot(seed) },
            _ => SamplingParams { repeat_penalty: 1.3, logit_bias: vec![(9, 2.0)], ..SamplingParams::greedy() },
        };
        let (max_tokens, logprobs) = (Some(20 + i as usize * 13 % 60), i.is_multiple_of(5).then_some(2));
        GenerateRequest { prompt, max_tokens, sampling, logprobs, ignore_eos: true, ..Default::default() }
    };
    (0..n).map(request).collect()
}

fn answer(engine: &mut Engine, request: &GenerateRequest, speculation: Speculation) -> GenerationSummary {
    let request = GenerateRequest { speculation, ..request.clone() };
    engine.generate(&request).expect("a valid request").for_each_token(|_| {}).expect("it runs")
}

/// What does not depend on time.
fn facts(summary: &GenerationSummary) -> GenerationSummary {
    GenerationSummary { timings: Timings::default(), ..summary.clone() }
}

/// Answers with and without a draft model, compares them, and returns how many guesses there were and how many right.
fn check(engine: &mut Engine, requests: &[GenerateRequest], how: Speculation) -> (usize, usize) {
    let mut guesses = (0, 0);
    for request in requests {
        let (off, on) = (answer(engine, request, Speculation::Off), answer(engine, request, how));
        assert_eq!(facts(&on), facts(&off), "{request:?}");
        guesses = (guesses.0 + on.timings.draft_tokens, guesses.1 + on.timings.accepted_tokens);
    }
    guesses
}

#[test]
fn a_draft_that_thinks_the_same_is_right_also_where_tokens_are_drawn() {
    for name in ["llama-a", "gemma3-a"] {
        let mut engine = Pair::of(name).open(1.0, 1, 1);
        let (n, n_accepted) = check(&mut engine, &mixed(18), Speculation::Draft);
        assert!(n > 300 && n_accepted == n, "{name}: {n_accepted} of {n} guesses were right");
        check(&mut engine, &mixed(12), Speculation::Auto);
    }
}

#[test]
fn a_draft_that_thinks_otherwise_is_taken_back() {
    let pair = Pair::of("llama-a");
    let (n, n_accepted) = check(&mut pair.open(0.6, 1, 1), &mixed(24), Speculation::Draft);
    assert!(n_accepted > n / 20 && n_accepted < n * 9 / 10, "{n_accepted} of {n} guesses were right");
    // One that is always wrong is soon left alone.
    let requests: Vec<GenerateRequest> =
        mixed(12).into_iter().map(|request| GenerateRequest { max_tokens: Some(120), ..request }).collect();
    let (n, n_accepted) = check(&mut pair.open(-40.0, 1, 1), &requests, Speculation::Draft);
    assert!(n < 12 * 120 / 4 && n_accepted < n / 4, "{n_accepted} of {n} guesses were right");
}

#[test]
fn branches_are_tried_where_sequences_are_free() {
    let pair = Pair::of("llama-a");
    let requests = mixed(24);
    let right = |n_branches: usize, n_seq_max: usize| {
        let mut engine = pair.open(0.6, n_branches, n_seq_max);
        let (n, n_accepted) = check(&mut engine, &requests, Speculation::Draft);
        let usage = engine.kv_usage();
        assert_eq!((usage.free + usage.cached_only, usage.in_use), (usage.total, 0));
        n_accepted as f64 / n as f64
    };
    let (chain, none_free) = (right(1, 4), right(3, 1));
    assert_eq!(chain, none_free);
    let (mut wide, mut narrow) = (pair.open(0.6, 4, 4), pair.open(0.6, 1, 1));
    // A branch is right where the chain is wrong at once: passes are saved that the chain alone needs.
    let steps = |engine: &mut Engine| {
        let mut scheduler = engine.scheduler(&Default::default()).expect("valid options");
        for request in &requests {
            let request = GenerateRequest { speculation: Speculation::Draft, ..request.clone() };
            scheduler.submit(request).expect("valid");
            scheduler.run();
        }
        scheduler.stats().n_steps
    };
    let (n_wide, n_narrow) = (steps(&mut wide), steps(&mut narrow));
    assert!(n_wide < n_narrow, "{n_wide} steps with branches, {n_narrow} without");
}

#[test]
fn in_a_batch_it_is_the_same_and_nothing_is_left_behind() {
    let pair = Pair::of("llama-a");
    let (mut engine, mut reference) = (pair.open(0.8, 2, 6), pair.open(1.0, 1, 1));
    let requests = mixed(40);
    for round in 0..2 {
        let mut scheduler = engine.scheduler(&Default::default()).expect("valid options");
        for (i, request) in requests.iter().enumerate() {
            let request = GenerateRequest { speculation: Speculation::Draft, ..request.clone() };
            if i % 7 == 6 {
                request.cancel.cancel();
            }
            scheduler.submit(request).expect("valid");
        }
        for ((_, summary), request) in scheduler.run().into_iter().zip(&requests) {
            let (summary, expected) = (summary.expect("it runs"), answer(&mut reference, request, Speculation::Off));
            match request.cancel.is_cancelled() {
                true => assert!(expected.tokens.starts_with(&summary.tokens)),
                false => assert_eq!(facts(&summary), facts(&expected), "round {round}"),
            }
        }
        drop(scheduler);
        let draft = engine.runner_mut().draft().expect("it has one");
        assert_eq!((draft.n_free(), draft.kv_usage().in_use), (6, 0));
    }
    assert_eq!((engine.runner().n_free(), engine.kv_usage().in_use), (6, 0));
}

#[test]
fn drawn_tokens_have_the_models_distribution() {
    const N: u32 = 2000;
    let mut engine = Pair::of("llama-a").open(0.6, 1, 1);
    let sampling = |seed| SamplingParams { temperature: 0.25, top_k: 0, top_p: 1.0, min_p: 0.0, ..hot(seed) };
    let prompt: Vec<u32> = (0..12).map(|k| k * k % 200 + 7).collect();
    // The second and third tokens of an answer are guessed; they are counted by what stands before them.
    let (mut counts, mut n_accepted) = (BTreeMap::<Vec<u32>, BTreeMap<u32, u32>>::new(), 0);
    for seed in 0..N {
        let (prompt, sampling) = (prompt.clone(), sampling(u64::from(seed)));
        let request = GenerateRequest { prompt, max_tokens: Some(5), sampling, ignore_eos: true, ..Default::default() };
        let summary = answer(&mut engine, &request, Speculation::Draft);
        n_accepted += summary.timings.accepted_tokens;
        for n in [1, 2] {
            let before = [&summary.prompt_tokens, &summary.tokens[..n]].concat();
            *counts.entry(before).or_default().entry(summary.tokens[n]).or_default() += 1;
        }
    }
    assert!(n_accepted > N as usize / 10, "{n_accepted} guesses were right");
    let (mut chi2, mut n_bins) = (0.0, 0);
    for (before, counts) in counts {
        let n: u32 = counts.values().sum();
        let mut logits = Vec::new();
        engine
            .logits(&before, 64, &mut |rows| {
                logits = rows.to_vec();
                Ok(())
            })
            .expect("it fits");
        let last = &logits[logits.len() - engine.info().n_vocab..];
        let max = last.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f64> = last.iter().map(|&logit| f64::from((logit - max) / 0.25).exp()).collect();
        let sum: f64 = weights.iter().sum();
        // What is expected less than five times counts together.
        let (mut rest, mut own) = ((0.0, 0.0), 0);
        for (id, weight) in (0u32..).zip(&weights) {
            let (expected, seen) = (f64::from(n) * weight / sum, f64::from(counts.get(&id).copied().unwrap_or(0)));
            if expected >= 5.0 {
                (chi2, own) = (chi2 + (seen - expected).powi(2) / expected, own + 1);
            } else {
                rest = (rest.0 + expected, rest.1 + seen);
            }
        }
        if own > 0 && rest.0 >= 5.0 {
            (chi2, own) = (chi2 + (rest.1 - rest.0).powi(2) / rest.0, own + 1);
        }
        n_bins += if own > 1 { own - 1 } else { 0 };
    }
    // The statistic has n_bins ± sqrt(2 n_bins); four deviations are passed once in some 30,000 seeds, and these are fixed.
    let bound = f64::from(n_bins) + 4.0 * (2.0 * f64::from(n_bins)).sqrt();
    assert!(n_bins > 20 && chi2 < bound, "chi² is {chi2:.1} with {n_bins} degrees of freedom");
}

#[test]
fn grammars_caches_and_real_tokens_go_with_it() {
    // The model guesses for itself, which does not pay; it stops after its first guesses, and rests.
    let path = real_model("smollm2:135m");
    let options = LoadOptions {
        n_ctx: Some(512),
        draft: Some(DraftOptions { path: path.clone(), n_branches: 1 }),
        ..LoadOptions::default()
    };
    let mut engine = Engine::load(&path, &options, &mut |_| {}).expect("it loads");
    let schema = json!({"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}}, "required": ["name", "age"]});
    let grammar = engine.grammar_compiler().expect("a vocabulary").compile(&GrammarSource::JsonSchema(schema));
    let grammar = grammar.expect("a grammar");
    let prompt = engine.encode_prompt("Invent a person, as JSON.", false).expect("the template takes it");
    let request = |seed, grammar| GenerateRequest {
        prompt: prompt.clone(),
        max_tokens: Some(40),
        sampling: hot(seed),
        grammar,
        ..Default::default()
    };
    let requests: Vec<GenerateRequest> =
        (0..4).map(|seed| request(seed, (seed % 2 == 0).then(|| grammar.clone()))).collect();
    let (n, n_accepted) = check(&mut engine, &requests, Speculation::Draft);
    assert!(n >= 8 && n_accepted > n / 2, "{n_accepted} of {n} guesses were right");
    assert!(n < 80, "it went on though it does not pay: {n} guesses");
}

#[test]
fn a_draft_model_that_does_not_fit_is_refused() {
    let open = |model: &str, draft: &str, n_branches, kv| {
        let draft = Some(DraftOptions { path: Golden::load(draft).model("f32"), n_branches });
        let options = LoadOptions { n_ctx: Some(64), kv, draft, ..LoadOptions::default() };
        Engine::load(&Golden::load(model).model("f32"), &options, &mut |_| {}).err().expect("refused")
    };
    for (error, kind, part) in [
        (open("llama-a", "bert-a", 1, KvPolicy::F16), ErrorKind::Unsupported, "cannot take tokens back"),
        (open("llama-a", "lfm2-a", 1, KvPolicy::F16), ErrorKind::Unsupported, "cannot take tokens back"),
        (open("llama-a", "llama-a", 0, KvPolicy::F16), ErrorKind::Options, "0 branches"),
        (
            open("llama-a", "llama-a", 1, KvPolicy::Tiered { hot: 16, warm: 32 }),
            ErrorKind::Unsupported,
            "run without a draft model",
        ),
    ] {
        assert!(error.kind() == kind && error.to_string().contains(part), "{error}");
    }
    let draft = Some(DraftOptions { path: real_model("gemma3:270m"), n_branches: 1 });
    let options = LoadOptions { n_ctx: Some(64), draft, ..LoadOptions::default() };
    let error = Engine::load(&real_model("smollm2:135m"), &options, &mut |_| {}).err().expect("refused");
    let line = error.to_string();
    assert!(line.contains("tokens instead of 49152; use a smaller model of the same family"), "{line}");
}
