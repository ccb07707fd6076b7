//! Files of text: whole, and as JSON lines.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;

use crate::error::{Error, Result};

/// Reads a text file.
///
/// # Errors
/// A failure that names the file and the reason.
pub fn read_text(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).map_err(|error| Error::io("read", path, &error))?;
    String::from_utf8(bytes).map_err(|error| {
        Error::failure(format_args!(
            "cannot read {}: it is not UTF-8 text (byte {}); convert it first",
            path.display(),
            error.utf8_error().valid_up_to()
        ))
    })
}

/// A line of a file of texts.
#[derive(Deserialize)]
struct TextLine {
    text: String,
}

/// Reads a file of JSON lines `{"text": ...}`; empty lines are left out.
///
/// # Errors
/// A failure that names the file, the line and the reason.
pub fn read_lines(path: &Path) -> Result<Vec<String>> {
    let file = File::open(path).map_err(|error| Error::io("read", path, &error))?;
    let mut texts = Vec::new();
    for (idx, line) in BufReader::new(file).lines().enumerate() {
        let line = line.map_err(|error| Error::io("read", path, &error))?;
        if line.trim().is_empty() {
            continue;
        }
        let TextLine { text } = serde_json::from_str(&line).map_err(|error| {
            let at = (path.display(), idx + 1);
            Error::failure(format_args!("{} line {}: {error}; each line must be {{\"text\": ...}}", at.0, at.1))
        })?;
        texts.push(text);
    }
    Ok(texts)
}
