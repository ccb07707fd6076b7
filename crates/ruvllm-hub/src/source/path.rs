//! Model files of the person's own.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::{HubError, HubErrorKind, io_reason};

/// Returns `path` if it is a file that can be opened.
///
/// # Errors
/// A failure that says why it cannot be read and what names are possible.
pub(crate) fn check(path: &Path) -> Result<PathBuf, HubError> {
    let failure = |line: std::fmt::Arguments<'_>| HubError::new(HubErrorKind::Io, line);
    let metadata = std::fs::metadata(path).map_err(|error| {
        failure(format_args!(
            "cannot open model {}: {}; check the path, or see 'ruvllm list' for models by name",
            path.display(),
            io_reason(&error)
        ))
    })?;
    if metadata.is_dir() {
        return Err(failure(format_args!(
            "cannot open model {}: it is a folder; pass the path of the .gguf file in it",
            path.display()
        )));
    }
    if !metadata.is_file() {
        return Err(failure(format_args!(
            "cannot open model {}: it is a pipe or a device, and a model is mapped; pass the path of a file",
            path.display()
        )));
    }
    File::open(path).map_err(|error| {
        failure(format_args!(
            "cannot open model {}: {}; check who may read the file",
            path.display(),
            io_reason(&error)
        ))
    })?;
    Ok(path.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_files_and_folders_are_refused() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let missing = check(&dir.path().join("no.gguf")).expect_err("no such file");
        assert!(missing.to_string().contains("no such file"));
        let folder = check(dir.path()).expect_err("a folder");
        assert!(folder.to_string().contains("is a folder"));
        let file = dir.path().join("m.gguf");
        std::fs::write(&file, b"GGUF").expect("a temporary folder is writable");
        assert_eq!(check(&file).expect("a file"), file);
    }
}
