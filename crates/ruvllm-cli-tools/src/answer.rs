//! Answers: generating one under a spinner, and what is told of it.

use ruvllm_engine::{Engine, GenerateRequest, GenerationSummary, Timings};
use serde_json::json;

use crate::error::Result;
use crate::interrupt;
use crate::output::Ui;
use crate::resume::Resume;

/// Answers as [`answer`], and says that the prompt is being read, or with `is_silent` that the answer is being written, where
/// that takes long.
///
/// # Errors
/// As [`answer`].
pub fn answer_shown(
    ui: &Ui,
    engine: &mut Engine,
    request: &GenerateRequest,
    is_silent: bool,
    write: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<GenerationSummary> {
    let n_prompt = request.prompt.len();
    let work = match is_silent {
        true => ui.spinner("answering").of(format!("a prompt of {n_prompt} tokens")),
        false => ui.spinner("reading the prompt").of(format!("of {n_prompt} tokens")),
    };
    let summary = answer(engine, request, &mut |text| {
        if !is_silent {
            work.finish_and_clear();
        }
        write(text)
    });
    work.finish_and_clear();
    summary
}

/// Generates an answer and hands its text to `write` as it comes; Ctrl-C cancels it meanwhile.
///
/// # Errors
/// The engine's, or what `write` returns.
pub fn answer(
    engine: &mut Engine,
    request: &GenerateRequest,
    write: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<GenerationSummary> {
    let _guard = interrupt::cancels(&request.cancel);
    let mut generation = engine.generate(request)?;
    let mut n_written = 0;
    for event in &mut generation {
        let text = event?.text;
        n_written += text.len();
        if !text.is_empty() {
            write(&text)?;
        }
    }
    let summary = generation.finish();
    // Bytes of a character that was never completed come with the whole text only.
    if let Some(rest) = summary.text.get(n_written..).filter(|rest| !rest.is_empty()) {
        write(rest)?;
    }
    Ok(summary)
}

/// Returns draft tokens by where they came from.
fn draft_sources_json(timings: &Timings) -> serde_json::Value {
    let counts = timings.draft_sources.by_name();
    let object = counts.map(|(source, count)| {
        (source, json!({ "draft_tokens": count.draft_tokens, "accepted_tokens": count.accepted_tokens }))
    });
    object.into_iter().collect()
}

/// Returns the object `--json` answers with; `session` only where there is one.
pub fn summary_json(summary: &GenerationSummary, session: Option<&Resume>) -> serde_json::Value {
    let timings = &summary.timings;
    let mut object = json!({
        "text": summary.text,
        "prompt_tokens": summary.prompt_tokens,
        "tokens": summary.tokens,
        "finish_reason": summary.finish_reason.as_str(),
        "timings": {
            "load_ms": timings.load_ms,
            "prompt_ms": timings.prompt_ms,
            "prompt_tps": timings.prompt_tps,
            "decode_ms": timings.decode_ms,
            "decode_tps": timings.decode_tps,
            "ttft_ms": timings.ttft_ms,
            "cached_tokens": timings.cached_tokens,
            "disk_tokens": timings.disk_tokens,
            "draft_tokens": timings.draft_tokens,
            "accepted_tokens": timings.accepted_tokens,
            "draft_sources": draft_sources_json(timings),
            // The names before, for one more release.
            "guessed_tokens": timings.draft_tokens,
            "right_tokens": timings.accepted_tokens,
            "renamed": { "guessed_tokens": "draft_tokens", "right_tokens": "accepted_tokens" },
            "kv_bytes_per_token": timings.kv_bytes_per_token,
        },
    });
    if !summary.logprobs.is_empty() {
        let top =
            |top: &[(u32, f32)]| top.iter().map(|(id, p)| json!({ "token": id, "logprob": p })).collect::<Vec<_>>();
        let each = summary.logprobs.iter().map(|p| json!({ "logprob": p.logprob, "top": top(&p.top) }));
        object["logprobs"] = each.collect();
    }
    if let Some(session) = session {
        object["session"] = session.json();
    }
    object
}

/// Returns the line about speed that follows an answer.
pub fn speed_line(timings: &Timings, n_prompt: usize, n_answer: usize) -> String {
    let cached = match (timings.cached_tokens, timings.disk_tokens) {
        (0, _) => String::new(),
        (n, 0) => format!(" ({n} cached)"),
        (n, _) => format!(" ({n} cached on disk)"),
    };
    format!(
        "{n_prompt} prompt tokens{cached} at {:.0} tok/s, {n_answer} answer tokens at {:.1} tok/s, first after {:.0} ms",
        timings.prompt_tps, timings.decode_tps, timings.ttft_ms
    )
}
