//! Opening a file and bringing its model to a device.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use ruvllm_backend::loading::{self, LoadProgress, weight_values};
use ruvllm_backend::pooling::PairHead;
use ruvllm_backend::{BackendError, BackendErrorKind, DeviceInfo, ModelInfo};
use ruvllm_gguf::GgufFile;
use ruvllm_gpu::{Gpu, GpuChoice, GpuOptions};
use ruvllm_kernels::attention::BLOCK_TOKENS;
use ruvllm_kvcache::{KvFormat, KvPolicy, NamespaceBuilder};
use ruvllm_model::{ModelSpec, TensorRows};

use crate::backend::{BackendParts, HostTables, WgpuBackend};
use crate::device_model::{DeviceModel, DeviceSizes, DeviceWeights, block_bytes};
use crate::error::failed;
use crate::kv::{KvSizes, KvStore, format_of, layout};
use crate::scratch::RowLimits;
use crate::support;
use crate::weights::Weights;

/// Context by default: that of the model, but no more than this.
const CONTEXT_MAX: usize = 8192;

/// Context that several sequences are promised at once, by default.
const SMALL_CONTEXT: usize = 4096;

/// Bytes of the KV cache by default, unless one whole context takes more.
const KV_BYTES_MAX: usize = 1 << 30;

/// Options of loading.
#[derive(Clone, Debug)]
pub struct WgpuOptions {
    /// Tokens of context; `None`: what the model was trained for, up to 8,192.
    pub n_ctx: Option<usize>,
    /// Sequences that may be open at once.
    pub n_seq_max: usize,
    /// Adapter to run on.
    pub gpu: GpuChoice,
    /// Numbers of the KV cache: f16 or f32.
    pub kv: KvPolicy,
    /// Bytes of the KV cache; `None`: enough for one whole context, and for 4,096 tokens of each sequence up to 1 GiB.
    pub kv_bytes: Option<usize>,
    /// Whether prefixes are kept for later prompts that start alike.
    pub prefix_cache: bool,
    /// Most bytes of everything on the device; what the device has, if it is not set.
    pub memory_bytes_max: Option<u64>,
    /// Largest binding, if it is to be smaller than the device's: larger matrices are split.
    pub binding_bytes_max: Option<u64>,
}

impl Default for WgpuOptions {
    fn default() -> WgpuOptions {
        WgpuOptions {
            n_ctx: None,
            n_seq_max: 8,
            gpu: GpuChoice::Default,
            kv: KvPolicy::F16,
            kv_bytes: None,
            prefix_cache: true,
            memory_bytes_max: None,
            binding_bytes_max: None,
        }
    }
}

impl WgpuBackend {
    /// Loads a GGUF file (the first part, if it is split) to a device.
    ///
    /// # Errors
    /// The file cannot be read or is damaged; the model has a part without a kernel; no adapter is as the options ask, it
    /// grants too little, its memory is used up, or it is lost; an option is out of range.
    pub fn load(
        path: &Path,
        options: &WgpuOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<WgpuBackend, BackendError> {
        loading::check_sizes(options.n_ctx, options.n_seq_max)?;
        let format = format_of(options.kv).ok_or_else(|| {
            let line = format!("backend gpu keeps keys and values as f16 or f32, not as {}", options.kv);
            BackendError::new(BackendErrorKind::Options, line)
        })?;
        let start = Instant::now();
        let file = Arc::new(GgufFile::open(path)?);
        let spec = ModelSpec::read(&file, options.n_ctx)?;
        support::check(&spec, format)?;
        let gpu = Gpu::open(&GpuOptions {
            choice: options.gpu.clone(),
            memory_bytes_max: options.memory_bytes_max,
            binding_bytes_max: options.binding_bytes_max,
        })
        .map_err(failed)?;
        let sizes = sizes(&spec, &gpu, options, format)?;
        check_memory(&file, &spec, sizes, options)?;
        let device = DeviceInfo { backend: "gpu", name: gpu.info().name.clone(), n_threads: 1 };
        let values = |rows: &TensorRows| weight_values(&file, rows);
        let if_any = |rows: Option<&TensorRows>| rows.map_or(Ok(Vec::new()), values);
        let tables =
            HostTables { positions: if_any(spec.input.positions.as_ref())?, types: if_any(spec.input.types.as_ref())? };
        let ropes = spec.ropes.iter().map(|rope| rope.rope(values)).collect::<Result<_, BackendError>>()?;
        let ranker = spec.ranker.as_ref().map(|ranker| PairHead::read(ranker, values)).transpose()?;
        let model = DeviceModel::make(gpu, &spec, sizes, &mut |gpu| {
            DeviceWeights::upload(&spec, &Weights::new(&file, gpu, progress))
        })?;
        file.check()?;
        let DeviceSizes { n_ctx, n_seq_max, n_blocks, .. } = sizes;
        // An encoder's tokens all see each other: what is known of a beginning is worth nothing.
        let namespace = (options.prefix_cache && !spec.is_encoder).then(|| NamespaceBuilder::new("ruvllm gpu kv"));
        let kv_sizes = KvSizes { n_blocks, n_ctx, n_seq_max, policy: options.kv };
        let kv = KvStore::new(&layout(&spec, format), format, kv_sizes, namespace);
        let weight_bytes = file.tensors().map(|tensor| tensor.n_bytes()).sum();
        let info = ModelInfo::of_file(path, &file, &spec, device)?;
        let load_ms = start.elapsed().as_secs_f64() * 1e3;
        let info = ModelInfo { n_ctx, n_seq_max, weight_bytes, load_ms, ..info };
        Ok(WgpuBackend::assemble(BackendParts { file, spec, model, ropes, tables, ranker, kv, info }))
    }
}

/// Chooses context, cache and rows of a pass.
fn sizes(spec: &ModelSpec, gpu: &Gpu, options: &WgpuOptions, format: KvFormat) -> Result<DeviceSizes, BackendError> {
    let n_positions = spec.input.positions.as_ref().map_or(usize::MAX, TensorRows::n_rows);
    let n_ctx = options.n_ctx.unwrap_or(spec.n_ctx.min(CONTEXT_MAX)).min(n_positions);
    let blocks_for = |n_tokens: usize| n_tokens.div_ceil(BLOCK_TOKENS);
    let layers: Vec<[usize; 2]> = block_bytes(spec, format).collect();
    let bytes_of_block: usize = layers.iter().flatten().sum::<usize>().max(1);
    let largest = layers.iter().flatten().copied().max().unwrap_or(1).max(1);
    let n_seq_max = options.n_seq_max;
    let blocks_max = usize::try_from(gpu.info().binding_bytes_max).unwrap_or(usize::MAX) / largest;
    let wanted = match options.kv_bytes {
        Some(bytes) => bytes / bytes_of_block,
        None => {
            let shared = blocks_for(n_ctx.min(SMALL_CONTEXT)).saturating_mul(n_seq_max);
            blocks_for(n_ctx).max(shared.min(KV_BYTES_MAX / bytes_of_block))
        }
    };
    let n_blocks = wanted.min(blocks_max).min(blocks_for(n_ctx).saturating_mul(n_seq_max));
    // Without a size that was asked for, one whole context has to fit.
    let least = if options.kv_bytes.is_some() { 1 } else { blocks_for(n_ctx) };
    if n_blocks < least {
        let line = format!(
            "backend gpu: {} takes {} tokens of KV cache at most here, and a context of {n_ctx} was asked for; choose a smaller context",
            gpu.info().name,
            n_blocks * BLOCK_TOKENS
        );
        return Err(BackendError::new(BackendErrorKind::Options, line));
    }
    let rows = RowLimits::of(spec, gpu, n_ctx)?;
    Ok(DeviceSizes { n_ctx, n_seq_max, n_blocks, format, rows })
}

/// Refuses a model that cannot fit into the memory that is allowed, before anything is uploaded.
fn check_memory(
    file: &GgufFile,
    spec: &ModelSpec,
    sizes: DeviceSizes,
    options: &WgpuOptions,
) -> Result<(), BackendError> {
    let kv_bytes: usize = block_bytes(spec, sizes.format).flatten().sum::<usize>() * sizes.n_blocks;
    let (weights, kv) = (file.tensor_bytes(), kv_bytes as u64);
    match options.memory_bytes_max {
        Some(max) if weights.saturating_add(kv) > max => {
            let line = format!(
                "the model takes {weights} bytes and its KV cache {kv} on the GPU, and {max} are allowed; \
                 use a smaller model or context, or the native backend"
            );
            Err(BackendError::new(BackendErrorKind::Options, line))
        }
        _ => Ok(()),
    }
}
