//! Adapters of sequences: checked when a sequence opens, brought to the device before a pass, named row by row in it.

use ruvllm_backend::loading::weight_values;
use ruvllm_backend::{BackendError, BackendErrorKind, Segment};
use ruvllm_gguf::GgufFile;
use ruvllm_lora::AdapterSet;
use ruvllm_model::TensorRows;

use super::{Piece, WgpuBackend};
use crate::adapters::WantedAdapters;

impl WgpuBackend {
    /// Checks that adapters are of this model, and that the device can hold them.
    pub(super) fn check_adapters(&self, adapters: &AdapterSet) -> Result<(), BackendError> {
        if adapters.is_empty() {
            return Ok(());
        }
        let refuse = |line: String| Err(BackendError::new(BackendErrorKind::Adapter, line));
        if self.first.is_some() {
            return refuse("backend gpu applies adapters where all layers are on the GPU; use native".to_owned());
        }
        if !adapters.fits(&self.targets) {
            return refuse("the adapters were loaded for another model".to_owned());
        }
        let n_embd = self.spec.n_embd;
        if let Some(other) = adapters.gate().map(|gate| gate.shape().n_embd).filter(|&other| other != n_embd) {
            return refuse(format!("the gate is for embeddings of {other} values; this model's have {n_embd}"));
        }
        let mut wanted = WantedAdapters::default();
        wanted.add(adapters);
        self.model.check_adapters(&wanted)
    }

    /// Brings the adapters of segments to the device, and returns of how many of the first ones: as many as it holds together.
    pub(super) fn ready_adapters(&mut self, segments: &[Segment<'_>]) -> Result<usize, BackendError> {
        let set_of = |segment: &Segment<'_>| &self.kv.get(segment.seq).expect("checked to be open").adapters;
        let is_here = |set: &AdapterSet| set.is_empty() || self.model.adapters().is_some_and(|bank| bank.holds(set));
        if segments.iter().map(set_of).all(is_here) {
            return Ok(segments.len());
        }
        let (mut wanted, mut n) = (WantedAdapters::default(), 0);
        for set in segments.iter().map(set_of) {
            let mut more = wanted.clone();
            more.add(set);
            // Each set by itself was checked when its sequence was opened.
            if n > 0 && self.model.check_adapters(&more).is_err() {
                break;
            }
            (wanted, n) = (more, n + 1);
        }
        self.model.ready_adapters(&self.spec, &wanted)?;
        Ok(n)
    }

    /// Fills in the adapters of the rows of the pass at hand, if any of them has some.
    pub(super) fn fill_members(&mut self, pieces: &[Piece<'_>]) -> Result<(), BackendError> {
        self.pass.members.clear();
        let has_some = |piece: &Piece<'_>| self.kv.get(piece.seq).is_some_and(|open| !open.adapters.is_empty());
        let Some(bank) = self.model.adapters().filter(|_| pieces.iter().any(has_some)) else { return Ok(()) };
        for Piece { seq, tokens, .. } in pieces {
            let open = self.kv.get(*seq).expect("checked to be open");
            let mut weights = Vec::new();
            if let Some(gate) = open.adapters.gate() {
                // The tokens that the gate looks at, and the new ones.
                let first = open.tokens.len().saturating_sub(gate.shape().window - 1);
                let text = [&open.tokens[first..], tokens].concat();
                let embeddings = Embeddings::read(&self.file, &self.spec.input.tokens, &text)?;
                let mut embed = |token: u32, out: &mut [f32]| out.copy_from_slice(embeddings.of(token));
                gate.weigh(&text, tokens.len(), &mut embed, &mut self.gating, &mut weights);
            }
            bank.push_members(&open.adapters, tokens.len(), &weights, &mut self.pass.members);
        }
        Ok(())
    }
}

/// Embeddings of the tokens of a text.
struct Embeddings {
    /// In order.
    tokens: Vec<u32>,
    /// `[tokens, n_embd]`
    rows: Vec<Vec<f32>>,
}

impl Embeddings {
    fn read(file: &GgufFile, table: &TensorRows, text: &[u32]) -> Result<Embeddings, BackendError> {
        let mut tokens = text.to_vec();
        tokens.sort_unstable();
        tokens.dedup();
        let row = |token: &u32| {
            let first = table.rows.start + *token as usize;
            weight_values(file, &TensorRows { rows: first..first + 1, ..table.clone() })
        };
        let rows = tokens.iter().map(row).collect::<Result<_, _>>()?;
        Ok(Embeddings { tokens, rows })
    }

    fn of(&self, token: u32) -> &[f32] {
        self.tokens.binary_search(&token).map_or(&[], |at| &self.rows[at])
    }
}
