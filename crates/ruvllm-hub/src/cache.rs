//! The hub's cache folder, as its own tools lay it out: blobs by their tag, and snapshots whose files lead to them.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use hf_hub::{Cache, CacheRepo, Repo, RepoType};

use crate::error::io_reason;
use crate::progress::Progress;

/// The longest tag of a file.
const ETAG_CHARS_MAX: usize = 200;

/// Part of the cache folder that belongs to a repository at a revision.
pub(crate) struct RepoCache {
    repo: CacheRepo,
    blobs: PathBuf,
}

impl RepoCache {
    pub(crate) fn new(cache_dir: &Path, repo: &str, revision: &str) -> RepoCache {
        let repo = Repo::with_revision(repo.to_owned(), RepoType::Model, revision.to_owned());
        let blobs = cache_dir.join(repo.folder_name()).join("blobs");
        RepoCache { repo: Cache::new(cache_dir.to_owned()).repo(repo), blobs }
    }

    /// Returns where a file lies, if it was downloaded.
    pub(crate) fn get(&self, file: &str) -> Option<PathBuf> {
        self.repo.get(file)
    }

    /// Returns where a file of one commit lies, if it was downloaded.
    pub(crate) fn get_of(&self, commit: &str, file: &str) -> Option<PathBuf> {
        Some(self.repo.pointer_path(commit).join(file)).filter(|path| path.exists())
    }

    /// Returns where the content with a tag lies when it is whole.
    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.blobs.join(etag)
    }

    /// Returns where the content with a tag lies while it is downloaded.
    pub(crate) fn part(&self, etag: &str) -> PathBuf {
        self.blob(etag).with_extension("part")
    }

    /// Takes the lock of a download; waits for another one of the same content.
    pub(crate) fn lock(&self, etag: &str, progress: &dyn Progress) -> Result<File, String> {
        let path = self.blob(etag).with_extension("lock");
        let line = |error: io::Error| format!("cannot use the cache folder {}: {}", path.display(), io_reason(&error));
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(line)?;
        }
        let file = File::create(&path).map_err(line)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress.note("another program is downloading this file; waiting for it");
                file.lock().map_err(line)?;
            }
            // A file system without locks: content is checked before it gets its name.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(line(error)),
        }
        Ok(file)
    }

    /// Makes a file of a snapshot lead to the content with a tag, and the revision to the snapshot. Returns where it lies.
    pub(crate) fn link(&self, commit: &str, file: &str, etag: &str) -> io::Result<PathBuf> {
        let (blob, pointer) = (self.blob(etag), self.repo.pointer_path(commit).join(file));
        if let Some(folder) = pointer.parent() {
            fs::create_dir_all(folder)?;
        }
        if fs::symlink_metadata(&pointer).is_ok() {
            fs::remove_file(&pointer)?;
        }
        link(&blob, &pointer, file)?;
        self.repo.create_ref(commit)?;
        Ok(pointer)
    }
}

/// From `snapshots/COMMIT/FILE` up to the folder that has `blobs`.
#[cfg(unix)]
fn link(blob: &Path, pointer: &Path, file: &str) -> io::Result<()> {
    let mut target: PathBuf = std::iter::repeat_n("..", 1 + file.split('/').count()).collect();
    target.push("blobs");
    target.push(blob.file_name().unwrap_or_default());
    std::os::unix::fs::symlink(target, pointer)
}

#[cfg(not(unix))]
fn link(blob: &Path, pointer: &Path, _file: &str) -> io::Result<()> {
    fs::hard_link(blob, pointer).or_else(|_| fs::copy(blob, pointer).map(|_| ()))
}

/// Returns a tag as a file name, if it can be one.
pub(crate) fn plain_etag(etag: &str) -> Option<String> {
    let etag = etag.trim().trim_start_matches("W/").trim_matches('"');
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_+=".contains(c);
    (!etag.is_empty() && etag.len() <= ETAG_CHARS_MAX && etag.chars().all(is_plain)).then(|| etag.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_that_are_no_file_names_are_refused() {
        assert_eq!(plain_etag("W/\"ab-1\"").as_deref(), Some("ab-1"));
        for wrong in ["", "\"\"", "../../x", "a/b", "a.part", "a b"] {
            assert_eq!(plain_etag(wrong), None, "{wrong}");
        }
        assert_eq!(plain_etag(&"a".repeat(201)), None);
    }

    #[test]
    fn files_of_a_snapshot_lead_to_blobs() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let cache = RepoCache::new(dir.path(), "o/r", "main");
        for (etag, content) in [("aa", "one"), ("bb", "two")] {
            let blob = cache.blob(etag);
            fs::create_dir_all(blob.parent().expect("a folder")).expect("a temporary folder is writable");
            fs::write(&blob, content).expect("a temporary folder is writable");
            let path = cache.link("c0", "d/e/m.gguf", etag).expect("a link");
            assert_eq!(fs::read_to_string(&path).expect("a file"), content);
            assert_eq!(cache.get("d/e/m.gguf"), Some(path));
        }
    }
}
