//! Adapters by name: which are known, where each one is, and which must go when memory runs short.
//!
//! | state | what is there | what using it costs |
//! |---|---|---|
//! | hot | factors in the kernels' form, within the budget | nothing |
//! | warm | the files' directory, mapped | bringing the values into that form |
//! | cold | a path | reading the files as well |
//!
//! What was not used for longest gives way: first to 85 % of the budget, then, once that is reached, down to 70 %, so that
//! a full memory is not emptied one by one. Nothing that a sequence uses can go; an adapter that is replaced or removed
//! while it is used lives until its last sequence ends, counts until then, and no request fails by it.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use ruvllm_kvcache::{Level, MemoryBudget, Owner};

use crate::adapter::Adapter;
use crate::bound::{BaseWeights, BoundAdapter, FactorFormat, Targets};
use crate::error::{LoraError, LoraErrorKind, shown};
use crate::format;

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 128;

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

/// What is known about an adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterInfo {
    /// Its name.
    pub name: String,
    /// Its files.
    pub path: PathBuf,
    /// Whose it is; 0 is everybody's.
    pub tenant: u64,
    /// How many adapters had the name before it, plus one.
    pub generation: u64,
    /// Where it is.
    pub residency: Residency,
    /// Whether it stays hot.
    pub is_pinned: bool,
    /// Bytes of the budget that it has.
    pub n_bytes: usize,
    /// How often it was asked for.
    pub n_uses: u64,
}

/// What a manager did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ManagerStats {
    /// Bytes of the budget in use, those of adapters that were replaced but are still used among them.
    pub held_bytes: usize,
    /// Requests that found their adapter hot.
    pub n_hits: u64,
    /// Requests that found it warm or cold.
    pub n_loads: u64,
    /// Adapters that gave way.
    pub n_evictions: u64,
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
}

struct State {
    budget: MemoryBudget,
    entries: HashMap<String, Entry>,
    /// Replaced or removed, and still used.
    retired: Vec<Arc<BoundAdapter>>,
    /// What is being loaded, and the bytes that are kept for it.
    loading: HashSet<String>,
    reserved_bytes: usize,
    quotas: HashMap<u64, usize>,
    /// Counts uses; an entry's is that of its last.
    clock: u64,
    generations: HashMap<String, u64>,
    stats: ManagerStats,
}

struct Entry {
    path: PathBuf,
    tenant: u64,
    generation: u64,
    is_pinned: bool,
    warm: Option<Arc<Adapter>>,
    hot: Option<Arc<BoundAdapter>>,
    last_use: u64,
    n_uses: u64,
}

impl Entry {
    fn residency(&self) -> Residency {
        match (&self.hot, &self.warm) {
            (Some(_), _) => Residency::Hot,
            (None, Some(_)) => Residency::Warm,
            (None, None) => Residency::Cold,
        }
    }

    fn hot_bytes(&self) -> usize {
        self.hot.as_ref().map_or(0, |hot| hot.n_bytes())
    }

    /// Returns whether it may give way: nobody uses it.
    fn can_go(&self) -> bool {
        !self.is_pinned && self.hot.as_ref().is_some_and(|hot| Arc::strong_count(hot) == 1)
    }
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
        let state = State {
            budget,
            entries: HashMap::new(),
            retired: Vec::new(),
            loading: HashSet::new(),
            reserved_bytes: 0,
            quotas: HashMap::new(),
            clock: 0,
            generations: HashMap::new(),
            stats: ManagerStats::default(),
        };
        AdapterManager { targets, base, format, n_warm_max, state: Mutex::new(state), loaded: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is whole by the time that anything could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the adapter at `path` known under a name, in place of what had it; it is read when it is first used.
    ///
    /// # Errors
    /// [`LoraErrorKind::Name`]: the name cannot be.
    pub fn register(&self, name: &str, path: &Path, tenant: u64) -> Result<u64, LoraError> {
        check_name(name)?;
        Ok(self.lock().enter(name, path, tenant, None))
    }

    /// The same, after all of it was read and checked: a damaged one, or one for another model, changes nothing.
    ///
    /// # Errors
    /// The name cannot be, or the adapter cannot be read, does not fit the model or holds what is no number.
    pub fn add(&self, name: &str, path: &Path, tenant: u64) -> Result<u64, LoraError> {
        check_name(name)?;
        let adapter = self.read(path)?;
        adapter.check_values()?;
        let mut state = self.lock();
        let generation = state.enter(name, path, tenant, Some(Arc::new(adapter)));
        state.cool(self.n_warm_max);
        Ok(generation)
    }

    fn read(&self, path: &Path) -> Result<Adapter, LoraError> {
        let adapter = format::read(path, self.targets.facts())?;
        self.targets.check(&adapter)?;
        Ok(adapter)
    }

    /// Forgets an adapter. Sequences that use it go on.
    ///
    /// # Errors
    /// [`LoraErrorKind::Name`]: there is none of this name.
    pub fn remove(&self, name: &str) -> Result<(), LoraError> {
        let mut state = self.lock();
        let entry = state.entries.remove(name).ok_or_else(|| unknown(name))?;
        state.retire(entry.hot);
        Ok(())
    }

    /// Keeps an adapter hot from its next use on, or no longer.
    ///
    /// # Errors
    /// [`LoraErrorKind::Name`]: there is none of this name.
    pub fn pin(&self, name: &str, is_pinned: bool) -> Result<(), LoraError> {
        let mut state = self.lock();
        state.entries.get_mut(name).ok_or_else(|| unknown(name))?.is_pinned = is_pinned;
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
        let info = |(name, entry): (&String, &Entry)| AdapterInfo {
            name: name.clone(),
            path: entry.path.clone(),
            tenant: entry.tenant,
            generation: entry.generation,
            residency: entry.residency(),
            is_pinned: entry.is_pinned,
            n_bytes: entry.hot_bytes(),
            n_uses: entry.n_uses,
        };
        let mut all: Vec<AdapterInfo> = state.entries.iter().map(info).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Returns what it did, and what it holds.
    pub fn stats(&self) -> ManagerStats {
        let mut state = self.lock();
        ManagerStats { held_bytes: state.held_bytes(), ..state.stats }
    }

    /// Returns an adapter ready for use; it is loaded if it is not hot. It stays what it is for whoever has it.
    ///
    /// # Errors
    /// There is none of this name; it cannot be read or does not fit the model; [`LoraErrorKind::Budget`]: what is hot is
    /// in use, and there is no room beside it.
    pub fn get(&self, name: &str) -> Result<Arc<BoundAdapter>, LoraError> {
        let (path, generation, warm) = {
            let mut state = self.lock();
            state.clock += 1;
            let clock = state.clock;
            if let Some(entry) = state.entries.get_mut(name) {
                (entry.last_use, entry.n_uses) = (clock, entry.n_uses + 1);
            }
            loop {
                let entry = state.entries.get(name).ok_or_else(|| unknown(name))?;
                if let Some(hot) = entry.hot.clone() {
                    state.stats.n_hits += 1;
                    return Ok(hot);
                }
                let known = (entry.path.clone(), entry.generation, entry.warm.clone());
                if state.loading.insert(name.to_owned()) {
                    state.stats.n_loads += 1;
                    break known;
                }
                state = self.loaded.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        };
        let result = self.load(name, &path, generation, warm);
        self.lock().loading.remove(name);
        self.loaded.notify_all();
        result
    }

    /// Loads an adapter that nobody else is loading.
    fn load(
        &self,
        name: &str,
        path: &Path,
        generation: u64,
        warm: Option<Arc<Adapter>>,
    ) -> Result<Arc<BoundAdapter>, LoraError> {
        let adapter = match warm {
            Some(adapter) => adapter,
            None => Arc::new(self.read(path).map_err(|error| error.within(format_args!("adapter '{name}'")))?),
        };
        let need = Targets::bound_bytes(&adapter, self.format);
        self.lock().reserve(name, need)?;
        let bound = self.targets.bind(&adapter, self.format, &*self.base);
        let mut state = self.lock();
        state.reserved_bytes -= need;
        let bound = Arc::new(bound.map_err(|error| error.within(format_args!("adapter '{name}'")))?);
        match state.entries.get_mut(name).filter(|entry| entry.generation == generation) {
            Some(entry) => (entry.hot, entry.warm) = (Some(Arc::clone(&bound)), Some(adapter)),
            // Replaced meanwhile: this request began before that.
            None => state.retire(Some(Arc::clone(&bound))),
        }
        state.cool(self.n_warm_max);
        Ok(bound)
    }
}

impl State {
    fn enter(&mut self, name: &str, path: &Path, tenant: u64, warm: Option<Arc<Adapter>>) -> u64 {
        let generation = self.generations.entry(name.to_owned()).or_insert(0);
        *generation += 1;
        let generation = *generation;
        self.clock += 1;
        let entry = Entry {
            path: path.to_owned(),
            tenant,
            generation,
            is_pinned: false,
            warm,
            hot: None,
            last_use: self.clock,
            n_uses: 0,
        };
        if let Some(old) = self.entries.insert(name.to_owned(), entry) {
            self.retire(old.hot);
        }
        generation
    }

    /// Counts an adapter that is known no longer as long as somebody uses it.
    fn retire(&mut self, hot: Option<Arc<BoundAdapter>>) {
        self.retired.extend(hot);
    }

    fn held_bytes(&mut self) -> usize {
        self.retired.retain(|hot| Arc::strong_count(hot) > 1);
        let retired: usize = self.retired.iter().map(|hot| hot.n_bytes()).sum();
        retired + self.reserved_bytes + self.entries.values().map(Entry::hot_bytes).sum::<usize>()
    }

    /// Makes room for `need` bytes and keeps them.
    fn reserve(&mut self, name: &str, need: usize) -> Result<(), LoraError> {
        let tenant = self.entries.get(name).map_or(0, |entry| entry.tenant);
        if let Some(&quota) = self.quotas.get(&tenant) {
            let own = |state: &State| -> usize {
                state.entries.values().filter(|entry| entry.tenant == tenant).map(Entry::hot_bytes).sum()
            };
            while own(self) + need > quota {
                if !self.evict_one(Some(tenant)) {
                    let line = format!(
                        "adapter '{name}' needs {need} bytes, the tenant has {} of {quota} in use; end a request or raise its quota",
                        own(self)
                    );
                    return Err(LoraError::new(LoraErrorKind::Budget, line));
                }
            }
        }
        let total = self.budget.total_bytes();
        while self.held_bytes() + need > total && self.evict_one(None) {}
        let held = self.held_bytes();
        if held + need > total {
            let line = format!(
                "adapter '{name}' needs {need} bytes, {held} of {total} are in use; end a request or allow more"
            );
            return Err(LoraError::new(LoraErrorKind::Budget, line));
        }
        self.reserved_bytes += need;
        self.budget.set_held(&[(Owner::Adapters, held + need)]);
        // Relief goes on to the lower mark, so that the next load finds room at once.
        while self.budget.pressure().level == Level::High && self.evict_one(None) {
            let held = self.held_bytes();
            self.budget.set_held(&[(Owner::Adapters, held)]);
        }
        Ok(())
    }

    /// Lets the least recently used adapter go that can, of one tenant or of all; it stays warm.
    fn evict_one(&mut self, tenant: Option<u64>) -> bool {
        let is_ours = |entry: &&mut Entry| tenant.is_none_or(|tenant| entry.tenant == tenant) && entry.can_go();
        let Some(entry) = self.entries.values_mut().filter(is_ours).min_by_key(|entry| entry.last_use) else {
            return false;
        };
        entry.hot = None;
        self.stats.n_evictions += 1;
        true
    }

    /// Lets go of the files of all but `n_max` that are mapped and not hot.
    fn cool(&mut self, n_max: usize) {
        let mut warm: Vec<(u64, &mut Entry)> = Vec::new();
        for entry in self.entries.values_mut().filter(|entry| entry.residency() == Residency::Warm) {
            warm.push((entry.last_use, entry));
        }
        let n_out = warm.len().saturating_sub(n_max);
        if n_out > 0 {
            warm.sort_by_key(|&(last_use, _)| last_use);
            warm.into_iter().take(n_out).for_each(|(_, entry)| entry.warm = None);
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

fn unknown(name: &str) -> LoraError {
    LoraError::new(LoraErrorKind::Name, format!("there is no adapter '{}'; see the list of adapters", shown(name)))
}

#[cfg(test)]
mod tests;
