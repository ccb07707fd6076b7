//! Work folders of pulls, `models/.pull/<stem>/` with a lock beside each: finished wheels stay in them for the next pull.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::progress::Progress;
use crate::source::FetchedFile;

/// The work folder of a model, which nobody else works in until it is dropped.
pub(super) struct Work {
    path: PathBuf,
    _lock: File,
}

impl Work {
    /// Begins to work on a model; waits for another pull of it. What pulls left behind that were ended, of any model, goes.
    pub(super) fn begin(models: &Path, stem: &str, progress: &dyn Progress) -> io::Result<Work> {
        let works = models.join(".pull");
        fs::create_dir_all(&works)?;
        let file = File::create(lock_of(&works.join(stem)))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress.note("another ruvllm is pulling this model; waiting for it");
                file.lock()?;
            }
            // A file system without locks: the rename still keeps what is there whole.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
        sweep(models);
        let work = Work { path: works.join(stem), _lock: file };
        work.clear();
        fs::create_dir_all(&work.path)?;
        Ok(work)
    }

    /// Returns where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes all but finished wheels, and the folder if there are none.
    pub(super) fn clear(&self) {
        clear(&self.path);
    }

    /// Removes the folder.
    pub(super) fn remove(&self) {
        let _ = fs::remove_dir_all(&self.path);
    }

    /// Moves a fetched file to its place: a rename, or for a file of another cache a hard link or a copy.
    pub(super) fn place(&self, fetched: &FetchedFile, path: &Path) -> io::Result<()> {
        let whole = if fetched.is_shared {
            let part = self.path.join("linked.gguf");
            let _ = fs::remove_file(&part);
            fs::hard_link(&fetched.path, &part).or_else(|_| fs::copy(&fetched.path, &part).map(|_| ()))?;
            part
        } else {
            fetched.path.clone()
        };
        File::open(&whole)?.sync_all()?;
        fs::rename(&whole, path)
    }
}

/// Removes what pulls left behind that were ended. A pull that goes on has its lock.
pub(super) fn sweep(models: &Path) {
    // A folder that cannot be read has nothing to be removed.
    for entry in fs::read_dir(models.join(".pull")).into_iter().flatten().flatten() {
        let work = entry.path();
        let is_free = |lock: &File| lock.try_lock().is_ok();
        let lock = if work.is_dir() { File::create(lock_of(&work)).ok().filter(is_free) } else { None };
        if lock.is_some() {
            clear(&work);
        }
    }
}

fn lock_of(work: &Path) -> PathBuf {
    let mut name = work.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// Removes all but finished wheels of a work folder, and the folder if there are none. What cannot be removed is no hindrance.
fn clear(work: &Path) {
    for entry in fs::read_dir(work).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_folder = entry.file_type().is_ok_and(|ty| ty.is_dir());
        let _ = match path.extension().is_some_and(|end| end == "whl") {
            true => Ok(()),
            false if is_folder => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
    }
    let _ = fs::remove_dir(work);
}
