//! The store of what a model was taught: one file for all of its tenants, which one process has.

use std::fs::{self, File, TryLockError};
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ruvllm_engine::{EngineError, ErrorKind};
use ruvllm_sona::store::{self, MasterKey, OpenOptions, Store};

use crate::file;
use crate::learning::LearningOptions;

/// The file of the store in a model's folder.
pub const STORE_FILE: &str = "learned.redb";
/// The file that keeps other processes out, and says who has it.
const LOCK_FILE: &str = "learned.lock";

/// How long one who had the folder may take to end.
const ENDING: Duration = Duration::from_millis(500);

/// A store, and what keeps other processes out of it.
pub(crate) struct Kept {
    pub store: Arc<dyn Store>,
    _lock: File,
}

impl Kept {
    /// Opens the store of a model's folder; `tenant` is named in errors.
    ///
    /// # Errors
    /// Another process has it, the key is not its key, or it cannot be read.
    pub(crate) fn open(folder: &Path, tenant: &str, options: &LearningOptions) -> Result<Kept, EngineError> {
        file::make_folder(folder)?;
        let lock = lock_file(&folder.join(LOCK_FILE), tenant, &options.process)?;
        let key = options.key.as_deref().map(read_key).transpose()?;
        let open = OpenOptions { key: key.as_ref(), ..OpenOptions::default() };
        let store = store::open(&folder.join(STORE_FILE), &open).map_err(|error| {
            let line = format!("what was learned cannot be read: {error}");
            EngineError::new(ErrorKind::Learning, line).with_source(error)
        })?;
        Ok(Kept { store, _lock: lock })
    }
}

/// Reads the key that stores are encrypted with.
///
/// # Errors
/// The file cannot be read, or holds no key.
pub(crate) fn read_key(path: &Path) -> Result<MasterKey, EngineError> {
    let bytes = fs::read(path).map_err(|error| file::failed("read", path, error))?;
    MasterKey::parse(&bytes).map_err(|error| {
        EngineError::new(ErrorKind::Learning, format!("{}: {error}", path.display())).with_source(error)
    })
}

/// Opens the file that only one process has, and writes that process into it.
fn lock_file(path: &Path, tenant: &str, process: &str) -> Result<File, EngineError> {
    let open = File::options().create(true).truncate(false).write(true).open(path);
    let mut lock = open.map_err(|error| file::failed("open", path, error))?;
    let start = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => break,
            // A process that has just ended may have a thread that is about to.
            Err(TryLockError::WouldBlock) if start.elapsed() < ENDING => std::thread::sleep(ENDING / 50),
            Err(TryLockError::WouldBlock) => return Err(taken(path, tenant)),
            Err(TryLockError::Error(error)) => return Err(file::failed("lock", path, error)),
        }
    }
    let process = if process.is_empty() { "a program" } else { process };
    let who = format!("{process}, process {}\n", std::process::id());
    lock.set_len(0)
        .and_then(|()| lock.write_all(who.as_bytes()))
        .map_err(|error| file::failed("write", path, error))?;
    Ok(lock)
}

/// Names the process that has the folder.
fn taken(path: &Path, tenant: &str) -> EngineError {
    // Where a locked file cannot be read, nobody knows.
    let who = fs::read_to_string(path).unwrap_or_default();
    let who = if who.trim().is_empty() { String::new() } else { format!(": {}", who.trim()) };
    let line = format!(
        "another process learns for tenant '{tenant}' of this model and for all others of it{who}; stop it, or ask it"
    );
    EngineError::new(ErrorKind::Learning, line)
}
