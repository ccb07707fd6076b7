//! A disk that fails when a test says so.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// When the stores in a folder fail.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Writes, syncs and changes of length until now.
    n_done: AtomicU64,
    /// So many more are let through, then all fail; below zero none fails.
    n_left: AtomicI64,
    code: AtomicI64,
}

static ALL: LazyLock<Mutex<HashMap<PathBuf, Arc<Faults>>>> = LazyLock::new(Mutex::default);

impl Faults {
    /// Watches the stores in `folder` that are opened from now on.
    pub(crate) fn watch(folder: &Path) -> Arc<Faults> {
        let faults = Arc::new(Faults { n_left: AtomicI64::new(-1), ..Faults::default() });
        ALL.lock().unwrap_or_else(PoisonError::into_inner).insert(folder.to_owned(), Arc::clone(&faults));
        faults
    }

    /// Lets `n` pass, then fails with the system's error `code` until [`Faults::clear`].
    pub(crate) fn after(&self, n: u64, code: i32) {
        self.code.store(i64::from(code), SeqCst);
        self.n_left.store(n as i64, SeqCst);
    }

    pub(crate) fn clear(&self) {
        self.n_left.store(-1, SeqCst);
    }

    pub(crate) fn n_done(&self) -> u64 {
        self.n_done.load(SeqCst)
    }

    pub(super) fn ask(&self, _what: &'static str) -> io::Result<()> {
        self.n_done.fetch_add(1, SeqCst);
        let left = self.n_left.fetch_update(SeqCst, SeqCst, |n| (n > 0).then(|| n - 1));
        match left {
            Err(0) => Err(io::Error::from_raw_os_error(self.code.load(SeqCst) as i32)),
            _ => Ok(()),
        }
    }
}

/// What a test has said of the file's folder.
pub(super) fn of(path: &Path) -> Option<Arc<Faults>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner).get(path.parent()?).cloned()
}
