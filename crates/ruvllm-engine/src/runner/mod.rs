//! The model runner: a backend's model as the scheduler uses it, with its vocabulary and its draft model.
//!
//! A backend may lack what the contract leaves open. This is the place where the rest of the engine is told what happens
//! then: without a paged KV cache there is room for as many sequences as the backend has, and no cached prefix; without
//! hidden states nothing learns; without embeddings there are none.

mod logprobs;
mod vocabulary;

use std::sync::{Arc, Weak};

use ruvllm_backend::{
    BackendError, CacheSalt, CachedPrefix, HiddenStates, LogitRows, ModelInfo, PagedKv, Pooling, Segment, SeqId,
    States, TokenModel,
};
use ruvllm_kvcache::{CacheStats, KvPolicy, PageLender, Usage};
use ruvllm_lora::AdapterSet;
use ruvllm_lora::manager::AdapterManager;
use ruvllm_lora::micro::MicroLora;
use ruvllm_text::TextError;
use ruvllm_text::template::ChatTemplate;
use ruvllm_text::tokenizer::Tokenizer;
pub use vocabulary::Vocabulary;

use crate::speculate::{DraftInfo, History, HistoryKeeper};
use crate::{EngineError, ErrorKind};

/// Result that is read from the vectors of a text's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readout {
    /// One vector of unit length, `[n_embd]`: pooled as the model's file says (the mean where it says nothing), or in another
    /// way; with [`Pooling::None`] those of the tokens as they are: `[n, n_embd]`.
    Embedding(Option<Pooling>),
    /// The final hidden states of the last tokens: `[n_last, n_embd]`, of a model that writes text. Those that an answer's tokens
    /// follow are what a logits processor is told by.
    States {
        /// Number of those tokens; no more than there are.
        n_last: usize,
    },
    /// The log-probability of every token but the first, and the most likely ones in its place: `[n - 1, 1 + 2 * n_top]`, each row
    /// the token's own, then `n_top` ids with theirs, the most likely first. Of a model that writes text.
    Logprobs {
        /// Number of the most likely tokens.
        n_top: usize,
    },
    /// The logits after each of the last tokens: `[n_last, n_vocab]`. Of a model that writes text.
    Logits {
        /// Number of those tokens; no more than there are.
        n_last: usize,
    },
    /// How well the second text of a pair fits the first, `[1]`: the logit of a cross-encoder. The first text has this many
    /// of the tokens.
    Score {
        /// Tokens of the first text, with what separates it from the second.
        n_first: usize,
    },
}

/// Checks that a model writes text.
///
/// # Errors
/// [`ErrorKind::Unsupported`]: it makes embeddings.
pub(crate) fn check_writes(info: &ModelInfo) -> Result<(), EngineError> {
    let line = || format!("model '{}' makes embeddings, not text; ask it for those", info.name);
    if info.is_encoder { Err(EngineError::new(ErrorKind::Unsupported, line())) } else { Ok(()) }
}

/// A smaller model that drafts tokens, and how many branches of its drafts are tried.
struct Draft {
    runner: Box<ModelRunner>,
    n_branches: usize,
}

/// A loaded model, whichever backend runs it.
pub struct ModelRunner {
    model: Box<dyn TokenModel>,
    vocabulary: Vocabulary,
    draft: Option<Draft>,
    history: History,
}

/// Bytes of the texts that drafts are made of, unless another number is set.
const HISTORY_BYTES: usize = 32 << 20;

impl ModelRunner {
    /// Puts a backend's model and its vocabulary together.
    pub fn new(model: Box<dyn TokenModel>, vocabulary: Vocabulary) -> ModelRunner {
        ModelRunner { model, vocabulary, draft: None, history: History::new(HISTORY_BYTES) }
    }

    /// Takes a smaller model that drafts for this one; the first `n_branches` of its most likely tokens are tried.
    ///
    /// # Errors
    /// One of the two cannot take tokens back, or they have other tokens.
    pub fn with_draft(mut self, draft: ModelRunner, n_branches: usize) -> Result<ModelRunner, EngineError> {
        let refused = |line: String| Err(EngineError::new(ErrorKind::Unsupported, line));
        for (what, runner) in [("the model", &self), ("the draft model", &draft)] {
            if runner.info().is_encoder || !runner.can_rewind() {
                let name = &runner.info().name;
                return refused(format!("{what} '{name}' cannot take tokens back; run without a draft model"));
            }
        }
        if let Some(difference) = self.tokenizer()?.difference(draft.tokenizer()?) {
            let name = &draft.info().name;
            return refused(format!(
                "the draft model '{name}' has other tokens: {difference}; use a smaller model of the same family"
            ));
        }
        self.draft = Some(Draft { runner: Box::new(draft), n_branches });
        Ok(self)
    }

    /// Limits the bytes of earlier prompts and answers that drafts are made of, 32 MiB at first; those that are there are
    /// forgotten. With 0 drafts are made of the request's own text alone.
    pub fn set_history_bytes(&mut self, budget_bytes: usize) {
        self.history.set_budget(budget_bytes);
    }

    /// Returns the most bytes that earlier prompts and answers may take.
    pub fn history_budget_bytes(&self) -> usize {
        self.history.budget_bytes()
    }

    /// Has `keeper` told what is appended to the texts of each tenant that drafts are made of, so that it can be brought back
    /// by [`ModelRunner::restore_history`].
    pub fn set_history_keeper(&mut self, keeper: HistoryKeeper) {
        self.history.set_keeper(keeper);
    }

    /// Brings back what a keeper was told of a tenant, in the same order. Returns false if there are tokens that the model's
    /// vocabulary does not have: then nothing is taken.
    pub fn restore_history(&mut self, tenant: u64, texts: &[u32]) -> bool {
        let n_vocab = self.info().n_vocab;
        self.history.restore(tenant, texts, n_vocab)
    }

    /// Returns the bytes that earlier prompts and answers take, of which drafts are made.
    pub fn history_bytes(&self) -> usize {
        self.history.n_bytes()
    }

    /// Forgets the prompts and answers of a tenant that drafts are made of.
    pub fn forget_history(&mut self, tenant: u64) {
        self.history.forget(tenant);
    }

    /// Forgets the prompts and answers of all other tenants.
    pub fn forget_other_histories(&mut self, tenants: &[u64]) {
        self.history.forget_others(tenants);
    }

    pub(crate) fn history(&self) -> &History {
        &self.history
    }

    pub(crate) fn history_mut(&mut self) -> &mut History {
        &mut self.history
    }

    /// Returns the backend's model.
    pub fn model(&self) -> &dyn TokenModel {
        &*self.model
    }

    /// Returns the backend's model, for callers who drive sequences themselves.
    pub fn model_mut(&mut self) -> &mut dyn TokenModel {
        &mut *self.model
    }

    /// Returns facts about the model.
    pub fn info(&self) -> &ModelInfo {
        self.model.info()
    }

    /// Returns tokenizer and chat template, and the file that they are from.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Returns tokenizer and chat template, to change them.
    pub(crate) fn vocabulary_mut(&mut self) -> &mut Vocabulary {
        &mut self.vocabulary
    }

    /// Returns the tokenizer, building it the first time.
    ///
    /// # Errors
    /// The file has none, or one of a kind that is not supported.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>, EngineError> {
        self.vocabulary.tokenizer()
    }

    /// Returns the file's chat template, if it has one.
    ///
    /// # Errors
    /// The template is there and cannot be compiled.
    pub fn chat_template(&self) -> Result<Option<&Arc<ChatTemplate>>, TextError> {
        self.vocabulary.chat_template()
    }

    /// Returns the draft model, if there is one.
    pub fn draft(&mut self) -> Option<&mut ModelRunner> {
        self.draft.as_mut().map(|draft| &mut *draft.runner)
    }

    /// Returns facts about the draft model.
    pub(crate) fn draft_info(&self) -> Option<DraftInfo> {
        let Draft { runner, n_branches } = self.draft.as_ref()?;
        let pass_cost = runner.info().weight_bytes as f32 / self.info().weight_bytes.max(1) as f32;
        Some(DraftInfo { pass_cost, n_ctx: runner.info().n_ctx, n_branches: *n_branches })
    }

    /// Opens an empty sequence that stays out of the prefix cache, without adapters.
    ///
    /// # Errors
    /// As [`TokenModel::open`].
    pub fn open_empty(&mut self) -> Result<SeqId, EngineError> {
        Ok(self.open(None, &CacheSalt::default())?.0)
    }

    /// Opens a sequence, as [`TokenModel::open`].
    ///
    /// # Errors
    /// As [`TokenModel::open`].
    pub fn open(&mut self, prompt: Option<&[u32]>, salt: &CacheSalt) -> Result<(SeqId, usize), EngineError> {
        Ok(self.model.open(prompt, salt)?)
    }

    /// Opens a sequence that starts with the first `len` tokens of another one.
    ///
    /// # Errors
    /// As [`TokenModel::fork`].
    pub fn fork(&mut self, seq: SeqId, len: usize) -> Result<SeqId, EngineError> {
        Ok(self.model.fork(seq, len)?)
    }

    /// Returns whether sequences can go back by a few tokens.
    pub fn can_rewind(&self) -> bool {
        self.info().n_rewind_max > 0
    }

    /// Forgets the last tokens of a sequence: all but the first `len`.
    ///
    /// # Errors
    /// As [`TokenModel::rewind`]; nothing is asked of the backend where nothing is to be forgotten.
    pub fn rewind(&mut self, seq: SeqId, len: usize) -> Result<(), EngineError> {
        match self.n_tokens(seq) == len {
            true => Ok(()),
            false => Ok(self.model.rewind(seq, len)?),
        }
    }

    /// Closes a sequence; what it computed may go to the prefix cache.
    pub fn close(&mut self, seq: SeqId) {
        self.model.close(seq);
    }

    /// Closes a sequence; the prefix cache keeps nothing of it that it has not already.
    pub fn discard(&mut self, seq: SeqId) {
        match self.model.paged_kv_mut() {
            Some(kv) => kv.discard(seq),
            None => self.model.close(seq),
        }
    }

    /// Returns how many tokens a sequence holds.
    pub fn n_tokens(&self, seq: SeqId) -> usize {
        self.model.n_tokens(seq)
    }

    /// Returns how many more sequences can be opened.
    pub fn n_free(&self) -> usize {
        self.model.n_free()
    }

    /// Computes new tokens and returns the wanted logits: `[n_wanted_rows, n_vocab]`, in order of the segments.
    ///
    /// # Errors
    /// As [`TokenModel::forward`].
    pub fn forward(&mut self, segments: &[Segment<'_>]) -> Result<&mut [f32], EngineError> {
        Ok(self.model.forward(segments)?.logits)
    }

    /// Computes new tokens and returns all that comes of it.
    ///
    /// # Errors
    /// As [`TokenModel::forward`].
    pub fn forward_states(&mut self, segments: &[Segment<'_>]) -> Result<States<'_>, EngineError> {
        Ok(self.model.forward(segments)?)
    }

    /// Does a piece of work that makes the next request faster; returns whether there was something to do.
    pub fn idle(&mut self) -> bool {
        self.model.idle()
    }
}

/// What a paged KV cache has, or what holds without one.
impl ModelRunner {
    fn kv(&self) -> Option<&dyn PagedKv> {
        self.model.paged_kv()
    }

    fn kv_mut(&mut self) -> Option<&mut dyn PagedKv> {
        self.model.paged_kv_mut()
    }

    /// Returns the bytes that sequences can still have; without a paged cache sequences bring their own.
    pub fn free_kv_bytes(&self) -> usize {
        self.kv().map_or(usize::MAX, |kv| kv.room().free_bytes)
    }

    /// Returns the bytes that a sequence of `n_tokens` holds.
    pub fn kv_bytes_for(&self, n_tokens: usize) -> usize {
        self.kv().map_or(0, |kv| kv.bytes_for(n_tokens))
    }

    /// Returns the bytes that cached prefixes can have at present, if an evicted one has to be computed again.
    pub fn reusable_kv_bytes(&self) -> usize {
        self.kv().map_or(0, PagedKv::reusable_bytes)
    }

    /// Returns the bytes of a sequence's blocks once they have aged by a policy.
    pub fn aged_kv_bytes(&self, policy: KvPolicy, n_tokens: usize) -> usize {
        self.kv().map_or(0, |kv| kv.aged_bytes(policy, n_tokens))
    }

    /// Returns the bytes that a sequence holds.
    pub fn sequence_bytes(&self, seq: SeqId) -> usize {
        self.kv().map_or(0, |kv| kv.sequence_bytes(seq))
    }

    /// Makes room for `n` more tokens of a sequence.
    ///
    /// # Errors
    /// As [`PagedKv::reserve`].
    pub fn reserve(&mut self, seq: SeqId, n: usize) -> Result<(), EngineError> {
        Ok(self.kv_mut().map_or(Ok(()), |kv| kv.reserve(seq, n))?)
    }

    /// Returns the cached prefix of a prompt; `None` if there is no prefix cache.
    pub fn match_prefix(&self, tokens: &[u32], salt: &CacheSalt) -> Option<CachedPrefix> {
        self.kv()?.match_prefix(tokens, salt)
    }

    /// Puts the whole blocks of a running sequence into the prefix cache.
    pub fn share(&mut self, seq: SeqId) {
        if let Some(kv) = self.kv_mut() {
            kv.share(seq);
        }
    }

    /// Limits the bytes that the open sequences of a tenant hold together. Without a paged cache there is no limit.
    pub fn set_tenant_quota(&mut self, tenant: u64, bytes: Option<usize>) {
        if let Some(kv) = self.kv_mut() {
            kv.set_quota(tenant, bytes);
        }
    }

    /// Returns the prefix cache's counters; `None` if there is none.
    pub fn cache_stats(&self) -> Option<CacheStats> {
        self.kv()?.cache_stats()
    }

    /// Forgets all cached prefixes in memory.
    pub fn clear_cache(&mut self) {
        if let Some(kv) = self.kv_mut() {
            kv.clear_cache();
        }
    }

    /// Returns the owners of blocks.
    pub fn kv_usage(&self) -> Usage {
        self.kv().map(PagedKv::usage).unwrap_or_default()
    }

    /// Returns the bytes of held blocks by the name of their format.
    pub fn kv_bytes_by_format(&self) -> Vec<(&'static str, usize)> {
        self.kv().map(PagedKv::bytes_by_format).unwrap_or_default()
    }

    /// Shares the memory of the KV cache with adapters, as [`PagedKv::share_with`].
    pub fn share_with(&mut self, adapters: Weak<AdapterManager>) -> Option<(PageLender, usize)> {
        self.kv_mut()?.share_with(adapters)
    }

    /// Lends pages of the KV cache's memory, as [`PagedKv::lend`].
    pub fn lend(&mut self, n_pages: usize, keep_bytes: usize) -> bool {
        self.kv_mut().is_some_and(|kv| kv.lend(n_pages, keep_bytes))
    }
}

/// Final hidden states and embeddings, or an error without them.
impl ModelRunner {
    /// Returns what makes the error of something that the backend lacks.
    fn missing(&self, what: &'static str) -> impl FnOnce() -> BackendError + use<> {
        let backend = self.info().device.backend;
        move || BackendError::unsupported(format!("backend {backend} has no {what}; use native"))
    }

    /// Returns access to final hidden states.
    ///
    /// # Errors
    /// The backend has none.
    pub fn hidden_states(&self) -> Result<&dyn HiddenStates, EngineError> {
        Ok(self.model.hidden_states().ok_or_else(self.missing("hidden states"))?)
    }

    /// Returns access to final hidden states, to compute with them.
    ///
    /// # Errors
    /// The backend has none.
    pub fn hidden_states_mut(&mut self) -> Result<&mut dyn HiddenStates, EngineError> {
        let missing = self.missing("hidden states");
        Ok(self.model.hidden_states_mut().ok_or_else(missing)?)
    }

    /// Checks that the backend can do what a request needs besides tokens.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`]: it shows no hidden states to a logits processor, or applies no adapters.
    pub(crate) fn check_capabilities(&self, learns: bool, has_adapters: bool) -> Result<(), EngineError> {
        if learns {
            self.hidden_states()?;
        }
        match has_adapters && self.model.adapters().is_none() {
            true => Err(self.missing("adapters")().into()),
            false => Ok(()),
        }
    }

    /// Returns whether the `n_best` largest logits of few rows come without reading all of the head.
    pub fn has_shortlist(&self, n_best: usize) -> bool {
        self.model.hidden_states().is_some_and(|states| states.has_shortlist(n_best))
    }

    /// Changes the final hidden states of a sequence from the next pass on.
    ///
    /// # Errors
    /// As [`HiddenStates::set_micro`]; the backend has no hidden states.
    pub fn set_micro(&mut self, seq: SeqId, micro: Option<Arc<MicroLora>>) -> Result<(), EngineError> {
        Ok(self.hidden_states_mut()?.set_micro(seq, micro)?)
    }

    /// Returns what is read from the vectors of a text's tokens, with adapters.
    ///
    /// # Errors
    /// The tokens do not fit the model, or it cannot give this; [`ErrorKind::Adapter`] if the adapters were loaded for
    /// another model.
    pub fn read_out(
        &mut self,
        tokens: &[u32],
        readout: Readout,
        adapters: &AdapterSet,
    ) -> Result<Vec<f32>, EngineError> {
        let missing = self.missing("embeddings");
        match readout {
            Readout::States { n_last } => self.last_states(tokens, n_last, adapters),
            Readout::Logprobs { n_top } => self.logprobs_of(tokens, n_top, adapters),
            Readout::Logits { n_last } => self.logits_of(tokens, n_last, adapters),
            Readout::Embedding(pooling) => {
                Ok(self.model.embeddings().ok_or_else(missing)?.embed(tokens, pooling, adapters)?)
            }
            Readout::Score { n_first } => {
                let score = self.model.embeddings().ok_or_else(missing)?.score(tokens, n_first, adapters)?;
                Ok(vec![score])
            }
        }
    }

    /// Returns the final hidden states of the last tokens: `[n_last, n_embd]`.
    fn last_states(&mut self, tokens: &[u32], n_last: usize, adapters: &AdapterSet) -> Result<Vec<f32>, EngineError> {
        self.hidden_states()?;
        let n_embd = self.info().n_embd;
        self.with_sequence(adapters, |runner, seq| {
            let segment = Segment { seq, tokens, logits: LogitRows::TailOfStates(0) };
            let mut states = runner.forward_states(&[segment])?.rows.hidden.to_vec();
            states.drain(..states.len() - n_last.min(tokens.len()) * n_embd);
            Ok(states)
        })
    }

    /// Calls `f` with a new sequence that has adapters, and closes it.
    fn with_sequence<T>(
        &mut self,
        adapters: &AdapterSet,
        f: impl FnOnce(&mut ModelRunner, SeqId) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let (seq, _) = self.open(None, &adapters.into())?;
        let result = f(self, seq);
        self.close(seq);
        result
    }
}
