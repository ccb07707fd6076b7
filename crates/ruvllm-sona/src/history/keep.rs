//! What of a history is kept, what can be seen of it without a model, and how it is forgotten.

use super::generation::{self, GENERATIONS, STATES};
use super::item::{Item, Record};
use super::rebuild::{self, Reading};
use super::watched::Watched;
use super::{ADAPTERS, Generation, HEAD, HEADS, Head, History, ITEMS, Sound, State};
use crate::clock::now_ms;
use crate::codec::{Reader, Writer, number_of_key};
use crate::error::{SonaError, invalid};
use crate::instant::Learned;
use crate::store::{Durability, Scan, Snapshot, Store, Transaction};

/// The key that says what the kept state is of.
const KEPT: &[u8] = b"kept";

/// Where a kept state lies among those of generations.
const KEPT_STATE: u64 = u64::MAX;

impl History {
    /// Keeps the state as it is now beside the log: who opens the history again reads only what came since. One state is kept; it is no
    /// generation, and nobody can go back to it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep(&mut self) -> Result<(), SonaError> {
        self.check_sound()?;
        // Right behind a generation the state is that one's.
        let of = Writer::new().u64(self.head.parent).u64(self.next_item).take();
        let of = (self.next_item > self.head.first).then_some(of);
        if self.store.snapshot()?.get(HEADS, &self.tenant, KEPT)? == of {
            return Ok(());
        }
        let mut change = self.store.begin(Durability::Durable)?;
        self.drop_kept(&mut *change)?;
        if let Some(of) = of {
            change.put(HEADS, &self.tenant, KEPT, &of)?;
            generation::put_state(&mut *change, &self.tenant, KEPT_STATE, &self.state())?;
        }
        Ok(change.commit()?)
    }

    pub(super) fn drop_kept(&self, change: &mut dyn Transaction) -> Result<(), SonaError> {
        if change.remove(HEADS, &self.tenant, KEPT)? {
            generation::remove_state(change, &self.tenant, KEPT_STATE)?;
        }
        Ok(())
    }

    /// Returns the state that was kept, and the first item that is not in it; none if what came since reaches back over it.
    pub(super) fn kept(&self) -> Result<Option<(u64, State)>, SonaError> {
        let snapshot = self.store.snapshot()?;
        let Some(of) = snapshot.get(HEADS, &self.tenant, KEPT)? else { return Ok(None) };
        let mut of = Reader::new(&of, "kept state");
        let (parent, end) = (of.u64()?, of.u64()?);
        of.end()?;
        if parent != self.head.parent || !(self.head.first + 1..=self.next_item).contains(&end) {
            return Ok(None);
        }
        let behind = self.records(&*snapshot, end..self.next_item)?;
        if behind.iter().any(|(_, record)| record.first_version().is_some_and(|version| version < end - 1)) {
            return Ok(None);
        }
        let state = generation::state(&*snapshot, &self.tenant, KEPT_STATE)?;
        // One of an older program is made anew of the log.
        Ok(State::from_bytes(&state, &self.setup).ok().map(|state| (end, state)))
    }

    /// Makes the state now of one that has all items up to `end`.
    pub(super) fn state_behind(
        &self,
        end: u64,
        mut state: State,
        reading: &mut dyn Reading,
    ) -> Result<State, SonaError> {
        state.learned_mut().set_version(end - 1);
        let items = self.records(&*self.store.snapshot()?, end..self.next_item)?;
        rebuild::play(&mut state, &items, &|digest| self.deep_of(digest), reading)?;
        state.learned_mut().set_version(self.next_item - 1);
        Ok(state)
    }

    /// Forgets everything, on the disk as well, and goes on with nothing known. Requests that have read what was known are not learned
    /// from.
    ///
    /// # Errors
    /// If it cannot be written; then nothing more is ingested before the history is opened again.
    pub fn forget(&mut self) -> Result<(), SonaError> {
        self.restart(None)?;
        Ok(self.store.scrub()?)
    }

    /// Puts what was learned elsewhere in the place of all that is known, as a generation of its own before which there is nothing, and
    /// returns its number.
    ///
    /// # Errors
    /// It is of another model or learned with other options, or it cannot be written.
    pub fn replace(&mut self, learned: Learned, why: &str) -> Result<u64, SonaError> {
        // What is of another model does not come back from its own bytes.
        Learned::restore(
            &learned.snapshot(),
            std::sync::Arc::clone(&self.setup.calibration),
            *self.state.learned.options(),
            self.setup.compute.clone(),
        )?;
        self.restart(Some((learned, why)))
    }

    /// Begins anew, with `learned` or with nothing; ids go on.
    fn restart(&mut self, learned: Option<(Learned, &str)>) -> Result<u64, SonaError> {
        let options = *self.state.learned.options();
        let mut state = State::empty(options, &self.setup)?;
        let (id, number) = (self.next_item, u64::from(learned.is_some()));
        let head = Head { parent: number, first: id + 1, options, calibration: self.head.calibration };
        let generation = learned.map(|(learned, why)| {
            state.learned = std::sync::Arc::new(learned);
            let (first, end) = (id + 1, id + 1);
            let (parent, unix_ms, why, figures) = (0, now_ms(), why.to_owned(), Vec::new());
            let (adopted, is_oldest, has_state) = (None, true, true);
            Generation { number, parent, unix_ms, why, figures, first, end, adopted, is_oldest, has_state }
        });
        state.learned_mut().set_version(id);
        let mut change = self.store.begin(Durability::Durable)?;
        for table in [ITEMS, HEADS, GENERATIONS, STATES, ADAPTERS] {
            change.remove_scope(table, &self.tenant)?;
        }
        change.put(HEADS, &self.tenant, HEAD, &head.to_bytes())?;
        if let Some(generation) = &generation {
            generation.put(&mut *change, &self.tenant)?;
            generation::put_state(&mut *change, &self.tenant, number, &state.to_bytes())?;
        }
        // Whether a commit that fails is on the disk nobody knows.
        self.sound = Sound::Replacing;
        change.commit()?;
        self.gone.push(0..id);
        self.generations = generation.into_iter().collect();
        (self.head, self.state, self.next_item, self.sound) = (head, state, id + 1, Sound::Yes);
        Ok(number)
    }

    /// Lets the oldest generations and items go if there are too many: one on the way to what is known now becomes the oldest,
    /// and what does not come from it goes. Where that would leave few, since those before have no state of their own any more, it
    /// waits until there are more, up to twice as many.
    pub(super) fn let_go(&mut self) -> Result<(), SonaError> {
        let limits = self.setup.limits;
        let n_max = limits.n_generations_max.max(2);
        let sizes = self.sizes()?;
        let bytes_from =
            |first: u64| sizes.iter().filter(|size| size.id >= first).map(|size| size.n_bytes).sum::<u64>();
        if self.generations.len() <= n_max && bytes_from(0) <= limits.items_bytes_max {
            return Ok(());
        }
        // Its state is kept, and no later item reaches back over it.
        let may_be = |g: &&Generation| {
            g.has_state && !g.is_oldest && sizes.iter().all(|size| size.id < g.end || size.first_version >= g.last())
        };
        let fits = |g: &&&Generation| {
            let n_kept = self.generations.iter().filter(|other| other.number >= g.number).count();
            n_kept <= n_max && bytes_from(g.end) <= limits.items_bytes_max
        };
        let candidates: Vec<&Generation> = self.chain(self.head.parent).filter(may_be).collect();
        let Some(&oldest) = candidates.iter().rev().find(fits).or(candidates.first()) else { return Ok(()) };
        let oldest = Generation { is_oldest: true, ..oldest.clone() };
        let stays = |g: &Generation| self.chain(g.number).any(|g| g.number == oldest.number);
        let (mut kept, gone): (Vec<_>, Vec<_>) = self.generations.iter().cloned().partition(stays);
        let may_wait = self.generations.len() <= 2 * n_max && bytes_from(0) <= limits.items_bytes_max;
        if may_wait && 2 * kept.len() < n_max {
            return Ok(());
        }
        let is_held = |id: u64| {
            let holds = |g: &Generation| g.number != oldest.number && (g.first..g.end).contains(&id);
            id >= self.head.first || kept.iter().any(holds)
        };
        let mut change = Watched::begin(&*self.store)?;
        for generation in &gone {
            generation.remove(&mut change, &self.tenant)?;
        }
        for size in sizes.iter().filter(|size| !is_held(size.id)) {
            change.remove(ITEMS, &self.tenant, &size.id.to_be_bytes())?;
        }
        oldest.put(&mut change, &self.tenant)?;
        change.commit_watched(&mut self.sound)?;
        kept.iter_mut().filter(|g| g.number == oldest.number).for_each(|g| g.is_oldest = true);
        self.generations = kept;
        self.tidy();
        Ok(())
    }

    fn sizes(&self) -> Result<Vec<Size>, SonaError> {
        let mut sizes = Vec::new();
        self.store.snapshot()?.scan(ITEMS, &Scan::all(&self.tenant), &mut |key, bytes| {
            let (id, record) = (number_of_key(key, "learning log")?, Record::from_bytes(bytes)?);
            let first_version = record.first_version().unwrap_or(id);
            sizes.push(Size { id, n_bytes: bytes.len() as u64, first_version });
            Ok(true)
        })?;
        Ok(sizes)
    }
}

/// How large an item is, and how far back it reaches.
struct Size {
    id: u64,
    n_bytes: u64,
    first_version: u64,
}

/// Forgets everything that a tenant taught, the way there with it, on the disk as well; returns how many
/// records that were.
///
/// # Errors
/// If it cannot be written.
pub fn forget(store: &dyn Store, tenant: &str) -> Result<usize, SonaError> {
    let mut change = store.begin(Durability::Durable)?;
    let mut n = 0;
    for table in [ITEMS, HEADS, GENERATIONS, STATES, ADAPTERS] {
        n += change.remove_scope(table, tenant.as_bytes())?;
    }
    change.commit()?;
    store.scrub()?;
    Ok(n)
}

/// Returns the tenants that have a history, sorted.
///
/// # Errors
/// If the store cannot be read.
pub fn tenants(store: &dyn Store) -> Result<Vec<String>, SonaError> {
    let scopes = store.snapshot()?.scopes(HEADS)?;
    scopes.into_iter().map(|name| String::from_utf8(name).map_err(|_| invalid("a tenant is not utf-8"))).collect()
}

/// Overview of a tenant, read without its model.
#[derive(Clone, Debug, PartialEq)]
pub struct Overview {
    /// The generation that what is known came from.
    pub generation: u64,
    /// All generations that are kept.
    pub generations: Vec<Generation>,
    /// The newest items, newest first: id, Unix milliseconds, item.
    pub items: Vec<(u64, u64, Item)>,
}

/// Looks at a tenant without its model: where it stands, its generations and its newest `n` items; `None` if it has no history.
///
/// # Errors
/// If the store cannot be read.
pub fn look(store: &dyn Store, tenant: &str, n: usize) -> Result<Option<Overview>, SonaError> {
    let snapshot = store.snapshot()?;
    let Some(head) = snapshot.get(HEADS, tenant.as_bytes(), HEAD)? else { return Ok(None) };
    let generations = generations_of(&*snapshot, tenant.as_bytes())?;
    let items = items(store, tenant.as_bytes(), u64::MAX, n)?;
    Ok(Some(Overview { generation: Head::from_bytes(&head)?.parent, generations, items }))
}

pub(super) fn items(
    store: &dyn Store,
    tenant: &[u8],
    before: u64,
    n: usize,
) -> Result<Vec<(u64, u64, Item)>, SonaError> {
    let mut items = Vec::new();
    if n == 0 {
        return Ok(items);
    }
    let before = before.to_be_bytes();
    let scan = Scan::all(tenant).between(&[], Some(&before)).newest_first();
    store.snapshot()?.scan(ITEMS, &scan, &mut |key, bytes| {
        let record = Record::from_bytes(bytes)?;
        items.push((number_of_key(key, "learning log")?, record.unix_ms, record.item));
        Ok(items.len() < n)
    })?;
    Ok(items)
}

pub(super) fn generations_of(snapshot: &dyn Snapshot, tenant: &[u8]) -> Result<Vec<Generation>, SonaError> {
    let mut generations = Vec::new();
    snapshot.scan(GENERATIONS, &Scan::all(tenant), &mut |_, bytes| {
        generations.push(Generation::from_bytes(bytes)?);
        Ok(true)
    })?;
    Ok(generations)
}

pub(super) fn last_item(snapshot: &dyn Snapshot, tenant: &[u8]) -> Result<u64, SonaError> {
    let mut last = 0;
    snapshot.scan(ITEMS, &Scan::all(tenant).newest_first(), &mut |key, _| {
        last = number_of_key(key, "learning log")?;
        Ok(false)
    })?;
    Ok(last)
}
