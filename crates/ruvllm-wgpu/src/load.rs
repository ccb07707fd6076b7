//! Opening a file and bringing its model to a device.

use std::path::Path;
use std::sync::Arc;

use ruvllm_backend::loading::{self, LoadProgress, weight_values};
use ruvllm_backend::pooling::PairHead;
use ruvllm_backend::{BackendError, BackendErrorKind, DeviceInfo, ModelInfo, TokenModel};
use ruvllm_gguf::{ByteSource, GgufError, GgufFile};
use ruvllm_gpu::{Gpu, GpuChoice, GpuOptions};
use ruvllm_kernels::attention::BLOCK_TOKENS;
use ruvllm_kvcache::{KvFormat, KvPolicy, NamespaceBuilder, PAGE_BYTES};
use ruvllm_model::{ModelSpec, TensorRows};
use web_time::Instant;

use crate::backend::{BackendParts, ComputedFirst, HostTables, WgpuBackend};
use crate::cache_shape::{CacheShape, cache_shapes, layout};
use crate::device_model::{DeviceModel, DeviceSizes, DeviceWeights};
use crate::error::{MemoryExceeded, failed, is_memory_full};
use crate::kv::{KvSizes, KvStore, format_of};
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

/// Layers that another backend is to compute before those of the device, and what it has to have room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstLayers {
    /// Number of the layers: the first ones of the model.
    pub n_layers: usize,
    /// Tokens of context.
    pub n_ctx: usize,
    /// Sequences that may be open at once.
    pub n_seq_max: usize,
    /// Bytes of keys and values, so that the device's cache is full first.
    pub kv_bytes: usize,
}

/// Loads the backend of the first layers: final states that it gives are the residual stream behind them.
pub type LoadFirst<'a> = dyn FnMut(FirstLayers) -> Result<Box<dyn TokenModel>, BackendError> + 'a;

/// Where a file comes from.
struct Origin<'a> {
    /// Path, or what stands for it.
    path: &'a Path,
    open: &'a dyn Fn() -> Result<GgufFile, GgufError>,
}

impl WgpuBackend {
    /// Loads the last `n_layers` layers and the head to a device, as [`WgpuBackend::load`] does all of them, and has `load_first`
    /// load the layers before. Prefixes are not kept then, and adapters not applied.
    ///
    /// # Errors
    /// As [`WgpuBackend::load`], and those of `load_first`; the model has not so many layers, or is an encoder.
    pub fn load_last(
        path: &Path,
        options: &WgpuOptions,
        n_layers: usize,
        load_first: &mut LoadFirst<'_>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<WgpuBackend, BackendError> {
        let open = || GgufFile::open(path);
        WgpuBackend::load_some(Origin { path, open: &open }, options, Some((n_layers, load_first)), progress)
    }

    /// Loads as many of the last layers to a device as its memory holds, in steps of an eighth of them, and has `load_first` load the
    /// layers before, if there are any.
    ///
    /// # Errors
    /// As [`WgpuBackend::load`] if not even an eighth fits; else as [`WgpuBackend::load_last`].
    pub fn load_what_fits(
        path: &Path,
        options: &WgpuOptions,
        load_first: &mut LoadFirst<'_>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<WgpuBackend, BackendError> {
        let full = match WgpuBackend::load(path, options, progress) {
            Err(error) if is_memory_full(&error) => error,
            loaded => return loaded,
        };
        let spec = ModelSpec::read(&GgufFile::open(path)?, options.n_ctx)?;
        let n_all = spec.layers.len();
        let mut counts: Vec<usize> = (1..8).rev().map(|part| n_all * part / 8).collect();
        counts.retain(|n| *n > 0 && *n < n_all && !spec.is_encoder);
        counts.dedup();
        for n_layers in counts {
            match WgpuBackend::load_last(path, options, n_layers, load_first, progress) {
                Err(error) if is_memory_full(&error) => {}
                loaded => return loaded,
            }
        }
        Err(full)
    }

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
        WgpuBackend::load_some(Origin { path, open: &|| GgufFile::open(path) }, options, None, progress)
    }

    /// Loads a GGUF file that is read piece by piece to a device, `name` standing for its path: where there are no maps. What
    /// adapters and learning need of it later is read again.
    ///
    /// # Errors
    /// As [`WgpuBackend::load`]; the source fails or ends early.
    pub fn load_source(
        name: &str,
        source: &Arc<dyn ByteSource>,
        options: &WgpuOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<WgpuBackend, BackendError> {
        let open = || GgufFile::from_source(Arc::clone(source));
        WgpuBackend::load_some(Origin { path: Path::new(name), open: &open }, options, None, progress)
    }

    fn load_some(
        Origin { path, open }: Origin<'_>,
        options: &WgpuOptions,
        last: Option<(usize, &mut LoadFirst<'_>)>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<WgpuBackend, BackendError> {
        loading::check_sizes(options.n_ctx, options.n_seq_max)?;
        let format = format_of(options.kv).ok_or_else(|| {
            let line = format!("backend gpu keeps keys and values as f16 or f32, not as {}", options.kv);
            BackendError::new(BackendErrorKind::Options, line)
        })?;
        let start = Instant::now();
        let file = Arc::new(open()?);
        let whole = ModelSpec::read(&file, options.n_ctx)?;
        let n_first = last.as_ref().map_or(Ok(0), |(n_layers, _)| n_first(&whole, *n_layers))?;
        let spec = whole.clone().without_first_layers(n_first);
        support::check(&spec, format)?;
        let gpu = Gpu::open(&GpuOptions {
            choice: options.gpu.clone(),
            memory_bytes_max: options.memory_bytes_max,
            binding_bytes_max: options.binding_bytes_max,
        })
        .map_err(failed)?;
        let sizes = DeviceSizes { has_first: n_first > 0, ..sizes(&spec, &gpu, options, format)? };
        check_memory(&file, &spec, n_first, sizes, options)?;
        let first = match last.filter(|_| n_first > 0) {
            None => None,
            Some((_, load)) => Some(ComputedFirst::new(load(first_layers(&whole, n_first, sizes))?, n_first, sizes)?),
        };
        let device = DeviceInfo { backend: "gpu", name: gpu.info().name.clone(), n_threads: 1 };
        let values = |rows: &TensorRows| weight_values(&file, rows);
        let if_any = |rows: Option<&TensorRows>| rows.map_or(Ok(Vec::new()), values);
        let tables =
            HostTables { positions: if_any(spec.input.positions.as_ref())?, types: if_any(spec.input.types.as_ref())? };
        let ropes = spec.ropes.iter().map(|rope| rope.rope(values)).collect::<Result<_, BackendError>>()?;
        let ranker = spec.ranker.as_ref().map(|ranker| PairHead::read(ranker, values)).transpose()?;
        let model = DeviceModel::make(gpu, &spec, sizes, &mut |gpu| {
            DeviceWeights::upload(&spec, &Weights::new(&file, gpu, progress), sizes.has_first)
        })?;
        file.check()?;
        let DeviceSizes { n_ctx, n_seq_max, n_blocks, .. } = sizes;
        let shapes = cache_shapes(&spec);
        let state_bytes = state_bytes(&shapes);
        // A sequence with recurrent state cannot start in the middle, and an encoder's tokens all see each other.
        let keeps_prefixes = options.prefix_cache && !spec.is_encoder && state_bytes == 0 && first.is_none();
        let namespace = keeps_prefixes.then(|| NamespaceBuilder::new("ruvllm gpu kv"));
        let kv_sizes = KvSizes { n_blocks, n_ctx, n_seq_max, policy: options.kv, state_bytes };
        let kv = KvStore::new(&layout(&shapes, format), format, kv_sizes, namespace);
        let weight_bytes = file.tensors().map(|tensor| tensor.n_bytes()).sum();
        let info = ModelInfo::of_file(path, &file, &whole, device)?;
        let load_ms = start.elapsed().as_secs_f64() * 1e3;
        let info = ModelInfo { n_ctx, n_seq_max, weight_bytes, load_ms, ..info };
        Ok(WgpuBackend::assemble(BackendParts { file, spec: whole, model, ropes, tables, ranker, kv, info, first }))
    }
}

/// Returns how many layers another backend has if the last `n_layers` are on the device.
fn n_first(spec: &ModelSpec, n_layers: usize) -> Result<usize, BackendError> {
    let n_all = spec.layers.len();
    if spec.is_encoder && n_layers != n_all {
        let line = format!("backend gpu runs all layers of an encoder or none; this one has {n_all}");
        return Err(BackendError::unsupported(line));
    }
    if n_layers == 0 || n_layers > n_all {
        let line = format!(
            "backend gpu: {n_layers} layers on the GPU were asked for, and the model has {n_all}; choose 1 to {n_all}"
        );
        return Err(BackendError::new(BackendErrorKind::Options, line));
    }
    Ok(n_all - n_layers)
}

/// Returns what the first layers are to have room for: as many tokens as the device's cache, and the blocks that each sequence begins.
fn first_layers(whole: &ModelSpec, n_first: usize, sizes: DeviceSizes) -> FirstLayers {
    let DeviceSizes { n_ctx, n_seq_max, n_blocks, format, .. } = sizes;
    let layout = layout(&cache_shapes(whole)[..n_first], format);
    let kv_bytes = layout.memory_for(&[format], n_blocks + n_seq_max).max(PAGE_BYTES);
    FirstLayers { n_layers: n_first, n_ctx, n_seq_max, kv_bytes }
}

/// Bytes of the recurrent state of a sequence.
fn state_bytes(shapes: &[CacheShape]) -> usize {
    4 * shapes.iter().map(|shape| shape.n_state).sum::<usize>()
}

/// Chooses context, cache and rows of a pass.
fn sizes(spec: &ModelSpec, gpu: &Gpu, options: &WgpuOptions, format: KvFormat) -> Result<DeviceSizes, BackendError> {
    let n_positions = spec.input.positions.as_ref().map_or(usize::MAX, TensorRows::n_rows);
    let n_ctx = options.n_ctx.unwrap_or(spec.n_ctx.min(CONTEXT_MAX)).min(n_positions);
    let blocks_for = |n_tokens: usize| n_tokens.div_ceil(BLOCK_TOKENS);
    let layers: Vec<[usize; 2]> = cache_shapes(spec).iter().map(|shape| shape.block_bytes(format)).collect();
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
    Ok(DeviceSizes { n_ctx, n_seq_max, n_blocks, format, rows, has_first: false })
}

/// Refuses a model that cannot fit into the memory that is allowed, before anything is uploaded.
fn check_memory(
    file: &GgufFile,
    spec: &ModelSpec,
    n_first: usize,
    sizes: DeviceSizes,
    options: &WgpuOptions,
) -> Result<(), BackendError> {
    let shapes = cache_shapes(spec);
    let block_bytes: usize = shapes.iter().flat_map(|shape| shape.block_bytes(sizes.format)).sum();
    let kv_bytes = block_bytes * sizes.n_blocks + state_bytes(&shapes) * sizes.n_seq_max;
    let is_elsewhere = |name: &str| (0..n_first).any(|layer| name.starts_with(&format!("blk.{layer}.")));
    let here = file.tensors().filter(|tensor| !is_elsewhere(&tensor.name));
    let (weights, kv) = (here.map(|tensor| tensor.n_bytes() as u64).sum::<u64>(), kv_bytes as u64);
    match options.memory_bytes_max {
        Some(max) if weights.saturating_add(kv) > max => {
            let line = format!(
                "the model takes {weights} bytes and its KV cache {kv} on the GPU, and {max} are allowed; \
                 use a smaller model or context, or the native backend"
            );
            Err(BackendError::new(BackendErrorKind::Options, line).with_source(MemoryExceeded))
        }
        _ => Ok(()),
    }
}
