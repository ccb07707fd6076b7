//! `/v1/completions`: continues texts as they are, without the chat template.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use ruvllm_api::error::{ApiError, Shape};
use ruvllm_api::input::{encode_part, read_input, text_of};
use ruvllm_api::logprobs;
use ruvllm_api::openai::completions::MAX_TOKENS;
use ruvllm_api::openai::{Usage, finish_json};
use ruvllm_api::progress::with_progress;
use ruvllm_api::remote::missing;
use ruvllm_api::timings::{Clocks, timed};
use ruvllm_engine::tokenizer::DecodeOptions;
use ruvllm_engine::{Readout, Service, TokenLogprobs};
use ruvllm_server_state::gate::offload;
use serde_json::{Value, json};

use crate::call::answer::{Chunk, Summary};
use crate::call::embed::read_out;
use crate::call::generate::{Choices, ParsedRequest};
use crate::call::grammar::grammar;
use crate::call::prompt::{Prompt, remote_texts, shorten};
use crate::call::response::json_response;
use crate::call::stream::{self, Disconnected, Events};
use crate::call::verbose::with_verbose;
use crate::call::{Call, HandlerFuture};
use crate::handlers::openai::{chunk, head};

/// Continues texts.
pub(super) fn answer(call: Call) -> HandlerFuture {
    Box::pin(async move {
        let mut asked = ParsedRequest::read(&call, Some(MAX_TOKENS))?;
        asked.request.logprobs = n_logprobs(&call)?;
        asked.request.grammar = grammar(&call, &asked.request).await?;
        let n_best = asked.n_choices;
        asked.n_choices = best_of(&call, &mut asked)?;
        let prompts = match call.model.remote() {
            Some(_) => remote_prompts(&call)?,
            None => prompts(&call, &asked).await?,
        };
        let choices = Choices::start(&call, &asked, prompts.clone())?;
        if asked.is_stream {
            return Ok(stream::respond(&stream::EVENTS, |events| write(call, asked, prompts, choices, events)));
        }
        let of_prompts = of_prompts(&call, &prompts, call.body.count("logprobs")).await?;
        whole(&call, &asked, n_best, &of_prompts, choices.collect().await?)
    })
}

/// Returns the tokens of the texts that are continued.
async fn prompts(call: &Call, asked: &ParsedRequest) -> Result<Vec<Prompt>, ApiError> {
    let input = call.body.get("prompt").cloned().unwrap_or_default();
    let text = call.text()?.clone();
    let parse_special = call.body.flag("parse_special", true);
    let suffix = suffix(call, asked.is_truncated)?;
    let mut prompts = offload(move || {
        if let Some(suffix) = suffix {
            return Ok(vec![text.tokenizer().encode_infill(input.as_str().unwrap_or_default(), &suffix)?]);
        }
        read_input(&input, "prompt", |part| encode_part(text.tokenizer(), part, parse_special))
    })
    .await?;
    shorten(call, asked, &mut prompts)?;
    Ok(prompts.into_iter().map(Prompt::Tokens).collect())
}

/// Returns the texts that another server continues.
///
/// # Errors
/// 501: the log-probabilities of a prompt are asked for, or tokens are among the texts.
fn remote_prompts(call: &Call) -> Result<Vec<Prompt>, ApiError> {
    if call.body.is_set("echo") && call.body.get("logprobs").is_some() {
        return Err(missing(&call.model_name, "log-probabilities of prompts"));
    }
    remote_texts(call, "prompt")
}

/// Reads of how many tokens log-probabilities are told beside those of the answer; none unless they are asked for.
fn n_logprobs(call: &Call) -> Result<Option<usize>, ApiError> {
    let n = call.body.count("logprobs");
    match n.is_some() && call.body.is_set("echo") && call.body.is_set("stream") {
        true => {
            let line = "'logprobs' of an 'echo' are told when all are there; leave out 'stream'";
            Err(ApiError::bad("stream", line))
        }
        false => Ok(n),
    }
}

/// What the model thinks of the tokens of a prompt: nothing of the first.
type OfPrompt = Vec<(u32, TokenLogprobs)>;

/// Has the log-probabilities of prompts computed that are to be echoed with them; none where that is not asked for.
async fn of_prompts(call: &Call, prompts: &[Prompt], n_top: Option<usize>) -> Result<Vec<OfPrompt>, ApiError> {
    let Some(n_top) = n_top.filter(|_| call.body.is_set("echo")) else { return Ok(Vec::new()) };
    let mut all = Vec::with_capacity(prompts.len());
    for prompt in prompts.iter().map(Prompt::tokens) {
        let values = read_out(call, prompt.to_vec(), Readout::Logprobs { n_top }).await?;
        let row = |(&id, row): (&u32, &[f32])| {
            let top = row[1..].chunks(2).map(|pair| (pair[0] as u32, pair[1])).collect();
            (id, TokenLogprobs { logprob: row[0], top })
        };
        all.push(prompt.iter().skip(1).zip(values.chunks(1 + 2 * n_top)).map(row).collect());
    }
    Ok(all)
}

/// Returns how many answers are written, and asks for what ranks them.
fn best_of(call: &Call, asked: &mut ParsedRequest) -> Result<usize, ApiError> {
    let n = asked.n_choices;
    match call.body.count("best_of").unwrap_or(n) {
        best_of if best_of < n => {
            Err(ApiError::bad("best_of", format!("'best_of' is {best_of}, less than 'n', which is {n}")))
        }
        best_of if best_of > n && asked.is_stream => Err(ApiError::bad(
            "best_of",
            "which answers are best is known at their end; leave out 'stream' or 'best_of'",
        )),
        best_of => {
            if best_of > n {
                if call.model.remote().is_some() {
                    return Err(missing(&call.model_name, "log-probabilities to find the best answers by"));
                }
                asked.request.logprobs.get_or_insert(0);
            }
            Ok(best_of)
        }
    }
}

/// Returns what stands behind the answer.
///
/// # Errors
/// 400: the prompt is no single text, or is to be shortened.
fn suffix(call: &Call, is_truncated: bool) -> Result<Option<String>, ApiError> {
    let Some(suffix) = call.body.text("suffix").filter(|suffix| !suffix.is_empty()) else { return Ok(None) };
    if !call.body.get("prompt").is_some_and(Value::is_string) || is_truncated {
        let line = "'suffix' goes with one prompt of text, which is not shortened; send a text, without 'truncation'";
        return Err(ApiError::bad("suffix", line));
    }
    Ok(Some(suffix.to_owned()))
}

/// Returns what the `i`th prompt's answers begin with: its text as it was given, or that of its tokens; nothing if no
/// echo is asked for.
fn echo(call: &Call, asked: &ParsedRequest, i: usize, prompt: &[u32]) -> String {
    if !call.body.is_set("echo") {
        return String::new();
    }
    let is_cut = asked.is_truncated && call.model.engine().is_some();
    let given = call.body.get("prompt").filter(|_| !is_cut);
    let decode = |service: &Service| service.text().tokenizer().decode(prompt, DecodeOptions::default());
    let decode = || call.model.engine().map(decode).unwrap_or_default();
    given.and_then(|given| text_of(given, i)).unwrap_or_else(decode)
}

/// Returns the answer in one piece: of the answers to each prompt, the `n_best` likeliest.
fn whole(
    call: &Call,
    asked: &ParsedRequest,
    n_best: usize,
    of_prompts: &[OfPrompt],
    summaries: Vec<Summary>,
) -> Result<Response<Body>, ApiError> {
    let (mut usage, mut choices) = (Usage::default(), Vec::new());
    for (prompt_idx, summaries) in summaries.chunks(asked.n_choices).enumerate() {
        summaries.iter().enumerate().for_each(|(i, summary)| usage.add(summary.usage(), i == 0));
        let mut best: Vec<&Summary> = summaries.iter().collect();
        if n_best < best.len() {
            best.sort_by(|a, b| logprobs::mean(b).total_cmp(&logprobs::mean(a)));
        }
        for summary in &best[..n_best] {
            let head = echo(call, asked, prompt_idx, &summary.prompt_tokens);
            let (tokens, first) = (summary.token_logprobs(), summary.prompt_tokens.first().copied());
            let logprobs =
                call.body.get("logprobs").map(|_| match of_prompts.get(prompt_idx).zip(call.answer_tokens()) {
                    Some((of_prompt, of)) => logprobs::of_echo(of, first, of_prompt, tokens),
                    None => summary.completion_logprobs(call),
                });
            choices.push(json!({
                "index": choices.len(),
                "text": head + &summary.text,
                "logprobs": logprobs,
                "finish_reason": finish_json(summary.finish_reason),
            }));
        }
    }
    let mut answer = self::head(call, "cmpl", "text_completion");
    answer["choices"] = json!(choices);
    answer["usage"] = usage.json();
    if let Some(first) = summaries.first() {
        answer["timings"] = first.timings();
        answer = with_verbose(answer, call, asked, first);
    }
    Ok(json_response(StatusCode::OK, &answer))
}

/// Writes the answer in pieces.
async fn write(
    call: Call,
    asked: ParsedRequest,
    prompts: Vec<Prompt>,
    mut choices: Choices,
    events: Arc<Events>,
) -> Result<(), Disconnected> {
    let head = head(&call, "cmpl", "text_completion");
    let choice = |i: usize, text: &str, logprobs: Value, finish: Option<&str>| {
        chunk(&head, &asked, json!([{ "index": i, "text": text, "logprobs": logprobs, "finish_reason": finish }]))
    };
    // Where the next token's text begins, by choice.
    let mut offsets = vec![0; prompts.len() * asked.n_choices];
    if call.body.is_set("echo") {
        for i in 0..prompts.len() * asked.n_choices {
            let prompt_idx = i / asked.n_choices;
            let text = echo(&call, &asked, prompt_idx, prompts[prompt_idx].tokens());
            events.send(&choice(i, &text, Value::Null, None)).await?;
        }
    }
    let (mut usage, mut clocks, mut times) = (Usage::default(), Clocks::new(&call.body, offsets.len()), Value::Null);
    loop {
        match choices.next().await {
            Ok(Some((i, Chunk::Progress(progress)))) => {
                events.send(&with_progress(choice(i, "", Value::Null, None), &progress)).await?;
            }
            Ok(Some((i, Chunk::Token(token)))) => {
                let times = clocks.tick(i);
                let told = token.completion_logprobs(&call, &mut offsets[i]);
                if !token.text.is_empty() || told.is_some() {
                    let piece = choice(i, &token.text, told.unwrap_or_default(), None);
                    events.send(&timed(piece, &times)).await?;
                }
            }
            Ok(Some((i, Chunk::End(rest, summary)))) => {
                usage.add(summary.usage(), i % asked.n_choices == 0);
                times = summary.timings();
                let reason = finish_json(summary.finish_reason);
                let last = timed(choice(i, &rest, Value::Null, Some(reason)), &times);
                events.send(&with_verbose(last, &call, &asked, &summary)).await?;
            }
            Ok(None) => break,
            Err(error) => return events.send(&error.body(Shape::OpenAi)).await,
        }
    }
    if asked.include_usage {
        let mut last = chunk(&head, &asked, json!([]));
        last["usage"] = usage.json();
        events.send(&timed(last, &times)).await?;
    }
    events.send_done().await
}
