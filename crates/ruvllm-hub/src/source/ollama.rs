//! Models of Ollama's folder, served where they lie: a manifest by name and tag, whose layers are files by their digest.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::error::{HubError, HubErrorKind, io_reason};
use crate::source::path;

/// The registry of names that name none, and the owner of those that name none.
const REGISTRY: &str = "registry.ollama.ai";
const LIBRARY: &str = "library";
/// The tag of names without one.
const LATEST: &str = "latest";
/// Begin of the kinds of layers.
const KINDS: &str = "application/vnd.ollama.image.";
/// The layer that is the model.
const MODEL_LAYER: &str = "application/vnd.ollama.image.model";
/// The most bytes of a layer of text.
const TEXT_BYTES_MAX: u64 = 1 << 20;

#[derive(Deserialize)]
struct Manifest {
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
struct Layer {
    #[serde(rename = "mediaType")]
    media_type: String,
    digest: String,
    #[serde(default)]
    size: u64,
}

/// A model in the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OllamaModel {
    /// Its name with the tag, as `ollama list` shows it.
    pub name: String,
    /// The GGUF file.
    pub path: PathBuf,
    /// Length of the file.
    pub n_bytes: u64,
}

/// Parts of a model of Ollama's folder that are beside its file. Nothing of them is applied by itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OllamaParts {
    /// Its template, in Go's language.
    pub template: Option<String>,
    /// Its system prompt.
    pub system: Option<String>,
    /// Settings of sampling and context, by Ollama's names.
    pub parameters: Option<Value>,
    /// Messages that every conversation begins with.
    pub messages: Option<Value>,
    /// Files of LoRA adapters.
    pub adapters: Vec<PathBuf>,
    /// Files that read images.
    pub projectors: Vec<PathBuf>,
    /// Texts of its licences.
    pub licenses: Vec<String>,
}

impl OllamaParts {
    /// Returns what is left out when the file alone is run, in words; `None` if that is nothing.
    pub fn left_out(&self) -> Option<String> {
        let names = |value: &Value| {
            let names = value.as_object().into_iter().flatten().map(|(name, _)| crate::error::shown(name, 40));
            names.collect::<Vec<_>>().join(", ")
        };
        let all = [
            self.system.as_ref().map(|_| "its system prompt".to_owned()),
            self.parameters.as_ref().map(|all| format!("its parameters ({})", names(all))),
            self.messages.as_ref().map(|_| "its first messages".to_owned()),
            (!self.adapters.is_empty()).then(|| "its adapters".to_owned()),
            (!self.projectors.is_empty()).then(|| "its reading of images".to_owned()),
        ];
        let all: Vec<String> = all.into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join(", "))
    }
}

/// Reads `NAME[:TAG]`, `OWNER/NAME[:TAG]` or `HOST/OWNER/NAME[:TAG]`, and returns the manifest's place below `manifests`.
pub(crate) fn parse(name: &str) -> Option<PathBuf> {
    let (name, tag) = match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (name, LATEST),
    };
    let parts: Vec<&str> = name.split('/').collect();
    let parts = match *parts {
        [name] => [REGISTRY, LIBRARY, name],
        [owner, name] => [REGISTRY, owner, name],
        [host, owner, name] => [host, owner, name],
        _ => return None,
    };
    let is_plain = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains(['\\', '\0']);
    parts.iter().chain([&tag]).all(|part| is_plain(part)).then(|| parts.iter().chain([&tag]).collect())
}

/// Returns the file of a model.
///
/// # Errors
/// One line: there is no such model, its manifest cannot be read, or its file is not there.
pub(crate) fn locate(folder: &Path, name: &str) -> Result<PathBuf, HubError> {
    let manifest = manifest(folder, name)?;
    let layer = model_layer(&manifest).map_err(|why| failed(name, &format!("{}: {why}", manifest.display())))?;
    let file = blob(folder, &layer.digest).ok_or_else(|| failed(name, "its manifest has no sha256 digest"))?;
    path::check(&file)
}

/// Returns what a model has beside its file.
///
/// # Errors
/// As [`locate`]; a text is damaged or too long.
pub(crate) fn parts(folder: &Path, name: &str) -> Result<OllamaParts, HubError> {
    let manifest = manifest(folder, name)?;
    let mut parts = OllamaParts::default();
    for layer in layers(&manifest).map_err(|why| failed(name, &format!("{}: {why}", manifest.display())))? {
        let Some(kind) = layer.media_type.strip_prefix(KINDS) else { continue };
        let Some(file) = blob(folder, &layer.digest).filter(|file| file.is_file()) else { continue };
        let text = || text(&file).map_err(|why| failed(name, &format!("{}: {why}", file.display())));
        let json = || {
            let value = serde_json::from_str(&text()?);
            value.map_err(|error| failed(name, &format!("{}: no JSON: {error}", file.display())))
        };
        match kind {
            "template" => parts.template = Some(text()?),
            "system" => parts.system = Some(text()?),
            "params" => parts.parameters = Some(json()?),
            "messages" => parts.messages = Some(json()?),
            "license" => parts.licenses.push(text()?),
            "adapter" => parts.adapters.push(file),
            "projector" => parts.projectors.push(file),
            _ => {}
        }
    }
    Ok(parts)
}

fn failed(name: &str, line: &str) -> HubError {
    HubError::new(HubErrorKind::Missing, format_args!("ollama:{name}: {line}"))
}

/// Returns where the manifest of a model lies.
fn manifest(folder: &Path, name: &str) -> Result<PathBuf, HubError> {
    let place = parse(name).ok_or_else(|| failed(name, "write it as ollama:NAME[:TAG], as 'ollama list' shows it"))?;
    let manifest = folder.join("manifests").join(place);
    if !manifest.is_file() {
        let line = format!("it is not in {}; see 'ruvllm list', or set OLLAMA_MODELS to the folder", folder.display());
        return Err(failed(name, &line));
    }
    Ok(manifest)
}

/// Returns the models in the folder, by name; those whose manifest or file cannot be read are left out.
pub(crate) fn list(folder: &Path) -> Vec<OllamaModel> {
    let root = folder.join("manifests");
    let below = |path: &Path| -> Vec<PathBuf> {
        fs::read_dir(path).map(|entries| entries.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
    };
    let level = |paths: Vec<PathBuf>| -> Vec<PathBuf> { paths.iter().flat_map(|path| below(path)).collect() };
    // Hosts, owners, names, tags.
    let manifests = level(level(level(below(&root))));
    let model = |manifest: PathBuf| {
        let layer = model_layer(&manifest).ok()?;
        let path = blob(folder, &layer.digest).filter(|path| path.is_file())?;
        let parts: Vec<String> =
            manifest.strip_prefix(&root).ok()?.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        let [host, owner, name, tag] = parts.as_slice() else { return None };
        let name = match (host.as_str(), owner.as_str()) {
            (REGISTRY, LIBRARY) => format!("{name}:{tag}"),
            (REGISTRY, owner) => format!("{owner}/{name}:{tag}"),
            (host, owner) => format!("{host}/{owner}/{name}:{tag}"),
        };
        Some(OllamaModel { name, path, n_bytes: layer.size })
    };
    let mut models: Vec<OllamaModel> = manifests.into_iter().filter_map(model).collect();
    models.sort_by(|a, b| a.name.cmp(&b.name));
    models
}

/// Returns the layer of a manifest that is the model.
fn model_layer(manifest: &Path) -> Result<Layer, String> {
    let model = layers(manifest)?.into_iter().find(|layer| layer.media_type == MODEL_LAYER);
    model.ok_or_else(|| "none of its layers is a model".to_owned())
}

/// Returns the layers of a manifest.
fn layers(manifest: &Path) -> Result<Vec<Layer>, String> {
    let manifest: Manifest =
        serde_json::from_str(&text(manifest)?).map_err(|error| format!("it is no manifest: {error}"))?;
    Ok(manifest.layers)
}

/// Reads a text that is not longer than any sound one.
fn text(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(TEXT_BYTES_MAX + 1).read_to_string(&mut text));
    read.map_err(|error| io_reason(&error))?;
    match text.len() as u64 > TEXT_BYTES_MAX {
        true => Err(format!("it has more than {TEXT_BYTES_MAX} bytes")),
        false => Ok(text),
    }
}

/// Returns where the file of a digest lies.
fn blob(folder: &Path, digest: &str) -> Option<PathBuf> {
    let hex = digest.strip_prefix("sha256:").filter(|hex| hex.chars().all(|c| c.is_ascii_hexdigit()))?;
    Some(folder.join("blobs").join(format!("sha256-{hex}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_manifests() {
        let place = |name: &str| parse(name).map(|path| path.to_string_lossy().into_owned());
        let some = |path: &str| Some(path.to_owned());
        assert_eq!(place("llama3"), some("registry.ollama.ai/library/llama3/latest"));
        assert_eq!(place("qwen3:0.6b"), some("registry.ollama.ai/library/qwen3/0.6b"));
        assert_eq!(place("me/own:v1"), some("registry.ollama.ai/me/own/v1"));
        assert_eq!(place("hf.co/a/b:Q4_K_M"), some("hf.co/a/b/Q4_K_M"));
        for wrong in ["", ":x", "../x", "a/../b", "a:", "a/b/c/d", "a:.."] {
            assert_eq!(place(wrong), None, "{wrong}");
        }
    }
}
