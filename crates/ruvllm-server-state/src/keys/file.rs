//! The key file on the disk: read whole, and replaced whole, so that a reader sees the old one or the new one.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::time::SystemTime;

use http::StatusCode;
use ruvllm_api::error::{ApiError, without_numbers};

use crate::private::private;

/// Returns when a file was changed last.
pub(super) fn modified(file: &Path) -> Option<SystemTime> {
    fs::metadata(file).and_then(|metadata| metadata.modified()).ok()
}

/// Reads a key file.
///
/// # Errors
/// One line that names the file.
pub(super) fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| format!("cannot read the key file {}: {error}", file.display()))
}

/// Replaces what a key file says, if it says `before`. Its permissions stay; where it is a link, the file behind it is replaced.
///
/// # Errors
/// 409: somebody else has changed it. 507: the disk is full. 500: it cannot be written. The file is as it was, each time.
pub(super) fn replace(file: &Path, before: &str, after: &str) -> Result<(), ApiError> {
    let failed = |error: io::Error| {
        let line = format!(
            "the key file {} cannot be replaced and is as it was: {}; the server has to write files in its folder",
            file.display(),
            without_numbers(&error.to_string())
        );
        ApiError::new(status(error.kind()), line).code("key_file")
    };
    let path = fs::canonicalize(file).map_err(failed)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let beside = path.with_file_name(name);
    let replaced = write(&path, &beside, after).map_err(failed).and_then(|()| match fs::read(&path) {
        Ok(now) if now == before.as_bytes() => fs::rename(&beside, &path).map_err(failed),
        Ok(_) => {
            let line = "the key file was changed by somebody else just now; send the request again";
            Err(ApiError::new(StatusCode::CONFLICT, line).code("key_file"))
        }
        Err(error) => Err(failed(error)),
    });
    match (&replaced, path.parent()) {
        // The new file is in its place; that its folder is not on the disk yet takes nothing from it.
        (Ok(()), Some(folder)) => drop(File::open(folder).and_then(|folder| folder.sync_all())),
        (Ok(()), None) => {}
        // What is left of it is of no use to anybody.
        (Err(_), _) => drop(fs::remove_file(&beside)),
    }
    replaced
}

fn status(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => StatusCode::INSUFFICIENT_STORAGE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Writes a file for its owner alone, and gives it owner, group and permissions of another one.
fn write(path: &Path, beside: &Path, text: &str) -> io::Result<()> {
    let metadata = fs::metadata(path)?;
    // One that is left of a process that was killed would keep its permissions.
    match fs::remove_file(beside) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = private().create_new(true).write(true).open(beside)?;
    file.write_all(text.as_bytes())?;
    keep_owner(&file, &metadata)?;
    file.set_permissions(metadata.permissions())?;
    file.sync_all()
}

/// Gives a file the owner and the group of another one. A group that cannot be given is an error, because another one might read
/// the file; an owner that cannot be given stays the server's, which reads it anyway.
#[cfg(unix)]
fn keep_owner(file: &File, like: &Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt as _, fchown};

    let made = file.metadata()?;
    if made.gid() != like.gid() {
        fchown(file, None, Some(like.gid()))?;
    }
    if made.uid() != like.uid() {
        drop(fchown(file, Some(like.uid()), None));
    }
    Ok(())
}

#[cfg(not(unix))]
fn keep_owner(_: &File, _: &Metadata) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_apart() {
        assert_eq!(status(ErrorKind::StorageFull), StatusCode::INSUFFICIENT_STORAGE);
        assert_eq!(status(ErrorKind::PermissionDenied), StatusCode::INTERNAL_SERVER_ERROR);
    }

    #[test]
    fn a_file_is_replaced_only_if_it_is_as_it_was_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("keys");
        fs::write(&file, "one").expect("written");
        let error = replace(&file, "other", "two").expect_err("it says something else");
        assert_eq!((error.status, fs::read_to_string(&file).expect("read")), (StatusCode::CONFLICT, "one".to_owned()));
        replace(&file, "one", "two").expect("replaced");
        assert_eq!(fs::read_to_string(&file).expect("read"), "two");
        // Nothing is left beside it, and a folder in the way is an error.
        assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 1);
        fs::create_dir(folder.path().join(format!("keys.{}.new", std::process::id()))).expect("made");
        let error = replace(&file, "two", "three").expect_err("no place");
        assert_eq!(error.status, StatusCode::INTERNAL_SERVER_ERROR, "{error:?}");
        assert!(!error.message.contains("os error"), "{error:?}");
        assert_eq!(fs::read_to_string(&file).expect("read"), "two");
    }

    #[cfg(unix)]
    #[test]
    fn links_and_permissions_stay() {
        use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("keys"), folder.path().join("link"));
        fs::write(&file, "one").expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("set");
        symlink(&file, &link).expect("linked");
        replace(&link, "one", "two").expect("replaced");
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
        assert_eq!(fs::read_to_string(&file).expect("read"), "two");
        assert_eq!(fs::metadata(&file).expect("there").mode() & 0o777, 0o640);
    }
}
