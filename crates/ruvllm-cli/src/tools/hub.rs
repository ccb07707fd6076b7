//! Sources of models joined to the rest of the command: how folders become GGUF files, and headers of models that lie elsewhere.

use std::path::Path;

use ruvllm_gguf::GgufFile;
use ruvllm_gguf::convert::{self, FILES, N_REQUIRED};
use ruvllm_hub::{FolderConverter, HubFile, WantedFile, read_header};

use crate::tools::app::App;
use crate::tools::error::Result;

/// Converter of the folders that `ruvllm-gguf` knows.
#[derive(Debug)]
pub struct Folders;

impl FolderConverter for Folders {
    fn wanted(&self, _folder: Option<&Path>) -> std::result::Result<Vec<WantedFile>, String> {
        let wanted = |(i, name): (usize, &&str)| WantedFile { name: (*name).to_owned(), is_required: i < N_REQUIRED };
        Ok(FILES.iter().enumerate().map(wanted).collect())
    }

    fn convert(&self, folder: &Path, name: &str, out: &Path) -> std::result::Result<(), String> {
        let written = convert::folder(folder, name).and_then(|writer| writer.write_file(out));
        written.map(drop).map_err(|error| error.to_string())
    }
}

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
    let path = store.locate(name, false)?;
    Ok(Header { file: GgufFile::open(&path)?, place: path.display().to_string(), is_remote: false })
}
