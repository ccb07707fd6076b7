//! The engine: a backend with prompts, evaluation and generation in one place.

#[cfg(feature = "native")]
use std::path::Path;
use std::sync::{Arc, OnceLock};

use ruvllm_backend::{CacheSalt, LogitRows, ModelInfo, Segment, SeqId, States, identity};
#[cfg(feature = "native")]
use ruvllm_gguf::ByteSource;
use ruvllm_gguf::GgufFile;
use ruvllm_kernels::{Compute, Isa};
use ruvllm_kvcache::disk::DiskStats;
use ruvllm_kvcache::{CacheStats, KvPolicy, MemoryBudget, Pressure, Usage};
use ruvllm_lora::loader::{AdapterLoader, HeadWeights};
use ruvllm_lora::manager::AdapterManager;
use ruvllm_lora::micro::{FinalBlock, MicroLora};
use ruvllm_lora::{AdapterSet, FactorFormat};
#[cfg(feature = "native")]
use ruvllm_native::{LoadOptions, LoadProgress, NativeBackend};
use ruvllm_text::template::ChatTemplate;
use ruvllm_text::tokenizer::Tokenizer;
use ruvllm_text::{self as text, ModelText};
use serde_json::Value;

use crate::generate::Generation;
use crate::request::GenerateRequest;
#[cfg(feature = "native")]
use crate::runner::Vocabulary;
use crate::runner::{ModelRunner, Readout};
use crate::scheduler::{Scheduler, SchedulerOptions};
use crate::{EngineError, ErrorKind, GrammarCompiler};

/// A loaded model and everything needed to talk to it.
///
/// ```no_run
/// use ruvllm_engine::{Engine, GenerateRequest, LoadOptions};
///
/// let mut engine = Engine::load("model.gguf".as_ref(), &LoadOptions::default(), &mut |_| {})?;
/// let prompt = engine.encode_prompt("Why is the sky blue?", false)?;
/// let summary = engine
///     .generate(&GenerateRequest { prompt, max_tokens: Some(64), ..Default::default() })?
///     .for_each_token(|event| print!("{}", event.text))?;
/// println!("\n{:.1} tokens a second", summary.timings.decode_tps);
/// # Ok::<(), ruvllm_engine::EngineError>(())
/// ```
pub struct Engine {
    pub(crate) runner: ModelRunner,
    /// Built when first asked for.
    grammars: OnceLock<Arc<GrammarCompiler>>,
    /// The hash of the file's bytes, made when first asked for.
    content: OnceLock<[u8; 32]>,
}

impl Engine {
    /// Loads a GGUF file with the native backend, and the draft model of the options.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or holds what is not supported; an option is out of range.
    #[cfg(feature = "native")]
    pub fn load(
        path: &Path,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Engine, EngineError> {
        let native = NativeBackend::load(path, options, progress)?;
        let draft = native.load_draft(options, progress)?.zip(options.draft.as_ref());
        let vocabulary = Vocabulary::of_gguf(native.file())?;
        let mut runner = ModelRunner::new(Box::new(native), vocabulary);
        if let Some((draft, about)) = draft {
            let vocabulary = Vocabulary::of_gguf(draft.file())?;
            runner = runner.with_draft(ModelRunner::new(Box::new(draft), vocabulary), about.n_branches)?;
        }
        Ok(Engine::new(runner))
    }

    /// Loads a GGUF file that is read piece by piece with the native backend, `name` standing for its path
    /// ([`NativeBackend::load_source`]). A draft model of the options is not loaded.
    ///
    /// # Errors
    /// As [`NativeBackend::load_source`].
    #[cfg(feature = "native")]
    pub fn load_source(
        name: &str,
        source: Arc<dyn ByteSource>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Engine, EngineError> {
        let native = NativeBackend::load_source(name, source, options, progress)?;
        let vocabulary = Vocabulary::of_gguf(native.file())?;
        Ok(Engine::new(ModelRunner::new(Box::new(native), vocabulary)))
    }

    /// Makes an engine over any backend's model.
    pub fn new(runner: ModelRunner) -> Engine {
        Engine { runner, grammars: OnceLock::new(), content: OnceLock::new() }
    }

    /// Returns the model's runner.
    pub fn runner(&self) -> &ModelRunner {
        &self.runner
    }

    /// Returns the model's runner, for callers who drive sequences themselves.
    pub fn runner_mut(&mut self) -> &mut ModelRunner {
        &mut self.runner
    }

    /// Returns what is known about the model.
    pub fn info(&self) -> &ModelInfo {
        self.runner.info()
    }

    /// Returns a hash of every byte of the model's files: what tells the model from all others. The first time the files
    /// are read again, a second for some gigabytes.
    ///
    /// # Errors
    /// They cannot be read any more; [`ErrorKind::Unsupported`] of a model that is read piece by piece.
    pub fn content_hash(&self) -> Result<[u8; 32], EngineError> {
        if let Some(folder) = self.runner.model().paged_kv().and_then(|kv| kv.folder()) {
            return Ok(*folder.identity);
        }
        if let Some(hash) = self.content.get() {
            return Ok(*hash);
        }
        // Another map of the files: the pages of the first are let go, and hashing would bring them back.
        let file = self.runner.vocabulary().file();
        if !file.has_data() {
            let line = "a model that is read piece by piece has no hash of all its bytes; load it by its path";
            return Err(EngineError::new(ErrorKind::Unsupported, line));
        }
        let again = file.paths().next().map(GgufFile::open).transpose()?;
        let hash = identity::content_hash(again.as_ref().unwrap_or(file), self.info().device.n_threads);
        Ok(*self.content.get_or_init(|| hash))
    }

    /// Returns the tokenizer, building it the first time.
    ///
    /// # Errors
    /// The file has none, or one of a kind that is not supported.
    pub fn tokenizer(&self) -> Result<&Tokenizer, EngineError> {
        self.runner.tokenizer().map(|tokenizer| &**tokenizer)
    }

    /// Returns the file's chat template, if it has one.
    ///
    /// # Errors
    /// The template is there and cannot be compiled.
    pub fn chat_template(&self) -> Result<Option<&ChatTemplate>, EngineError> {
        Ok(self.runner.chat_template()?.map(|template| &**template))
    }

    /// Takes another chat template than the file's.
    ///
    /// # Errors
    /// It cannot be compiled.
    pub fn set_chat_template(&mut self, source: &str) -> Result<(), EngineError> {
        self.runner.vocabulary_mut().set_template(source)
    }

    /// Returns the tokenizer and the chat template, to use on other threads while the engine computes.
    ///
    /// # Errors
    /// As [`Engine::tokenizer`].
    pub fn text(&self) -> Result<ModelText, EngineError> {
        let (backend, name) = (&self.runner, &self.info().name);
        Ok(ModelText::new(name, backend.tokenizer()?, backend.chat_template()))
    }

    /// Returns what compiles grammars for this model, on any thread; it is built the first time, which looks at the whole
    /// vocabulary.
    ///
    /// # Errors
    /// No tokenizer, or no token that ends an answer.
    pub fn grammar_compiler(&self) -> Result<&Arc<GrammarCompiler>, EngineError> {
        if self.grammars.get().is_none() {
            let n_threads = self.info().device.n_threads;
            let compiler = GrammarCompiler::new(self.runner.tokenizer()?, self.info().n_vocab);
            let compiler = compiler.map(|compiler| compiler.with_masks_ahead(n_threads))?;
            // Another thread may have been as fast.
            let _ = self.grammars.set(Arc::new(compiler));
        }
        Ok(self.grammars.get().expect("it was set just now"))
    }

    /// Returns the tokens of a prompt: as it is with `raw`, or as one user message through the chat template (a model
    /// without one reads it as it is).
    ///
    /// # Errors
    /// No tokenizer, or a template that refuses the message.
    pub fn encode_prompt(&self, text: &str, raw: bool) -> Result<Vec<u32>, EngineError> {
        Ok(self.text()?.encode_prompt(text, raw)?)
    }

    /// Returns the tokens of a conversation, rendered by the chat template.
    ///
    /// # Errors
    /// No template, no tokenizer, or a template that refuses the messages.
    pub fn encode_chat(&self, messages: &[Value], add_generation_prompt: bool) -> Result<Vec<u32>, EngineError> {
        Ok(self.text()?.encode_chat(&text::chat(messages, add_generation_prompt))?)
    }

    /// Starts a request and returns the stream of its tokens.
    ///
    /// # Errors
    /// The prompt is empty, too long or holds unknown ids; an option is out of range.
    pub fn generate(&mut self, request: &GenerateRequest) -> Result<Generation<'_>, EngineError> {
        Generation::start(&mut self.runner, request)
    }

    /// Makes a scheduler that runs many requests at once, up to [`ModelInfo::n_seq_max`] of them.
    ///
    /// # Errors
    /// An option is out of range.
    pub fn scheduler(&mut self, options: &SchedulerOptions) -> Result<Scheduler<'_>, EngineError> {
        Scheduler::new(&mut self.runner, options)
    }

    /// Opens an empty sequence.
    ///
    /// # Errors
    /// All sequences of [`ModelInfo::n_seq_max`] are open.
    pub fn new_sequence(&mut self) -> Result<SeqId, EngineError> {
        self.runner.open_empty()
    }

    /// Opens an empty sequence with adapters.
    ///
    /// # Errors
    /// As [`Engine::new_sequence`]; [`ErrorKind::Adapter`] if they were loaded for another model.
    pub fn new_adapted_sequence(&mut self, adapters: &AdapterSet) -> Result<SeqId, EngineError> {
        Ok(self.runner.open(None, &adapters.into())?.0)
    }

    /// Returns what reads adapters for this model; a clone may do so on another thread while the engine computes.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`]: the backend applies none.
    pub fn adapter_loader(&self) -> Result<AdapterLoader, EngineError> {
        self.runner.model().adapters().ok_or_else(|| {
            let line = format!("backend {} applies no adapters; use native", self.info().device.backend);
            EngineError::new(ErrorKind::Unsupported, line)
        })
    }

    /// Returns the rows of the output head, from which a [`MicroLora`] learns.
    ///
    /// # Errors
    /// As [`HiddenStates::head_weights`](ruvllm_backend::HiddenStates::head_weights).
    pub fn head_weights(&self) -> Result<HeadWeights, EngineError> {
        Ok(self.runner.hidden_states()?.head_weights()?)
    }

    /// Returns the model's last block, for a MicroLoRA to sit inside; none where it has a form that nothing can sit inside of.
    ///
    /// # Errors
    /// As [`HiddenStates::last_block`](ruvllm_backend::HiddenStates::last_block).
    pub fn last_block(&self) -> Result<Option<Arc<dyn FinalBlock>>, EngineError> {
        Ok(self.runner.hidden_states()?.last_block()?)
    }

    /// Returns the instruction set and the threads that it computes with, for what learns between its passes.
    pub fn compute(&self) -> Compute {
        match self.runner.model().hidden_states().map(|states| states.compute()) {
            Some((isa, threads)) => Compute { isa, threads },
            None => Isa::best().into(),
        }
    }

    /// Returns what tells this model's file from others, by hyper-parameters, tensors and samples of their bytes: what is
    /// learned belongs to it.
    ///
    /// # Errors
    /// The file is read piece by piece, and cannot be read any more.
    pub fn identity(&self) -> Result<[u8; 32], EngineError> {
        Ok(identity::of_file(self.runner.vocabulary().file(), None)?.identity())
    }

    /// Multiplies final hidden states with the output head alone: `[n, n_embd]` gives `[n, n_vocab]`, bit for bit as a pass
    /// would have that came to them.
    ///
    /// # Errors
    /// As [`HiddenStates::logits_of`](ruvllm_backend::HiddenStates::logits_of); the backend has no hidden states.
    ///
    /// # Panics
    /// If the states are no whole number of rows.
    pub fn logits_of(&mut self, hidden: &[f32], logits: &mut Vec<f32>) -> Result<(), EngineError> {
        assert!(hidden.len().is_multiple_of(self.info().n_embd), "{} values are no whole rows", hidden.len());
        Ok(self.runner.hidden_states_mut()?.logits_of(hidden, logits)?)
    }

    /// Makes the head's shortlist for states that point in a `direction`, if the backend has one.
    pub fn prepare_shortlist(&mut self, direction: &[f32]) {
        if let Ok(states) = self.runner.hidden_states_mut() {
            states.prepare_shortlist(direction);
        }
    }

    /// Does the same with the approximate head alone, as [`States::approx`] has it; returns false if there is none.
    ///
    /// # Panics
    /// If the states are no whole number of rows.
    pub fn approx_logits_of(&mut self, hidden: &[f32], logits: &mut Vec<f32>) -> bool {
        assert!(hidden.len().is_multiple_of(self.info().n_embd), "{} values are no whole rows", hidden.len());
        let states = self.runner.hidden_states_mut();
        states.is_ok_and(|states| states.approx_logits_of(hidden, logits).is_ok())
    }

    /// Makes a manager of adapters for this model, whose loaded ones take up to `bytes_max` bytes, in whole pages of
    /// 2 MiB.
    ///
    /// # Errors
    /// As [`Engine::adapter_loader`].
    pub fn adapter_manager(&self, format: FactorFormat, bytes_max: usize) -> Result<AdapterManager, EngineError> {
        Ok(self.adapter_loader()?.manager(format, MemoryBudget::new(bytes_max, &[])))
    }

    /// Opens a sequence that starts with what is cached of `tokens`, at most all but the last, and returns how many
    /// tokens those are: the rest is to be computed with [`Engine::forward`]. When it is freed, what it holds is cached.
    ///
    /// # Errors
    /// As [`Engine::new_sequence`].
    pub fn sequence_with_prefix(
        &mut self,
        tokens: &[u32],
        salt: impl Into<CacheSalt>,
    ) -> Result<(SeqId, usize), EngineError> {
        self.runner.open(Some(tokens), &salt.into())
    }

    /// Opens a sequence that starts with the first `len` tokens of another one, without computing or copying them.
    ///
    /// # Errors
    /// As [`ModelRunner::fork`].
    pub fn fork_sequence(&mut self, seq: SeqId, len: usize) -> Result<SeqId, EngineError> {
        self.runner.fork(seq, len)
    }

    /// Lets others that start alike use what a sequence of [`Engine::sequence_with_prefix`] holds while it goes on.
    pub fn share_prefix(&mut self, seq: SeqId) {
        self.runner.share(seq);
    }

    /// Returns what the prefix cache did and holds; `None` if the engine has none: by its options, or because the model
    /// has recurrent state or is an encoder.
    pub fn cache_stats(&self) -> Option<CacheStats> {
        self.runner.cache_stats()
    }

    /// Returns what the cache folder holds for this model and what happened in it; `None` without one.
    pub fn disk_stats(&self) -> Option<DiskStats> {
        self.runner.model().paged_kv()?.folder().map(|folder| folder.store.stats())
    }

    /// Reads what the cache folder holds of `tokens` into memory, and returns how many leading tokens need no computing
    /// then. Requests do so by themselves; this is for those who know what will be asked.
    pub fn restore_prefix(&mut self, tokens: &[u32], salt: impl Into<CacheSalt>) -> usize {
        let kv = self.runner.model_mut().paged_kv_mut();
        kv.map_or(0, |kv| kv.restore_prefix(tokens, &salt.into()))
    }

    /// Waits until all that was handed to the cache folder is written, and durable unless
    /// the load options say it never to be so.
    ///
    /// # Errors
    /// [`ErrorKind::Cache`]: a write failed since the last call.
    pub fn flush_cache(&self) -> Result<(), EngineError> {
        let folder = self.runner.model().paged_kv().and_then(|kv| kv.folder());
        folder.map_or(Ok(()), |folder| Ok(folder.store.flush()?))
    }

    /// Forgets all cached prefixes in memory; what is on disk stays.
    pub fn clear_cache(&mut self) {
        self.runner.clear_cache();
    }

    /// Returns the owners of the KV cache's blocks: free + cached only + in use = total.
    pub fn kv_usage(&self) -> Usage {
        self.runner.kv_usage()
    }

    /// Returns the policy of the KV cache.
    pub fn kv_policy(&self) -> KvPolicy {
        self.kv_policies().first().copied().unwrap_or(KvPolicy::F16)
    }

    /// Returns the policies of the KV cache that requests may have, the default first.
    pub fn kv_policies(&self) -> Vec<KvPolicy> {
        self.runner.model().paged_kv().map(|kv| kv.policies()).unwrap_or_default()
    }

    /// Returns the bytes of a sequence's KV cache.
    pub fn sequence_bytes(&self, seq: SeqId) -> usize {
        self.runner.sequence_bytes(seq)
    }

    /// Opens an empty sequence whose KV cache stays as it is written whatever the policy.
    pub(crate) fn new_exact_sequence(&mut self) -> Result<SeqId, EngineError> {
        Ok(self.runner.open(None, &CacheSalt { kv: Some(KvPolicy::F16), ..CacheSalt::default() })?.0)
    }

    /// Returns how full the memory of the KV cache is, and what to do about it. Cached prefixes are evicted by
    /// themselves; what remains for the caller is to take no new requests.
    pub fn kv_pressure(&mut self) -> Option<Pressure> {
        Some(self.runner.model_mut().paged_kv_mut()?.pressure())
    }

    /// Limits the bytes that the open sequences of a tenant hold together; `None` lifts the limit.
    pub fn set_tenant_quota(&mut self, tenant: u64, bytes: Option<usize>) {
        self.runner.set_tenant_quota(tenant, bytes);
    }

    /// Closes a sequence and gives its blocks back, or to the prefix cache.
    pub fn free_sequence(&mut self, seq: SeqId) {
        self.runner.close(seq);
    }

    /// Returns how many tokens a sequence holds.
    pub fn sequence_len(&self, seq: SeqId) -> usize {
        self.runner.n_tokens(seq)
    }

    /// Computes new tokens and returns the wanted logits: `[n_wanted_rows, n_vocab]`, in order of the segments.
    ///
    /// # Errors
    /// A token id outside the vocabulary, a context or cache that is full; then nothing was computed.
    pub fn forward(&mut self, segments: &[Segment<'_>]) -> Result<&[f32], EngineError> {
        self.runner.forward(segments).map(|logits| &*logits)
    }

    /// As [`Engine::forward`], and returns the final hidden states of the same rows as well.
    ///
    /// # Errors
    /// As [`Engine::forward`].
    pub fn forward_states(&mut self, segments: &[Segment<'_>]) -> Result<States<'_>, EngineError> {
        self.runner.forward_states(segments)
    }

    /// Changes the final hidden states of a sequence from the next pass on.
    ///
    /// # Errors
    /// As [`ModelRunner::set_micro`].
    pub fn set_micro(&mut self, seq: SeqId, micro: Option<Arc<MicroLora>>) -> Result<(), EngineError> {
        self.runner.set_micro(seq, micro)
    }

    /// Computes `tokens` as they are, `chunk` at a time, and gives each chunk's logits `[n, n_vocab]` to `sink`.
    ///
    /// # Errors
    /// As [`Engine::forward`]; the sink's own.
    pub fn logits(
        &mut self,
        tokens: &[u32],
        chunk: usize,
        sink: &mut dyn FnMut(&[f32]) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        if chunk == 0 {
            return Err(EngineError::new(ErrorKind::Options, "a chunk of 0 tokens; choose at least 1"));
        }
        if tokens.is_empty() {
            return Err(EngineError::new(ErrorKind::Prompt, "no tokens to compute; the list is empty"));
        }
        let seq = self.runner.open_empty()?;
        let mut result = Ok(());
        for tokens in tokens.chunks(chunk) {
            let logits = self.runner.forward(&[Segment { seq, tokens, logits: LogitRows::All }]);
            result = logits.and_then(|logits| sink(logits));
            if result.is_err() {
                break;
            }
        }
        self.runner.close(seq);
        result
    }

    /// Returns the pooled embedding of a token sequence, of unit length: `[n_embd]`. Encoders make them, and models that
    /// write text as well.
    ///
    /// # Errors
    /// The tokens do not fit the model.
    pub fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, EngineError> {
        self.read_out(tokens, Readout::Embedding(None))
    }

    /// Returns what is read from the vectors of a text's tokens: an embedding pooled in this way, or a score.
    ///
    /// # Errors
    /// The tokens do not fit the model, or it cannot give this.
    pub fn read_out(&mut self, tokens: &[u32], readout: Readout) -> Result<Vec<f32>, EngineError> {
        self.runner.read_out(tokens, readout, &AdapterSet::default())
    }

    /// Reads a text as [`Engine::read_out`] does, with adapters.
    ///
    /// # Errors
    /// As [`Engine::read_out`]; [`ErrorKind::Adapter`] if they were loaded for another model.
    pub fn read_out_adapted(
        &mut self,
        tokens: &[u32],
        readout: Readout,
        adapters: &AdapterSet,
    ) -> Result<Vec<f32>, EngineError> {
        self.runner.read_out(tokens, readout, adapters)
    }

    /// Returns the read bandwidth of the engine's threads over a buffer of `n_bytes`, in GB/s (1e9 bytes a second).
    pub fn read_bandwidth(&self, n_bytes: usize) -> f64 {
        crate::bandwidth::read_gbps(&self.compute().threads, n_bytes)
    }
}
