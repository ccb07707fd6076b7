//! Records that survive the process: tables with transactions, whatever they hold.
//!
//! A record is found by its table, its *scope* and its *key*. A scope is whose it is (a tenant, a session): a name, found
//! only as a whole. A key is what records of a scope are ordered by: numbers, most often a time, made by [`time_key`]. The
//! division is what lets a store be encrypted and still be ordered: a name is content and is hidden, a number is not.
//!
//! Files that go from node to node are [`signed`].
//!
//! [`open`] gives the embedded store, one file (`redb`); with a [`MasterKey`] everything in it is encrypted, see
//! [`Sealed`]. Other stores implement [`Store`].
//!
//! ```
//! use ruvllm_store::{Durability, OpenOptions, Scan, Table, time_key};
//!
//! const NOTES: Table = Table::new("notes");
//! # let folder = tempfile::tempdir()?;
//! let store = ruvllm_store::open(&folder.path().join("sona.redb"), &OpenOptions::default())?;
//! let mut change = store.begin(Durability::Durable)?;
//! change.put(NOTES, b"alice", &time_key(1_700_000_000_000, 1), b"tea at four")?;
//! change.put(NOTES, b"alice", &time_key(1_700_000_060_000, 2), b"no milk")?;
//! change.commit()?;
//!
//! let mut notes = vec![];
//! store.snapshot()?.scan(NOTES, &Scan::all(b"alice").newest_first(), &mut |_, value| {
//!     notes.push(value.to_vec());
//!     Ok(true)
//! })?;
//! assert_eq!(notes, [&b"no milk"[..], b"tea at four"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

use std::path::Path;
use std::sync::Arc;

mod embedded;
mod error;
mod file;
mod key;
mod retention;
mod rows;
mod schema;
mod sealed;
pub mod signed;
#[cfg(test)]
mod tests;

pub use embedded::{EmbeddedStore, Limits, beside};
pub use error::{Parts, StoreError, StoreErrorKind};
pub use file::Guard;
pub use key::{MasterKey, random};
pub use retention::{Removed, Retention};
pub use schema::{MigrationStep, SCHEMA, Schema};
pub use sealed::Sealed;

/// The most bytes of a scope's name.
pub const SCOPE_BYTES_MAX: usize = 255;

/// The most bytes of a key.
pub const KEY_BYTES_MAX: usize = 1024;

/// A table: a name, and what its keys begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    name: &'static str,
}

impl Table {
    /// A table of this name. The name is no secret: an encrypted store shows it.
    pub const fn new(name: &'static str) -> Table {
        Table { name }
    }

    /// The name.
    pub fn name(self) -> &'static str {
        self.name
    }
}

/// What the store itself keeps: its schema, its size, its wrapped key.
const META: Table = Table::new("meta");

/// When a commit returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When the records are on disk: neither `kill -9` nor a loss of power takes them back.
    Durable,
    /// At once. The records are seen by every later snapshot and come to the disk with the next durable commit; a
    /// process that dies before takes them along.
    Relaxed,
}

/// A part of one scope's records, in the order of their keys.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    scope: &'a [u8],
    from: &'a [u8],
    to: Option<&'a [u8]>,
    newest_first: bool,
}

impl<'a> Scan<'a> {
    /// Everything in `scope`, smallest key first.
    pub fn all(scope: &'a [u8]) -> Scan<'a> {
        Scan { scope, from: &[], to: None, newest_first: false }
    }

    /// Only keys that are not smaller than `from` and, if `to` is given, smaller than `to`.
    pub fn between(self, from: &'a [u8], to: Option<&'a [u8]>) -> Scan<'a> {
        Scan { from, to, ..self }
    }

    /// Greatest key first.
    pub fn newest_first(self) -> Scan<'a> {
        Scan { newest_first: true, ..self }
    }
}

/// Callback of a scan for each record, with its key and value; it says whether to go on.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<bool, StoreError> + 'a;

/// Records as they were at one moment; later changes are not seen.
pub trait Snapshot {
    /// Returns the value of a record, `None` if there is none.
    ///
    /// # Errors
    /// If the store cannot be read, or (encrypted) the record is not what was written there.
    fn get(&self, table: Table, scope: &[u8], key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// Visits the records of `scan` in order until `visit` says `false`.
    ///
    /// # Errors
    /// As [`Snapshot::get`], and what `visit` returns.
    fn scan(&self, table: Table, scan: &Scan<'_>, visit: &mut Visit<'_>) -> Result<(), StoreError>;

    /// Returns the scopes that have records in `table`, sorted.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    fn scopes(&self, table: Table) -> Result<Vec<Vec<u8>>, StoreError>;
}

/// Changes that become visible together, or not at all: dropped without a commit, nothing has happened. One transaction
/// is open at a time; others wait. It sees its own changes.
pub trait Transaction: Snapshot {
    /// Sets a record.
    ///
    /// # Errors
    /// With kind `Limit` if it is larger than the store allows or the store is full.
    fn put(&mut self, table: Table, scope: &[u8], key: &[u8], value: &[u8]) -> Result<(), StoreError>;

    /// Removes a record; returns whether there was one.
    ///
    /// # Errors
    /// If the store cannot be read.
    fn remove(&mut self, table: Table, scope: &[u8], key: &[u8]) -> Result<bool, StoreError>;

    /// Removes all records of a scope; returns how many.
    ///
    /// # Errors
    /// If the store cannot be read.
    fn remove_scope(&mut self, table: Table, scope: &[u8]) -> Result<usize, StoreError>;

    /// Makes the changes real.
    ///
    /// # Errors
    /// If they could not be written; then none of them is.
    fn commit(self: Box<Self>) -> Result<(), StoreError>;
}

/// Tables of records with transactions, shared by threads.
pub trait Store: Send + Sync {
    /// Returns the records as they are now.
    ///
    /// # Errors
    /// If the store cannot be read.
    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, StoreError>;

    /// Starts changes; waits for those of others to end.
    ///
    /// # Errors
    /// If the store cannot be written.
    fn begin(&self, durability: Durability) -> Result<Box<dyn Transaction + '_>, StoreError>;

    /// Removes what `rules` no longer allow of `table`, oldest first, whosever it is; keys must begin as [`time_key`] makes
    /// them. `now_ms` is the time in Unix milliseconds.
    ///
    /// # Errors
    /// If the store cannot be read or written.
    fn retain(&self, table: Table, rules: &Retention, now_ms: u64) -> Result<Removed, StoreError>;

    /// Returns how many bytes keys and values have, without the store's own overhead.
    fn n_bytes(&self) -> u64;

    /// Takes what was removed off the disk as well: a store may leave it in places that are free until it uses them again.
    /// Takes as long as writing all records anew; nobody writes meanwhile, and readers go on.
    ///
    /// # Errors
    /// If the store cannot be read or written; then it is what it was.
    fn scrub(&self) -> Result<(), StoreError>;
}

/// Options of opening a store.
#[derive(Clone, Copy, Default)]
pub struct OpenOptions<'a> {
    /// The key, if what lies there is encrypted (a new store will be).
    pub key: Option<&'a MasterKey>,
    /// Sizes that are not exceeded.
    pub limits: Limits,
    /// Lets the disk fail, in tests.
    pub guard: Option<&'a Guard>,
}

/// Opens the embedded store in the file `path`, or makes a new one; brings an older one up to date.
///
/// # Errors
/// With kind `Key` if the key is not this store's, if it has one and none was given, or the other way around; `Version`
/// if a newer program wrote it; `Io` if another process has it open; `Invalid` if it is no store, empty or damaged: it is left as it is.
pub fn open(path: &Path, options: &OpenOptions<'_>) -> Result<Arc<dyn Store>, StoreError> {
    open_as(path, options, &SCHEMA)
}

/// Makes an empty store in memory, which ends with the process.
///
/// # Errors
/// With kind `Io` if it cannot be made.
pub fn in_memory(limits: Limits) -> Result<Arc<dyn Store>, StoreError> {
    Ok(Arc::new(EmbeddedStore::in_memory(limits)?))
}

fn open_as(path: &Path, options: &OpenOptions<'_>, schema: &Schema) -> Result<Arc<dyn Store>, StoreError> {
    let inner = EmbeddedStore::open_by(path, file::Setup { limits: options.limits, guard: options.guard.cloned() })?;
    let within = |error: StoreError| error.within(path.display());
    let store: Arc<dyn Store> = match options.key {
        Some(key) => Arc::new(Sealed::open(inner, key).map_err(within)?),
        None if sealed::is_sealed(&inner).map_err(within)? => {
            return Err(within(StoreError::new(StoreErrorKind::Key, "the store is encrypted: give its key")));
        }
        None => Arc::new(inner),
    };
    file::guarded(|| schema.apply(store.as_ref())).map_err(within)?;
    Ok(store)
}

/// A key that orders records by time, and those of one millisecond by `n`.
pub fn time_key(unix_ms: u64, n: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&unix_ms.to_be_bytes());
    key[8..].copy_from_slice(&n.to_be_bytes());
    key
}

/// Returns the two numbers of a [`time_key`]; 0 for what is missing.
pub fn time_of(key: &[u8]) -> (u64, u64) {
    let part =
        |i: usize| key.get(8 * i..8 * (i + 1)).map_or(0, |bytes| u64::from_be_bytes(bytes.try_into().expect("eight")));
    (part(0), part(1))
}

/// Checks the sizes of a scope and a key.
fn check_names(table: Table, scope: &[u8], key: &[u8]) -> Result<(), StoreError> {
    let name = table.name();
    if scope.len() > SCOPE_BYTES_MAX {
        let n = scope.len();
        return Err(crate::error::limit(format!("{name}: a scope of {n} bytes; at most {SCOPE_BYTES_MAX}")));
    }
    if key.len() > KEY_BYTES_MAX {
        return Err(crate::error::limit(format!("{name}: a key of {} bytes; at most {KEY_BYTES_MAX}", key.len())));
    }
    Ok(())
}
