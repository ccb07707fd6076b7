//! Room on the disk, and files that are one.

use std::path::Path;

use crate::error::{ConvertError, ConvertErrorKind};

/// Folder of a file.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Checks that a file of `need` bytes fits on the disk in addition to what is there. Systems that do not tell are believed.
///
/// # Errors
/// The disk has less.
pub fn check(path: &Path, need: u64) -> Result<(), ConvertError> {
    let Some(have) = available(folder(path)) else { return Ok(()) };
    if need <= have {
        return Ok(());
    }
    let gb = |n: u64| n as f64 / 1e9;
    let line = format!(
        "the output needs {:.2} GB and the disk has {:.2} GB left; free some, or write to another disk",
        gb(need),
        gb(have)
    );
    Err(ConvertError::new(ConvertErrorKind::Space, line).at(path))
}

/// Returns the bytes that are left on the disk of a folder which is there; `None` where the system does not tell.
#[cfg(unix)]
pub fn available(folder: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

/// Returns nothing: the system does not tell.
#[cfg(not(unix))]
pub fn available(_folder: &Path) -> Option<u64> {
    None
}

/// Checks that the output is not the input, and has a folder.
///
/// # Errors
/// It is, or there is no such folder.
pub(crate) fn check_output(input: &Path, output: &Path) -> Result<(), ConvertError> {
    let real = |path: &Path| path.canonicalize().ok();
    if real(input).is_some() && real(input) == real(output) {
        return Err(ConvertError::usage("is the input; write to another file").at(output));
    }
    if output.is_dir() || !folder(output).is_dir() {
        return Err(ConvertError::usage("is no place for a file; name a file in a folder that exists").at(output));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_seen() {
        assert!(check(Path::new("x"), 1).is_ok());
        if cfg!(unix) {
            let error = check(Path::new("x"), u64::MAX).expect_err("no disk is as large");
            assert_eq!(error.kind(), ConvertErrorKind::Space);
        }
    }
}
