//! A disk that fails when a test says so. A store asks before each write, sync and change of length.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// When the stores in a folder fail.
#[derive(Debug)]
pub struct Faults {
    n_done: AtomicU64,
    /// So many more are let through, then all fail; below zero none fails.
    n_left: AtomicI64,
    code: AtomicI64,
}

static ALL: LazyLock<Mutex<HashMap<PathBuf, Arc<Faults>>>> = LazyLock::new(Mutex::default);

impl Faults {
    /// Watches the stores in `folder` that are opened from now on.
    pub fn watch(folder: &Path) -> Arc<Faults> {
        let (n_done, n_left, code) = (AtomicU64::new(0), AtomicI64::new(-1), AtomicI64::new(0));
        let faults = Arc::new(Faults { n_done, n_left, code });
        ALL.lock().unwrap_or_else(PoisonError::into_inner).insert(folder.to_owned(), Arc::clone(&faults));
        faults
    }

    /// Returns what a test has said of the folder that a path lies in.
    pub fn of(path: &Path) -> Option<Arc<Faults>> {
        ALL.lock().unwrap_or_else(PoisonError::into_inner).get(path.parent()?).cloned()
    }

    /// Lets `n` pass, then fails with the system's error `code` until [`Faults::clear`].
    pub fn after(&self, n: u64, code: i32) {
        self.code.store(i64::from(code), SeqCst);
        self.n_left.store(n as i64, SeqCst);
    }

    /// Lets all pass.
    pub fn clear(&self) {
        self.n_left.store(-1, SeqCst);
    }

    /// Returns how often was asked until now.
    pub fn n_done(&self) -> u64 {
        self.n_done.load(SeqCst)
    }

    /// Returns it as what a store asks.
    pub fn guard(self: &Arc<Faults>) -> Arc<dyn Fn() -> io::Result<()> + Send + Sync> {
        let faults = Arc::clone(self);
        Arc::new(move || faults.ask())
    }

    /// Called before each write, sync and change of length.
    ///
    /// # Errors
    /// What a test has said.
    pub fn ask(&self) -> io::Result<()> {
        self.n_done.fetch_add(1, SeqCst);
        match self.n_left.fetch_update(SeqCst, SeqCst, |n| (n > 0).then(|| n - 1)) {
            Err(0) => Err(io::Error::from_raw_os_error(self.code.load(SeqCst) as i32)),
            _ => Ok(()),
        }
    }
}
