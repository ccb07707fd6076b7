//! The engine over the GPU that the browser grants.

use std::sync::Arc;

use ruvllm_engine::{Engine, EngineError, LoadOptions, LoadProgress, ModelRunner, Vocabulary};
use ruvllm_gguf::ByteSource;
use ruvllm_wgpu::{GpuChoice, WgpuBackend, WgpuOptions};

/// Loads a model to the GPU.
///
/// # Errors
/// As [`WgpuBackend::load_source`]; the file has no vocabulary.
pub(crate) fn load(
    name: &str,
    source: &Arc<dyn ByteSource>,
    options: &LoadOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Engine, EngineError> {
    let options = WgpuOptions {
        n_ctx: options.n_ctx,
        n_seq_max: options.n_seq_max,
        // The browser has chosen it.
        gpu: GpuChoice::Index(0),
        ..WgpuOptions::default()
    };
    let model = WgpuBackend::load_source(name, source, &options, progress)?;
    let vocabulary = Vocabulary::of_gguf(model.file())?;
    Ok(Engine::new(ModelRunner::new(Box::new(model), vocabulary)))
}
