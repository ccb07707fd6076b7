//! Options of loading, as JavaScript gives them.

use ruvllm_api::error::ApiError;
use ruvllm_engine::LoadOptions as EngineOptions;
use serde::Deserialize;

/// Tokens of a step, at most: one thread takes a while for them, and hears nothing meanwhile.
pub(crate) const STEP_TOKENS: usize = 64;
/// The longest name of a model.
const NAME_BYTES_MAX: usize = 256;
/// Sequences that may be open at once, at most.
const PARALLEL_MAX: usize = 64;
/// Context where nobody says how large it is to be: memory is scarce in a page.
const CTX_DEFAULT: usize = 4096;
/// Requests that are computed at once where nobody says how many.
const PARALLEL_DEFAULT: usize = 4;

/// Options of [`WebEngine::load`](crate::WebEngine::load).
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct WebOptions {
    /// Name of the model in answers.
    pub name: Option<String>,
    /// Size of the context in tokens; 4,096 by default, or the model's own where that is smaller.
    pub ctx: Option<usize>,
    /// Backend that runs the model; the native one by default.
    pub backend: WebBackend,
    /// Threads that compute; 1 by default. As many as [`threads_max`] says are there.
    pub threads: Option<usize>,
    /// Requests that are computed at once.
    pub parallel: Option<usize>,
    /// Chat template in place of the file's.
    pub chat_template: Option<String>,
    /// Whether the model learns.
    pub learn: bool,
}

/// Backends of a page.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum WebBackend {
    /// The CPU, by the kernels of WebAssembly.
    #[default]
    Native,
    /// The GPU, by WebGPU. It is in the module that is built with the feature `gpu`.
    Gpu,
}

/// Returns how many threads an engine can have: the caller, and those of the host that no other engine has.
pub fn threads_max() -> usize {
    #[cfg(all(target_family = "wasm", target_os = "unknown"))]
    return 1 + ruvllm_cpu::host::n_free();
    #[cfg(not(all(target_family = "wasm", target_os = "unknown")))]
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Progress of loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebProgress {
    /// `load` while weights are packed, `calibrate` while the model reads what learning needs.
    pub phase: &'static str,
    /// Bytes or tokens so far.
    pub done: u64,
    /// All of them.
    pub total: u64,
}

impl WebOptions {
    /// Reads options.
    ///
    /// # Errors
    /// One is unknown, or cannot be.
    pub fn read(json: &str) -> Result<WebOptions, ApiError> {
        let error = |name: &str, line: String| ApiError::bad(name, line).code("bad_option");
        let options: WebOptions = serde_json::from_str(json)
            .map_err(|of_json| error("", format!("the options of load cannot be read: {of_json}")))?;
        let bad = |name: &str, line: String| Err(error(name, line));
        if options.name.as_ref().is_some_and(|name| name.is_empty() || name.len() > NAME_BYTES_MAX) {
            return bad("name", format!("a model's name has 1 to {NAME_BYTES_MAX} bytes"));
        }
        if options.backend == WebBackend::Gpu && !cfg!(feature = "gpu") {
            return bad("backend", "this module has no backend gpu; leave 'backend' out".to_owned());
        }
        if options.backend == WebBackend::Gpu && options.threads.is_some_and(|n| n > 1) {
            return bad("threads", "backend gpu computes on the GPU; leave 'threads' out".to_owned());
        }
        if let Some(n) = options.threads.filter(|&n| !(1..=threads_max()).contains(&n)) {
            return bad("threads", format!("{n} threads; choose 1 to {}", threads_max()));
        }
        if let Some(n) = options.parallel.filter(|n| !(1..=PARALLEL_MAX).contains(n)) {
            return bad("parallel", format!("{n} requests at once; choose 1 to {PARALLEL_MAX}"));
        }
        Ok(options)
    }

    /// Returns them as the engine has them, for a model that was trained with this context.
    pub(crate) fn of_engine(&self, n_ctx_train: Option<usize>) -> EngineOptions {
        let n_ctx = self.ctx.or_else(|| n_ctx_train.map(|n_ctx| n_ctx.min(CTX_DEFAULT)));
        EngineOptions {
            n_threads: self.threads.unwrap_or(1),
            n_ctx,
            n_seq_max: self.parallel.unwrap_or(PARALLEL_DEFAULT),
            n_rows_max: STEP_TOKENS,
            // It takes a fifth of the file for a few tokens a second.
            head_shortlist: false,
            ..EngineOptions::default()
        }
    }
}
