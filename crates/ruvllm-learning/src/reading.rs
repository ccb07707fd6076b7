//! The model reads again what is to be played again, wherever it runs.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use ruvllm_backend::{LogitRows, Segment, SeqId};
use ruvllm_engine::{CacheSalt, Engine, EngineError, ErrorKind, ModelRunner, Service, Work};
use ruvllm_kernels::softmax;
use ruvllm_lora::micro::{HeadRows, KeptRows, LogitRow, MicroLora};
use ruvllm_sona::history::{Each, Reading, Span};
use ruvllm_sona::{SonaError, SonaErrorKind};

use crate::error::of_sona;
use crate::learning::Shared;

/// Where a model runs: this thread, or one that also serves others.
pub trait Passes {
    /// Has `work` done, and returns when it is.
    ///
    /// # Errors
    /// The thread that owns the model has ended.
    fn pass(&mut self, work: Work) -> Result<(), EngineError>;

    /// Returns whether nobody else uses the model meanwhile, so that sequences may stay open from one piece of work to the next.
    fn is_alone(&self) -> bool;
}

impl Passes for Engine {
    fn pass(&mut self, work: Work) -> Result<(), EngineError> {
        work(self.runner_mut());
        Ok(())
    }

    fn is_alone(&self) -> bool {
        true
    }
}

/// Between two steps of those that write.
impl Passes for Service {
    fn pass(&mut self, work: Work) -> Result<(), EngineError> {
        self.run(work)
    }

    fn is_alone(&self) -> bool {
        false
    }
}

/// Callback with the number of tokens that were read; says whether to go on.
pub type ReadWatch<'a> = dyn FnMut(usize) -> ControlFlow<()> + 'a;

/// Sums over the tokens of texts that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReadSums {
    /// Tokens that were predicted.
    pub n_tokens: usize,
    /// Nats by the model alone.
    pub model: f64,
    /// Nats with what was learned up to each token.
    pub learned: f64,
}

/// Passages are read by this model.
pub(crate) struct Reader<'a> {
    passes: &'a mut dyn Passes,
    shared: Arc<Shared>,
    /// What is computed here is found again here only: that a text was read again must change no request.
    scope: CacheSalt,
    /// A sequence that goes on, and its tokens.
    open: Option<(SeqId, Vec<u32>)>,
    watch: &'a mut ReadWatch<'a>,
    /// Whether the model alone is asked as well.
    compares: bool,
    pub sums: ReadSums,
    /// What went wrong here.
    error: Option<EngineError>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(
        passes: &'a mut dyn Passes,
        shared: &Arc<Shared>,
        name: &str,
        watch: &'a mut ReadWatch<'a>,
        compares: bool,
    ) -> Reader<'a> {
        let hash = blake3::hash(format!("what tenant {name} reads again").as_bytes());
        let tenant = u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("eight bytes"));
        let scope = CacheSalt::from(tenant);
        let (shared, sums) = (Arc::clone(shared), ReadSums::default());
        Reader { passes, shared, scope, open: None, watch, compares, sums, error: None }
    }

    /// Returns the engine's own error, where it is the cause of this one.
    pub(crate) fn cause_of(&mut self, error: SonaError) -> EngineError {
        self.error.take().unwrap_or_else(|| of_sona(error))
    }

    /// Computes what a piece of a span follows.
    fn rows(&mut self, wanted: Wanted) -> Result<Rows, EngineError> {
        if self.passes.is_alone() {
            let (sender, receiver) = sync_channel(1);
            let (open, n_before) = (self.open.take(), wanted.range.start - 1);
            let is_behind = |known: &[u32]| known.len() <= n_before && wanted.tokens.starts_with(known);
            let (go_on, other) = match open {
                Some((seq, known)) if !is_behind(&known) => (None, Some(seq)),
                open => (open, None),
            };
            self.passes.pass(Box::new(move |runner| {
                other.into_iter().for_each(|seq| runner.close(seq));
                drop(sender.send(wanted.go_on(runner, go_on)));
            }))?;
            let (rows, open) = receiver.recv().map_err(|_| lost())??;
            self.open = Some(open);
            return Ok(rows);
        }
        let (sender, receiver) = sync_channel(1);
        let scope = self.scope.clone();
        self.passes.pass(Box::new(move |runner| drop(sender.send(wanted.read(runner, &scope)))))?;
        receiver.recv().map_err(|_| lost())?
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        if let Some((seq, _)) = self.open.take() {
            // A model that has ended has no sequences.
            let _ = self.passes.pass(Box::new(move |runner| runner.close(seq)));
        }
    }
}

fn lost() -> EngineError {
    EngineError::new(ErrorKind::Stopped, "the model ended while it read")
}

impl Reading for Reader<'_> {
    fn read(
        &mut self,
        span: &Span,
        range: Range<usize>,
        micro: Option<&MicroLora>,
        each: &mut Each<'_>,
    ) -> Result<(), SonaError> {
        let wanted = Wanted {
            tokens: span.tokens[..range.end].to_vec(),
            n_remembered: span.n_remembered.clamp(range.start, range.end),
            range: range.clone(),
            micro: micro.cloned(),
            is_approx: span.is_approx,
            compares: self.compares,
        };
        let rows = match (self.watch)(range.len()) {
            ControlFlow::Break(()) => Err(EngineError::new(ErrorKind::Cancelled, "stopped")),
            ControlFlow::Continue(()) => self.rows(wanted),
        };
        let mut rows = match rows {
            Ok(rows) => rows,
            Err(error) => {
                let line = SonaError::new(SonaErrorKind::Io, format!("the model cannot read it again: {error}"));
                self.error = Some(error);
                return Err(line);
            }
        };
        let states = rows.states.rows();
        let (n_embd, n_remembered) = (states.hidden.len() / range.len(), range.len() - rows.logits.len());
        let softmax = softmax::pick(self.shared.compute.isa);
        for (alone, &token) in rows.alone.iter().zip(&span.tokens[range.start + n_remembered..]) {
            self.sums.model += softmax.log_sum_exp(alone) - f64::from(alone[token as usize]);
        }
        let logits = std::iter::repeat_with(Vec::new).take(n_remembered).chain(std::mem::take(&mut rows.logits));
        let mut approx = rows.approx.into_iter();
        for ((at, state), mut exact) in range.clone().zip(states.iter(n_embd)).zip(logits) {
            let approx = if exact.is_empty() { None } else { approx.next() };
            each(at, state, LogitRow { exact: &mut exact, approx: approx.as_deref() });
        }
        Ok(())
    }

    fn adopt(&mut self, deep: Option<&[u8]>) -> Result<(), SonaError> {
        match deep {
            None => Ok(()),
            Some(_) => {
                let line = "an adapter of the deep loop is part of what was learned; go back to a generation before it";
                Err(SonaError::new(SonaErrorKind::Shape, line))
            }
        }
    }

    fn head(&self) -> &dyn HeadRows {
        &*self.shared
    }

    fn predicted(&mut self, token: u32, logits: &[f32]) {
        if self.compares {
            let log_sum = softmax::pick(self.shared.compute.isa).log_sum_exp(logits);
            self.sums.learned += log_sum - f64::from(logits[token as usize]);
            self.sums.n_tokens += 1;
        }
    }
}

/// A piece of a span, to be computed.
struct Wanted {
    /// Up to its end.
    tokens: Vec<u32>,
    /// The places whose predecessors' states are wanted, and from which on their logits are.
    range: Range<usize>,
    n_remembered: usize,
    micro: Option<MicroLora>,
    is_approx: bool,
    compares: bool,
}

/// What was computed.
struct Rows {
    /// `range.len()` of them.
    states: KeptRows,
    /// Of the predicted ones, behind the MicroLoRA: `[n_vocab]` each.
    logits: Vec<Vec<f32>>,
    /// Rough ones of the same states, if the span has them.
    approx: Vec<Vec<f32>>,
    /// The same without it, if somebody compares.
    alone: Vec<Vec<f32>>,
}

impl Wanted {
    /// Goes on with a sequence, or opens one; it stays open.
    fn go_on(
        self,
        runner: &mut ModelRunner,
        open: Option<(SeqId, Vec<u32>)>,
    ) -> Result<(Rows, (SeqId, Vec<u32>)), EngineError> {
        let (seq, n_known) = match open {
            Some((seq, known)) => (seq, known.len()),
            None => (runner.open_empty()?, 0),
        };
        match self.compute(runner, seq, n_known) {
            Ok(rows) => {
                let mut known = self.tokens;
                known.pop();
                Ok((rows, (seq, known)))
            }
            Err(error) => {
                runner.close(seq);
                Err(error)
            }
        }
    }

    /// Opens a sequence with what is known of the tokens, and closes it.
    fn read(self, runner: &mut ModelRunner, scope: &CacheSalt) -> Result<Rows, EngineError> {
        let (seq, n_known) = runner.open(Some(&self.tokens[..self.range.start]), scope)?;
        let rows = self.compute(runner, seq, n_known);
        runner.close(seq);
        rows
    }

    fn compute(&self, runner: &mut ModelRunner, seq: SeqId, n_known: usize) -> Result<Rows, EngineError> {
        let (n_embd, n_vocab) = (runner.info().n_embd, runner.info().n_vocab);
        // The state before a token is that of the one before it.
        let (first, last) = (self.range.start - 1, self.range.end - 1);
        if n_known < first {
            let before = Segment { seq, tokens: &self.tokens[n_known..first], logits: LogitRows::None };
            runner.forward(&[before])?;
        }
        let n_predicted = self.range.end - self.n_remembered;
        let n_logits = if self.micro.is_none() || self.compares { n_predicted } else { 0 };
        let logits = LogitRows::TailOfStates(n_logits);
        let states = runner.forward_states(&[Segment { seq, tokens: &self.tokens[first..last], logits }])?;
        let split = |logits: &[f32]| -> Vec<Vec<f32>> { logits.chunks_exact(n_vocab).map(<[f32]>::to_vec).collect() };
        let (alone, states) = (split(states.logits), KeptRows::from(states.rows));
        let (_, predicted) = states.rows().split_at(last - first - n_predicted, n_embd);
        let mut changed = predicted.hidden.to_vec();
        let (logits, alone) = match &self.micro {
            None if !self.compares => (alone, Vec::new()),
            None => (alone.clone(), alone),
            Some(micro) => {
                let mut logits = Vec::new();
                micro.forward(predicted, &mut changed);
                runner.hidden_states_mut()?.logits_of(&changed, &mut logits)?;
                (split(&logits), alone)
            }
        };
        let mut approx = Vec::new();
        if self.is_approx && n_predicted > 0 {
            runner.hidden_states_mut()?.approx_logits_of(&changed, &mut approx)?;
        }
        Ok(Rows { states, logits, approx: split(&approx), alone })
    }
}
