//! Evaluation streams: texts are read in windows, and each token is predicted before it is learned.
//!
//! One pass of the model serves as many [`EvaluationStream`]s as there are: they see final hidden states and logits of the base, and
//! what changes hidden states goes through the head again.

use std::ops::Range;

use ruvllm_backend::{LogitRows, Segment};
use ruvllm_engine::{Engine, EngineError, ErrorKind};
use ruvllm_kernels::{Isa, softmax};
use ruvllm_lora::micro::{HeadRows, KeptRows, LogitRow, StateRows};
use ruvllm_sona::{Learned, RequestTrace};

/// Rows whose logits are held at once.
const ROWS: usize = 128;

/// Windows of a long text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowOptions {
    /// Tokens of a window, no more than the engine's context.
    pub n_window: usize,
    /// Tokens from one window to the next: what is left of a window is the context of what is new in it.
    pub n_stride: usize,
}

impl Default for WindowOptions {
    /// Windows of 1,536 tokens, 1,024 apart.
    fn default() -> WindowOptions {
        WindowOptions { n_window: 1536, n_stride: 1024 }
    }
}

/// A part of a text that is read in one piece behind the model's first token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Its first token.
    pub from: usize,
    /// Its tokens that no window before it had.
    pub new: Range<usize>,
}

impl WindowOptions {
    /// Cuts a text of `n_tokens` for a context of `n_ctx`: windows that overlap, each token new in one of them.
    ///
    /// # Errors
    /// The context or the options leave no window.
    pub(crate) fn cut(&self, n_tokens: usize, n_ctx: usize) -> Result<impl Iterator<Item = Window>, EngineError> {
        let n_window = self.n_window.min(n_ctx);
        let n_stride = self.n_stride.min(n_window * 2 / 3);
        if n_stride == 0 {
            let line = format!("windows of {n_window} tokens, {n_stride} apart; choose at least 2 and 1");
            return Err(EngineError::new(ErrorKind::Options, line));
        }
        let (mut from, mut n_covered) = (0, 0);
        Ok(std::iter::from_fn(move || {
            // One more than the window has places: the last is only predicted.
            let end = (from + n_window).min(n_tokens);
            let window = (n_covered < n_tokens).then_some(Window { from, new: n_covered..end });
            (n_covered, from) = (end, from + n_stride);
            window
        }))
    }
}

/// Consecutive positions of a text: of each what the model computed, and what followed.
#[derive(Clone, Copy, Debug)]
pub struct TextRows<'a> {
    /// Final hidden states, and what the last block made them of: `[n, n_embd]`.
    pub states: StateRows<'a>,
    /// The base's logits: `[n, n_vocab]`.
    pub logits: &'a [f32],
    /// The tokens that followed: `[n]`.
    pub next: &'a [u32],
    /// Tokens that the model read before those: the first token of its own and what it has in view of the text.
    pub before: &'a [u32],
}

/// Consecutive rows of a text, with their place in it.
#[derive(Clone, Copy, Debug)]
pub struct TextChunk<'a> {
    /// Index of the text's token that follows the first row.
    pub first: usize,
    /// The rows.
    pub rows: TextRows<'a>,
}

impl TextRows<'_> {
    /// Returns the negative log likelihood of the tokens by the base's logits.
    pub fn nll(&self, isa: Isa) -> impl Iterator<Item = f32> {
        let (softmax, n_vocab) = (softmax::pick(isa), self.logits.len() / self.next.len().max(1));
        self.logits.chunks(n_vocab.max(1)).zip(self.next).map(move |(logits, &next)| nll(softmax, logits, next))
    }
}

fn nll(softmax: &softmax::SoftmaxKernels, logits: &[f32], token: u32) -> f32 {
    softmax.log_sum_exp(logits) as f32 - logits[token as usize]
}

/// Reads a text of its own, the model's first token before it, in windows that overlap, and shows each position once,
/// in order: 128 rows or fewer at a time. The engine is free for other passes meanwhile.
///
/// # Errors
/// A window beyond the context or a stride beyond the window; as [`Engine::forward`]; the sink's own.
pub fn read_text(
    engine: &mut Engine,
    tokens: &[u32],
    windows: &WindowOptions,
    sink: &mut dyn FnMut(&mut Engine, TextChunk<'_>) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    let windows = windows.cut(tokens.len(), engine.info().n_ctx)?;
    let Some(&first) = tokens.first() else { return Ok(()) };
    let start = window_start(engine, first)?;
    for Window { from, new } in windows {
        let window = [&[start], &tokens[from..new.end - 1]].concat();
        read_window(engine, &window, new.start - from, &tokens[new.clone()], new.start, sink)?;
    }
    Ok(())
}

/// Returns what each window of a text begins with: a model without a first token of its own has the text's, which nothing predicts
/// then.
pub(crate) fn window_start(engine: &Engine, first: u32) -> Result<u32, EngineError> {
    let tokenizer = engine.tokenizer()?;
    Ok(tokenizer.bos_to_add().or(tokenizer.bos()).unwrap_or(first))
}

/// Makes rows of logits, `[n, n_vocab]`, those that a request of this trace has: of its hidden states, `[n, n_embd]`,
/// behind its MicroLoRA. Without one they stay as they are. Returns what it changed the states to.
pub(crate) fn change_logits(
    engine: &mut Engine,
    trace: &RequestTrace,
    states: StateRows<'_>,
    logits: &mut Vec<f32>,
) -> Result<Vec<f32>, EngineError> {
    let mut changed = states.hidden.to_vec();
    if let Some(micro) = trace.micro() {
        micro.forward(states, &mut changed);
        engine.logits_of(&changed, logits)?;
    }
    Ok(changed)
}

/// Computes a window and shows its rows from `n_known` on, which `next` followed.
fn read_window(
    engine: &mut Engine,
    window: &[u32],
    n_known: usize,
    next: &[u32],
    first: usize,
    sink: &mut dyn FnMut(&mut Engine, TextChunk<'_>) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    let seq = engine.new_sequence()?;
    let mut read = || {
        let (known, new) = window.split_at(n_known);
        if !known.is_empty() {
            engine.forward(&[Segment { seq, tokens: known, logits: LogitRows::None }])?;
        }
        for (i, (tokens, next)) in new.chunks(ROWS).zip(next.chunks(ROWS)).enumerate() {
            let states = engine.forward_states(&[Segment { seq, tokens, logits: LogitRows::All }])?;
            let (states, logits) = (KeptRows::from(states.rows), states.logits.to_vec());
            let before = &window[..=n_known + i * ROWS];
            let rows = TextRows { states: states.rows(), logits: &logits, next, before };
            sink(engine, TextChunk { first: first + i * ROWS, rows })?;
        }
        Ok(())
    };
    let result = read();
    engine.free_sequence(seq);
    result
}

/// Options of an evaluation stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvaluationStreamOptions {
    /// Tokens that are ingested together, as a request would be: until then the datastore has none of them.
    pub n_request: usize,
    /// Whether it learns; otherwise it only predicts.
    pub is_learning: bool,
    /// Whether λ and MicroLoRA wait for the end of a request too; otherwise they take their steps as soon as they can,
    /// since nobody has to judge what is read.
    pub is_patient: bool,
    /// Whether a text is predicted, as one request, by what was known before its first token; otherwise by all that came before.
    pub is_by_text: bool,
    /// Whether it learns by approximate logits, as requests do whose tokens are chosen by the largest of a head shortlist.
    pub is_approx: bool,
}

impl Default for EvaluationStreamOptions {
    /// It learns, 512 tokens at a time.
    fn default() -> EvaluationStreamOptions {
        EvaluationStreamOptions {
            n_request: 512,
            is_learning: true,
            is_patient: false,
            is_by_text: false,
            is_approx: false,
        }
    }
}

/// A stream of texts on which a state predicts each token before it learns it.
#[derive(Debug)]
pub struct EvaluationStream {
    learned: Learned,
    options: EvaluationStreamOptions,
    trace: RequestTrace,
    n_in_request: usize,
    /// Nats of each token that was predicted.
    nll: Vec<f32>,
    /// What it was when the text began, where that predicts in its place.
    before: Option<Box<EvaluationStream>>,
}

impl EvaluationStream {
    /// Begins.
    ///
    /// # Panics
    /// If a request has no tokens.
    pub fn new(learned: Learned, options: EvaluationStreamOptions) -> EvaluationStream {
        assert!(options.n_request > 0, "requests of no tokens");
        EvaluationStream {
            learned,
            options,
            trace: RequestTrace::default(),
            n_in_request: 0,
            nll: Vec::new(),
            before: None,
        }
    }

    /// Predicts the tokens that follow these rows, and learns each behind its prediction, or what `labels` has in its place
    /// (a control that has nothing to learn).
    ///
    /// # Errors
    /// As [`Engine::logits_of`].
    ///
    /// # Panics
    /// If the rows are of another model.
    pub fn read(
        &mut self,
        engine: &mut Engine,
        rows: TextRows<'_>,
        labels: Option<&[u32]>,
        head: &dyn HeadRows,
    ) -> Result<(), EngineError> {
        if self.options.is_by_text && self.before.is_none() {
            self.before = Some(Box::new(self.predicting(usize::MAX)));
        }
        let n = self.nll.len();
        self.go_on(engine, rows, labels.unwrap_or(rows.next), head)?;
        if let Some(before) = &mut self.before {
            before.go_on(engine, rows, rows.next, head)?;
            self.nll.truncate(n);
            self.nll.append(&mut before.nll);
        }
        Ok(())
    }

    fn go_on(
        &mut self,
        engine: &mut Engine,
        rows: TextRows<'_>,
        labels: &[u32],
        head: &dyn HeadRows,
    ) -> Result<(), EngineError> {
        let mut at = 0;
        while at < rows.next.len() {
            if self.n_in_request == 0 {
                // What stands in front of it, as a prompt would.
                rows.before.iter().chain(&rows.next[..at]).for_each(|&token| self.trace.read(token));
            }
            // Up to there hidden states change as they do now.
            let n_steady = self.trace.n_until_step(&self.learned).min(ROWS);
            let n = n_steady.min(self.options.n_request - self.n_in_request).min(rows.next.len() - at);
            self.read_steady(engine, rows, at..at + n, labels, head)?;
            at += n;
            self.n_in_request += n;
            if self.n_in_request == self.options.n_request {
                self.end_request();
            }
        }
        Ok(())
    }

    fn read_steady(
        &mut self,
        engine: &mut Engine,
        rows: TextRows<'_>,
        range: Range<usize>,
        labels: &[u32],
        head: &dyn HeadRows,
    ) -> Result<(), EngineError> {
        let (n_embd, n_vocab, softmax) =
            (engine.info().n_embd, engine.info().n_vocab, softmax::pick(engine.compute().isa));
        let states = rows.states.rows(range.clone(), n_embd);
        let mut logits = rows.logits[range.start * n_vocab..range.end * n_vocab].to_vec();
        self.trace.begin(&self.learned);
        let (changed, mut approx) = (change_logits(engine, &self.trace, states, &mut logits)?, Vec::new());
        let is_approx = self.options.is_approx && engine.approx_logits_of(&changed, &mut approx);
        for (i, (state, exact)) in states.iter(n_embd).zip(logits.chunks_exact_mut(n_vocab)).enumerate() {
            let (next, label) = (rows.next[range.start + i], labels[range.start + i]);
            let approx = is_approx.then(|| &approx[i * n_vocab..(i + 1) * n_vocab]);
            self.trace.adjust(&self.learned, state, LogitRow { exact: &mut *exact, approx });
            self.nll.push(nll(softmax, exact, next));
            self.trace.accept_as(&self.learned, next, label, head);
            if self.options.is_learning && !self.options.is_patient {
                self.learned.step(&mut self.trace, 1.0);
            }
        }
        Ok(())
    }

    /// Ends a request: its trace is ingested, and λ is fitted on calibration text.
    fn end_request(&mut self) {
        let trace = std::mem::take(&mut self.trace);
        self.n_in_request = 0;
        if self.options.is_learning {
            self.learned.ingest(trace, 1.0);
            self.learned.rehearse(usize::MAX);
        }
    }

    /// Ends a document: what comes next is another.
    pub fn end_text(&mut self) {
        self.before = None;
        if self.n_in_request > 0 {
            self.end_request();
        }
    }

    /// Returns the nats of the tokens since the last call.
    pub fn take_nll(&mut self) -> Vec<f32> {
        std::mem::take(&mut self.nll)
    }

    /// Returns what it has learned so far.
    pub fn learned(&self) -> &Learned {
        &self.learned
    }

    /// Ends it and returns what it has learned.
    pub fn finish(mut self) -> Learned {
        self.end_text();
        self.learned
    }

    /// Returns one that only predicts, with what this one knows.
    pub fn frozen(&self) -> EvaluationStream {
        self.predicting(self.options.n_request)
    }

    fn predicting(&self, n_request: usize) -> EvaluationStream {
        let options = EvaluationStreamOptions { n_request, is_learning: false, is_by_text: false, ..self.options };
        EvaluationStream::new(self.learned.clone(), options)
    }
}
