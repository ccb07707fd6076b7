//! The contract itself: sequences of tokens, computed in batches.

use std::collections::BTreeMap;
use std::path::Path;

use ruvllm_gguf::GgufFile;
use ruvllm_lora::loader::AdapterLoader;

use crate::{BackendError, CacheSalt, Embeddings, ForwardHooks, HiddenStates, ModelSpec, PagedKv, Segment, States};

/// Number of a sequence, given by the backend that opened it. It may be given again after [`TokenModel::close`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SeqId(pub usize);

/// Facts about a loaded model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// `general.name`, or the file's name without its ending.
    pub name: String,
    /// `general.architecture`.
    pub arch: String,
    /// Trained values.
    pub n_params: usize,
    /// Tokens in the vocabulary.
    pub n_vocab: usize,
    /// Layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Context the model was trained with.
    pub n_ctx_train: usize,
    /// Context it is opened with.
    pub n_ctx: usize,
    /// Sequences that may be open at once.
    pub n_seq_max: usize,
    /// Tokens that [`TokenModel::rewind`] takes back at once, at most; 0 where sequences cannot go back.
    pub n_rewind_max: usize,
    /// Weight bytes that decoding one token reads.
    pub weight_bytes: usize,
    /// Bytes of the file or files.
    pub file_bytes: u64,
    /// The format most weight bytes have, e.g. `Q4_1`.
    pub quantization: String,
    /// Whether the model makes embeddings instead of tokens.
    pub is_encoder: bool,
    /// Whether it scores pairs of texts ([`Embeddings::score`]).
    pub is_ranker: bool,
    /// Milliseconds that loading took.
    pub load_ms: f64,
    /// The backend and the device that it computes on.
    pub device: DeviceInfo,
}

impl ModelInfo {
    /// Makes the facts of a model of which nothing is known yet but its name and where it runs: one sequence, no tokens.
    pub fn new(name: impl Into<String>, device: DeviceInfo) -> ModelInfo {
        ModelInfo {
            name: name.into(),
            arch: String::new(),
            n_params: 0,
            n_vocab: 0,
            n_layers: 0,
            n_embd: 0,
            n_ctx_train: 0,
            n_ctx: 0,
            n_seq_max: 1,
            n_rewind_max: 0,
            weight_bytes: 0,
            file_bytes: 0,
            quantization: String::new(),
            is_encoder: false,
            is_ranker: false,
            load_ms: 0.0,
            device,
        }
    }

    /// Takes the facts that a model's file and its description tell.
    ///
    /// # Errors
    /// The file's name for the model is no text.
    pub fn of_file(
        path: &Path,
        file: &GgufFile,
        spec: &ModelSpec,
        device: DeviceInfo,
    ) -> Result<ModelInfo, BackendError> {
        let stem = || path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let name = file.metadata().str("general.name")?.map_or_else(stem, str::to_owned);
        let mut bytes_by_type = BTreeMap::new();
        for tensor in file.tensors().filter(|tensor| tensor.shape.len() > 1) {
            *bytes_by_type.entry(tensor.ty).or_insert(0usize) += tensor.n_bytes();
        }
        let most = bytes_by_type.iter().max_by_key(|&(_, &bytes)| bytes);
        Ok(ModelInfo {
            arch: spec.arch.clone(),
            n_params: file.tensors().map(|tensor| tensor.n_elements()).sum(),
            n_vocab: spec.n_vocab,
            n_layers: spec.layers.len(),
            n_embd: spec.n_embd,
            n_ctx_train: spec.n_ctx_train,
            file_bytes: file.total_bytes(),
            quantization: most.map_or_else(String::new, |(ty, _)| ty.name().to_owned()),
            is_encoder: spec.is_encoder,
            is_ranker: spec.ranker.is_some(),
            ..ModelInfo::new(name, device)
        })
    }

    /// Returns the line for `n_tokens` that do not fit the context.
    pub fn context_line(&self, n_tokens: usize) -> String {
        let ModelInfo { n_ctx, n_ctx_train, .. } = self;
        let advice = match n_ctx < n_ctx_train {
            true => format!("open it with a larger context (the model allows {n_ctx_train}) or shorten the prompt"),
            false => "shorten the prompt".to_owned(),
        };
        format!("{n_tokens} tokens do not fit the context of {n_ctx}; {advice}")
    }
}

/// A backend and the device that it computes on, for people, metrics and logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name of the backend: `native`.
    pub backend: &'static str,
    /// Name of the device: the instruction set of a CPU, the model of a GPU.
    pub name: String,
    /// Threads of this process that compute.
    pub n_threads: usize,
}

/// A model that computes logits of tokens: the part that every backend has to have.
///
/// A backend keeps sequences. Each has the tokens that were computed for it, and whatever the model has to remember of
/// them (KV cache, recurrent state). [`TokenModel::forward`] goes on with any of them in one batch.
///
/// Capabilities come by the methods that return an `Option`: an engine works without any of them, and says what is missing.
///
/// The numeric contract of a backend is part of its documentation. The native one gives a row the same bits whatever else
/// is in the batch, however a prompt is cut, and for any number of threads.
///
/// ```
/// use ruvllm_backend::{BackendError, DeviceInfo, LogitRows, ModelInfo, CacheSalt, Segment, SeqId, StateRows, States, TokenModel};
///
/// /// A model of four tokens, in which the token after `n` is `n + 1`.
/// struct Counter {
///     info: ModelInfo,
///     sequences: Vec<Option<Vec<u32>>>,
///     logits: Vec<f32>,
/// }
///
/// impl TokenModel for Counter {
///     fn info(&self) -> &ModelInfo {
///         &self.info
///     }
///     fn open(&mut self, _: Option<&[u32]>, _: &CacheSalt) -> Result<(SeqId, usize), BackendError> {
///         let free = self.sequences.iter().position(Option::is_none);
///         let free = free.ok_or_else(|| BackendError::no_sequence(self.info.n_seq_max))?;
///         self.sequences[free] = Some(Vec::new());
///         Ok((SeqId(free), 0))
///     }
///     fn fork(&mut self, _: SeqId, _: usize) -> Result<SeqId, BackendError> {
///         Err(BackendError::unsupported("sequences of this model cannot be forked"))
///     }
///     fn rewind(&mut self, _: SeqId, _: usize) -> Result<(), BackendError> {
///         Err(BackendError::unsupported("sequences of this model cannot go back"))
///     }
///     fn close(&mut self, seq: SeqId) {
///         self.sequences[seq.0] = None;
///     }
///     fn n_tokens(&self, seq: SeqId) -> usize {
///         self.sequences[seq.0].as_ref().map_or(0, Vec::len)
///     }
///     fn n_free(&self) -> usize {
///         self.sequences.iter().filter(|sequence| sequence.is_none()).count()
///     }
///     fn forward(&mut self, segments: &[Segment<'_>]) -> Result<States<'_>, BackendError> {
///         self.logits.clear();
///         for segment in segments {
///             let n_wanted = segment.logits.count(segment.tokens.len());
///             for token in &segment.tokens[segment.tokens.len() - n_wanted..] {
///                 self.logits.extend((0..4).map(|id| if id == (token + 1) % 4 { 1.0 } else { 0.0 }));
///             }
///             self.sequences[segment.seq.0].get_or_insert_default().extend(segment.tokens);
///         }
///         Ok(States::of_logits(&mut self.logits))
///     }
/// }
///
/// # let device = DeviceInfo { backend: "counter", name: "none".into(), n_threads: 1 };
/// # let info = ModelInfo { n_vocab: 4, n_ctx: 8, ..ModelInfo::new("counter", device) };
/// let mut model = Counter { info, sequences: vec![None], logits: Vec::new() };
/// let (seq, _) = model.open(None, &CacheSalt::default())?;
/// let states = model.forward(&[Segment { seq, tokens: &[0, 1], logits: LogitRows::Last }])?;
/// assert_eq!(states.logits, [0.0, 0.0, 1.0, 0.0]);
/// # Ok::<(), BackendError>(())
/// ```
pub trait TokenModel: Send {
    /// Returns facts about the model.
    fn info(&self) -> &ModelInfo;

    /// Opens a sequence. With a prompt it starts with what is cached of it, at most all tokens but the last, and what it
    /// computes may be cached in turn, for others of the same salt. Without one it is empty and stays out of the cache.
    /// Returns the sequence and the number of its tokens, which need no computing.
    ///
    /// # Errors
    /// All sequences are open, the salt's adapters are for another model, or its KV policy is not one of the backend's.
    fn open(&mut self, prompt: Option<&[u32]>, salt: &CacheSalt) -> Result<(SeqId, usize), BackendError>;

    /// Opens a sequence that starts with the first `len` tokens of another one.
    ///
    /// # Errors
    /// The other one is not open or shorter, all sequences are open, or the model cannot fork there.
    fn fork(&mut self, seq: SeqId, len: usize) -> Result<SeqId, BackendError>;

    /// Forgets the last tokens of a sequence: all but the first `len`.
    ///
    /// # Errors
    /// The sequence is not open or shorter, or it is more than [`ModelInfo::n_rewind_max`] tokens.
    fn rewind(&mut self, seq: SeqId, len: usize) -> Result<(), BackendError>;

    /// Closes a sequence. One that is not open is left alone.
    fn close(&mut self, seq: SeqId);

    /// Returns the number of tokens in a sequence; 0 for one that is not open.
    fn n_tokens(&self, seq: SeqId) -> usize;

    /// Returns how many more sequences can be opened.
    fn n_free(&self) -> usize;

    /// Computes new tokens of sequences and returns the wanted rows, in order of the segments.
    ///
    /// # Errors
    /// A token outside the vocabulary, a context or cache that is full, a sequence that is not open or stands twice, a
    /// segment without tokens, an encoder; then nothing was computed.
    fn forward(&mut self, segments: &[Segment<'_>]) -> Result<States<'_>, BackendError>;

    /// Does a piece of work that makes the next request faster, some tenths of a millisecond long, and returns whether
    /// there was something to do. Called while no request runs.
    fn idle(&mut self) -> bool {
        false
    }

    /// Returns the paged KV cache, if the backend has one.
    fn paged_kv(&self) -> Option<&dyn PagedKv> {
        None
    }

    /// Returns the paged KV cache to change it, if the backend has one.
    fn paged_kv_mut(&mut self) -> Option<&mut dyn PagedKv> {
        None
    }

    /// Returns access to final hidden states, if the backend has it.
    fn hidden_states(&self) -> Option<&dyn HiddenStates> {
        None
    }

    /// Returns access to final hidden states to compute with them, if the backend has it.
    fn hidden_states_mut(&mut self) -> Option<&mut dyn HiddenStates> {
        None
    }

    /// Returns what makes vectors of texts, if the backend does.
    fn embeddings(&mut self) -> Option<&mut dyn Embeddings> {
        None
    }

    /// Returns the hooks into forward passes, if the backend has them.
    fn forward_hooks(&mut self) -> Option<&mut dyn ForwardHooks> {
        None
    }

    /// Returns what reads adapters for this model, if the backend applies them.
    fn adapters(&self) -> Option<AdapterLoader> {
        None
    }

    /// Returns the model's description, if it was read from a file here.
    fn model_spec(&self) -> Option<&ModelSpec> {
        None
    }
}
