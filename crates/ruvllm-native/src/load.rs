//! Options of loading, and loading a file into a native backend.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use ruvllm_backend::loading::{self, LoadProgress};
use ruvllm_backend::{BackendError, BackendErrorKind, DeviceInfo, ModelInfo, TokenModel};
use ruvllm_gguf::{ByteSource, GgufFile};
use ruvllm_kernels::Isa;
use ruvllm_kernels::attention::KvFormat;
use ruvllm_kernels::matmul::PanelSink;
pub use ruvllm_kvcache::disk::FsyncPolicy;
use ruvllm_kvcache::disk::StoreOptions;
use ruvllm_kvcache::{BlockPool, KvError, KvLayout, KvPolicy, MemoryBudget, PAGE_BYTES, Relief};
use web_time::{Duration, Instant};

use ruvllm_cpu::arena;
use ruvllm_lora::format::ModelFacts;
use ruvllm_lora::{Target, Targets};
use ruvllm_model::ModelSpec;

use crate::backend::{BackendParts, NativeBackend};
use crate::identity;
use crate::kernels::Compute;
use crate::kv::{KvStore, SequenceLimits};
use crate::model::{ForwardState, Loader, Model, ShortlistState};
use crate::packed::{Making, Packed, PackedFile, Saver, Unsaved};
use crate::persist::Persist;

/// A smaller model that drafts tokens ahead for the one that is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftOptions {
    /// Its GGUF file. It must have the same tokens.
    pub path: PathBuf,
    /// Number of its most likely tokens that are tried in the place of the first draft token. 1, the draft token alone, is what pays; the
    /// others take sequences of [`LoadOptions::n_seq_max`] that are free.
    pub n_branches: usize,
}

/// Options of loading a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Instruction set; the best of this machine by default.
    pub isa: Isa,
    /// Threads; one a core by default.
    pub n_threads: usize,
    /// Context in tokens; by default the model's own, or as much of it as half of the available memory holds, and an encoder's
    /// up to 4,096.
    pub n_ctx: Option<usize>,
    /// Policy of the KV cache: exact, or in fewer bits as blocks age.
    pub kv: KvPolicy,
    /// Policies that requests may ask for beside it ([`CacheSalt::kv`](ruvllm_backend::CacheSalt::kv)): `q8` and
    /// `tiered`, beside `f16`. The memory has the formats of all.
    pub kv_others: Vec<KvPolicy>,
    /// Sequences that may be open at once.
    pub n_seq_max: usize,
    /// Rows of one forward pass, at most: longer prompts are cut into passes of so many, to the same bits. Buffers are sized for
    /// them. An encoder has rows for its whole context.
    pub n_rows_max: usize,
    /// Most bytes for keys and values, rounded down to 2 MiB pages; they become real as they are used. By default
    /// enough for every sequence's whole context within half of the available memory, and with `prefix_cache` at least an
    /// eighth of it, up to 1 GiB.
    pub kv_bytes: Option<usize>,
    /// Bytes of the memory for keys and values that are meant for adapters which share it
    /// ([`PagedKv::share_with`](ruvllm_backend::PagedKv::share_with)): where `kv_bytes` does not say how much there is, there is
    /// so much more.
    pub adapter_bytes: usize,
    /// Keep what was computed for prompts that start alike. Models with recurrent state and encoders never do.
    pub prefix_cache: bool,
    /// Folder where the prefix cache keeps whole blocks, and where sessions are, over restarts; `None` for neither. One
    /// process at a time uses the part of it that belongs to a model file. The first load of a file hashes all its
    /// bytes.
    pub cache_dir: Option<PathBuf>,
    /// Folder where the weights are kept as they are multiplied with ([`PackedWeights`](crate::PackedWeights)), so that the
    /// next load maps them; by default `cache_dir`. Any number of processes may use it.
    pub packed_dir: Option<PathBuf>,
    /// The most bytes on disk for this model, and for others beside it what it leaves of them; 4 GiB by default. Repacked
    /// weights of all models together have as much beside it.
    pub cache_bytes: Option<u64>,
    /// When what is written to the folder survives not only this process but a power failure.
    pub cache_fsync: FsyncPolicy,
    /// Read a coarse copy of the head first where a sampler looks at the likeliest tokens only, and of the head itself what
    /// that leaves: the same tokens sooner. It takes two thirds of the memory of the head, once a few tokens were written. Only
    /// heads in Q8_0.
    pub head_shortlist: bool,
    /// The model that [`NativeBackend::load_draft`] loads; `None` loads none.
    pub draft: Option<DraftOptions>,
    /// Load the first layers alone, so many, and no head: final states are the residual stream behind them, which another backend
    /// goes on with. Without a cache folder.
    pub first_layers: Option<usize>,
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        let n_threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        LoadOptions {
            isa: Isa::best(),
            n_threads,
            n_ctx: None,
            kv: KvPolicy::F16,
            kv_others: Vec::new(),
            n_seq_max: 1,
            n_rows_max: N_ROWS_MAX,
            kv_bytes: None,
            adapter_bytes: 0,
            prefix_cache: true,
            cache_dir: None,
            packed_dir: None,
            cache_bytes: None,
            cache_fsync: FsyncPolicy::Interval(Duration::from_secs(1)),
            head_shortlist: true,
            draft: None,
            first_layers: None,
        }
    }
}

/// Rows of one forward pass by default. What passes compute on the way stays nearer than with 512 rows.
const N_ROWS_MAX: usize = 256;

/// The most that the prefix cache is given unasked.
const CACHE_BYTES_MAX: usize = 1 << 30;

/// Contexts are opened in this part of the available memory, unless somebody says how large they are.
const CONTEXT_SHARE: usize = 2;

/// Whole contexts that all sequences share where memory never shrinks.
const CONTEXTS_MAX: usize = 2;

/// A context that is opened whatever memory there is.
const SMALL_CONTEXT: usize = 4096;

/// The most tokens of an encoder's context by default: it has buffers for all of them at once.
const ENCODER_CONTEXT: usize = 4096;

/// The most branches of a draft model's draft tokens.
const BRANCHES_MAX: usize = 4;

/// Which part of the available memory may be written to a file before the system makes writers wait for the disk: Linux
/// does from 15 % on, if nobody set it otherwise (`vm.dirty_ratio`).
const WRITTEN_SHARE: usize = 8;

/// Rows of a pass beyond this are taken for a slip.
const ROWS_MAX: usize = 1 << 16;

/// Threads and sequences beyond this are taken for a slip.
const THREADS_MAX: usize = 1024;

impl LoadOptions {
    /// Returns the formats that blocks may have: those of the policies that have one more each.
    fn kv_formats(&self) -> &'static [KvFormat] {
        let all = std::iter::once(&self.kv).chain(&self.kv_others);
        all.map(|kv| kv.formats()).max_by_key(|formats| formats.len()).expect("there is one policy")
    }

    fn validate(&self) -> Result<(), BackendError> {
        let options = |line: String| Err(BackendError::new(BackendErrorKind::Options, line));
        if !self.isa.is_available() {
            return options(format!("instruction set {} is not available on this machine", self.isa));
        }
        if self.n_threads == 0 || self.n_threads > THREADS_MAX {
            return options(format!("{} threads; choose 1 to {THREADS_MAX}", self.n_threads));
        }
        loading::check_sizes(self.n_ctx, self.n_seq_max)?;
        if self.n_rows_max == 0 || self.n_rows_max > ROWS_MAX {
            return options(format!("{} rows of a pass; choose 1 to {ROWS_MAX}", self.n_rows_max));
        }
        if self.first_layers.is_some() && (self.cache_dir.is_some() || self.packed_dir.is_some()) {
            return options("the first layers of a model are kept in no cache folder".to_owned());
        }
        let is_one_of_them = |kv: &KvPolicy| matches!(*kv, KvPolicy::F16 | KvPolicy::Q8 | KvPolicy::TIERED);
        if !self.kv_others.is_empty() && (self.kv != KvPolicy::F16 || !self.kv_others.iter().all(is_one_of_them)) {
            let others: Vec<String> = self.kv_others.iter().map(KvPolicy::to_string).collect();
            return options(format!(
                "requests may choose f16, q8 and tiered where the cache is f16; {} beside {} was asked for",
                others.join(", "),
                self.kv
            ));
        }
        Ok(())
    }
}

impl NativeBackend {
    /// Loads a GGUF file (the first part, if it is split).
    ///
    /// `progress` is told about every tensor taken over.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or holds what is not supported; an option is out of range;
    /// [`BackendErrorKind::Cache`] if the cache folder cannot be used.
    pub fn load(
        path: &Path,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<NativeBackend, BackendError> {
        NativeBackend::timed(options, |compute| NativeBackend::open_path(path, options, compute, progress))
    }

    /// Loads a GGUF file that is read piece by piece, `name` standing for its path: where there are no maps. Its tensors are read
    /// one by one, packed and let go; what adapters and learning need of them later is read again.
    ///
    /// # Errors
    /// As [`NativeBackend::load`]; the source fails or ends early; a cache folder is asked for, which names what it keeps by
    /// the hash of a file.
    pub fn load_source(
        name: &str,
        source: Arc<dyn ByteSource>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<NativeBackend, BackendError> {
        if options.cache_dir.is_some() || options.packed_dir.is_some() {
            let line = "a model that is read from a source is kept in no cache folder; load it by its path".to_owned();
            return Err(BackendError::new(BackendErrorKind::Options, line));
        }
        NativeBackend::timed(options, |compute| {
            let file = Arc::new(GgufFile::from_source(source)?);
            NativeBackend::open_file(Path::new(name), &file, options, compute, progress)
        })
    }

    /// Checks the options and opens a model, which is told how long that took.
    fn timed(
        options: &LoadOptions,
        open: impl FnOnce(Compute) -> Result<NativeBackend, BackendError>,
    ) -> Result<NativeBackend, BackendError> {
        options.validate()?;
        let start = Instant::now();
        let mut backend = open(Compute::new(options.isa, options.n_threads))?;
        backend.set_load_ms(start.elapsed().as_secs_f64() * 1e3);
        Ok(backend)
    }

    fn open_path(
        path: &Path,
        options: &LoadOptions,
        compute: Compute,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<NativeBackend, BackendError> {
        let file = Arc::new(GgufFile::open(path)?);
        let opened = NativeBackend::open_file(path, &file, options, compute, progress);
        // What was read of a file that was cut meanwhile may look like anything.
        file.check()?;
        opened
    }

    fn open_file(
        path: &Path,
        file: &Arc<GgufFile>,
        options: &LoadOptions,
        compute: Compute,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<NativeBackend, BackendError> {
        let folder = options.cache_dir.as_deref();
        let persist = folder.map(|folder| Persist::open(folder, file, options)).transpose()?;
        let content = persist.as_ref().map(|persist| persist.identity);
        let namespace = options.prefix_cache.then(|| ruvllm_backend::identity::of_file(file, content)).transpose()?;
        let packed_file = options.packed_dir.as_deref().or(folder).map(|folder| {
            let identity =
                content.unwrap_or_else(|| ruvllm_backend::identity::remembered_hash(file, folder, options.n_threads));
            let max_bytes = options.cache_bytes.unwrap_or(StoreOptions::new(identity).max_bytes);
            PackedFile::new(folder, &identity, max_bytes)
        });
        check_growth(Loader::memory_bytes_max(file), arena::growable_bytes())?;
        let (model, targets, saver) = take_weights(file, options, &compute, packed_file, progress)?;
        let targets = Targets::new(ModelFacts::of(&model.spec), targets);
        let state_bytes = model.state_len.saturating_mul(size_of::<f32>());
        let available = beside_states(state_bytes, options.n_seq_max, available_bytes())?;
        let n_ctx = context(&model, options, available);
        // An encoder sees its whole input at once; a decoder's passes are cut.
        let n_rows = if model.spec.is_encoder { n_ctx } else { options.n_rows_max.min(n_ctx.max(options.n_seq_max)) };
        // A sequence with recurrent state cannot start in the middle, and an encoder's tokens all see each other.
        let namespace = namespace.filter(|_| model.state_len == 0 && !model.spec.is_encoder);
        let namespace = namespace.map(|file| identity::of_model(file, &model, compute.isa, options.kv));
        let budget = budget(&model, options, n_ctx, available, namespace.is_some())?;
        let pool = BlockPool::within(&model.kv_layout, options.kv_formats(), budget.total_bytes())?;
        let limits = SequenceLimits { n_seq_max: options.n_seq_max, n_ctx, policy: options.kv };
        let kv = KvStore::new(pool, budget, limits, namespace, persist);
        let kv = kv.with_others(&options.kv_others).with_states(state_bytes);
        let mut state = ForwardState::new(&model, &compute, n_rows, options.n_seq_max, n_ctx);
        state.shortlist = ShortlistState::new(&model, options.head_shortlist);
        let n_threads = compute.threads.n_threads();
        let device = DeviceInfo { backend: "native", name: compute.isa.name().to_owned(), n_threads };
        let info = ModelInfo::of_file(path, file, &model.spec, device)?;
        let info = ModelInfo { n_ctx, n_seq_max: options.n_seq_max, weight_bytes: model.read_bytes(), ..info };
        let file = Arc::clone(file);
        NativeBackend::assemble(BackendParts { compute, model, state, kv, info, file, targets, saver })
    }

    /// Loads the draft model of the options. It computes on the threads of this one, with as many sequences and the same
    /// context. Nothing of it is kept on disk: it is cheap, and other files are other models.
    ///
    /// # Errors
    /// As [`NativeBackend::load`].
    pub fn load_draft(
        &self,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Option<NativeBackend>, BackendError> {
        let Some(DraftOptions { path, n_branches }) = &options.draft else { return Ok(None) };
        if *n_branches == 0 || *n_branches > BRANCHES_MAX {
            let line = format!("{n_branches} branches of a draft model's guesses; choose 1 to {BRANCHES_MAX}");
            return Err(BackendError::new(BackendErrorKind::Options, line));
        }
        let own = LoadOptions {
            n_ctx: Some(self.info().n_ctx),
            kv: KvPolicy::F16,
            kv_others: Vec::new(),
            kv_bytes: None,
            adapter_bytes: 0,
            cache_dir: None,
            packed_dir: None,
            draft: None,
            ..options.clone()
        };
        NativeBackend::open_path(path, &own, self.compute().clone(), progress).map(Some)
    }
}

/// Takes the model's weights: from what an earlier process kept, else repacked into the file that keeps them, else into
/// memory. Returns the linear layers by number and what saves the weights.
fn take_weights(
    file: &GgufFile,
    options: &LoadOptions,
    compute: &Compute,
    packed_file: Option<PackedFile>,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<(Model, Vec<Target>, Saver), BackendError> {
    let mut load = |found: Option<Bytes>, making: Option<&Making>| {
        let sink = making.map(|making| making as &dyn PanelSink);
        let loader = Loader::new(file, compute, progress).with_packed(found).with_sink(sink);
        let spec = ModelSpec::read(file, options.n_ctx)?;
        let spec = match options.first_layers {
            None => spec,
            Some(n) => spec.first_layers(n),
        };
        let model = Model::make(spec, &loader)?;
        Ok::<_, BackendError>((model, loader.take_targets(), loader.take_made()))
    };
    let Some(packed_file) = packed_file else {
        let (model, targets, _) = load(None, None)?;
        return Ok((model, targets, Saver::default()));
    };
    let found = packed_file.open(options.n_threads);
    if found.is_none()
        && let Some(making) = begin_without_waiting(&packed_file, file)
    {
        let (model, targets, made) = load(None, Some(&making))?;
        // A disk that is full after all: what could not be written is not there, so it is made once more in memory.
        if !making.has_failed() {
            return Ok((model, targets, saver_of(made, |_| Unsaved::File(making))));
        }
    }
    let (found, watch) = found.map(|Packed { bytes, watch }| (bytes, watch)).unzip();
    let (model, targets, made) = load(found, None)?;
    let saver = saver_of(made, |made| Unsaved::Memory(packed_file, made));
    Ok((model, targets, saver.watching(watch)))
}

/// Checks that weights of so many bytes fit what the memory can grow by, where that is known: what does not fit ends the module.
fn check_growth(n_bytes: usize, growable: Option<usize>) -> Result<(), BackendError> {
    match growable.filter(|&growable| n_bytes > growable) {
        Some(growable) => {
            let line = format!(
                "the weights take {n_bytes} bytes, and {growable} are left of the memory; load a smaller model, or one of fewer \
                 bits a weight"
            );
            Err(BackendError::new(BackendErrorKind::Options, line))
        }
        None => Ok(()),
    }
}

/// Begins the file that a model's weights are repacked into, unless it is so large that the system would make who writes it
/// wait for the disk, or it cannot be made.
fn begin_without_waiting(packed_file: &PackedFile, file: &GgufFile) -> Option<Making> {
    let n_bytes = Loader::packed_bytes_max(file);
    let fits = available_bytes().is_some_and(|available| n_bytes <= available / WRITTEN_SHARE);
    fits.then(|| packed_file.clone().begin(n_bytes).ok())?
}

/// Returns what saves the matrices that were repacked, if there are any.
fn saver_of(made: Vec<Bytes>, unsaved: impl FnOnce(Vec<Bytes>) -> Unsaved) -> Saver {
    if made.is_empty() { Saver::default() } else { Saver::new(unsaved(made)) }
}

/// Returns the context to open: what was asked for, or else what the model was trained for as far as there is memory for
/// it; within what learned positions allow.
fn context(model: &Model, options: &LoadOptions, available: Option<usize>) -> usize {
    let n_positions = model.input.positions.as_ref().map_or(usize::MAX, |positions| positions.n_rows);
    let n_ctx = model.spec.n_ctx.min(n_positions);
    if options.n_ctx.is_some() {
        return n_ctx;
    }
    if model.spec.is_encoder {
        return n_ctx.min(ENCODER_CONTEXT);
    }
    let n_bytes = options.kv_bytes.unwrap_or_else(|| available.unwrap_or(CACHE_BYTES_MAX) / CONTEXT_SHARE);
    let fits = |n_ctx: usize| model.kv_layout.memory_for(options.kv_formats(), KvLayout::blocks_for(n_ctx)) <= n_bytes;
    let mut halves = std::iter::successors(Some(n_ctx), |n| Some(n / 2)).take_while(|&n| n > SMALL_CONTEXT);
    halves.find(|&n| fits(n)).unwrap_or(n_ctx.min(SMALL_CONTEXT))
}

/// Returns what of the available memory is left when `n_seq` sequences have their recurrent state.
fn beside_states(state_bytes: usize, n_seq: usize, available: Option<usize>) -> Result<Option<usize>, BackendError> {
    let n_bytes = state_bytes.saturating_mul(n_seq);
    let is_there = available.is_none_or(|available| n_bytes <= available);
    if n_bytes > 0 && !(is_there && arena::could_take(n_bytes)) {
        let line = format!(
            "the recurrent state of {n_seq} sequences takes {n_bytes} bytes, more than the system has; open fewer sequences"
        );
        return Err(BackendError::new(BackendErrorKind::Options, line));
    }
    Ok(available.map(|available| available - n_bytes))
}

/// Sizes the memory for keys and values, and refuses what the system does not have (it becomes real only as it is
/// written).
fn budget(
    model: &Model,
    options: &LoadOptions,
    n_ctx: usize,
    available: Option<usize>,
    with_prefixes: bool,
) -> Result<MemoryBudget, BackendError> {
    let block_bytes = model.kv_layout.block_bytes(options.kv.formats()[0]);
    let n_bytes = options.kv_bytes.unwrap_or_else(|| {
        let memory_for = |n_ctx: usize, n_seq: usize| {
            let n_blocks = KvLayout::blocks_for(n_ctx).saturating_mul(n_seq);
            model.kv_layout.memory_for(options.kv_formats(), n_blocks)
        };
        // Sequences share what there is; a small context each is promised to all, and a whole one to each alone.
        let promised = memory_for(n_ctx, 1).max(memory_for(n_ctx.min(SMALL_CONTEXT), options.n_seq_max));
        let half = available.map_or(CACHE_BYTES_MAX, |bytes| bytes / CONTEXT_SHARE);
        let contexts = memory_for(n_ctx, options.n_seq_max).min(half.max(promised));
        let share = available.map_or(CACHE_BYTES_MAX, |bytes| (bytes / 8).min(CACHE_BYTES_MAX));
        let least = match arena::growable_bytes() {
            // Memory that never shrinks is not filled with what might be asked again; who finds none waits.
            Some(_) => memory_for(n_ctx, options.n_seq_max.min(CONTEXTS_MAX)),
            None if with_prefixes => contexts.max(share),
            None => contexts,
        };
        let least = least.saturating_add(options.adapter_bytes);
        least.checked_next_multiple_of(PAGE_BYTES).unwrap_or(usize::MAX)
    });
    let reliefs = [Relief::Quantise, Relief::Evict, Relief::Reject];
    let reliefs = if options.kv.shrinks_under_pressure() { &reliefs[..] } else { &reliefs[1..] };
    let budget = MemoryBudget::new(n_bytes, reliefs);
    let n_bytes = budget.total_bytes();
    if n_bytes < block_bytes {
        let least = block_bytes.next_multiple_of(PAGE_BYTES);
        let line = format!("{n_bytes} bytes of KV cache hold no block; allow at least {least}");
        return Err(BackendError::new(BackendErrorKind::Options, line));
    }
    // The pool reserves addresses only, of which there are always enough: whether the memory could be had is asked here.
    match arena::could_take(n_bytes) {
        true => Ok(budget),
        false => Err(KvError::no_memory(n_bytes).into()),
    }
}

/// Returns the memory that can be taken without swapping, where the system tells (Linux), or that WebAssembly can grow by.
fn available_bytes() -> Option<usize> {
    if let Some(n_bytes) = arena::growable_bytes() {
        return Some(n_bytes);
    }
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_that_a_module_cannot_hold_are_refused() {
        assert!(check_growth(usize::MAX, None).is_ok() && check_growth(7, Some(7)).is_ok());
        let error = check_growth(8, Some(7)).expect_err("it is too little");
        assert_eq!(error.kind(), BackendErrorKind::Options);
        assert!(error.to_string().starts_with("the weights take 8 bytes, and 7 are left"), "{error}");
    }
}
