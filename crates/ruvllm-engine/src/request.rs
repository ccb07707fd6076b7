//! Requests, and what comes back in addition to the tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ruvllm_kvcache::KvPolicy;
use ruvllm_lora::AdapterSet;
use ruvllm_text::thoughts::Thinking;
use web_time::Instant;

use crate::Grammar;
use crate::logits_hook::LogitsProcessor;
use crate::sampler::{SamplingParams, TokenLogprobs};
use crate::speculate::{DraftSources, Speculation};

/// A request for generated tokens.
#[derive(Clone, Debug, Default)]
pub struct GenerateRequest {
    /// Token ids of the prompt; see `Engine::encode_prompt` and `Engine::encode_chat`.
    pub prompt: Vec<u32>,
    /// Most tokens to generate; `None` goes on to the end of the context.
    pub max_tokens: Option<usize>,
    /// Sampling parameters.
    pub sampling: SamplingParams,
    /// Tells with each token its log-probability and those of this many of the most likely ones; `None` tells none.
    pub logprobs: Option<usize>,
    /// Tell the log-probabilities of the distribution that each token was drawn from, behind bias, penalties, cuts and
    /// temperature, instead of the model's own.
    pub logprobs_of_draw: bool,
    /// Form that the answer must have; it is then over when it has it and cannot go on, and valid unless it is over for
    /// another reason than [`FinishReason::Stop`].
    pub grammar: Option<Grammar>,
    /// The thought that may come before the answer, which the grammar says nothing of; `None` makes everything answer.
    pub thinking: Option<Thinking>,
    /// Strings that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// More tokens that end the answer, and are no part of its text.
    pub stop_tokens: Vec<u32>,
    /// The fewest tokens of an answer: tokens that end it are ruled out until then, and stop strings do not count.
    /// A grammar's end and [`GenerateRequest::max_tokens`] go before.
    pub min_tokens: usize,
    /// Control tokens that are part of the text: marks of calls, for example. Others are not written.
    pub visible: Vec<u32>,
    /// Compute the whole prompt, and put nothing of it into the prefix cache.
    pub ignore_cache: bool,
    /// Go on past end-of-generation tokens (benchmarks).
    pub ignore_eos: bool,
    /// Whose request it is: cached prefixes are shared within a tenant only, and a quota counts its sequences. 0 is
    /// everybody.
    pub tenant: u64,
    /// The adapters that are applied, each with its scale.
    pub adapters: AdapterSet,
    /// Logits processor that changes the answer by what it has learned, and learns from it; `None` leaves the model as it is.
    pub logits_processor: Option<Arc<dyn LogitsProcessor>>,
    /// Policy of its KV cache, one of those that the engine was loaded for; `None` as the engine keeps it.
    pub kv: Option<KvPolicy>,
    /// Whether tokens are drafted; the answer is the same.
    pub speculation: Speculation,
    /// Who goes first where many wait: the higher. Waiting raises it, so that nobody waits for ever.
    pub priority: i8,
    /// When it is over, finished or not.
    pub deadline: Option<Instant>,
    /// Ends the request from outside, within one step.
    pub cancel: CancelToken,
    /// Hears how far the prompt is computed.
    pub progress: Option<ProgressSink>,
    /// Tokens that were handed out and that nobody has read; too many of them stop the answer until some are.
    pub unread: Unread,
}

/// Part of a prompt that is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PromptProgress {
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Tokens of it that were cached.
    pub n_cached: usize,
    /// Tokens of it that are there: cached or computed.
    pub n_processed: usize,
    /// Milliseconds since its first step began.
    pub took_ms: f64,
}

/// Function that hears how far a prompt is computed: once when it is begun, then with each step until all of it is there. It runs
/// on the thread that computes, and must not block. Clones share it.
#[derive(Clone)]
pub struct ProgressSink(Arc<dyn Fn(PromptProgress) + Send + Sync>);

impl ProgressSink {
    /// Makes a sink of a function.
    pub fn new(hear: impl Fn(PromptProgress) + Send + Sync + 'static) -> ProgressSink {
        ProgressSink(Arc::new(hear))
    }

    pub(crate) fn tell(&self, progress: PromptProgress) {
        (self.0)(progress);
    }
}

impl std::fmt::Debug for ProgressSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ProgressSink")
    }
}

/// A flag that ends a request from another thread; clones share it.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// Asks the request to end.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether somebody asked.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts the tokens of an answer that wait for their reader; clones share the count. Whoever hands tokens out adds to it,
/// and whoever has sent one on takes it off. Nothing is computed for an answer with [`Unread::MAX`] of them, and its place
/// goes to others who wait.
#[derive(Clone, Debug, Default)]
pub struct Unread(Arc<AtomicUsize>);

impl Unread {
    /// The most tokens that wait for their reader; a step may add a few more.
    pub const MAX: usize = 256;

    /// Counts a token that was handed out.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a token that was read.
    pub fn take(&self) {
        // A reader that takes more than there was would let an answer run on for ever.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    }

    /// Returns whether the answer has to wait for its reader.
    pub fn is_full(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= Unread::MAX
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-generation token, a stop string, or a grammar that is complete.
    Stop,
    /// `max_tokens` or the end of the context.
    Length,
    /// The caller's [`CancelToken`].
    Cancelled,
    /// The request's deadline.
    Deadline,
}

impl FinishReason {
    /// Returns the name used in JSON output.
    pub fn as_str(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
            FinishReason::Deadline => "deadline",
        }
    }
}

/// One generated token and the text that became certain with it.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenEvent {
    /// The token.
    pub id: u32,
    /// New text; empty while a character or a possible stop string is incomplete.
    pub text: String,
    /// Logprobs of it, if [`GenerateRequest::logprobs`] asks for it.
    pub logprobs: Option<TokenLogprobs>,
}

/// Times of one request, in milliseconds and tokens per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// Loading the model (once an engine, not a request).
    pub load_ms: f64,
    /// From the request until computing started; others were before it.
    pub queue_ms: f64,
    /// From there to logits for its last prompt token.
    pub prompt_ms: f64,
    /// Prompt tokens computed per second; those that were cached do not count.
    pub prompt_tps: f64,
    /// Prompt tokens that were cached and not computed.
    pub cached_tokens: usize,
    /// Of the cached ones, those whose KV cache was read from disk for this request.
    pub disk_tokens: usize,
    /// From the first token to the last.
    pub decode_ms: f64,
    /// Generated tokens per second after the first.
    pub decode_tps: f64,
    /// From the request to the first token.
    pub ttft_ms: f64,
    /// Tokens that were drafted.
    pub draft_tokens: usize,
    /// The draft tokens that the model accepted: tokens of the answer that took no step of their own.
    pub accepted_tokens: usize,
    /// Both counts by where drafts came from.
    pub draft_sources: DraftSources,
    /// Bytes of KV cache per token of the context at the end, as the cache's policy keeps them.
    pub kv_bytes_per_token: f64,
}

/// Everything about a finished request.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationSummary {
    /// The whole answer.
    pub text: String,
    /// The prompt.
    pub prompt_tokens: Vec<u32>,
    /// The generated tokens, end-of-generation token included where one ended the answer.
    pub tokens: Vec<u32>,
    /// Logprobs of each; empty unless [`GenerateRequest::logprobs`] asks for it.
    pub logprobs: Vec<TokenLogprobs>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The number of tokens at the beginning that are thought, if [`GenerateRequest::thinking`] tells it apart.
    pub n_thought: u32,
    /// The stop string that ended it, if one did.
    pub stopped_by: Option<String>,
    /// Policy of its KV cache, if not that of others.
    pub kv: Option<KvPolicy>,
    /// Choices of the autotuner with their reasons; empty without one.
    pub choices: Box<str>,
    /// Time that it took.
    pub timings: Timings,
}
