//! Files of a model's folder that describe it: bounded before they are read.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::error::{ConvertError, ConvertErrorKind, shown};

/// The most bytes of a file that describes a model. The largest tokenizers in use have 35 MB.
const TEXT_BYTES_MAX: u64 = 128 << 20;
/// The most entries of a folder that are looked at.
const N_ENTRIES_MAX: usize = 1 << 16;

/// A folder as the Hugging Face hub has it.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Name in the place of its own.
    given_name: Option<String>,
}

impl Folder {
    /// Takes a folder.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn open(path: &Path) -> Result<Folder, ConvertError> {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => Ok(Folder { path: path.to_owned(), given_name: None }),
            Ok(_) => Err(ConvertError::usage("is no folder; name the folder with config.json").at(path)),
            Err(error) => Err(io("cannot open", &error).at(path)),
        }
    }

    /// Gives it another name, if there is one.
    pub(super) fn named(self, given_name: Option<String>) -> Folder {
        Folder { given_name, ..self }
    }

    /// Returns its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its name. In the hub's cache that is the repository's, as the folder has the name of a commit.
    pub(super) fn name(&self) -> String {
        if let Some(name) = &self.given_name {
            return name.clone();
        }
        let path = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        let named = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let snapshots = path.parent().filter(|parent| parent.ends_with("snapshots")).and_then(Path::parent);
        let of_cache = snapshots.and_then(named).and_then(|name| {
            let (_, name) = name.strip_prefix("models--")?.rsplit_once("--")?;
            Some(name.to_owned())
        });
        let given = named(&self.path).or_else(|| named(&path));
        of_cache.or(given).unwrap_or_else(|| "model".to_owned())
    }

    /// Returns whether there is a file of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.path.join(name).is_file()
    }

    /// Returns where a file lies whose name another file gave.
    ///
    /// # Errors
    /// The name leaves the folder.
    pub(super) fn place(&self, name: &str) -> Result<PathBuf, ConvertError> {
        let path = Path::new(name);
        let is_inside = !name.is_empty()
            && name.len() <= 255
            && !name.contains('\0')
            && path.components().all(|part| matches!(part, Component::Normal(_)));
        match is_inside {
            true => Ok(self.path.join(path)),
            false => {
                let line = format!("it names the file '{}', which is not in the folder", shown(name));
                Err(ConvertError::invalid(line))
            }
        }
    }

    /// Returns the bytes of a file, if it is there.
    ///
    /// # Errors
    /// It cannot be read, is no file, or is too large for what it should be.
    pub(super) fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, ConvertError> {
        let path = self.path.join(name);
        // A link to nothing is no absence.
        if fs::symlink_metadata(&path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            return Ok(None);
        }
        let file = open(&path)?;
        let mut bytes = Vec::new();
        let read = file.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes);
        read.map_err(|error| io("cannot read", &error).at(&path))?;
        match bytes.len() as u64 > TEXT_BYTES_MAX {
            true => Err(ConvertError::invalid(format!("has more than {TEXT_BYTES_MAX} bytes")).at(&path)),
            false => Ok(Some(bytes)),
        }
    }

    /// Returns the text of a file, if it is there.
    ///
    /// # Errors
    /// As [`Folder::bytes`]; it is no text.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>, ConvertError> {
        let Some(bytes) = self.bytes(name)? else { return Ok(None) };
        let text = String::from_utf8(bytes);
        text.map(Some).map_err(|_| ConvertError::invalid("is no UTF-8 text").at(&self.path.join(name)))
    }

    /// Returns the content of a JSON file, if it is there.
    ///
    /// # Errors
    /// As [`Folder::bytes`]; it is no JSON.
    pub(super) fn json(&self, name: &str) -> Result<Option<Value>, ConvertError> {
        let Some(bytes) = self.bytes(name)? else { return Ok(None) };
        let value = serde_json::from_slice(&bytes).or_else(|error| match without_infinities(&bytes) {
            Some(bytes) => serde_json::from_slice(&bytes),
            None => Err(error),
        });
        let wrong = |error: serde_json::Error| format!("is no JSON: {}", shown(&error.to_string()));
        value.map(Some).map_err(|error| ConvertError::invalid(wrong(error)).at(&self.path.join(name)))
    }

    /// Returns the names of files that a predicate holds of, sorted.
    ///
    /// # Errors
    /// The folder cannot be listed, or has too many files.
    pub(super) fn names(&self, below: &str, want: impl Fn(&str) -> bool) -> Result<Vec<String>, ConvertError> {
        let path = self.path.join(below);
        if !path.is_dir() {
            return Ok(Vec::new());
        }
        let entries = fs::read_dir(&path).map_err(|error| io("cannot list", &error).at(&path))?;
        let mut names = Vec::new();
        for (i, entry) in entries.enumerate() {
            if i == N_ENTRIES_MAX {
                return Err(ConvertError::invalid(format!("has more than {N_ENTRIES_MAX} files")).at(&path));
            }
            let entry = entry.map_err(|error| io("cannot list", &error).at(&path))?;
            names.extend(entry.file_name().into_string().ok().filter(|name| want(name)));
        }
        names.sort();
        Ok(names)
    }
}

/// Puts `null` in the place of the numbers that Python writes and JSON does not have, if there are any.
fn without_infinities(bytes: &[u8]) -> Option<Vec<u8>> {
    const WORDS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let (mut out, mut at, mut is_text, mut found) = (Vec::with_capacity(bytes.len()), 0, false, false);
    while let Some(&byte) = bytes.get(at) {
        let word = WORDS.iter().find(|word| !is_text && bytes[at..].starts_with(word));
        if let Some(word) = word {
            out.extend_from_slice(b"null");
            (at, found) = (at + word.len(), true);
            continue;
        }
        let n = if is_text && byte == b'\\' { 2 } else { 1 };
        is_text ^= byte == b'"';
        out.extend_from_slice(&bytes[at..(at + n).min(bytes.len())]);
        at += n;
    }
    found.then_some(out)
}

/// Opens what is a file, and not a pipe that never ends.
///
/// # Errors
/// It is none, or cannot be opened.
pub(super) fn open(path: &Path) -> Result<File, ConvertError> {
    let metadata = fs::metadata(path).map_err(|error| io("cannot open", &error).at(path))?;
    if !metadata.is_file() {
        return Err(ConvertError::invalid("is no file").at(path));
    }
    File::open(path).map_err(|error| io("cannot open", &error).at(path))
}

/// Returns the error of a file.
pub(super) fn io(what: &str, error: &std::io::Error) -> ConvertError {
    ConvertError::new(ConvertErrorKind::Io, format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_the_hubs_cache_are_named_by_their_repository() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for (path, name) in [("models--Qwen--Qwen3-0.6B/snapshots/abc", "Qwen3-0.6B"), ("snapshots/abc", "abc")] {
            let path = dir.path().join(path);
            fs::create_dir_all(&path).expect("it is writable");
            assert_eq!(Folder::open(&path).expect("a folder").name(), name);
        }
    }

    #[test]
    fn numbers_that_only_python_writes_are_read() {
        let check = |text: &str, want: Option<&str>| {
            assert_eq!(without_infinities(text.as_bytes()).as_deref(), want.map(str::as_bytes), "{text}");
        };
        check(r#"{"a": [0.0, Infinity, -Infinity, NaN]}"#, Some(r#"{"a": [0.0, null, null, null]}"#));
        check(r#"{"NaN \" Infinity": 1}"#, None);
        check(r#"{"a\\": NaN}"#, Some(r#"{"a\\": null}"#));
        check("\"\\", None);
    }
}
