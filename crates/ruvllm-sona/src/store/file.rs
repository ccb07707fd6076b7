//! The file under the embedded store: how it comes to be, what is refused as damaged, and faults for tests.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use redb::backends::{FileBackend, InMemoryBackend};
use redb::{BackendError, StorageBackend};

use super::embedded::{Limits, db_error};
use crate::error::{SonaError, SonaErrorKind, invalid};

/// First bytes of each store.
const MAGIC: [u8; 9] = *b"redb\x1A\x0A\xA9\x0D\x0A";

/// The file of a store, as redb sees it.
#[derive(Debug)]
struct Disk {
    file: FileBackend,
    #[cfg(test)]
    faults: Option<std::sync::Arc<ruvllm_testkit::Faults>>,
}

impl Disk {
    /// Says whether the disk does what it is about to do, in tests that make it fail.
    fn ask(&self, _what: &'static str) -> io::Result<()> {
        #[cfg(test)]
        if let Some(faults) = &self.faults {
            return faults.ask();
        }
        Ok(())
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
        self.ask("set_len")?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.ask("sync")?;
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let asked = self.ask("write");
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
pub(super) fn open_or_make(path: &Path, limits: Limits) -> Result<redb::Database, SonaError> {
    match path.try_exists().map_err(io_error)? {
        true => open(path, limits),
        false => {
            let part = part_of(path)?;
            let made = make(&part, limits).and_then(|db| std::fs::rename(&part, path).map_err(io_error).map(|()| db));
            made.inspect_err(|_| drop(std::fs::remove_file(&part)))
        }
    }
}

/// Opens the store in a file that is there. One that is empty, cut short or something else stays as it is.
pub(super) fn open(path: &Path, limits: Limits) -> Result<redb::Database, SonaError> {
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
    database(path, file, limits)
}

/// Makes a store in a file of this name, whatever lay there.
pub(super) fn make(path: &Path, limits: Limits) -> Result<redb::Database, SonaError> {
    let file = options().create(true).truncate(true).open(path).map_err(io_error)?;
    database(path, file, limits)
}

/// For the owner only: it holds what was taught and put on record.
fn options() -> std::fs::OpenOptions {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

fn database(_path: &Path, file: File, limits: Limits) -> Result<redb::Database, SonaError> {
    let disk = Disk {
        file: FileBackend::new(file).map_err(db_error)?,
        #[cfg(test)]
        faults: ruvllm_testkit::Faults::of(_path),
    };
    let mut builder = redb::Builder::new();
    builder.set_cache_size(limits.cache_bytes);
    guarded(|| builder.create_with_backend(disk).map_err(db_error))
}

/// Makes a store that has no file.
pub(super) fn in_memory(limits: Limits) -> Result<redb::Database, SonaError> {
    let mut builder = redb::Builder::new();
    builder.set_cache_size(limits.cache_bytes);
    builder.create_with_backend(InMemoryBackend::new()).map_err(db_error)
}

/// Runs what reads a file that may be damaged: redb takes some damage for a fault of its own and panics.
pub(super) fn guarded<T>(read: impl FnOnce() -> Result<T, SonaError>) -> Result<T, SonaError> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
        let advice = "put a copy back, or move it away to begin anew";
        Err(invalid(format!("the store is damaged: what it holds does not fit together: {advice}")))
    })
}

/// A name beside `path` that nobody else makes a store under.
fn part_of(path: &Path) -> Result<PathBuf, SonaError> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{:016x}.part", u64::from_le_bytes(super::random()?)));
    Ok(name.into())
}

pub(super) fn io_error(error: io::Error) -> SonaError {
    SonaError::new(SonaErrorKind::Io, error.to_string()).with_source(error)
}
