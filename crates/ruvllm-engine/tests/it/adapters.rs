//! Adapters: the logits of transformers with peft, forms that agree, and rows that do not know of each other.
//!
//! The adapters lie in `ruvllm-lora/testdata` with the logits that `make.py` there computed in float32.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ruvllm_engine::{
    AdapterSet, BoundAdapter, Engine, FactorFormat, GenerateRequest, GenerationSummary, KvPolicy, LoadOptions,
    LogitRows, SamplingParams, SchedulerOptions, Segment, SeqId, Speculation, Timings,
};
use ruvllm_lora::LoraErrorKind;
use ruvllm_lora::format::{gguf, peft};
use ruvllm_testkit::{Golden, max_abs_diff};

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ruvllm-lora/testdata")
}

/// Every adapter of the folder: its name, its model, and how many of the last rows of logits are stored.
fn cases() -> Vec<(String, Golden, usize)> {
    let text = std::fs::read_to_string(testdata().join("index.json")).expect("the folder has an index");
    let index: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).expect("it is JSON");
    let case = |(name, about): (&String, &serde_json::Value)| {
        let n_rows = about["n_rows"].as_u64().expect("a number") as usize;
        (name.clone(), Golden::load(about["model"].as_str().expect("a name")), n_rows)
    };
    index.iter().map(case).collect()
}

fn open(golden: &Golden, kv: KvPolicy, n_threads: usize) -> Engine {
    let options = LoadOptions { n_ctx: Some(golden.n_ctx), kv, n_threads, n_seq_max: 6, ..LoadOptions::default() };
    Engine::load(&golden.model("f32"), &options, &mut |_| {}).expect("a golden model loads")
}

fn load(engine: &Engine, path: &Path, format: FactorFormat) -> Arc<BoundAdapter> {
    engine
        .adapter_loader()
        .expect("it applies adapters")
        .load(path, format)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn set(members: &[(&Arc<BoundAdapter>, f32)]) -> AdapterSet {
    AdapterSet::new(members.iter().map(|(adapter, scale)| (Arc::clone(adapter), *scale)).collect()).expect("a set")
}

/// Returns the logits of all rows, computed `chunk` at a time.
fn logits(engine: &mut Engine, tokens: &[u32], adapters: &AdapterSet, chunk: usize) -> Vec<f32> {
    let seq = engine.new_adapted_sequence(adapters).expect("a free sequence");
    let mut all = Vec::new();
    for tokens in tokens.chunks(chunk) {
        let segment = Segment { seq, tokens, logits: LogitRows::All };
        all.extend_from_slice(engine.forward(&[segment]).expect("it fits"));
    }
    engine.free_sequence(seq);
    all
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn logits_agree_with_peft_and_all_forms_with_each_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let cases = cases();
    assert!(cases.len() >= 9, "{} adapters", cases.len());
    for (name, golden, n_rows) in cases {
        let mut engine = open(&golden, KvPolicy::F32, 2);
        let path = testdata().join(&name);
        let bytes = std::fs::read(path.join("logits.f32")).expect("stored logits");
        let expected: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
        assert_eq!(expected.len(), n_rows * golden.n_vocab);
        let bound = load(&engine, &path, FactorFormat::F32);
        let whole = logits(&mut engine, &golden.tokens, &set(&[(&bound, 1.0)]), usize::MAX);
        let tail = &whole[whole.len() - expected.len()..];
        let diff = max_abs_diff(&expected, tail);
        assert!(diff <= 5e-3, "{name}: {diff:e} from peft");
        for chunk in [13, 1] {
            let cut = logits(&mut engine, &golden.tokens, &set(&[(&bound, 1.0)]), chunk);
            assert!(bits(&cut) == bits(&whole), "{name}: chunks of {chunk} change bits");
        }
        // Through both writers: scales that one alpha cannot say are rounded into B.
        let adapter = engine.adapter_loader().expect("it applies adapters").read(&path).expect("it was read before");
        let facts = engine.adapter_loader().expect("it applies adapters").targets().facts().clone();
        let (as_gguf, as_peft) = (folder.path().join(format!("{name}.gguf")), folder.path().join(&name));
        gguf::write(&adapter, &facts, &as_gguf).expect("it can be written");
        peft::write(&adapter, &facts, &as_peft).expect("it can be written");
        for written in [as_gguf, as_peft] {
            let again = load(&engine, &written, FactorFormat::F32);
            let other = logits(&mut engine, &golden.tokens, &set(&[(&again, 1.0)]), usize::MAX);
            let diff = max_abs_diff(&other, &whole);
            let exact = name != "llama-all";
            assert!(if exact { diff == 0.0 } else { diff <= 1e-4 }, "{}: {diff:e}", written.display());
        }
        // But for DoRA's, their values are exact in 16 bits.
        for (format, bound) in [(FactorFormat::F16, 5e-2), (FactorFormat::Q8, 1.0)] {
            let adapter = load(&engine, &path, format);
            let other = logits(&mut engine, &golden.tokens, &set(&[(&adapter, 1.0)]), usize::MAX);
            let diff = max_abs_diff(&other, &whole);
            assert!(diff <= bound && (format == FactorFormat::F16 || diff > 0.0), "{name} {format:?}: {diff:e}");
        }
    }
}

/// What rows of one pass get, each of them from a sequence of its own.
fn together(engine: &mut Engine, tokens: &[u32], sets: &[AdapterSet]) -> Vec<Vec<f32>> {
    let n_vocab = engine.info().n_vocab;
    let seqs: Vec<SeqId> = sets.iter().map(|set| engine.new_adapted_sequence(set).expect("a free one")).collect();
    let segment = |&seq: &SeqId| Segment { seq, tokens, logits: LogitRows::All };
    let segments: Vec<Segment<'_>> = seqs.iter().map(segment).collect();
    let all = engine.forward(&segments).expect("it fits").to_vec();
    seqs.into_iter().for_each(|seq| engine.free_sequence(seq));
    all.chunks_exact(tokens.len() * n_vocab).map(<[f32]>::to_vec).collect()
}

#[test]
fn rows_of_one_pass_have_adapters_of_their_own() {
    for (model, names) in [("llama-a", &["llama-qv", "llama-all", "llama-dora"][..]), ("mixtral-a", &["mixtral"])] {
        let golden = Golden::load(model);
        let tokens = &golden.tokens[..21];
        let mut first: Option<Vec<Vec<u32>>> = None;
        for n_threads in [1, 3] {
            let mut engine = open(&golden, KvPolicy::F16, n_threads);
            let base = engine.new_sequence().expect("a free sequence");
            let segment = Segment { seq: base, tokens, logits: LogitRows::All };
            let plain = engine.forward(&[segment]).expect("it fits").to_vec();
            engine.free_sequence(base);
            let adapters: Vec<_> =
                names.iter().map(|name| load(&engine, &testdata().join(name), FactorFormat::F16)).collect();
            let mut sets = vec![AdapterSet::default(), set(&[(&adapters[0], 0.0)])];
            sets.extend(adapters.iter().map(|adapter| set(&[(adapter, 1.0)])));
            sets.push(set(&adapters.iter().map(|adapter| (adapter, 0.3)).collect::<Vec<_>>()));
            let all = together(&mut engine, tokens, &sets);
            for (row, (rows, set)) in all.iter().zip(&sets).enumerate() {
                assert!(bits(rows) == bits(&logits(&mut engine, tokens, set, usize::MAX)), "{model}: set {row}");
                assert_eq!(bits(rows) == bits(&plain), row < 2, "{model}: set {row}");
            }
            let all: Vec<Vec<u32>> = all.iter().map(|rows| bits(rows)).collect();
            assert!(*first.get_or_insert_with(|| all.clone()) == all, "{model}: {n_threads} threads change bits");
        }
    }
}

/// What does not depend on time or company.
fn facts(summary: &GenerationSummary) -> GenerationSummary {
    GenerationSummary { timings: Timings::default(), ..summary.clone() }
}

#[test]
fn answers_are_the_same_alone_in_company_and_with_guesses() {
    let mut engine = open(&Golden::load("llama-a"), KvPolicy::F16, 2);
    let adapters: Vec<_> = ["llama-qv", "llama-all", "llama-dora"]
        .map(|name| load(&engine, &testdata().join(name), FactorFormat::F16))
        .to_vec();
    let request = |i: usize| {
        let prompt = (0..20 + 3 * i as u32).map(|k| (k * k * 31) % 11 + 7).collect();
        let adapters = match i % 5 {
            0 => AdapterSet::default(),
            4 => set(&[(&adapters[0], 0.5), (&adapters[2], 0.5)]),
            i => set(&[(&adapters[i - 1], 1.0)]),
        };
        let sampling = match i % 2 {
            0 => SamplingParams::greedy(),
            _ => SamplingParams { seed: Some(i as u64), ..SamplingParams::default() },
        };
        GenerateRequest { prompt, adapters, sampling, max_tokens: Some(24), ignore_eos: true, ..Default::default() }
    };
    let requests: Vec<GenerateRequest> = (0..20).map(request).collect();
    let mut alone = Vec::new();
    for request in &requests {
        let mut answer = |speculation| {
            engine.clear_cache();
            let request = GenerateRequest { speculation, ..request.clone() };
            let run = engine.generate(&request).expect("a valid request");
            run.for_each_token(|_| {}).expect("it runs")
        };
        let (off, on) = (answer(Speculation::Off), answer(Speculation::Ngram));
        assert_eq!(facts(&on), facts(&off));
        alone.push(facts(&off));
    }
    // The prefixes that are cached by now are the sets' own.
    let mut scheduler = engine.scheduler(&SchedulerOptions::default()).expect("valid options");
    for request in &requests {
        scheduler.submit(request.clone()).expect("a valid request");
    }
    let answers = scheduler.run();
    for ((_, answer), alone) in answers.iter().zip(&alone) {
        assert_eq!(&facts(answer.as_ref().expect("it ran")), alone);
    }
}

#[test]
fn a_replaced_adapter_never_meets_the_old_ones_prefix() {
    let mut engine = open(&Golden::load("llama-a"), KvPolicy::F16, 2);
    let [old, new] = ["llama-qv", "llama-dora"].map(|name| load(&engine, &testdata().join(name), FactorFormat::F16));
    let prompt: Vec<u32> = (0..80).map(|i| i * 7 % 200 + 5).collect();
    let mut answer = |adapters: &AdapterSet, is_warm: bool| {
        let (prompt, adapters, sampling) = (prompt.clone(), adapters.clone(), SamplingParams::greedy());
        let request = GenerateRequest { prompt, adapters, sampling, max_tokens: Some(8), ..Default::default() };
        if !is_warm {
            engine.clear_cache();
        }
        let run = engine.generate(&request).expect("a valid request").for_each_token(|_| {}).expect("it runs");
        (run.tokens, run.timings.cached_tokens)
    };
    let sets = [AdapterSet::default(), set(&[(&old, 1.0)]), set(&[(&new, 1.0)]), set(&[(&old, 0.5)])];
    let cold: Vec<_> = sets.iter().map(|set| answer(set, false)).collect();
    answer(&sets[0], false);
    for (i, set) in sets.iter().enumerate() {
        let (tokens, cached) = answer(set, true);
        assert_eq!((&tokens, cached > 0), (&cold[i].0, i == 0), "set {i} first");
        let (tokens, cached) = answer(set, true);
        assert!(tokens == cold[i].0 && cached >= 64, "set {i} again: {cached} cached");
    }
}

#[test]
fn what_does_not_fit_is_refused_in_a_line() {
    let mut engine = open(&Golden::load("llama-a"), KvPolicy::F16, 1);
    let line = |engine: &Engine, name: &str| {
        let error = engine
            .adapter_loader()
            .expect("it applies adapters")
            .load(&testdata().join(name), FactorFormat::F16)
            .expect_err("another model");
        assert!(matches!(error.kind(), LoraErrorKind::Invalid | LoraErrorKind::Shape), "{error:?}");
        assert!(!error.to_string().contains('\n'), "{error}");
        error.to_string()
    };
    let text = line(&engine, "phi3");
    assert!(text.contains("the model has no layer 'blk.0.attn_qkv'") || text.contains("another model"), "{text}");
    for name in ["gpt2", "gemma3", "mixtral"] {
        assert!(line(&engine, name).ends_with("the adapter is for another model"), "{name}");
    }
    assert!(line(&engine, "nowhere.gguf").contains("nowhere.gguf"));
    // One that was loaded for another engine.
    let other = open(&Golden::load("llama-a"), KvPolicy::F16, 1);
    let foreign = set(&[(&load(&other, &testdata().join("llama-qv"), FactorFormat::F16), 1.0)]);
    let error = engine.new_adapted_sequence(&foreign).expect_err("another engine");
    assert_eq!(error.to_string(), "the adapters were loaded for another model");
}

#[test]
fn gates_weigh_adapters_by_what_was_said_and_keep_every_law() {
    use ruvllm_lora::gate::{Gate, GateLayer, GateShape};
    let golden = Golden::load("llama-a");
    let mut engine = open(&golden, KvPolicy::F16, 2);
    let n_embd = engine.info().n_embd;
    let adapters: Vec<_> = ["llama-qv", "llama-all", "llama-dora"]
        .map(|name| load(&engine, &testdata().join(name), FactorFormat::F16))
        .to_vec();
    let noise = |n: usize, seed: f32| (0..n).map(|i| (i as f32 * 1.7 + seed).sin()).collect::<Vec<f32>>();
    let gate = |n: usize, seed: f32| {
        let sizes = GateShape { n_embd, n_hidden: 6, n_adapters: n, window: 12, temperature: 0.3 };
        let first = GateLayer { weights: noise(6 * n_embd, seed), bias: noise(6, 1.0) };
        let second = GateLayer { weights: noise(n * 6, seed), bias: noise(n, 2.0) };
        Arc::new(Gate::new(sizes, first, second).expect("a gate"))
    };
    let gated = |n: usize, seed: f32| {
        AdapterSet::gated(adapters[..n].iter().map(|a| (Arc::clone(a), 1.0)).collect(), gate(n, seed)).expect("a set")
    };
    let tokens = &golden.tokens[..golden.tokens.len().min(60)];
    // One adapter alone has all the weight: the same bits as without a gate.
    let alone = logits(&mut engine, tokens, &set(&[(&adapters[1], 1.0)]), usize::MAX);
    let one = AdapterSet::gated(vec![(Arc::clone(&adapters[1]), 1.0)], gate(1, 0.0)).expect("a set");
    assert!(bits(&logits(&mut engine, tokens, &one, usize::MAX)) == bits(&alone));
    let three = gated(3, 0.5);
    let whole = bits(&logits(&mut engine, tokens, &three, usize::MAX));
    assert!(whole != bits(&alone) && whole != bits(&logits(&mut engine, tokens, &gated(3, 0.6), usize::MAX)));
    for chunk in [1, 7] {
        assert!(bits(&logits(&mut engine, tokens, &three, chunk)) == whole, "chunks of {chunk}");
    }
    let sets = [three.clone(), AdapterSet::default(), gated(2, 0.1), set(&[(&adapters[0], 1.0)]), three.clone()];
    let all = together(&mut engine, tokens, &sets);
    assert!(bits(&all[0]) == whole && bits(&all[4]) == whole);
    // Alone, in company, with guesses, and from cached prefixes of its own.
    let request = |i: usize| {
        let prompt = (0..40 + 3 * i as u32).map(|k| (k * k * 31) % 11 + 7).collect();
        let (adapters, sampling) = (sets[i % 5].clone(), SamplingParams::greedy());
        GenerateRequest { prompt, adapters, sampling, max_tokens: Some(24), ignore_eos: true, ..Default::default() }
    };
    let mut answers = Vec::new();
    for i in 0..10 {
        let mut answer = |speculation, is_warm: bool| {
            if !is_warm {
                engine.clear_cache();
            }
            let run = engine.generate(&GenerateRequest { speculation, ..request(i) }).expect("a valid request");
            facts(&run.for_each_token(|_| {}).expect("it runs"))
        };
        let off = answer(Speculation::Off, false);
        assert_eq!(answer(Speculation::Off, true), off, "request {i} again");
        assert_eq!(answer(Speculation::Ngram, false), off, "request {i} with guesses");
        answers.push(off);
    }
    let mut scheduler = engine.scheduler(&SchedulerOptions::default()).expect("valid options");
    for i in 0..10 {
        scheduler.submit(request(i)).expect("a valid request");
    }
    for ((_, answer), alone) in scheduler.run().iter().zip(&answers) {
        assert_eq!(&facts(answer.as_ref().expect("it ran")), alone);
    }
    drop(scheduler);
    let sizes = GateShape { n_embd: n_embd + 1, n_hidden: 2, n_adapters: 1, window: 4, temperature: 1.0 };
    let wrong =
        AdapterSet::gated(vec![(Arc::clone(&adapters[0]), 1.0)], Arc::new(Gate::seeded(sizes, 1).expect("a gate")));
    let error = engine.new_adapted_sequence(&wrong.expect("a set")).expect_err("another width");
    assert!(error.to_string().starts_with("the gate is for embeddings of"), "{error}");
}

/// An adapter of `rank` on every layer but the head.
fn large(engine: &Engine, rank: usize, seed: usize) -> ruvllm_lora::Adapter {
    let noise = |n: usize| (0..n).map(|i| ((i * 31 + seed * 977) as f32 * 0.37).sin() * 0.05).collect::<Vec<f32>>();
    let loader = engine.adapter_loader().expect("it applies adapters");
    let delta = |target: &ruvllm_lora::Target| {
        let n_out = target.rows.len();
        let a = ruvllm_lora::Values::from_f32(rank, target.n_in, &noise(rank * target.n_in));
        let b = ruvllm_lora::Values::from_f32(n_out, rank, &noise(n_out * rank));
        ruvllm_lora::Delta::new(
            &target.tensor,
            1.0,
            ruvllm_lora::FactorPair { a, b },
            None,
            ruvllm_lora::RowOrder::Same,
        )
        .expect("a pair")
    };
    let layers = loader.targets().all().iter().filter(|target| target.tensor.starts_with("blk."));
    ruvllm_lora::Adapter::new("large", layers.map(delta).collect()).expect("an adapter")
}

#[test]
fn adapters_and_keys_and_values_share_one_memory() {
    const TOTAL: usize = 6 << 20;
    let folder = tempfile::tempdir().expect("a folder");
    let golden = Golden::load("llama-a");
    let options =
        LoadOptions { n_ctx: Some(1024), n_threads: 2, n_seq_max: 16, kv_bytes: Some(TOTAL), ..LoadOptions::default() };
    let engine = Engine::load(&golden.model("f32"), &options, &mut |_| {}).expect("a golden model loads");
    let facts = engine.adapter_loader().expect("it applies adapters").targets().facts().clone();
    let manager = Arc::new(engine.adapter_manager(FactorFormat::F16, 64 << 20).expect("it applies adapters"));
    for (i, rank) in [450, 450, 900].into_iter().enumerate() {
        let path = folder.path().join(format!("a{i}.gguf"));
        gguf::write(&large(&engine, rank, i), &facts, &path).expect("it can be written");
        manager.register(&format!("a{i}"), &path, 0).expect("a name");
    }
    let (service, thread) = ruvllm_engine::Service::start(engine, Default::default()).expect("it starts");
    service.share_memory(&manager).expect("it runs");
    // A context fits beside them.
    assert_eq!(manager.stats().total_bytes, 4 << 20);
    let begin = |i: u32, n: usize, adapters: AdapterSet| {
        let prompt = (0..900).map(|k| (k * (i + 3) + i * 7) % 240 + 5).collect();
        let (sender, events) = std::sync::mpsc::channel();
        let (sampling, max_tokens) = (SamplingParams::greedy(), Some(n));
        let request =
            GenerateRequest { prompt, adapters, sampling, max_tokens, ignore_eos: true, ..Default::default() };
        let ticket = service.submit(request, Box::new(move |event| sender.send(event).is_ok())).expect("there is room");
        (ticket, events)
    };
    let end = |(_ticket, events): (ruvllm_engine::Ticket, std::sync::mpsc::Receiver<ruvllm_engine::ServiceEvent>)| {
        events.iter().for_each(|event| {
            if let ruvllm_engine::ServiceEvent::Done(result) = event {
                result.expect("no request fails");
            }
        });
    };
    let ask = |i: u32, adapters: AdapterSet| end(begin(i, 2, adapters));
    // Of what the owner published last, at most a quarter of a second ago.
    let sum = || {
        std::thread::sleep(std::time::Duration::from_millis(600));
        let (kv, adapters) = (service.stats().kv.committed_bytes, manager.stats());
        assert!(
            kv + adapters.shared_bytes <= TOTAL && adapters.held_bytes <= adapters.shared_bytes,
            "{kv} {adapters:?}"
        );
        (kv, adapters)
    };
    (0..30).for_each(|i| ask(i, AdapterSet::default()));
    assert!(sum().0 > 4 << 20, "the cache does not fill the memory");
    // Cached prefixes give way to an adapter.
    let held = manager.get("a0", 0).expect("cached prefixes give way");
    let (kv, adapters) = sum();
    assert!(kv <= 2 << 20 && adapters.shared_bytes == 4 << 20, "{kv} {adapters:?}");
    // Requests go on beside it, with and without it.
    (30..36).for_each(|i| ask(i, AdapterSet::default()));
    ask(36, AdapterSet::new(vec![(Arc::clone(&held), 1.0)]).expect("a set"));
    assert_eq!((sum().1.n_hot, manager.idle_pages()), (1, 0));
    let error = manager.get("a1", 0).expect_err("what is left is a context's");
    assert_eq!(error.kind(), ruvllm_lora::LoraErrorKind::Budget);
    assert_eq!(manager.get("a2", 0).expect_err("it never fits").kind(), ruvllm_lora::LoraErrorKind::Limit);
    // Nobody uses it: it is evicted for another one, and that for the KV cache.
    drop(held);
    drop(manager.get("a1", 0).expect("idle ones give way"));
    assert_eq!(sum().1.n_evictions, 1);
    let many: Vec<_> = (40..54).map(|i| begin(i, 60, AdapterSet::default())).collect();
    many.into_iter().for_each(end);
    let (kv, adapters) = sum();
    assert!(kv > 4 << 20 && adapters.n_hot == 0 && adapters.shared_bytes == 0, "{kv} {adapters:?}");
    drop(manager.get("a0", 0).expect("and comes back"));
    service.drain(std::time::Duration::ZERO);
    thread.join().expect("no panic");
    assert_eq!(
        manager.get("a1", 0).map(drop).map_err(|error| error.kind()),
        Ok(()),
        "idle ones give way without an owner"
    );
}
