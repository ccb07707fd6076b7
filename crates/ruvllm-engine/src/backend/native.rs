//! The native backend: packed weights, paged KV cache, SIMD kernels on the CPU.

mod learning;
mod pass;

use std::sync::{Arc, OnceLock, Weak};

use ruvllm_gguf::GgufFile;
use ruvllm_kernels::attention;
use ruvllm_kvcache::{CacheStats, KvPolicy, PageLender, Pressure, Usage};
use ruvllm_lora::manager::AdapterManager;
use ruvllm_lora::micro::{MicroLora, StateRows};
use ruvllm_lora::{AdaptedRows, AdapterSet, Targets};

use pass::Gating;
use ruvllm_text::template::ChatTemplate;
use ruvllm_text::tokenizer::Tokenizer;
use ruvllm_text::{TextError, TextErrorKind};

use super::content;
use super::embedding;
use super::kv::KvStore;
use super::packed::Saver;
use super::persist::Persist;
use super::tiers::Kernels;
use super::{KnownPrefix, KvRoom, LlmBackend, ModelInfo, Readout, Segment, SeqId, States};
use crate::adapters::AdapterLoader;
use crate::generate::Generation;
use crate::kernels::Compute;
use crate::model::{ForwardState, LogitRows, Model, Pooling, RowCounts, Rows, has_last_block};
use crate::request::GenerateRequest;
use crate::speculate::DraftInfo;
use crate::{EngineError, ErrorKind, Scope};

/// The most tokens that are taken back at once.
pub(crate) const REWIND_TOKENS_MAX: usize = 32;

/// A model on this machine's CPU.
pub struct NativeBackend {
    compute: Compute,
    model: Model,
    state: ForwardState,
    kv: KvStore,
    info: ModelInfo,
    file: Arc<GgufFile>,
    /// Guesses for this one, and how many branches of its guesses are tried.
    pub(super) draft: Option<(Box<NativeBackend>, usize)>,
    /// The hash of the file's bytes, once somebody asked.
    content: OnceLock<[u8; 32]>,
    /// Built when first asked for: computing logits needs none.
    tokenizer: OnceLock<Result<Arc<Tokenizer>, (TextErrorKind, String)>>,
    /// A template that does not compile is told when it is asked for: raw prompts need none.
    template: Option<Result<Arc<ChatTemplate>, (TextErrorKind, String)>>,
    /// Batch lists, reused: what of which segment goes into the pass at hand.
    rows: Vec<Rows>,
    wanted: Vec<LogitRows>,
    tokens: Vec<u32>,
    /// Kept for their allocation: the attention kernel's view of the batch, and of its rows that want logits.
    views: Vec<attention::Segment<'static>>,
    tails: Vec<attention::Segment<'static>>,
    adapted: AdaptedRows,
    gating: Gating,
    micros: Vec<Option<Arc<MicroLora>>>,
    targets: Arc<Targets>,
    /// Keeps the repacked weights for the next process.
    saver: Saver,
}

impl NativeBackend {
    pub(super) fn assemble(
        compute: Compute,
        model: Model,
        state: ForwardState,
        kv: KvStore,
        info: ModelInfo,
        (file, targets, saver): (Arc<GgufFile>, Targets, Saver),
    ) -> Result<NativeBackend, EngineError> {
        let (n_rows, n_seq_max) = (state.n_rows_max(), state.states.len());
        let mut backend = NativeBackend {
            compute,
            model,
            state,
            kv,
            info,
            file,
            content: OnceLock::new(),
            draft: None,
            tokenizer: OnceLock::new(),
            template: None,
            rows: Vec::with_capacity(n_seq_max),
            wanted: Vec::with_capacity(n_seq_max),
            tokens: Vec::with_capacity(n_rows),
            views: Vec::with_capacity(n_seq_max),
            tails: Vec::with_capacity(n_seq_max),
            adapted: AdaptedRows::new(n_rows, n_seq_max),
            gating: Gating::default(),
            micros: Vec::with_capacity(n_seq_max),
            targets: Arc::new(targets),
            saver,
        };
        if let Some(source) = backend.file.metadata().str("tokenizer.chat_template")? {
            let (bos, eos) = special_texts(&backend.file)?;
            let template = ChatTemplate::new(source, &bos, &eos);
            backend.template = Some(template.map(Arc::new).map_err(|error| (error.kind(), error.to_string())));
        }
        Ok(backend)
    }

    pub(super) fn compute(&self) -> &Compute {
        &self.compute
    }

    /// Returns the model's blocks.
    #[cfg(feature = "train")]
    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    pub(super) fn set_load_ms(&mut self, load_ms: f64) {
        self.info.load_ms = load_ms;
    }

    /// Returns the read bandwidth of this backend's threads over a buffer of `n_bytes`, in GB/s (1e9 bytes a second).
    pub fn read_bandwidth(&self, n_bytes: usize) -> f64 {
        crate::bandwidth::read_gbps(&self.compute.team, n_bytes)
    }

    /// Returns a hash of every byte of the model's files.
    ///
    /// # Errors
    /// They cannot be read any more.
    pub fn content_hash(&self) -> Result<[u8; 32], EngineError> {
        if let Some(persist) = self.persist() {
            return Ok(persist.identity);
        }
        if let Some(hash) = self.content.get() {
            return Ok(*hash);
        }
        // Another map of the files: the pages of the first are let go, and hashing would bring them back.
        let path = self.file.paths().next().map(std::path::Path::to_owned);
        let again = path.map(|path| GgufFile::open(&path)).transpose()?;
        let hash = content::hash(again.as_ref().unwrap_or(&self.file), self.info.n_threads);
        Ok(*self.content.get_or_init(|| hash))
    }

    /// Returns what survives the process, if there is a cache folder.
    pub(crate) fn persist(&self) -> Option<&Persist> {
        self.kv.persist.as_ref()
    }

    /// Reads what is on disk of `tokens`, and returns how many leading tokens need no computing then.
    pub fn restore_prefix(&mut self, tokens: &[u32], scope: &Scope) -> usize {
        self.kv.restore(tokens, scope)
    }

    /// Returns how keys and values are kept.
    pub fn kv_policy(&self) -> KvPolicy {
        self.kv.policy
    }

    /// Returns the policies that sequences may have, that of the others first.
    pub fn kv_policies(&self) -> Vec<KvPolicy> {
        self.kv.policies().collect()
    }

    /// Opens an empty sequence whose keys and values stay as they are written whatever the policy.
    ///
    /// # Errors
    /// As [`LlmBackend::new_sequence`].
    pub(crate) fn new_exact_sequence(&mut self) -> Result<SeqId, EngineError> {
        let seq = self.new_sequence()?;
        self.kv.keep_exact(seq);
        Ok(seq)
    }

    /// Opens an empty sequence with adapters, outside the prefix cache.
    ///
    /// # Errors
    /// As [`LlmBackend::sequence_with_prefix`].
    pub fn new_adapted_sequence(&mut self, adapters: &AdapterSet) -> Result<SeqId, EngineError> {
        self.check_adapters(adapters)?;
        let seq = self.new_sequence()?;
        self.kv.set_scope(seq, Scope { adapters: adapters.clone(), ..Scope::default() });
        Ok(seq)
    }

    /// Returns what reads adapters for this model, on any thread.
    pub fn adapter_loader(&self) -> AdapterLoader {
        AdapterLoader::new(Arc::clone(&self.targets), Arc::clone(&self.file), self.compute.kernels.dequant)
    }

    /// Returns what tells this model's file from others: hyper-parameters, tensors and samples of their bytes.
    pub(crate) fn identity(&self) -> [u8; 32] {
        super::identity::of_file(&self.file, None).identity()
    }

    /// Returns whether all that was read of the model's files so far was there.
    ///
    /// # Errors
    /// A file was cut short while it was in use: what was computed of it is worth nothing.
    pub(super) fn check_files(&self) -> Result<(), EngineError> {
        self.file.check()?;
        match self.saver.is_cut() {
            false => Ok(()),
            true => {
                let line = "the repacked weights in the cache folder were cut short while they were in use; load the model again";
                Err(EngineError::new(ErrorKind::Model, line))
            }
        }
    }

    fn check_adapters(&self, adapters: &AdapterSet) -> Result<(), EngineError> {
        if !adapters.fits(&self.targets) {
            return Err(EngineError::new(ErrorKind::Adapter, "the adapters were loaded for another model"));
        }
        let n_embd = self.model.hparams.n_embd;
        match adapters.gate().map(|gate| gate.shape().n_embd).filter(|&other| other != n_embd) {
            None => Ok(()),
            Some(other) => {
                let line = format!("the gate is for embeddings of {other} values; this model's have {n_embd}");
                Err(EngineError::new(ErrorKind::Adapter, line))
            }
        }
    }

    /// Returns how full the memory for keys and values is, and what to do about it.
    pub fn kv_pressure(&mut self) -> Pressure {
        self.kv.pressure()
    }
}

impl LlmBackend for NativeBackend {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn tokenizer(&self) -> Result<&Arc<Tokenizer>, EngineError> {
        let build = || match Tokenizer::from_metadata(self.file.metadata()) {
            Ok(tokenizer) => Ok(Arc::new(tokenizer)),
            Err(error) => Err((error.kind(), error.to_string())),
        };
        let built = self.tokenizer.get_or_init(build).as_ref();
        self.check_files()?;
        Ok(built.map_err(|(kind, line)| TextError::new(*kind, line.clone()))?)
    }

    fn chat_template(&self) -> Result<Option<&Arc<ChatTemplate>>, TextError> {
        let template = self.template.as_ref().map(Result::as_ref).transpose();
        template.map_err(|(kind, line)| TextError::new(*kind, line.clone()))
    }

    fn new_sequence(&mut self) -> Result<SeqId, EngineError> {
        let seq = self.kv.add()?;
        self.state.states[seq.0].fill(0.0);
        Ok(seq)
    }

    fn sequence_with_prefix(&mut self, tokens: &[u32], scope: &Scope) -> Result<(SeqId, usize), EngineError> {
        self.check_adapters(&scope.adapters)?;
        if let Some(kv) = scope.kv.filter(|kv| self.kv.policies().all(|known| known != *kv)) {
            let known: Vec<String> = self.kv.policies().map(|policy| policy.to_string()).collect();
            let line = format!("keys and values as {kv} were not loaded for; there is {}", known.join(", "));
            return Err(EngineError::new(ErrorKind::Options, line));
        }
        let seq = self.kv.add_known(tokens, scope)?;
        self.state.states[seq.0].fill(0.0);
        Ok((seq, self.sequence_len(seq)))
    }

    fn fork_sequence(&mut self, seq: SeqId, len: usize) -> Result<SeqId, EngineError> {
        let n = self.sequence_len(seq);
        if self.kv.get(seq).is_none() || len > n {
            let line = format!("sequence {} cannot be forked at {len}; it is closed or holds {n} tokens", seq.0);
            return Err(EngineError::new(ErrorKind::Options, line));
        }
        if self.model.state_len > 0 && len < n {
            let line = format!("a sequence with recurrent state forks at its end only ({n} tokens), not at {len}");
            return Err(EngineError::new(ErrorKind::Unsupported, line));
        }
        let child = self.kv.fork(seq, len)?;
        let state = std::mem::take(&mut self.state.states[seq.0]);
        self.state.states[child.0].copy_from_slice(&state);
        self.state.states[seq.0] = state;
        Ok(child)
    }

    fn can_rewind(&self) -> bool {
        // Recurrent state knows no way back; blocks that age at once cannot be written to again.
        let ages_at_once = matches!(self.kv.policy, KvPolicy::Tiered { hot, .. } if hot < REWIND_TOKENS_MAX);
        self.model.state_len == 0 && !ages_at_once
    }

    fn rewind(&mut self, seq: SeqId, len: usize) -> Result<(), EngineError> {
        let n = self.sequence_len(seq);
        let fits = self.kv.get(seq).is_some() && len <= n && n - len <= REWIND_TOKENS_MAX;
        if len < n && !(fits && self.can_rewind()) || len > n {
            let line =
                format!("sequence {} cannot be rewound to {len}; it is closed, or holds {n} tokens that stay", seq.0);
            return Err(EngineError::new(ErrorKind::Unsupported, line));
        }
        if len < n {
            self.kv.truncate(seq, len);
        }
        Ok(())
    }

    fn share_prefix(&mut self, seq: SeqId) {
        if self.check_files().is_ok() {
            self.kv.share(seq);
        }
    }

    fn free_sequence(&mut self, seq: SeqId) {
        if self.check_files().is_err() {
            // Nobody is to find what was computed of zeros.
            self.kv.stay_out(seq);
        }
        self.kv.remove(kernels(&self.compute), seq);
    }

    fn idle(&mut self) -> bool {
        self.saver.start();
        self.kv.idle()
    }

    fn abandon_sequence(&mut self, seq: SeqId) {
        self.kv.stay_out(seq);
        self.free_sequence(seq);
    }

    fn draft(&mut self) -> Option<&mut dyn LlmBackend> {
        self.draft.as_mut().map(|(draft, _)| &mut **draft as &mut dyn LlmBackend)
    }

    fn draft_info(&self) -> Option<DraftInfo> {
        let (draft, n_branches) = self.draft.as_ref()?;
        let pass_cost = draft.info.weight_bytes as f32 / self.info.weight_bytes.max(1) as f32;
        Some(DraftInfo { pass_cost, n_ctx: draft.info.n_ctx, n_branches: *n_branches })
    }

    fn set_micro(&mut self, seq: SeqId, micro: Option<Arc<MicroLora>>) -> Result<(), EngineError> {
        let n_embd = self.model.hparams.n_embd;
        if let Some(other) = micro.as_ref().map(|micro| micro.n_embd()).filter(|&other| other != n_embd) {
            let line = format!("the MicroLoRA is for states of {other} values; this model's have {n_embd}");
            return Err(EngineError::new(ErrorKind::Adapter, line));
        }
        if micro.as_ref().is_some_and(|micro| micro.is_inside()) && !has_last_block(&self.model) {
            let line =
                format!("the MicroLoRA sits inside a block, and architecture {} has none for it", self.info.arch);
            return Err(EngineError::new(ErrorKind::Adapter, line));
        }
        self.kv.set_micro(seq, micro);
        Ok(())
    }

    fn logits_of(&mut self, hidden: &[f32], logits: &mut Vec<f32>) -> Result<(), EngineError> {
        NativeBackend::logits_of(self, hidden, logits);
        self.check_files()
    }

    fn rough_logits_of(&mut self, hidden: &[f32], logits: &mut Vec<f32>) -> Result<(), EngineError> {
        match NativeBackend::rough_logits_of(self, hidden, logits) {
            true => self.check_files(),
            false => {
                Err(EngineError::new(ErrorKind::Unsupported, "the model's head has no screen, so no rough logits"))
            }
        }
    }

    fn prepare_screen(&mut self, direction: &[f32]) {
        self.state.screen.tell(direction);
        if self.state.screen.is_wanted() {
            self.make_screen();
        }
    }

    fn screens(&self, n_best: usize) -> bool {
        self.state.screen.saves(n_best)
    }

    fn sequence_len(&self, seq: SeqId) -> usize {
        self.kv.get(seq).map_or(0, |open| open.sequence.len())
    }

    fn reserve(&mut self, seq: SeqId, n: usize) -> Result<(), EngineError> {
        if self.kv.get(seq).is_none() {
            return Err(EngineError::new(ErrorKind::Options, format!("sequence {} is not open", seq.0)));
        }
        Ok(self.kv.reserve(kernels(&self.compute), std::iter::once((seq, n)))?)
    }

    fn known_prefix(&self, tokens: &[u32], scope: &Scope) -> Option<KnownPrefix> {
        self.kv.known_prefix(tokens, scope)
    }

    fn kv_room(&self) -> KvRoom {
        self.kv.room()
    }

    fn kv_bytes_for(&self, n_tokens: usize) -> usize {
        self.kv.bytes_for(n_tokens)
    }

    fn kv_reusable_bytes(&self) -> usize {
        self.kv.reusable_bytes()
    }

    fn kv_bytes_aged(&self, policy: KvPolicy, n_tokens: usize) -> usize {
        self.kv.bytes_aged(policy, n_tokens)
    }

    fn kv_usage(&self) -> Usage {
        self.kv.usage()
    }

    fn kv_bytes_by_format(&self) -> Vec<(&'static str, usize)> {
        self.kv.pool.held_bytes_by_format().map(|(format, bytes)| (format.name(), bytes)).collect()
    }

    fn set_tenant_quota(&mut self, tenant: u64, bytes: Option<usize>) {
        self.kv.set_quota(tenant, bytes);
    }

    fn sequence_bytes(&self, seq: SeqId) -> usize {
        self.kv.get(seq).map_or(0, |open| self.kv.pool.sequence_bytes(&open.sequence))
    }

    fn cache_stats(&self) -> Option<CacheStats> {
        self.kv.cache_stats()
    }

    fn clear_cache(&mut self) {
        self.kv.clear_cache();
    }

    fn share_with(&mut self, adapters: Weak<AdapterManager>) -> Option<(PageLender, usize)> {
        Some(self.kv.share_with(adapters))
    }

    fn lend(&mut self, n_pages: usize, keep_bytes: usize) -> bool {
        self.kv.lend(n_pages, keep_bytes)
    }

    fn forward_states(&mut self, segments: &[Segment<'_>]) -> Result<States<'_>, EngineError> {
        self.check(segments)?;
        if self.model.output.head.is_none() {
            let line = format!("architecture {} makes embeddings, not tokens", self.info.arch);
            return Err(EngineError::new(ErrorKind::Unsupported, line));
        }
        // What aged in the last step is due now: nobody waits for logits that are there already.
        let n_rows = segments.iter().map(|segment| segment.tokens.len()).sum::<usize>().min(self.state.n_rows_max());
        self.kv.age(kernels(&self.compute), segments.iter().map(|segment| segment.seq), n_rows);
        let wanted = segments.iter().map(|segment| (segment.seq, segment.tokens.len()));
        self.kv.reserve(kernels(&self.compute), wanted)?;
        let (mut next, mut known) = ((0, 0), RowCounts::default());
        // Of all rows with logits, in whichever of the passes: nobody has to know which those are.
        let wants_rough = segments.iter().any(|segment| matches!(segment.logits, LogitRows::Rough { .. }));
        self.state.has_rough = wants_rough && self.state.screen.get().is_some();
        while next.0 < segments.len() {
            self.fill_batch(segments, &mut next);
            let counts = self.run_batch(known, false);
            known =
                RowCounts { n_logits: known.n_logits + counts.n_logits, n_states: known.n_states + counts.n_states };
            if self.state.screen.is_due() {
                self.make_screen();
            }
            if next.0 < segments.len() {
                let seqs = self.rows.iter().map(|rows| SeqId(rows.state_idx));
                self.kv.age(kernels(&self.compute), seqs, self.tokens.len());
            }
        }
        self.check_files()?;
        Ok(States {
            logits: &mut self.state.logits[..known.n_logits * self.model.n_vocab],
            rough: match self.state.has_rough {
                true => &self.state.rough[..known.n_logits * self.model.n_vocab],
                false => &[],
            },
            rows: StateRows {
                hidden: &self.state.hidden[..known.n_states * self.model.hparams.n_embd],
                stream: self.state.stream.get(..known.n_states * self.model.hparams.n_embd).unwrap_or_default(),
            },
        })
    }

    fn embed(&mut self, tokens: &[u32], readout: Readout, adapters: &AdapterSet) -> Result<Vec<f32>, EngineError> {
        match readout {
            Readout::Embedding(pooling) => {
                let vector = self.pooled(tokens, pooling.unwrap_or(self.model.pooling), adapters)?;
                Ok(embedding::unit(vector))
            }
            Readout::States { n_last } => {
                let seq = self.new_adapted_sequence(adapters)?;
                let segment = Segment { seq, tokens, logits: LogitRows::TailOfStates(0) };
                let states = self.forward_states(&[segment]).map(|states| states.rows.hidden.to_vec());
                self.free_sequence(seq);
                let (mut states, n_embd) = (states?, self.model.hparams.n_embd);
                states.drain(..states.len() - n_last.min(tokens.len()) * n_embd);
                Ok(states)
            }
            Readout::Logprobs { n_top } => self.logprobs_of_given(tokens, n_top, adapters),
            Readout::Score { .. } if self.model.ranker.is_none() => {
                let line = format!("model '{}' scores no pairs of texts; use a cross-encoder", self.info.name);
                Err(EngineError::new(ErrorKind::Unsupported, line))
            }
            Readout::Score { n_first } => {
                self.state.second_from = n_first;
                let vector = self.pooled(tokens, Pooling::Cls, adapters);
                self.state.second_from = usize::MAX;
                let vector = vector?;
                Ok(self.model.ranker.iter().map(|ranker| ranker.score(&vector)).collect())
            }
        }
    }

    fn generate(&mut self, request: &GenerateRequest) -> Result<Generation<'_>, EngineError> {
        Generation::start(self, request)
    }
}

/// Returns what quantises, and on which threads.
fn kernels(compute: &Compute) -> Kernels<'_> {
    (compute.kernels.attention, &compute.team)
}

/// The line for a prompt that does not fit.
pub(crate) fn context_line(n_tokens: usize, n_ctx: usize, n_ctx_train: usize) -> String {
    let advice = match n_ctx < n_ctx_train {
        true => format!("open it with a larger context (the model allows {n_ctx_train}) or shorten the prompt"),
        false => "shorten the prompt".to_owned(),
    };
    format!("{n_tokens} tokens do not fit the context of {n_ctx}; {advice}")
}

/// Returns the texts of the BOS and EOS tokens for the chat template; empty where the file has none.
fn special_texts(file: &GgufFile) -> Result<(String, String), EngineError> {
    let metadata = file.metadata();
    let tokens = metadata.strings("tokenizer.ggml.tokens")?;
    let text = |key: &str| -> Result<String, EngineError> {
        let id = metadata.u32(key)?;
        let text = id.and_then(|id| tokens.as_ref().and_then(|tokens| tokens.get(id as usize)));
        Ok(text.map(str::to_owned).unwrap_or_default())
    };
    Ok((text("tokenizer.ggml.bos_token_id")?, text("tokenizer.ggml.eos_token_id")?))
}

#[cfg(test)]
mod tests;
