//! Generation as a caller sees it: streaming, limits, stop strings, cancellation, errors that say the numbers.

use ruvllm_engine::{
    CancelToken, Engine, ErrorKind, FinishReason, GenerateRequest, LoadOptions, Readout, SamplingParams,
};
use ruvllm_testkit::real_model;

fn open(n_ctx: usize) -> Engine {
    let options = LoadOptions { n_ctx: Some(n_ctx), ..LoadOptions::default() };
    Engine::load(&real_model("smollm2:135m"), &options, &mut |_| {}).expect("it loads")
}

fn greedy(engine: &Engine, prompt: &str, max_tokens: usize) -> GenerateRequest {
    let prompt = engine.encode_prompt(prompt, true).expect("plain text encodes");
    GenerateRequest { prompt, max_tokens: Some(max_tokens), sampling: SamplingParams::greedy(), ..Default::default() }
}

#[test]
fn a_raw_prompt_is_continued() {
    let mut engine = open(512);
    let request = greedy(&engine, "The capital of France is", 8);
    let mut streamed = String::new();
    let run = engine.generate(&request).expect("a valid request");
    let summary = run.for_each_token(|event| streamed.push_str(&event.text)).expect("it runs");
    assert!(summary.text.starts_with(" Paris."), "{:?}", summary.text);
    assert_eq!((summary.text, summary.tokens.len()), (streamed, 8));
    assert_eq!(summary.finish_reason, FinishReason::Length);
    assert!(summary.timings.decode_tps > 0.0 && summary.timings.ttft_ms >= summary.timings.prompt_ms);
}

#[test]
fn a_chat_answer_ends_by_itself() {
    let mut engine = open(512);
    let prompt =
        engine.encode_prompt("Explain photosynthesis in two sentences.", false).expect("the template takes it");
    let request = GenerateRequest { prompt, sampling: SamplingParams::greedy(), ..Default::default() };
    let summary = engine.generate(&request).expect("a valid request").for_each_token(|_| {}).expect("it runs");
    assert!(summary.text.starts_with("Photosynthesis is"), "{:?}", summary.text);
    assert_eq!(summary.finish_reason, FinishReason::Stop);
    assert!(!summary.text.contains("<|im_end|>"));
}

#[test]
fn a_seed_repeats_an_answer_and_another_one_does_not() {
    let mut engine = open(512);
    let mut draw = |seed| {
        let sampling = SamplingParams { temperature: 1.5, top_k: 0, seed: Some(seed), ..SamplingParams::default() };
        let request = GenerateRequest { sampling, ..greedy(&engine, "Once upon a time", 24) };
        engine.generate(&request).expect("valid").for_each_token(|_| {}).expect("it runs").tokens
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

#[test]
fn a_stop_string_ends_the_answer_before_it() {
    let mut engine = open(512);
    let request = GenerateRequest { stop: vec!["\n\n".into()], ..greedy(&engine, "The capital of France is", 32) };
    let summary = engine.generate(&request).expect("valid").for_each_token(|_| {}).expect("it runs");
    assert_eq!(summary.text, " Paris.");
    assert_eq!(summary.finish_reason, FinishReason::Stop);
}

#[test]
fn cancelling_ends_within_a_step_and_frees_the_sequence() {
    let mut engine = open(512);
    let cancel = CancelToken::default();
    let request = GenerateRequest { cancel: cancel.clone(), ..greedy(&engine, "One two three", 400) };
    for _ in 0..3 {
        let mut run = engine.generate(&request).expect("the only sequence is free again");
        if !cancel.is_cancelled() {
            assert!(run.next().is_some());
            cancel.cancel();
        }
        assert!(run.next().is_none());
        assert_eq!(run.finish().finish_reason, FinishReason::Cancelled);
    }
}

#[test]
fn the_context_is_a_limit_with_numbers() {
    let mut engine = open(32);
    let request = greedy(&engine, &"word ".repeat(40), 8);
    let error = engine.generate(&request).err().expect("the prompt does not fit");
    assert_eq!(error.kind(), ErrorKind::ContextLength);
    let n = request.prompt.len() + 1;
    let line = format!(
        "{n} tokens do not fit the context of 32; open it with a larger context (the model allows 8192) or shorten the prompt"
    );
    assert_eq!(error.to_string(), line);
    // A prompt that fits is answered up to the end of the context.
    let request = GenerateRequest { max_tokens: None, ignore_eos: true, ..greedy(&engine, "one two", 1) };
    let summary = engine.generate(&request).expect("valid").for_each_token(|_| {}).expect("it runs");
    assert_eq!(summary.prompt_tokens.len() + summary.tokens.len(), 32);
    assert_eq!(summary.finish_reason, FinishReason::Length);
}

#[test]
fn bad_requests_are_refused_in_one_line() {
    let mut engine = open(64);
    let error = |engine: &mut Engine, request: &GenerateRequest| {
        let error = engine.generate(request).and_then(|run| run.for_each_token(|_| {})).expect_err("refused");
        (error.kind(), error.to_string())
    };
    let empty = GenerateRequest::default();
    assert_eq!(error(&mut engine, &empty).0, ErrorKind::Prompt);
    let unknown = GenerateRequest { prompt: vec![1_000_000], ..Default::default() };
    assert_eq!(
        error(&mut engine, &unknown),
        (ErrorKind::Prompt, "token id 1000000 is outside the vocabulary of 49152".into())
    );
    let mut hot = greedy(&engine, "x", 1);
    hot.sampling.temperature = f32::NAN;
    assert_eq!(error(&mut engine, &hot).0, ErrorKind::Options);
    let score = engine.read_out(&[1], Readout::Score { n_first: 1 }).expect_err("it has no such head");
    assert_eq!(score.kind(), ErrorKind::Unsupported, "{score}");
}

#[test]
fn an_answer_has_as_many_tokens_as_it_must_and_ends_with_those_that_end_it() {
    let mut engine = open(512);
    let prompt = engine.encode_prompt("Answer with one word: is the sky blue?", false).expect("the template takes it");
    let short =
        GenerateRequest { prompt, max_tokens: Some(60), sampling: SamplingParams::greedy(), ..Default::default() };
    let mut answer =
        |request: &GenerateRequest| engine.generate(request).expect("valid").for_each_token(|_| {}).expect("it runs");
    let plain = answer(&short);
    assert_eq!(plain.finish_reason, FinishReason::Stop);
    let n = plain.tokens.len();
    // The tokens before the end are the same; it is only the end that cannot come.
    let long = answer(&GenerateRequest { min_tokens: n + 8, ..short.clone() });
    assert!(long.tokens.len() > n + 8 || long.finish_reason == FinishReason::Length, "{:?}", long.tokens);
    assert_eq!((&long.tokens[..n - 1], long.tokens[n - 1] == plain.tokens[n - 1]), (&plain.tokens[..n - 1], false));
    let word = plain.text.chars().take(3).collect::<String>();
    let stopped = answer(&GenerateRequest { stop: vec![word.clone()], ..short.clone() });
    assert_eq!((&*stopped.text, stopped.stopped_by), ("", Some(word.clone())));
    let held = answer(&GenerateRequest { stop: vec![word.clone()], min_tokens: 3, ..short.clone() });
    assert!(held.text.starts_with(&word) && held.tokens.len() >= 3, "{:?}", held.text);
    let by_token = answer(&GenerateRequest { stop_tokens: vec![plain.tokens[1]], ..short.clone() });
    assert_eq!((&by_token.tokens[..], by_token.finish_reason), (&plain.tokens[..2], FinishReason::Stop));
    assert!(plain.text.starts_with(&by_token.text) && by_token.text.len() < plain.text.len());
    let later = answer(&GenerateRequest { stop_tokens: vec![plain.tokens[1]], min_tokens: 3, ..short });
    assert!(later.tokens.len() >= 3 && later.tokens[1] != plain.tokens[1], "{:?}", later.tokens);
}
