//! The history of what a tenant taught: a log, generations to go back to, and items taken back as if they had never been.
//!
//! ```text
//! log           item 1, 2, 3 …       what was ingested; each is in the store before it counts
//! generations   1 ← 2 ← 3            states that were published; 2 ← 4 after going back to 2
//! state now     = generation + the items since, always
//! ```
//! What is learned is a function of the items in their order. [`History::undo`] takes one out and plays the others again from
//! the generation before it, so what is known then is byte for byte what would be known without it: a span is not kept as
//! what it once taught, but as its tokens, which the model reads again ([`Reading`]), against what is known without the item.
//! [`History::rollback`] goes back to a generation.
//!
//! [`History::keep`] stores the state in addition to the log, so that opening it again reads only what came since.
//!
//! Limits let old items and generations go ([`HistoryLimits`]); then what was let go is part of what is known for good, and undoing it
//! is refused. [`forget`] removes all of a tenant.

mod adopt;
mod exchange;
mod generation;
mod ingest;
mod item;
mod keep;
mod publish;
mod rebuild;
mod state;
#[cfg(test)]
mod tests;
mod undo;
mod watched;

pub use exchange::signed_by;
pub use generation::Generation;
pub use item::{Item, Span, TrainingItem};
pub use keep::{Overview, forget, look, tenants};
pub use rebuild::{Each, Reading, losses};
use state::{HEAD, Head, State};
pub use undo::Also;
use watched::{Before, Watched};

use std::ops::Range;
use std::sync::Arc;

use crate::calibration::Calibration;
use crate::clock::now_ms;
use crate::codec::number_of_key;
use crate::error::{SonaError, SonaErrorKind, invalid};
use crate::instant::{LearnOptions, Learned};
use crate::store::{Durability, Scan, Snapshot, Store, Table, Transaction as _};
use item::Record;
use keep::{generations_of, items, last_item};
use ruvllm_kernels::Compute;

/// The log of each tenant, by id.
const ITEMS: Table = Table::new("learning log");

/// Where each tenant stands.
const HEADS: Table = Table::new("learning heads");

/// What the deep loop knew when it was adopted, in pieces, by digest and place.
const ADAPTERS: Table = Table::new("learning adapters");

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

/// Whether what is on the disk is known.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sound {
    Yes,
    /// A commit failed, and may be on the disk: what was there before it.
    Unsure(Before),
    /// A commit failed that was to put something else in the place of everything.
    Replacing,
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
    /// Versions that no longer are part of what is known: traces that read them are not ingested.
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

    /// Returns what is known now, for readers while it changes: to them it stays what it is.
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

    /// Finds out what a commit that failed left on the disk, and takes it back: it was returned as an error.
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
            records.push((number_of_key(key, "learning log")?, Record::from_bytes(bytes)?));
            Ok(true)
        })?;
        Ok(records)
    }
}
