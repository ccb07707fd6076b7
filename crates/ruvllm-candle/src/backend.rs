//! The contract over candle's tensors: sequences and their states.

use std::sync::Arc;

use candle_core::{Result, Tensor};
use ruvllm_backend::{
    BackendError, BackendErrorKind, CacheSalt, ModelInfo, ModelSpec, Segment, SeqId, States, TokenModel,
};
use ruvllm_gguf::{GgufFile, TensorInfo};
use ruvllm_kernels::dequant;
use ruvllm_model::TensorRows;

use crate::layer::{Model, State};
use crate::weights::failed;

/// Rows that are computed at once: scores of attention are as many times the context.
const ROWS_MAX: usize = 256;

/// A model on candle's tensors.
pub struct CandleBackend {
    file: Arc<GgufFile>,
    spec: ModelSpec,
    model: Model,
    info: ModelInfo,
    sequences: Vec<Option<Sequence>>,
    logits: Vec<f32>,
}

#[derive(Clone)]
struct Sequence {
    n_tokens: usize,
    /// By layer.
    states: Vec<State>,
}

impl CandleBackend {
    pub(crate) fn new(file: Arc<GgufFile>, spec: ModelSpec, model: Model, mut info: ModelInfo) -> CandleBackend {
        info.n_rewind_max = if model.can_rewind() { info.n_ctx } else { 0 };
        let sequences = vec![None; info.n_seq_max];
        CandleBackend { file, spec, model, info, sequences, logits: Vec::new() }
    }

    /// Returns the model's file.
    pub fn file(&self) -> &Arc<GgufFile> {
        &self.file
    }

    fn sequence(&self, seq: SeqId) -> std::result::Result<&Sequence, BackendError> {
        self.sequences.get(seq.0).and_then(Option::as_ref).ok_or_else(|| BackendError::not_open(seq))
    }

    fn free(&self) -> std::result::Result<usize, BackendError> {
        let free = self.sequences.iter().position(Option::is_none);
        free.ok_or_else(|| BackendError::no_sequence(self.info.n_seq_max))
    }

    /// Checks that segments can be computed, before anything is.
    fn check(&self, segments: &[Segment<'_>]) -> std::result::Result<(), BackendError> {
        for (i, segment) in segments.iter().enumerate() {
            let refuse = |kind, line: String| Err(BackendError::new(kind, line));
            if segments[..i].iter().any(|other| other.seq == segment.seq) {
                return refuse(BackendErrorKind::Options, format!("sequence {} stands twice", segment.seq.0));
            }
            let n_tokens = self.sequence(segment.seq)?.n_tokens + segment.tokens.len();
            if segment.tokens.is_empty() {
                return refuse(BackendErrorKind::Prompt, "a segment has no tokens".to_owned());
            }
            if let Some(token) = segment.tokens.iter().find(|&&token| token as usize >= self.info.n_vocab) {
                let line = format!("token {token} is outside the vocabulary of {}", self.info.n_vocab);
                return refuse(BackendErrorKind::Prompt, line);
            }
            if n_tokens > self.info.n_ctx {
                return refuse(BackendErrorKind::ContextLength, self.info.context_line(n_tokens));
            }
        }
        Ok(())
    }

    /// Computes one segment and adds the logits of its wanted rows.
    fn segment(&mut self, segment: &Segment<'_>) -> Result<()> {
        let n = segment.tokens.len();
        let first_wanted = n - segment.logits.count(n);
        // A failure leaves the sequence as it was.
        let mut sequence = self.sequences[segment.seq.0].clone().expect("segments were checked");
        for (i, tokens) in segment.tokens.chunks(ROWS_MAX).enumerate() {
            let first = sequence.n_tokens;
            let positions = first..first + tokens.len();
            let x = self.embed(tokens, first)?;
            let hidden = self.model.hidden(&x, positions, &mut sequence.states)?;
            sequence.n_tokens += tokens.len();
            let n_skipped = first_wanted.saturating_sub(i * ROWS_MAX).min(tokens.len());
            if n_skipped < tokens.len() {
                let wanted = hidden.narrow(0, n_skipped, tokens.len() - n_skipped)?;
                self.logits.extend(self.model.logits(&wanted)?.flatten_all()?.to_vec1::<f32>()?);
            }
        }
        self.sequences[segment.seq.0] = Some(sequence);
        Ok(())
    }

    /// Looks tokens up that begin at position `first`: `[n, n_embd]`.
    fn embed(&self, tokens: &[u32], first: usize) -> Result<Tensor> {
        let (input, n_embd) = (&self.spec.input, self.spec.n_embd);
        let mut rows = vec![0.0; tokens.len() * n_embd];
        let mut added = vec![0.0; n_embd];
        for (i, (row, &token)) in rows.chunks_exact_mut(n_embd).zip(tokens).enumerate() {
            self.row(&input.tokens, token as usize, row);
            row.iter_mut().for_each(|x| *x *= input.scale);
            if let Some(positions) = &input.positions {
                self.row(positions, first + i, &mut added);
                row.iter_mut().zip(&added).for_each(|(x, p)| *x += p);
            }
        }
        Tensor::from_vec(rows, (tokens.len(), n_embd), &self.model.device)
    }

    /// Reads a row of a table of the file.
    fn row(&self, table: &TensorRows, row: usize, out: &mut [f32]) {
        let tensor: &TensorInfo = self.file.tensor(&table.tensor).expect("the description names tensors of its file");
        let n_bytes = tensor.ty.row_bytes(table.n_cols).expect("loading checked that rows are whole blocks");
        dequant::dequantize(tensor.ty, &self.file.data(tensor)[row * n_bytes..(row + 1) * n_bytes], out);
    }
}

impl TokenModel for CandleBackend {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn open(&mut self, _prompt: Option<&[u32]>, salt: &CacheSalt) -> std::result::Result<(SeqId, usize), BackendError> {
        if !salt.adapters.is_empty() {
            return Err(BackendError::unsupported("backend candle applies no adapters; use native"));
        }
        if let Some(kv) = salt.kv {
            let line = format!("backend candle keeps keys and values as f32, not as {kv}; leave the policy out");
            return Err(BackendError::unsupported(line));
        }
        let free = self.free()?;
        self.sequences[free] = Some(Sequence { n_tokens: 0, states: self.model.fresh() });
        Ok((SeqId(free), 0))
    }

    fn fork(&mut self, seq: SeqId, len: usize) -> std::result::Result<SeqId, BackendError> {
        let sequence = self.sequence(seq)?.first(len, seq)?;
        let free = self.free()?;
        self.sequences[free] = Some(sequence);
        Ok(SeqId(free))
    }

    fn rewind(&mut self, seq: SeqId, len: usize) -> std::result::Result<(), BackendError> {
        let sequence = self.sequence(seq)?.first(len, seq)?;
        self.sequences[seq.0] = Some(sequence);
        Ok(())
    }

    fn close(&mut self, seq: SeqId) {
        if let Some(sequence) = self.sequences.get_mut(seq.0) {
            *sequence = None;
        }
    }

    fn n_tokens(&self, seq: SeqId) -> usize {
        self.sequence(seq).map_or(0, |sequence| sequence.n_tokens)
    }

    fn n_free(&self) -> usize {
        self.sequences.iter().filter(|sequence| sequence.is_none()).count()
    }

    fn forward(&mut self, segments: &[Segment<'_>]) -> std::result::Result<States<'_>, BackendError> {
        self.check(segments)?;
        self.logits.clear();
        segments.iter().try_for_each(|segment| self.segment(segment)).map_err(failed)?;
        self.file.check()?;
        Ok(States::of_logits(&mut self.logits))
    }

    fn model_spec(&self) -> Option<&ModelSpec> {
        Some(&self.spec)
    }
}

impl Sequence {
    /// Returns the first `len` tokens of a sequence.
    fn first(&self, len: usize, seq: SeqId) -> std::result::Result<Sequence, BackendError> {
        if len > self.n_tokens {
            let line = format!("sequence {} has {} tokens, not {len}", seq.0, self.n_tokens);
            return Err(BackendError::new(BackendErrorKind::Options, line));
        }
        if len == self.n_tokens {
            return Ok(self.clone());
        }
        let states = self.states.iter().map(|state| state.first(len)).collect::<Result<_>>();
        let refused = |_| BackendError::unsupported("sequences with recurrent state cannot go back");
        Ok(Sequence { n_tokens: len, states: states.map_err(refused)? })
    }
}
