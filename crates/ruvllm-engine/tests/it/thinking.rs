//! Thoughts before an answer that has a form or a budget.

use ruvllm_engine::thoughts::{Thinking, ThoughtFormat};
use ruvllm_engine::{
    Engine, FinishReason, GenerateRequest, GenerationSummary, GrammarSource, LoadOptions, SamplingParams,
};
use ruvllm_testkit::{real_model, schema_validator};
use serde_json::{Value, json};

/// A mark that this model has as one token.
static MARKED: ThoughtFormat =
    ThoughtFormat { name: "marked", sign: "", open: "<repo_name>", close: "<file_sep>", leads: &[], tail: "" };

fn open() -> Engine {
    let options = LoadOptions { n_ctx: Some(512), ..LoadOptions::default() };
    Engine::load(&real_model("smollm2:135m"), &options, &mut |_| {}).expect("it loads")
}

fn think() -> &'static ThoughtFormat {
    ThoughtFormat::ALL.iter().find(|format| format.name == "think").expect("it is one")
}

/// Answers, and returns what is told on the way too.
fn answer(engine: &mut Engine, request: &GenerateRequest) -> (GenerationSummary, String) {
    let mut told = String::new();
    let summary = engine.generate(request).expect("valid").for_each_token(|event| told.push_str(&event.text));
    (summary.expect("it runs"), told)
}

fn read(thinking: Thinking, text: &str) -> (String, String) {
    let mut reader = thinking.reader();
    let ((thought, said), (rest, more)) = (reader.push(text), reader.finish());
    (thought + &rest, said + &more)
}

#[test]
fn a_thought_ends_within_its_budget_and_the_form_begins_behind_it() {
    let mut engine = open();
    let small = json!({ "type": "object", "properties": { "age": { "type": "integer", "minimum": 1, "maximum": 9 } },
        "required": ["age"], "additionalProperties": false });
    // Values of this one are looked at as they close.
    let watched = json!({ "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 4 }, "uniqueItems": true,
        "minItems": 3, "maxItems": 3 });
    for (schema, n_max, seed) in [(&small, 12, 1), (&small, 0, 2), (&watched, 9, 3), (&watched, 9, 4)] {
        let thinking = Thinking { format: think(), is_open: true, n_tokens_max: Some(n_max) };
        let source = GrammarSource::JsonSchema(schema.clone());
        let grammar = engine.grammar_compiler().expect("a vocabulary").compile(&source).expect("a grammar");
        let request = GenerateRequest {
            prompt: engine.encode_prompt("How old is the child?", false).expect("the template takes it"),
            max_tokens: Some(120),
            sampling: SamplingParams { temperature: 1.0, seed: Some(seed), ..SamplingParams::default() },
            grammar: Some(grammar),
            thinking: Some(thinking),
            ..Default::default()
        };
        let (summary, told) = answer(&mut engine, &request);
        assert_eq!((summary.finish_reason, &told), (FinishReason::Stop, &summary.text));
        let (thought, said) = read(thinking, &summary.text);
        let value: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{said:?}: {error}"));
        assert!(schema_validator(schema).expect("a schema")(&value), "{value}");
        assert!(thought.is_empty() == (n_max == 0) && !thought.contains(&said), "{thought:?}");
        let n_close = engine.encode_prompt("</think>", true).expect("it encodes").len();
        assert_eq!(summary.n_thought as usize, n_max + n_close);
    }
}

#[test]
fn a_model_may_begin_to_think_where_a_form_is_asked_for() {
    let mut engine = open();
    let source = GrammarSource::Choice(vec!["yes".to_owned(), "no".to_owned()]);
    let grammar = engine.grammar_compiler().expect("a vocabulary").compile(&source).expect("a grammar");
    let open = engine.encode_prompt(MARKED.open, true).expect("it encodes")[0];
    let thinking = Thinking { format: &MARKED, is_open: false, n_tokens_max: Some(5) };
    for (bias, n_thought, is_marked) in [(100.0, 6, true), (-100.0, 0, false)] {
        let request = GenerateRequest {
            prompt: engine.encode_prompt("Yes or no?", false).expect("the template takes it"),
            sampling: SamplingParams { logit_bias: vec![(open, bias)], ..SamplingParams::greedy() },
            grammar: Some(grammar.clone()),
            thinking: Some(thinking),
            visible: MARKED.visible(engine.text().expect("a text").tokenizer()),
            ..Default::default()
        };
        let (summary, _) = answer(&mut engine, &request);
        let (thought, said) = read(thinking, &summary.text);
        assert!(["yes", "no"].contains(&&*said), "{:?}", summary.text);
        assert_eq!((summary.n_thought, !thought.is_empty()), (n_thought, is_marked), "{:?}", summary.text);
    }
}
