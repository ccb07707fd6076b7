//! Files that are whole or not there.

use std::fs::{self, File};
use std::io::{ErrorKind as IoKind, Write};
use std::path::Path;

use ruvllm_engine::{EngineError, ErrorKind};

/// Makes an error of a file that cannot be used.
pub(crate) fn failed(what: &str, path: &Path, error: std::io::Error) -> EngineError {
    let line = format!("cannot {what} {}: {error}", path.display());
    EngineError::new(ErrorKind::Learning, line).with_source(error)
}

/// Reads a file; `None` if there is none.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, EngineError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == IoKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path, error)),
    }
}

/// Writes a file in place of what was there, durably: a crash leaves the one or the other.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), EngineError> {
    let beside = path.with_extension(format!("{}.part", std::process::id()));
    let written = File::create(&beside).and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    let written = written.and_then(|()| fs::rename(&beside, path));
    written.map_err(|error| {
        // What is left of it is of no use to anybody.
        let _ = fs::remove_file(&beside);
        failed("write", path, error)
    })
}

/// Removes a file.
pub(crate) fn remove(path: &Path) -> Result<(), EngineError> {
    fs::remove_file(path).map_err(|error| failed("remove", path, error))
}

/// Makes a folder, with those above it.
pub(crate) fn make_folder(path: &Path) -> Result<(), EngineError> {
    fs::create_dir_all(path).map_err(|error| failed("make", path, error))
}
