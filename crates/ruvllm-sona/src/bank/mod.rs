//! The ReasoningBank: how tasks were gone about, and how well that went.
//!
//! A [`Pattern`] is a task, the steps taken, a verdict and a quality; a task like an earlier one finds it by the nearness
//! of their embeddings. Many patterns that say the same are distilled into one ([`ReasoningBank::distill`]), the least
//! useful are evicted when there are too many, and nodes exchange them in signed files ([`ReasoningBank::export`]).
//!
//! A bank is one tenant's. It lies in a [`Store`] and keeps embeddings and their graph in memory.
//!
//! ```
//! use ruvllm_sona::bank::{BankConfig, Pattern, ReasoningBank, Select, Step, Verdict};
//! use ruvllm_sona::store::{self, OpenOptions};
//!
//! # let folder = tempfile::tempdir()?;
//! let store = store::open(&folder.path().join("sona.redb"), &OpenOptions::default())?;
//! let bank = ReasoningBank::open(store, "alice", BankConfig::new("minilm-l6", 2), &mut |_, _| {})?;
//! let steps = vec![Step { action: "read the lock file first".into(), outcome: "found two versions of one crate".into() }];
//! let id = bank.add(&Pattern::new("why does the build fail", vec![0.9, 0.1], steps, Verdict::Success, 0.8))?;
//! bank.add(&Pattern::new("write a poem", vec![0.0, 1.0], vec![], Verdict::Unknown, 0.5))?;
//!
//! let found = bank.search(&[1.0, 0.0], 1, &Select::default().verdict(Verdict::Success))?;
//! assert_eq!((found[0].id, found[0].pattern.steps[0].action.as_str()), (id, "read the lock file first"));
//! bank.record_use(id, 1.0)?;
//! assert!(bank.get(id)?.expect("it is there").quality > 0.8);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::codec::number_of_key;
use crate::error::{SonaError, SonaErrorKind, limit};
use crate::index::{IndexConfig, VectorIndex};
use crate::store::{Durability, Scan, Store, Table, Transaction};

mod distill;
mod exchange;
mod kmeans;
mod pattern;
mod select;
#[cfg(test)]
mod tests;

pub use distill::{Distill, Distilled};
pub use exchange::{Imported, Trust, signed_by};
pub use kmeans::{Clusters, kmeans};
pub use pattern::{Pattern, Step, Verdict};
pub use ruvllm_store::signed::{PublicKey, SigningKey};
use select::Facts;
pub use select::Select;

/// The patterns of each tenant, by id.
const PATTERNS: Table = Table::new("patterns");

/// Their saved graphs, in pieces.
const GRAPHS: Table = Table::new("pattern graphs");

/// Bytes of a piece of a graph.
const PIECE_BYTES: usize = 1 << 20;

/// How much the newest outcome counts in a pattern's quality.
const NEWEST_SHARE: f32 = 0.2;

/// The share of a full bank that is evicted at once.
const MAKE_ROOM_SHARE: usize = 64;

/// Options of a bank.
#[derive(Clone, Debug, PartialEq)]
pub struct BankConfig {
    /// The name of what makes the embeddings; patterns of others are not comparable.
    pub space: String,
    /// Values of an embedding.
    pub dim: usize,
    /// Options of the index of patterns.
    pub index: IndexConfig,
    /// Patterns, at most.
    pub n_patterns_max: usize,
    /// Bytes of one pattern's texts, at most.
    pub text_bytes_max: usize,
}

impl BankConfig {
    /// A bank of up to 100,000 patterns of 64 KiB of text, whose embeddings have `dim` values and come from `space`.
    pub fn new(space: impl Into<String>, dim: usize) -> BankConfig {
        let (index, n_patterns_max, text_bytes_max) = (IndexConfig::default(), 100_000, 64 << 10);
        BankConfig { space: space.into(), dim, index, n_patterns_max, text_bytes_max }
    }
}

/// A pattern that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Its id.
    pub id: u64,
    /// The cosine between its embedding and the query.
    pub similarity: f32,
    /// The pattern.
    pub pattern: Pattern,
}

struct State {
    index: VectorIndex,
    facts: HashMap<u64, Facts>,
    next_id: u64,
    /// What is worth saving of the graph is saved.
    is_saved: bool,
    /// The last pattern of each verdict that was looked at to distill it.
    looked_at: [u64; Verdict::ALL.len()],
}

impl State {
    fn forget(&mut self, gone: &[u64]) {
        for id in gone {
            self.index.remove(*id);
            self.facts.remove(id);
        }
        self.is_saved &= gone.is_empty();
    }
}

/// Patterns that are to go in somebody else's transaction. While it lives nobody else changes patterns.
pub struct Removal<'a> {
    bank: &'a ReasoningBank,
    gone: Vec<u64>,
    _writing: MutexGuard<'a, ()>,
}

impl Removal<'_> {
    /// Puts it into a transaction of the bank's store.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, change: &mut dyn Transaction) -> Result<(), SonaError> {
        self.bank.write_removal(change, &self.gone)
    }

    /// Lets the patterns go, once the transaction is committed; returns how many went.
    pub fn committed(self) -> usize {
        self.bank.write().forget(&self.gone);
        self.gone.len()
    }
}

/// The patterns of one tenant. Shared by threads: searches run beside each other, changes one after another.
pub struct ReasoningBank {
    store: Arc<dyn Store>,
    tenant: String,
    config: BankConfig,
    state: RwLock<State>,
    /// Held by whoever changes patterns, so that what is read, decided and written belongs together.
    writing: Mutex<()>,
}

impl ReasoningBank {
    /// Opens a tenant's bank in `store`. `progress` hears of the graph, if it has to be made anew (a minute for 100,000).
    ///
    /// # Errors
    /// If the store cannot be read, or its patterns have another width.
    pub fn open(
        store: Arc<dyn Store>,
        tenant: &str,
        config: BankConfig,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<ReasoningBank, SonaError> {
        let (mut facts, mut vectors, mut graph) = (HashMap::new(), vec![], vec![]);
        {
            let snapshot = store.snapshot()?;
            snapshot.scan(PATTERNS, &Scan::all(tenant.as_bytes()), &mut |key, value| {
                let (id, pattern) = (number_of_key(key, "pattern")?, Pattern::from_bytes(value)?);
                check_dim(&config, &pattern)?;
                facts.insert(id, Facts::of(&pattern));
                vectors.push((id, pattern.embedding));
                Ok(true)
            })?;
            snapshot.scan(GRAPHS, &Scan::all(tenant.as_bytes()), &mut |_, piece| {
                graph.extend_from_slice(piece);
                Ok(true)
            })?;
        }
        let by_id: HashMap<u64, &[f32]> = vectors.iter().map(|(id, vector)| (*id, vector.as_slice())).collect();
        let saved = VectorIndex::from_bytes(config.index, &graph, &by_id)?.filter(|index| index.dim() == config.dim);
        let (is_saved, looked_at) = (facts.is_empty(), [0; Verdict::ALL.len()]);
        let index = match saved {
            Some(index) => index,
            None => {
                let vectors = vectors.iter().map(|(id, vector)| (*id, vector.as_slice()));
                VectorIndex::build(config.dim, config.index, vectors, progress)?
            }
        };
        // Numbers are given once: those of deleted patterns too, as long as the process lives.
        let next_id = facts.keys().max().map_or(1, |id| id + 1);
        let state = RwLock::new(State { index, facts, next_id, is_saved, looked_at });
        Ok(ReasoningBank { store, tenant: tenant.into(), config, state, writing: Mutex::new(()) })
    }

    /// Returns how many patterns there are.
    pub fn len(&self) -> usize {
        self.read().facts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a pattern and returns its id; it is on disk then. In a full bank the least useful are evicted.
    ///
    /// # Errors
    /// With kind `Shape`, `Value` or `Limit` if the pattern does not fit; or if it cannot be written.
    pub fn add(&self, pattern: &Pattern) -> Result<u64, SonaError> {
        let _writing = self.writing();
        Ok(self.replace(&[], std::slice::from_ref(pattern))?.remove(0))
    }

    /// Returns a pattern.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn get(&self, id: u64) -> Result<Option<Pattern>, SonaError> {
        let value = self.store.snapshot()?.get(PATTERNS, self.scope(), &id.to_be_bytes())?;
        value.map(|value| Pattern::from_bytes(&value)).transpose()
    }

    /// Deletes a pattern; returns whether there was one.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn remove(&self, id: u64) -> Result<bool, SonaError> {
        let _writing = self.writing();
        let is_there = self.read().facts.contains_key(&id);
        if is_there {
            self.replace(&[id], &[])?;
        }
        Ok(is_there)
    }

    /// Prepares to delete the patterns that came from one of these items, and those that they were distilled into, in a
    /// transaction of the same store that takes the items themselves back: a process that dies has both or neither.
    pub fn removal_of(&self, items: &[u64]) -> Removal<'_> {
        let _writing = self.writing();
        let gone = self.ids_where(|facts| facts.items.iter().any(|item| items.contains(item)));
        Removal { bank: self, gone, _writing }
    }

    /// Deletes all patterns; returns how many. [`Store::scrub`] takes them off the disk behind that.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn clear(&self) -> Result<usize, SonaError> {
        let _writing = self.writing();
        let gone = self.ids_where(|_| true);
        if !gone.is_empty() {
            self.replace(&gone, &[])?;
        }
        Ok(gone.len())
    }

    fn ids_where(&self, is_meant: impl Fn(&Facts) -> bool) -> Vec<u64> {
        self.read().facts.iter().filter(|(_, facts)| is_meant(facts)).map(|(id, _)| *id).collect()
    }

    /// Returns the newest `n` of the patterns that `select` means, the newest first, with their ids.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn newest(&self, n: usize, select: &Select) -> Result<Vec<(u64, Pattern)>, SonaError> {
        let mut ids = self.ids_where(|facts| select.takes(facts));
        ids.sort_unstable_by(|a, b| b.cmp(a));
        ids.truncate(n);
        // One that was deleted between the two is left out.
        let read = |id: u64| Ok(self.get(id)?.map(|pattern| (id, pattern)));
        ids.into_iter().filter_map(|id| read(id).transpose()).collect()
    }

    /// Records that a pattern was used and how good that came out, 0 to 1; returns whether there is one. The record is on disk
    /// with the next durable change.
    ///
    /// # Errors
    /// With kind `Value` if `quality` is out of its range; or if it cannot be written.
    pub fn record_use(&self, id: u64, quality: f32) -> Result<bool, SonaError> {
        pattern::check_quality(quality)?;
        let _writing = self.writing();
        let Some(mut pattern) = self.get(id)? else { return Ok(false) };
        pattern.n_uses = pattern.n_uses.saturating_add(1);
        pattern.quality += NEWEST_SHARE * (quality - pattern.quality);
        let mut change = self.store.begin(Durability::Relaxed)?;
        change.put(PATTERNS, self.scope(), &id.to_be_bytes(), &pattern.to_bytes())?;
        change.commit()?;
        self.write().facts.insert(id, Facts::of(&pattern));
        Ok(true)
    }

    /// Returns the nearest `k` of the patterns that `select` means, nearest first.
    ///
    /// # Errors
    /// With kind `Shape` or `Value` if the query does not fit; or if the store cannot be read.
    pub fn search(&self, query: &[f32], k: usize, select: &Select) -> Result<Vec<Found>, SonaError> {
        let hits = {
            let state = self.read();
            let takes = |id: u64| state.facts.get(&id).is_some_and(|facts| select.takes(facts));
            let filter: Option<crate::index::IdFilter<'_>> =
                if *select == Select::default() { None } else { Some(&takes) };
            state.index.search(query, k, filter)?
        };
        let snapshot = self.store.snapshot()?;
        let mut found = Vec::with_capacity(hits.len());
        for hit in hits {
            // One that was deleted between the two is left out.
            if let Some(value) = snapshot.get(PATTERNS, self.scope(), &hit.id.to_be_bytes())? {
                found.push(Found { id: hit.id, similarity: hit.similarity, pattern: Pattern::from_bytes(&value)? });
            }
        }
        Ok(found)
    }

    /// Lets the least useful go until there are no more than `n_max`; returns how many went. Age is no reason.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn prune(&self, n_max: usize) -> Result<usize, SonaError> {
        let _writing = self.writing();
        let gone = self.least_useful(self.len().saturating_sub(n_max));
        self.replace(&gone, &[])?;
        Ok(gone.len())
    }

    /// Does what is due, if anything changed: makes the graph anew if many deleted patterns are in it (searches go on meanwhile) and saves
    /// it, so that the next start need not make it. For a thread that has time.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn maintain(&self, progress: &mut dyn FnMut(usize, usize)) -> Result<(), SonaError> {
        let _writing = self.writing();
        if self.read().is_saved {
            return Ok(());
        }
        let rows: Option<Vec<(u64, Vec<f32>)>> = {
            let state = self.read();
            let row = |id: &u64| (*id, state.index.vector(*id).expect("every pattern is in the index").to_vec());
            state.index.wants_rebuild().then(|| sorted_ids(&state.facts).iter().map(row).collect())
        };
        if let Some(rows) = rows {
            let rows = rows.iter().map(|(id, row)| (*id, row.as_slice()));
            let index = VectorIndex::build(self.config.dim, self.config.index, rows, progress)?;
            self.write().index = index;
        }
        let bytes = self.read().index.to_bytes().unwrap_or_default();
        let mut change = self.store.begin(Durability::Durable)?;
        change.remove_scope(GRAPHS, self.scope())?;
        for (i, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
            change.put(GRAPHS, self.scope(), &(i as u32).to_be_bytes(), piece)?;
        }
        change.commit()?;
        self.write().is_saved = true;
        Ok(())
    }

    /// Removes and adds patterns in one transaction, then in memory; returns the new ids. The caller holds `writing`.
    fn replace(&self, removed: &[u64], added: &[Pattern]) -> Result<Vec<u64>, SonaError> {
        for pattern in added {
            self.check(pattern)?;
        }
        let n_after = self.len() - removed.len() + added.len();
        let n_surplus = n_after.saturating_sub(self.config.n_patterns_max);
        let mut gone = removed.to_vec();
        if n_surplus > 0 {
            let n_gone = n_surplus.max(self.config.n_patterns_max / MAKE_ROOM_SHARE).min(self.len());
            gone.extend(self.least_useful(n_gone).into_iter().filter(|id| !removed.contains(id)));
        }
        let next_id = self.read().next_id;
        let ids: Vec<u64> = (next_id..).take(added.len()).collect();
        let mut change = self.store.begin(Durability::Durable)?;
        self.write_removal(change.as_mut(), &gone)?;
        for (id, pattern) in ids.iter().zip(added) {
            change.put(PATTERNS, self.scope(), &id.to_be_bytes(), &pattern.to_bytes())?;
        }
        change.commit()?;
        let state = &mut *self.write();
        state.forget(&gone);
        for (id, pattern) in ids.iter().zip(added) {
            state.index.insert(*id, &pattern.embedding)?;
            state.facts.insert(*id, Facts::of(pattern));
        }
        state.next_id = next_id + added.len() as u64;
        state.is_saved &= added.is_empty();
        Ok(ids)
    }

    fn write_removal(&self, change: &mut dyn Transaction, gone: &[u64]) -> Result<(), SonaError> {
        for id in gone {
            change.remove(PATTERNS, self.scope(), &id.to_be_bytes())?;
        }
        if !gone.is_empty() {
            // The saved graph knows them: it goes too, until it is saved anew.
            change.remove_scope(GRAPHS, self.scope())?;
        }
        Ok(())
    }

    fn check(&self, pattern: &Pattern) -> Result<(), SonaError> {
        check_dim(&self.config, pattern)?;
        pattern.check()?;
        let (n, most) = (pattern.text_bytes(), self.config.text_bytes_max);
        match n <= most {
            true => Ok(()),
            false => Err(limit(format!("a pattern of {n} bytes of text; at most {most}"))),
        }
    }

    /// The ids of the `n` least useful patterns, the older of equals first.
    fn least_useful(&self, n: usize) -> Vec<u64> {
        let state = self.read();
        let mut order: Vec<(f32, u64)> = state.facts.iter().map(|(id, facts)| (facts.usefulness, *id)).collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        order.into_iter().take(n).map(|(_, id)| id).collect()
    }

    fn scope(&self) -> &[u8] {
        self.tenant.as_bytes()
    }

    /// What is changed under these locks is whole at each step, so a poisoned one is as good as another.
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes everything of a tenant's bank from the store; [`Store::scrub`] takes it off the disk behind the commit.
///
/// # Errors
/// If it cannot be written.
pub fn forget_tenant(change: &mut dyn Transaction, tenant: &str) -> Result<usize, SonaError> {
    change.remove_scope(GRAPHS, tenant.as_bytes())?;
    Ok(change.remove_scope(PATTERNS, tenant.as_bytes())?)
}

fn check_dim(config: &BankConfig, pattern: &Pattern) -> Result<(), SonaError> {
    let (n, dim) = (pattern.embedding.len(), config.dim);
    match n == dim {
        true => Ok(()),
        false => {
            let message = format!("a pattern's embedding has {n} values, this bank's ({}) have {dim}", config.space);
            Err(SonaError::new(SonaErrorKind::Shape, message))
        }
    }
}

fn sorted_ids(facts: &HashMap<u64, Facts>) -> Vec<u64> {
    let mut ids: Vec<u64> = facts.keys().copied().collect();
    ids.sort_unstable();
    ids
}
