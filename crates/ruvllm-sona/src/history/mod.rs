//! The history of what a tenant taught: a log, generations to go back to, and items taken back as if they had never been.
//!
//! ```text
//! log           item 1, 2, 3 …       what was taken in; each is in the store before it counts
//! generations   1 ← 2 ← 3            states that were published; 2 ← 4 after going back to 2
//! state now     = generation + the items since, always
//! ```
//! What is learned is a function of the items in their order. [`History::undo`] takes one out and plays the others again from
//! the generation before it, so what is known then is byte for byte what would be known without it: a passage is not kept as
//! what it once taught, but as its tokens, which the model reads again ([`Reading`]), against what is known without the item.
//! [`History::rollback`] goes back to a generation.
//!
//! [`History::keep`] puts the state beside the log, so that opening it again reads only what came since.
//!
//! Limits let old items and generations go ([`HistoryLimits`]); then what was let go is part of what is known for good, and undoing it
//! is refused. [`forget`] removes all of a tenant.

mod adopt;
mod exchange;
mod generation;
mod item;
mod keep;
mod rebuild;
#[cfg(test)]
mod tests;
mod undo;
mod watched;

pub use exchange::signed_by;
pub use generation::Generation;
pub use item::{Item, Passage, Taught};
pub use keep::{Overview, forget, look, tenants};
pub use rebuild::{Each, Reading, losses};
pub use undo::Also;
use watched::{Before, Watched};

use std::ops::Range;
use std::sync::Arc;

use crate::background::Consolidate;
use crate::calibration::Calibration;
use crate::clock::now_ms;
use crate::codec::{Reader, Writer};
use crate::episodes::Verdict;
use crate::error::{SonaError, SonaErrorKind, invalid};
use crate::instant::{LearnOptions, Learned, Notes, Stamp};
use crate::names::Names;
use crate::publish::Judgement;
use crate::store::{Durability, Scan, Snapshot, Store, Table, Transaction as _};
use crate::whiten::Key;
use item::{Record, read_options, write_options};
use keep::{generations_of, id_of, items, last_item};
use ruvllm_kernels::Compute;

/// The log of each tenant, by id.
const ITEMS: Table = Table::new("learning log");

/// Where each tenant stands.
const HEADS: Table = Table::new("learning heads");

/// What the deep loop knew when it was adopted, in pieces, by digest and place.
const ADAPTERS: Table = Table::new("learning adapters");

/// The only key of a tenant's head.
const HEAD: &[u8] = b"head";

/// What a state begins with.
const MAGIC: [u8; 8] = *b"ruvstat1";

/// Limits of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLimits {
    /// Generations, at most; at least 2 stay.
    pub n_generations_max: usize,
    /// Bytes of the log, at most; what came since the last generation stays in any case.
    pub items_bytes_max: u64,
}

impl Default for HistoryLimits {
    /// 8 generations and 64 MiB.
    fn default() -> HistoryLimits {
        HistoryLimits { n_generations_max: 8, items_bytes_max: 64 << 20 }
    }
}

/// Setup of a history: a model, and how it learns.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The model's calibration; another one refuses what was learned with this.
    pub calibration: Arc<Calibration>,
    /// Options of what learns from here on.
    pub options: LearnOptions,
    /// Threads and kernels that it computes with.
    pub compute: Compute,
    /// Limits of what is kept.
    pub limits: HistoryLimits,
}

/// All that is known.
#[derive(Clone, Debug)]
struct State {
    /// Shared with those who read it; what changes it has a copy of its own.
    learned: Arc<Learned>,
    /// Digest of what the deep loop knows, if an adapter of it was adopted.
    adopted: Option<[u8; 32]>,
}

impl State {
    fn to_bytes(&self) -> Vec<u8> {
        let mut to = Writer::of(MAGIC);
        write_options(&mut to, self.learned.options());
        to.u8(u8::from(self.adopted.is_some())).raw(&self.adopted.unwrap_or_default());
        to.part(&self.learned.snapshot());
        to.take()
    }

    /// What is known before anything was taught.
    fn empty(options: LearnOptions, setup: &Setup) -> Result<State, SonaError> {
        let learned = Learned::new(Arc::clone(&setup.calibration), options, setup.compute.clone())?;
        Ok(State { learned: Arc::new(learned), adopted: None })
    }

    /// What is known, to be changed.
    fn learned_mut(&mut self) -> &mut Learned {
        Arc::make_mut(&mut self.learned)
    }

    fn from_bytes(bytes: &[u8], setup: &Setup) -> Result<State, SonaError> {
        let mut from = Reader::of(bytes, MAGIC, "state of a tenant")?;
        let options = read_options(&mut from)?;
        let (has_adopted, digest) = (from.u8()? == 1, from.array()?);
        let learned = Learned::restore(from.part()?, Arc::clone(&setup.calibration), options, setup.compute.clone())?;
        from.end()?;
        Ok(State { learned: Arc::new(learned), adopted: has_adopted.then_some(digest) })
    }
}

/// Whether what is on the disk is known.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sound {
    Yes,
    /// A commit failed, and may be on the disk: what was there before it.
    Unsure(Before),
    /// A commit failed that was to put something else in the place of everything.
    Replacing,
}

/// Where a tenant stands.
#[derive(Clone, Debug, PartialEq)]
struct Head {
    /// The generation that the state now came from.
    parent: u64,
    /// The items since then have ids from here.
    first: u64,
    /// What was learned with at first.
    options: LearnOptions,
    /// Digest of the calibration.
    calibration: [u8; 32],
}

impl Head {
    fn to_bytes(&self) -> Vec<u8> {
        let mut to = Writer::new();
        write_options(to.u8(1).u64(self.parent).u64(self.first).raw(&self.calibration), &self.options);
        to.take()
    }

    fn from_bytes(bytes: &[u8]) -> Result<Head, SonaError> {
        let mut from = Reader::new(bytes, "learning head");
        let format = from.u8()?;
        if format != 1 {
            let message = format!("learning head: format {format}, this program reads 1");
            return Err(SonaError::new(SonaErrorKind::Version, message));
        }
        let (parent, first, calibration) = (from.u64()?, from.u64()?, from.array()?);
        let options = read_options(&mut from)?;
        from.end()?;
        Ok(Head { parent, first, options, calibration })
    }
}

/// History of one tenant's teaching of one model. Changes come one after another; while requests read
/// [`History::learned`], it must not change under one token.
pub struct History {
    store: Arc<dyn Store>,
    tenant: Vec<u8>,
    setup: Setup,
    head: Head,
    generations: Vec<Generation>,
    state: State,
    next_item: u64,
    /// Versions that no longer are part of what is known: notes that read them are not taken in.
    gone: Vec<Range<u64>>,
    /// Whether memory and log say the same.
    sound: Sound,
    /// Adapters that nothing speaks of any more may lie in the store.
    is_littered: bool,
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "History(generation {}, next item {})", self.head.parent, self.next_item)
    }
}

impl History {
    /// Opens a tenant's history in `store`, or begins one. What came since the last generation is read again.
    ///
    /// # Errors
    /// If the store cannot be read, what was learned is of another calibration, or the model cannot read it again.
    pub fn open(
        store: Arc<dyn Store>,
        tenant: &str,
        setup: Setup,
        reading: &mut dyn Reading,
    ) -> Result<History, SonaError> {
        let tenant = tenant.as_bytes().to_vec();
        let calibration = *blake3::hash(&setup.calibration.snapshot()).as_bytes();
        let state = State::empty(setup.options, &setup)?;
        let (head, generations, last) = {
            let snapshot = store.snapshot()?;
            let head = snapshot.get(HEADS, &tenant, HEAD)?.map(|bytes| Head::from_bytes(&bytes)).transpose()?;
            (head, generations_of(&*snapshot, &tenant)?, last_item(&*snapshot, &tenant)?)
        };
        if head.as_ref().is_some_and(|head| head.calibration != calibration) {
            let line = "what was learned is of another model or calibration; give that one, or forget the tenant";
            return Err(SonaError::new(SonaErrorKind::Shape, line));
        }
        let is_new = head.is_none();
        let head = head.unwrap_or(Head { parent: 0, first: 1, options: setup.options, calibration });
        let next_item = (last + 1).max(head.first);
        let (options, gone) = (setup.options, Vec::new());
        let (sound, is_littered) = (Sound::Yes, false);
        let mut history =
            History { store, tenant, setup, head, generations, state, next_item, gone, sound, is_littered };
        if is_new {
            let mut change = history.store.begin(Durability::Durable)?;
            change.put(HEADS, &history.tenant, HEAD, &history.head.to_bytes())?;
            change.commit()?;
        } else {
            history.state = match history.kept()? {
                Some((end, state)) => history.state_behind(end, state, reading)?,
                None => history.state_of(history.head.parent, Some(next_item), None, reading)?,
            };
            if *history.state.learned.options() != options {
                history.log_and(Record::new(now_ms(), Item::Configured(options)), |l| l.configure(options))?;
            }
        }
        Ok(history)
    }

    /// Returns what is known.
    pub fn learned(&self) -> &Learned {
        &self.state.learned
    }

    /// Returns what is known now, for those who read it while it changes: to them it stays what it is.
    pub fn known(&self) -> Arc<Learned> {
        Arc::clone(&self.state.learned)
    }

    /// Returns what was known at a generation, or before anything was taught with 0.
    ///
    /// # Errors
    /// As [`History::rollback`].
    pub fn at(&self, number: u64, reading: &mut dyn Reading) -> Result<Arc<Learned>, SonaError> {
        if number > 0 {
            self.generation_of(number)?;
        }
        Ok(self.state_of(number, None, None, reading)?.learned)
    }

    /// Returns the id of the first item since the last generation.
    pub fn first_item(&self) -> u64 {
        self.head.first
    }

    /// Returns the id that the next item will have.
    pub fn next_item(&self) -> u64 {
        self.next_item
    }

    /// Returns the number of the generation that what is known came from; 0 is the model alone.
    pub fn generation(&self) -> u64 {
        self.head.parent
    }

    /// Returns the generations that are kept, by number.
    pub fn generations(&self) -> &[Generation] {
        &self.generations
    }

    /// Returns the state as bytes: all that is known, and nothing of the way there.
    pub fn state(&self) -> Vec<u8> {
        self.state.to_bytes()
    }

    /// Takes in what a request found out, and returns the item's id; it is on disk then. `passage` is what the notes heard.
    /// Nothing is taken in, and `None` returned, at quality 0, or when the request read what was undone, rolled back or let go since:
    /// what it found out may come from there.
    ///
    /// # Errors
    /// The notes heard something else than the passage, the quality is no number of 0 to 1, or it cannot be written.
    pub fn take_in(&mut self, notes: Notes, passage: Passage, quality: f32) -> Result<Option<u64>, SonaError> {
        check_quality(quality)?;
        passage.check()?;
        if notes.n_heard() != passage.tokens.len() || passage.n_step > 0 {
            let line = format!("notes of {} tokens for a passage of {}", notes.n_heard(), passage.tokens.len());
            return Err(SonaError::new(SonaErrorKind::Shape, line));
        }
        let stamps = notes.stamps().to_vec();
        if quality == 0.0 || stamps.is_empty() || self.is_gone(&stamps) {
            return Ok(None);
        }
        let record = Record { stamps, ..Record::new(now_ms(), Item::Read { passage, quality }) };
        let take_in = |learned: &mut Learned| {
            learned.take_in(notes, quality);
            Ok(())
        };
        self.log_and(record, take_in).map(Some)
    }

    /// Holds a text back, for the gate: nothing is learned of it. Returns the item's id.
    ///
    /// # Errors
    /// It is no passage, or it cannot be written.
    pub fn hold(&mut self, passage: Passage) -> Result<u64, SonaError> {
        passage.check()?;
        self.log_and(Record::new(now_ms(), Item::Held { passage }), |_| Ok(()))
    }

    /// Reads a document and learns it, with steps on the way if [`Passage::n_step`] says so; returns the item's id.
    ///
    /// # Errors
    /// The model cannot read it, the quality is not above 0, up to 1, or it cannot be written.
    pub fn study(&mut self, passage: Passage, quality: f32, reading: &mut dyn Reading) -> Result<u64, SonaError> {
        check_quality(quality)?;
        passage.check()?;
        let passage = Passage { n_step: passage.n_step.max(1), ..passage };
        let record = Record::new(now_ms(), Item::Read { passage: passage.clone(), quality });
        self.log_and(record, |learned| rebuild::study(&passage, quality, learned, reading))
    }

    /// Takes in what somebody taught, and lets the gate rehearse behind what was read; returns the item's id, `None` where nothing was
    /// to be learned of it.
    ///
    /// # Errors
    /// As [`History::take_in`], [`History::tell`] and [`History::reject`].
    pub fn take(&mut self, taught: Taught) -> Result<Option<u64>, SonaError> {
        match taught {
            Taught::Read { notes, passage, quality } => {
                let id = self.take_in(*notes, passage, quality)?;
                if id.is_some() {
                    self.rehearse(usize::MAX)?;
                }
                Ok(id)
            }
            Taught::Held { passage } => self.hold(passage).map(Some),
            Taught::Rejected { names, notes } => self.reject(&names, &notes),
            Taught::Told { names, hidden, answer, verdict } => self.tell(&names, &hidden, &answer, verdict).map(Some),
        }
    }

    /// Remembers a correction as [`Learned::tell`]; returns the item's id.
    ///
    /// # Errors
    /// As [`Learned::tell`], and if it cannot be written.
    ///
    /// # Panics
    /// If the states are of another width.
    pub fn tell(&mut self, names: &Names, hidden: &[f32], answer: &[u32], verdict: Verdict) -> Result<u64, SonaError> {
        let keys = self.state.learned.answer_keys(hidden, answer);
        self.tell_keys(names, &keys, verdict)
    }

    /// Remembers the answer that notes were taken of as wrong, as [`Learned::reject`]; returns the item's id, `None` where nothing was
    /// noted, or [`History::take_in`] would take nothing in.
    ///
    /// # Errors
    /// As [`Learned::reject`], and if it cannot be written.
    pub fn reject(&mut self, names: &Names, notes: &Notes) -> Result<Option<u64>, SonaError> {
        let keys = self.state.learned.noted_keys(notes);
        if keys.is_empty() || self.is_gone(notes.stamps()) {
            return Ok(None);
        }
        self.tell_keys(names, &keys, Verdict::Wrong).map(Some)
    }

    /// Whether a piece read what is no longer part of what is known, or what is older than all that is kept.
    fn is_gone(&self, stamps: &[Stamp]) -> bool {
        let oldest = self.generations.iter().find(|generation| generation.is_oldest).map_or(0, Generation::last);
        let is_gone = |version: u64| version < oldest || self.gone.iter().any(|range| range.contains(&version));
        stamps.iter().any(|stamp| is_gone(stamp.version))
    }

    fn tell_keys(&mut self, names: &Names, answer: &[(Key, u32)], verdict: Verdict) -> Result<u64, SonaError> {
        let (keys, tokens): (Vec<Key>, Vec<u32>) = answer.iter().cloned().unzip();
        let item = Item::Told { names: names.clone(), answer: tokens, verdict };
        let record = Record { keys, ..Record::new(now_ms(), item) };
        self.log_and(record, |learned| learned.tell_keys(names, answer, verdict))
    }

    /// Rehearses as [`Learned::rehearse`]; returns how many positions are left. It is an item also where nothing is due: without
    /// an earlier item something might have been.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn rehearse(&mut self, n_max: usize) -> Result<usize, SonaError> {
        let mut n_left = 0;
        self.log_and(Record::new(now_ms(), Item::Rehearsed { n_max }), |learned| {
            n_left = learned.rehearse(n_max);
            Ok(())
        })?;
        Ok(n_left)
    }

    /// Goes on with other options, see [`Learned::configure`]; returns the item's id.
    ///
    /// # Errors
    /// As [`Learned::configure`], and if it cannot be written.
    pub fn configure(&mut self, options: LearnOptions) -> Result<u64, SonaError> {
        self.log_and(Record::new(now_ms(), Item::Configured(options)), |learned| learned.configure(options))
    }

    /// Notes that a change was looked at and not published; returns the item's id.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn discard(&mut self, why: &str, figures: &[(String, f64)]) -> Result<u64, SonaError> {
        let item = Item::Discarded { why: why.to_owned(), figures: figures.to_vec() };
        self.log_and(Record::new(now_ms(), item), |_| Ok(()))
    }

    /// Does what an item says and writes it. Where that fails, what is known is what it was. Whether a commit that fails is on the
    /// disk nobody knows: then it is looked for and taken back before anything else is done.
    fn log_and(
        &mut self,
        record: Record,
        apply: impl FnOnce(&mut Learned) -> Result<(), SonaError>,
    ) -> Result<u64, SonaError> {
        self.check_sound()?;
        let (id, before) = (self.next_item, self.state.clone());
        let written = apply(self.state.learned_mut()).and_then(|()| {
            let mut change = Watched::begin(&*self.store)?;
            change.put(ITEMS, &self.tenant, &id.to_be_bytes(), &record.to_bytes())?;
            change.commit_watched(&mut self.sound)
        });
        if let Err(error) = written {
            self.state = before;
            return Err(error);
        }
        self.next_item = id + 1;
        self.state.learned_mut().set_version(id);
        Ok(id)
    }

    /// Finds out what a commit that failed left on the disk, and takes it back: it was told as an error.
    ///
    /// # Errors
    /// The store cannot be read or written yet; or all was to be replaced, and was.
    fn check_sound(&mut self) -> Result<(), SonaError> {
        match &self.sound {
            Sound::Yes => {}
            Sound::Unsure(before) => {
                let mut change = self.store.begin(Durability::Durable)?;
                if before.put_back(&mut *change)? {
                    change.commit()?;
                }
            }
            Sound::Replacing => {
                let found = self.store.snapshot()?.get(HEADS, &self.tenant, HEAD)?;
                if found.is_none_or(|found| found != self.head.to_bytes()) {
                    let line = "what was learned was replaced, though the disk failed; start the program again";
                    return Err(SonaError::new(SonaErrorKind::Io, line));
                }
            }
        }
        self.sound = Sound::Yes;
        if self.is_littered {
            self.drop_adapters()?;
            self.is_littered = false;
        }
        Ok(())
    }

    /// Tidies up behind a change that is made: what cannot go now goes before the next one.
    fn tidy(&mut self) {
        self.is_littered = self.drop_adapters().is_err();
    }

    /// Publishes what is known now as a generation, and returns its number; lets the oldest go if there are too many.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn publish(&mut self, why: &str, figures: &[(String, f64)]) -> Result<u64, SonaError> {
        let number = self.add_generation(why, figures)?;
        // It is published; what could not go now goes with a later one.
        let _ = self.let_go();
        Ok(number)
    }

    /// Publishes what is known now, and lets nothing go.
    fn add_generation(&mut self, why: &str, figures: &[(String, f64)]) -> Result<u64, SonaError> {
        self.check_sound()?;
        let number = self.generations.last().map_or(0, |last| last.number) + 1;
        let generation = Generation {
            number,
            parent: self.head.parent,
            unix_ms: now_ms(),
            why: why.to_owned(),
            figures: figures.to_vec(),
            first: self.head.first,
            end: self.next_item,
            adopted: self.state.adopted,
            is_oldest: false,
            has_state: true,
        };
        let head = Head { parent: number, first: self.next_item, ..self.head.clone() };
        let mut change = Watched::begin(&*self.store)?;
        generation.put(&mut change, &self.tenant)?;
        generation::put_state(&mut change, &self.tenant, number, &self.state())?;
        change.put(HEADS, &self.tenant, HEAD, &head.to_bytes())?;
        change.commit_watched(&mut self.sound)?;
        self.head = head;
        self.generations.push(generation);
        Ok(number)
    }

    /// Goes back to a generation, or to the model alone with 0; what is known then is what was known there, to the byte. What
    /// came since the last generation is published first, so that nothing is lost by going back.
    ///
    /// # Errors
    /// The generation is not kept, the model cannot read again what it needs, or it cannot be written.
    pub fn rollback(&mut self, number: u64, reading: &mut dyn Reading) -> Result<(), SonaError> {
        self.check_sound()?;
        if number > 0 {
            self.generation_of(number)?;
        } else if let Some(oldest) = self.generations.iter().find(|generation| generation.is_oldest) {
            let line = format!("the log before generation {} was let go; forget the tenant instead", oldest.number);
            return Err(SonaError::new(SonaErrorKind::Limit, line));
        }
        if self.has_news()? {
            self.add_generation(&format!("before going back to {number}"), &[])?;
        }
        let served = self.served()?;
        let state = self.state_of(number, None, None, reading)?;
        let id = self.next_item;
        let head = Head { parent: number, first: id, ..self.head.clone() };
        let mut write = || {
            let mut change = Watched::begin(&*self.store)?;
            let record = Record::new(now_ms(), Item::RolledBack { generation: number });
            change.put(ITEMS, &self.tenant, &id.to_be_bytes(), &record.to_bytes())?;
            change.put(HEADS, &self.tenant, HEAD, &head.to_bytes())?;
            self.drop_kept(&mut change)?;
            change.commit_watched(&mut self.sound)
        };
        if let Err(error) = write() {
            // The model serves what the history says.
            reading.adopt(served.as_deref())?;
            return Err(error);
        }
        let last = self.generations.iter().find(|generation| generation.number == number);
        self.gone.push(last.map_or(1, |generation| generation.end)..id);
        (self.head, self.state, self.next_item) = (head, state, id + 1);
        self.state.learned_mut().set_version(id);
        // Only now: what it went back to stays. What could not go now goes with a later generation.
        let _ = self.let_go();
        Ok(())
    }

    /// Publishes what was learned since the last generation if the gate says so, and returns the generation's number. Otherwise
    /// what was read since then is taken back, corrections and options stay, and the log says why.
    ///
    /// # Errors
    /// As [`History::publish`] and [`History::undo`].
    pub fn decide(&mut self, judgement: &Judgement, reading: &mut dyn Reading) -> Result<Option<u64>, SonaError> {
        if judgement.is_published {
            return self.publish(&judgement.why, &judgement.figures()).map(Some);
        }
        let records = self.records(&*self.store.snapshot()?, self.head.first..self.next_item)?;
        let goes = |item: &Item| !matches!(item, Item::Told { .. } | Item::Configured(_)) && item.has_effect();
        let items: Vec<u64> = records.iter().filter(|(_, record)| goes(&record.item)).map(|(id, _)| *id).collect();
        let event = Item::Discarded { why: judgement.why.clone(), figures: judgement.figures() };
        self.take_back(&items, vec![event], reading, &mut |_| Ok(()))?;
        Ok(None)
    }

    /// Merges MicroLoRA into the base behind it, see [`Learned::consolidate`]; returns the item's id.
    ///
    /// # Errors
    /// As [`Learned::consolidate`], and if it cannot be written.
    pub fn consolidate(&mut self, how: Consolidate) -> Result<u64, SonaError> {
        self.log_and(Record::new(now_ms(), Item::Consolidated(how)), |learned| learned.consolidate(&how))
    }

    /// Returns the newest `n` items with ids below `before`, newest first, each with its time in Unix milliseconds.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn items(&self, before: u64, n: usize) -> Result<Vec<(u64, u64, Item)>, SonaError> {
        items(self.store.as_ref(), &self.tenant, before, n)
    }

    fn generation_of(&self, number: u64) -> Result<&Generation, SonaError> {
        self.generations.iter().find(|generation| generation.number == number).ok_or_else(|| {
            let kept = self.generations.iter().map(|generation| format!(", {}", generation.number)).collect::<String>();
            let line = format!("generation {number} is not kept; choose of: 0{kept}");
            SonaError::new(SonaErrorKind::Value, line)
        })
    }

    /// A generation and those before it, newest first.
    fn chain(&self, number: u64) -> impl Iterator<Item = &Generation> {
        let find = |number: u64| self.generations.iter().find(move |generation| generation.number == number);
        std::iter::successors(find(number), move |generation| match generation.is_oldest {
            true => None,
            false => find(generation.parent),
        })
    }

    /// Returns whether something was taught since the last generation.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn has_news(&self) -> Result<bool, SonaError> {
        let mut has_effect = false;
        let first = self.head.first.to_be_bytes();
        self.store.snapshot()?.scan(ITEMS, &Scan::all(&self.tenant).between(&first, None), &mut |_, bytes| {
            has_effect = Record::from_bytes(bytes)?.item.has_effect();
            Ok(!has_effect)
        })?;
        Ok(has_effect)
    }

    /// Makes the state of a generation, with `tail` also of the items since then up to there: of the nearest generation before
    /// whose state is kept and which no later item reaches back over, by playing the items behind it. `without` are items that
    /// are left out, and the generations that had them.
    fn state_of(
        &self,
        number: u64,
        tail: Option<u64>,
        without: Option<(&[u64], &[u64])>,
        reading: &mut dyn Reading,
    ) -> Result<State, SonaError> {
        let snapshot = self.store.snapshot()?;
        let (left_out, affected) = without.unwrap_or_default();
        let mut items: Vec<(u64, Record)> = Vec::new();
        if let Some(end) = tail {
            items.extend(self.records(&*snapshot, self.head.first..end)?);
        }
        let mut start = None;
        for generation in self.chain(number) {
            let reaches_back =
                |(_, record): &(u64, Record)| record.first_version().is_some_and(|v| v < generation.last());
            let is_kept = generation.has_state && !affected.contains(&generation.number);
            if generation.is_oldest || is_kept && !items.iter().any(reaches_back) {
                start = Some(generation);
                break;
            }
            let mut before = self.records(&*snapshot, generation.first..generation.end)?;
            before.append(&mut items);
            items = before;
        }
        items.retain(|(id, _)| !left_out.contains(id));
        let mut state = match start {
            Some(generation) => {
                let bytes = generation::state(&*snapshot, &self.tenant, generation.number)?;
                let mut state = State::from_bytes(&bytes, &self.setup)
                    .map_err(|error| error.within(format_args!("generation {}", generation.number)))?;
                state.learned_mut().set_version(generation.last());
                state
            }
            None if self.chain(number).last().is_some_and(|first| first.parent != 0) => {
                return Err(invalid(format!("the generations before {number} are missing")));
            }
            None => State::empty(self.head.options, &self.setup)?,
        };
        drop(snapshot);
        rebuild::play(&mut state, &items, &|digest| self.deep_of(digest), reading)?;
        tail.inspect(|end| state.learned_mut().set_version(end - 1));
        Ok(state)
    }

    fn records(&self, snapshot: &dyn Snapshot, ids: Range<u64>) -> Result<Vec<(u64, Record)>, SonaError> {
        let (from, to) = (ids.start.to_be_bytes(), ids.end.to_be_bytes());
        let mut records = Vec::new();
        snapshot.scan(ITEMS, &Scan::all(&self.tenant).between(&from, Some(&to)), &mut |key, bytes| {
            records.push((id_of(key)?, Record::from_bytes(bytes)?));
            Ok(true)
        })?;
        Ok(records)
    }
}

fn check_quality(quality: f32) -> Result<(), SonaError> {
    match (0.0..=1.0).contains(&quality) {
        true => Ok(()),
        false => Err(SonaError::new(SonaErrorKind::Value, format!("a quality of {quality}; it is from 0 to 1"))),
    }
}
