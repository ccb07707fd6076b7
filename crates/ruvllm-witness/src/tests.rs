//! What is recorded, and what replaying takes and refuses.

use std::time::Instant;

use ruvllm_engine::{AdapterSet, GrammarSource, LoadOptions, Mirostat, SamplerKind, SamplingParams};
use ruvllm_sona::quality::ScorerOptions;
use ruvllm_sona::store::{self, OpenOptions};
use ruvllm_sona::witness::{LogOptions, Query, search};
use ruvllm_testkit::Golden;

use super::settings::{read, write};
use super::*;

fn engine() -> Engine {
    let path = Golden::load("llama-a").model("f32");
    Engine::load(&path, &LoadOptions { n_ctx: Some(128), ..LoadOptions::default() }, &mut |_| {}).expect("it loads")
}

/// Runs requests on record, and returns what the log has of them, in their order.
fn recorded(engine: &mut Engine, keeps_tokens: bool, requests: Vec<GenerateRequest>) -> Vec<Served> {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store::open(&folder.path().join("witness.redb"), &OpenOptions::default()).expect("a store");
    let log = Arc::new(WitnessLog::start(Arc::clone(&store), LogOptions::default()).expect("a log"));
    let recorder = Recorder::new(engine, Arc::clone(&log), keeps_tokens).expect("a recorder");
    for (i, mut request) in requests.into_iter().enumerate() {
        let record = recorder.begin(&mut request, About { request: i as u64, tenant: "t".into(), ..About::default() });
        let result = engine.generate(&request).and_then(|generation| generation.for_each_token(|_| {}));
        record.end(result.as_ref());
    }
    log.flush().expect("it is written");
    let found = search(store.as_ref(), "t", &Query::default()).expect("it is readable");
    let served = found.into_iter().rev().filter_map(|recorded| match recorded.event {
        Event::Served(served) => Some(*served),
        _ => None,
    });
    served.collect()
}

fn request(engine: &Engine, text: &str) -> GenerateRequest {
    let prompt = engine.encode_prompt(text, true).expect("text");
    GenerateRequest { prompt, max_tokens: Some(12), ..GenerateRequest::default() }
}

#[test]
fn settings_come_back() {
    let engine = engine();
    let sampling = SamplingParams {
        temperature: 0.7,
        top_p: 0.95,
        min_p: 1e-7,
        mirostat: Mirostat::V2,
        order: vec![SamplerKind::TopK, SamplerKind::Temperature],
        logit_bias: vec![(3, -1.5), (4, f32::NEG_INFINITY)],
        dry_sequence_breakers: vec!["\n".into()],
        ..SamplingParams::default()
    };
    let sources = [
        GrammarSource::JsonObject,
        GrammarSource::JsonSchema(serde_json::json!({ "type": "object" })),
        GrammarSource::Regex("a+".into()),
        GrammarSource::Choice(vec!["a".into(), "b".into()]),
        GrammarSource::Lark("start: \"a\"".into()),
        GrammarSource::Gbnf("root ::= \"a\"".into()),
    ];
    let running = Running::of(&engine);
    for source in sources {
        let grammar = engine.grammar_compiler().expect("a vocabulary").compile(&source).expect("a grammar");
        let request = GenerateRequest {
            sampling: sampling.clone(),
            max_tokens: None,
            stop: vec!["END".into()],
            visible: vec![7],
            ignore_eos: true,
            grammar: Some(grammar),
            ..GenerateRequest::default()
        };
        let whole = write(&request, &running, true).to_string();
        let back = read(&whole).expect("its own text");
        assert_eq!(back.request.sampling, sampling);
        assert_eq!(
            (back.request.max_tokens, &back.request.stop, &back.request.visible),
            (None, &request.stop, &vec![7])
        );
        assert_eq!(back.grammar, Some((source, false)));
        assert!(back.is_whole && back.request.ignore_eos && back.n_ctx == 128);
        let withheld = write(&request, &running, false).to_string();
        assert!(!withheld.contains("END") && !read(&withheld).expect("its own text").is_whole, "{withheld}");
    }
    for wrong in ["", "{}", "[]", "{\"program\": 3}"] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn what_was_recorded_comes_out_again() {
    let mut engine = engine();
    let base = request(&engine, "Name three rivers");
    let sampled = |seed, change: &dyn Fn(&mut SamplingParams)| {
        let mut request = base.clone();
        request.sampling.seed = seed;
        change(&mut request.sampling);
        request
    };
    let grammar = GrammarSource::Regex("[a-c]{2,8}".into());
    let grammar = engine.grammar_compiler().expect("a vocabulary").compile(&grammar).expect("a grammar");
    let requests = vec![
        sampled(Some(1), &|_| {}),
        // Its seed is drawn, and on record.
        sampled(None, &|_| {}),
        sampled(Some(2), &|sampling| sampling.temperature = 0.0),
        sampled(Some(3), &|sampling| sampling.mirostat = Mirostat::V2),
        sampled(Some(4), &|sampling| sampling.repeat_penalty = 1.3),
        GenerateRequest { grammar: Some(grammar), ..base.clone() },
        GenerateRequest { stop: vec!["e".into(), "a".into()], ..base.clone() },
        // Over before it began.
        GenerateRequest { deadline: Some(Instant::now()), ..base.clone() },
    ];
    let mut served = recorded(&mut engine, true, requests);
    assert_eq!(served.len(), 8);
    assert_eq!(served[7].finish, "deadline");
    // An answer that was cut off by its owner.
    let n = served[0].completion.n_tokens - 2;
    let tokens = served[0].completion.tokens.as_ref().map(|tokens| tokens[..n as usize].to_vec());
    let completion = Content::new(&tokens.expect("they were kept"), true);
    served.push(Served { completion, finish: "cancelled".into(), ..served[0].clone() });
    for (i, served) in served.iter().enumerate() {
        let options = load_options(served, LoadOptions::default()).expect("this machine");
        let mut other = Engine::load(&Golden::load("llama-a").model("f32"), &options, &mut |_| {}).expect("it loads");
        let replayed = replay(&mut other, served, &AdapterSet::default()).expect("it runs");
        assert!(replayed.is_same() && replayed.other_program.is_none(), "{i}: {replayed:?}");
    }
    // Another token, another seed.
    let mut tokens = served[0].completion.tokens.clone().expect("they were kept");
    tokens[3] ^= 1;
    let edited = Served { completion: Content::new(&tokens, true), ..served[0].clone() };
    let replayed = replay(&mut engine, &edited, &AdapterSet::default()).expect("it runs");
    assert_eq!((replayed.is_same(), replayed.n_same), (false, 3));
    let edited = Served { seed: 77, ..served[0].clone() };
    assert!(!replay(&mut engine, &edited, &AdapterSet::default()).expect("it runs").is_same());
}

#[test]
fn what_cannot_be_repeated_is_refused_in_a_line() {
    let mut engine = engine();
    let requests = || vec![request(&engine, "Name three rivers")];
    let (whole, bare) = (requests(), requests());
    let whole = recorded(&mut engine, true, whole).remove(0);
    let bare = recorded(&mut engine, false, bare).remove(0);
    assert!(
        bare.prompt.tokens.is_none()
            && bare.completion.tokens.is_none()
            && bare.prompt == Content { tokens: None, ..whole.prompt.clone() }
    );
    let mut other =
        Engine::load(&Golden::load("llama-c").model("f32"), &LoadOptions::default(), &mut |_| {}).expect("it loads");
    let line = |engine: &mut Engine, served: &Served| {
        replay(engine, served, &AdapterSet::default()).expect_err("it cannot be").to_string()
    };
    assert!(line(&mut engine, &bare).contains("tokens were not kept"));
    assert!(line(&mut other, &whole).contains("it was answered by the model"));
    let failed = Served { error: Some("out of blocks".into()), ..whole.clone() };
    assert!(line(&mut engine, &failed).contains("the request failed: out of blocks"));
    let learned = Served { adapter_generation: 4, ..whole.clone() };
    assert!(line(&mut engine, &learned).contains("generation 4"));
    let otherwise = Served { settings: whole.settings.replace("\"f16\"", "\"q8\""), ..whole.clone() };
    assert!(line(&mut engine, &otherwise).contains("cache policy was q8"));
    let broken = Served { settings: "x".into(), ..whole };
    assert!(line(&mut engine, &broken).contains("cannot be read"));
}

#[test]
fn a_record_without_an_end_says_so() {
    let engine = engine();
    let folder = tempfile::tempdir().expect("a folder");
    let store = store::open(&folder.path().join("witness.redb"), &OpenOptions::default()).expect("a store");
    let log = Arc::new(WitnessLog::start(Arc::clone(&store), LogOptions::default()).expect("a log"));
    let recorder = Recorder::new(&engine, Arc::clone(&log), false).expect("a recorder");
    drop(recorder.begin(&mut request(&engine, "x"), About { tenant: "t".into(), ..About::default() }));
    log.flush().expect("it is written");
    let found = search(store.as_ref(), "t", &Query { has_failed: Some(true), ..Query::default() }).expect("readable");
    assert_eq!(found.len(), 1);
}

/// A grammar is kept or cut off, the same question has the same answer, and loops are seen.
#[test]
fn answers_are_scored_behind_their_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store::open(&folder.path().join("witness.redb"), &OpenOptions::default()).expect("a store");
    let log = Arc::new(WitnessLog::start(Arc::clone(&store), LogOptions::default()).expect("a log"));
    let mut engine = engine();
    let scorer = Arc::new(Mutex::new(Scorer::new(ScorerOptions::default())));
    let recorder = Recorder::new(&engine, Arc::clone(&log), false).expect("a recorder").with_scorer(scorer);
    let compiler = engine.grammar_compiler().expect("a compiler");
    let schema = serde_json::json!({ "enum": ["one of two", "two of two"] });
    let grammar = compiler.compile(&GrammarSource::JsonSchema(schema)).expect("a grammar");
    let greedy = GenerateRequest { sampling: SamplingParams::greedy(), ..request(&engine, "a b c") };
    let asked = [
        (GenerateRequest { grammar: Some(grammar.clone()), max_tokens: Some(60), ..greedy.clone() }, "which of them"),
        (GenerateRequest { grammar: Some(grammar), max_tokens: Some(3), ..greedy.clone() }, "is it one"),
        (GenerateRequest { max_tokens: Some(40), ignore_eos: true, ..greedy.clone() }, "name three rivers"),
        (GenerateRequest { max_tokens: Some(40), ignore_eos: true, ..greedy }, "name three rivers"),
    ];
    for (i, (mut request, question)) in asked.into_iter().enumerate() {
        let about =
            About { request: i as u64, tenant: "t".into(), question: Some(question.into()), ..About::default() };
        let record = recorder.begin(&mut request, about);
        let result = engine.generate(&request).and_then(|generation| generation.for_each_token(|_| {}));
        record.end(result.as_ref());
    }
    log.flush().expect("it is written");
    let found = search(store.as_ref(), "t", &Query::default()).expect("it is readable");
    let served: Vec<Served> = found
        .iter()
        .rev()
        .map(|recorded| match &recorded.event {
            Event::Served(served) => Served::clone(served),
            other => panic!("{other:?}"),
        })
        .collect();
    let schema: Vec<Option<f32>> = served.iter().map(|served| served.scores.schema).collect();
    assert_eq!(schema, [Some(1.0), Some(0.5), None, None], "kept, cut off, not asked for");
    assert!(served.iter().all(|served| served.quality == served.scores.overall() && served.quality.is_some()));
    let [first, again] = [2, 3].map(|i| served[i].scores);
    assert_eq!((first.consistency, again.consistency), (None, Some(1.0)));
    assert_eq!(again.uniqueness, Some(0.0));
    assert!(first.diversity.is_some_and(|diversity| diversity == again.diversity.expect("the same")));
}
