//! Arguments are looked at before anything slow is done: what is to be read can be read, what is to be written has a place.

use std::fs::{self, File, OpenOptions};
use std::path::Path;

use ruvllm_sona::store::MasterKey;

use crate::error::{Error, Result};
use crate::out_file::{folder_of, refuse_inputs};

/// Checks that a file is there and can be read.
///
/// # Errors
/// A failure that names it.
pub fn readable(path: &Path) -> Result<()> {
    let failed = |error: std::io::Error| Error::io("read", path, &error);
    let file = File::open(path).map_err(failed)?;
    match file.metadata().map_err(failed)?.is_dir() {
        true => Err(Error::failure(format_args!("cannot read {}: it is a folder; pass a file", path.display()))),
        false => Ok(()),
    }
}

/// Checks that a file can be written, which may be none of `inputs`; leaves what is there as it is.
///
/// # Errors
/// A usage error if it is one of them; a failure if it is a folder, or neither it nor its folder can be written to.
pub fn writable(path: &Path, inputs: &[&Path]) -> Result<()> {
    refuse_inputs(path, inputs)?;
    let failed = |error: std::io::Error| Error::io("write", path, &error);
    if path.exists() {
        return OpenOptions::new().append(true).open(path).map(drop).map_err(failed);
    }
    tempfile::Builder::new().prefix(".ruvllm-").tempfile_in(folder_of(path)).map(drop).map_err(failed)
}

/// Checks that files can be put into a folder, which is made when it is needed; makes nothing.
///
/// # Errors
/// A failure if something else has its name, or a folder cannot be made or written there.
pub fn writable_folder(path: &Path) -> Result<()> {
    let failed = |error: std::io::Error| Error::io("write", path, &error);
    let is_named = |folder: &&Path| !folder.as_os_str().is_empty();
    let there = path.ancestors().filter(is_named).find(|folder| folder.symlink_metadata().is_ok());
    let there = there.unwrap_or(Path::new("."));
    if !fs::metadata(there).map_err(failed)?.is_dir() {
        let (path, there) = (path.display(), there.display());
        return Err(Error::failure(format_args!("cannot write {path}: {there} is no folder; choose another place")));
    }
    tempfile::Builder::new().prefix(".ruvllm-").tempfile_in(there).map(drop).map_err(failed)
}

/// Checks a file with the key that a store is encrypted with.
///
/// # Errors
/// A failure that names it: it cannot be read, or is no key.
pub fn key(path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let bytes = fs::read(path).map_err(|error| Error::io("read", path, &error))?;
    let parsed = MasterKey::parse(&bytes).map(drop);
    parsed.map_err(|error| Error::failure(format_args!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_or_written_is_named() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let file = dir.path().join("file");
        fs::write(&file, "text").expect("a temporary folder is writable");
        let line = |result: Result<()>| result.expect_err("it is wrong").line().unwrap_or_default();
        assert!(readable(&file).is_ok());
        assert!(line(readable(&dir.path().join("none"))).contains("none: no such file"));
        assert!(line(readable(dir.path())).contains("it is a folder"));

        assert!(writable(&file, &[]).is_ok() && writable(&dir.path().join("new"), &[]).is_ok());
        assert_eq!(fs::read(&file).expect("the file"), b"text");
        assert!(!dir.path().join("new").exists());
        assert_eq!(writable(&file, &[&file]).expect_err("an input").exit_code(), 2);
        for place in [dir.path().to_owned(), dir.path().join("none/out"), file.join("below")] {
            assert!(line(writable(&place, &[])).contains(&place.display().to_string()));
        }

        assert!(writable_folder(&dir.path().join("a/b")).is_ok() && writable_folder(dir.path()).is_ok());
        assert!(!dir.path().join("a").exists());
        assert!(line(writable_folder(&file)).contains("is no folder"));
        assert!(line(writable_folder(&file.join("a/b"))).contains("is no folder"));
    }

    #[test]
    fn keys_are_checked() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("key");
        fs::write(&path, [7; 32]).expect("a temporary folder is writable");
        assert!(key(None).is_ok() && key(Some(&path)).is_ok());
        fs::write(&path, [7; 31]).expect("a temporary folder is writable");
        assert!(key(Some(&path)).is_err() && key(Some(&dir.path().join("none"))).is_err());
    }
}
