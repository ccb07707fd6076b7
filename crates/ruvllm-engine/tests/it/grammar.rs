//! Structured output as a caller sees it: on a real model, alone and beside others.

use ruvllm_engine::{
    Engine, EngineError, ErrorKind, Event, FinishReason, GenerateRequest, Grammar, GrammarErrorKind, GrammarSource,
    LoadOptions, SamplingParams,
};
use ruvllm_testkit::{real_model, schema_validator};
use serde_json::{Value, json};

fn open(n_seq_max: usize) -> Engine {
    let options = LoadOptions { n_ctx: Some(512), n_seq_max, ..LoadOptions::default() };
    Engine::load(&real_model("smollm2:135m"), &options, &mut |_| {}).expect("it loads")
}

fn compile(engine: &Engine, source: &GrammarSource) -> Grammar {
    engine.grammar_compiler().expect("it has a vocabulary").compile(source).expect("a grammar")
}

fn person() -> GrammarSource {
    GrammarSource::JsonSchema(json!({
        "type": "object",
        "properties": {
            "first_name_of_the_person": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "colour": {"enum": ["red", "green", "blue"]},
        },
        "required": ["first_name_of_the_person", "age", "colour"],
        "additionalProperties": false,
    }))
}

fn request(engine: &Engine, source: &GrammarSource, sampling: SamplingParams) -> GenerateRequest {
    let prompt = engine.encode_prompt("Invent a person, as JSON.", false).expect("the template takes it");
    let grammar = Some(compile(engine, source));
    GenerateRequest { prompt, max_tokens: Some(120), sampling, grammar, ..Default::default() }
}

fn hot(seed: u64) -> SamplingParams {
    SamplingParams { temperature: 1.5, top_k: 0, min_p: 0.0, seed: Some(seed), ..SamplingParams::default() }
}

#[test]
fn an_answer_is_valid_or_too_long() {
    let mut engine = open(1);
    let mut n_whole = 0;
    for seed in 0..12 {
        let sampling = if seed == 0 { SamplingParams::greedy() } else { hot(seed) };
        let request = request(&engine, &person(), sampling);
        let summary = engine.generate(&request).expect("valid").for_each_token(|_| {}).expect("it runs");
        match summary.finish_reason {
            FinishReason::Stop => {
                let person: Value = serde_json::from_str(&summary.text).expect("JSON");
                let age = person["age"].as_i64().expect("an age");
                assert!((0..=120).contains(&age) && person.as_object().is_some_and(|p| p.len() == 3), "{person}");
                n_whole += 1;
            }
            _ => assert_eq!((summary.finish_reason, summary.tokens.len()), (FinishReason::Length, 120)),
        }
        // Asked for log-probabilities, the model computes what it need not; the answer is the same.
        let asked = GenerateRequest { logprobs: Some(1), ..request };
        let told = engine.generate(&asked).expect("valid").for_each_token(|_| {}).expect("it runs");
        assert_eq!((told.tokens, told.logprobs.len()), (summary.tokens.clone(), summary.tokens.len()));
    }
    assert!(n_whole >= 8, "{n_whole} of 12 came to an end");
}

#[test]
fn masks_computed_while_the_model_runs_are_the_same() {
    // With one thread there is a core to spare on most machines, with as many as there are cores there is none.
    let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
    let [ahead, between] = [1, n_cores].map(|n_threads| {
        let options = LoadOptions { n_ctx: Some(512), n_seq_max: 3, n_threads, ..LoadOptions::default() };
        let mut engine = Engine::load(&real_model("smollm2:135m"), &options, &mut |_| {}).expect("it loads");
        let requests: Vec<GenerateRequest> = (0..5)
            .map(|seed| GenerateRequest { max_tokens: Some(60), ..request(&engine, &person(), hot(seed)) })
            .collect();
        let mut scheduler = engine.scheduler(&Default::default()).expect("valid options");
        for request in requests {
            scheduler.submit(request).expect("valid");
        }
        let answers = scheduler.run().into_iter().map(|(_, answer)| answer.expect("it runs").tokens);
        answers.collect::<Vec<_>>()
    });
    assert_eq!(ahead, between);
}

#[test]
fn in_a_batch_it_is_the_same_and_what_is_forced_takes_no_steps() {
    let (mut engine, mut reference) = (open(4), open(1));
    let sources = [
        person(),
        GrammarSource::Choice(vec!["a very long answer".into(), "b".into()]),
        GrammarSource::Regex("[a-z]{3,9}( [a-z]{3,9}){2}\\.".into()),
        GrammarSource::JsonObject,
    ];
    // A grammar is its engine's own.
    let requests = |engine: &Engine| -> Vec<GenerateRequest> {
        let requests = sources.iter().zip(1..).map(|(source, seed)| request(engine, source, hot(seed)));
        requests.map(|request| GenerateRequest { max_tokens: Some(40), ..request }).collect()
    };
    let alone = requests(&reference)
        .into_iter()
        .map(|request| reference.generate(&request).expect("valid").for_each_token(|_| {}).expect("it runs").tokens);
    let expected: Vec<Vec<u32>> = alone.collect();
    let requests = requests(&engine);
    let mut scheduler = engine.scheduler(&Default::default()).expect("valid options");
    let n_all: usize = expected.iter().map(Vec::len).sum();
    for request in &requests {
        scheduler.submit(request.clone()).expect("valid");
    }
    let (mut told, mut n_done) = (0, 0);
    while !scheduler.is_idle() {
        for event in scheduler.step() {
            match event {
                Event::Token(..) => told += 1,
                Event::Done(_, summary) => {
                    let summary = summary.expect("it runs");
                    assert!(expected.contains(&summary.tokens), "{:?}", summary.text);
                    n_done += 1;
                }
            }
        }
    }
    assert_eq!((n_done, told), (4, n_all));
    // Alone: the names of the properties cost no steps of their own.
    let before = scheduler.stats().n_steps;
    scheduler.submit(requests[0].clone()).expect("valid");
    let n_tokens = scheduler.run()[0].1.as_ref().expect("it runs").tokens.len() as u64;
    let n_steps = scheduler.stats().n_steps - before;
    assert!(n_steps + 8 < n_tokens, "{n_steps} steps for {n_tokens} tokens");
}

#[test]
fn an_end_that_is_not_the_grammars_is_refused() {
    let mut engine = open(1);
    let request = GenerateRequest { stop: vec!["}".into()], ..request(&engine, &person(), hot(1)) };
    let error = engine.generate(&request).err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::Options);
    let foreign = GenerateRequest { stop: Vec::new(), ..request.clone() };
    let error = open(1).generate(&foreign).err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::Options);
    let compiler = engine.grammar_compiler().expect("it has a vocabulary");
    let error = compiler.compile(&GrammarSource::JsonSchema(json!({"x-guidance": {}}))).expect_err("refused");
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (GrammarErrorKind::Invalid, "the schema uses 'x-guidance', which is not supported")
    );
}

#[test]
fn an_answer_goes_back_where_a_value_does_not_fit() {
    let mut engine = open(1);
    let schemas = [
        json!({"type": "array", "uniqueItems": true, "items": {"enum": ["red", "green", "blue"]}, "minItems": 3}),
        json!({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "boolean"}},
               "additionalProperties": false, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
        json!({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 3,
               "contains": {"const": 7}}),
    ];
    let mut n_whole = 0;
    for schema in &schemas {
        let grammar =
            engine.grammar_compiler().expect("a tokenizer").compile(&GrammarSource::JsonSchema(schema.clone()));
        let grammar = grammar.unwrap_or_else(|error| panic!("{schema}: {error}"));
        for seed in 1..=3 {
            let mut answer = || {
                let prompt = engine.encode_prompt("Write JSON:", false).expect("a prompt");
                let sampling = SamplingParams { seed: Some(seed), temperature: 1.0, ..Default::default() };
                let grammar = Some(grammar.clone());
                let request =
                    GenerateRequest { prompt, max_tokens: Some(120), sampling, grammar, ..Default::default() };
                let (mut told, mut n_told) = (String::new(), 0);
                let summary = engine.generate(&request).expect("a request").for_each_token(|event| {
                    told.push_str(&event.text);
                    n_told += 1;
                });
                summary.map(|summary| {
                    assert_eq!((&told, n_told), (&summary.text, summary.tokens.len()));
                    (summary.finish_reason == FinishReason::Stop, told)
                })
            };
            let (first, again) = (answer(), answer());
            let text = |answer: &Result<(bool, String), EngineError>| match answer {
                Ok((_, text)) => text.clone(),
                Err(error) => error.to_string(),
            };
            assert_eq!(text(&first), text(&again), "{schema}");
            if let Ok((true, text)) = first {
                n_whole += 1;
                let value: Value = serde_json::from_str(&text).expect("JSON");
                assert!(schema_validator(schema).expect("a schema")(&value), "{schema} let {text} through");
            }
        }
    }
    // Most are cut by the number of tokens or given up: what is asserted is that none is wrong, and each is repeated.
    assert!(n_whole >= 1, "{n_whole} of 9 answers came to an end");
}
