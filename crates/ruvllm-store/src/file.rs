//! The file under the embedded store: how it comes to be, what is refused as damaged, and disks that fail in tests.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::backends::{FileBackend, InMemoryBackend};
use redb::{BackendError, StorageBackend};

use crate::embedded::Limits;
use crate::error::{StoreError, StoreErrorKind, invalid};
use crate::rows::db_error;

/// First bytes of each store.
const MAGIC: [u8; 9] = *b"redb\x1A\x0A\xA9\x0D\x0A";

/// Says before each write, sync and change of length whether the disk does it, in tests that make it fail.
pub type Guard = Arc<dyn Fn() -> io::Result<()> + Send + Sync>;

/// How a file is opened.
#[derive(Clone)]
pub(crate) struct Setup {
    pub limits: Limits,
    pub guard: Option<Guard>,
}

/// The file of a store, as redb sees it.
struct Disk {
    file: FileBackend,
    guard: Option<Guard>,
}

impl Disk {
    /// Says whether the disk does what it is about to do.
    fn ask(&self) -> io::Result<()> {
        self.guard.as_ref().map_or(Ok(()), |guard| guard())
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("file", &self.file).finish_non_exhaustive()
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.ask()?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.ask()?;
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let asked = self.ask();
        if asked.is_err() {
            // A disk that fails may have taken a part.
            self.file.write(offset, &data[..data.len() / 2])?;
        }
        asked?;
        self.file.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.query_lock_range(start, end)
    }
}

/// Opens the store in a file, or makes one where there is none. It gets its name when it is whole, so that what a crash leaves
/// half made is never taken for a store.
pub(crate) fn open_or_make(path: &Path, setup: &Setup) -> Result<redb::Database, StoreError> {
    match path.try_exists().map_err(io_error)? {
        true => open(path, setup),
        false => {
            let part = part_of(path)?;
            let made = make(&part, setup).and_then(|db| std::fs::rename(&part, path).map_err(io_error).map(|()| db));
            made.inspect_err(|_| drop(std::fs::remove_file(&part)))
        }
    }
}

/// Opens the store in a file that is there. One that is empty, cut short or something else stays as it is.
pub(crate) fn open(path: &Path, setup: &Setup) -> Result<redb::Database, StoreError> {
    let mut file = options().open(path).map_err(io_error)?;
    let advice = "it is left as it is; put a copy back, or move it away to begin anew";
    let n_bytes = file.metadata().map_err(io_error)?.len();
    if n_bytes == 0 {
        return Err(invalid(format!("the store is empty, though it was written before: {advice}")));
    }
    let mut magic = [0; MAGIC.len()];
    if n_bytes < MAGIC.len() as u64 {
        return Err(invalid(format!("the store is damaged: {n_bytes} bytes are left of it: {advice}")));
    }
    file.read_exact(&mut magic).map_err(io_error)?;
    if magic != MAGIC {
        return Err(invalid(format!("this is no store: {advice}")));
    }
    database(file, setup)
}

/// Makes a store in a file of this name, whatever lay there.
pub(crate) fn make(path: &Path, setup: &Setup) -> Result<redb::Database, StoreError> {
    let file = options().create(true).truncate(true).open(path).map_err(io_error)?;
    database(file, setup)
}

/// For the owner only: it holds what was taught and put on record.
fn options() -> std::fs::OpenOptions {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

fn database(file: File, setup: &Setup) -> Result<redb::Database, StoreError> {
    let disk = Disk { file: FileBackend::new(file).map_err(db_error)?, guard: setup.guard.clone() };
    let mut builder = redb::Builder::new();
    builder.set_cache_size(setup.limits.cache_bytes);
    guarded(|| builder.create_with_backend(disk).map_err(db_error))
}

/// Makes a store that has no file.
pub(crate) fn in_memory(limits: Limits) -> Result<redb::Database, StoreError> {
    let mut builder = redb::Builder::new();
    builder.set_cache_size(limits.cache_bytes);
    builder.create_with_backend(InMemoryBackend::new()).map_err(db_error)
}

/// Runs what reads or writes a file that may be damaged: redb takes some damage for a fault of its own and panics.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let advice = "put a copy back, or move it away to begin anew";
        Err(invalid(format!("the store is damaged: what it holds does not fit together: {advice}")))
    })
}

/// A name next to `path` that no other process makes a store under.
fn part_of(path: &Path) -> Result<PathBuf, StoreError> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{:016x}.part", u64::from_le_bytes(crate::random()?)));
    Ok(name.into())
}

pub(crate) fn io_error(error: io::Error) -> StoreError {
    StoreError::new(StoreErrorKind::Io, error.to_string()).with_source(error)
}
