//! Headers of models, on this machine or on the hub.

use ruvllm_gguf::GgufFile;
use ruvllm_hub::{HubFile, read_header};

use crate::app::App;
use crate::error::Result;

/// A model file, or the header of one on the hub.
#[derive(Debug)]
pub struct Header {
    /// Metadata and tensors.
    pub file: GgufFile,
    /// Path, or name on the hub.
    pub place: String,
    /// Whether it lies on the hub, and tensors cannot be read.
    pub is_remote: bool,
}

/// Opens a model of this machine, or reads the header of one of the hub. Models with short names are looked for on the hub only
/// if `with_registry` is set.
///
/// # Errors
/// The model is nowhere, or its file is damaged.
pub fn open_header(app: &App, name: &str, with_registry: bool) -> Result<Header> {
    let store = app.store();
    if let Some(remote) = store.remote_file(name)?.filter(|remote| with_registry || remote.name.starts_with("hf:")) {
        let file = HubFile { repo: &remote.repo, revision: &remote.revision, file: &remote.file };
        let place = format!("hf:{}@{}/{}", remote.repo, remote.revision, remote.file);
        return Ok(Header { file: read_header(&app.settings.hub, &file, &app.ui)?, place, is_remote: true });
    }
    let path = store.find(name, false)?;
    Ok(Header { file: GgufFile::open(&path)?, place: path.display().to_string(), is_remote: false })
}
