//! Many requests at once: each gets the tokens it would get alone, whatever the memory, and memory has a limit.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use ruvllm_engine::{
    CancelToken, Engine, EngineError, ErrorKind, Event, FinishReason, GenerateRequest, GenerationSummary,
    IDLE_PRIORITY, LoadOptions, Mirostat, RequestId, SamplingParams, Scheduler, SchedulerOptions, SchedulerStats,
    Speculation, Timings,
};
use ruvllm_testkit::{Golden, real_model};

fn open(path: &Path, n_ctx: usize, n_seq_max: usize, kv_bytes: Option<usize>) -> Engine {
    let options = LoadOptions { n_threads: 2, n_ctx: Some(n_ctx), n_seq_max, kv_bytes, ..LoadOptions::default() };
    Engine::load(path, &options, &mut |_| {}).expect("it loads")
}

fn greedy(prompt: Vec<u32>, max_tokens: usize) -> GenerateRequest {
    let sampling = SamplingParams::greedy();
    GenerateRequest { prompt, max_tokens: Some(max_tokens), sampling, ignore_eos: true, ..Default::default() }
}

/// Tokens that look random, below 250.
fn words(seed: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 7919 + seed * 104_729 + i * i * seed) % 250).collect()
}

/// Requests of many lengths and ways to choose, some with a beginning in common.
fn mixed(n: u32) -> Vec<GenerateRequest> {
    let request = |i: u32| {
        let own = words(i, 1 + (i as usize * 37) % 70);
        let prompt = if i.is_multiple_of(3) { [words(1000, 50), own].concat() } else { own };
        let hot = SamplingParams { seed: Some(u64::from(i)), temperature: 1.5, top_k: 0, ..SamplingParams::default() };
        let sampling = match i % 8 {
            0 => SamplingParams::greedy(),
            1 => SamplingParams { seed: Some(u64::from(i)), ..SamplingParams::default() },
            2 => hot,
            3 => SamplingParams { repeat_penalty: 1.3, ..SamplingParams::greedy() },
            4 => SamplingParams { typical_p: 0.9, xtc_probability: 0.5, xtc_threshold: 0.05, ..hot },
            5 => SamplingParams { dry_multiplier: 0.8, frequency_penalty: 0.5, dynatemp_range: 0.5, ..hot },
            6 => SamplingParams { mirostat: Mirostat::V1, logit_bias: vec![(7, 5.0)], ..hot },
            _ => SamplingParams { mirostat: Mirostat::V2, ..hot },
        };
        let (max_tokens, logprobs) = (Some(i as usize * 5 % 23), i.is_multiple_of(5).then_some(3));
        let ignore_eos = i.is_multiple_of(2);
        GenerateRequest { prompt, max_tokens, sampling, logprobs, ignore_eos, ..Default::default() }
    };
    (0..n).map(request).collect()
}

/// What does not depend on time.
fn facts(summary: &GenerationSummary) -> GenerationSummary {
    GenerationSummary { timings: Timings::default(), ..summary.clone() }
}

/// Without guesses.
fn alone(engine: &mut Engine, request: &GenerateRequest) -> GenerationSummary {
    let request = GenerateRequest { speculation: Speculation::Off, ..request.clone() };
    let run = engine.generate(&request).expect("a valid request");
    run.for_each_token(|_| {}).expect("it runs")
}

/// Submits all at once and checks the answers against those of `reference`, one by one.
fn check(
    engine: &mut Engine,
    reference: &mut Engine,
    requests: &[GenerateRequest],
    options: &SchedulerOptions,
) -> SchedulerStats {
    let total = engine.kv_usage().total;
    let mut scheduler = engine.scheduler(options).expect("valid options");
    let ids: Vec<RequestId> =
        requests.iter().map(|request| scheduler.submit(request.clone()).expect("a valid request")).collect();
    let (mut texts, mut done) = (vec![String::new(); ids.len()], vec![None; ids.len()]);
    while !scheduler.is_idle() {
        for event in scheduler.step() {
            match event {
                Event::Token(id, token) => texts[ids.binary_search(&id).expect("known")].push_str(&token.text),
                Event::Done(id, result) => {
                    let place = &mut done[ids.binary_search(&id).expect("known")];
                    assert!(place.replace(result.expect("it fits")).is_none(), "{id:?} ends twice");
                }
            }
        }
        let usage = scheduler.runner().kv_usage();
        assert_eq!((usage.free + usage.cached_only + usage.in_use, usage.total), (total, total));
    }
    let stats = scheduler.stats();
    drop(scheduler);
    assert_eq!(engine.kv_usage().in_use, 0);
    for ((request, text), summary) in requests.iter().zip(texts).zip(done) {
        let summary = summary.expect("each request ends");
        assert_eq!(text, summary.text);
        assert_eq!(facts(&summary), facts(&alone(reference, request)));
        assert!(summary.timings.ttft_ms >= summary.timings.queue_ms);
    }
    stats
}

#[test]
fn each_request_gets_what_it_gets_alone() {
    for name in ["llama-a", "gemma3-a", "gpt2-a", "mixtral-a", "lfm2-a", "mamba2-b", "falcon-h1-a", "deepseek2-a"] {
        let path = Golden::load(name).model("f32");
        let mut reference = open(&path, 256, 1, None);
        for (step_tokens, prefill_tokens) in [(512, 128), (40, 7)] {
            let options = SchedulerOptions { step_tokens, prefill_tokens, ..SchedulerOptions::default() };
            let stats = check(&mut open(&path, 256, 6, None), &mut reference, &mixed(30), &options);
            assert_eq!((stats.n_running_max, stats.n_preemptions), (6, 0), "{name}");
        }
    }
}

#[test]
fn a_real_model_answers_eight_at_once() {
    let path = real_model("smollm2:135m");
    let (mut engine, mut reference) = (open(&path, 512, 8, None), open(&path, 512, 1, None));
    let questions = ["Why is the sky blue?", "Name three rivers.", "2 + 2 =", "What is a kernel?"];
    let request = |i: usize| GenerateRequest {
        prompt: reference.encode_prompt(questions[i % 4], false).expect("the template takes it"),
        max_tokens: Some(12 + i),
        sampling: SamplingParams { seed: Some(i as u64), ..SamplingParams::default() },
        stop: vec![" the".to_owned()],
        ..GenerateRequest::default()
    };
    let requests: Vec<GenerateRequest> = (0..8).map(request).collect();
    check(&mut engine, &mut reference, &requests, &SchedulerOptions::default());
}

/// Requests of 600 tokens, some of them shared or not, that are more than twice what the memory holds.
fn check_memory(n_shared: usize) -> SchedulerStats {
    let path = Golden::load("llama-a").model("f32");
    let mut engine = open(&path, 700, 16, Some(2 << 20));
    let room = engine.kv_usage().total * 16;
    let n_requests = 4 * room / 1000;
    let request = |i: usize| {
        let own = words(i as u32, 550 - n_shared);
        greedy([words(5000, n_shared), own].concat(), 50)
    };
    let requests: Vec<GenerateRequest> = (0..n_requests).map(request).collect();
    assert!(n_requests * 600 > 2 * room, "{n_requests} requests, {room} tokens");
    check(&mut engine, &mut open(&path, 700, 1, None), &requests, &SchedulerOptions::default())
}

/// Issue "The KV cache", 6, on a tiny model: more than fits is finished in turns, within the memory, and a shared prefix
/// is computed and kept once.
#[test]
fn more_than_fits_is_finished_within_the_memory() {
    let (shared, apart) = (check_memory(450), check_memory(0));
    assert_eq!((shared.n_preemptions, apart.n_preemptions), (0, 0));
    assert!(shared.n_running_max > apart.n_running_max, "{shared:?} {apart:?}");
    assert!(shared.n_tokens * 2 < apart.n_tokens, "{shared:?} {apart:?}");
}

/// Without `max_tokens` nobody knows what a request will need.
#[test]
fn the_youngest_gives_way_and_goes_on_where_it_was() {
    let path = Golden::load("llama-a").model("f32");
    let mut engine = open(&path, 2000, 8, Some(2 << 20));
    let room = engine.kv_usage().total * 16;
    let request = |i: u32| GenerateRequest {
        max_tokens: None,
        sampling: SamplingParams { seed: Some(u64::from(i)), ..SamplingParams::default() },
        ..greedy(words(i, 200 + i as usize), 0)
    };
    let requests: Vec<GenerateRequest> = (0..8).map(request).collect();
    assert!(room < 8 * 2000 && room > 2000, "{room}");
    let stats = check(&mut engine, &mut open(&path, 2000, 1, None), &requests, &SchedulerOptions::default());
    assert!(stats.n_preemptions > 0 && stats.n_preemptions < 20, "{stats:?}");
}

/// Requests come and are cancelled at any time, some without a limit, in little memory.
#[test]
fn whoever_comes_and_goes_changes_nobody_else() {
    let path = Golden::load("llama-a").model("f32");
    let (mut engine, mut reference) = (open(&path, 1800, 16, Some(2 << 20)), open(&path, 1800, 1, None));
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut below = |n: u32| rng.next_u32() % n;
    let mut scheduler = engine.scheduler(&small_steps()).expect("valid options");
    let (mut requests, mut cancelled, mut answers) = (Vec::new(), BTreeSet::new(), BTreeMap::new());
    while requests.len() < 100 || !scheduler.is_idle() {
        if requests.len() < 100 && below(3) == 0 {
            let document = words(7000 + below(3), 64 + 16 * below(20) as usize);
            let prompt = [document, words(below(4), 1 + below(60) as usize)].concat();
            let max_tokens = if below(3) == 0 { None } else { Some(below(80) as usize) };
            let sampling = SamplingParams { seed: Some(u64::from(below(9))), ..SamplingParams::default() };
            let request = GenerateRequest {
                sampling,
                max_tokens,
                tenant: u64::from(below(2)),
                cancel: CancelToken::default(),
                ..greedy(prompt, 0)
            };
            let id = scheduler.submit(request.clone()).expect("a valid request");
            requests.push((id, request));
        }
        if !requests.is_empty() && below(60) == 0 {
            let (id, request) = &requests[below(requests.len() as u32) as usize];
            if !answers.contains_key(id) {
                request.cancel.cancel();
                cancelled.insert(*id);
            }
        }
        answers.extend(done(scheduler.step()));
        let usage = scheduler.runner().kv_usage();
        assert_eq!(usage.free + usage.cached_only + usage.in_use, usage.total);
    }
    let stats = scheduler.stats();
    assert!(stats.n_preemptions > 0 && cancelled.len() > 10, "{stats:?}, {} cancelled", cancelled.len());
    for (id, request) in requests {
        let request = GenerateRequest { cancel: CancelToken::default(), ..request };
        let (expected, answer) = (alone(&mut reference, &request), answers[&id].as_ref().expect("it fits"));
        match cancelled.contains(&id) {
            true => assert!(expected.tokens.starts_with(&answer.tokens)),
            false => assert_eq!(facts(answer), facts(&expected)),
        }
    }
}

/// Steps of at most 100 tokens.
fn small_steps() -> SchedulerOptions {
    SchedulerOptions { step_tokens: 100, prefill_tokens: 100, ..SchedulerOptions::default() }
}

#[test]
fn requests_that_begin_alike_compute_it_once() {
    let path = Golden::load("llama-a").model("f32");
    let mut engine = open(&path, 512, 8, None);
    let request = |i: u32| greedy([words(1, 333), vec![i, 7, 8]].concat(), 4);
    let requests: Vec<GenerateRequest> = (0..8).map(request).collect();
    // All come at once, and another one in between that shares nothing passes those that wait.
    let all = [&requests[..4], &[greedy(words(2, 20), 4)], &requests[4..]].concat();
    let stats = check(&mut engine, &mut open(&path, 512, 1, None), &all, &small_steps());
    // 333 tokens once, at most a block more for each of the others, and their own.
    let own = 8 * (3 + 3) + 20 + 3;
    assert!(stats.n_tokens <= 333 + 7 * 16 + own, "{stats:?}");
    // Tenants have their own.
    let apart: Vec<_> = (0..4).map(|i| GenerateRequest { tenant: 1 + i, ..request(i as u32) }).collect();
    let stats = check(&mut engine, &mut open(&path, 512, 1, None), &apart, &small_steps());
    assert_eq!(stats.n_tokens, 4 * (336 + 3));
}

fn done(events: Vec<Event>) -> Vec<(RequestId, Result<GenerationSummary, EngineError>)> {
    let done = |event| match event {
        Event::Done(id, result) => Some((id, result)),
        Event::Token(..) => None,
    };
    events.into_iter().filter_map(done).collect()
}

#[test]
fn a_cancelled_request_is_over_with_the_next_step() {
    let mut engine = open(&Golden::load("llama-a").model("f32"), 512, 2, None);
    let mut scheduler = engine.scheduler(&small_steps()).expect("valid options");
    let cancels: Vec<CancelToken> = (0..3).map(|_| CancelToken::default()).collect();
    // One that writes, one in the middle of its prompt, one that waits.
    let submit = |scheduler: &mut Scheduler<'_>, i: usize, n: usize| {
        let request = GenerateRequest { cancel: cancels[i].clone(), ..greedy(words(i as u32, n), 100) };
        scheduler.submit(request).expect("a valid request")
    };
    let first = submit(&mut scheduler, 0, 10);
    assert_eq!(scheduler.step().len(), 1);
    let others = [submit(&mut scheduler, 1, 400), submit(&mut scheduler, 2, 10)];
    assert_eq!((scheduler.step().len(), scheduler.n_running(), scheduler.n_waiting()), (1, 2, 1));
    for (i, (id, n_tokens)) in [(others[1], 0), (others[0], 0), (first, 4)].into_iter().enumerate() {
        cancels[2 - i].cancel();
        let ended = done(scheduler.step());
        let [(ended, Ok(summary))] = &ended[..] else { panic!("{ended:?}") };
        assert_eq!((*ended, summary.finish_reason, summary.tokens.len()), (id, FinishReason::Cancelled, n_tokens));
    }
    assert!(scheduler.is_idle());
    assert_eq!(scheduler.runner().kv_usage().in_use, 0);
    // A scheduler that is dropped gives its sequences back.
    scheduler.submit(greedy(words(1, 10), 100)).expect("a valid request");
    scheduler.step();
    drop(scheduler);
    assert_eq!(engine.kv_usage().in_use, 0);
}

#[test]
fn an_error_ends_its_own_request_only() {
    let path = Golden::load("llama-a").model("f32");
    let mut engine = open(&path, 40_000, 4, Some(2 << 20));
    let room = engine.kv_usage().total * 16;
    let mut scheduler = engine.scheduler(&SchedulerOptions::default()).expect("valid options");
    let unknown = scheduler.submit(greedy(vec![1, 2, 1_000_000], 4)).expect("known when it is computed");
    let fits = [3, 4].map(|i| scheduler.submit(greedy(words(i, 30), 4)).expect("a valid request"));
    let too_long = scheduler.submit(greedy(words(5, room + 1), 4)).expect("it fits the context");
    let last = scheduler.submit(greedy(words(6, 30), 4)).expect("a valid request");
    let answers = scheduler.run();
    assert_eq!(answers.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [unknown, fits[0], fits[1], too_long, last]);
    let kinds = answers.iter().map(|(_, answer)| answer.as_ref().map(|_| ()).map_err(EngineError::kind));
    let expected = [Err(ErrorKind::Prompt), Ok(()), Ok(()), Err(ErrorKind::ContextLength), Ok(())];
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
    assert!(scheduler.submit(GenerateRequest::default()).is_err_and(|error| error.kind() == ErrorKind::Prompt));
    drop(scheduler);
    let options = SchedulerOptions { step_tokens: 0, ..SchedulerOptions::default() };
    let error = engine.scheduler(&options).err().expect("no steps");
    assert_eq!(error.to_string(), "steps of 0 tokens, 128 of prompts; both must be at least 1");
}

#[test]
fn a_quota_makes_its_tenant_wait_and_nobody_else() {
    let path = Golden::load("llama-a").model("f32");
    let (mut engine, mut reference) = (open(&path, 512, 8, None), open(&path, 512, 1, None));
    let block_bytes = (2 << 20) / open(&path, 512, 1, Some(2 << 20)).kv_usage().total;
    engine.set_tenant_quota(1, Some(20 * block_bytes));
    let request = |i: u64| GenerateRequest { tenant: i % 2, ..greedy(words(i as u32, 200), 20) };
    let requests: Vec<GenerateRequest> = (0..8).map(request).collect();
    let stats = check(&mut engine, &mut reference, &requests, &SchedulerOptions::default());
    assert!(stats.n_preemptions > 0 && stats.n_tokens_recomputed == 0, "{stats:?}");
    // One that is over it alone fails.
    engine.set_tenant_quota(1, Some(block_bytes));
    let mut scheduler = engine.scheduler(&SchedulerOptions::default()).expect("valid options");
    scheduler.submit(request(1)).expect("a valid request");
    let answers = scheduler.run();
    let error = answers[0].1.as_ref().expect_err("over the quota");
    assert!(error.to_string().starts_with("the tenant's quota is full"), "{error}");
}

#[test]
fn idle_requests_are_computed_while_there_are_no_others() {
    let path = Golden::load("llama-a").model("f32");
    let (mut engine, mut reference) = (open(&path, 256, 4, None), open(&path, 256, 4, None));
    let idle = |i: u32| GenerateRequest { priority: IDLE_PRIORITY, tenant: 1, ..greedy(words(i, 20), 40) };
    let urgent = GenerateRequest { tenant: 2, ..greedy(words(9, 10), 12) };
    let mut scheduler = engine.scheduler(&SchedulerOptions::default()).expect("valid options");
    let all: Vec<GenerateRequest> = (0..6).map(idle).collect();
    let ids: Vec<RequestId> = all.iter().map(|request| scheduler.submit(request.clone()).expect("valid")).collect();
    for _ in 0..8 {
        drop(scheduler.step());
    }
    assert_eq!((scheduler.n_running(), scheduler.n_waiting()), (4, 2));
    let other = scheduler.submit(urgent.clone()).expect("valid");
    let mut done = BTreeMap::new();
    while !done.contains_key(&other) {
        let events = scheduler.step();
        assert_eq!(scheduler.n_batch(), 1, "it is alone");
        for event in events {
            match event {
                Event::Token(id, _) => assert_eq!(id, other),
                Event::Done(id, result) => drop(done.insert(id, result.expect("it runs"))),
            }
        }
    }
    assert!(scheduler.stats().n_preemptions >= 4);
    done.extend(scheduler.run().into_iter().map(|(id, result)| (id, result.expect("it runs"))));
    for (id, request) in ids.iter().zip(&all).chain([(&other, &urgent)]) {
        assert_eq!(done[id].tokens, alone(&mut reference, request).tokens);
    }
}
