//! The contract over a model on the device: sequences, batches, and what is read back.

mod adapted;
mod embeddings;
mod first;
mod hidden;
mod largest;
mod paged;
mod profile;

use std::sync::{Arc, OnceLock};

use ruvllm_backend::pooling::PairHead;
use ruvllm_backend::{
    BackendError, BackendErrorKind, CacheSalt, Embeddings, HiddenStates, LogitRows, ModelInfo, ModelSpec, PagedKv,
    Segment, SeqId, StateRows, States, TokenModel,
};
use ruvllm_cpu::ThreadPool;
use ruvllm_gguf::GgufFile;
use ruvllm_gpu::{Gpu, GpuStats};
use ruvllm_kernels::attention::BLOCK_TOKENS;
use ruvllm_kernels::rope::Rope;
use ruvllm_kernels::{Isa, dequant};
use ruvllm_lora::Targets;
use ruvllm_lora::gate::GateScratch;
use ruvllm_lora::loader::AdapterLoader;
use ruvllm_shaders::RowRecord;

use crate::device_model::{DeviceModel, PassRows, Readout, push_angles};
use crate::kv::KvStore;

pub(crate) use first::ComputedFirst;
pub use profile::KernelTime;

/// A model on a GPU.
pub struct WgpuBackend {
    file: Arc<GgufFile>,
    spec: ModelSpec,
    pub(crate) model: DeviceModel,
    ropes: Vec<Rope>,
    /// Tables of learned positions and of the two segments' vectors, on the host: a pass needs few of their rows.
    tables: HostTables,
    /// Set for cross-encoders: what makes a score of the first token's vector.
    ranker: Option<PairHead>,
    kv: KvStore,
    info: ModelInfo,
    pass: PassRows,
    /// Cosines and sines of a position, on their way into a pass.
    turned: [Vec<f32>; 2],
    logits: Vec<f32>,
    /// Final hidden states of the rows that are wanted; none where the largest logits alone are read back.
    hidden: Vec<f32>,
    /// Threads for work between passes, made when they are asked for.
    threads: OnceLock<Arc<ThreadPool>>,
    /// Linear layers that adapters can change.
    targets: Arc<Targets>,
    gating: GateScratch,
    /// Backend of the layers before those of the device, if these are not all.
    first: Option<ComputedFirst>,
}

/// Rows that are added to the embeddings of tokens.
#[derive(Default)]
pub(crate) struct HostTables {
    /// `[n_positions, n_embd]`
    pub positions: Vec<f32>,
    /// `[n_types, n_embd]`
    pub types: Vec<f32>,
}

/// Loaded parts that make a backend.
pub(crate) struct BackendParts {
    pub file: Arc<GgufFile>,
    pub spec: ModelSpec,
    pub model: DeviceModel,
    pub ropes: Vec<Rope>,
    pub tables: HostTables,
    pub ranker: Option<PairHead>,
    pub kv: KvStore,
    pub info: ModelInfo,
    pub first: Option<ComputedFirst>,
}

/// Part of a call that goes into one pass.
#[derive(Clone, Copy, Debug)]
struct Piece<'a> {
    seq: SeqId,
    tokens: &'a [u32],
    wanted: LogitRows,
}

impl WgpuBackend {
    pub(crate) fn assemble(parts: BackendParts) -> WgpuBackend {
        let BackendParts { file, spec, model, ropes, tables, ranker, kv, mut info, first } = parts;
        info.n_rewind_max = if spec.is_encoder || model.has_state() { 0 } else { info.n_ctx };
        if let Some(first) = &first {
            info.n_rewind_max = info.n_rewind_max.min(first.n_rewind_max());
            info.device.name = format!("{} behind {}", info.device.name, first.device_name());
        }
        let targets = Arc::new(Targets::of_model(&spec));
        let pass = PassRows { angles: vec![Vec::new(); ropes.len()], ..PassRows::default() };
        WgpuBackend {
            file,
            spec,
            model,
            ropes,
            tables,
            ranker,
            kv,
            info,
            pass,
            turned: Default::default(),
            logits: Vec::new(),
            hidden: Vec::new(),
            threads: OnceLock::new(),
            targets,
            gating: GateScratch::default(),
            first,
        }
    }

    /// Returns the model's file.
    pub fn file(&self) -> &Arc<GgufFile> {
        &self.file
    }

    /// Returns the device.
    pub fn gpu(&self) -> &Gpu {
        &self.model.gpu
    }

    /// Returns the number of layers on the device: the last ones of the model.
    pub fn n_gpu_layers(&self) -> usize {
        self.model.n_layers()
    }

    /// Returns what was made and done on the device since it was opened.
    pub fn stats(&self) -> GpuStats {
        self.model.gpu.stats()
    }

    /// Checks that segments can be computed, before anything is.
    fn check(&self, segments: &[Segment<'_>]) -> Result<(), BackendError> {
        for (i, segment) in segments.iter().enumerate() {
            let refuse = |kind, line: String| Err(BackendError::new(kind, line));
            if segments[..i].iter().any(|other| other.seq == segment.seq) {
                return refuse(BackendErrorKind::Options, format!("sequence {} stands twice", segment.seq.0));
            }
            let open = self.kv.get(segment.seq).ok_or_else(|| BackendError::not_open(segment.seq))?;
            if segment.tokens.is_empty() {
                return refuse(BackendErrorKind::Prompt, "a segment has no tokens".to_owned());
            }
            if let Some(token) = segment.tokens.iter().find(|&&token| token as usize >= self.info.n_vocab) {
                let line = format!("token {token} is outside the vocabulary of {}", self.info.n_vocab);
                return refuse(BackendErrorKind::Prompt, line);
            }
            let n_tokens = open.tokens.len() + segment.tokens.len();
            if n_tokens > self.info.n_ctx {
                return refuse(BackendErrorKind::ContextLength, self.info.context_line(n_tokens));
            }
        }
        Ok(())
    }

    /// Reserves room, and has the device copy the blocks that are to be written and shared.
    fn make_room(&mut self, wanted: &[(SeqId, usize)]) -> Result<(), BackendError> {
        let reserved = self.kv.reserve(wanted);
        // Blocks that were replaced are whole again before anybody can take the old ones, also where others got no room.
        let copies = self.kv.take_copies();
        self.model.copy_blocks(&copies)?;
        Ok(reserved?)
    }

    /// Puts pieces of sequences, for which room is reserved and whose adapters are on the device, into the pass at hand.
    /// `second_from`: the token of each from which on a second text begins.
    fn fill_pass(&mut self, pieces: &[Piece<'_>], second_from: usize) -> Result<(), BackendError> {
        self.fill_members(pieces)?;
        let pass = &mut self.pass;
        pass.rows.clear();
        pass.tables.clear();
        pass.positions.clear();
        pass.wanted.clear();
        pass.angles.iter_mut().for_each(Vec::clear);
        for Piece { seq, tokens, wanted } in pieces {
            let open = self.kv.get(*seq).expect("checked to be open");
            let (first, n, table) = (open.sequence.len(), tokens.len(), pass.tables.len());
            let (first_row, n_blocks) = (pass.rows.len(), (first + n).div_ceil(BLOCK_TOKENS));
            pass.tables.extend(open.sequence.blocks().take(n_blocks).map(|block| block.index() as u32));
            for (i, token) in tokens.iter().enumerate() {
                let position = first + i;
                let block = pass.tables[table + position / BLOCK_TOKENS] as usize;
                pass.rows.push(RowRecord {
                    token: *token,
                    slot: (block * BLOCK_TOKENS + position % BLOCK_TOKENS) as u32,
                    table: table as u32,
                    n_keys: (if self.spec.is_encoder { first + n } else { position + 1 }) as u32,
                    source: 0,
                    first: first_row as u32,
                    state: seq.0 as u32,
                });
                for (rope, angles) in self.ropes.iter().zip(&mut pass.angles) {
                    push_angles(rope, position, &mut self.turned, angles);
                }
                self.tables.push(position, position >= second_from, self.spec.n_embd, &mut pass.positions);
            }
            let n_wanted = wanted.n_states(n);
            let end = pass.rows.len();
            pass.wanted.extend((end - n_wanted..end).map(|row| row as u32));
        }
        self.run_first(pieces)
    }

    /// Computes segments in passes of as many rows as there are buffers for; those whose adapters are on the device together,
    /// in order.
    fn compute(&mut self, segments: &[Segment<'_>]) -> Result<(), BackendError> {
        let readout = self.readout(segments);
        let mut rest = segments;
        while !rest.is_empty() {
            let n = self.ready_adapters(rest)?;
            self.compute_some(&rest[..n], readout)?;
            rest = &rest[n..];
        }
        Ok(())
    }

    fn compute_some(&mut self, segments: &[Segment<'_>], readout: Readout) -> Result<(), BackendError> {
        let mut next = (0, 0);
        while next.0 < segments.len() {
            let (mut pieces, mut n_left) = (Vec::with_capacity(segments.len()), self.model.rows.n_rows);
            while let Some(segment) = segments.get(next.0).filter(|_| n_left > 0) {
                let n = n_left.min(segment.tokens.len() - next.1);
                let end = next.1 + n;
                let wanted = segment.logits.before(segment.tokens.len() - end);
                pieces.push(Piece { seq: segment.seq, tokens: &segment.tokens[next.1..end], wanted });
                n_left -= n;
                next = if end == segment.tokens.len() { (next.0 + 1, 0) } else { (next.0, end) };
            }
            self.fill_pass(&pieces, usize::MAX)?;
            match readout {
                Readout::States => self.run_changed(&pieces)?,
                Readout::Largest(n_pairs) => self.run_largest(n_pairs)?,
                readout => self.run_pass(readout)?,
            }
            for Piece { seq, tokens, .. } in pieces {
                self.kv.advance(seq, tokens);
            }
        }
        Ok(())
    }

    /// Runs the pass at hand, whose wanted rows all give logits.
    fn run_pass(&mut self, readout: Readout) -> Result<(), BackendError> {
        let (n_vocab, logits, hidden) = (self.info.n_vocab, &mut self.logits, &mut self.hidden);
        self.model.run(&mut self.pass, readout, &mut |words| match readout {
            Readout::Best => {
                let pairs = words[0].iter().zip(&words[1]);
                pairs.for_each(|(id, value)| largest::spread(&[[*id, *value]], n_vocab, logits));
            }
            _ => {
                extend(logits, &words[0]);
                extend(hidden, &words[1]);
            }
        })
    }

    /// Returns what has to be read back: the largest logits alone where nobody asks for more; states before logits are made of
    /// them where the rows with states are not those with logits, or states are changed.
    fn readout(&self, segments: &[Segment<'_>]) -> Readout {
        let n_wanted = |segment: &Segment<'_>| segment.logits.count(segment.tokens.len());
        let is_changed = |segment: &Segment<'_>| {
            let has_micro = self.kv.get(segment.seq).is_some_and(|open| open.micro.is_some());
            has_micro && n_wanted(segment) > 0 || segment.logits.n_states(segment.tokens.len()) != n_wanted(segment)
        };
        if segments.iter().any(is_changed) {
            return Readout::States;
        }
        self.readout_of_logits(segments)
    }

    /// Scales and caps logits as the model does.
    fn finish_logits(&self, logits: &mut [f32]) {
        let output = &self.spec.output;
        if output.scale != 1.0 {
            logits.iter_mut().for_each(|x| *x *= output.scale);
        }
        if let Some(cap) = output.softcap {
            // What was left out stays so.
            let capped = |x: &mut f32| *x = cap * (*x / cap).tanh();
            logits.iter_mut().filter(|x| x.is_finite()).for_each(capped);
        }
    }
}

impl HostTables {
    /// Adds the sum of a position's row and a text's vector.
    fn push(&self, position: usize, is_second: bool, n_embd: usize, rows: &mut Vec<f32>) {
        if self.positions.is_empty() && self.types.is_empty() {
            return;
        }
        let row = |table: &[f32], at: usize, i: usize| table.get(at * n_embd + i).copied().unwrap_or(0.0);
        let second = usize::from(is_second);
        rows.extend((0..n_embd).map(|i| row(&self.positions, position, i) + row(&self.types, second, i)));
    }
}

/// Adds words as numbers.
fn extend(numbers: &mut Vec<f32>, words: &[u32]) {
    numbers.extend(words.iter().map(|word| f32::from_bits(*word)));
}

impl TokenModel for WgpuBackend {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn open(&mut self, prompt: Option<&[u32]>, salt: &CacheSalt) -> Result<(SeqId, usize), BackendError> {
        self.check_adapters(&salt.adapters)?;
        if let Some(kv) = salt.kv.filter(|kv| *kv != self.kv.policy()) {
            let own = self.kv.policy();
            let line = format!("backend gpu keeps keys and values as {own} here, not as {kv}; load it with --kv {kv}");
            return Err(BackendError::unsupported(line));
        }
        let seq = match prompt {
            Some(tokens) => self.kv.add_known(tokens, salt)?,
            None => self.kv.add(salt)?,
        };
        if let Some(Err(error)) = self.first.as_mut().map(|first| first.open(seq)) {
            self.kv.remove(seq, false);
            return Err(error);
        }
        Ok((seq, self.n_tokens(seq)))
    }

    fn fork(&mut self, seq: SeqId, len: usize) -> Result<SeqId, BackendError> {
        self.check_len(seq, len)?;
        self.check_state(seq, len, "forks")?;
        let child = self.kv.fork(seq, len)?;
        let copied = self.model.copy_state(seq.0, child.0);
        let forked = copied.and_then(|()| self.first.as_mut().map_or(Ok(()), |first| first.fork(seq, len, child)));
        match forked {
            Ok(()) => Ok(child),
            Err(error) => {
                self.kv.remove(child, false);
                Err(error)
            }
        }
    }

    fn rewind(&mut self, seq: SeqId, len: usize) -> Result<(), BackendError> {
        self.check_len(seq, len)?;
        self.check_state(seq, len, "goes back")?;
        self.first.as_mut().map_or(Ok(()), |first| first.rewind(seq, len))?;
        self.kv.truncate(seq, len);
        Ok(())
    }

    fn close(&mut self, seq: SeqId) {
        self.remove(seq, true);
    }

    fn n_tokens(&self, seq: SeqId) -> usize {
        self.kv.get(seq).map_or(0, |open| open.tokens.len())
    }

    fn n_free(&self) -> usize {
        self.kv.n_free()
    }

    fn forward(&mut self, segments: &[Segment<'_>]) -> Result<States<'_>, BackendError> {
        self.check(segments)?;
        if !self.model.has_head() {
            let line = format!("architecture {} makes embeddings, not tokens", self.info.arch);
            return Err(BackendError::unsupported(line));
        }
        let wanted: Vec<(SeqId, usize)> = segments.iter().map(|segment| (segment.seq, segment.tokens.len())).collect();
        self.make_room(&wanted)?;
        self.logits.clear();
        self.hidden.clear();
        if let Err(error) = self.compute(segments) {
            self.kv.forget_reserved(wanted.iter().map(|(seq, _)| *seq));
            return Err(error);
        }
        let mut logits = std::mem::take(&mut self.logits);
        self.finish_logits(&mut logits);
        self.logits = logits;
        let rows = StateRows { hidden: &self.hidden, stream: &[] };
        Ok(States { logits: &mut self.logits, approx: &[], rows })
    }

    fn paged_kv(&self) -> Option<&dyn PagedKv> {
        Some(self)
    }

    fn paged_kv_mut(&mut self) -> Option<&mut dyn PagedKv> {
        Some(self)
    }

    fn hidden_states(&self) -> Option<&dyn HiddenStates> {
        self.model.has_head().then_some(self)
    }

    fn hidden_states_mut(&mut self) -> Option<&mut dyn HiddenStates> {
        self.model.has_head().then_some(self)
    }

    fn embeddings(&mut self) -> Option<&mut dyn Embeddings> {
        Some(self)
    }

    fn adapters(&self) -> Option<AdapterLoader> {
        let loader =
            || AdapterLoader::new(Arc::clone(&self.targets), Arc::clone(&self.file), dequant::pick(Isa::best()));
        self.first.is_none().then(loader)
    }

    fn model_spec(&self) -> Option<&ModelSpec> {
        Some(&self.spec)
    }
}

impl WgpuBackend {
    fn check_len(&self, seq: SeqId, len: usize) -> Result<(), BackendError> {
        let n_tokens = self.kv.get(seq).ok_or_else(|| BackendError::not_open(seq))?.tokens.len();
        if len > n_tokens {
            let line = format!("sequence {} has {n_tokens} tokens, not {len}", seq.0);
            return Err(BackendError::new(BackendErrorKind::Options, line));
        }
        Ok(())
    }
    /// Checks that a sequence is not to begin again at `len`, if it has a state that is not kept of each token.
    fn check_state(&self, seq: SeqId, len: usize, what: &str) -> Result<(), BackendError> {
        let n_tokens = self.n_tokens(seq);
        if len < n_tokens && self.model.has_state() {
            let line =
                format!("a sequence with recurrent state {what} at its end only ({n_tokens} tokens), not at {len}");
            return Err(BackendError::unsupported(line));
        }
        Ok(())
    }
}
