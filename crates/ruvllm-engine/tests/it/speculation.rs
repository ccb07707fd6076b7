//! Guessing ahead changes how fast an answer is and nothing else.

use ruvllm_engine::{
    Engine, GenerateRequest, GenerationSummary, GrammarSource, KvPolicy, LoadOptions, LogitRows, SamplingParams,
    Segment, Speculation, Timings,
};
use ruvllm_testkit::{Golden, real_model};
use serde_json::json;

fn open(path: &std::path::Path, kv: KvPolicy) -> Engine {
    let options = LoadOptions { kv, n_ctx: Some(1024), n_seq_max: 2, ..LoadOptions::default() };
    Engine::load(path, &options, &mut |_| {}).expect("it loads")
}

/// Answers with and without guesses, compares them and returns the one with.
fn check(engine: &mut Engine, request: &GenerateRequest) -> GenerationSummary {
    let mut answer = |speculation| {
        let request = GenerateRequest { speculation, ..request.clone() };
        let run = engine.generate(&request).expect("a valid request");
        let (mut text, mut n) = (String::new(), 0);
        let summary = run.for_each_token(|event| {
            text.push_str(&event.text);
            n += 1;
        });
        let summary = summary.expect("it runs");
        assert_eq!((&text, n), (&summary.text, summary.tokens.len()));
        summary
    };
    let (off, on) = (answer(Speculation::Off), answer(Speculation::Ngram));
    let facts = |summary: &GenerationSummary| GenerationSummary { timings: Timings::default(), ..summary.clone() };
    assert_eq!(facts(&on), facts(&off));
    assert_eq!(off.timings.draft_tokens, 0);
    on
}

#[test]
fn tiny_models_answer_the_same() {
    for name in
        ["llama-a", "gemma3-a", "gpt2-a", "mixtral-a", "phi3-a", "deepseek2-b", "lfm2-a", "mamba-a", "falcon-h1-a"]
    {
        let mut engine = open(&Golden::load(name).model("f32"), KvPolicy::F16);
        let mut n_accepted = 0;
        for i in 0..24u32 {
            let prompt: Vec<u32> = (0..5 + i * 3).map(|k| (k * k * 31 + i) % (4 + i) + 7).collect();
            let hot = SamplingParams { seed: Some(u64::from(i)), temperature: 0.6, ..SamplingParams::default() };
            let sampling = match i % 4 {
                0 | 1 => SamplingParams::greedy(),
                2 => hot,
                _ => SamplingParams { repeat_penalty: 1.1, frequency_penalty: 0.1, dry_multiplier: 0.1, ..hot },
            };
            let (max_tokens, logprobs) = (Some(1 + i as usize * 11 % 90), i.is_multiple_of(5).then_some(2));
            let ignore_eos = i.is_multiple_of(2);
            let request = GenerateRequest { prompt, max_tokens, sampling, logprobs, ignore_eos, ..Default::default() };
            n_accepted += check(&mut engine, &request).timings.accepted_tokens;
        }
        // A recurrent state cannot be taken back.
        let is_recurrent = ["lfm2-a", "mamba-a", "falcon-h1-a"].contains(&name);
        assert_eq!(n_accepted == 0, is_recurrent, "{name}: {n_accepted} drafted tokens were accepted");
    }
}

const CODE: &str = "def area(width, height):\n    result = width * height\n    return result\n\n\ndef volume(width, height, depth):\n    result = width * height * depth\n    return result\n";

fn edit(engine: &Engine, max_tokens: usize) -> GenerateRequest {
    let task =
        format!("Repeat this code, with `result` renamed to `value`. Answer with code only.\n```python\n{CODE}```");
    let prompt = engine.encode_prompt(&task, false).expect("the template takes it");
    GenerateRequest { prompt, max_tokens: Some(max_tokens), sampling: SamplingParams::greedy(), ..Default::default() }
}

#[test]
fn an_edited_text_is_guessed_and_the_same() {
    let mut engine = open(&real_model("qwen2.5-coder:0.5b"), KvPolicy::F16);
    let request = edit(&engine, 100);
    let summary = check(&mut engine, &request);
    assert!(summary.timings.accepted_tokens > 30, "{:?}: {}", summary.timings, summary.text);
    // What is cached of it is right: it is gone on with.
    let again = GenerateRequest { prompt: [summary.prompt_tokens, summary.tokens].concat(), ..request };
    check(&mut engine, &again);
}

#[test]
fn guesses_are_taken_back_whole() {
    for kv in [KvPolicy::F16, KvPolicy::F32, KvPolicy::Tiered { hot: 32, warm: 64 }] {
        let mut engine = open(&Golden::load("llama-a").model("f32"), kv);
        let tokens: Vec<u32> = (0..90).map(|i| i * i * 7 % 250).collect();
        let (seq, other) = (engine.new_sequence().expect("free"), engine.new_sequence().expect("free"));
        let mut at = 0;
        while at < tokens.len() {
            // A wrong piece behind every right one, across blocks.
            let n = 1 + at % 5;
            let right = &tokens[at..(at + n).min(tokens.len())];
            let wrong: Vec<u32> = right.iter().chain(&[3, 1, 4, 1, 5, 9, 2, 6]).copied().collect();
            engine.forward(&[Segment { seq, tokens: &wrong, logits: LogitRows::Tail(9) }]).expect("it fits");
            engine.runner_mut().rewind(seq, at).expect("it can");
            let last = |engine: &mut Engine, seq| {
                let segment = Segment { seq, tokens: right, logits: LogitRows::Last };
                engine.forward(&[segment]).expect("it fits").to_vec()
            };
            assert_eq!(last(&mut engine, seq), last(&mut engine, other), "{kv}: {at}");
            at += right.len();
        }
        let usage = engine.kv_usage();
        assert_eq!(usage.free + usage.cached_only + usage.in_use, usage.total);
        assert!(engine.runner_mut().rewind(seq, 91).is_err());
    }
    let mut engine = open(&Golden::load("llama-a").model("f32"), KvPolicy::Tiered { hot: 16, warm: 32 });
    assert!(!engine.runner_mut().can_rewind());
}

#[test]
fn grammars_and_guesses_go_together() {
    let mut engine = open(&real_model("smollm2:135m"), KvPolicy::F16);
    let schema = json!({"type": "array", "minItems": 6, "maxItems": 9, "items": {
        "type": "object", "properties": {"name": {"enum": ["Ann", "Bob"]}, "ready": {"type": "boolean"}, "n": {"type": "integer"}},
        "required": ["name", "ready", "n"], "additionalProperties": false}});
    let grammar = engine.grammar_compiler().expect("a vocabulary").compile(&GrammarSource::JsonSchema(schema));
    let grammar = Some(grammar.expect("a grammar"));
    let prompt = engine.encode_prompt("List people.", false).expect("the template takes it");
    let mut n_accepted = 0;
    for (seed, logprobs) in [(1, None), (2, Some(1)), (3, None)] {
        let sampling = SamplingParams { seed: Some(seed), temperature: 0.5, ..SamplingParams::default() };
        let (prompt, grammar) = (prompt.clone(), grammar.clone());
        let request =
            GenerateRequest { prompt, max_tokens: Some(250), sampling, logprobs, grammar, ..Default::default() };
        n_accepted += check(&mut engine, &request).timings.accepted_tokens;
    }
    assert!(n_accepted > 0);
}

#[test]
fn earlier_texts_of_a_tenant_are_drafted_from_and_none_of_anothers() {
    let mut engine = open(&real_model("qwen2.5-coder:0.5b"), KvPolicy::F16);
    let prompt = engine.encode_prompt("Write a short story about a lighthouse.", false).expect("the template takes it");
    let sampling = SamplingParams { temperature: 0.8, seed: Some(3), ..SamplingParams::default() };
    let request = GenerateRequest { prompt, max_tokens: Some(80), sampling, ..Default::default() };
    let mut answer = |tenant, forgets| {
        if forgets {
            engine.runner_mut().forget_history(tenant);
        }
        let request = GenerateRequest { tenant, ..request.clone() };
        engine.generate(&request).expect("a valid request").for_each_token(|_| {}).expect("it runs")
    };
    let (first, again, other, forgotten) = (answer(1, false), answer(1, false), answer(2, false), answer(1, true));
    let n_accepted = |summary: &GenerationSummary| summary.timings.accepted_tokens;
    assert_eq!([&again.text, &other.text, &forgotten.text], [&first.text; 3]);
    assert!(n_accepted(&again) >= 60, "{} of 80 tokens were accepted", n_accepted(&again));
    assert_eq!([n_accepted(&other), n_accepted(&forgotten)], [n_accepted(&first); 2]);
    engine.runner_mut().set_history_bytes(0);
    assert_eq!(engine.runner().history_bytes(), 0);
}
