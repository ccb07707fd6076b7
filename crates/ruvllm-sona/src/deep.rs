//! The deep loop: an adapter trained from good trajectories, held to what was learned before, and published only behind the gate.
//!
//! ```text
//! select    trajectories of good quality → sequences; a share is the holdout, the target
//! train     from the adapter that is served: new sequences, replayed ones among them, EWC's penalty on what mattered
//! evaluate  the target: better?     holdouts of everything learned before, and controls: not worse?
//! keep      published: the adapter, its importance, new sequences into the replay;   discarded: nothing of it
//! ```
//! Who trains is not known here: [`DeepModel`] is a model with an adapter of few values, which upper layers have. The replay is a
//! reservoir for each domain (Vitter 1985), so that every sequence that ever came has the same chance to be in it.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::codec::{Reader, Writer};
use crate::error::{SonaError, SonaErrorKind};
use crate::ewc::{Consolidation, Ewc};
use crate::publish::{Judgement, Paired, PublicationGate};
use crate::trajectory::Trajectory;

/// What a snapshot begins with.
const MAGIC: [u8; 8] = *b"ruvdeep1";
/// The most sequences a snapshot is read of.
const N_SEQUENCES_MAX: usize = 1 << 20;

/// Tokens that are learned together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainingSequence {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The first of them are read and not learned: a prompt.
    pub n_read: usize,
}

/// Values of an adapter, in pieces that stay the same in number and length.
pub type AdapterValues = Vec<Vec<f32>>;

/// Adds to the gradient of values what else they are to make small.
pub type Penalty<'a> = dyn FnMut(&[Vec<f32>], &mut [Vec<f32>]) + 'a;

/// A frozen model with an adapter that is trained.
pub trait DeepModel {
    /// Returns the values of an adapter that changes nothing.
    ///
    /// # Errors
    /// The model cannot be trained.
    fn fresh(&mut self) -> Result<AdapterValues, SonaError>;

    /// Trains from `start` on sequences, all of them `n_epochs` times, and returns the values. Calls `penalty` in each step.
    ///
    /// # Errors
    /// The training fails, or is interrupted.
    fn train(
        &mut self,
        start: &AdapterValues,
        sequences: &[TrainingSequence],
        n_epochs: f64,
        penalty: &mut Penalty<'_>,
    ) -> Result<AdapterValues, SonaError>;

    /// Calls `each` with the gradient of each sequence's mean loss.
    ///
    /// # Errors
    /// It cannot be computed.
    fn gradients(
        &mut self,
        values: &AdapterValues,
        sequences: &[TrainingSequence],
        each: &mut dyn FnMut(&[Vec<f32>]),
    ) -> Result<(), SonaError>;

    /// Returns the mean loss of each sequence, in nats a token.
    ///
    /// # Errors
    /// It cannot be computed.
    fn losses(&mut self, values: &AdapterValues, sequences: &[TrainingSequence]) -> Result<Vec<f64>, SonaError>;
}

/// Options of the deep loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeepOptions {
    /// Passes over the new sequences.
    pub n_epochs: f64,
    /// Consolidation of importance; `None` holds nothing.
    pub consolidation: Option<Consolidation>,
    /// Strength with which values are held that mattered.
    pub strength: f32,
    /// Lessons of before that are learned again, as a share of the new ones.
    pub replay_share: f64,
    /// Lessons of each domain that are kept for that, and as many to be judged by.
    pub n_kept: usize,
    /// Gate that a new adapter has to pass; `None` publishes all.
    pub gate: Option<PublicationGate>,
    /// Decides what is replayed and kept.
    pub seed: u64,
}

impl Default for DeepOptions {
    /// Three passes, EWC++ held with 1000, as much replay as there is new, 16 sequences of each domain, and the gate as it is by default.
    fn default() -> DeepOptions {
        DeepOptions {
            n_epochs: 3.0,
            consolidation: Some(Consolidation::PlusPlus { newest: 0.5 }),
            strength: 1000.0,
            replay_share: 1.0,
            n_kept: 16,
            gate: Some(PublicationGate::default()),
            seed: 1,
        }
    }
}

/// What of one domain is kept.
#[derive(Clone, Debug, Default, PartialEq)]
struct Domain {
    name: String,
    /// To be learned again.
    replay: Vec<TrainingSequence>,
    /// To be judged by, never learned.
    holdout: Vec<TrainingSequence>,
    /// Lessons that came so far, of both kinds.
    n_seen: [u64; 2],
}

/// State of the deep loop: the adapter that is served, what mattered, and what is kept of each domain.
#[derive(Clone, Debug, PartialEq)]
pub struct DeepState {
    values: AdapterValues,
    ewc: Option<Ewc>,
    domains: Vec<Domain>,
    /// Runs so far.
    n_runs: u64,
}

/// Task of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeepTask {
    /// The domain: the tenant's, or what its sequences have in common.
    pub domain: String,
    /// Sequences that are learned.
    pub sequences: Vec<TrainingSequence>,
    /// Holdout to evaluate by.
    pub holdout: Vec<TrainingSequence>,
    /// Text that must not suffer, beside what was learned before.
    pub controls: Vec<(String, Vec<TrainingSequence>)>,
}

/// Options of [`select_sequences`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelectOptions {
    /// Quality of a trajectory, at least.
    pub quality_min: f32,
    /// Tokens of all sequences, at most.
    pub n_tokens_max: usize,
    /// Tokens that each is cut to.
    pub n_tokens_cut: usize,
}

/// Selects trajectories to learn, the best first, until there are enough tokens; every fifth goes to the holdout, the second
/// list. Of equals the newer first.
pub fn select_sequences(
    trajectories: &[Trajectory],
    options: &SelectOptions,
) -> (Vec<TrainingSequence>, Vec<TrainingSequence>) {
    let SelectOptions { quality_min, n_tokens_max, n_tokens_cut } = *options;
    let good = |t: &&Trajectory| t.quality.is_some_and(|quality| quality >= quality_min) && !t.answer.is_empty();
    let mut order: Vec<&Trajectory> = trajectories.iter().filter(good).collect();
    order.sort_by(|a, b| {
        b.quality.partial_cmp(&a.quality).unwrap_or(std::cmp::Ordering::Equal).then(b.unix_ms.cmp(&a.unix_ms))
    });
    let (mut sequences, mut holdout, mut n_tokens) = (Vec::new(), Vec::new(), 0);
    for trajectory in order {
        // The end of the prompt stays, with as much of the answer as there is room for.
        let n_answer = trajectory.answer.len().min(n_tokens_cut.saturating_sub(1));
        let n_prompt = trajectory.prompt.len().min(n_tokens_cut - n_answer.min(n_tokens_cut));
        let n_read = n_prompt.max(1);
        let tail = &trajectory.prompt[trajectory.prompt.len() - n_prompt..];
        let tokens = [tail, &trajectory.answer[..n_answer]].concat();
        if tokens.len() <= n_read || n_tokens + tokens.len() > n_tokens_max {
            continue;
        }
        n_tokens += tokens.len();
        let to = if (sequences.len() + holdout.len()) % 5 == 4 { &mut holdout } else { &mut sequences };
        to.push(TrainingSequence { tokens, n_read });
    }
    (sequences, holdout)
}

impl DeepState {
    /// Begins with an adapter that changes nothing.
    ///
    /// # Errors
    /// The model cannot be trained, or the consolidation is out of range.
    pub fn new(model: &mut dyn DeepModel, options: &DeepOptions) -> Result<DeepState, SonaError> {
        let values = model.fresh()?;
        let n = values.iter().map(Vec::len).sum();
        let ewc = options.consolidation.map(|rule| Ewc::new(n, rule)).transpose()?;
        Ok(DeepState { values, ewc, domains: Vec::new(), n_runs: 0 })
    }

    /// Returns the values of the adapter that is served.
    pub fn values(&self) -> &AdapterValues {
        &self.values
    }

    /// Returns what mattered so far.
    pub fn ewc(&self) -> Option<&Ewc> {
        self.ewc.as_ref()
    }

    /// Trains on a task and judges the result. If it is published, it is served from here on, and what mattered for it is held;
    /// otherwise nothing is left of it. Without a gate there is no judgement.
    ///
    /// # Errors
    /// There is nothing to learn, or the model fails; then nothing changes.
    pub fn run(
        &mut self,
        task: &DeepTask,
        options: &DeepOptions,
        model: &mut dyn DeepModel,
    ) -> Result<Option<Judgement>, SonaError> {
        if task.sequences.is_empty() {
            let line = format!("nothing to learn of '{}'; wait for more good answers", task.domain);
            return Err(SonaError::new(SonaErrorKind::Value, line));
        }
        let mut rng = ChaCha8Rng::seed_from_u64(options.seed);
        rng.set_stream(self.n_runs + 1);
        let mut sequences = task.sequences.clone();
        sequences
            .extend(self.replayed(&mut rng, (task.sequences.len() as f64 * options.replay_share).round() as usize));
        let values = {
            let mut penalty = |values: &[Vec<f32>], gradient: &mut [Vec<f32>]| {
                if let Some(ewc) = &self.ewc {
                    let (values, gradient) =
                        (values.iter().map(Vec::as_slice), gradient.iter_mut().map(Vec::as_mut_slice));
                    ewc.add_gradient(values, options.strength, gradient);
                }
            };
            // Replay makes a pass longer, not more of it.
            model.train(&self.values, &sequences, options.n_epochs, &mut penalty)?
        };
        let judgement = options.gate.map(|gate| self.judge(&values, task, &gate, model)).transpose()?;
        self.n_runs += 1;
        if judgement.as_ref().is_some_and(|judgement| !judgement.is_published) {
            return Ok(judgement);
        }
        if let Some(ewc) = &mut self.ewc {
            let mut next = ewc.clone();
            model.gradients(&values, &task.sequences, &mut |gradient| {
                next.observe(gradient.iter().map(Vec::as_slice))
            })?;
            next.consolidate(values.iter().map(Vec::as_slice));
            *ewc = next;
        }
        self.values = values;
        self.keep(task, options.n_kept, &mut rng);
        Ok(judgement)
    }

    /// Compares with what is served now: the target, the holdout of every other domain, the controls.
    fn judge(
        &self,
        values: &AdapterValues,
        task: &DeepTask,
        gate: &PublicationGate,
        model: &mut dyn DeepModel,
    ) -> Result<Judgement, SonaError> {
        let mut paired = |name: &str, sequences: &[TrainingSequence]| -> Result<Paired, SonaError> {
            let (before, after) = (model.losses(&self.values, sequences)?, model.losses(values, sequences)?);
            Ok(Paired { name: name.to_owned(), before, after })
        };
        let target = paired(&task.domain, &task.holdout)?;
        let mut controls = Vec::new();
        for domain in self.domains.iter().filter(|domain| domain.name != task.domain) {
            controls.push(paired(&domain.name, &domain.holdout)?);
        }
        for (name, sequences) in &task.controls {
            controls.push(paired(name, sequences)?);
        }
        gate.judge(&target, &controls)
    }

    /// Draws sequences of before, from every domain as many as from another.
    fn replayed(&self, rng: &mut ChaCha8Rng, n: usize) -> Vec<TrainingSequence> {
        let mut left: Vec<Vec<&TrainingSequence>> =
            self.domains.iter().map(|domain| domain.replay.iter().collect()).collect();
        let mut picked = Vec::new();
        while picked.len() < n && left.iter().any(|sequences| !sequences.is_empty()) {
            for sequences in left.iter_mut().filter(|sequences| !sequences.is_empty()) {
                if picked.len() < n {
                    picked.push(sequences.swap_remove(below(rng, sequences.len() as u64) as usize).clone());
                }
            }
        }
        picked
    }

    /// Puts a task's sequences into the reservoirs of its domain.
    fn keep(&mut self, task: &DeepTask, n_kept: usize, rng: &mut ChaCha8Rng) {
        let at = self.domains.iter().position(|domain| domain.name == task.domain).unwrap_or_else(|| {
            self.domains.push(Domain { name: task.domain.clone(), ..Domain::default() });
            self.domains.len() - 1
        });
        let Domain { replay, holdout, n_seen, .. } = &mut self.domains[at];
        let [n_learned, n_held] = n_seen;
        for (to, from, n_seen) in [(replay, &task.sequences, n_learned), (holdout, &task.holdout, n_held)] {
            for sequence in from {
                *n_seen += 1;
                if to.len() < n_kept {
                    to.push(sequence.clone());
                } else if let Some(place) = to.get_mut(below(rng, *n_seen) as usize) {
                    *place = sequence.clone();
                }
            }
        }
    }

    /// Returns everything as bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut to = Writer::of(MAGIC);
        to.u64(self.n_runs).count(self.values.len());
        self.values.iter().for_each(|values| _ = to.f32s(values));
        to.part(&self.ewc.as_ref().map(Ewc::snapshot).unwrap_or_default()).count(self.domains.len());
        for domain in &self.domains {
            to.text(&domain.name);
            domain.n_seen.iter().for_each(|n| _ = to.u64(*n));
            for sequences in [&domain.replay, &domain.holdout] {
                to.count(sequences.len());
                sequences.iter().for_each(|sequence| _ = to.count(sequence.n_read).u32s(&sequence.tokens));
            }
        }
        to.take()
    }

    /// Reads what [`DeepState::snapshot`] gave.
    ///
    /// # Errors
    /// The bytes are damaged, or of another version.
    pub fn restore(bytes: &[u8]) -> Result<DeepState, SonaError> {
        let mut from = Reader::of(bytes, MAGIC, "state of the deep loop")?;
        let n_runs = from.u64()?;
        let values = (0..from.count(4)?).map(|_| from.f32s()).collect::<Result<AdapterValues, _>>()?;
        let ewc = from.part()?;
        let ewc = if ewc.is_empty() { None } else { Some(Ewc::restore(ewc)?) };
        let n: usize = values.iter().map(Vec::len).sum();
        if ewc.as_ref().is_some_and(|ewc| ewc.len() != n) {
            return Err(from.invalid(format_args!("{n} values, and others are held")));
        }
        let mut domains = Vec::new();
        for _ in 0..from.count(28)? {
            let (name, n_seen) = (from.text()?, [from.u64()?, from.u64()?]);
            let mut sequences = || -> Result<Vec<TrainingSequence>, SonaError> {
                let n = from.count(8)?.min(N_SEQUENCES_MAX);
                (0..n).map(|_| Ok(TrainingSequence { n_read: from.u32()? as usize, tokens: from.u32s()? })).collect()
            };
            domains.push(Domain { name, replay: sequences()?, holdout: sequences()?, n_seen });
        }
        from.end()?;
        Ok(DeepState { values, ewc, domains, n_runs })
    }
}

/// Draws a number below `n`: the high half of a product is fair to within n / 2⁶⁴.
fn below(rng: &mut ChaCha8Rng, n: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(n)) >> 64) as u64
}

#[cfg(test)]
mod tests;
