//! The place where a write to the disk can be made to fail, which only tests do.

use std::io;
use std::path::Path;

/// The disk under a store's folder.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    #[cfg(test)]
    faults: Option<std::sync::Arc<watched::Faults>>,
}

impl Disk {
    /// Returns the disk under the folder of a store's segments.
    #[cfg_attr(not(test), expect(unused_variables, reason = "only tests name folders that fail"))]
    pub(super) fn under(path: &Path) -> Disk {
        Disk {
            #[cfg(test)]
            faults: watched::of(path),
        }
    }

    /// Called before each write, sync and change of length.
    ///
    /// # Errors
    /// What a test has said.
    #[cfg_attr(not(test), expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "only tests let it fail"))]
    pub(super) fn ask(&self) -> io::Result<()> {
        #[cfg(test)]
        if let Some(faults) = &self.faults {
            return faults.ask();
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod watched {
    use std::collections::HashMap;
    use std::io;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
    use std::sync::{Arc, LazyLock, Mutex, PoisonError};

    /// When the stores in a folder fail.
    #[derive(Debug)]
    pub(in crate::disk) struct Faults {
        /// Calls until now.
        n_done: AtomicU64,
        /// So many more are let through, then all fail; below zero none fails.
        n_left: AtomicI64,
        code: AtomicI64,
    }

    static ALL: LazyLock<Mutex<HashMap<PathBuf, Arc<Faults>>>> = LazyLock::new(Mutex::default);

    impl Faults {
        /// Watches the stores in `folder` that are opened from now on.
        pub(in crate::disk) fn watch(folder: &Path) -> Arc<Faults> {
            let (n_done, n_left, code) = (AtomicU64::new(0), AtomicI64::new(-1), AtomicI64::new(0));
            let faults = Arc::new(Faults { n_done, n_left, code });
            ALL.lock().unwrap_or_else(PoisonError::into_inner).insert(folder.to_owned(), Arc::clone(&faults));
            faults
        }

        /// Lets `n` pass, then fails with the system's error `code` until [`Faults::clear`].
        pub(in crate::disk) fn after(&self, n: u64, code: i32) {
            self.code.store(i64::from(code), SeqCst);
            self.n_left.store(n as i64, SeqCst);
        }

        pub(in crate::disk) fn clear(&self) {
            self.n_left.store(-1, SeqCst);
        }

        pub(in crate::disk) fn n_done(&self) -> u64 {
            self.n_done.load(SeqCst)
        }

        pub(super) fn ask(&self) -> io::Result<()> {
            self.n_done.fetch_add(1, SeqCst);
            match self.n_left.fetch_update(SeqCst, SeqCst, |n| (n > 0).then(|| n - 1)) {
                Err(0) => Err(io::Error::from_raw_os_error(self.code.load(SeqCst) as i32)),
                _ => Ok(()),
            }
        }
    }

    /// Returns what a test has said of the folder that a store's folder lies in.
    pub(super) fn of(path: &Path) -> Option<Arc<Faults>> {
        ALL.lock().unwrap_or_else(PoisonError::into_inner).get(path.parent()?).cloned()
    }
}
