//! The file of one model's texts: its records by tenant and time, bounded.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use ruvllm_engine::{Engine, EngineError};
use ruvllm_sona::store::{
    self, Durability, OpenOptions, Scan, Store, StoreError, StoreErrorKind, Table, time_key, time_of,
};

use super::{DraftHistoryOptions, SET_ASIDE};
use crate::file;

/// Tokens that were appended to a tenant's texts: by tenant and time, 4 bytes each.
pub(super) const TEXTS: Table = Table::new("draft texts");
/// Record that says which model the file is of.
const ABOUT: Table = Table::new("draft texts of");
const MODEL: &[u8] = b"model";

/// Opens the store of a model. A file that is no store, or another model's, is set aside.
pub(super) fn open_store(
    path: &Path,
    open: &OpenOptions<'_>,
    model: &[u8; 32],
    notes: &mut Vec<String>,
) -> Result<Arc<dyn Store>, StoreError> {
    if let Some(folder) = path.parent() {
        make_private(folder).map_err(|error| StoreError::new(StoreErrorKind::Io, error.to_string()))?;
    }
    let opened = store::open(path, open).and_then(|store| claimed(store, model));
    let why = match opened {
        Err(error) if error.kind() == StoreErrorKind::Invalid => error,
        opened => return opened,
    };
    let aside = path.with_extension(SET_ASIDE);
    fs::rename(path, &aside)
        .map_err(|error| StoreError::new(StoreErrorKind::Io, format!("{why}; and it cannot be set aside: {error}")))?;
    notes.push(format!("{why}; it was set aside as {}, and a new file of texts for drafts is begun", aside.display()));
    store::open(path, open).and_then(|store| claimed(store, model))
}

/// Makes a folder that only its owner looks into: texts lie there.
fn make_private(folder: &Path) -> Result<(), EngineError> {
    file::make_folder(folder)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        // A file system without modes keeps them as it can; the store's own file has mode 600.
        let _ = fs::set_permissions(folder, fs::Permissions::from_mode(0o700));
    }
    Ok(())
}

/// Checks that a store is this model's; a new one becomes it.
fn claimed(store: Arc<dyn Store>, model: &[u8; 32]) -> Result<Arc<dyn Store>, StoreError> {
    let about = store.snapshot()?.get(ABOUT, b"", MODEL)?;
    match about {
        Some(about) if about == model => {}
        Some(_) => {
            return Err(StoreError::new(StoreErrorKind::Invalid, "a file of texts for drafts is another model's"));
        }
        None if store.n_bytes() > 0 && !store.snapshot()?.scopes(TEXTS)?.is_empty() => {
            return Err(StoreError::new(StoreErrorKind::Invalid, "a file of texts for drafts names no model"));
        }
        None => {
            let mut change = store.begin(Durability::Durable)?;
            change.put(ABOUT, b"", MODEL, model)?;
            change.commit()?;
        }
    }
    Ok(store)
}

/// A store with what is to be known of its records.
pub(super) struct Log {
    store: Arc<dyn Store>,
    /// The most bytes of all texts; a tenant has at most half of them.
    bytes_max: usize,
    /// Tenant and bytes of each record, oldest first.
    records: BTreeMap<[u8; 16], (u64, usize)>,
    bytes_of: HashMap<u64, usize>,
    /// Time of the newest record.
    newest: (u64, u64),
}

impl Log {
    /// Reads all records into an engine; those that are wrong, or of tenants that are no more, are removed.
    pub(super) fn read(
        store: Arc<dyn Store>,
        bytes_max: usize,
        engine: &mut Engine,
        options: &DraftHistoryOptions,
        notes: &mut Vec<String>,
    ) -> Result<Log, StoreError> {
        let mut log = Log { store, bytes_max, records: BTreeMap::new(), bytes_of: HashMap::new(), newest: (0, 0) };
        let (mut texts, mut wrong) = (BTreeMap::<[u8; 16], (u64, Vec<u32>)>::new(), Vec::new());
        let snapshot = log.store.snapshot()?;
        for scope in snapshot.scopes(TEXTS)? {
            let tenant = <[u8; 8]>::try_from(&scope[..]).ok().map(u64::from_le_bytes);
            snapshot.scan(TEXTS, &Scan::all(&scope), &mut |key, value| {
                match (tenant, <[u8; 16]>::try_from(key), value.as_chunks::<4>()) {
                    (Some(tenant), Ok(key), (tokens, [])) => {
                        texts.insert(key, (tenant, tokens.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()));
                    }
                    _ => wrong.push((scope.clone(), key.to_vec())),
                }
                Ok(true)
            })?;
        }
        drop(snapshot);
        for (key, (tenant, tokens)) in texts {
            let is_there = options.tenants.contains(&tenant);
            if is_there && engine.runner_mut().restore_history(tenant, &tokens) {
                log.count(key, tenant, 4 * tokens.len());
            } else {
                wrong.extend(is_there.then(|| (tenant.to_le_bytes().to_vec(), key.to_vec())));
                log.bytes_of.entry(tenant).or_insert(0);
            }
        }
        if !wrong.is_empty() {
            notes.push(format!(
                "{} records of texts for drafts were not what was written; they are removed",
                wrong.len()
            ));
            let mut change = log.store.begin(Durability::Durable)?;
            wrong.iter().try_for_each(|(scope, key)| change.remove(TEXTS, scope, key).map(drop))?;
            change.commit()?;
        }
        log.forget_others(&options.tenants)?;
        log.write(&[])?;
        Ok(log)
    }

    fn count(&mut self, key: [u8; 16], tenant: u64, n_bytes: usize) {
        self.records.insert(key, (tenant, n_bytes));
        *self.bytes_of.entry(tenant).or_insert(0) += n_bytes;
        self.newest = self.newest.max(time_of(&key));
    }

    /// Returns the key of a new record: its time, and never one that was.
    fn next_key(&self) -> [u8; 16] {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        match self.newest {
            (newest, n) if newest >= now => time_key(newest, n + 1),
            _ => time_key(now, 0),
        }
    }

    /// Returns the records that are to go: the oldest of a tenant that has more than half of what there may be, then the oldest.
    fn surplus(&self) -> BTreeMap<[u8; 16], (u64, usize)> {
        let mut over: HashMap<u64, usize> =
            self.bytes_of.iter().map(|(&tenant, &n)| (tenant, n.saturating_sub(self.bytes_max / 2))).collect();
        let mut total: usize = self.bytes_of.values().sum();
        let mut surplus = BTreeMap::new();
        for by_tenant in [true, false] {
            for (&key, &(tenant, n_bytes)) in &self.records {
                let own = over.entry(tenant).or_insert(0);
                let goes = if by_tenant { *own > 0 } else { total > self.bytes_max };
                if goes && surplus.insert(key, (tenant, n_bytes)).is_none() {
                    *own = own.saturating_sub(n_bytes);
                    total -= n_bytes;
                }
            }
        }
        surplus
    }

    /// Appends texts of tenants in one transaction, and removes what is too much.
    pub(super) fn write(&mut self, texts: &[(u64, Vec<u32>)]) -> Result<(), StoreError> {
        let mut added = BTreeMap::new();
        for (tenant, tokens) in texts {
            let key = self.next_key();
            self.count(key, *tenant, 4 * tokens.len());
            added.insert(key, (*tenant, tokens));
        }
        let surplus = self.surplus();
        if added.is_empty() && surplus.is_empty() {
            return Ok(());
        }
        let written = self.commit(&added, &surplus);
        let gone = if written.is_ok() { surplus.into_keys().collect() } else { added.into_keys().collect::<Vec<_>>() };
        for (tenant, n_bytes) in gone.iter().filter_map(|key| self.records.remove(key)) {
            self.bytes_of.entry(tenant).and_modify(|n| *n -= n_bytes);
        }
        written
    }

    fn commit(
        &self,
        added: &BTreeMap<[u8; 16], (u64, &Vec<u32>)>,
        surplus: &BTreeMap<[u8; 16], (u64, usize)>,
    ) -> Result<(), StoreError> {
        let mut change = self.store.begin(Durability::Durable)?;
        for (key, (tenant, _)) in surplus {
            change.remove(TEXTS, &tenant.to_le_bytes(), key)?;
        }
        for (key, (tenant, tokens)) in added.iter().filter(|(key, _)| !surplus.contains_key(*key)) {
            let value: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
            change.put(TEXTS, &tenant.to_le_bytes(), key, &value)?;
        }
        change.commit()
    }

    pub(super) fn forget_others(&mut self, tenants: &[u64]) -> Result<(), StoreError> {
        let gone: Vec<u64> = self.bytes_of.keys().copied().filter(|tenant| !tenants.contains(tenant)).collect();
        self.forget(&gone)
    }

    /// Removes all of some tenants, from the places that were freed in the file as well.
    pub(super) fn forget(&mut self, tenants: &[u64]) -> Result<(), StoreError> {
        if tenants.is_empty() {
            return Ok(());
        }
        let mut change = self.store.begin(Durability::Durable)?;
        for tenant in tenants {
            change.remove_scope(TEXTS, &tenant.to_le_bytes())?;
        }
        change.commit()?;
        self.bytes_of.retain(|tenant, _| !tenants.contains(tenant));
        self.records.retain(|_, (tenant, _)| !tenants.contains(tenant));
        self.store.scrub()
    }
}
