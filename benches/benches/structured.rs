//! What does a grammar cost? A mask over SmolLM2's 49,152 tokens at every place of an answer, taking note of a token, and
//! the answer as a whole beside a free one of as many tokens.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use ruvllm_benches::criterion;
use ruvllm_engine::{
    Constraint, Engine, GenerateRequest, Grammar, GrammarSource, LoadOptions, SamplingParams, Speculation,
};
use ruvllm_testkit::real_model;
use serde_json::json;

const ANSWER: &str = r#"{"name": "Ann Lee", "age": 31, "tags": ["red", "tall"], "note": "she lives near the river"}"#;

fn grammars(engine: &Engine) -> Vec<(&'static str, Grammar)> {
    let compiler = engine.grammar_compiler().expect("it has a vocabulary");
    let schema = json!({"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 40}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 8}, "note": {"type": "string"}},
        "required": ["name", "age", "tags", "note"], "additionalProperties": false});
    let sources = [("json_object", GrammarSource::JsonObject), ("schema", GrammarSource::JsonSchema(schema))];
    sources.map(|(name, source)| (name, compiler.compile(&source).expect("a grammar"))).to_vec()
}

/// Returns the grammar's states in front of every token of the answer.
fn walk(grammar: &Grammar, tokens: &[u32], n: usize) -> Constraint {
    let mut constraint = grammar.start();
    tokens[..n].iter().for_each(|&id| constraint.accept(id).expect("the answer is valid"));
    constraint
}

fn masks(criterion: &mut Criterion) {
    let options = LoadOptions { n_ctx: Some(512), ..LoadOptions::default() };
    let mut engine = Engine::load(&real_model("smollm2:135m"), &options, &mut |_| {}).expect("it loads");
    let tokens = engine.tokenizer().expect("it has one").encode(ANSWER, Default::default()).expect("text");
    let mut group = criterion.benchmark_group("structured");
    for (name, grammar) in grammars(&engine) {
        let mut place = 0;
        let mut next = || {
            place = (place + 7) % tokens.len();
            (walk(&grammar, &tokens, place), tokens[place])
        };
        group.bench_function(format!("mask/{name}"), |bencher| {
            bencher.iter_batched_ref(
                &mut next,
                |(constraint, _)| constraint.compute_mask().expect("it is cheap"),
                BatchSize::SmallInput,
            );
        });
        group.bench_function(format!("accept/{name}"), |bencher| {
            bencher.iter_batched_ref(
                &mut next,
                |(constraint, id)| constraint.accept(*id).expect("it is valid"),
                BatchSize::SmallInput,
            );
        });
    }
    let (_, schema) = grammars(&engine).pop().expect("two of them");
    let mut answer = |grammar: Option<Grammar>, n: usize| {
        let prompt = engine.encode_prompt("Invent a person, as JSON.", false).expect("text");
        let sampling = SamplingParams { seed: Some(7), ..SamplingParams::default() };
        let (ignore_eos, speculation) = (grammar.is_none(), Speculation::Off);
        let max_tokens = Some(n);
        let request =
            GenerateRequest { prompt, max_tokens, sampling, grammar, ignore_eos, speculation, ..Default::default() };
        engine.generate(&request).expect("valid").for_each_token(|_| {}).expect("it runs").tokens.len()
    };
    let n = answer(Some(schema.clone()), 48);
    group.throughput(Throughput::Elements(n as u64));
    group.bench_function("answer/schema", |bencher| bencher.iter(|| answer(Some(schema.clone()), n)));
    group.bench_function("answer/free", |bencher| bencher.iter(|| answer(None, n)));
    group.finish();
}

criterion_group! { name = benches; config = criterion(); targets = masks }
criterion_main!(benches);
