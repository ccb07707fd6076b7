//! Sources of models joined to the rest of the command: how folders become GGUF files, and headers of models that lie elsewhere.

use std::ops::ControlFlow;
use std::path::Path;

use ruvllm_convert::{CARD, ConvertOptions, ConvertType, DESCRIPTION_FILES, convert, weight_files};
use ruvllm_gguf::GgufFile;
use ruvllm_hub::{FolderConverter, FolderOrder, HubFile, Progress, Task, WantedFile, read_header};

use crate::tools::app::App;
use crate::tools::error::Result;

/// Converter of the folders that `ruvllm-convert` knows.
#[derive(Debug)]
pub struct Folders;

impl FolderConverter for Folders {
    fn wanted(&self, folder: Option<&Path>, order: &FolderOrder<'_>) -> std::result::Result<Vec<WantedFile>, String> {
        ty(order)?;
        let wanted = |name: &str, is_required| WantedFile { name: name.to_owned(), is_required };
        let descriptions = DESCRIPTION_FILES.iter().filter(|name| !(order.is_without_card && **name == CARD));
        let mut files: Vec<_> = descriptions.map(|name| wanted(name, *name == DESCRIPTION_FILES[0])).collect();
        if let Some(folder) = folder {
            let weights = weight_files(folder).map_err(|error| error.to_string())?;
            files.extend(weights.iter().map(|name| wanted(name, true)));
        }
        Ok(files)
    }

    fn convert(
        &self,
        folder: &Path,
        order: &FolderOrder<'_>,
        out: &Path,
        progress: &dyn Progress,
    ) -> std::result::Result<(), String> {
        let options = ConvertOptions {
            ty: ty(order)?,
            folder_name: order.name.map(str::to_owned),
            is_without_card: order.is_without_card,
            ..ConvertOptions::default()
        };
        // One task while it is converted, and one while it is quantised.
        let mut task: Option<(bool, Box<dyn Task>)> = None;
        let converted = convert(folder, out, &options, &mut |told| {
            if task.as_ref().is_none_or(|(is_quantizing, _)| *is_quantizing != told.is_quantizing) {
                let what = if told.is_quantizing { "quantising" } else { "converting to GGUF" };
                drop(task.take());
                task = Some((told.is_quantizing, progress.begin(what, Some(told.total_bytes))));
            }
            task.iter().for_each(|(_, task)| task.set(told.done_bytes));
            ControlFlow::Continue(())
        });
        converted.map(drop).map_err(|error| error.to_string())
    }
}

fn ty(order: &FolderOrder<'_>) -> std::result::Result<Option<ConvertType>, String> {
    order.ty.map(ConvertType::parse).transpose().map_err(|error| error.to_string())
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
    let path = store.find(name, false)?;
    Ok(Header { file: GgufFile::open(&path)?, place: path.display().to_string(), is_remote: false })
}
