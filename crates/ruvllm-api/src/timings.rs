//! How long an answer took, as llama.cpp tells it.

use ruvllm_engine::{GenerationSummary, Timings};
use serde_json::{Value, json};
use web_time::Instant;

use crate::fields::{Field, Kind, ValidBody, optional};

/// Whether each piece of a stream has times.
pub const TIMINGS_PER_TOKEN: Field = optional(
    "timings_per_token",
    Kind::Bool,
    "tell with each piece of a stream how many tokens there are, and their time",
);

/// Returns how long a finished answer took.
pub fn timings(summary: &GenerationSummary) -> Value {
    timings_of(&summary.timings, summary.prompt_tokens.len(), summary.tokens.len())
}

/// Returns how long an answer of so many tokens to a prompt took.
pub fn timings_of(times: &Timings, n_prompt: usize, n_predicted: usize) -> Value {
    let n_computed = n_prompt.saturating_sub(times.cached_tokens);
    json!({
        "cache_n": times.cached_tokens,
        "prompt_n": n_computed,
        "prompt_ms": times.prompt_ms,
        "prompt_per_token_ms": each(times.prompt_ms, n_computed),
        "prompt_per_second": times.prompt_tps,
        "predicted_n": n_predicted,
        "predicted_ms": times.decode_ms,
        "predicted_per_token_ms": each(times.decode_ms, n_predicted),
        "predicted_per_second": times.decode_tps,
    })
}

fn each(ms: f64, n: usize) -> f64 {
    if n == 0 { 0.0 } else { ms / n as f64 }
}

/// Counts the tokens of answers that are on their way, if a request asks for that.
#[derive(Debug)]
pub struct Clocks {
    /// Tokens of each, and when the first came.
    of_choices: Vec<(usize, Option<Instant>)>,
    is_asked: bool,
}

impl Clocks {
    /// Makes clocks for the answers to a request.
    pub fn new(given: &ValidBody, n_choices: usize) -> Clocks {
        Clocks { of_choices: vec![(0, None); n_choices], is_asked: given.is_set(TIMINGS_PER_TOKEN.name) }
    }

    /// Returns whether a request asks for the times of its tokens.
    pub fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// Counts a token of an answer, and returns how many there are and their time; null if nobody asks. What the prompt took
    /// is told at the end.
    pub fn tick(&mut self, choice: usize) -> Value {
        let (n, began) = &mut self.of_choices[choice];
        *n += 1;
        let ms = began.get_or_insert_with(Instant::now).elapsed().as_secs_f64() * 1e3;
        if !self.is_asked {
            return Value::Null;
        }
        let per_second = if ms > 0.0 { (*n - 1) as f64 * 1e3 / ms } else { 0.0 };
        json!({
            "predicted_n": *n,
            "predicted_ms": ms,
            "predicted_per_token_ms": each(ms, *n),
            "predicted_per_second": per_second,
        })
    }
}

/// Adds times to a piece of an answer, if there are some.
pub fn timed(mut piece: Value, times: &Value) -> Value {
    if !times.is_null() {
        piece["timings"] = times.clone();
    }
    piece
}
