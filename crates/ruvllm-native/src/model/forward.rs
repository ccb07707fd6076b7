//! The forward pass: a batch of rows from one or more sequences through every layer.

use std::sync::Arc;

use ruvllm_cpu::prefetch::prefetch;
use ruvllm_kernels::attention::{self, Segment};
use ruvllm_kernels::matmul::ShortlistOut;
use ruvllm_kvcache::BlockPool;
use ruvllm_lora::AdaptedRows;
use ruvllm_lora::micro::{KeptRows, MicroLora, StateRows};

use ruvllm_backend::LogitRows;
use ruvllm_model::Wiring;

use super::blocks::{
    Adapted, Angles, AttentionInputs, Branches, Buffers, Join, KvAccess, Operand, PREFETCH_ROWS, Pending, Reader,
    Recurrent, Residual, Rows, Tail,
};
use super::head_shortlist::ShortlistState;
use super::wanted::{keep_logit_rows, n_best};
use super::{Ffn, Layer, Mixer, Model, Norm, has_last_block};
use crate::kernels::Compute;

/// Everything a forward pass writes to beside the cache, sized at load.
pub(crate) struct ForwardState {
    n_rows_max: usize,
    /// From which row on tokens belong to the second text of a pair (BERT); beyond the batch for one text.
    pub second_from: usize,
    residual: Residual,
    angles: Vec<Angles>,
    buffers: Buffers,
    /// Rows whose final states are wanted, then the logits of those that want them: `[n_logit_rows, n_vocab]`.
    state_rows: Vec<u32>,
    pub logits: Vec<f32>,
    /// The approximate ones of the same rows, `[n_logit_rows, n_vocab]`, if the passes at hand are to give them.
    pub approx: Vec<f32>,
    pub has_approx: bool,
    /// The states, as the final norm left them: `[n_state_rows, n_embd]`.
    pub hidden: Vec<f32>,
    /// The rows of the stream that the last block read for them: `[n_state_rows, n_embd]`; empty of a model nothing sits inside of.
    pub stream: Vec<f32>,
    keeps_stream: bool,
    /// Recurrent state, one vector a sequence slot.
    pub states: Vec<Vec<f32>>,
    pub shortlist: ShortlistState,
}

/// Rows of a pass that came before, or came out of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowCounts {
    /// Number of rows with logits.
    pub n_logits: usize,
    /// Number of rows with final hidden states.
    pub n_states: usize,
}

/// A batch as the forward pass sees it.
pub(crate) struct Batch<'a> {
    /// Token ids of all rows, segment after segment.
    pub tokens: &'a [u32],
    pub rows: &'a [Rows],
    pub wanted: &'a [LogitRows],
    /// Blocks of each segment's sequence, for the attention kernel.
    pub segments: &'a [Segment<'a>],
    /// Adapters of the rows.
    pub adapted: &'a AdaptedRows,
    /// MicroLoRA that changes the final states of each segment's rows.
    pub micros: &'a [Option<Arc<MicroLora>>],
    /// The rows whose states are wanted as segments of their own, if the last layer may leave the others out.
    pub tails: Option<&'a [Segment<'a>]>,
}

impl ForwardState {
    /// Sizes every buffer for passes of up to `n_rows` rows and `n_seq` sequences of `n_ctx` tokens.
    pub(crate) fn new(model: &Model, compute: &Compute, n_rows: usize, n_seq: usize, n_ctx: usize) -> ForwardState {
        let sizes = model.sizes(n_rows);
        let limits = attention::Limits {
            n_heads: model.attentions().map(|own| own.n_heads).max().unwrap_or(1),
            k_dim: model.attentions().map(|own| own.k_dim).max().unwrap_or(1),
            v_dim: model.attentions().map(|own| own.v_dim).max().unwrap_or(1),
            n_ctx: model.attentions().next().map_or(1, |_| n_ctx),
        };
        let angles = model.ropes.iter().map(|rope| {
            let n_half = rope.n_rot() / 2;
            Angles { style: rope.style(), n_half, cos: vec![0.0; n_rows * n_half], sin: vec![0.0; n_rows * n_half] }
        });
        ForwardState {
            n_rows_max: n_rows,
            second_from: usize::MAX,
            residual: Residual::new(n_rows, model.spec.n_embd),
            angles: angles.collect(),
            buffers: Buffers::new(&sizes, attention::Scratch::new(compute.threads.n_threads(), limits)),
            state_rows: Vec::with_capacity(n_rows),
            logits: vec![0.0; n_seq * model.spec.n_vocab],
            approx: Vec::new(),
            has_approx: false,
            hidden: vec![0.0; n_seq * model.spec.n_embd],
            stream: Vec::new(),
            keeps_stream: has_last_block(model),
            // Each becomes real when it is written first.
            states: (0..n_seq).map(|_| vec![0.0; model.state_len]).collect(),
            shortlist: ShortlistState::default(),
        }
    }

    pub(crate) fn n_rows_max(&self) -> usize {
        self.n_rows_max
    }

    /// Returns the hidden states of the last pass behind the final norm, as the head sees them: `[n, n_embd]`.
    pub(crate) fn normed_hidden(&mut self, model: &Model, compute: &Compute, n: usize) -> &[f32] {
        let len = n * model.spec.n_embd;
        normed(compute, model.output.norm.as_ref(), &mut self.residual, len)
    }

    /// Runs the batch and leaves what its rows want in `logits` and `hidden` behind the rows that are `known`, in batch
    /// order. Returns how many there are.
    ///
    /// The blocks for the batch's positions must have been reserved; token ids must be below `n_vocab`.
    pub(crate) fn run(
        &mut self,
        model: &Model,
        compute: &Compute,
        pool: &mut BlockPool,
        batch: &Batch<'_>,
        known: RowCounts,
    ) -> RowCounts {
        let (n, n_embd) = (batch.tokens.len(), model.spec.n_embd);
        assert!(n <= self.n_rows_max, "batch of {n} rows, buffers for {}", self.n_rows_max);
        self.embed(model, compute, batch);
        self.turn_angles(model, batch.rows);
        let mut kv = KvAccess { pool, segments: batch.segments };
        let mut rows = self.wanted_rows(batch);
        let tail = batch.tails.map(|segments| Tail { rows: &rows, segments });
        let tail = tail.filter(|_| model.layers.last().is_some_and(drops_rows));
        let leaves_last = self.keeps_stream && leaves_last_block(batch, tail.is_some() || rows.len() == n);
        let (mut stream, last) = (Pending { join: Join::Nothing, n }, model.layers.len().saturating_sub(1));
        for (i, layer) in model.layers.iter().enumerate() {
            let tail = tail.filter(|_| i == last);
            if n <= PREFETCH_ROWS {
                prefetch_norms(layer, model.layers.get(i + 1));
            }
            let mut pass = Pass { model, compute, batch, kv: &mut kv, tail, is_left: leaves_last && i == last };
            stream = self.layer(layer, &mut pass, stream);
        }
        self.keep_stream(&rows, tail.is_some(), known, n_embd);
        self.residual.settle(compute, stream);
        if tail.is_none() {
            Tail { rows: &rows, segments: &[] }.gather(&mut self.residual.x[..n * n_embd], n_embd);
        }
        let counts = self.head(model, compute, batch, Wanted { rows: &mut rows, leaves_last, known });
        self.state_rows = rows;
        counts
    }

    /// Lists the rows whose final states are wanted.
    fn wanted_rows(&mut self, batch: &Batch<'_>) -> Vec<u32> {
        let mut wanted = std::mem::take(&mut self.state_rows);
        wanted.clear();
        for (segment, rows) in batch.rows.iter().zip(batch.wanted) {
            let end = segment.first + segment.n;
            wanted.extend((end - rows.n_states(segment.n)..end).map(|row| row as u32));
        }
        wanted
    }

    /// Keeps what the last block read of the wanted rows, which lie at the front if they are a tail: its branch is still to join.
    fn keep_stream(&mut self, wanted: &[u32], is_tail: bool, known: RowCounts, n_embd: usize) {
        if !self.keeps_stream {
            return;
        }
        let kept = rows_at(&mut self.stream, known.n_states, wanted.len(), n_embd);
        for (i, (&row, kept)) in wanted.iter().zip(kept.chunks_exact_mut(n_embd)).enumerate() {
            let row = if is_tail { i } else { row as usize };
            kept.copy_from_slice(&self.residual.x[row * n_embd..][..n_embd]);
        }
    }

    fn embed(&mut self, model: &Model, compute: &Compute, batch: &Batch<'_>) {
        let n_embd = model.spec.n_embd;
        let input = &model.input;
        let other = compute.hooks.as_ref().and_then(|hooks| hooks.tokens.as_ref());
        let other = other.map(|(ty, bytes)| input.tokens.with_bytes(*ty, bytes.clone()));
        let tokens = other.as_ref().unwrap_or(&input.tokens);
        for segment in batch.rows {
            for i in 0..segment.n {
                let row = segment.first + i;
                let x = &mut self.residual.x[row * n_embd..(row + 1) * n_embd];
                tokens.row(&compute.kernels, batch.tokens[row] as usize, x);
                if input.scale != 1.0 {
                    x.iter_mut().for_each(|x| *x *= input.scale);
                }
                if let Some(positions) = &input.positions {
                    let added = &mut self.residual.branch[..n_embd];
                    positions.row(&compute.kernels, segment.pos + i, added);
                    x.iter_mut().zip(added).for_each(|(x, p)| *x += *p);
                }
                if let Some(types) = input.types.get(usize::from(row >= self.second_from)) {
                    x.iter_mut().zip(types).for_each(|(x, t)| *x += t);
                }
            }
        }
        if let Some(norm) = &input.norm {
            let len = batch.tokens.len() * n_embd;
            self.residual.branch[..len].copy_from_slice(&self.residual.x[..len]);
            norm.apply(compute, &self.residual.branch[..len], &mut self.residual.x[..len]);
        }
    }

    fn turn_angles(&mut self, model: &Model, rows: &[Rows]) {
        for (rope, angles) in model.ropes.iter().zip(&mut self.angles) {
            let half = angles.n_half;
            for segment in rows {
                for i in 0..segment.n {
                    let part = (segment.first + i) * half..(segment.first + i + 1) * half;
                    let pos = (segment.pos + i) as u32;
                    rope.angles(pos, &mut angles.cos[part.clone()], &mut angles.sin[part]);
                }
            }
        }
    }

    /// Runs a layer on the stream, and returns the stream after it.
    fn layer<'m>(&mut self, layer: &'m Layer, pass: &mut Pass<'_, '_>, stream: Pending<'m>) -> Pending<'m> {
        let n = stream.n;
        let (mixer_post_norm, ffn_post_norm) = (layer.mixer_post_norm.as_ref(), layer.ffn_post_norm.as_ref());
        self.mix(layer, pass, stream);
        let Some(ffn) = &layer.ffn else {
            return Pending { join: Join::Branch { norm: mixer_post_norm, scale: pass.model.spec.residual_scale }, n };
        };
        match layer.wiring {
            Wiring::Sequential => {
                let scale = pass.model.spec.residual_scale;
                let n = match pass.tail {
                    Some(tail) => {
                        tail.gather(&mut self.residual.x, pass.model.spec.n_embd);
                        tail.rows.len()
                    }
                    None => n,
                };
                let join = Join::Branch { norm: mixer_post_norm, scale };
                if pass.is_left {
                    self.residual.settle(pass.compute, Pending { join, n });
                    return Pending { join: Join::Nothing, n };
                }
                self.feed(layer, ffn, pass, Pending { join, n });
                Pending { join: Join::Branch { norm: ffn_post_norm, scale }, n }
            }
            Wiring::Parallel => {
                self.feed(layer, ffn, pass, Pending { join: Join::Nothing, n });
                Pending { join: Join::Both, n }
            }
            Wiring::PostNorm => {
                self.feed(layer, ffn, pass, Pending { join: Join::Replace(mixer_post_norm), n });
                Pending { join: Join::Replace(ffn_post_norm), n }
            }
        }
    }

    /// Runs a layer's mixer and leaves the branch; of the pass's tail, for its rows only.
    fn mix(&mut self, layer: &Layer, pass: &mut Pass<'_, '_>, stream: Pending<'_>) {
        let compute = pass.compute;
        let reader = Reader { norm: layer.mixer_norm.as_ref(), format: layer.mixer.format() };
        let (acts, adapted) = (&mut self.buffers.acts, Adapted::new(pass.batch.adapted));
        let Branches { mut operand, branch, second } = self.residual.read(compute, stream, reader, acts, adapted);
        let kept = pass.tail.map_or(stream.n, |tail| tail.rows.len());
        let out = &mut branch[..kept * pass.model.spec.n_embd];
        let states = Recurrent { rows: pass.batch.rows, states: &mut self.states };
        let mut inputs = AttentionInputs { angles: &self.angles, kv: &mut *pass.kv, tail: pass.tail };
        match &layer.mixer {
            Mixer::Attention(attention) => {
                attention.forward(compute, operand, inputs, &mut self.buffers.attention, out);
            }
            Mixer::LatentAttention(attention) => {
                let (latent, own) = (&mut self.buffers.latent, &mut self.buffers.attention);
                attention.forward(compute, operand, inputs, latent, own, out);
            }
            Mixer::ShortConv(conv) => conv.forward(compute, operand, states, &mut self.buffers.conv, out),
            Mixer::Mamba(mamba) => mamba.forward(compute, operand, states, &mut self.buffers.ssm, out),
            Mixer::Mamba2(mamba) => mamba.forward(compute, operand, states, &mut self.buffers.ssm, out),
            Mixer::AttentionAndMamba2(attention, mamba) => {
                inputs.tail = None;
                attention.forward(compute, operand.lend(), inputs, &mut self.buffers.attention, out);
                mamba.forward(compute, operand, states, &mut self.buffers.ssm, second);
                compute.kernels.norm.add(out, second);
            }
        }
    }

    /// Runs a layer's feed-forward block and leaves the branch, the second one where the mixer's is to join as well.
    fn feed(&mut self, layer: &Layer, ffn: &Ffn, pass: &Pass<'_, '_>, stream: Pending<'_>) {
        if stream.n == 0 {
            return;
        }
        let compute = pass.compute;
        let parallel = layer.wiring == Wiring::Parallel;
        // Without a norm of its own a block beside the mixer reads what that reads.
        let norm = layer.ffn_norm.as_ref().or(layer.mixer_norm.as_ref().filter(|_| parallel));
        let adapted = Adapted::new(pass.batch.adapted);
        let adapted = pass.tail.map_or(adapted, |tail| adapted.of_rows(tail.rows));
        let (reader, acts) = (Reader { norm, format: ffn.format() }, &mut self.buffers.acts);
        let Branches { operand, branch, second } = self.residual.read(compute, stream, reader, acts, adapted);
        let out = if parallel { second } else { branch };
        match ffn {
            Ffn::Mlp(mlp) => mlp.forward(compute, operand, &mut self.buffers.mlp, out),
            Ffn::Moe(moe) => moe.forward(compute, operand, &mut self.buffers.moe, &mut self.buffers.mlp, out),
        }
    }

    /// Normalises the wanted rows, which lie at the front, and multiplies those that want logits with the head. Those that left
    /// out the last block go through it with what changes them.
    fn head(&mut self, model: &Model, compute: &Compute, batch: &Batch<'_>, wanted: Wanted<'_>) -> RowCounts {
        let Wanted { rows, leaves_last, known } = wanted;
        let (n, n_embd) = (rows.len(), model.spec.n_embd);
        if n == 0 {
            return RowCounts::default();
        }
        let len = n * n_embd;
        let kept = rows_at(&mut self.hidden, known.n_states, n, n_embd);
        if model.output.head.is_none() {
            kept.copy_from_slice(normed(compute, model.output.norm.as_ref(), &mut self.residual, len));
            return RowCounts { n_logits: 0, n_states: n };
        }
        let stream = self.stream.get(known.n_states * n_embd..).unwrap_or_default();
        let (hidden, n_logits) = if leaves_last {
            let changed = &mut self.residual.normed[..len];
            MicroLora::forward_through(&changing(batch), &stream[..len], kept, changed);
            (&*changed, n)
        } else {
            let states = normed(compute, model.output.norm.as_ref(), &mut self.residual, len);
            kept.copy_from_slice(states);
            let n_logits = keep_logit_rows(batch, rows, states, n_embd);
            (change(&mut states[..n_logits * n_embd], stream, n_embd, batch), n_logits)
        };
        let logits = rows_at(&mut self.logits, known.n_logits, n_logits, model.spec.n_vocab);
        let has_approx = self.has_approx;
        let mut approx = has_approx.then(|| rows_at(&mut self.approx, known.n_logits, n_logits, model.spec.n_vocab));
        let adapted = Adapted::new(batch.adapted).of_rows(rows);
        let mut operand = Operand::new(hidden, n_logits, &mut self.buffers.acts, adapted);
        let n_best = n_best(batch.wanted).filter(|_| !operand.is_adapted());
        let shortlist = n_best.and_then(|n_best| Some((n_best, self.shortlist.ask(hidden, n_logits, n_best)?)));
        match (shortlist, &model.output.head) {
            (Some((n_best, (shortlist, top_k))), Some(head)) => {
                let out = ShortlistOut { k: n_best, logits, approx };
                let share = operand.apply_shortlisted(compute, head, shortlist, top_k, out);
                self.shortlist.learn(n_best, share);
            }
            _ => {
                if let (Some(shortlist), Some(approx)) = (self.shortlist.get(), &mut approx) {
                    operand.apply_approx(compute, shortlist, approx);
                }
                project(model, compute, operand, logits);
            }
        }
        RowCounts { n_logits, n_states: n }
    }

    /// Multiplies final hidden states, `[n, n_embd]`, with the head alone: `[n, n_vocab]`, as a pass would that came to
    /// them. At most as many rows as a batch has.
    pub(crate) fn logits_of(&mut self, model: &Model, compute: &Compute, hidden: &[f32], logits: &mut [f32]) {
        let n = self.check_rows(model, hidden);
        let operand = Operand::new(hidden, n, &mut self.buffers.acts, Adapted::default());
        project(model, compute, operand, logits);
    }

    /// Does the same with the head's high bits alone.
    ///
    /// # Panics
    /// If its shortlist is not made.
    pub(crate) fn approx_logits_of(&mut self, model: &Model, compute: &Compute, hidden: &[f32], logits: &mut [f32]) {
        let n = self.check_rows(model, hidden);
        let shortlist = self.shortlist.made().expect("the head's shortlist was made");
        Operand::new(hidden, n, &mut self.buffers.acts, Adapted::default()).apply_approx(compute, shortlist, logits);
    }

    /// Returns how many final hidden states there are, for which there have to be buffers.
    fn check_rows(&self, model: &Model, hidden: &[f32]) -> usize {
        let n = hidden.len() / model.spec.n_embd;
        assert!(n <= self.n_rows_max, "{n} rows, buffers for {}", self.n_rows_max);
        n
    }
}

/// Multiplies rows with the head, and bends the logits as the model does.
fn project(model: &Model, compute: &Compute, operand: Operand<'_>, logits: &mut [f32]) {
    let Some(head) = model.output.head.as_ref().filter(|_| !logits.is_empty()) else { return };
    let mut operand = operand;
    operand.apply(compute, head, logits);
    if model.output.scale != 1.0 {
        logits.iter_mut().for_each(|x| *x *= model.output.scale);
    }
    if let Some(cap) = model.output.softcap {
        logits.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
    }
}

/// Returns `n` rows from `first` on, behind which there may be none yet.
fn rows_at(rows: &mut Vec<f32>, first: usize, n: usize, width: usize) -> &mut [f32] {
    let place = first * width..(first + n) * width;
    if rows.len() < place.end {
        rows.resize(place.end, 0.0);
    }
    &mut rows[place]
}

/// Returns whether the last block is left to what changes the rows inside it, which computes both what the model makes of them and what that
/// becomes: all want their logits, and have a MicroLoRA in there and no adapter. `is_all` says whether no others are in the last layer.
fn leaves_last_block(batch: &Batch<'_>, is_all: bool) -> bool {
    let mut segments = batch.rows.iter().zip(batch.wanted).zip(batch.micros);
    let is_changed = segments.all(|((segment, wanted), micro)| {
        let (n_states, n) = (wanted.n_states(segment.n), wanted.count(segment.n));
        n_states == 0 || (n_states == n && micro.as_deref().is_some_and(MicroLora::is_inside))
    });
    is_all && is_changed && batch.adapted.is_empty()
}

/// Returns what changes the rows that want logits, and how many.
fn changing<'a>(batch: &Batch<'a>) -> Vec<(&'a MicroLora, usize)> {
    let segments = batch.rows.iter().zip(batch.wanted).zip(batch.micros);
    let counts = segments.map(|((segment, wanted), micro)| (micro.as_deref(), wanted.count(segment.n)));
    counts.filter_map(|(micro, n)| Some((micro.filter(|_| n > 0)?, n))).collect()
}

/// Changes the final states of the rows that want logits and whose sequences have something that does; `stream` has the rows of all whose
/// states are wanted.
fn change<'a>(hidden: &'a mut [f32], stream: &[f32], n_embd: usize, batch: &Batch<'_>) -> &'a [f32] {
    if batch.micros.iter().all(Option::is_none) {
        return hidden;
    }
    let (mut parts, mut before, mut places) = (Vec::new(), KeptRows::default(), Vec::new());
    let (mut first, mut first_state) = (0, 0);
    for ((segment, wanted), micro) in batch.rows.iter().zip(batch.wanted).zip(batch.micros) {
        let (n_states, n) = (wanted.n_states(segment.n), wanted.count(segment.n));
        if let Some(micro) = micro.as_deref().filter(|_| n > 0) {
            let (at, last) = (first * n_embd..(first + n) * n_embd, first_state + n_states);
            let stream = stream.get((last - n) * n_embd..last * n_embd).unwrap_or_default();
            before.push(StateRows { hidden: &hidden[at.clone()], stream });
            parts.push((micro, n));
            places.push(at);
        }
        (first, first_state) = (first + n, first_state + n_states);
    }
    let mut after = vec![0.0; before.rows().hidden.len()];
    MicroLora::forward_each(&parts, before.rows(), &mut after);
    let mut rest = &after[..];
    for at in places {
        let (own, others) = rest.split_at(at.len());
        hidden[at].copy_from_slice(own);
        rest = others;
    }
    hidden
}

/// Prefetches the weights of the norms that come after a layer's first: a few KiB each, which the weights between have driven
/// out of the caches since the last pass.
fn prefetch_norms(layer: &Layer, next: Option<&Layer>) {
    let norms = [&layer.mixer_post_norm, &layer.ffn_norm, &layer.ffn_post_norm].into_iter().flatten();
    norms.chain(next.and_then(|next| next.mixer_norm.as_ref())).for_each(|norm| prefetch(&norm.weight));
}

/// Rows of a pass whose final states are wanted.
struct Wanted<'a> {
    /// Their places in the batch; afterwards only of those that want logits.
    rows: &'a mut Vec<u32>,
    /// Whether they left out the last block.
    leaves_last: bool,
    /// Rows of earlier passes.
    known: RowCounts,
}

/// What stays the same over the layers of one pass.
struct Pass<'a, 'b> {
    model: &'a Model,
    compute: &'a Compute,
    batch: &'a Batch<'a>,
    kv: &'a mut KvAccess<'b>,
    /// In the last layer: the rows whose results are wanted, if not all.
    tail: Option<Tail<'a>>,
    /// The feed-forward block of this layer is left to what changes the rows inside it.
    is_left: bool,
}

/// Returns whether a layer can leave out rows whose results nobody wants.
fn drops_rows(layer: &Layer) -> bool {
    let parts = (layer.wiring, &layer.mixer, &layer.ffn);
    matches!(parts, (Wiring::Sequential, Mixer::Attention(_), Some(Ffn::Mlp(_))))
}

/// Returns the first `len` values of the stream normed, or a copy of them where there is no norm.
fn normed<'a>(compute: &Compute, norm: Option<&Norm>, residual: &'a mut Residual, len: usize) -> &'a mut [f32] {
    let (x, out) = (&residual.x[..len], &mut residual.normed[..len]);
    match norm {
        Some(norm) => norm.apply(compute, x, out),
        None => out.copy_from_slice(x),
    }
    out
}
