//! The instant loop: what a request learns while it is answered, and what is taken in when it ends.
//!
//! ```text
//! a token to come:     h, logits  →  key, the nearest entries, λ      logits += what memory adds        (Notes::adjust)
//! the token that came: gate sample, credit of entries; of some together the gradient for MicroLoRA     (Notes::accept)
//! the end:             steps of MicroLoRA (one for 32 tokens), of the gate; the request's keys join the memory
//!                                                                                               (Learned::take_in)
//! between requests:    the gate rehearses on calibration text                                  (Learned::rehearse)
//! ```
//! While a request runs nothing of [`Learned`] changes, so many may read one; what a request found out is in its [`Notes`].
//! Everything is a function of the inputs in their order: the same calls give the same bytes.

mod notes;

use std::sync::Arc;

use ruvllm_kernels::distance;
use ruvllm_lora::micro::{Gradient, MicroLora, Rule, UpdateOptions};

use crate::background::Consolidate;
use crate::calibration::Calibration;
use crate::codec::{Reader, Writer};
use crate::episodes::{Episodes, Verdict};
use crate::error::{SonaError, SonaErrorKind};
use crate::ewc::{Consolidation, Ewc};
use crate::gate::{Gate, Sample, Trail};
use crate::memory::{Context, Hit, Memory, MemoryOptions, Scratch};
use crate::names::Names;
use crate::recall::Recall;
use crate::trust::Trust;
use crate::whiten::Key;
use ruvllm_kernels::Compute;

pub use notes::Notes;
pub(crate) use notes::Stamp;

/// What a snapshot begins with.
const MAGIC: [u8; 8] = *b"ruvlear5";
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

/// Options of learning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearnOptions {
    /// Retrieval memory; `None` switches it off.
    pub memory: Option<MemoryOptions>,
    /// MicroLoRA; `None` switches it off.
    pub micro: Option<MicroOptions>,
    /// Entries count by `exp(similarity / temperature)`: see [`memory`](crate::memory).
    pub temperature: f32,
}

impl Default for LearnOptions {
    fn default() -> LearnOptions {
        LearnOptions { memory: Some(MemoryOptions::default()), micro: Some(MicroOptions::default()), temperature: 0.05 }
    }
}

/// Options of the MicroLoRA's learning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MicroOptions {
    /// Its rank.
    pub rank: usize,
    /// The learning rate of RMSprop.
    pub rate: f32,
    /// Tokens a step is made of.
    pub n_tokens: usize,
    /// Likeliest tokens whose rows of the head a gradient reads, beside some that stand for the others.
    pub n_likeliest: usize,
    /// Whether it sees hidden states less their mean on calibration text.
    pub is_centred: bool,
}

impl Default for MicroOptions {
    fn default() -> MicroOptions {
        MicroOptions { rank: 4, rate: 1e-3, n_tokens: 32, n_likeliest: 128, is_centred: true }
    }
}

/// Learned state: of one model and one tenant.
#[derive(Clone, Debug)]
pub struct Learned {
    options: LearnOptions,
    calibration: Arc<Calibration>,
    memory: Memory,
    episodes: Episodes,
    gate: Gate,
    /// What learns.
    micro: Option<Arc<MicroLora>>,
    /// What it was merged into.
    base: Option<Base>,
    /// Both: what changes final hidden states.
    served: Option<Arc<MicroLora>>,
    /// How much of that a request begins with.
    trust: Trust,
    compute: Compute,
    n_tokens: u64,
    /// Which state this is, for notes to say what they read; no part of what was learned.
    version: u64,
    /// Positions of the calibration text that are to be rehearsed, and where to go on.
    n_owed: u64,
    cursor: usize,
    trail: Trail,
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
    scratch: Scratch,
    hits: Vec<Hit>,
    recall: Recall,
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
            memory: Memory::new(n_key, options.memory.unwrap_or_default())?,
            episodes: Episodes::new(n_key),
            served: micro.clone(),
            trust: Trust::default(),
            micro,
            base: None,
            options,
            calibration,
            gate: Gate::default(),
            compute: compute.into(),
            n_tokens: 0,
            version: 0,
            n_owed: 0,
            cursor: 0,
            trail: Trail::default(),
            context: Context::default(),
        })
    }

    /// Returns the memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the corrections that were told.
    pub fn episodes(&self) -> &Episodes {
        &self.episodes
    }

    /// Remembers a correction: the names of the question, and for each token of the answer the final hidden state that it
    /// follows, `[n, n_embd]`; the first of them is that of the prompt's last token.
    ///
    /// # Errors
    /// As [`Episodes::tell`].
    ///
    /// # Panics
    /// If the states are of another width.
    pub fn tell(&mut self, names: &Names, hidden: &[f32], answer: &[u32], verdict: Verdict) -> Result<(), SonaError> {
        let answer = self.answer_keys(hidden, answer);
        self.tell_keys(names, &answer, verdict)
    }

    /// Returns an answer's tokens, each with the key of the state that it follows.
    pub(crate) fn answer_keys(&self, hidden: &[f32], answer: &[u32]) -> Vec<(Key, u32)> {
        let whitener = self.calibration.whitener();
        let (n, n_embd) = (hidden.len(), whitener.n_embd());
        assert_eq!(n, answer.len() * n_embd, "{n} values for {} states of {n_embd}", answer.len());
        let keys = hidden.chunks_exact(n_embd).map(|hidden| whitener.key(hidden, self.compute.isa));
        keys.zip(answer.iter().copied()).collect()
    }

    /// As [`Learned::tell`], with the keys.
    pub(crate) fn tell_keys(
        &mut self,
        names: &Names,
        answer: &[(Key, u32)],
        verdict: Verdict,
    ) -> Result<(), SonaError> {
        self.episodes.tell(names, answer, verdict, distance::pick(self.compute.isa))
    }

    /// Remembers the answer that these notes were taken of as wrong: it is taken away where the same is asked again. `names`
    /// are those of the question. Without a memory no keys were noted, and nothing is remembered.
    ///
    /// # Errors
    /// As [`Episodes::tell`].
    pub fn reject(&mut self, names: &Names, notes: &Notes) -> Result<(), SonaError> {
        let answer = self.noted_keys(notes);
        if answer.is_empty() { Ok(()) } else { self.tell_keys(names, &answer, Verdict::Wrong) }
    }

    /// Returns the tokens that were noted with their keys; none without a memory.
    pub(crate) fn noted_keys(&self, notes: &Notes) -> Vec<(Key, u32)> {
        let noted = notes.notes.iter().filter(|_| self.options.memory.is_some());
        noted.map(|note| (note.key.clone(), note.token)).collect()
    }

    /// Returns the gate.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Returns what changes final hidden states, all of it; `None` if it is switched off. A request has as much of it as helps:
    /// [`Notes::micro`].
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

    /// Returns which state this is: whoever keeps a history gives each a number, and notes say which they read.
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
    /// An option is out of range, or the memory holds more than it may from now on.
    pub fn configure(&mut self, options: LearnOptions) -> Result<(), SonaError> {
        let fresh = Learned::new(Arc::clone(&self.calibration), options, self.compute.clone())?;
        self.memory.configure(*fresh.memory.options())?;
        let shape = |micro: &MicroOptions| (micro.rank, micro.is_centred);
        if self.options.micro.as_ref().map(shape) != options.micro.as_ref().map(shape) {
            (self.micro, self.base) = (fresh.micro, None);
        }
        self.options = options;
        self.serve()
    }

    /// Takes the steps that the notes of a running request are ready for: one of MicroLoRA for each complete piece of
    /// [`MicroOptions::n_tokens`] tokens, and the gate's. For text whose worth is known beforehand, such as a document that
    /// is to be learned; answers wait for their quality.
    pub fn step(&mut self, notes: &mut Notes, quality: f32) {
        let quality = quality.clamp(0.0, 1.0);
        let n_complete = notes.gradients.len() - usize::from(notes.n_in_last > 0);
        self.take_steps(&mut notes.gradients[..n_complete], quality);
        notes.gradients.drain(..n_complete);
        if quality > 0.0 {
            notes.samples.drain(..).for_each(|sample| self.gate.learn(&sample, quality));
        }
        notes.samples.clear();
        // Up to there its states change as they did.
        if n_complete > 0 && !notes.stamps.is_empty() {
            notes.follow(self);
        }
    }

    /// Takes in what an ended request found out. `quality`, 0 to 1, scales the steps and what its entries are worth;
    /// nothing is learned from an answer of quality 0.
    ///
    /// Cost: a copy of the keys and some microseconds a step; a full memory looks for what to let go once in a while.
    pub fn take_in(&mut self, mut notes: Notes, quality: f32) {
        let quality = quality.clamp(0.0, 1.0);
        if quality == 0.0 {
            return;
        }
        self.merge_gradients(&mut notes);
        self.step(&mut notes, quality);
        for &(index, token, gain) in &notes.credits {
            // Another request may have put another entry there.
            if (index as usize) < self.memory.len() && self.memory.token(index) == token {
                self.memory.credit(index, quality * gain);
            }
        }
        self.trust.take_in(&notes.evidence, quality);
        self.n_tokens += notes.notes.len() as u64;
        self.n_owed += notes.notes.len() as u64;
        if self.options.memory.is_some() {
            notes
                .notes
                .iter()
                .for_each(|note| self.memory.push(&note.key, note.context, note.token, quality * note.worth));
        }
    }

    /// Makes so few gradients of many that the steps along them are not too many. Tokens that make no whole piece count where there
    /// are few pieces.
    fn merge_gradients(&self, notes: &mut Notes) {
        let (n, gradients) = (notes.gradients.len(), &mut notes.gradients);
        if std::mem::take(&mut notes.n_in_last) > 0 && n > STEPS_AT_END_MAX {
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

    /// Rehearses the gate on calibration text: for every four tokens learned one that memory should not change. At most
    /// `n_max` of those that are due; returns how many are left. Each costs a search: this is work for between requests.
    pub fn rehearse(&mut self, n_max: usize) -> usize {
        let n_due = self.n_due();
        if self.calibration.is_empty() || self.memory.is_empty() {
            self.n_owed = 0;
            return 0;
        }
        let n = n_due.min(n_max);
        // A team is for what a request waits for.
        let (alone, calibration) = (Compute::from(self.compute.isa), Arc::clone(&self.calibration));
        let Search { mut scratch, mut hits, mut recall } = Search::default();
        for _ in 0..n {
            let position = &calibration.positions()[self.cursor % calibration.len()];
            if position.starts {
                (self.trail, self.context) = (Trail::default(), Context::default());
            }
            self.memory.search((&position.key, self.context), &alone, &mut scratch, &mut hits);
            let log_p = |token: u32| position.confidence(token).log_p_recalled;
            // Calibration text is no tenant's, so nothing of it is in the memory.
            recall.read((&self.memory, &hits), self.options.temperature, log_p, |_| false);
            let recalled = recall.classes().first().map_or(u32::MAX, |class| class.0);
            let features = self.trail.features(&recall, &position.confidence(recalled));
            let (p_model, p_memory) = (position.log_p.exp(), recall.probability(position.token));
            self.gate.learn(&Sample { features, p_model, p_memory }, 1.0);
            self.trail.go_on(recall.nearest(), p_model, p_memory);
            self.context.push(position.token);
            self.cursor = (self.cursor + 1) % calibration.len();
        }
        self.n_owed -= n as u64 * LEARNED_PER_REHEARSED;
        n_due - n
    }

    /// Returns everything that was learned as bytes; the calibration, which belongs to the model, is not among them.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = Writer::of(MAGIC);
        for value in [self.n_tokens, self.n_owed, self.cursor as u64, self.context.bits()] {
            out.u64(value);
        }
        out.plain_f32s(&self.trail.values());
        out.plain_f32s(&[self.trust.value()]);
        out.part(&self.memory.snapshot());
        out.part(&self.episodes.snapshot());
        out.part(&self.gate.snapshot());
        out.part(&self.micro.as_ref().map(|micro| micro.snapshot()).unwrap_or_default());
        out.part(&self.base.as_ref().map(|base| base.lora.snapshot()).unwrap_or_default());
        out.part(&self.base.as_ref().map(|base| base.ewc.snapshot()).unwrap_or_default());
        out.take()
    }

    /// Reads what [`Learned::snapshot`] gave: it goes on to the bit as that would have.
    ///
    /// # Errors
    /// The bytes are damaged, or were learned with another model or other options.
    pub fn restore(
        bytes: &[u8],
        calibration: Arc<Calibration>,
        options: LearnOptions,
        compute: impl Into<Compute>,
    ) -> Result<Learned, SonaError> {
        let mut learned = Learned::new(calibration, options, compute)?;
        let mut from = Reader::of(bytes, MAGIC, "learned state")?;
        (learned.n_tokens, learned.n_owed) = (from.u64()?, from.u64()?);
        learned.cursor = from.number(learned.calibration.len())?;
        learned.context = Context::from_bits(from.u64()?);
        let trail = from.plain_f32s(2)?;
        learned.trail = Trail::from_values([trail[0], trail[1]]);
        learned.trust = Trust::from_value(from.plain_f32s(1)?[0]);
        let memory = Memory::restore(from.part()?)?;
        let episodes = Episodes::restore(from.part()?)?;
        let gate = Gate::restore(from.part()?)?;
        let micro = from.part()?;
        let micro = match micro.is_empty() {
            true => None,
            false => Some(Arc::new(completed(&learned.calibration, MicroLora::restore(micro)?)?)),
        };
        let (lora, ewc) = (from.part()?, from.part()?);
        if !lora.is_empty() {
            learned.base = Some(Base { lora: MicroLora::restore(lora)?.within(MOVES_MAX)?, ewc: Ewc::restore(ewc)? });
        }
        from.end()?;
        let shape = |micro: &Option<Arc<MicroLora>>| {
            micro.as_ref().map(|micro| (micro.n_embd(), micro.rank(), micro.values().count()))
        };
        let fits = memory.n_key() == learned.memory.n_key() && memory.options() == learned.memory.options();
        let fits = fits && episodes.n_key() == memory.n_key();
        if !fits || shape(&micro) != shape(&learned.micro) {
            let line = "what was learned is of another model or of other options; give those it was learned with";
            return Err(SonaError::new(SonaErrorKind::Shape, line));
        }
        (learned.memory, learned.episodes, learned.gate, learned.micro) = (memory, episodes, gate, micro);
        learned.serve()?;
        Ok(learned)
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
