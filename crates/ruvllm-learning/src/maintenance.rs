//! Maintenance of a tenant between requests: the background loop, and the evaluation of what was learned.
//!
//! ```text
//! holdout        one prompt of eight, by its tokens, if it is long enough to be a block: never learned
//! consolidate    the background loop, about 100 ms on the tenant's own thread
//! evaluate       holdout text since the last generation is the target; earlier holdout text and text of this project are controls;
//!                each is read with what was known at the last generation, and with what is known now
//! published      the gate is sure of a gain, and of no harm: what is known is a generation
//! discarded      the gate is sure of harm, or has seen as many blocks as it wants and no gain: what was read since is taken back
//! unsure         otherwise: nothing changes, and it is evaluated again when the holdout has grown
//! ```

use ruvllm_engine::EngineError;
use ruvllm_sona::background::{Background, BackgroundOptions, Consolidate};
use ruvllm_sona::history::{self, History, Item, Span};
use ruvllm_sona::publish::{Judgement, LossChange, Paired, PublicationGate};
use ruvllm_sona::{Learned, SonaError};
use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};
use web_time::{Duration, Instant};

use crate::error::of_sona;
use crate::log::LogPosition;
use crate::reading::{Passes, ReadWatch, Reader};
use crate::tenant::TenantLearning;

/// Tokens of a block.
const BLOCK: usize = 64;
/// One prompt of so many is in the holdout.
const ONE_OF: u8 = 8;
/// Blocks of each control.
const CONTROL_BLOCKS: usize = 32;
/// Items that are looked through for holdout text.
const LOOKED_AT: usize = 4096;

/// Text that learning must not harm: pages and sources of this project, as they were once.
const CONTROLS: [(&str, &str); 2] =
    [("prose", include_str!("control/prose.txt")), ("code", include_str!("control/code.txt"))];

/// When there is work for a tenant between requests, and what is asked of a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct MaintenanceOptions {
    /// The background loop; `None` leaves it out.
    pub background: Option<BackgroundOptions>,
    /// The time between two evaluations; `None` never evaluates.
    pub evaluate_every: Option<Duration>,
    /// Tokens that have to be learned between them.
    pub evaluate_tokens: u64,
    /// Gate that a change has to pass.
    pub gate: PublicationGate,
    /// Blocks of the target with which an answer has to be found: up to there doubt waits for more.
    pub n_blocks_max: usize,
}

impl Default for MaintenanceOptions {
    /// The background loop as it is; every quarter of an hour in which 2,048 tokens were learned the gate is asked, which waits for up to 64
    /// blocks.
    fn default() -> MaintenanceOptions {
        MaintenanceOptions {
            background: Some(BackgroundOptions::default()),
            evaluate_every: Some(Duration::from_secs(900)),
            evaluate_tokens: 2048,
            gate: PublicationGate::default(),
            n_blocks_max: 64,
        }
    }
}

/// Outcome of maintenance.
#[derive(Clone, Debug, PartialEq)]
pub enum MaintenanceOutcome {
    /// MicroLoRA was merged into the base behind it, and λ fitted on calibration text.
    Consolidated,
    /// What is known is this generation now.
    Published(u64, Judgement),
    /// What was read since the last generation was taken back.
    Discarded(Judgement),
    /// The gate waits for more text.
    Unsure(Judgement),
}

/// State of a tenant's maintenance.
pub(crate) struct Maintenance {
    background: Option<Background>,
    evaluated_at: Instant,
    evaluated_tokens: u64,
}

impl Maintenance {
    pub(crate) fn new(options: &MaintenanceOptions, history: &History) -> Maintenance {
        Maintenance {
            background: options.background.map(|options| Background::new(options, history)),
            evaluated_at: Instant::now(),
            evaluated_tokens: history.learned().n_tokens(),
        }
    }
}

/// Returns whether a prompt belongs to the holdout: by its tokens, so that the same one does again.
pub(crate) fn is_holdout(span: &Span) -> bool {
    let n_new = span.tokens.len() - span.n_read;
    let bytes: Vec<u8> = span.tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    n_new >= BLOCK && blake3::hash(&bytes).as_bytes()[0].is_multiple_of(ONE_OF)
}

/// Returns a prompt as the holdout has it: all of what was computed of it is predicted.
pub(crate) fn holdout(span: Span) -> Span {
    Span { n_remembered: span.n_read, ..span }
}

/// Returns the mean losses of whole blocks.
fn blocks(losses: &[f32]) -> impl Iterator<Item = f64> {
    losses.chunks_exact(BLOCK).map(|block| block.iter().map(|&x| f64::from(x)).sum::<f64>() / BLOCK as f64)
}

/// Whether a text surely became worse by more than `bar`: as far below its mean as the bound is above.
fn is_surely_worse(change: &LossChange, bar: f64) -> bool {
    2.0 * change.relative - change.bound > bar
}

impl TenantLearning {
    /// Does what is due, if anything is. `watch` is asked before each piece that the model reads: it may wait until nobody else needs the
    /// model, and break off.
    ///
    /// # Errors
    /// `watch` breaks off, the model cannot read, or it cannot be written.
    pub fn maintain(
        &self,
        passes: &mut dyn Passes,
        watch: &mut ReadWatch<'_>,
    ) -> Result<Vec<MaintenanceOutcome>, EngineError> {
        let Some(options) = &self.shared.options.maintenance else { return Ok(Vec::new()) };
        let mut done = Vec::new();
        if self.consolidate_if_due()? {
            done.push(MaintenanceOutcome::Consolidated);
        }
        if self.is_evaluation_due(options)? {
            let judged = self.evaluate(options, passes, watch)?;
            judged.iter().for_each(|outcome| self.set_evaluation(outcome.clone()));
            done.extend(judged);
        }
        Ok(done)
    }

    /// Says how the background loop merges from now on, as a policy has it; `None` for what the options say.
    pub fn consolidate_by(&self, how: Option<Consolidate>) {
        if let Some((_, Some(Maintenance { background: Some(background), .. }))) = self.lock_state().kept() {
            background.consolidate_by(how);
        }
    }

    fn consolidate_if_due(&self) -> Result<bool, EngineError> {
        let mut state = self.lock_state();
        let Some((history, maintenance)) = state.kept() else { return Ok(false) };
        let Some(background) = maintenance.as_mut().and_then(|maintenance| maintenance.background.as_mut()) else {
            return Ok(false);
        };
        if !background.is_due(history) {
            return Ok(false);
        }
        let bank = self.bank().clone();
        background.run(history, bank.as_deref()).map_err(of_sona)?;
        self.show(&state);
        Ok(true)
    }

    fn is_evaluation_due(&self, options: &MaintenanceOptions) -> Result<bool, EngineError> {
        let mut state = self.lock_state();
        let Some((history, Some(maintenance))) = state.kept() else { return Ok(false) };
        // An undo may leave fewer than there were: what comes then is new.
        let n_now = history.learned().n_tokens();
        maintenance.evaluated_tokens = maintenance.evaluated_tokens.min(n_now);
        let n_new = n_now - maintenance.evaluated_tokens;
        let is_due = options.evaluate_every.is_some_and(|every| maintenance.evaluated_at.elapsed() >= every);
        let is_due = is_due && n_new >= options.evaluate_tokens && history.has_news().map_err(of_sona)?;
        if is_due {
            (maintenance.evaluated_at, maintenance.evaluated_tokens) = (Instant::now(), n_now);
        }
        Ok(is_due)
    }

    /// Asks the gate, and does what it says. Requests and feedback go on meanwhile; what they teach until then is judged with the rest.
    /// Where somebody published, went back or forgot meanwhile, what it says is of something else, and nothing is done.
    fn evaluate(
        &self,
        options: &MaintenanceOptions,
        passes: &mut dyn Passes,
        watch: &mut ReadWatch<'_>,
    ) -> Result<Option<MaintenanceOutcome>, EngineError> {
        let mut reader = Reader::new(passes, &self.shared, self.name(), watch, false);
        let (before, after, evaluated_at) = {
            let mut state = self.lock_state();
            let Some((history, _)) = state.kept() else { return Ok(None) };
            let before = history.at(history.generation(), &mut reader).map_err(|error| reader.cause_of(error))?;
            (before, history.known(), LogPosition::of(history))
        };
        let measured = self.measure(options, &before, &after, evaluated_at.first_item, &mut reader);
        let (target, controls) = measured.map_err(|error| reader.cause_of(error))?;
        drop(reader);
        let judgement = options.gate.judge(&target, &controls).map_err(of_sona)?;
        let harms = |change: &LossChange| is_surely_worse(change, options.gate.rise_max);
        let is_harm = is_surely_worse(&judgement.target, 0.0) || judgement.controls.iter().any(harms);
        if !judgement.is_published && !is_harm && judgement.target.n_blocks < options.n_blocks_max {
            return Ok(Some(MaintenanceOutcome::Unsure(judgement)));
        }
        let decided = self.decide(passes, &judgement, evaluated_at)?;
        Ok(decided.map(|decided| match decided {
            Some(number) => MaintenanceOutcome::Published(number, judgement),
            None => MaintenanceOutcome::Discarded(judgement),
        }))
    }

    /// Reads target and controls with what was known and what is known.
    fn measure(
        &self,
        options: &MaintenanceOptions,
        before: &Learned,
        after: &Learned,
        first: u64,
        reader: &mut Reader<'_>,
    ) -> Result<(Paired, Vec<Paired>), SonaError> {
        let mut target = Paired { name: "held back".to_owned(), ..Paired::default() };
        let mut earlier = Paired { name: "held back earlier".to_owned(), ..Paired::default() };
        let log = self.log(LOOKED_AT).map_err(|error| {
            SonaError::new(ruvllm_sona::SonaErrorKind::Io, format!("the log cannot be read: {error}"))
        })?;
        let mut read = |paired: &mut Paired, span: &Span| -> Result<(), SonaError> {
            paired.before.extend(blocks(&history::losses(span, before, reader)?));
            paired.after.extend(blocks(&history::losses(span, after, reader)?));
            Ok(())
        };
        for (id, _, item) in &log.items {
            let Item::Holdout { span } = item else { continue };
            let (paired, n_max) =
                if *id >= first { (&mut target, options.n_blocks_max) } else { (&mut earlier, CONTROL_BLOCKS) };
            if paired.before.len() < n_max {
                read(paired, span)?;
            }
        }
        let mut controls = Vec::new();
        // Nothing is asked of the controls before there is something to compare with them.
        if target.before.len() >= options.gate.n_blocks_min {
            for (name, span) in self.shared.controls.iter() {
                let mut control = Paired { name: (*name).to_owned(), ..Paired::default() };
                read(&mut control, span)?;
                controls.push(control);
            }
            if earlier.before.len() >= options.gate.n_blocks_min {
                controls.push(earlier);
            }
        }
        Ok((target, controls))
    }
}

/// Returns the controls as spans of a model.
///
/// # Errors
/// The tokenizer cannot read them.
pub(crate) fn controls(tokenizer: &Tokenizer, n_ctx: usize) -> Result<Vec<(&'static str, Span)>, EngineError> {
    let options = EncodeOptions { add_special: false, parse_special: false };
    let span = |(name, text): (&'static str, &str)| {
        let mut tokens = tokenizer.encode(text, options)?;
        let first = tokenizer.bos_to_add().or(tokenizer.bos());
        tokens.splice(0..0, first);
        tokens.truncate((1 + CONTROL_BLOCKS * BLOCK).min(n_ctx));
        Ok((name, Span { tokens, n_read: 1, n_remembered: 1, ..Span::default() }))
    };
    CONTROLS.into_iter().map(span).collect()
}
