//! State of a manager under its lock: adapters by name, their memory, and which goes first.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ruvllm_kvcache::{Level, MemoryBudget, Owner, PAGE_BYTES};

use super::{AdapterInfo, Key, ManagerStats, N_KNOWN_MAX, Residency};
use crate::adapter::Adapter;
use crate::bound::BoundAdapter;
use crate::error::{LoraError, LoraErrorKind, shown};

/// Names whose generations are remembered in addition to those of known adapters.
const FORGOTTEN_MAX: usize = 4096;

pub(super) struct State {
    pub(super) budget: MemoryBudget,
    pub(super) entries: HashMap<Key, Entry>,
    /// Replaced or removed, and still used.
    pub(super) retired: Vec<Arc<BoundAdapter>>,
    /// What is being loaded, and the bytes that are kept for it.
    pub(super) loading: HashSet<Key>,
    pub(super) reserved_bytes: usize,
    /// Pages that are taken of the shared memory.
    pub(super) n_pages: usize,
    pub(super) quotas: HashMap<u64, usize>,
    /// Counts uses; an entry's is that of its last.
    pub(super) clock: u64,
    pub(super) generations: HashMap<Key, u64>,
    pub(super) stats: ManagerStats,
}

pub(super) struct Entry {
    pub(super) path: PathBuf,
    pub(super) generation: u64,
    pub(super) rank: Option<usize>,
    pub(super) is_pinned: bool,
    pub(super) warm: Option<Arc<Adapter>>,
    pub(super) hot: Option<Arc<BoundAdapter>>,
    pub(super) last_use: u64,
    pub(super) n_uses: u64,
}

impl Entry {
    pub(super) fn residency(&self) -> Residency {
        match (&self.hot, &self.warm) {
            (Some(_), _) => Residency::Hot,
            (None, Some(_)) => Residency::Warm,
            (None, None) => Residency::Cold,
        }
    }

    pub(super) fn info(&self, (tenant, name): &Key) -> AdapterInfo {
        AdapterInfo {
            name: name.clone(),
            path: self.path.clone(),
            tenant: *tenant,
            generation: self.generation,
            rank: self.rank,
            residency: self.residency(),
            is_pinned: self.is_pinned,
            n_bytes: self.hot_bytes(),
            n_uses: self.n_uses,
        }
    }

    pub(super) fn hot_bytes(&self) -> usize {
        self.hot.as_ref().map_or(0, |hot| hot.n_bytes())
    }

    /// Returns whether it may be evicted: nobody uses it.
    pub(super) fn can_go(&self) -> bool {
        !self.is_pinned && self.hot.as_ref().is_some_and(|hot| Arc::strong_count(hot) == 1)
    }
}

impl State {
    /// Makes the state of a manager that knows no adapter.
    pub(super) fn new(budget: MemoryBudget) -> State {
        State {
            budget,
            entries: HashMap::new(),
            retired: Vec::new(),
            loading: HashSet::new(),
            reserved_bytes: 0,
            n_pages: 0,
            quotas: HashMap::new(),
            clock: 0,
            generations: HashMap::new(),
            stats: ManagerStats::default(),
        }
    }

    /// Returns the adapter that a tenant means by a name: its own, else everybody's.
    pub(super) fn resolve(&self, name: &str, tenant: u64) -> Option<Key> {
        [tenant, 0].into_iter().map(|tenant| (tenant, name.to_owned())).find(|key| self.entries.contains_key(key))
    }

    /// Returns the adapter of a tenant's own.
    pub(super) fn own(&self, name: &str, tenant: u64) -> Result<Key, LoraError> {
        match self.resolve(name, tenant) {
            Some(key) if key.0 == tenant => Ok(key),
            Some(_) => {
                let line = format!("adapter '{}' is everybody's; only who runs the server changes it", shown(name));
                Err(LoraError::new(LoraErrorKind::Denied, line))
            }
            None => Err(unknown(name)),
        }
    }

    pub(super) fn enter(&mut self, key: Key, path: &Path, warm: Option<Arc<Adapter>>) -> Result<u64, LoraError> {
        if self.entries.len() >= N_KNOWN_MAX && !self.entries.contains_key(&key) {
            let line = format!("{N_KNOWN_MAX} adapters are known, which is the most; remove one");
            return Err(LoraError::new(LoraErrorKind::Limit, line));
        }
        // Names that come and go for ever are not remembered for ever.
        if self.generations.len() > 2 * self.entries.len() + FORGOTTEN_MAX {
            let entries = &self.entries;
            self.generations.retain(|key, _| entries.contains_key(key));
        }
        let generation = self.generations.entry(key.clone()).or_insert(0);
        *generation += 1;
        let generation = *generation;
        self.clock += 1;
        let old = self.entries.get(&key);
        let entry = Entry {
            path: path.to_owned(),
            generation,
            rank: warm.as_ref().map(|adapter| adapter.rank_max()),
            is_pinned: old.is_some_and(|old| old.is_pinned),
            warm,
            hot: None,
            last_use: self.clock,
            n_uses: 0,
        };
        if let Some(old) = self.entries.insert(key, entry) {
            self.retire(old.hot);
        }
        Ok(generation)
    }

    /// Counts an adapter that is known no longer as long as somebody uses it.
    pub(super) fn retire(&mut self, hot: Option<Arc<BoundAdapter>>) {
        self.retired.extend(hot);
    }

    pub(super) fn held_bytes(&mut self) -> usize {
        self.retired.retain(|hot| Arc::strong_count(hot) > 1);
        let retired: usize = self.retired.iter().map(|hot| hot.n_bytes()).sum();
        retired + self.reserved_bytes + self.entries.values().map(Entry::hot_bytes).sum::<usize>()
    }

    /// Checks that an adapter of `need` bytes would fit if there were no others.
    pub(super) fn check_size(&self, name: &str, need: usize) -> Result<(), LoraError> {
        let total = self.budget.total_bytes();
        if need <= total {
            return Ok(());
        }
        let line = format!("adapter '{name}' needs {need} bytes, adapters may have {total}; allow them more");
        Err(LoraError::new(LoraErrorKind::Limit, line))
    }

    pub(super) fn held_pages(&mut self) -> usize {
        self.held_bytes().div_ceil(PAGE_BYTES)
    }

    /// Makes room for `need` bytes within quota and budget.
    pub(super) fn make_room(&mut self, (tenant, name): &Key, need: usize) -> Result<(), LoraError> {
        let (tenant, total) = (*tenant, self.budget.total_bytes());
        self.check_size(name, need)?;
        if let Some(&quota) = self.quotas.get(&tenant) {
            let own = |state: &State| -> usize {
                let own = state.entries.iter().filter(|(key, _)| key.0 == tenant);
                own.map(|(_, entry)| entry.hot_bytes()).sum()
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
        while self.held_bytes() + need > total && self.evict_one(None) {}
        let held = self.held_bytes();
        if held + need > total {
            let line = format!(
                "adapter '{name}' needs {need} bytes, {held} of {total} are in use; end a request or allow more"
            );
            return Err(LoraError::new(LoraErrorKind::Budget, line));
        }
        Ok(())
    }

    /// Makes room for `need` bytes and keeps them.
    pub(super) fn reserve(&mut self, key: &Key, need: usize) -> Result<(), LoraError> {
        self.make_room(key, need)?;
        let held = self.held_bytes();
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
    pub(super) fn evict_one(&mut self, tenant: Option<u64>) -> bool {
        let is_ours = |key: &Key| tenant.is_none_or(|tenant| key.0 == tenant);
        let idle = self.entries.iter_mut().filter(|(key, entry)| is_ours(key) && entry.can_go());
        let Some((_, entry)) = idle.min_by_key(|(_, entry)| entry.last_use) else { return false };
        entry.hot = None;
        self.stats.n_evictions += 1;
        true
    }

    /// Lets go of the files of all but `n_max` that are mapped and not hot.
    pub(super) fn cool(&mut self, n_max: usize) {
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

pub(super) fn unknown(name: &str) -> LoraError {
    LoraError::new(LoraErrorKind::Name, format!("there is no adapter '{}'; see the list of adapters", shown(name)))
}
