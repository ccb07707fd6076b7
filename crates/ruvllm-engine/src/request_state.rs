//! One request's answer: the tokens so far, how the next is chosen, its text, and when it is over. Who computes the
//! logits, and beside what, is not known here.

mod choosing;
mod drafting;

use std::sync::Arc;

use ruvllm_lora::micro::{LogitRow, MicroLora};
use ruvllm_text::StopFilter;
use ruvllm_text::thoughts::Gate;
use ruvllm_text::tokenizer::{DecodeStream, Tokenizer};
use web_time::{Duration, Instant};

use crate::logits_hook::LogitsHook;
use crate::request::{FinishReason, GenerateRequest, GenerationSummary, PromptProgress, Timings, TokenEvent};
use crate::runner::ModelRunner;
use crate::sampler::{Sampler, TokenLogprobs, Told};
use crate::speculate::Speculator;
use crate::speculate::tree::{self, Accepted, Branch};
use crate::{CacheSalt, Constraint, EngineError, ErrorKind, Grammar};
use ruvllm_backend::{LogitRows, ModelInfo, SeqId, States};

/// A request and what came of it so far.
pub(crate) struct RequestState {
    /// The request, but for its prompt.
    request: GenerateRequest,
    /// The prompt and the tokens of the answer, then draft tokens.
    context: Vec<u32>,
    n_drafted: usize,
    /// Other ways that are tried beside the draft tokens.
    branches: Vec<Branch>,
    /// Kept for its allocation: the draft tokens of the step at hand.
    draft: Vec<u32>,
    n_prompt: usize,
    max_tokens: usize,
    n_vocab: usize,
    n_embd: usize,
    sampler: Sampler,
    constraint: Option<Constraint>,
    /// Follows the answer through what the model thinks before it.
    gate: Option<Gate>,
    /// Bytes of the text that are never taken back: those of the thought.
    n_settled: usize,
    speculator: Option<Speculator>,
    hook: Option<Box<dyn LogitsHook>>,
    /// Whether the hook learns by approximate logits: each token is the largest of a head shortlist, and of that alone the head's other bits
    /// are read.
    is_approx: bool,
    /// Tokens of the prompt whose states the hook has seen, or never will.
    n_read: usize,
    /// What its sequence was told to change final hidden states by.
    micro: Option<Arc<MicroLora>>,
    tokenizer: Arc<Tokenizer>,
    decoder: DecodeStream<Arc<Tokenizer>>,
    stop: StopFilter,
    finish: Option<FinishReason>,
    text: String,
    /// Of each token of the answer, if they were asked for.
    logprobs: Vec<TokenLogprobs>,
    /// Tokens that are not told yet and may be taken back.
    held: Vec<TokenEvent>,
    clock: Clock,
    load_ms: f64,
    /// When its sequence closed.
    kv_bytes_per_token: f64,
    /// Tokens of the prompt that were told to be there.
    n_told: Option<usize>,
}

/// When what happened, from the request on.
struct Clock {
    start: Instant,
    /// When its sequence was opened.
    opened: Option<Opened>,
    prompt: Duration,
    first_token: Duration,
    last_token: Duration,
}

/// A sequence that was opened for a prompt.
#[derive(Clone, Copy, Default)]
struct Opened {
    queued: Duration,
    /// Prompt tokens that were there.
    n_cached: usize,
    /// Those of them that were read from disk for it.
    n_from_disk: usize,
}

impl RequestState {
    /// Checks a request; its time begins now.
    ///
    /// # Errors
    /// The prompt is empty or leaves no room in the context, an option is out of range, the model has no tokenizer.
    pub(crate) fn new(runner: &ModelRunner, mut request: GenerateRequest) -> Result<RequestState, EngineError> {
        let start = Instant::now();
        let info = runner.info();
        check(info, &request)?;
        runner.check_capabilities(request.logits_processor.is_some(), !request.adapters.is_empty())?;
        let n_prompt = request.prompt.len();
        let tokenizer = Arc::clone(runner.tokenizer()?);
        let told = Told { n_top: request.logprobs, is_of_draw: request.logprobs_of_draw };
        let mut sampler = Sampler::new(&request.sampling, &tokenizer, info.n_vocab, told)?;
        if request.grammar.as_ref().is_some_and(|grammar| !grammar.allows_stops()) && !request.stop.is_empty() {
            let line =
                "a grammar and stop strings together; the answer ends where the grammar is complete, leave them out";
            return Err(EngineError::new(ErrorKind::Options, line));
        }
        if request.grammar.as_ref().is_some_and(|grammar| !grammar.is_for(&tokenizer)) {
            let line = "the grammar was compiled for another model; compile it with this engine's compiler";
            return Err(EngineError::new(ErrorKind::Options, line));
        }
        request.prompt.iter().for_each(|&id| sampler.accept(id));
        let max_tokens = request.max_tokens.unwrap_or(usize::MAX).min(info.n_ctx - n_prompt);
        let mut context = std::mem::take(&mut request.prompt);
        context.reserve_exact(max_tokens.min(1 << 16));
        let is_free = request.grammar.is_none() && request.min_tokens == 0;
        let is_plain = request.logits_processor.is_some() && is_free && request.adapters.is_empty();
        let is_approx = is_plain && sampler.n_best() == Some(1) && runner.has_shortlist(1);
        let hook = request.logits_processor.as_ref().map(|processor| processor.begin(&context, is_approx));
        let constraint = request.grammar.as_ref().map(Grammar::start);
        let gate = request.thinking.map(|thinking| Gate::new(thinking, &tokenizer));
        let zero = Duration::ZERO;
        Ok(RequestState {
            // What is looked at is not drafted.
            speculator: match constraint.as_ref().is_some_and(Constraint::is_watched) {
                true => None,
                false => Speculator::new(request.speculation, runner, &sampler),
            },
            context,
            n_drafted: 0,
            branches: Vec::new(),
            draft: Vec::new(),
            n_prompt,
            max_tokens,
            n_vocab: info.n_vocab,
            n_embd: info.n_embd,
            n_read: match hook.as_ref().is_some_and(|hook| hook.reads_prompt()) {
                true => 0,
                false => n_prompt,
            },
            hook,
            is_approx,
            micro: None,
            sampler,
            constraint,
            gate,
            n_settled: 0,
            decoder: DecodeStream::continuing(Arc::clone(&tokenizer)),
            tokenizer,
            stop: StopFilter::new(&request.stop),
            finish: (max_tokens == 0).then_some(FinishReason::Length),
            text: String::new(),
            logprobs: Vec::new(),
            held: Vec::new(),
            clock: Clock { start, opened: None, prompt: zero, first_token: zero, last_token: zero },
            load_ms: info.load_ms,
            kv_bytes_per_token: 0.0,
            n_told: None,
            request,
        })
    }

    /// Returns the tokens that the next one follows: the prompt, then the answer.
    pub(crate) fn context(&self) -> &[u32] {
        &self.context[..self.context.len() - self.n_drafted]
    }

    /// Returns the same, and the draft tokens behind it.
    pub(crate) fn context_and_draft(&self) -> &[u32] {
        &self.context
    }

    /// Begins what can be computed of the next choice while the model runs.
    pub(crate) fn begin_choice(&mut self) {
        self.constraint.iter_mut().for_each(Constraint::begin_mask);
    }

    /// Returns the most tokens that prompt and answer may have together.
    pub(crate) fn n_context_max(&self) -> usize {
        self.n_prompt + self.max_tokens
    }

    /// Returns whether the request said how long the answer may be.
    pub(crate) fn is_bounded(&self) -> bool {
        self.request.max_tokens.is_some()
    }

    pub(crate) fn tenant(&self) -> u64 {
        self.request.tenant
    }

    /// Returns the salt of its KV cache.
    pub(crate) fn salt(&self) -> CacheSalt {
        CacheSalt { tenant: self.request.tenant, adapters: self.request.adapters.clone(), kv: self.request.kv }
    }

    /// Returns the request, without its prompt.
    pub(crate) fn request(&self) -> &GenerateRequest {
        &self.request
    }

    /// Returns how long ago the request came.
    pub(crate) fn waited(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.clock.start)
    }

    /// Returns whether it is over; a request that its owner cancelled is, and one whose deadline has passed.
    pub(crate) fn is_over(&self) -> bool {
        self.finish.is_some() || self.request.cancel.is_cancelled() || self.is_late()
    }

    fn is_late(&self) -> bool {
        self.request.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Returns whether its owner cancelled it.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.request.cancel.is_cancelled()
    }

    /// Returns how many tokens the answer has.
    pub(crate) fn n_tokens(&self) -> usize {
        self.context().len() - self.n_prompt
    }

    /// Opens a sequence with what is known of the context, and returns how many tokens those are. Only the first time
    /// counts as what was cached.
    ///
    /// # Errors
    /// No sequence is free.
    pub(crate) fn open(&mut self, runner: &mut ModelRunner) -> Result<(SeqId, usize), EngineError> {
        let from_disk = |runner: &ModelRunner| runner.cache_stats().map_or(0, |stats| stats.tokens_from_disk);
        let (queued, n_before) = (self.clock.start.elapsed(), from_disk(runner));
        let prompt = (!self.request.ignore_cache).then(|| self.context());
        let (seq, n_cached) = runner.open(prompt, &self.salt())?;
        let n_from_disk = n_cached.min((from_disk(runner) - n_before) as usize);
        self.clock.opened.get_or_insert(Opened { queued, n_cached, n_from_disk });
        self.tell_progress(n_cached);
        self.micro = None;
        self.pass_on(runner, seq)?;
        Ok((seq, n_cached))
    }

    /// Tells who listens how much of the prompt is there, if it is more than was told before.
    pub(crate) fn tell_progress(&mut self, n_processed: usize) {
        let n_processed = n_processed.min(self.n_prompt);
        if let (Some(sink), Some(opened)) = (&self.request.progress, &self.clock.opened)
            && self.n_told.is_none_or(|n_told| n_told < n_processed)
        {
            self.n_told = Some(n_processed);
            let took_ms = (self.clock.start.elapsed() - opened.queued).as_secs_f64() * 1e3;
            let (n_prompt, n_cached) = (self.n_prompt, opened.n_cached);
            sink.tell(PromptProgress { n_prompt, n_cached, n_processed, took_ms });
        }
    }

    /// Lets its sequence have what its hook changes final hidden states by, where that is another than before.
    ///
    /// # Errors
    /// As [`ModelRunner::set_micro`].
    pub(crate) fn pass_on(&mut self, runner: &mut ModelRunner, seq: SeqId) -> Result<(), EngineError> {
        let micro = self.hook.as_ref().and_then(|hook| hook.micro());
        if micro.map(Arc::as_ptr) != self.micro.as_ref().map(Arc::as_ptr) {
            self.micro = micro.cloned();
            runner.set_micro(seq, self.micro.clone())?;
        }
        Ok(())
    }

    /// Returns what is wanted of a segment of its context from position `first` on, whose last `n_tail` rows choose tokens.
    pub(crate) fn wanted(&self, first: usize, n_tail: usize) -> LogitRows {
        let n_best = self.n_best();
        let has_states = first.max(self.n_read) + 1 < self.n_prompt;
        // Rows behind draft tokens may not need all, where the first does.
        let has_approx = self.has_approx() || (self.is_approx && n_tail > 1);
        match n_tail {
            n_tail if n_tail > 0 && has_approx => LogitRows::Approx { n_tail, n_best, has_states },
            n_tail if has_states => LogitRows::TailOfStates(n_tail),
            0 => LogitRows::None,
            n_tail => match n_best {
                Some(n_best) => LogitRows::Top { n_tail, n_best },
                None => LogitRows::Tail(n_tail),
            },
        }
    }

    /// Returns whether its hook learns by approximate logits of the next token.
    fn has_approx(&self) -> bool {
        self.is_approx && self.hook.as_ref().is_some_and(|hook| !hook.needs_all())
    }

    /// Returns how many of the largest logits its choices depend on; `None` if on all.
    fn n_best(&self) -> Option<usize> {
        let sees_all = self.constraint.is_some() || !self.may_end() || (self.hook.is_some() && !self.has_approx());
        self.sampler.n_best().filter(|_| !sees_all)
    }

    /// Lets its hook see final hidden states of its prompt: `[n, n_embd]`, of the context's tokens from position `first`
    /// on. What it has seen before, and what is no prompt, is left out.
    pub(crate) fn read(&mut self, first: usize, hidden: &[f32]) {
        let last = (first + hidden.len() / self.n_embd.max(1)).min(self.n_prompt - 1);
        let from = first.max(self.n_read);
        if let (Some(hook), true) = (&mut self.hook, from < last) {
            hook.read(from, &hidden[(from - first) * self.n_embd..(last - first) * self.n_embd]);
            self.n_read = last;
        }
    }

    /// Takes note of what the KV cache of its sequence takes, which is about to be closed, and leaves the draft model.
    pub(crate) fn closes(&mut self, runner: &mut ModelRunner, seq: SeqId) {
        self.leave_draft(runner);
        let n_tokens = runner.n_tokens(seq).max(1);
        self.kv_bytes_per_token = runner.sequence_bytes(seq) as f64 / n_tokens as f64;
    }

    /// Chooses the next token by the logits that follow the context, and more by those that follow draft tokens, as far as they
    /// are accepted; takes them over, with those behind them that the grammar forces. `states`: those of `1 + n_drafted` rows,
    /// then of `n` rows for the `n` tokens of each branch. Returns what of all that was computed is the context's; the
    /// rest is to be taken back.
    ///
    /// # Errors
    /// No logit is a number; the grammar costs more than it may. The tokens told until then are part of the answer.
    pub(crate) fn choose(
        &mut self,
        states: States<'_>,
        tell: &mut dyn FnMut(TokenEvent),
    ) -> Result<Accepted, EngineError> {
        if self.context().len() == self.n_prompt {
            self.clock.prompt = self.clock.start.elapsed();
        }
        let n_known = self.context().len();
        let (n_vocab, n_embd) = (self.n_vocab, self.n_embd);
        let mut draft = std::mem::take(&mut self.draft);
        draft.clear();
        draft.extend(self.context.drain(n_known..));
        self.n_drafted = 0;
        let branches = std::mem::take(&mut self.branches);
        let (mut row, mut result) = (Some(0), Ok(()));
        while let (Some(at), true) = (row, result.is_ok()) {
            let logits = &mut states.logits[at * n_vocab..][..n_vocab];
            let approx = states.approx.get(at * n_vocab..(at + 1) * n_vocab).filter(|_| self.has_approx());
            if let Some(hook) = &mut self.hook {
                hook.adjust(states.rows.row(at, n_embd), LogitRow { exact: &mut *logits, approx });
            }
            result = self.choose_one(logits, tell);
            if self.context.len() <= n_known && result.is_ok() {
                // It went back: the last token that is left is computed again.
                self.draft = draft;
                return Ok(Accepted { path: 0, n_tokens: self.context.len() - 1 });
            }
            row = tree::row_behind(&draft, &branches, &self.context[n_known..]).filter(|_| !self.is_over());
        }
        let (path, n_accepted) = tree::longest_accepted(&draft, &branches, &self.context[n_known..]);
        if let (Some(speculator), 1..) = (&mut self.speculator, draft.len()) {
            let n_branched = branches.iter().map(|branch| branch.tokens.len()).sum();
            speculator.learn(draft.len(), n_branched, n_accepted, n_known + n_accepted);
        }
        self.draft = draft;
        result.map(|()| Accepted { path, n_tokens: n_known + n_accepted })
    }

    /// Returns the text that became certain with a token, and ends the answer if it was the last.
    fn take(&mut self, id: u32) -> String {
        let mut text = String::new();
        let is_complete = !self.is_thinking() && self.constraint.as_mut().is_some_and(Constraint::is_complete);
        let is_end = self.tokenizer.is_end_of_generation(id) && !self.request.ignore_eos;
        if is_end || self.request.stop_tokens.contains(&id) {
            self.finish = Some(FinishReason::Stop);
            self.flush(&mut text);
        } else {
            let piece = self.decoder.push_as(id, self.request.visible.contains(&id)).unwrap_or_default();
            let is_stopped = match self.may_end() {
                true => self.stop.push(&piece, &mut text),
                false => {
                    text.push_str(&piece);
                    false
                }
            };
            if is_stopped {
                self.finish = Some(FinishReason::Stop);
            } else if is_complete {
                self.finish = Some(FinishReason::Stop);
                self.flush(&mut text);
            } else if self.context.len() >= self.n_context_max() {
                self.finish = Some(FinishReason::Length);
                self.flush(&mut text);
            }
        }
        self.text.push_str(&text);
        text
    }

    /// Appends what was held back for an unfinished character or a possible stop string; none will be completed.
    fn flush(&mut self, text: &mut String) {
        let rest = self.decoder.finish().unwrap_or_default();
        match self.stop.push(&rest, text) {
            true => self.finish = Some(FinishReason::Stop),
            false => self.stop.flush(text),
        }
    }

    /// Takes out what came of it. It counts as cancelled unless it is over by itself or late.
    pub(crate) fn take_summary(&mut self) -> GenerationSummary {
        self.context.truncate(self.context().len());
        let tokens = self.context.split_off(self.n_prompt);
        let unfinished = match self.is_late() && !self.request.cancel.is_cancelled() {
            true => FinishReason::Deadline,
            false => FinishReason::Cancelled,
        };
        let (draft_sources, drafts) = (self.draft_sources(), self.draft_sources().total());
        GenerationSummary {
            timings: Timings {
                load_ms: self.load_ms,
                kv_bytes_per_token: self.kv_bytes_per_token,
                draft_tokens: drafts.draft_tokens,
                accepted_tokens: drafts.accepted_tokens,
                draft_sources,
                ..self.clock.timings(self.n_prompt, tokens.len())
            },
            text: std::mem::take(&mut self.text),
            prompt_tokens: std::mem::take(&mut self.context),
            tokens,
            logprobs: std::mem::take(&mut self.logprobs),
            finish_reason: self.finish.unwrap_or(unfinished),
            n_thought: self.gate.as_ref().map_or(0, Gate::n_tokens) as u32,
            stopped_by: self.stop.matched().map(str::to_owned),
            kv: self.request.kv,
            choices: Box::default(),
        }
    }
}

/// Checks a request against the model, as far as that needs no computing.
///
/// # Errors
/// The prompt is empty or leaves no room in the context, an option is out of range.
pub(crate) fn check(info: &ModelInfo, request: &GenerateRequest) -> Result<(), EngineError> {
    let n_prompt = request.prompt.len();
    if n_prompt == 0 {
        return Err(EngineError::new(ErrorKind::Prompt, "the prompt has no tokens; give it some text"));
    }
    if n_prompt >= info.n_ctx {
        let line = info.context_line(n_prompt + 1);
        return Err(EngineError::new(ErrorKind::ContextLength, line));
    }
    request.sampling.validate()
}

impl Clock {
    fn timings(&self, n_prompt: usize, n_tokens: usize) -> Timings {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let per_second = |n: usize, time: Duration| if time.is_zero() { 0.0 } else { n as f64 / time.as_secs_f64() };
        let Opened { queued, n_cached, n_from_disk } = self.opened.unwrap_or_default();
        let prompt = self.prompt.saturating_sub(queued);
        let decode = self.last_token.saturating_sub(self.first_token);
        Timings {
            queue_ms: ms(queued),
            prompt_ms: ms(prompt),
            prompt_tps: per_second(n_prompt - n_cached, prompt),
            cached_tokens: n_cached,
            disk_tokens: n_from_disk,
            decode_ms: ms(decode),
            decode_tps: per_second(n_tokens.saturating_sub(1), decode),
            ttft_ms: ms(self.first_token),
            ..Timings::default()
        }
    }
}
