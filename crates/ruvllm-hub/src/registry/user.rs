//! The person's own file of entries and aliases.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use toml_edit::{DocumentMut, Item, TableLike};

use crate::error::{HubError, HubErrorKind, io_reason, shown};
use crate::registry::parse;

/// The most bytes of the file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Returns the text of the file, or `None` if there is none.
///
/// # Errors
/// The end of a line that names the file.
pub(super) fn read(path: &Path) -> Result<Option<String>, String> {
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => return Err("it is no file".to_owned()),
        Ok(metadata) if metadata.len() > FILE_BYTES_MAX => {
            return Err(format!("it has {} bytes, {FILE_BYTES_MAX} are the most", metadata.len()));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_reason(&error)),
    }
    let mut bytes = Vec::new();
    let file = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    file.map_err(|error| io_reason(&error))?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Some(text)),
        Err(error) => {
            let place = error.utf8_error().valid_up_to();
            let before = String::from_utf8_lossy(&error.as_bytes()[..place]).into_owned();
            Err(format!("line {}: it is not UTF-8", parse::line(&before, place)))
        }
    }
}

/// Checks that a text can be the name of an alias.
pub(super) fn check_name(name: &str) -> Result<(), HubError> {
    if parse::is_name(name) {
        return Ok(());
    }
    let name = shown(name, 80);
    Err(HubError::usage(format_args!(
        "'{name}' cannot be an alias; use letters, digits, '.', '_', '-' and ':', and no prefix of a source"
    )))
}

/// Changes the aliases of the file, which gets its new content all at once.
pub(super) fn edit(path: &Path, change: impl FnOnce(&mut dyn TableLike)) -> Result<(), HubError> {
    let unusable = |line: String| {
        HubError::new(HubErrorKind::Invalid, format_args!("{}: {line}; correct it first", path.display()))
    };
    let text = read(path).map_err(unusable)?.unwrap_or_default();
    parse::parse(&text).map_err(unusable)?;
    let mut document: DocumentMut =
        text.parse().map_err(|error: toml_edit::TomlError| unusable(error.message().to_owned()))?;
    let aliases = document.entry("alias").or_insert_with(|| Item::Table(toml_edit::Table::new()));
    let table = aliases.as_table_like_mut().ok_or_else(|| unusable("alias is no table".to_owned()))?;
    change(table);
    write(path, &document.to_string()).map_err(|error| HubError::io("write", path, &error))
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    // A link leads to the file that is meant.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().unwrap_or(folder);
    let mut part = tempfile::NamedTempFile::new_in(folder)?;
    part.write_all(text.as_bytes())?;
    if let Ok(metadata) = fs::metadata(&path) {
        part.as_file().set_permissions(metadata.permissions())?;
    }
    part.as_file().sync_all()?;
    part.persist(&path).map(drop).map_err(|error| error.error)
}
