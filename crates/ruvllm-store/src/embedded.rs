//! The store in one file: redb, a copy-on-write B-tree.

use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use redb::{ReadableDatabase as _, ReadableTable as _, TableError};
use web_time::{Duration, Instant};

use crate::error::{StoreError, StoreErrorKind, invalid, limit};
use crate::file::{self, Guard, Setup};
use crate::rows::{Bytes, SIZE, behind, copy, db_error, definition, file_key, get, scan, scopes, size, split};
use crate::{Durability, Removed, Retention, Scan, Snapshot, Store, Table, Transaction, Visit, time_of};

/// Sizes that are not exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one value.
    pub value_bytes_max: usize,
    /// Bytes of all keys and values. The file has overhead on top, and space that was freed and is used again.
    pub store_bytes_max: u64,
    /// Memory for pages of the file.
    pub cache_bytes: usize,
}

impl Default for Limits {
    /// 16 MiB, 8 GiB and 64 MiB.
    fn default() -> Limits {
        Limits { value_bytes_max: 16 << 20, store_bytes_max: 8 << 30, cache_bytes: 64 << 20 }
    }
}

/// A store in one file. A durable commit survives `kill -9` and a loss of power; what a process that died left half done
/// is taken back when the file is opened next.
pub struct EmbeddedStore {
    /// Replaced when the file is written anew; what reads goes on with the one it began with.
    db: RwLock<Opened>,
    /// The file could not be read or written: it is opened again before the next use.
    is_broken: AtomicBool,
    /// Held by what writes.
    writing: Mutex<()>,
    path: PathBuf,
    setup: Setup,
    n_bytes: AtomicU64,
}

/// The file, and how it was opened last.
struct Opened {
    /// None while it cannot be.
    db: Option<Arc<redb::Database>>,
    /// When it was opened again, or could not be.
    tried: Option<Instant>,
    /// Why it could not be.
    why: Option<(StoreErrorKind, String)>,
}

impl Opened {
    fn new(db: redb::Database) -> Opened {
        Opened { db: Some(Arc::new(db)), tried: None, why: None }
    }
}

/// Time between two tries to open the file again: opening one that was not closed reads all of it. Who makes the disk fail does not
/// wait.
const RETRY: Duration = Duration::from_millis(1000);

/// Below this share of live bytes, opening makes the file smaller.
const COMPACT_BELOW: f64 = 0.5;

/// No file is made smaller below this size.
const COMPACT_BYTES_MIN: u64 = 16 << 20;

impl EmbeddedStore {
    /// Opens the file, or makes it. A file that is mostly free space is compacted.
    ///
    /// # Errors
    /// With kind `Io` if it cannot be opened or another process has it; `Invalid` if it is no store.
    pub fn open(path: &Path, limits: Limits) -> Result<EmbeddedStore, StoreError> {
        EmbeddedStore::open_by(path, Setup { limits, guard: None })
    }

    /// Opens the file as [`EmbeddedStore::open`] does, on a disk that does what `guard` lets it do.
    ///
    /// # Errors
    /// As [`EmbeddedStore::open`].
    pub fn open_guarded(path: &Path, limits: Limits, guard: &Guard) -> Result<EmbeddedStore, StoreError> {
        EmbeddedStore::open_by(path, Setup { limits, guard: Some(Arc::clone(guard)) })
    }

    pub(crate) fn open_by(path: &Path, setup: Setup) -> Result<EmbeddedStore, StoreError> {
        let within = |error: StoreError| error.within(path.display());
        // What was left by a process that died while it wrote the file anew.
        let _ = std::fs::remove_file(beside(path));
        let file_bytes = std::fs::metadata(path).map_or(0, |file| file.len());
        let mut db = file::open_or_make(path, &setup).map_err(within)?;
        let n_bytes = file::guarded(|| size(&db)).map_err(within)?;
        if file_bytes > COMPACT_BYTES_MIN && (n_bytes as f64) < COMPACT_BELOW * file_bytes as f64 {
            file::guarded(|| db.compact().map_err(db_error)).map_err(within)?;
        }
        Ok(EmbeddedStore::of(db, n_bytes, path.to_owned(), setup))
    }

    /// Makes an empty store in memory, which ends with the process.
    ///
    /// # Errors
    /// With kind `Io` if it cannot be made.
    pub fn in_memory(limits: Limits) -> Result<EmbeddedStore, StoreError> {
        Ok(EmbeddedStore::of(file::in_memory(limits)?, 0, PathBuf::new(), Setup { limits, guard: None }))
    }

    fn of(db: redb::Database, n_bytes: u64, path: PathBuf, setup: Setup) -> EmbeddedStore {
        let (db, n_bytes) = (RwLock::new(Opened::new(db)), AtomicU64::new(n_bytes));
        let (writing, is_broken) = (Mutex::new(()), AtomicBool::new(false));
        EmbeddedStore { db, is_broken, writing, path, setup, n_bytes }
    }

    /// Returns whether there is no file that could be opened again or written anew.
    fn is_in_memory(&self) -> bool {
        self.path.as_os_str().is_empty()
    }

    /// Returns the open file; opens it again if it failed before. A pointer is whole at each moment, so a poisoned lock is as
    /// good as another.
    fn db(&self) -> Result<Arc<redb::Database>, StoreError> {
        if !self.is_broken.load(Ordering::Acquire)
            && let Some(db) = &self.db.read().unwrap_or_else(PoisonError::into_inner).db
        {
            return Ok(Arc::clone(db));
        }
        let mut opened = self.db.write().unwrap_or_else(PoisonError::into_inner);
        let opened = &mut *opened;
        let is_early = self.setup.guard.is_none() && opened.tried.is_some_and(|tried| tried.elapsed() < RETRY);
        match opened.db.take() {
            // Somebody else has opened it meanwhile, or it is too early: then it may still be read.
            Some(db) if is_early || !self.is_broken.load(Ordering::Acquire) => return Ok(opened.db.insert(db).clone()),
            // It is locked until it is closed, and whoever reads goes on with what it began with.
            Some(db) => match Arc::try_unwrap(db) {
                // Closing writes, and may meet damage.
                Ok(db) => drop(file::guarded(|| {
                    drop(db);
                    Ok(())
                })),
                Err(db) => return Ok(opened.db.insert(db).clone()),
            },
            None if is_early => {
                let (kind, why) = opened.why.clone().unwrap_or((StoreErrorKind::Io, "the store is closed".to_owned()));
                return Err(StoreError::new(kind, why));
            }
            None => {}
        }
        opened.tried = Some(Instant::now());
        let again = file::open(&self.path, &self.setup).and_then(|db| file::guarded(|| size(&db)).map(|n| (db, n)));
        match again {
            Ok((db, n_bytes)) => {
                self.n_bytes.store(n_bytes, Relaxed);
                self.is_broken.store(false, Ordering::Release);
                opened.why = None;
                Ok(opened.db.insert(Arc::new(db)).clone())
            }
            Err(error) => {
                let error = error.within(self.path.display());
                opened.why = Some((error.kind(), error.to_string()));
                Err(error)
            }
        }
    }

    /// Reads or writes what may be damaged, where opening does not look, and takes note of what the file says: after an error of the
    /// disk redb does nothing any more until it is opened again, and a panic may leave its locks poisoned.
    fn heard<T>(&self, work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        let mut has_panicked = true;
        let result = file::guarded(|| {
            let result = work();
            has_panicked = false;
            result
        });
        result.map_err(|error| {
            if self.is_in_memory() {
                return error;
            }
            if has_panicked || error.kind() == StoreErrorKind::Io {
                self.is_broken.store(true, Ordering::Release);
            }
            // Of what is damaged, the file is to be moved away.
            if error.kind() == StoreErrorKind::Invalid { error.within(self.path.display()) } else { error }
        })
    }

    /// Visits records, as [`scan`] does. A panic of the visitor is its own and no damage.
    fn visit(
        &self,
        visit: &mut Visit<'_>,
        scan: impl FnOnce(&mut Visit<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut panic = None;
        let result = self.heard(|| {
            scan(&mut |key, value| {
                let visited = catch_unwind(AssertUnwindSafe(|| visit(key, value)));
                visited.unwrap_or_else(|payload| {
                    panic = Some(payload);
                    Ok(false)
                })
            })
        });
        match panic {
            Some(payload) => resume_unwind(payload),
            None => result,
        }
    }

    /// Waits until nobody writes.
    fn writer(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the path under which a file is written anew, before it takes the other's place.
pub fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

impl Store for EmbeddedStore {
    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, StoreError> {
        let db = self.db()?;
        let txn = self.heard(|| db.begin_read().map_err(db_error))?;
        Ok(Box::new(Read { txn, _db: db, store: self }))
    }

    fn begin(&self, durability: Durability) -> Result<Box<dyn Transaction + '_>, StoreError> {
        Ok(Box::new(self.change(durability)?))
    }

    fn retain(&self, table: Table, rules: &Retention, now_ms: u64) -> Result<Removed, StoreError> {
        self.heard(|| self.retain_in(table, rules, now_ms))
    }

    fn n_bytes(&self) -> u64 {
        self.n_bytes.load(Relaxed)
    }

    fn scrub(&self) -> Result<(), StoreError> {
        if self.is_in_memory() {
            return Ok(());
        }
        let _writer = self.writer();
        let (old, path) = (self.db()?, beside(&self.path));
        let within = |error: StoreError| error.within(self.path.display());
        let _ = std::fs::remove_file(&path);
        let io = |e: std::io::Error| within(StoreError::new(StoreErrorKind::Io, e.to_string()).with_source(e));
        let make = || {
            let new = file::make(&path, &self.setup).map_err(within)?;
            self.heard(|| copy(&old, &new).map_err(db_error)).map_err(within)?;
            std::fs::rename(&path, &self.path).map_err(io).map(|()| new)
        };
        // Half a copy may have filled the disk.
        let new = make().inspect_err(|_| drop(std::fs::remove_file(&path)))?;
        // The old file has no name any more: whatever comes now, the new one is the store.
        *self.db.write().unwrap_or_else(PoisonError::into_inner) = Opened::new(new);
        #[cfg(unix)]
        if let Some(folder) = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(io)?;
        }
        Ok(())
    }
}

impl EmbeddedStore {
    fn retain_in(&self, table: Table, rules: &Retention, now_ms: u64) -> Result<Removed, StoreError> {
        let mut change = self.change(Durability::Durable)?;
        let mut removed = Removed::default();
        {
            let mut rows = change.rows(table)?;
            // Times, sizes and keys of the whole table; values stay where they are.
            let mut records = vec![];
            for record in rows.range::<&[u8]>(..).map_err(db_error)? {
                let (key, value) = record.map_err(db_error)?;
                let (time, n) = time_of(split(key.value())?.1);
                let n_bytes = (key.value().len() + value.value().len()) as u64;
                records.push((time, n, n_bytes, key.value().to_vec()));
            }
            records.sort();
            let sizes: Vec<_> = records.iter().map(|record| (record.0, record.2)).collect();
            removed.n_records = rules.n_surplus(&sizes, now_ms);
            for (_, _, n_bytes, key) in &records[..removed.n_records] {
                rows.remove(key.as_slice()).map_err(db_error)?;
                removed.n_bytes += n_bytes;
            }
        }
        if removed.n_records > 0 {
            change.n_removed += removed.n_bytes;
            Box::new(change).commit()?;
        }
        Ok(removed)
    }

    fn change(&self, durability: Durability) -> Result<Change<'_>, StoreError> {
        let writer = self.writer();
        let db = self.db()?;
        let durability = match durability {
            Durability::Durable => redb::Durability::Immediate,
            Durability::Relaxed => redb::Durability::None,
        };
        let txn = self.heard(|| {
            let mut txn = db.begin_write().map_err(db_error)?;
            txn.set_durability(durability).map_err(|e| StoreError::new(StoreErrorKind::Io, e.to_string()))?;
            Ok(txn)
        })?;
        Ok(Change { txn: Some(txn), _db: db, _writer: writer, store: self, n_added: 0, n_removed: 0 })
    }
}

struct Read<'a> {
    txn: redb::ReadTransaction,
    /// Outlives the transaction.
    _db: Arc<redb::Database>,
    store: &'a EmbeddedStore,
}

impl Read<'_> {
    /// Returns the table, `None` before its first record.
    fn rows(&self, table: Table) -> Result<Option<redb::ReadOnlyTable<Bytes, Bytes>>, StoreError> {
        match self.txn.open_table(definition(table)) {
            Ok(rows) => Ok(Some(rows)),
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(db_error(error)),
        }
    }
}

impl Snapshot for Read<'_> {
    fn get(&self, table: Table, scope: &[u8], key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.heard(|| self.rows(table)?.map_or(Ok(None), |rows| get(&rows, scope, key)))
    }

    fn scan(&self, table: Table, s: &Scan<'_>, visit: &mut Visit<'_>) -> Result<(), StoreError> {
        self.store.visit(visit, |visit| self.rows(table)?.map_or(Ok(()), |rows| scan(&rows, s, visit)))
    }

    fn scopes(&self, table: Table) -> Result<Vec<Vec<u8>>, StoreError> {
        self.store.heard(|| self.rows(table)?.map_or(Ok(vec![]), |rows| scopes(&rows)))
    }
}

struct Change<'a> {
    /// None once it is ended, and after damage was found: half a change is none.
    txn: Option<redb::WriteTransaction>,
    /// These two outlive the transaction, in this order.
    _db: Arc<redb::Database>,
    _writer: MutexGuard<'a, ()>,
    store: &'a EmbeddedStore,
    n_added: u64,
    n_removed: u64,
}

impl Change<'_> {
    fn rows(&self, table: Table) -> Result<redb::Table<'_, Bytes, Bytes>, StoreError> {
        let txn = self.txn.as_ref().ok_or_else(given_up)?;
        txn.open_table(definition(table)).map_err(db_error)
    }

    /// Returns what the store's size is once this is real. Only one transaction is open at a time, so nobody else changes it meanwhile.
    fn n_bytes(&self) -> u64 {
        (self.store.n_bytes() + self.n_added).saturating_sub(self.n_removed)
    }

    /// Changes something. Damage ends the transaction.
    fn write<T>(&mut self, write: impl FnOnce(&Self) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let result = self.store.heard(|| write(self));
        if result.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::Invalid) {
            self.give_up();
        }
        result
    }

    fn give_up(&mut self) {
        let txn = self.txn.take();
        // To take back what was written reads the file.
        let _ = self.store.heard(|| {
            drop(txn);
            Ok(())
        });
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.give_up();
    }
}

fn given_up() -> StoreError {
    invalid("the change was given up, since the store is damaged")
}

impl Snapshot for Change<'_> {
    fn get(&self, table: Table, scope: &[u8], key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.heard(|| get(&self.rows(table)?, scope, key))
    }

    fn scan(&self, table: Table, s: &Scan<'_>, visit: &mut Visit<'_>) -> Result<(), StoreError> {
        self.store.visit(visit, |visit| scan(&self.rows(table)?, s, visit))
    }

    fn scopes(&self, table: Table) -> Result<Vec<Vec<u8>>, StoreError> {
        self.store.heard(|| scopes(&self.rows(table)?))
    }
}

impl Transaction for Change<'_> {
    fn put(&mut self, table: Table, scope: &[u8], key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        crate::check_names(table, scope, key)?;
        let Limits { value_bytes_max, store_bytes_max, .. } = self.store.setup.limits;
        let (name, n) = (table.name(), value.len());
        if n > value_bytes_max {
            return Err(limit(format!("{name}: a record of {n} bytes; at most {value_bytes_max}")));
        }
        let key = file_key(scope, key);
        let n_bytes = (key.len() + n) as u64;
        let replaced = self.write(|change| {
            let mut rows = change.rows(table)?;
            let old = rows.get(key.as_slice()).map_err(db_error)?.map(|old| old.value().len());
            let replaced = old.map_or(0, |old| (key.len() + old) as u64);
            let total = (change.n_bytes() + n_bytes).saturating_sub(replaced);
            if total > store_bytes_max {
                let advice = "shorten what is kept or raise the limit";
                return Err(limit(format!("the store is full: {total} of {store_bytes_max} bytes: {advice}")));
            }
            rows.insert(key.as_slice(), value).map_err(db_error)?;
            Ok(replaced)
        })?;
        self.n_added += n_bytes;
        self.n_removed += replaced;
        Ok(())
    }

    fn remove(&mut self, table: Table, scope: &[u8], key: &[u8]) -> Result<bool, StoreError> {
        let key = file_key(scope, key);
        let removed = self.write(|change| {
            let mut rows = change.rows(table)?;
            let old = rows.remove(key.as_slice()).map_err(db_error)?;
            Ok(old.map(|old| (key.len() + old.value().len()) as u64))
        })?;
        self.n_removed += removed.unwrap_or(0);
        Ok(removed.is_some())
    }

    fn remove_scope(&mut self, table: Table, scope: &[u8]) -> Result<usize, StoreError> {
        let from = file_key(scope, b"");
        let to = behind(&from);
        let end = to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let (mut n, mut n_bytes) = (0, 0);
        self.write(|change| {
            let mut rows = change.rows(table)?;
            let retained = rows.retain_in::<&[u8], _>((Bound::Included(from.as_slice()), end), |key, value| {
                n += 1;
                n_bytes += (key.len() + value.len()) as u64;
                false
            });
            retained.map_err(db_error)
        })?;
        self.n_removed += n_bytes;
        Ok(n)
    }

    fn commit(mut self: Box<Self>) -> Result<(), StoreError> {
        let (store, n_bytes) = (self.store, self.n_bytes());
        store.heard(|| {
            let txn = self.txn.take().ok_or_else(given_up)?;
            let write = || -> Result<(), redb::Error> {
                txn.open_table(SIZE)?.insert((), n_bytes)?;
                Ok(txn.commit()?)
            };
            write().map_err(db_error)
        })?;
        store.n_bytes.store(n_bytes, Relaxed);
        Ok(())
    }
}
