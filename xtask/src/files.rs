//! Folders of packages that commands put together.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::shell;

/// Makes an empty folder.
///
/// # Errors
/// What was there cannot be removed, or the folder not be made.
pub(crate) fn empty(folder: PathBuf) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// Copies a file, and makes the folder that it comes to.
///
/// # Errors
/// It cannot be read or written.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    let cannot = || format!("cannot copy {} to {}", from.display(), to.display());
    fs::create_dir_all(to.parent().expect("a file lies in a folder")).with_context(cannot)?;
    fs::copy(from, to).map(drop).with_context(cannot)
}

/// Copies the files of a folder, and with `deep` those of the folders in it.
///
/// # Errors
/// As [`copy`].
pub(crate) fn copy_folder(from: &Path, to: &Path, deep: bool) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let path = entry?.path();
        let to = to.join(path.file_name().expect("an entry has a name"));
        match (path.is_dir(), deep) {
            (false, _) => copy(&path, &to)?,
            (true, true) => copy_folder(&path, &to, deep)?,
            (true, false) => {}
        }
    }
    Ok(())
}

/// Gives a package the licences.
///
/// # Errors
/// As [`copy`].
pub(crate) fn license(package: &Path) -> Result<()> {
    ["LICENSE-MIT", "LICENSE-APACHE"].iter().try_for_each(|name| copy(&shell::root().join(name), &package.join(name)))
}
