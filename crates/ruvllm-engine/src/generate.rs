//! Generation: prefill the prompt, then one token a step, as an iterator.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::{LlmBackend, Segment, SeqId, context_line};
use crate::model::LogitRows;
use crate::request::{FinishReason, GenerateRequest, GenerationSummary, Timings, TokenEvent};
use crate::sampler::Sampler;
use crate::stop::StopFilter;
use crate::tokenizer::{DecodeStream, Tokenizer};
use crate::{EngineError, ErrorKind};

/// Prompt tokens between two looks at the cancel flag.
const PREFILL_CHUNK: usize = 256;

/// A running request: an iterator over its tokens. Dropping it ends the request and frees its blocks.
pub struct Generation<'a> {
    backend: &'a mut dyn LlmBackend,
    request: GenerateRequest,
    seq: SeqId,
    /// Prompt tokens that were there.
    n_cached: usize,
    sampler: Sampler,
    tokenizer: Arc<Tokenizer>,
    decoder: DecodeStream<Arc<Tokenizer>>,
    stop: StopFilter,
    state: State,
    text: String,
    tokens: Vec<u32>,
    max_tokens: usize,
    start: Instant,
    prompt_time: Duration,
    first_token: Option<Duration>,
    last_token: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The prompt is still to be computed.
    Prompt,
    /// The last token is still to be computed.
    Decode(u32),
    /// Over.
    Done(FinishReason),
}

impl<'a> Generation<'a> {
    /// Checks a request and opens its sequence with what is cached of the prompt; nothing is computed before the first `next`.
    pub(crate) fn start(
        backend: &'a mut dyn LlmBackend,
        request: &GenerateRequest,
    ) -> Result<Generation<'a>, EngineError> {
        let start = Instant::now();
        let info = backend.info();
        let (n_ctx, n_vocab, n_ctx_train) = (info.n_ctx, info.n_vocab, info.n_ctx_train);
        let n_prompt = request.prompt.len();
        if n_prompt == 0 {
            return Err(EngineError::new(ErrorKind::Prompt, "the prompt has no tokens; give it some text"));
        }
        if n_prompt >= n_ctx {
            return Err(EngineError::new(ErrorKind::ContextLength, context_line(n_prompt + 1, n_ctx, n_ctx_train)));
        }
        let mut sampler = Sampler::new(&request.sampling, n_vocab)?;
        request.prompt.iter().for_each(|&id| sampler.accept(id));
        let max_tokens = request.max_tokens.unwrap_or(usize::MAX).min(n_ctx - n_prompt);
        let tokenizer = Arc::clone(backend.tokenizer()?);
        let (seq, n_cached) = backend.sequence_with_prefix(&request.prompt, request.tenant)?;
        Ok(Generation {
            seq,
            n_cached,
            sampler,
            decoder: DecodeStream::continuing(Arc::clone(&tokenizer)),
            tokenizer,
            stop: StopFilter::new(&request.stop),
            state: if max_tokens == 0 { State::Done(FinishReason::Length) } else { State::Prompt },
            text: String::new(),
            tokens: Vec::with_capacity(max_tokens.min(1 << 16)),
            max_tokens,
            request: request.clone(),
            start,
            prompt_time: Duration::ZERO,
            first_token: None,
            last_token: Duration::ZERO,
            backend,
        })
    }

    /// Computes what is due and leaves the logits of the last row in `logits`; `false` if the request was cancelled.
    fn step(&mut self) -> Result<Option<u32>, EngineError> {
        if self.request.cancel.is_cancelled() {
            return Ok(None);
        }
        let seq = self.seq;
        let logits = match self.state {
            State::Decode(id) => self.backend.forward(&[Segment { seq, tokens: &[id], logits: LogitRows::Last }])?,
            _ => {
                let rest = &self.request.prompt[self.n_cached..];
                let (head, tail) = rest.split_at((rest.len() - 1) / PREFILL_CHUNK * PREFILL_CHUNK);
                for tokens in head.chunks(PREFILL_CHUNK) {
                    self.backend.forward(&[Segment { seq, tokens, logits: LogitRows::None }])?;
                    if self.request.cancel.is_cancelled() {
                        return Ok(None);
                    }
                }
                let logits = self.backend.forward(&[Segment { seq, tokens: tail, logits: LogitRows::Last }])?;
                self.prompt_time = self.start.elapsed();
                logits
            }
        };
        let id = self.sampler.sample(logits)?;
        self.sampler.accept(id);
        Ok(Some(id))
    }

    /// Takes a chosen token over: text, stop strings, limits.
    fn take(&mut self, id: u32) -> TokenEvent {
        self.last_token = self.start.elapsed();
        self.first_token.get_or_insert(self.last_token);
        self.tokens.push(id);
        self.state = State::Decode(id);
        let mut text = String::new();
        if self.tokenizer.is_end_of_generation(id) && !self.request.ignore_eos {
            self.state = State::Done(FinishReason::Stop);
            self.flush(&mut text);
        } else {
            let piece = self.decoder.push(id).unwrap_or_default();
            if self.stop.push(&piece, &mut text) {
                self.state = State::Done(FinishReason::Stop);
            } else if self.tokens.len() >= self.max_tokens {
                self.state = State::Done(FinishReason::Length);
                self.flush(&mut text);
            }
        }
        self.text.push_str(&text);
        TokenEvent { id, text }
    }

    /// Appends what was held back for an unfinished character or a possible stop string; none will be completed.
    fn flush(&mut self, text: &mut String) {
        let rest = self.decoder.finish().unwrap_or_default();
        match self.stop.push(&rest, text) {
            true => self.state = State::Done(FinishReason::Stop),
            false => self.stop.flush(text),
        }
    }

    /// Runs to the end, calling `each` with every token, and returns the summary.
    ///
    /// # Errors
    /// The first error of a step; what was generated until then was told to `each`.
    pub fn for_each_token(mut self, mut each: impl FnMut(&TokenEvent)) -> Result<GenerationSummary, EngineError> {
        for event in self.by_ref() {
            each(&event?);
        }
        Ok(self.finish())
    }

    /// Ends the request and returns what came of it. A request stopped before its end counts as cancelled.
    pub fn finish(mut self) -> GenerationSummary {
        let finish_reason = match self.state {
            State::Done(reason) => reason,
            _ => FinishReason::Cancelled,
        };
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let per_second = |n: usize, time: Duration| if time.is_zero() { 0.0 } else { n as f64 / time.as_secs_f64() };
        let first = self.first_token.unwrap_or_default();
        let decode_time = self.last_token.saturating_sub(first);
        let timings = Timings {
            load_ms: self.backend.info().load_ms,
            prompt_ms: ms(self.prompt_time),
            prompt_tps: per_second(self.request.prompt.len() - self.n_cached, self.prompt_time),
            cached_tokens: self.n_cached,
            decode_ms: ms(decode_time),
            decode_tps: per_second(self.tokens.len().saturating_sub(1), decode_time),
            ttft_ms: ms(first),
        };
        GenerationSummary {
            text: std::mem::take(&mut self.text),
            prompt_tokens: std::mem::take(&mut self.request.prompt),
            tokens: std::mem::take(&mut self.tokens),
            finish_reason,
            timings,
        }
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<TokenEvent, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let State::Done(_) = self.state {
            return None;
        }
        let result = match self.step() {
            Ok(Some(id)) => Ok(self.take(id)),
            Ok(None) => {
                self.state = State::Done(FinishReason::Cancelled);
                return None;
            }
            Err(error) => Err(error),
        };
        if result.is_err() {
            self.state = State::Done(FinishReason::Cancelled);
        }
        Some(result)
    }
}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        self.backend.free_sequence(self.seq);
    }
}
