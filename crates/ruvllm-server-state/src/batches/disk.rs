//! Files of the folder: readable by their owner alone, and written whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::private::private;

/// Name of the file that says whose folder it is.
const OWNER: &str = "tenant.json";

/// Makes a folder for its owner alone.
pub(super) fn make_folder(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Makes a file for its owner alone, which is not there yet.
pub(super) fn create(path: &Path) -> io::Result<File> {
    private().create_new(true).write(true).open(path)
}

/// Opens a file to add to it, and makes it if it is not there.
pub(super) fn append(path: &Path) -> io::Result<File> {
    private().create(true).append(true).read(true).open(path)
}

/// Writes an object so that a crash leaves the old one or the new one.
pub(super) fn write(path: &Path, object: &Value) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = private().create(true).write(true).truncate(true).open(&new)?;
    file.write_all(object.to_string().as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Makes the folder of a tenant.
pub(super) fn make_tenant(root: &Path, tenant: &str) -> io::Result<PathBuf> {
    // Names of tenants are words of any characters; those of folders are not.
    let digest = Sha256::digest(tenant.as_bytes());
    let folder = root.join(format!("tenant-{}", hex::encode(&digest[..8])));
    make_folder(&folder)?;
    write(&folder.join(OWNER), &json!({ "tenant": tenant }))?;
    Ok(folder)
}

/// Returns the tenants that have a folder.
pub(super) fn tenants(root: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root)? {
        let path = entry?.path();
        let owner = fs::read(path.join(OWNER)).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        if let Some(tenant) = owner.as_ref().and_then(|owner| owner["tenant"].as_str()) {
            found.push((tenant.to_owned(), path));
        }
    }
    Ok(found)
}

/// Returns the objects in a tenant's folder by their ids.
pub(super) fn described(folder: &Path) -> io::Result<Vec<(String, Value)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let id = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        if path.extension().is_none_or(|end| end != "json") || path.file_name().is_some_and(|name| name == OWNER) {
            continue;
        }
        let object: Value = serde_json::from_slice(&fs::read(&path)?)
            .map_err(|error| io::Error::other(format!("{} is damaged: {error}", path.display())))?;
        found.push((id, object));
    }
    Ok(found)
}

/// Removes contents that belong to none of these ids: uploads that were cut off.
pub(super) fn remove_others(folder: &Path, kept: &[String]) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let id = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        let is_content = path.extension().is_some_and(|end| end == "data" || end == "new");
        if is_content && !kept.contains(&id) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}
