//! The instant loop: what a request learns while it is answered, and what is ingested when it ends.
//!
//! ```text
//! a token to come:     h, logits  →  key, the nearest entries, λ      logits += what p_kNN adds          (RequestTrace::adjust)
//! the token chosen:    sample for λ, credit of entries; of some together the gradient for MicroLoRA      (RequestTrace::accept)
//! the end:             steps of MicroLoRA (one for 32 tokens), of λ; the request's keys join the datastore
//!                                                                                               (Learned::ingest)
//! between requests:    λ is fitted on calibration text                                       (Learned::rehearse)
//! ```
//! While a request runs nothing of [`Learned`] changes, so many may read one; what a request found out is in its [`RequestTrace`].
//! Everything is a function of the inputs in their order: the same calls give the same bytes.

mod options;
mod snapshot;
mod trace;

use std::sync::Arc;

use ruvllm_kernels::distance;
use ruvllm_lora::micro::{Gradient, MicroLora, Rule, UpdateOptions};

use crate::background::Consolidate;
use crate::calibration::Calibration;
use crate::corrections::{Corrections, Correctness};
use crate::datastore::{Context, Datastore, Hit, KnnQuery, SearchScratch};
use crate::error::{SonaError, SonaErrorKind};
use crate::ewc::{Consolidation, Ewc};
use crate::interpolation::{Interpolation, RunningFeatures, Sample};
use crate::knn::KnnDistribution;
use crate::mixing_weight::MixingWeight;
use crate::names::Names;
use crate::whiten::Key;
use ruvllm_kernels::Compute;

pub use options::{LearnOptions, MicroOptions};
pub use trace::RequestTrace;
pub(crate) use trace::Stamp;

/// The most steps of the MicroLoRA at the end of a request. All of its gradients are those of the state that it began with:
/// many steps along the same go too far (a document of 2,500 tokens learned in 78 of them nearly doubled the loss of others).
const STEPS_AT_END_MAX: usize = 4;
/// What rows of `A` begin with, times directions in which a state varies as much as one of its values.
const BEGIN: f32 = 2.0;
/// How far MicroLoRA moves a state at most, of its distance from the mean: 20,000 tokens of code move one in a hundred by
/// 0.25 to 0.3, wrong labels by up to 13, which cost 5 nats a token wherever a table or a ruler had made them likely.
const MOVES_MAX: f32 = 0.3;
/// Tokens learned for one that is rehearsed.
const LEARNED_PER_REHEARSED: u64 = 4;

/// Learned state: of one model and one tenant.
#[derive(Clone, Debug)]
pub struct Learned {
    options: LearnOptions,
    calibration: Arc<Calibration>,
    datastore: Datastore,
    corrections: Corrections,
    interpolation: Interpolation,
    /// What learns.
    micro: Option<Arc<MicroLora>>,
    /// What it was merged into.
    base: Option<Base>,
    /// Both: what changes final hidden states.
    served: Option<Arc<MicroLora>>,
    /// How much of that a request begins with.
    mixing_weight: MixingWeight,
    compute: Compute,
    n_tokens: u64,
    /// Which state this is, for traces to say what they read; no part of what was learned.
    version: u64,
    /// Positions of the calibration text that are to be rehearsed, and where to go on.
    n_owed: u64,
    cursor: usize,
    running: RunningFeatures,
    context: Context,
}

/// What MicroLoRA is merged into, and which of its values mattered.
#[derive(Clone, Debug)]
struct Base {
    lora: MicroLora,
    ewc: Ewc,
}

/// What a search works in.
#[derive(Debug, Default)]
struct Search {
    scratch: SearchScratch,
    hits: Vec<Hit>,
    knn: KnnDistribution,
}

impl Learned {
    /// Begins to learn.
    ///
    /// # Errors
    /// An option is out of range.
    pub fn new(
        calibration: Arc<Calibration>,
        options: LearnOptions,
        compute: impl Into<Compute>,
    ) -> Result<Learned, SonaError> {
        if !(options.temperature.is_finite() && options.temperature > 0.0) {
            let line = format!("a temperature of {}; choose a positive number, 0.05 or so", options.temperature);
            return Err(SonaError::new(SonaErrorKind::Value, line));
        }
        let (n_embd, n_key) = (calibration.whitener().n_embd(), calibration.whitener().n_key());
        let micro = options.micro.map(|micro| {
            if micro.n_tokens == 0 || micro.n_likeliest == 0 {
                let line = "a step of 0 tokens or through 0 of them; choose 32 and 128 or so";
                return Err(SonaError::new(SonaErrorKind::Value, line));
            }
            let whitener = calibration.whitener();
            let begin: Vec<f32> = whitener.directions(micro.rank).iter().map(|x| BEGIN * x).collect();
            let plain = MicroLora::new(n_embd, micro.rank, 1.0, 0)?.along(&begin)?;
            let micro = if micro.is_centred { plain.centred(whitener.mean())? } else { plain };
            Ok(Arc::new(completed(&calibration, micro)?))
        });
        let micro = micro.transpose()?;
        Ok(Learned {
            datastore: Datastore::new(n_key, options.datastore.unwrap_or_default())?,
            corrections: Corrections::new(n_key),
            served: micro.clone(),
            mixing_weight: MixingWeight::default(),
            micro,
            base: None,
            options,
            calibration,
            interpolation: Interpolation::default(),
            compute: compute.into(),
            n_tokens: 0,
            version: 0,
            n_owed: 0,
            cursor: 0,
            running: RunningFeatures::default(),
            context: Context::default(),
        })
    }

    /// Returns the datastore.
    pub fn datastore(&self) -> &Datastore {
        &self.datastore
    }

    /// Returns the corrections.
    pub fn corrections(&self) -> &Corrections {
        &self.corrections
    }

    /// Remembers a correction: the names of the question, and for each token of the answer the final hidden state that it
    /// follows, `[n, n_embd]`; the first of them is that of the prompt's last token.
    ///
    /// # Errors
    /// As [`Corrections::add`].
    ///
    /// # Panics
    /// If the states are of another width.
    pub fn add_correction(
        &mut self,
        names: &Names,
        hidden: &[f32],
        answer: &[u32],
        verdict: Correctness,
    ) -> Result<(), SonaError> {
        let answer = self.answer_keys(hidden, answer);
        self.add_correction_keys(names, &answer, verdict)
    }

    /// Returns an answer's tokens, each with the key of the state that it follows.
    pub(crate) fn answer_keys(&self, hidden: &[f32], answer: &[u32]) -> Vec<(Key, u32)> {
        let whitener = self.calibration.whitener();
        let (n, n_embd) = (hidden.len(), whitener.n_embd());
        assert_eq!(n, answer.len() * n_embd, "{n} values for {} states of {n_embd}", answer.len());
        let keys = hidden.chunks_exact(n_embd).map(|hidden| whitener.key(hidden, self.compute.isa));
        keys.zip(answer.iter().copied()).collect()
    }

    /// As [`Learned::add_correction`], with the keys.
    pub(crate) fn add_correction_keys(
        &mut self,
        names: &Names,
        answer: &[(Key, u32)],
        verdict: Correctness,
    ) -> Result<(), SonaError> {
        self.corrections.add(names, answer, verdict, distance::pick(self.compute.isa))
    }

    /// Adds the answer of a trace as a wrong one: it is taken away where the same is asked again. `names`
    /// are those of the question. Without a datastore no keys were traced, and nothing is added.
    ///
    /// # Errors
    /// As [`Corrections::add`].
    pub fn reject(&mut self, names: &Names, trace: &RequestTrace) -> Result<(), SonaError> {
        let answer = self.traced_keys(trace);
        if answer.is_empty() { Ok(()) } else { self.add_correction_keys(names, &answer, Correctness::Wrong) }
    }

    /// Returns the tokens of a trace with their keys; none without a datastore.
    pub(crate) fn traced_keys(&self, trace: &RequestTrace) -> Vec<(Key, u32)> {
        let entries = trace.entries.iter().filter(|_| self.options.datastore.is_some());
        entries.map(|entry| (entry.key.clone(), entry.token)).collect()
    }

    /// Returns the model of the interpolation weight.
    pub fn interpolation(&self) -> &Interpolation {
        &self.interpolation
    }

    /// Returns what changes final hidden states, all of it; `None` if it is switched off. A request has as much of it as helps:
    /// [`RequestTrace::micro`].
    pub fn micro(&self) -> Option<&Arc<MicroLora>> {
        self.served.as_ref()
    }

    /// Merges MicroLoRA into the base behind it, which begins with the first merge; see [`background`](crate::background).
    ///
    /// # Errors
    /// There is no MicroLoRA, or a number is out of its range; then nothing changes.
    pub fn consolidate(&mut self, how: &Consolidate) -> Result<(), SonaError> {
        how.check()?;
        let Some(micro) = &self.micro else {
            return Err(SonaError::new(SonaErrorKind::Value, "MicroLoRA is off, so there is nothing to merge"));
        };
        let mut micro = MicroLora::clone(micro);
        let n_values = micro.values().map(<[f32]>::len).sum();
        let rule = Consolidation::PlusPlus { newest: how.newest };
        let mut base = match self.base.clone() {
            Some(base) => base,
            None => Base { lora: micro.empty_base(how.rank)?, ewc: Ewc::new(n_values, rule)? },
        };
        if base.ewc.len() != n_values {
            base.ewc = Ewc::new(n_values, rule)?;
        }
        base.ewc.draw(micro.values_mut(), how.strength);
        base.lora.absorb(how.keep, &micro, how.share)?;
        micro.fade(1.0 - how.share);
        base.ewc.consolidate(micro.values());
        let served = Arc::new(micro.beside(&base.lora)?);
        (self.micro, self.base, self.served) = (Some(Arc::new(micro)), Some(base), Some(served));
        Ok(())
    }

    /// Makes what is served of what learns and what it was merged into.
    fn serve(&mut self) -> Result<(), SonaError> {
        self.served = match (&self.micro, &self.base) {
            (Some(micro), Some(base)) => Some(Arc::new(micro.beside(&base.lora)?)),
            (micro, _) => micro.clone(),
        };
        Ok(())
    }

    /// Returns how many tokens were learned from.
    pub fn n_tokens(&self) -> u64 {
        self.n_tokens
    }

    /// Returns which state this is: a history numbers each, and traces say which they read.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns what it computes with.
    pub(crate) fn compute(&self) -> &Compute {
        &self.compute
    }

    /// Gives this state a number.
    pub(crate) fn set_version(&mut self, version: u64) {
        self.version = version;
    }

    /// Returns the options.
    pub fn options(&self) -> &LearnOptions {
        &self.options
    }

    /// Goes on with other options. What was learned stays where it fits them; a MicroLoRA of another shape begins anew.
    ///
    /// # Errors
    /// An option is out of range, or the datastore holds more than it may from now on.
    pub fn configure(&mut self, options: LearnOptions) -> Result<(), SonaError> {
        let fresh = Learned::new(Arc::clone(&self.calibration), options, self.compute.clone())?;
        self.datastore.configure(*fresh.datastore.options())?;
        let shape = |micro: &MicroOptions| (micro.rank, micro.is_centred);
        if self.options.micro.as_ref().map(shape) != options.micro.as_ref().map(shape) {
            (self.micro, self.base) = (fresh.micro, None);
        }
        self.options = options;
        self.serve()
    }

    /// Takes the steps that the trace of a running request is ready for: one of MicroLoRA for each complete piece of
    /// [`MicroOptions::n_tokens`] tokens, and those of λ. For text whose worth is known beforehand, such as a document that
    /// is to be learned; answers wait for their quality.
    pub fn step(&mut self, trace: &mut RequestTrace, quality: f32) {
        let quality = quality.clamp(0.0, 1.0);
        let n_complete = trace.gradients.len() - usize::from(trace.n_in_last > 0);
        self.take_steps(&mut trace.gradients[..n_complete], quality);
        trace.gradients.drain(..n_complete);
        if quality > 0.0 {
            trace.samples.drain(..).for_each(|sample| self.interpolation.learn(&sample, quality));
        }
        trace.samples.clear();
        // Up to there its states change as they did.
        if n_complete > 0 && !trace.stamps.is_empty() {
            trace.follow(self);
        }
    }

    /// Ingests what an ended request found out. `quality`, 0 to 1, scales the steps and what its entries are worth;
    /// nothing is learned from an answer of quality 0.
    ///
    /// Cost: a copy of the keys and some microseconds a step; a full datastore looks for what to let go once in a while.
    pub fn ingest(&mut self, mut trace: RequestTrace, quality: f32) {
        let quality = quality.clamp(0.0, 1.0);
        if quality == 0.0 {
            return;
        }
        self.merge_gradients(&mut trace);
        self.step(&mut trace, quality);
        for &(index, token, gain) in &trace.credits {
            // Another request may have put another entry there.
            if (index as usize) < self.datastore.len() && self.datastore.token(index) == token {
                self.datastore.credit(index, quality * gain);
            }
        }
        self.mixing_weight.ingest(&trace.log_odds, quality);
        self.n_tokens += trace.entries.len() as u64;
        self.n_owed += trace.entries.len() as u64;
        if self.options.datastore.is_some() {
            trace
                .entries
                .iter()
                .for_each(|entry| self.datastore.push(&entry.key, entry.context, entry.token, quality * entry.worth));
        }
    }

    /// Makes so few gradients of many that the steps along them are not too many. Tokens that make no whole piece count where there
    /// are few pieces.
    fn merge_gradients(&self, trace: &mut RequestTrace) {
        let (n, gradients) = (trace.gradients.len(), &mut trace.gradients);
        if std::mem::take(&mut trace.n_in_last) > 0 && n > STEPS_AT_END_MAX {
            gradients.pop();
        }
        Gradient::merge(gradients, STEPS_AT_END_MAX);
    }

    fn take_steps(&mut self, gradients: &mut [Gradient], quality: f32) {
        let (Some(micro), Some(options)) = (&mut self.micro, &self.options.micro) else { return };
        if quality == 0.0 || gradients.is_empty() {
            return;
        }
        let rule = Rule::RmsProp { decay: 0.95 };
        let update = UpdateOptions { rule, rate: options.rate * quality, clip: 1.0, decay: 0.0 };
        for gradient in &*gradients {
            let n_values: usize = gradient.values().map(<[f32]>::len).sum();
            if let Some(base) = self.base.as_mut().filter(|base| base.ewc.len() == n_values) {
                base.ewc.observe(gradient.values());
            }
        }
        Arc::make_mut(micro).update_all(gradients, &update);
        self.serve().expect("what was merged is of one shape with what learns");
    }

    /// Returns how many positions of calibration text are due, see [`Learned::rehearse`].
    pub fn n_due(&self) -> usize {
        (self.n_owed / LEARNED_PER_REHEARSED) as usize
    }

    /// Fits λ on calibration text: for every four tokens learned one that the datastore should not change. At most
    /// `n_max` of those that are due; returns how many are left. Each costs a search: this is work for between requests.
    pub fn rehearse(&mut self, n_max: usize) -> usize {
        let n_due = self.n_due();
        if self.calibration.is_empty() || self.datastore.is_empty() {
            self.n_owed = 0;
            return 0;
        }
        let n = n_due.min(n_max);
        // A threads is for what a request waits for.
        let (alone, calibration) = (Compute::from(self.compute.isa), Arc::clone(&self.calibration));
        let Search { mut scratch, mut hits, mut knn } = Search::default();
        for _ in 0..n {
            let position = &calibration.positions()[self.cursor % calibration.len()];
            if position.starts {
                (self.running, self.context) = (RunningFeatures::default(), Context::default());
            }
            self.datastore.search(
                KnnQuery { key: &position.key, context: self.context },
                &alone,
                &mut scratch,
                &mut hits,
            );
            let log_p = |token: u32| position.confidence(token).log_p_knn;
            // Calibration text is no tenant's, so nothing of it is in the datastore.
            knn.read(&self.datastore, &hits, self.options.temperature, log_p, |_| false);
            let recalled = knn.classes().first().map_or(u32::MAX, |class| class.0);
            let features = self.running.features(&knn, &position.confidence(recalled));
            let (p_model, p_knn) = (position.log_p.exp(), knn.probability(position.token));
            self.interpolation.learn(&Sample { features, p_model, p_knn }, 1.0);
            self.running.go_on(knn.nearest(), p_model, p_knn);
            self.context.push(position.token);
            self.cursor = (self.cursor + 1) % calibration.len();
        }
        self.n_owed -= n as u64 * LEARNED_PER_REHEARSED;
        n_due - n
    }
}

/// Gives a MicroLoRA what a snapshot of it leaves out: its bound, and the calibration's basis and the model's last block where there are such.
fn completed(calibration: &Calibration, micro: MicroLora) -> Result<MicroLora, SonaError> {
    let mut micro = micro.within(MOVES_MAX)?;
    if let Some(basis) = calibration.basis() {
        micro = micro.in_basis(Arc::clone(basis))?;
    }
    Ok(match &calibration.seat().0 {
        Some(block) => micro.inside(Arc::clone(block))?,
        None => micro,
    })
}

#[cfg(test)]
mod tests;
