//! Opening a file and making its model.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use candle_core::Device;
use ruvllm_backend::loading::{self, LoadProgress};
use ruvllm_backend::{BackendError, BackendErrorKind, DeviceInfo, ModelInfo};
use ruvllm_gguf::GgufFile;
use ruvllm_model::ModelSpec;

use crate::backend::CandleBackend;
use crate::layer::Model;
use crate::weights::Weights;

/// Context by default: that of the model, but no more than this. Keys and values are kept as f32.
const CONTEXT_MAX: usize = 8192;

/// Weights that are kept as f32 unless somebody says otherwise.
const F32_BYTES_MAX: usize = 4 << 30;

/// The device that tensors are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CandleDevice {
    /// The CPU.
    #[default]
    Cpu,
    /// An NVIDIA GPU by its number; needs the feature `cuda`. No such device has run it here.
    Cuda(usize),
    /// An Apple GPU by its number; needs the feature `metal`. No such device has run it here.
    Metal(usize),
}

/// Options of loading.
#[derive(Clone, Debug)]
pub struct CandleOptions {
    /// Tokens of context; `None`: what the model was trained for, up to 8,192.
    pub n_ctx: Option<usize>,
    /// Sequences that may be open at once.
    pub n_seq_max: usize,
    /// Where tensors are.
    pub device: CandleDevice,
    /// Format of the weights in memory.
    pub weights: CandleWeights,
}

/// Format of weights in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CandleWeights {
    /// In f32 where they take up to 4 GiB so, else quantised.
    #[default]
    Auto,
    /// In f32: larger, without the error of quantised activations.
    F32,
    /// As the file has them, where candle multiplies with the type.
    Quantised,
}

impl Default for CandleOptions {
    fn default() -> CandleOptions {
        CandleOptions { n_ctx: None, n_seq_max: 8, device: CandleDevice::Cpu, weights: CandleWeights::Auto }
    }
}

impl CandleBackend {
    /// Loads a GGUF file (the first part, if it is split).
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or holds what is not supported (encoders are not); the device is not there; an option is
    /// out of range.
    pub fn load(
        path: &Path,
        options: &CandleOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<CandleBackend, BackendError> {
        loading::check_sizes(options.n_ctx, options.n_seq_max)?;
        let start = Instant::now();
        let file = Arc::new(GgufFile::open(path)?);
        let spec = ModelSpec::read(&file, options.n_ctx)?;
        if spec.is_encoder {
            let line = format!("backend candle runs no encoders, and '{}' is one; use native", spec.arch);
            return Err(BackendError::unsupported(line));
        }
        let device = options.device.open()?;
        let is_f32 = options.weights.are_f32(&file);
        let weights = Weights::new(&file, device, is_f32, progress);
        let model = Model::make(&spec, &weights)?;
        file.check()?;
        let mut info = describe(path, &file, &spec, options)?;
        info.load_ms = start.elapsed().as_secs_f64() * 1e3;
        Ok(CandleBackend::new(file, spec, model, info))
    }
}

impl CandleWeights {
    fn are_f32(self, file: &GgufFile) -> bool {
        let n_values: usize = file.tensors().map(|tensor| tensor.n_elements()).sum();
        match self {
            CandleWeights::Auto => n_values <= F32_BYTES_MAX / size_of::<f32>(),
            CandleWeights::F32 => true,
            CandleWeights::Quantised => false,
        }
    }
}

impl CandleDevice {
    fn open(self) -> Result<Device, BackendError> {
        let device = match self {
            CandleDevice::Cpu => return Ok(Device::Cpu),
            CandleDevice::Cuda(number) => Device::new_cuda(number),
            CandleDevice::Metal(number) => Device::new_metal(number),
        };
        device.map_err(|error| {
            BackendError::new(BackendErrorKind::Options, format!("no device {self} for backend candle: {error}"))
        })
    }
}

impl std::fmt::Display for CandleDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CandleDevice::Cpu => f.write_str("cpu"),
            CandleDevice::Cuda(number) => write!(f, "cuda:{number}"),
            CandleDevice::Metal(number) => write!(f, "metal:{number}"),
        }
    }
}

fn describe(
    path: &Path,
    file: &GgufFile,
    spec: &ModelSpec,
    options: &CandleOptions,
) -> Result<ModelInfo, BackendError> {
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let device = DeviceInfo { backend: "candle", name: options.device.to_string(), n_threads };
    let n_ctx = options.n_ctx.unwrap_or(spec.n_ctx.min(CONTEXT_MAX));
    let n_positions = spec.input.positions.as_ref().map_or(usize::MAX, |positions| positions.n_rows());
    let weight_bytes = file.tensors().map(|tensor| tensor.n_bytes()).sum();
    let info = ModelInfo::of_file(path, file, spec, device)?;
    Ok(ModelInfo { n_ctx: n_ctx.min(n_positions), n_seq_max: options.n_seq_max, weight_bytes, ..info })
}
