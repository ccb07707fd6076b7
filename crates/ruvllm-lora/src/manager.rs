//! Adapters by name: which are known, where each one is, and which must go when memory runs short.
//!
//! | state | what is there | what using it costs |
//! |---|---|---|
//! | hot | factors in the kernels' form, within the budget | nothing |
//! | warm | the files' directory, mapped | bringing the values into that form |
//! | cold | a path | reading the files as well |
//!
//! What was not used for longest is evicted: first to 85 % of the budget, then, once that is reached, down to 70 %, so that
//! a full memory is not emptied one by one. Nothing that a sequence uses can go; an adapter that is replaced or removed
//! while it is used lives until its last sequence ends, counts until then, and no request fails by it.
//!
//! Each belongs to a tenant, or to everybody (tenant 0). A tenant finds its own by their names and then everybody's, and
//! nobody else's: two may use the same name for different adapters.

mod state;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use ruvllm_kvcache::{MemoryBudget, PAGE_BYTES};

use crate::adapter::Adapter;
use crate::bound::{BaseWeights, BoundAdapter, FactorFormat, Targets};
use crate::error::{LoraError, LoraErrorKind, shown};
use crate::format;
use state::{Entry, State, unknown};

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 128;

/// The most adapters that are known at once.
pub const N_KNOWN_MAX: usize = 1 << 16;

/// Whose an adapter is, and its name.
type Key = (u64, String);

/// Where an adapter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// Ready to be multiplied with.
    Hot,
    /// Its files are mapped.
    Warm,
    /// On disk.
    Cold,
}

impl Residency {
    /// Returns the name used in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Residency::Hot => "hot",
            Residency::Warm => "warm",
            Residency::Cold => "cold",
        }
    }
}

/// Description of an adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterInfo {
    /// Its name.
    pub name: String,
    /// Its files.
    pub path: PathBuf,
    /// Whose it is; 0 is everybody's.
    pub tenant: u64,
    /// Number of adapters that had the name before it, plus one.
    pub generation: u64,
    /// Its largest rank, once its files were read.
    pub rank: Option<usize>,
    /// Where it is.
    pub residency: Residency,
    /// Whether it stays hot.
    pub is_pinned: bool,
    /// Bytes of the budget that it has.
    pub n_bytes: usize,
    /// Number of times that it was asked for.
    pub n_uses: u64,
}

/// State of a manager, and its counters since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ManagerStats {
    /// Bytes of the budget in use, those of adapters that were replaced but are still used among them.
    pub held_bytes: usize,
    /// Requests that found their adapter hot.
    pub n_hits: u64,
    /// Requests that found it warm or cold.
    pub n_loads: u64,
    /// Adapters that were evicted.
    pub n_evictions: u64,
    /// Bytes that adapters may have.
    pub total_bytes: usize,
    /// Bytes that are taken of memory that is shared, in whole pages.
    pub shared_bytes: usize,
    /// Adapters that are hot now.
    pub n_hot: usize,
    /// Number of warm adapters.
    pub n_warm: usize,
    /// Number of cold adapters.
    pub n_cold: usize,
}

/// Memory that adapters share with somebody else, in pages of [`PAGE_BYTES`].
pub trait SharedMemory: Send + Sync {
    /// Takes pages, for which the other may have to give up something, and returns whether it got them. It may wait for
    /// the other, which may ask the manager meanwhile: see [`AdapterManager::evict`].
    fn take(&self, n_pages: usize) -> bool;

    /// Gives pages back.
    fn give(&self, n_pages: usize);
}

/// Keeps adapters of one model within a budget. Every method may be called from any thread; loading stops nobody but
/// those who want the same adapter.
pub struct AdapterManager {
    targets: Arc<Targets>,
    base: Box<dyn BaseWeights + Send + Sync>,
    format: FactorFormat,
    n_warm_max: usize,
    state: Mutex<State>,
    /// Rung when a load is over.
    loaded: Condvar,
    /// Where pages come from; without it the budget is the manager's alone.
    shared: OnceLock<Box<dyn SharedMemory>>,
}

impl AdapterManager {
    /// Makes a manager of adapters for the model of `targets`, whose hot ones take no more than `budget`; the files of up
    /// to `n_warm_max` others stay mapped.
    pub fn new(
        targets: Arc<Targets>,
        base: Box<dyn BaseWeights + Send + Sync>,
        format: FactorFormat,
        budget: MemoryBudget,
        n_warm_max: usize,
    ) -> AdapterManager {
        let state = State::new(budget);
        let (state, loaded, shared) = (Mutex::new(state), Condvar::new(), OnceLock::new());
        AdapterManager { targets, base, format, n_warm_max, state, loaded, shared }
    }

    /// Takes memory from `memory` from now on, up to `n_pages_max` pages and within the budget. To be called once, before
    /// anything is loaded.
    pub fn share(&self, memory: Box<dyn SharedMemory>, n_pages_max: usize) {
        let mut state = self.lock();
        let n_bytes = state.budget.total_bytes().min(n_pages_max.saturating_mul(PAGE_BYTES));
        state.budget = MemoryBudget::new(n_bytes, &[]);
        // A second call keeps what was first.
        let _ = self.shared.set(memory);
    }

    /// Gives back `n_pages` of the shared memory, or as many as adapters that nobody uses have, and returns how many.
    pub fn evict(&self, n_pages: usize) -> usize {
        let mut state = self.lock();
        let n_kept = state.n_pages.saturating_sub(n_pages);
        while state.held_pages() > n_kept && state.evict_one(None) {}
        self.give_surplus(&mut state)
    }

    /// Returns how many pages of the shared memory [`AdapterManager::evict`] could give back.
    pub fn idle_pages(&self) -> usize {
        let mut state = self.lock();
        let idle: usize = state.entries.values().filter(|entry| entry.can_go()).map(Entry::hot_bytes).sum();
        let n_used = (state.held_bytes() - idle).div_ceil(PAGE_BYTES);
        state.n_pages.saturating_sub(n_used)
    }

    /// Gives back the pages that nothing lies in, and returns how many.
    fn give_surplus(&self, state: &mut State) -> usize {
        let Some(shared) = self.shared.get() else { return 0 };
        let n = state.n_pages.saturating_sub(state.held_pages());
        state.n_pages -= n;
        shared.give(n);
        n
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is whole by the time that anything could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the adapter at `path` known under a name, in place of what had it; it is read when it is first used.
    ///
    /// # Errors
    /// [`LoraErrorKind::Name`]: the name cannot be. [`LoraErrorKind::Limit`]: [`N_KNOWN_MAX`] are known.
    pub fn register(&self, name: &str, path: &Path, tenant: u64) -> Result<u64, LoraError> {
        check_name(name)?;
        self.lock().enter((tenant, name.to_owned()), path, None)
    }

    /// Adds an adapter after all of it was read and checked: a damaged one, or one for another model, changes nothing.
    ///
    /// # Errors
    /// As [`AdapterManager::register`]; the adapter cannot be read, does not fit the model or all memory for adapters, or
    /// holds what is no number.
    pub fn add(&self, name: &str, path: &Path, tenant: u64) -> Result<u64, LoraError> {
        check_name(name)?;
        let adapter = self.read(path)?;
        adapter.check_values()?;
        let need = self.targets.bound_bytes(&adapter, self.format)?;
        let mut state = self.lock();
        state.check_size(name, need)?;
        let generation = state.enter((tenant, name.to_owned()), path, Some(Arc::new(adapter)))?;
        state.cool(self.n_warm_max);
        Ok(generation)
    }

    /// Makes known what another manager of the same model knew, with its generations and pins.
    pub fn adopt(&self, known: &[AdapterInfo]) {
        let mut state = self.lock();
        for info in known {
            let key = (info.tenant, info.name.clone());
            state.generations.insert(key.clone(), info.generation.saturating_sub(1));
            if state.enter(key.clone(), &info.path, None).is_ok()
                && let Some(entry) = state.entries.get_mut(&key)
            {
                (entry.is_pinned, entry.n_uses, entry.rank) = (info.is_pinned, info.n_uses, info.rank);
            }
        }
    }

    fn read(&self, path: &Path) -> Result<Adapter, LoraError> {
        let adapter = format::read(path, self.targets.facts())?;
        self.targets.check(&adapter)?;
        Ok(adapter)
    }

    /// Forgets an adapter of a tenant. Sequences that use it go on.
    ///
    /// # Errors
    /// [`LoraErrorKind::Name`]: there is none of this name. [`LoraErrorKind::Denied`]: it is everybody's.
    pub fn remove(&self, name: &str, tenant: u64) -> Result<(), LoraError> {
        let mut state = self.lock();
        let key = state.own(name, tenant)?;
        let entry = state.entries.remove(&key).ok_or_else(|| unknown(name))?;
        state.retire(entry.hot);
        Ok(())
    }

    /// Keeps an adapter of a tenant hot from its next use on, or no longer.
    ///
    /// # Errors
    /// As [`AdapterManager::remove`].
    pub fn pin(&self, name: &str, tenant: u64, is_pinned: bool) -> Result<(), LoraError> {
        let mut state = self.lock();
        let key = state.own(name, tenant)?;
        state.entries.get_mut(&key).ok_or_else(|| unknown(name))?.is_pinned = is_pinned;
        Ok(())
    }

    /// Limits the bytes that a tenant's adapters have of the budget together; `None` lifts the limit.
    pub fn set_quota(&self, tenant: u64, bytes: Option<usize>) {
        let quotas = &mut self.lock().quotas;
        match bytes {
            Some(bytes) => drop(quotas.insert(tenant, bytes)),
            None => drop(quotas.remove(&tenant)),
        }
    }

    /// Returns what is known of every adapter, by name.
    pub fn list(&self) -> Vec<AdapterInfo> {
        let state = self.lock();
        let mut all: Vec<AdapterInfo> = state.entries.iter().map(|(key, entry)| entry.info(key)).collect();
        all.sort_by(|a, b| (&a.name, a.tenant).cmp(&(&b.name, b.tenant)));
        all
    }

    /// Returns what is known of the adapter that a tenant means by a name.
    pub fn find(&self, name: &str, tenant: u64) -> Option<AdapterInfo> {
        let state = self.lock();
        let key = state.resolve(name, tenant)?;
        state.entries.get(&key).map(|entry| entry.info(&key))
    }

    /// Returns what it did, and what it holds.
    pub fn stats(&self) -> ManagerStats {
        let mut state = self.lock();
        // What ended since the last look is known now.
        self.give_surplus(&mut state);
        let n_pages = state.n_pages;
        let mut stats = ManagerStats {
            shared_bytes: n_pages * PAGE_BYTES,
            held_bytes: state.held_bytes(),
            total_bytes: state.budget.total_bytes(),
            ..state.stats
        };
        for entry in state.entries.values() {
            match entry.residency() {
                Residency::Hot => stats.n_hot += 1,
                Residency::Warm => stats.n_warm += 1,
                Residency::Cold => stats.n_cold += 1,
            }
        }
        stats
    }

    /// Returns the adapter that a tenant means by a name, ready for use; it is loaded if it is not hot. It stays what it
    /// is for all callers that have it.
    ///
    /// # Errors
    /// There is none of this name; it cannot be read or does not fit the model; [`LoraErrorKind::Limit`]: it is larger
    /// than all the memory for adapters; [`LoraErrorKind::Budget`]: what is hot is in use, and there is no room left.
    pub fn get(&self, name: &str, tenant: u64) -> Result<Arc<BoundAdapter>, LoraError> {
        let (key, path, generation, warm) = {
            let mut state = self.lock();
            state.clock += 1;
            let clock = state.clock;
            let key = state.resolve(name, tenant).ok_or_else(|| unknown(name))?;
            if let Some(entry) = state.entries.get_mut(&key) {
                (entry.last_use, entry.n_uses) = (clock, entry.n_uses + 1);
            }
            loop {
                let entry = state.entries.get(&key).ok_or_else(|| unknown(name))?;
                if let Some(hot) = entry.hot.clone() {
                    state.stats.n_hits += 1;
                    return Ok(hot);
                }
                let known = (entry.path.clone(), entry.generation, entry.warm.clone());
                if state.loading.insert(key.clone()) {
                    state.stats.n_loads += 1;
                    break (key, known.0, known.1, known.2);
                }
                state = self.loaded.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        };
        let result = self.load(&key, &path, generation, warm);
        self.lock().loading.remove(&key);
        self.loaded.notify_all();
        result
    }

    /// Loads an adapter that nobody else is loading.
    fn load(
        &self,
        key: &Key,
        path: &Path,
        generation: u64,
        warm: Option<Arc<Adapter>>,
    ) -> Result<Arc<BoundAdapter>, LoraError> {
        let name = &key.1;
        // One whose file was cut is read again: it may be whole by now.
        let adapter = match warm.filter(|adapter| adapter.check().is_ok()) {
            Some(adapter) => adapter,
            None => Arc::new(self.read(path).map_err(|error| error.within(format_args!("adapter '{name}'")))?),
        };
        let need = self.targets.bound_bytes(&adapter, self.format)?;
        self.reserve(key, need)?;
        let bound = self.targets.bind(&adapter, self.format, &*self.base);
        let mut state = self.lock();
        state.reserved_bytes -= need;
        let bound = Arc::new(bound.map_err(|error| error.within(format_args!("adapter '{name}'")))?);
        match state.entries.get_mut(key).filter(|entry| entry.generation == generation) {
            Some(entry) => {
                entry.rank = Some(adapter.rank_max());
                (entry.hot, entry.warm) = (Some(Arc::clone(&bound)), Some(adapter));
            }
            // Replaced meanwhile: this request began before that.
            None => state.retire(Some(Arc::clone(&bound))),
        }
        state.cool(self.n_warm_max);
        Ok(bound)
    }

    /// Makes room for `need` bytes and keeps them.
    fn reserve(&self, key: &Key, need: usize) -> Result<(), LoraError> {
        let Some(shared) = self.shared.get() else { return self.lock().reserve(key, need) };
        loop {
            let n_more = {
                let mut state = self.lock();
                state.make_room(key, need)?;
                let n_pages = (state.held_bytes() + need).div_ceil(PAGE_BYTES);
                let n_more = n_pages.saturating_sub(state.n_pages);
                if n_more == 0 {
                    state.reserve(key, need)?;
                    self.give_surplus(&mut state);
                    return Ok(());
                }
                n_more
            };
            // Not under the lock: the other owner of the memory may ask for what is idle here meanwhile.
            let is_taken = shared.take(n_more);
            let mut state = self.lock();
            if is_taken {
                state.n_pages += n_more;
            } else if !state.evict_one(None) {
                let (name, held) = (&key.1, state.held_bytes());
                let line = format!(
                    "adapter '{name}' needs {need} bytes beside {held}, requests have the rest of the memory; end one or allow more"
                );
                return Err(LoraError::new(LoraErrorKind::Budget, line));
            }
        }
    }
}

/// Checks that a name can be: letters, digits, `.`, `_` and `-`, not beginning with a dot. So it names no other place.
///
/// # Errors
/// [`LoraErrorKind::Name`].
pub fn check_name(name: &str) -> Result<(), LoraError> {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.starts_with('.') || !name.bytes().all(is_known) {
        let line = format!(
            "an adapter cannot be called '{}'; use up to {NAME_BYTES_MAX} of a-z, 0-9, '.', '_', '-'",
            shown(name)
        );
        return Err(LoraError::new(LoraErrorKind::Name, line));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
