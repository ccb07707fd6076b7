//! What runs a model: one trait, and the native CPU backend behind it.

mod content;
mod embedding;
mod given;
mod identity;
mod kv;
mod load;
mod native;
mod packed;
mod persist;
mod tiers;

pub(crate) use identity::identity_of;
pub use load::{DraftOptions, FsyncPolicy, LoadOptions};
pub use native::NativeBackend;
pub(crate) use native::{REWIND_TOKENS_MAX, context_line};
pub use packed::PackedWeights;
pub(crate) use persist::Persist;

use std::sync::{Arc, Weak};

use ruvllm_kernels::Isa;
use ruvllm_kvcache::{CacheStats, KvPolicy, PageLender, Usage};
use ruvllm_lora::AdapterSet;
use ruvllm_lora::manager::AdapterManager;
use ruvllm_lora::micro::{MicroLora, StateRows};
use ruvllm_text::TextError;
use ruvllm_text::template::ChatTemplate;
use ruvllm_text::tokenizer::Tokenizer;

use crate::generate::Generation;
use crate::model::{LogitRows, Pooling};
use crate::request::GenerateRequest;
use crate::speculate::DraftInfo;
use crate::{EngineError, Scope};

/// What is known about a loaded model.
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
    /// Weight bytes that decoding one token reads.
    pub weight_bytes: usize,
    /// Bytes of the file or files.
    pub file_bytes: u64,
    /// The format most weight bytes have, e.g. `Q4_1`.
    pub quantization: String,
    /// Instruction set in use.
    pub isa: Isa,
    /// Threads in use.
    pub n_threads: usize,
    /// Whether the model makes embeddings instead of tokens.
    pub is_encoder: bool,
    /// Whether it scores pairs of texts ([`Readout::Score`]).
    pub is_ranker: bool,
    /// How long loading took, in milliseconds.
    pub load_ms: f64,
}

/// Names one sequence of a backend; it owns KV blocks until it is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SeqId(pub(crate) usize);

/// New tokens of one sequence in a forward pass.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The sequence they continue.
    pub seq: SeqId,
    /// Token ids; not empty.
    pub tokens: &'a [u32],
    /// Which rows want logits.
    pub logits: LogitRows,
}

/// What a pass gives.
#[derive(Debug)]
pub struct States<'a> {
    /// The wanted logits: `[n_wanted_rows, n_vocab]`, in order of the segments.
    pub logits: &'a mut [f32],
    /// The rough logits of the same rows, as [`LogitRows::Rough`] wants them; empty if no segment does, or the head is not screened.
    pub rough: &'a [f32],
    /// The final hidden states of the same rows, behind the norm and before any [`MicroLora`], and what the last block read for them:
    /// `[n_wanted_rows, n_embd]`. A segment of [`LogitRows::TailOfStates`] has those of all its rows here.
    pub rows: StateRows<'a>,
}

/// What is read from the vectors of a text's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readout {
    /// One vector of unit length, `[n_embd]`: pooled as the model's file says (the mean where it says nothing), or in another
    /// way.
    Embedding(Option<Pooling>),
    /// The final hidden states of the last tokens: `[n_last, n_embd]`, of a model that writes text. Those that an answer's tokens
    /// follow are what [`Tenant::tell`](crate::learning::Tenant::tell) asks for.
    States {
        /// How many; no more than there are.
        n_last: usize,
    },
    /// The log-probability of every token but the first, and the likeliest ones in its place: `[n - 1, 1 + 2 * n_top]`, each row
    /// the token's own, then `n_top` ids with theirs, the likeliest first. Of a model that writes text.
    Logprobs {
        /// How many of the likeliest tokens.
        n_top: usize,
    },
    /// How well the second text of a pair fits the first, `[1]`: the logit of a cross-encoder. The first text has this many
    /// of the tokens.
    Score {
        /// Tokens of the first text, with what separates it from the second.
        n_first: usize,
    },
}

/// What the prefix cache knows of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownPrefix {
    /// Leading tokens that a sequence would start with.
    pub n_tokens: usize,
    /// Bytes of their keys and values that open sequences hold: sharing them takes no room.
    pub in_use_bytes: usize,
}

/// What new and growing sequences can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvRoom {
    /// Bytes for keys and values that nobody holds, or the prefix cache or idle adapters alone, which give them up.
    pub free_bytes: usize,
    /// Sequences that can be opened.
    pub free_seqs: usize,
    /// Bytes that are taken from the system for keys and values, in whole pages: never more than
    /// [`LoadOptions::kv_bytes`].
    pub committed_bytes: usize,
}

/// A loaded model that can be run.
///
/// A row's logits do not depend on what else is in the batch, how a prompt is cut into passes, or the thread count.
pub trait LlmBackend: Send {
    /// Returns what is known about the model.
    fn info(&self) -> &ModelInfo;

    /// Returns the tokenizer, building it the first time.
    ///
    /// # Errors
    /// The file has none, or one of a kind that is not supported.
    fn tokenizer(&self) -> Result<&Arc<Tokenizer>, EngineError>;

    /// Returns the file's chat template, if it has one.
    ///
    /// # Errors
    /// The template is there and cannot be compiled.
    fn chat_template(&self) -> Result<Option<&Arc<ChatTemplate>>, TextError>;

    /// Opens an empty sequence.
    ///
    /// # Errors
    /// All sequences of [`LoadOptions::n_seq_max`] are open.
    fn new_sequence(&mut self) -> Result<SeqId, EngineError>;

    /// Opens a sequence that starts with what is cached of `tokens`, at most all but the last, and returns how many
    /// tokens those are: the rest is to be computed. When it is freed, what it holds is cached in turn, for others of the
    /// same scope.
    ///
    /// # Errors
    /// All sequences of [`LoadOptions::n_seq_max`] are open, or the scope's adapters are for another model.
    fn sequence_with_prefix(&mut self, tokens: &[u32], scope: &Scope) -> Result<(SeqId, usize), EngineError>;

    /// Opens a sequence that starts with the first `len` tokens of another one, without computing or copying them.
    ///
    /// # Errors
    /// The other one is not open or shorter, or all sequences are open. A model with recurrent state forks at the end
    /// only.
    fn fork_sequence(&mut self, seq: SeqId, len: usize) -> Result<SeqId, EngineError>;

    /// Returns whether sequences can go back by a few tokens.
    fn can_rewind(&self) -> bool;

    /// Forgets the last tokens of a sequence: all but the first `len`.
    ///
    /// # Errors
    /// The sequence is not open or shorter, or it is more than a few tokens, or sequences cannot go back.
    fn rewind(&mut self, seq: SeqId, len: usize) -> Result<(), EngineError>;

    /// Gives what a sequence of [`LlmBackend::sequence_with_prefix`] holds (in whole blocks) to the cache while it goes
    /// on.
    fn share_prefix(&mut self, seq: SeqId);

    /// Closes a sequence and gives its blocks back, or to the prefix cache.
    fn free_sequence(&mut self, seq: SeqId);

    /// Does a piece of what makes the next request quicker, some tenths of a millisecond long, such as making memory of pages; returns
    /// whether there was something to do. For whoever has nothing else to do.
    fn idle(&mut self) -> bool {
        false
    }

    /// Closes a sequence and gives its blocks back; the prefix cache keeps none of them that it has not already.
    fn abandon_sequence(&mut self, seq: SeqId) {
        self.free_sequence(seq);
    }

    /// Returns the smaller model that guesses for this one, if there is one. It has as many sequences and the same tokens.
    fn draft(&mut self) -> Option<&mut dyn LlmBackend> {
        None
    }

    /// Returns what is to be known of that model.
    fn draft_info(&self) -> Option<DraftInfo> {
        None
    }

    /// Returns how many tokens a sequence holds.
    fn sequence_len(&self, seq: SeqId) -> usize;

    /// Limits the bytes that the open sequences of a tenant hold together; `None` lifts the limit. A backend that keeps
    /// no count of bytes has no limits.
    fn set_tenant_quota(&mut self, _tenant: u64, _bytes: Option<usize>) {}

    /// Returns the bytes of a sequence's keys and values.
    fn sequence_bytes(&self, seq: SeqId) -> usize;

    /// Computes new tokens and returns the wanted logits: `[n_wanted_rows, n_vocab]`, in order of the segments.
    ///
    /// # Errors
    /// A token id outside the vocabulary, a context or cache that is full; then nothing was computed.
    fn forward(&mut self, segments: &[Segment<'_>]) -> Result<&mut [f32], EngineError> {
        self.forward_states(segments).map(|states| states.logits)
    }

    /// As [`LlmBackend::forward`], and returns what the logits were made of as well.
    ///
    /// # Errors
    /// As [`LlmBackend::forward`].
    fn forward_states(&mut self, segments: &[Segment<'_>]) -> Result<States<'_>, EngineError>;

    /// Changes the final hidden states of a sequence from the next pass on, and those of its forks; keys and values stay
    /// what they are, and so do cached prefixes. `None` changes nothing any more.
    ///
    /// # Errors
    /// [`ErrorKind::Adapter`](crate::ErrorKind::Adapter): it is for states of another width, or the backend has no way to
    /// apply it.
    fn set_micro(&mut self, seq: SeqId, micro: Option<Arc<MicroLora>>) -> Result<(), EngineError>;

    /// Multiplies final hidden states with the output head alone: `[n, n_embd]` gives `[n, n_vocab]`, bit for bit as a pass
    /// would have that came to them.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported): the backend has no way to do so.
    fn logits_of(&mut self, _hidden: &[f32], _logits: &mut Vec<f32>) -> Result<(), EngineError> {
        Err(EngineError::new(crate::ErrorKind::Unsupported, "this backend multiplies no states with its head alone"))
    }

    /// Does the same with what [`States::rough`] is made of, whether or not passes are screened.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported): the head has no screen.
    fn rough_logits_of(&mut self, _hidden: &[f32], _logits: &mut Vec<f32>) -> Result<(), EngineError> {
        Err(EngineError::new(crate::ErrorKind::Unsupported, "this backend screens no head"))
    }

    /// Hears that final states point in a `direction`, `[n_embd]`: rough logits depend on it. Makes the head's screen for it now and
    /// not when enough rows have asked, where passes are to be screened.
    fn prepare_screen(&mut self, _direction: &[f32]) {}

    /// Returns whether few rows' `n_best` largest logits are had without reading all of the head, and rough ones of all with them.
    fn screens(&self, _n_best: usize) -> bool {
        false
    }

    /// Makes room for `n` more tokens of a sequence ahead of [`LlmBackend::forward`], which then finds it; cached
    /// prefixes give way.
    ///
    /// # Errors
    /// The sequence is not open, its context, the cache or its tenant's quota is full; nothing has changed then.
    fn reserve(&mut self, seq: SeqId, n: usize) -> Result<(), EngineError>;

    /// Returns what a sequence of these tokens would start with, without opening it; `None` if there is no prefix cache.
    fn known_prefix(&self, tokens: &[u32], scope: &Scope) -> Option<KnownPrefix>;

    /// Returns what sequences can still have. Costs a look at every cached block.
    fn kv_room(&self) -> KvRoom;

    /// Returns the bytes of keys and values that a sequence of `n_tokens` holds.
    fn kv_bytes_for(&self, n_tokens: usize) -> usize;

    /// Returns the bytes that cached prefixes can have at present, where what is evicted must be computed again: 0 without a
    /// prefix cache, or with a folder that it is read from.
    fn kv_reusable_bytes(&self) -> usize;

    /// Returns the bytes of such a sequence's blocks once they have aged as a policy says.
    fn kv_bytes_aged(&self, policy: KvPolicy, n_tokens: usize) -> usize;

    /// Returns what the prefix cache did and holds; `None` if there is none.
    fn cache_stats(&self) -> Option<CacheStats>;

    /// Returns who holds the blocks of keys and values.
    fn kv_usage(&self) -> Usage;

    /// Returns the bytes of the blocks that sequences or the prefix cache hold, by the name of their format.
    fn kv_bytes_by_format(&self) -> Vec<(&'static str, usize)>;

    /// Forgets all cached prefixes.
    fn clear_cache(&mut self);

    /// Has adapters share the memory for keys and values: idle ones give way when it runs short. Returns what lends it to
    /// them, and how many pages at most; `None` if they have memory of their own.
    fn share_with(&mut self, adapters: Weak<AdapterManager>) -> Option<(PageLender, usize)> {
        drop(adapters);
        None
    }

    /// Lends pages of the memory for keys and values, beside `keep_bytes` that sequences may come to need; cached prefixes
    /// give way. Returns whether they were lent.
    fn lend(&mut self, n_pages: usize, keep_bytes: usize) -> bool {
        let _ = (n_pages, keep_bytes);
        false
    }

    /// Returns what is read from the vectors of a text's tokens, with adapters.
    ///
    /// # Errors
    /// The tokens do not fit the model, or it cannot give this; [`ErrorKind::Adapter`](crate::ErrorKind::Adapter) if the
    /// adapters were loaded for another model.
    fn embed(&mut self, tokens: &[u32], readout: Readout, adapters: &AdapterSet) -> Result<Vec<f32>, EngineError>;

    /// Starts a request and returns the stream of its tokens.
    ///
    /// # Errors
    /// The prompt is empty, too long or holds unknown ids; an option is out of range.
    fn generate(&mut self, request: &GenerateRequest) -> Result<Generation<'_>, EngineError>;
}
