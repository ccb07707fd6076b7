//! Converter of the folders that sources of models have.

use std::ops::ControlFlow;
use std::path::Path;

use ruvllm_convert::{CARD, ConvertOptions, ConvertType, DESCRIPTION_FILES, check_folder, convert, weight_files};
use ruvllm_hub::{FolderConverter, FolderOrder, Progress, Task, WantedFile};

/// Converter of the folders that `ruvllm-convert` knows.
#[derive(Debug)]
pub(crate) struct Folders;

impl FolderConverter for Folders {
    fn wanted(&self, folder: Option<&Path>, order: &FolderOrder<'_>) -> Result<Vec<WantedFile>, String> {
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

    fn check(&self, folder: &Path, order: &FolderOrder<'_>) -> Result<(), String> {
        check_folder(folder, ty(order)?).map_err(|error| error.to_string())
    }

    fn convert(
        &self,
        folder: &Path,
        order: &FolderOrder<'_>,
        out: &Path,
        progress: &dyn Progress,
    ) -> Result<(), String> {
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
            if progress.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        converted.map(drop).map_err(|error| error.to_string())
    }
}

/// Returns the type that is asked for, which must be one that a conversion makes.
fn ty(order: &FolderOrder<'_>) -> Result<Option<ConvertType>, String> {
    let ty = order.ty.map(ConvertType::parse).transpose();
    let checked = ty.and_then(|ty| ty.map_or(Ok(()), ConvertType::check).map(|()| ty));
    checked.map_err(|error| error.to_string())
}
