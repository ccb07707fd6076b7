//! The last block by itself, for a MicroLoRA inside it: forwards with what that adds, and back to it.
//!
//! ```text
//! x = norm(stream)    gate, up = W·x    y = stream + scale·norm'(down·(act(gate)·up))    final state = norm''(y)
//! forwards:   rows twice, without and with what is added to gate and up; each matrix is read once for both
//! back:       final state → y → down (by its transpose, in 8 bits) → gate and up
//! ```
//! Its matrices are the model's. A block without a gate, of experts, beside its mixer or before its norm has no such form here, and a
//! MicroLoRA is behind such a model only.

use std::sync::{Mutex, PoisonError};

use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::matmul::{self, Acts, Matrix};
use ruvllm_lora::merge::Merged;
use ruvllm_lora::micro::{EachRow, FinalBlock, Inner};
use ruvllm_model::{NormKind, Wiring};

use super::blocks::{Adapted, Linear, Mlp, Norm, Operand};
use super::{Ffn, Model};
use crate::kernels::Compute;

/// Rows that are gone through together.
const ROWS: usize = 32;

/// A gated block behind a norm, and the final norm.
pub(crate) struct LastBlock {
    compute: Compute,
    norm: Norm,
    gate: Linear,
    up: Linear,
    down: Linear,
    /// `downᵀ`: `[n_ff, n_embd]`.
    back: Matrix,
    activation: Activation,
    post_norm: Option<Norm>,
    /// What the block's branch is multiplied with.
    scale: f32,
    output_norm: Norm,
    scratch: Mutex<Scratch>,
}

/// Rows on their way; of what there is twice, those without the change come first.
struct Scratch {
    acts: Acts,
    /// `[n, n_embd]`
    x: Vec<f32>,
    /// `[2n, n_ff]`, and the changed rows of the gate before its activation.
    gate: Vec<f32>,
    up: Vec<f32>,
    opened: Vec<f32>,
    /// `[2n, n_embd]`: down's results, the stream behind them, final states.
    branch: Vec<f32>,
    y: Vec<f32>,
    states: Vec<f32>,
}

/// What of a model is computed here.
struct Parts<'a> {
    norm: &'a Norm,
    mlp: &'a Mlp,
    gate: &'a Linear,
    post_norm: Option<&'a Norm>,
    output_norm: &'a Norm,
}

impl Parts<'_> {
    /// Finds them, if the model's last block has that form.
    fn of(model: &Model) -> Option<Parts<'_>> {
        let is_rms = |norm: &&Norm| norm.kind == NormKind::Rms;
        let layer = model.layers.last().filter(|layer| layer.wiring == Wiring::Sequential)?;
        let Some(Ffn::Mlp(mlp)) = &layer.ffn else { return None };
        let is_known = matches!(mlp.activation, Activation::Silu | Activation::GeluTanh);
        let gate = mlp.gate.as_ref().filter(|_| is_known && model.output.head.is_some())?;
        let post_norm = layer.ffn_post_norm.as_ref();
        let output_norm = model.output.norm.as_ref().filter(is_rms)?;
        let norm = layer.ffn_norm.as_ref().filter(|_| post_norm.as_ref().is_none_or(is_rms))?;
        Some(Parts { norm, mlp, gate, post_norm, output_norm })
    }
}

/// Returns whether a model's last block has the form that is computed here.
pub(crate) fn has_last_block(model: &Model) -> bool {
    Parts::of(model).is_some()
}

impl LastBlock {
    /// Takes a model's last block; `down` gives the weights of the linear layer of that number. `None` if it has another form.
    ///
    /// # Errors
    /// As `down`.
    pub(crate) fn of<E>(
        model: &Model,
        compute: &Compute,
        down: impl FnOnce(usize) -> Result<Vec<f32>, E>,
    ) -> Result<Option<LastBlock>, E> {
        let Some(Parts { norm, mlp, gate, post_norm, output_norm }) = Parts::of(model) else { return Ok(None) };
        let (n_ff, n_embd) = (mlp.n_ff(), model.spec.n_embd);
        let rows = down(mlp.down.id())?;
        let transposed: Vec<f32> =
            (0..n_ff).flat_map(|j| (0..n_embd).map(move |i| (i, j))).map(|(i, j)| rows[i * n_ff + j]).collect();
        let (ty, bytes) = Merged::Q8.encode(&transposed, n_embd);
        let back = Matrix::new(compute.kernels.matmul, &compute.threads, ty, n_ff, n_embd, bytes);
        let scratch = Scratch {
            acts: Acts::new(n_ff.max(n_embd), 2 * ROWS),
            x: vec![0.0; ROWS * n_embd],
            gate: vec![0.0; 2 * ROWS * n_ff],
            up: vec![0.0; 2 * ROWS * n_ff],
            opened: vec![0.0; ROWS * n_ff],
            branch: vec![0.0; 2 * ROWS * n_embd],
            y: vec![0.0; 2 * ROWS * n_embd],
            states: vec![0.0; 2 * ROWS * n_embd],
        };
        Ok(Some(LastBlock {
            compute: compute.clone(),
            norm: norm.clone(),
            gate: gate.clone(),
            up: mlp.up.clone(),
            down: mlp.down.clone(),
            back,
            activation: mlp.activation,
            post_norm: post_norm.cloned(),
            scale: model.spec.residual_scale,
            output_norm: output_norm.clone(),
            scratch: Mutex::new(scratch),
        }))
    }

    fn n_ff(&self) -> usize {
        self.up.n_out()
    }

    /// Goes through the block with rows of the stream, the first of which is row `first` to `inner`.
    fn run(&self, scratch: &mut Scratch, stream: &[f32], first: usize, inner: &dyn Inner) {
        let (n_embd, n_ff, compute) = (self.n_embd(), self.n_ff(), &self.compute);
        let n = stream.len() / n_embd;
        let Scratch { acts, x, gate, up, opened, branch, y, states } = scratch;
        let x = &mut x[..n * n_embd];
        self.norm.apply(compute, stream, x);
        let (gate, up) = (&mut gate[..2 * n * n_ff], &mut up[..2 * n * n_ff]);
        let (plain, changed) = (gate.split_at_mut(n * n_ff), up.split_at_mut(n * n_ff));
        let mut operand = Operand::new(x, n, acts, Adapted::default());
        operand.apply_many(compute, [(&self.gate, &mut *plain.0), (&self.up, &mut *changed.0)]);
        plain.1.copy_from_slice(plain.0);
        changed.1.copy_from_slice(changed.0);
        self.add(inner, first, x, plain.1, changed.1);
        opened[..n * n_ff].copy_from_slice(plain.1);
        let (threads, ups) = (&compute.threads, &*up);
        threads.for_each_row_mut(2 * n, threads.short_grain(2 * n, 1), [&mut *gate], |row, [gate]| {
            compute.kernels.activation.gated(self.activation, gate, &ups[row * n_ff..][..n_ff]);
        });
        let len = 2 * n * n_embd;
        let (branch, y, states) = (&mut branch[..len], &mut y[..len], &mut states[..len]);
        Operand::new(gate, 2 * n, acts, Adapted::default()).apply(compute, &self.down, branch);
        match &self.post_norm {
            Some(norm) => norm.apply(compute, branch, y),
            None => y.copy_from_slice(branch),
        }
        for (y, stream) in y.chunks_exact_mut(stream.len()).flat_map(|half| half.iter_mut().zip(stream)) {
            *y = stream + self.scale * *y;
        }
        self.output_norm.apply(compute, y, states);
    }

    /// Adds what `inner` makes of rows `x`, the first of which is row `first` to it, to the changed rows of gate and up.
    fn add(&self, inner: &dyn Inner, first: usize, x: &[f32], gate: &mut [f32], up: &mut [f32]) {
        let (n_embd, n_ff) = (self.n_embd(), self.n_ff());
        let (threads, n) = (&self.compute.threads, 2 * x.len() / n_embd);
        let mut halves: [&mut [f32]; 2 * ROWS] = std::array::from_fn(|_| Default::default());
        let rows = gate.chunks_exact_mut(n_ff).zip(up.chunks_exact_mut(n_ff)).flat_map(|(gate, up)| [gate, up]);
        halves.iter_mut().zip(rows).for_each(|(half, row)| *half = row);
        threads.for_each_row_mut(n, threads.short_grain(n, 1), [&mut halves[..n]], |i, [half]| {
            let row = i / 2;
            inner.add(first + row, &x[row * n_embd..][..n_embd], i % 2 * n_ff, half[0]);
        });
    }
}

impl FinalBlock for LastBlock {
    fn n_embd(&self) -> usize {
        self.output_norm.weight.len()
    }

    fn n_inner(&self) -> usize {
        2 * self.n_ff()
    }

    fn x_size(&self) -> f32 {
        let weight = &self.norm.weight;
        (weight.iter().map(|w| w * w).sum::<f32>() / weight.len() as f32).sqrt()
    }

    fn forward(&self, stream: &[f32], inner: &dyn Inner, states: &mut [f32], differences: &mut [f32]) {
        let (n_embd, len) = (self.n_embd(), stream.len());
        assert!(len.is_multiple_of(n_embd), "{len} values are no rows of {n_embd}");
        assert!(states.len() == len && differences.len() == len, "{len} values become as many");
        let scratch = &mut *self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let outs = states.chunks_mut(ROWS * n_embd).zip(differences.chunks_mut(ROWS * n_embd));
        for (i, (stream, (states, differences))) in stream.chunks(ROWS * n_embd).zip(outs).enumerate() {
            self.run(scratch, stream, i * ROWS, inner);
            states.copy_from_slice(&scratch.states[..states.len()]);
            write_difference(&scratch.states[..2 * differences.len()], differences);
        }
    }

    fn backward(
        &self,
        stream: &[f32],
        inner: &dyn Inner,
        errors: &mut dyn FnMut(&[f32], &mut [f32]),
        each: &mut EachRow<'_>,
    ) {
        let (n_embd, n_ff) = (self.n_embd(), self.n_ff());
        let n = stream.len() / n_embd;
        assert!(n <= ROWS && stream.len() == n * n_embd, "{} values are no rows to go back with", stream.len());
        let scratch = &mut *self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        self.run(scratch, stream, 0, inner);
        let (mut differences, mut gradients) = (vec![0.0; n * n_embd], vec![0.0; n * n_embd]);
        write_difference(&scratch.states[..2 * n * n_embd], &mut differences);
        errors(&differences, &mut gradients);
        // Of what the final norm reads, of the branch, of what down reads, of what the first products gave.
        let changed = n * n_embd..2 * n * n_embd;
        self.output_norm.back(&scratch.y[changed.clone()], &mut gradients);
        gradients.iter_mut().for_each(|x| *x *= self.scale);
        if let Some(norm) = &self.post_norm {
            norm.back(&scratch.branch[changed], &mut gradients);
        }
        let (compute, mut of_hidden) = (&self.compute, vec![0.0; n * n_ff]);
        scratch.acts.set(compute.kernels.matmul, &compute.threads, &gradients, n, n_embd, self.back.act_format());
        matmul::matmul(&compute.threads, &self.back, &scratch.acts, &mut of_hidden);
        let mut d = vec![0.0; 2 * n_ff];
        for row in 0..n {
            let at = row * n_ff..(row + 1) * n_ff;
            let (of_gate, of_up) = d.split_at_mut(n_ff);
            of_gate.copy_from_slice(&of_hidden[at.clone()]);
            let (gate, up) = (&scratch.opened[at], &scratch.up[(n + row) * n_ff..][..n_ff]);
            compute.kernels.activation.gated_back(self.activation, gate, up, of_gate, of_up);
            each(row, &scratch.x[row * n_embd..][..n_embd], &d);
        }
    }
}

/// Writes the second half of rows less the first.
fn write_difference(states: &[f32], out: &mut [f32]) {
    let (plain, changed) = states.split_at(out.len());
    out.iter_mut().zip(changed.iter().zip(plain)).for_each(|(out, (x, y))| *out = x - y);
}
