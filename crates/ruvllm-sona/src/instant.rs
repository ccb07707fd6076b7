//! The instant loop: what a request learns while it is answered, and what is taken in when it ends.
//!
//! ```text
//! a token to come:     h, logits  →  key, the nearest entries, λ      logits += what memory adds        (Notes::adjust)
//! the token that came: gate sample, credit of entries, gradient through the 128 likeliest tokens       (Notes::accept)
//! the end:             steps of MicroLoRA (one for 32 tokens), of the gate; the request's keys join the memory
//!                                                                                               (Learned::take_in)
//! between requests:    the gate rehearses on calibration text                                  (Learned::rehearse)
//! ```
//! While a request runs nothing of [`Learned`] changes, so many may read one; what a request found out is in its [`Notes`].
//! Everything is a function of the inputs in their order: the same calls give the same bytes.

use std::sync::Arc;

use ruvllm_kernels::{Isa, distance, softmax};
use ruvllm_lora::micro::{Gradient, HeadRows, MicroLora, Rule, UpdateOptions};

use crate::background::Consolidate;
use crate::calibration::Calibration;
use crate::codec::{Reader, Writer};
use crate::episodes::{Episodes, Opened, Verdict};
use crate::error::{SonaError, SonaErrorKind};
use crate::ewc::{Consolidation, Ewc};
use crate::gate::{Confidence, Gate, Sample, Trail};
use crate::memory::{Context, Hit, Memory, MemoryOptions, Scratch};
use crate::names::Names;
use crate::recall::Recall;
use crate::top::Top;
use crate::trust::{Evidence, Trust};
use crate::whiten::Key;

/// What a snapshot begins with.
const MAGIC: [u8; 8] = *b"ruvlear5";
/// Below this share a row of logits stays untouched.
const SHARE_MIN: f32 = 1e-4;
/// The largest share: what the model thinks possible never becomes impossible.
const SHARE_MAX: f32 = 0.999;
/// The most that a badly predicted token makes an entry worth, in nats.
const WORTH_MAX: f32 = 8.0;
/// What an entry is worth whose prediction nobody knows.
const WORTH_UNKNOWN: f32 = 2.0;
/// The most steps of the MicroLoRA at the end of a request. All of its gradients are those of the state that it began with:
/// many steps along the same go too far (a document of 2,500 tokens learned in 78 of them nearly doubled the loss of others).
const STEPS_AT_END_MAX: usize = 4;
/// Tokens that stand for all that are less likely than the likeliest, when it is asked what MicroLoRA gains.
const N_OTHERS: usize = 64;
/// Tokens learned for one that is rehearsed.
const LEARNED_PER_REHEARSED: u64 = 4;

/// What learns and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearnOptions {
    /// Retrieval memory; `None` switches it off.
    pub memory: Option<MemoryOptions>,
    /// MicroLoRA; `None` switches it off.
    pub micro: Option<MicroOptions>,
    /// Shares of entries are `softmax(similarity / temperature)`.
    pub temperature: f32,
}

impl Default for LearnOptions {
    fn default() -> LearnOptions {
        LearnOptions { memory: Some(MemoryOptions::default()), micro: Some(MicroOptions::default()), temperature: 0.03 }
    }
}

/// How the MicroLoRA learns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MicroOptions {
    /// Its rank.
    pub rank: usize,
    /// The learning rate of RMSprop.
    pub rate: f32,
    /// Tokens a step is made of.
    pub n_tokens: usize,
    /// Likeliest tokens whose rows of the head a gradient reads.
    pub n_likeliest: usize,
    /// Whether it sees hidden states less their mean on calibration text.
    pub is_centred: bool,
    /// Draws what it begins with.
    pub seed: u64,
}

impl Default for MicroOptions {
    fn default() -> MicroOptions {
        MicroOptions { rank: 2, rate: 1e-3, n_tokens: 32, n_likeliest: 128, is_centred: true, seed: 1 }
    }
}

/// What was learned so far: of one model and one tenant.
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
    isa: Isa,
    n_tokens: u64,
    /// Which state this is, for notes to say what they read; no part of what was learned.
    version: u64,
    /// Positions of the calibration text that are to be rehearsed, and where to go on.
    n_owed: u64,
    cursor: usize,
    trail: Trail,
    context: Context,
    search: Search,
}

/// What MicroLoRA is merged into, and which of its values mattered.
#[derive(Clone, Debug)]
struct Base {
    lora: MicroLora,
    ewc: Ewc,
}

/// What a search works in.
#[derive(Clone, Debug, Default)]
struct Search {
    scratch: Scratch,
    hits: Vec<Hit>,
    recall: Recall,
}

/// A token whose successor is not known yet.
#[derive(Clone, Debug)]
struct Prediction {
    key: Key,
    hidden: Vec<f32>,
    recall: Recall,
    features: crate::gate::Features,
    lambda: f32,
    /// Likeliest tokens with their probabilities, and some that stand for all others; all add up to 1.
    likeliest: Vec<(u32, f32)>,
}

/// A key that will be an entry.
#[derive(Clone, Debug)]
struct Note {
    key: Key,
    context: Context,
    token: u32,
    worth: f32,
}

/// From a token on, a request read this version of what was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Tokens heard before.
    pub n_heard: usize,
    /// The version.
    pub version: u64,
}

/// What one request found out. Nothing of it is known to others before [`Learned::take_in`].
#[derive(Debug, Default)]
pub struct Notes {
    /// What changes the final hidden states of this request, once it has begun, and how much of it: as far as it helps.
    whole: Option<Arc<MicroLora>>,
    strength: f32,
    evidence: Evidence,
    /// That much of it; `None` if it is next to nothing.
    micro: Option<Arc<MicroLora>>,
    /// What of it learns.
    learning: Option<Arc<MicroLora>>,
    /// From which token on it read which version of what was learned.
    stamps: Vec<Stamp>,
    /// Tokens heard so far.
    n_heard: usize,
    /// What was asked, until the first token of the answer; then what was told of it.
    asked: Option<Names>,
    opened: Opened,
    trail: Trail,
    context: Context,
    prediction: Option<Prediction>,
    notes: Vec<Note>,
    samples: Vec<Sample>,
    /// Entries, the tokens they had, and what they gained.
    credits: Vec<(u32, u32, f32)>,
    gradients: Vec<Gradient>,
    /// Tokens in the last gradient, which gets more; 0: it is complete.
    n_in_last: usize,
    scratch: NotesScratch,
}

/// What is used again for every token.
#[derive(Debug, Default)]
struct NotesScratch {
    search: Search,
    top: Top,
    gradient: Option<Gradient>,
}

impl Learned {
    /// Begins to learn.
    ///
    /// # Errors
    /// An option is out of range.
    pub fn new(calibration: Arc<Calibration>, options: LearnOptions, isa: Isa) -> Result<Learned, SonaError> {
        if !(options.temperature.is_finite() && options.temperature > 0.0) {
            let line = format!("a temperature of {}; choose a positive number, 0.03 or so", options.temperature);
            return Err(SonaError::new(SonaErrorKind::Value, line));
        }
        let (n_embd, n_key) = (calibration.whitener().n_embd(), calibration.whitener().n_key());
        let micro = options.micro.map(|micro| {
            if micro.n_tokens == 0 || micro.n_likeliest == 0 {
                let line = "a step of 0 tokens or through 0 of them; choose 32 and 128 or so";
                return Err(SonaError::new(SonaErrorKind::Value, line));
            }
            let plain = MicroLora::new(n_embd, micro.rank, 1.0, micro.seed)?;
            Ok(Arc::new(if micro.is_centred { plain.centred(calibration.whitener().mean())? } else { plain }))
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
            isa,
            n_tokens: 0,
            version: 0,
            n_owed: 0,
            cursor: 0,
            trail: Trail::default(),
            context: Context::default(),
            search: Search::default(),
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
        let keys = hidden.chunks_exact(n_embd).map(|hidden| whitener.key(hidden, self.isa));
        keys.zip(answer.iter().copied()).collect()
    }

    /// As [`Learned::tell`], with the keys.
    pub(crate) fn tell_keys(
        &mut self,
        names: &Names,
        answer: &[(Key, u32)],
        verdict: Verdict,
    ) -> Result<(), SonaError> {
        self.episodes.tell(names, answer, verdict, distance::pick(self.isa))
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
        let n_values = 2 * micro.rank() * micro.n_embd();
        let rule = Consolidation::PlusPlus { newest: how.newest };
        let mut base = match self.base.clone() {
            Some(base) => base,
            None => Base { lora: micro.empty_base(how.rank)?, ewc: Ewc::new(n_values, rule)? },
        };
        if base.ewc.len() != n_values {
            base.ewc = Ewc::new(n_values, rule)?;
        }
        let (a, b) = micro.factors_mut();
        base.ewc.draw([a, b].into_iter(), how.strength);
        base.lora.absorb(how.keep, &micro, how.share)?;
        micro.fade(1.0 - how.share);
        let (a, b) = micro.factors();
        base.ewc.consolidate([a, b].into_iter());
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

    /// Returns the instruction set that it computes with.
    pub(crate) fn isa(&self) -> Isa {
        self.isa
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
        let fresh = Learned::new(Arc::clone(&self.calibration), options, self.isa)?;
        self.memory.configure(*fresh.memory.options())?;
        let shape = |micro: &MicroOptions| (micro.rank, micro.is_centred, micro.seed);
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
        self.take_steps(notes.gradients.drain(..n_complete), quality);
        if quality > 0.0 {
            notes.samples.drain(..).for_each(|sample| self.gate.learn(&sample, quality));
        }
        notes.samples.clear();
        if !notes.stamps.is_empty() {
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
        notes.n_in_last = 0;
        self.merge_gradients(&mut notes.gradients);
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

    /// Makes so few gradients of many that the steps along them are not too many.
    fn merge_gradients(&self, gradients: &mut Vec<Gradient>) {
        let (Some(micro), true) = (&self.micro, gradients.len() > STEPS_AT_END_MAX) else { return };
        let n_each = gradients.len().div_ceil(STEPS_AT_END_MAX);
        let merge = |gradients: &[Gradient]| {
            let mut mean = micro.gradient_buffer();
            gradients.iter().for_each(|gradient| mean.add(gradient, 1.0 / gradients.len() as f32));
            mean
        };
        *gradients = gradients.chunks(n_each).map(merge).collect();
    }

    fn take_steps(&mut self, gradients: impl Iterator<Item = Gradient>, quality: f32) {
        let (Some(micro), Some(options)) = (&mut self.micro, &self.options.micro) else { return };
        let rule = Rule::RmsProp { decay: 0.95 };
        let update = UpdateOptions { rule, rate: options.rate * quality, clip: 1.0, decay: 0.0 };
        for mut gradient in gradients.filter(|_| quality > 0.0) {
            if let Some(base) = self.base.as_mut().filter(|base| base.ewc.len() == 2 * gradient.a().len()) {
                base.ewc.observe([gradient.a(), gradient.b()].into_iter());
            }
            Arc::make_mut(micro).update(&mut gradient, &update);
        }
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
        let (kernels, calibration) = (distance::pick(self.isa), Arc::clone(&self.calibration));
        for _ in 0..n {
            let position = &calibration.positions()[self.cursor % calibration.len()];
            if position.starts {
                (self.trail, self.context) = (Trail::default(), Context::default());
            }
            let Search { scratch, hits, recall } = &mut self.search;
            self.memory.search((&position.key, self.context), kernels, scratch, hits);
            recall.read(&self.memory, hits, self.options.temperature);
            let recalled = recall.classes().first().map_or(u32::MAX, |class| class.0);
            let features = self.trail.features(recall, &position.confidence(recalled));
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
        isa: Isa,
    ) -> Result<Learned, SonaError> {
        let mut learned = Learned::new(calibration, options, isa)?;
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
        let micro = if micro.is_empty() { None } else { Some(Arc::new(MicroLora::restore(micro)?)) };
        let (lora, ewc) = (from.part()?, from.part()?);
        if !lora.is_empty() {
            learned.base = Some(Base { lora: MicroLora::restore(lora)?, ewc: Ewc::restore(ewc)? });
        }
        from.end()?;
        let shape = |micro: &Option<Arc<MicroLora>>| micro.as_ref().map(|micro| (micro.n_embd(), micro.rank()));
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

impl Notes {
    /// Begins to read, if that has not happened: from here on the request has one MicroLoRA, whatever others learn, and its
    /// gradients are of that one. [`Notes::adjust`] and [`Notes::remember`] begin by themselves.
    pub fn begin(&mut self, learned: &Learned) {
        if self.stamps.is_empty() {
            self.follow(learned);
        }
        if self.stamps.last().is_none_or(|stamp| stamp.version != learned.version) {
            self.stamps.push(Stamp { n_heard: self.n_heard, version: learned.version });
        }
    }

    /// Has what was learned by now, as much of it as helps.
    fn follow(&mut self, learned: &Learned) {
        self.whole = learned.served.clone().filter(|micro| micro.n_updates() > 0);
        self.learning.clone_from(&learned.micro);
        self.weigh(learned);
    }

    /// Decides how much of MicroLoRA helps.
    fn weigh(&mut self, learned: &Learned) {
        self.strength = learned.trust.strength(&self.evidence);
        self.micro = match &self.whole {
            Some(whole) if self.strength > 0.0 => Some(Arc::new(whole.weakened(self.strength))),
            _ => None,
        };
    }

    /// Returns what changes final hidden states of this request, for [`Notes::n_until_step`] tokens; `None` before it has begun, or
    /// without one.
    pub fn micro(&self) -> Option<&Arc<MicroLora>> {
        self.micro.as_ref()
    }

    /// Returns which versions were read, from which tokens on.
    pub(crate) fn stamps(&self) -> &[Stamp] {
        &self.stamps
    }

    /// Returns how many tokens were heard: read, remembered or accepted.
    pub fn n_heard(&self) -> usize {
        self.n_heard
    }

    /// Hears what is asked: the state of the next [`Notes::adjust`] is that of the prompt's last token, and what was told of
    /// this question is said again.
    pub fn ask(&mut self, names: Names) {
        self.asked = Some(names);
    }

    /// Changes the logits of a token to come: `[n_vocab]`, made of a final hidden state, `[n_embd]`, as it was before any
    /// MicroLoRA. A row that memory has nothing to say of keeps its bits. Returns the share of memory.
    ///
    /// Cost: a search, a pass over the row for its sum, and one for the likeliest tokens if there is a MicroLoRA.
    ///
    /// # Panics
    /// If the state has another width.
    pub fn adjust(&mut self, learned: &Learned, hidden: &[f32], logits: &mut [f32]) -> f32 {
        self.begin(learned);
        let whitener = learned.calibration.whitener();
        let mut prediction = Prediction {
            key: Key::default(),
            hidden: Vec::new(),
            recall: Recall::default(),
            features: Default::default(),
            lambda: 0.0,
            likeliest: Vec::new(),
        };
        let mut log_sum = None;
        if let Some(options) = &learned.options.micro {
            prediction.hidden = hidden.to_vec();
            let of_row = softmax::pick(learned.isa).log_sum_exp(logits) as f32;
            let drawn = self.n_heard;
            prediction.likeliest = likeliest(&mut self.scratch.top, (logits, of_row), options.n_likeliest, drawn);
            log_sum = Some(of_row);
        }
        let asked = self.asked.take();
        let is_told = !learned.episodes.is_empty() && (asked.is_some() || !self.opened.is_empty());
        if learned.options.memory.is_some() || is_told {
            prediction.key = whitener.key(hidden, learned.isa);
        }
        if learned.options.memory.is_some() {
            self.recall(learned, &mut prediction, (logits, log_sum));
        }
        if is_told {
            let kernels = distance::pick(learned.isa);
            if let Some(names) = asked {
                self.opened = learned.episodes.open(&prediction.key, &names, kernels);
            }
            let at = (&prediction.key, self.context);
            learned.episodes.adjust(self.opened, at, kernels, softmax::pick(learned.isa), logits);
        }
        let lambda = prediction.lambda;
        self.prediction = Some(prediction);
        lambda
    }

    /// Searches, decides on a share and mixes. The row's sum is computed here if it is not known and something was found.
    fn recall(&mut self, learned: &Learned, prediction: &mut Prediction, (logits, log_sum): (&mut [f32], Option<f32>)) {
        let (kernels, softmax) = (distance::pick(learned.isa), softmax::pick(learned.isa));
        let Search { scratch, hits, .. } = &mut self.scratch.search;
        learned.memory.search((&prediction.key, self.context), kernels, scratch, hits);
        let recall = &mut prediction.recall;
        recall.read(&learned.memory, hits, learned.options.temperature);
        let Some(&(recalled, _)) = recall.classes().first() else { return };
        let log_sum = log_sum.unwrap_or_else(|| softmax.log_sum_exp(logits) as f32);
        let likeliest = softmax.argmax(logits);
        let log_p = |token: usize| logits.get(token).map_or(f32::NEG_INFINITY, |logit| logit - log_sum);
        let model = Confidence {
            log_p_max: log_p(likeliest),
            likeliest: likeliest as u32,
            log_p_recalled: log_p(recalled as usize),
        };
        prediction.features = self.trail.features(recall, &model);
        let lambda = learned.gate.share(&prediction.features).min(SHARE_MAX);
        if lambda >= SHARE_MIN && log_sum.is_finite() {
            prediction.lambda = lambda;
            recall.mix(lambda, log_sum, logits);
        }
    }

    /// Hears which token came, and what the model itself had said of it: its log probability in the row before
    /// [`Notes::adjust`]. Where nothing was adjusted since the last token, it is only read.
    pub fn accept(&mut self, learned: &Learned, token: u32, log_p: f32, head: &dyn HeadRows) {
        self.accept_as(learned, (token, token), log_p, head);
    }

    /// As [`Notes::accept`], but another token, the second, is what will have followed where that is learned. With tokens drawn
    /// anew nothing is left to be learned: the control that shows what a gain comes of.
    pub fn accept_as(&mut self, learned: &Learned, (token, label): (u32, u32), log_p: f32, head: &dyn HeadRows) {
        let Some(mut prediction) = self.prediction.take() else { return self.read(token) };
        let p_model = log_p.exp();
        let p_memory = prediction.recall.probability(token);
        let lambda = prediction.lambda;
        let mixed = (1.0 - lambda) * p_model + lambda * p_memory;
        let has_recall = !prediction.recall.hits.is_empty();
        if has_recall {
            self.samples.push(Sample { features: prediction.features, p_model, p_memory });
            self.trail.go_on(prediction.recall.nearest(), p_model, p_memory);
            self.credit(&prediction.recall, token, (p_memory, (mixed / p_model.max(f32::MIN_POSITIVE)).ln()));
        }
        if learned.options.micro.is_some() {
            self.learn_micro(learned, &mut prediction, (token, label), head);
        }
        let (key, worth) = match learned.options.memory {
            Some(_) => (prediction.key, (-mixed.max(f32::MIN_POSITIVE).ln()).clamp(0.0, WORTH_MAX)),
            None => Default::default(),
        };
        self.notes.push(Note { key, context: self.context, token: label, worth });
        self.read(token);
    }

    /// Shares what the mixture gained among the entries that said the token, or what it lost among the others.
    fn credit(&mut self, recall: &Recall, token: u32, (p_memory, gain): (f32, f32)) {
        let whose = |entry: u32| (entry == token) == (gain > 0.0);
        let all = if gain > 0.0 { p_memory } else { 1.0 - p_memory };
        if gain == 0.0 || all <= 0.0 {
            return;
        }
        let hits = recall.hits.iter().filter(|&&(.., entry)| whose(entry));
        self.credits.extend(hits.map(|&(index, share, entry)| (index, entry, gain * share / all)));
    }

    fn learn_micro(
        &mut self,
        learned: &Learned,
        prediction: &mut Prediction,
        (token, label): (u32, u32),
        head: &dyn HeadRows,
    ) {
        let (Some(micro), Some(options)) = (&self.learning, &learned.options.micro) else { return };
        if let Some(whole) = &self.whole {
            // It learns from what all of it would have said, however little of it is believed.
            let likeliest = (&mut prediction.likeliest[..], self.strength);
            self.evidence.push(whole.gain(&prediction.hidden, likeliest, token, head));
        }
        // A sparse gradient whose probabilities do not add up to 1 pulls every hidden state towards the same rows.
        prediction.likeliest.truncate(options.n_likeliest);
        let sum: f32 = prediction.likeliest.iter().map(|&(_, p)| p).sum();
        prediction.likeliest.iter_mut().for_each(|(_, p)| *p /= sum);
        let one = self.scratch.gradient.get_or_insert_with(|| micro.gradient_buffer());
        micro.gradient(&prediction.hidden, &prediction.likeliest, label, head, one);
        if self.n_in_last == 0 {
            self.gradients.push(micro.gradient_buffer());
        }
        if let Some(last) = self.gradients.last_mut() {
            last.add(one, 1.0 / options.n_tokens as f32);
        }
        self.n_in_last = (self.n_in_last + 1) % options.n_tokens;
        if self.n_in_last == 0 {
            self.weigh(learned);
        }
    }

    /// Notes a token of a prompt, whose logits nobody computed: memory learns from those for the price of a key.
    ///
    /// # Panics
    /// If the state has another width.
    pub fn remember(&mut self, learned: &Learned, hidden: &[f32], token: u32) {
        self.begin(learned);
        if learned.options.memory.is_some() {
            let key = learned.calibration.whitener().key(hidden, learned.isa);
            self.notes.push(Note { key, context: self.context, token, worth: WORTH_UNKNOWN });
        }
        self.read(token);
    }

    /// Reads a token that nothing is learned from: it is in the context of those that follow.
    pub fn read(&mut self, token: u32) {
        self.n_heard += 1;
        self.context.push(token);
    }

    /// Returns how many tokens were noted.
    pub fn len(&self) -> usize {
        self.notes.len()
    }

    /// Returns whether nothing was noted.
    pub fn is_empty(&self) -> bool {
        self.notes.is_empty()
    }

    /// Returns for how many predicted tokens more [`Learned::step`] would find no complete piece, and [`Notes::micro`] stays what it
    /// is.
    pub fn n_until_step(&self, learned: &Learned) -> usize {
        learned.options.micro.as_ref().map_or(usize::MAX, |options| options.n_tokens - self.n_in_last)
    }
}

/// Returns the likeliest tokens with their probabilities, and behind them some of the others, one from each stretch of the
/// vocabulary, with what is left of 1 shared among them as they are likely. `drawn` says where in the stretches they stand.
fn likeliest(top: &mut Top, (logits, log_sum): (&[f32], f32), n: usize, drawn: usize) -> Vec<(u32, f32)> {
    let p = |logit: f32| (logit - log_sum).exp();
    let hits = top.of(logits, n);
    let least = hits.last().map_or(f32::INFINITY, |hit| hit.value);
    let mut all: Vec<(u32, f32)> = hits.iter().map(|hit| (hit.index, p(hit.value))).collect();
    let left = (1.0 - all.iter().map(|&(_, p)| p).sum::<f32>()).max(0.0);
    let stretch = logits.len().div_ceil(N_OTHERS).max(1);
    let others = (drawn * 7919 % stretch..logits.len()).step_by(stretch).filter(|&i| logits[i] < least);
    let n_likeliest = all.len();
    all.extend(others.map(|i| (i as u32, p(logits[i]))));
    let sum: f32 = all[n_likeliest..].iter().map(|&(_, p)| p).sum();
    all[n_likeliest..].iter_mut().for_each(|(_, p)| *p *= left / sum.max(f32::MIN_POSITIVE));
    all
}

#[cfg(test)]
mod tests;
