//! Folders of safetensors, as models are published on the hub, made into GGUF files.
//!
//! Numbers stay as they are; names, hyper-parameters and vocabulary become those of llama.cpp's converter. The same folder
//! gives the same bytes. Encoders of the BERT family are read (`bert`).

mod bert;
mod weights;

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::error::{GgufError, GgufErrorKind};
use crate::write::GgufWriter;

/// The files of a folder that are read, the first two of which must be there.
pub const FILES: [&str; 6] = [
    "config.json",
    "model.safetensors",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "1_Pooling/config.json",
];

/// Number of [`FILES`] that must be there.
pub const N_REQUIRED: usize = 2;

/// The most bytes of a file that describes a model.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// Reads a folder and returns what to write. `name` becomes `general.name`.
///
/// # Errors
/// A file is missing, damaged or contradicts another, or the model is of a kind that is not converted.
pub fn folder(folder: &Path, name: &str) -> Result<GgufWriter<'static>, GgufError> {
    let config = json(folder, "config.json")?.ok_or_else(|| missing(folder, "config.json"))?;
    match config["model_type"].as_str() {
        Some("bert") => bert::convert(folder, name, &config),
        other => {
            let line = format!("models of type {} are not converted, bert is", other.unwrap_or("unknown"));
            Err(GgufError::new(GgufErrorKind::Unsupported, line).at(folder))
        }
    }
}

/// Returns the text of a file, if it is there.
fn text(folder: &Path, name: &str) -> Result<Option<String>, GgufError> {
    let path = folder.join(name);
    let n_bytes = match fs::metadata(&path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(GgufError::io("cannot open", error).at(&path)),
    };
    if n_bytes > TEXT_BYTES_MAX {
        let line = format!("{n_bytes} bytes of description, {TEXT_BYTES_MAX} are the most");
        return Err(GgufError::new(GgufErrorKind::Limit, line).at(&path));
    }
    fs::read_to_string(&path).map(Some).map_err(|error| GgufError::io("cannot read", error).at(&path))
}

/// Returns a JSON file, if it is there.
fn json(folder: &Path, name: &str) -> Result<Option<Value>, GgufError> {
    let Some(text) = text(folder, name)? else { return Ok(None) };
    let value = serde_json::from_str(&text);
    value.map(Some).map_err(|error| GgufError::invalid(format!("no JSON: {error}")).at(&folder.join(name)))
}

fn missing(folder: &Path, name: &str) -> GgufError {
    GgufError::invalid(format!("the folder has no {name}; download it again")).at(folder)
}

#[cfg(test)]
mod tests;
