//! An autotuner changes how fast answers are, and only what was allowed of the rest.

use std::sync::{Arc, Mutex};

use ruvllm_engine::tuner::Tuner;
use ruvllm_engine::{
    Engine, ErrorKind, GenerateRequest, GenerationSummary, KvPolicy, LoadOptions, SamplingParams, Timings,
};
use ruvllm_learning::autotune::{Autotuner, DraftLimits};
use ruvllm_sona::policy::{NewPolicy, PolicyKind, PolicyLimits, PolicyStore, StoredPolicies};
use ruvllm_sona::store::{self, OpenOptions};
use ruvllm_testkit::{Golden, real_model};
use serde_json::json;

fn tiny(n_seq_max: usize) -> Engine {
    let options = LoadOptions { n_threads: 2, n_ctx: Some(256), n_seq_max, ..LoadOptions::default() };
    Engine::load(&Golden::load("llama-a").model("f32"), &options, &mut |_| {}).expect("it loads")
}

/// Requests whose prompts repeat themselves, so that there is something to guess, and drawn ones.
fn requests(n: u32) -> Vec<GenerateRequest> {
    let request = |i: u32| {
        let prompt: Vec<u32> = (0..40).map(|j| (i * 31 + (j % 10) * 7) % 250).collect();
        let drawn = SamplingParams { seed: Some(u64::from(i)), ..SamplingParams::default() };
        let sampling = if i.is_multiple_of(3) { drawn } else { SamplingParams::greedy() };
        GenerateRequest { prompt, max_tokens: Some(120), sampling, ignore_eos: true, ..Default::default() }
    };
    (0..n).map(request).collect()
}

/// What does not depend on time or on what was chosen.
fn facts(summary: GenerationSummary) -> GenerationSummary {
    GenerationSummary { timings: Timings::default(), choices: Box::default(), ..summary }
}

/// Runs requests, as many at once as there is room for.
fn answers(engine: &mut Engine, requests: &[GenerateRequest], autotuner: Option<Autotuner>) -> Vec<GenerationSummary> {
    let mut scheduler = engine.scheduler(&Default::default()).expect("valid");
    autotuner.into_iter().for_each(|autotuner| scheduler.set_tuner(Box::new(autotuner)));
    for request in requests {
        scheduler.submit(request.clone()).expect("valid");
    }
    scheduler.run().into_iter().map(|(_, answer)| answer.expect("it runs")).collect()
}

fn autotuner(learned: &Arc<Mutex<Vec<NewPolicy>>>) -> Autotuner {
    let learned = Arc::clone(learned);
    let push = move |policy| learned.lock().expect("nobody broke").push(policy);
    Autotuner::new("tiny", &Default::default(), Box::new(push))
}

#[test]
fn answers_are_those_without_and_say_what_was_chosen() {
    for n_seq_max in [1, 3, 8] {
        let requests = requests(60);
        let expected = answers(&mut tiny(n_seq_max), &requests, None);
        let learned = Arc::default();
        let found = answers(&mut tiny(n_seq_max), &requests, Some(autotuner(&learned)));
        assert!(expected.iter().all(|answer| answer.choices.is_empty()));
        assert!(found.iter().all(|answer| answer.choices.contains("steps")), "{}", found[0].choices);
        assert_eq!(
            found.into_iter().map(facts).collect::<Vec<_>>(),
            expected.into_iter().map(facts).collect::<Vec<_>>(),
            "{n_seq_max} at once"
        );
        for policy in learned.lock().expect("nobody broke").iter() {
            assert_eq!(policy.kind, PolicyKind::Speculation);
            assert!(policy.reason.contains("of the default's time") || policy.reason.contains("of its time"));
        }
    }
}

#[test]
fn the_operator_has_the_last_word() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store::open(&folder.path().join("sona.redb"), &OpenOptions::default()).expect("a store");
    let policies = StoredPolicies::open(store, PolicyLimits::default()).expect("policies");
    let none = DraftLimits { draft_rows: 0, draft_tokens_max: 0 };
    let said = NewPolicy::new(PolicyKind::Speculation, "", &none).expect("JSON").by_operator();
    policies.put(said, 1).expect("room");
    let batch = NewPolicy::new(PolicyKind::Batch, "", &json!({ "prefill_tokens": 7 })).expect("JSON").by_operator();
    policies.put(batch, 1).expect("room");
    let mut autotuner = autotuner(&Arc::default());
    autotuner.begin_with(&policies);
    assert_eq!((autotuner.fixed().prefill_tokens, autotuner.fixed().draft_tokens_max), (7, 0));
    for answer in answers(&mut tiny(2), &requests(6), Some(autotuner)) {
        assert!(answer.choices.starts_with("no guesses (operator; "), "{}", answer.choices);
        assert_eq!(answer.timings.draft_tokens, 0);
    }
}

/// Requests of one engine with keys and values of different kinds: what is exact stays exact, whatever lies beside it and in
/// the cache.
#[test]
fn keys_and_values_of_requests_are_kept_as_each_asks() {
    let open = |kv_others: Vec<KvPolicy>| {
        let (n_ctx, n_seq_max) = (Some(1200), 2);
        let options = LoadOptions { n_threads: 2, n_ctx, n_seq_max, kv_others, ..LoadOptions::default() };
        Engine::load(&real_model("smollm2:135m"), &options, &mut |_| {})
    };
    assert_eq!(open(vec![KvPolicy::Q2]).err().expect("a format of its own").kind(), ErrorKind::Options);
    let request = |kv| GenerateRequest {
        prompt: (0..1000).map(|i| 500 + (i * i * 31 % 9000)).collect(),
        max_tokens: Some(12),
        sampling: SamplingParams::greedy(),
        ignore_eos: true,
        kv,
        ..Default::default()
    };
    let exact = answers(&mut open(Vec::new()).expect("it loads"), &[request(None)], None).remove(0);
    let mut engine = open(vec![KvPolicy::TIERED]).expect("it loads");
    assert_eq!(engine.kv_policies(), [KvPolicy::F16, KvPolicy::TIERED]);
    let tiered = Some(KvPolicy::TIERED);
    let both = answers(&mut engine, &[request(tiered), request(None)], None);
    let [rounded, beside] = both.try_into().expect("two answers");
    assert_eq!(beside.tokens, exact.tokens);
    assert_eq!(beside.timings.cached_tokens, 0, "what was rounded is nobody's prefix who did not ask for it");
    let (fewer, more) = (rounded.timings.kv_bytes_per_token, exact.timings.kv_bytes_per_token);
    assert!(fewer < 0.7 * more, "{fewer} of {more} bytes a token");
    let again = answers(&mut engine, &[request(None), request(tiered)], None);
    assert_eq!(again[0].tokens, exact.tokens);
    assert!(again.iter().all(|answer| answer.timings.cached_tokens > 900), "each finds its own");
    let mut scheduler = engine.scheduler(&Default::default()).expect("valid");
    scheduler.submit(request(Some(KvPolicy::Q8))).expect("checked when it runs");
    let error = scheduler.run().remove(0).1.expect_err("it was not loaded for");
    assert_eq!(error.kind(), ErrorKind::Options);
    drop(scheduler);

    // An autotuner goes on as what is cached of a prompt is kept, and says so.
    let autotuner = autotuner(&Arc::default()).with_kv("tiny", &engine.kv_policies());
    let chosen = answers(&mut engine, &[request(None)], Some(autotuner)).remove(0);
    assert_eq!((chosen.kv, &chosen.tokens), (Some(KvPolicy::F16), &exact.tokens));
    assert!(
        chosen.choices.starts_with("keys and values f16 (as its cached beginning; long prompts)"),
        "{}",
        chosen.choices
    );
}

/// Three documents that are asked about in turns, with memory for less than two of them as `f16` keeps them: fewer bytes keep
/// all three.
#[test]
fn prompts_that_come_again_stay_cached_where_fewer_bytes_keep_them() {
    let options = LoadOptions {
        n_threads: 2,
        n_ctx: Some(1600),
        kv_others: vec![KvPolicy::TIERED],
        kv_bytes: Some(72 << 20),
        ..LoadOptions::default()
    };
    let mut engine = Engine::load(&real_model("smollm2:135m"), &options, &mut |_| {}).expect("it loads");
    let request = |i: u32| GenerateRequest {
        prompt: (0..1500).map(|j| 500 + (i % 3 * 1000 + j * j * 31) % 9000).chain([500 + i]).collect(),
        max_tokens: Some(4),
        sampling: SamplingParams::greedy(),
        ignore_eos: true,
        ..Default::default()
    };
    let mut ask = |n, autotuner: Option<Autotuner>| {
        let mut scheduler = engine.scheduler(&Default::default()).expect("valid");
        autotuner.into_iter().for_each(|autotuner| scheduler.set_tuner(Box::new(autotuner)));
        let mut one = |i| {
            scheduler.submit(request(i)).expect("valid");
            scheduler.run().remove(0).1.expect("it runs")
        };
        (0..n).map(&mut one).collect::<Vec<_>>()
    };
    let fixed = ask(5, None);
    assert!(fixed.iter().all(|answer| answer.timings.cached_tokens < 1000), "each evicts the next");
    let learned = autotuner(&Arc::default()).with_kv("smollm2", &[KvPolicy::F16, KvPolicy::TIERED]);
    let chosen = ask(12, Some(learned));
    assert!(chosen[9..].iter().all(|answer| answer.timings.cached_tokens >= 1488), "all three stay");
    let reason = "keys and values tiered (learned: prompts that come again stay cached, which saves ";
    assert!(chosen.iter().any(|answer| answer.choices.starts_with(reason)), "{}", chosen[5].choices);
    assert!(chosen[9..].iter().all(|answer| answer.kv == Some(KvPolicy::TIERED)));
}
