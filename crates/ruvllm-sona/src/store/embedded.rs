//! The store in one file: redb, a copy-on-write B-tree.

use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use redb::{ReadableDatabase as _, ReadableTable, TableDefinition, TableError, TableHandle as _};

use super::{Durability, Removed, Retention, Scan, Snapshot, Store, Table, Transaction, Visit, time_of};
use crate::error::{SonaError, SonaErrorKind, invalid, limit};

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
    /// Replaced when the file is written anew; what reads goes on with the one it began with. `None` after an error of the
    /// disk, until the file can be opened again.
    db: RwLock<Option<Arc<redb::Database>>>,
    /// Set by an error of the disk: the file has to be opened again.
    is_broken: AtomicBool,
    /// When that was tried last.
    tried_at: Mutex<Option<Instant>>,
    /// Held by what writes.
    writing: Mutex<()>,
    path: PathBuf,
    limits: Limits,
    n_bytes: AtomicU64,
}

type Definition = TableDefinition<'static, &'static [u8], &'static [u8]>;

/// Where the store's size stands, so that opening need not count.
const SIZE: TableDefinition<'static, (), u64> = TableDefinition::new("size");

/// How often it is tried to open a file again after an error of the disk.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Below this share of live bytes, opening makes the file smaller.
const COMPACT_BELOW: f64 = 0.5;

/// No file is made smaller below this size.
const COMPACT_BYTES_MIN: u64 = 16 << 20;

impl EmbeddedStore {
    /// Opens the file, or makes it. A file that is mostly free space is compacted.
    ///
    /// # Errors
    /// With kind `Io` if it cannot be opened or another process has it; `Invalid` if it is no store, or is empty: only a
    /// file that is not there is new.
    pub fn open(path: &Path, limits: Limits) -> Result<EmbeddedStore, SonaError> {
        let within = |error: SonaError| error.within(path.display());
        // What was left by a process that died while it wrote the file anew.
        let _ = std::fs::remove_file(beside(path));
        let file = std::fs::metadata(path).map(|file| file.len());
        let mut db = match &file {
            Ok(0) => {
                let advice = "restore it from a copy, or remove the file to begin anew";
                return Err(within(invalid(format!("the store is empty, though it was written before: {advice}"))));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => made(path, limits),
            _ => database(path, limits).map_err(db_error),
        }
        .map_err(within)?;
        let file_bytes = file.unwrap_or(0);
        let n_bytes = size(&db).map_err(|e| within(db_error(e)))?;
        if file_bytes > COMPACT_BYTES_MIN && (n_bytes as f64) < COMPACT_BELOW * file_bytes as f64 {
            db.compact().map_err(|e| within(db_error(e)))?;
        }
        let (db, n_bytes) = (RwLock::new(Some(Arc::new(db))), AtomicU64::new(n_bytes));
        let (is_broken, tried_at, path) = (AtomicBool::new(false), Mutex::default(), path.to_owned());
        Ok(EmbeddedStore { db, is_broken, tried_at, writing: Mutex::new(()), path, limits, n_bytes })
    }

    /// Returns the open file; after an error of the disk it is opened again first.
    fn db(&self) -> Result<Arc<redb::Database>, SonaError> {
        if self.is_broken.load(Relaxed) {
            self.reopen()?;
        }
        // A pointer is whole at each moment, so a poisoned lock is as good as another.
        let db = self.db.read().unwrap_or_else(PoisonError::into_inner);
        db.clone().ok_or_else(|| self.broken("it could not be opened again yet"))
    }

    /// Opens the file again, once nobody uses it as it was. What was acknowledged as durable is in it; commits since the last
    /// of those are not.
    fn reopen(&self) -> Result<(), SonaError> {
        let mut tried_at = self.tried_at.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_broken.load(Relaxed) {
            return Ok(());
        }
        if tried_at.is_some_and(|at| at.elapsed() < RETRY_INTERVAL) {
            return Err(self.broken("it is opened again in a moment"));
        }
        *tried_at = Some(Instant::now());
        let mut place = self.db.write().unwrap_or_else(PoisonError::into_inner);
        // The file is locked as long as it is open.
        if let Err(used) = place.take().map_or(Ok(()), |db| Arc::try_unwrap(db).map(drop)) {
            *place = Some(used);
            return Err(self.broken("somebody reads it still"));
        }
        let opened = database(&self.path, self.limits).map_err(db_error)?;
        self.n_bytes.store(size(&opened).map_err(db_error)?, Relaxed);
        *place = Some(Arc::new(opened));
        self.is_broken.store(false, Relaxed);
        Ok(())
    }

    fn broken(&self, how: &str) -> SonaError {
        let line = format!("{}: the disk failed, and {how}", self.path.display());
        SonaError::new(SonaErrorKind::Io, line)
    }

    /// Returns what redb says; after an error of the disk the file is opened again by who needs it next.
    fn failed(&self, error: impl Into<redb::Error>) -> SonaError {
        let error = error.into();
        if matches!(error, redb::Error::Io(_) | redb::Error::PreviousIo | redb::Error::DatabaseClosed) {
            self.is_broken.store(true, Relaxed);
        }
        db_error(error)
    }

    /// Waits until nobody writes.
    fn writer(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the file: it has its name only once it is whole.
fn made(path: &Path, limits: Limits) -> Result<redb::Database, SonaError> {
    let new = beside(path);
    let db = database(&new, limits).map_err(db_error)?;
    std::fs::rename(&new, path).map_err(|e| SonaError::new(SonaErrorKind::Io, e.to_string()).with_source(e))?;
    Ok(db)
}

/// Returns the bytes of all keys and values.
fn size(db: &redb::Database) -> Result<u64, redb::Error> {
    match db.begin_read()?.open_table(SIZE) {
        Ok(table) => Ok(table.get(())?.map_or(0, |n| n.value())),
        Err(TableError::TableDoesNotExist(_)) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// Opens the file, or makes it: what was taught and put on record is for its owner only.
fn database(path: &Path, limits: Limits) -> Result<redb::Database, redb::DatabaseError> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = redb::backends::FileBackend::new(options.open(path)?)?;
    redb::Builder::new().set_cache_size(limits.cache_bytes).create_with_backend(file)
}

/// Where a file is written anew, before it takes the other's place.
pub(crate) fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Copies all records of all tables.
fn copy(from: &redb::Database, to: &redb::Database) -> Result<(), redb::Error> {
    let (read, write) = (from.begin_read()?, to.begin_write()?);
    for table in read.list_tables()? {
        if table.name() == SIZE.name() {
            if let Some(n_bytes) = read.open_table(SIZE)?.get(())? {
                write.open_table(SIZE)?.insert((), n_bytes.value())?;
            }
            continue;
        }
        let definition: TableDefinition<'_, Bytes, Bytes> = TableDefinition::new(table.name());
        let (old, mut new) = (read.open_table(definition)?, write.open_table(definition)?);
        for record in old.range::<&[u8]>(..)? {
            let (key, value) = record?;
            new.insert(key.value(), value.value())?;
        }
    }
    Ok(write.commit()?)
}

/// The line for what redb says.
fn db_error(error: impl Into<redb::Error>) -> SonaError {
    let error = error.into();
    let (kind, message) = match &error {
        redb::Error::DatabaseAlreadyOpen => {
            (SonaErrorKind::Io, "another process has the store open: stop it first".to_owned())
        }
        redb::Error::Io(io) if io.kind() == std::io::ErrorKind::InvalidData => {
            (SonaErrorKind::Invalid, format!("this is no store: {io}"))
        }
        redb::Error::Io(io) => (SonaErrorKind::Io, io.to_string()),
        redb::Error::Corrupted(why) => (SonaErrorKind::Invalid, format!("the store is damaged: {why}")),
        redb::Error::UpgradeRequired(version) => {
            (SonaErrorKind::Version, format!("the store's file has format {version}, which is too old"))
        }
        other => (SonaErrorKind::Io, other.to_string()),
    };
    SonaError::new(kind, message).with_source(error)
}

fn definition(table: Table) -> Definition {
    TableDefinition::new(table.name())
}

/// A record's key in the file: the scope with its length before it, then the key.
fn file_key(scope: &[u8], key: &[u8]) -> Vec<u8> {
    [&[scope.len() as u8], scope, key].concat()
}

/// The smallest key in the file behind everything that begins with `prefix`; `None` if there is nothing behind it.
fn behind(prefix: &[u8]) -> Option<Vec<u8>> {
    let n = prefix.iter().rposition(|&byte| byte != u8::MAX)? + 1;
    let mut next = prefix[..n].to_vec();
    next[n - 1] += 1;
    Some(next)
}

/// The scope and the key of a key in the file.
fn split(file_key: &[u8]) -> Result<(&[u8], &[u8]), SonaError> {
    let parts = file_key.split_first().and_then(|(n, rest)| rest.split_at_checked(usize::from(*n)));
    parts.ok_or_else(|| invalid("a key is cut short"))
}

type Bytes = &'static [u8];

fn get(rows: &impl ReadableTable<Bytes, Bytes>, scope: &[u8], key: &[u8]) -> Result<Option<Vec<u8>>, SonaError> {
    let found = rows.get(file_key(scope, key).as_slice()).map_err(db_error)?;
    Ok(found.map(|value| value.value().to_vec()))
}

fn scan(rows: &impl ReadableTable<Bytes, Bytes>, scan: &Scan<'_>, visit: &mut Visit<'_>) -> Result<(), SonaError> {
    let from = file_key(scan.scope, scan.from);
    let to = match scan.to {
        Some(to) => Some(file_key(scan.scope, to)),
        None => behind(&file_key(scan.scope, b"")),
    };
    if to.as_ref().is_some_and(|to| *to <= from) {
        return Ok(());
    }
    let end = to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let mut range = rows.range::<&[u8]>((Bound::Included(from.as_slice()), end)).map_err(db_error)?;
    loop {
        let next = if scan.newest_first { range.next_back() } else { range.next() };
        let Some(record) = next else { return Ok(()) };
        let (key, value) = record.map_err(db_error)?;
        if !visit(split(key.value())?.1, value.value())? {
            return Ok(());
        }
    }
}

fn scopes(rows: &impl ReadableTable<Bytes, Bytes>) -> Result<Vec<Vec<u8>>, SonaError> {
    let (mut scopes, mut from) = (vec![], vec![]);
    loop {
        let mut range = rows.range::<&[u8]>(from.as_slice()..).map_err(db_error)?;
        let Some(record) = range.next() else { break };
        let (key, _) = record.map_err(db_error)?;
        let scope = split(key.value())?.0.to_vec();
        let next = behind(&file_key(&scope, b""));
        scopes.push(scope);
        match next {
            Some(next) => from = next,
            None => break,
        }
    }
    scopes.sort();
    Ok(scopes)
}

impl Store for EmbeddedStore {
    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, SonaError> {
        let db = self.db()?;
        Ok(Box::new(Read { txn: db.begin_read().map_err(|error| self.failed(error))?, _db: db }))
    }

    fn begin(&self, durability: Durability) -> Result<Box<dyn Transaction + '_>, SonaError> {
        Ok(Box::new(self.change(durability)?))
    }

    fn retain(&self, table: Table, rules: &Retention, now_ms: u64) -> Result<Removed, SonaError> {
        let mut change = self.change(Durability::Durable)?;
        let mut removed = Removed::default();
        {
            let mut rows = change.txn.open_table(definition(table)).map_err(db_error)?;
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

    fn n_bytes(&self) -> u64 {
        self.n_bytes.load(Relaxed)
    }

    fn scrub(&self) -> Result<(), SonaError> {
        let _writer = self.writer();
        let (old, path) = (self.db()?, beside(&self.path));
        let within = |error: SonaError| error.within(self.path.display());
        let _ = std::fs::remove_file(&path);
        let io = |e: std::io::Error| within(SonaError::new(SonaErrorKind::Io, e.to_string()).with_source(e));
        let make = || {
            let new = database(&path, self.limits).map_err(|e| within(db_error(e)))?;
            copy(&old, &new).map_err(|e| within(db_error(e)))?;
            std::fs::rename(&path, &self.path).map_err(io).map(|()| new)
        };
        // Half a copy may have filled the disk.
        let new = make().inspect_err(|_| drop(std::fs::remove_file(&path)))?;
        // The old file has no name any more: whatever comes now, the new one is the store.
        *self.db.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(new));
        #[cfg(unix)]
        if let Some(folder) = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(io)?;
        }
        Ok(())
    }
}

impl EmbeddedStore {
    fn change(&self, durability: Durability) -> Result<Change<'_>, SonaError> {
        let writer = self.writer();
        let mut db = self.db()?;
        let mut begun = db.begin_write();
        if matches!(begun, Err(redb::TransactionError::Storage(redb::StorageError::PreviousIo))) {
            // It was met by somebody who had no word with us: the file is opened again now.
            self.is_broken.store(true, Relaxed);
            drop((begun, db));
            db = self.db()?;
            begun = db.begin_write();
        }
        let mut txn = begun.map_err(|error| self.failed(error))?;
        let durability = match durability {
            Durability::Durable => redb::Durability::Immediate,
            Durability::Relaxed => redb::Durability::None,
        };
        txn.set_durability(durability).map_err(|e| SonaError::new(SonaErrorKind::Io, e.to_string()))?;
        Ok(Change { txn, _db: db, _writer: writer, store: self, n_added: 0, n_removed: 0 })
    }
}

struct Read {
    txn: redb::ReadTransaction,
    /// Outlives the transaction.
    _db: Arc<redb::Database>,
}

impl Read {
    /// Returns the table, `None` before its first record.
    fn rows(&self, table: Table) -> Result<Option<redb::ReadOnlyTable<Bytes, Bytes>>, SonaError> {
        match self.txn.open_table(definition(table)) {
            Ok(rows) => Ok(Some(rows)),
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(db_error(error)),
        }
    }
}

impl Snapshot for Read {
    fn get(&self, table: Table, scope: &[u8], key: &[u8]) -> Result<Option<Vec<u8>>, SonaError> {
        self.rows(table)?.map_or(Ok(None), |rows| get(&rows, scope, key))
    }

    fn scan(&self, table: Table, s: &Scan<'_>, visit: &mut Visit<'_>) -> Result<(), SonaError> {
        self.rows(table)?.map_or(Ok(()), |rows| scan(&rows, s, visit))
    }

    fn scopes(&self, table: Table) -> Result<Vec<Vec<u8>>, SonaError> {
        self.rows(table)?.map_or(Ok(vec![]), |rows| scopes(&rows))
    }
}

struct Change<'a> {
    txn: redb::WriteTransaction,
    /// These two outlive the transaction, in this order.
    _db: Arc<redb::Database>,
    _writer: MutexGuard<'a, ()>,
    store: &'a EmbeddedStore,
    n_added: u64,
    n_removed: u64,
}

impl Change<'_> {
    fn rows(&self, table: Table) -> Result<redb::Table<'_, Bytes, Bytes>, SonaError> {
        self.txn.open_table(definition(table)).map_err(db_error)
    }
}

impl Snapshot for Change<'_> {
    fn get(&self, table: Table, scope: &[u8], key: &[u8]) -> Result<Option<Vec<u8>>, SonaError> {
        get(&self.rows(table)?, scope, key)
    }

    fn scan(&self, table: Table, s: &Scan<'_>, visit: &mut Visit<'_>) -> Result<(), SonaError> {
        scan(&self.rows(table)?, s, visit)
    }

    fn scopes(&self, table: Table) -> Result<Vec<Vec<u8>>, SonaError> {
        scopes(&self.rows(table)?)
    }
}

impl Transaction for Change<'_> {
    fn put(&mut self, table: Table, scope: &[u8], key: &[u8], value: &[u8]) -> Result<(), SonaError> {
        super::check_names(table, scope, key)?;
        let Limits { value_bytes_max, store_bytes_max, .. } = self.store.limits;
        let (name, n) = (table.name(), value.len());
        if n > value_bytes_max {
            return Err(limit(format!("{name}: a record of {n} bytes; at most {value_bytes_max}")));
        }
        let key = file_key(scope, key);
        let n_bytes = (key.len() + n) as u64;
        let mut rows = self.rows(table)?;
        let old = rows.get(key.as_slice()).map_err(db_error)?.map(|old| old.value().len());
        let replaced = old.map_or(0, |old| (key.len() + old) as u64);
        let total = self.store.n_bytes() + self.n_added + n_bytes - self.n_removed - replaced;
        if total > store_bytes_max {
            let advice = "shorten what is kept or raise the limit";
            return Err(limit(format!("the store is full: {total} of {store_bytes_max} bytes: {advice}")));
        }
        rows.insert(key.as_slice(), value).map_err(db_error)?;
        drop(rows);
        self.n_added += n_bytes;
        self.n_removed += replaced;
        Ok(())
    }

    fn remove(&mut self, table: Table, scope: &[u8], key: &[u8]) -> Result<bool, SonaError> {
        let key = file_key(scope, key);
        let removed = {
            let mut rows = self.rows(table)?;
            let old = rows.remove(key.as_slice()).map_err(db_error)?;
            old.map(|old| (key.len() + old.value().len()) as u64)
        };
        self.n_removed += removed.unwrap_or(0);
        Ok(removed.is_some())
    }

    fn remove_scope(&mut self, table: Table, scope: &[u8]) -> Result<usize, SonaError> {
        let (mut n, mut n_bytes) = (0, 0);
        {
            let from = file_key(scope, b"");
            let to = behind(&from);
            let end = to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let mut rows = self.rows(table)?;
            rows.retain_in::<&[u8], _>((Bound::Included(from.as_slice()), end), |key, value| {
                n += 1;
                n_bytes += (key.len() + value.len()) as u64;
                false
            })
            .map_err(db_error)?;
        }
        self.n_removed += n_bytes;
        Ok(n)
    }

    fn commit(self: Box<Self>) -> Result<(), SonaError> {
        // Only one transaction is open at a time, so nobody else has changed the number meanwhile.
        let n_bytes = self.store.n_bytes() + self.n_added - self.n_removed;
        let store = self.store;
        self.txn.open_table(SIZE).map_err(db_error)?.insert((), n_bytes).map_err(|error| store.failed(error))?;
        self.txn.commit().map_err(|error| store.failed(error))?;
        self.store.n_bytes.store(n_bytes, Relaxed);
        Ok(())
    }
}
