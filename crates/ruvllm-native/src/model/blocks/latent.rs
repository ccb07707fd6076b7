//! Self-attention over one short row that all heads share (multi-head latent attention, DeepSeek).
//!
//! ```text
//! c = norm(latent(x))    r = rope(k_rot(x))    q = [q_nope, rope(q_rot)] by head
//! joint      keys [k(c), r] and values v(c) of every head are cached: attention of as many key heads
//! absorbed   [c, r] is the one key head that is cached, and c its value: a query is [kᵀ·q_nope, q_rot], and v comes behind the mix
//! ```

use std::ops::Range;

use ruvllm_kernels::attention::{self, Options};

use ruvllm_model::LatentAttentionSpec;

use super::attention::{AttentionInputs, AttentionShape, KvAccess};
use super::buffers::{Angles, AttentionBuffers, LatentBuffers, LatentSizes};
use super::{Linear, Norm, Operand};
use crate::kernels::Compute;

/// Rows of a chunk: worth handing to another thread.
const CHUNK_ROWS: usize = 8;

/// An attention layer over a short row.
pub(crate) struct LatentAttention {
    /// Low-rank projection before `q`, if there is one.
    pub q_low: Option<(Linear, Norm)>,
    pub q: Linear,
    pub latent: Linear,
    pub k_rot: Linear,
    pub latent_norm: Norm,
    pub expansion: Expansion,
    pub o: Linear,
    pub spec: LatentAttentionSpec,
    /// Number of this layer among those with keys and values.
    pub kv_layer: usize,
}

/// What makes keys and values of the short row.
pub(crate) enum Expansion {
    /// One matrix of all heads' keys and values, head by head.
    Joint(Linear),
    /// By head: to the space of the short row, and back to values.
    Absorbed { k: Vec<Linear>, v: Vec<Linear> },
}

impl LatentAttention {
    fn n_latent(&self) -> usize {
        self.latent.n_out()
    }

    fn q_dim(&self) -> usize {
        self.spec.n_nope + self.spec.n_rot
    }

    /// Returns the shape of what is cached and attended over.
    pub(crate) fn shape(&self) -> AttentionShape {
        let (n_heads, n_rot) = (self.spec.n_heads, self.spec.n_rot);
        match &self.expansion {
            Expansion::Joint(_) => {
                AttentionShape { n_heads, n_kv_heads: n_heads, k_dim: self.q_dim(), v_dim: self.spec.v_dim }
            }
            Expansion::Absorbed { .. } => {
                AttentionShape { n_heads, n_kv_heads: 1, k_dim: self.n_latent() + n_rot, v_dim: self.n_latent() }
            }
        }
    }

    pub(crate) fn sizes(&self) -> LatentSizes {
        let kv = match &self.expansion {
            Expansion::Joint(kv) => kv.n_out(),
            Expansion::Absorbed { .. } => 0,
        };
        LatentSizes {
            low: self.q_low.as_ref().map_or(0, |(down, _)| down.n_out()),
            q: self.q.n_out(),
            latent: self.n_latent(),
            k_rot: self.spec.n_rot,
            kv,
            head: self.n_latent().max(self.spec.n_nope).max(self.spec.v_dim),
            values: self.spec.n_heads * self.spec.v_dim,
        }
    }

    pub(crate) fn linears(&self) -> Vec<&Linear> {
        let mut all: Vec<&Linear> = self.q_low.iter().map(|(down, _)| down).collect();
        all.extend([&self.q, &self.latent, &self.k_rot, &self.o]);
        match &self.expansion {
            Expansion::Joint(kv) => all.push(kv),
            Expansion::Absorbed { k, v } => all.extend(k.iter().chain(v)),
        }
        all
    }

    /// Returns the matrices that are multiplied together, in order.
    pub(crate) fn groups(&mut self) -> Vec<Vec<&mut Linear>> {
        let mut all = match &mut self.q_low {
            None => vec![vec![&mut self.q, &mut self.latent, &mut self.k_rot]],
            Some((down, _)) => vec![vec![down, &mut self.latent, &mut self.k_rot], vec![&mut self.q]],
        };
        match &mut self.expansion {
            Expansion::Joint(kv) => all.push(vec![kv]),
            Expansion::Absorbed { k, v } => all.extend(k.iter_mut().chain(v).map(|one| vec![one])),
        }
        all.push(vec![&mut self.o]);
        all
    }

    /// Returns what the first product multiplies with.
    pub(crate) fn first(&self) -> &Linear {
        self.q_low.as_ref().map_or(&self.q, |(down, _)| down)
    }

    /// Writes the block's output for the operand's rows to `out`: `[n, n_embd]`.
    pub(crate) fn forward(
        &self,
        compute: &Compute,
        operand: Operand<'_>,
        inputs: AttentionInputs<'_, '_>,
        buffers: &mut LatentBuffers,
        attention: &mut AttentionBuffers,
        out: &mut [f32],
    ) {
        let AttentionInputs { angles, kv, .. } = inputs;
        let (n, shape) = (operand.n_rows(), self.shape());
        let LatentBuffers { low, q, latent, k_rot, kv: both, parts, values } = buffers;
        let (q, latent) = (&mut q[..n * self.q.n_out()], &mut latent[..n * self.n_latent()]);
        let k_rot = &mut k_rot[..n * self.spec.n_rot];
        let mut operand = self.project(compute, operand, [&mut *q, &mut *latent, &mut *k_rot], low);
        self.place(compute, &angles[self.spec.rope], [q, latent, k_rot]);
        let rows = Rows { n, q, latent, k_rot };
        let (k, v) = (&mut attention.k[..n * shape.k_width()], &mut attention.v[..n * shape.v_width()]);
        let mixed = &mut attention.mixed[..n * shape.o_width()];
        let scratch = &mut attention.scratch;
        match &self.expansion {
            Expansion::Joint(matrix) => {
                let both = &mut both[..n * matrix.n_out()];
                operand.lend().replaced_by(rows.latent).apply(compute, matrix, both);
                self.join(compute, &rows, both, k, v);
                self.attend(compute, kv, Attended { q: rows.q, k, v }, scratch, mixed);
                operand.replaced_by(mixed).apply(compute, &self.o, out);
            }
            Expansion::Absorbed { k: to_latent, v: to_values } => {
                let (q, values) = (&mut attention.q[..n * shape.q_width()], &mut values[..n * self.o.n_in()]);
                self.absorb(compute, &mut operand, to_latent, &rows, parts, q);
                self.keep(&rows, k, v);
                self.attend(compute, kv, Attended { q, k, v }, scratch, mixed);
                self.expand(compute, &mut operand, to_values, mixed, parts, values);
                operand.replaced_by(values).apply(compute, &self.o, out);
            }
        }
    }

    /// Computes queries, short rows and what of keys is rotated, as the matrices give them.
    fn project<'a>(
        &self,
        compute: &Compute,
        mut operand: Operand<'a>,
        [q, latent, k_rot]: [&mut [f32]; 3],
        low: &'a mut [f32],
    ) -> Operand<'a> {
        let (latent, k_rot) = ((&self.latent, latent), (&self.k_rot, k_rot));
        let Some((down, norm)) = &self.q_low else {
            operand.apply_many(compute, [(&self.q, q), latent, k_rot]);
            return operand;
        };
        let low = &mut low[..operand.n_rows() * down.n_out()];
        operand.apply_many(compute, [(down, &mut *low), latent, k_rot]);
        norm.apply_in_place(compute, low);
        let mut operand = operand.replaced_by(low);
        operand.apply(compute, &self.q, q);
        operand
    }

    /// Adds keys and values to the cache and attends over it: `[n, n_heads·v_dim]` of the shape that is attended over.
    fn attend(
        &self,
        compute: &Compute,
        kv: &mut KvAccess<'_>,
        Attended { q, k, v }: Attended<'_>,
        scratch: &mut attention::Scratch,
        mixed: &mut [f32],
    ) {
        let AttentionShape { n_heads, n_kv_heads, k_dim, v_dim } = self.shape();
        let options = Options {
            n_heads,
            n_kv_heads,
            k_dim,
            v_dim,
            scale: self.spec.scale,
            softcap: None,
            window: None,
            causal: true,
            sinks: None,
            alibi: None,
        };
        kv.pool.write_rows(&compute.threads, self.kv_layer, kv.segments, k, v);
        let (layer, segments) = (kv.pool.layer(self.kv_layer), kv.segments);
        let inputs = attention::Inputs { options: &options, kv: layer, segments, q };
        attention::attend(compute.kernels.attention, &compute.threads, scratch, &inputs, mixed);
    }

    /// Normalises short rows, and rotates what of queries and keys is rotated, in place.
    fn place(&self, compute: &Compute, angles: &Angles, [q, latent, k_rot]: [&mut [f32]; 3]) {
        let (n, n_rot) = (k_rot.len() / self.spec.n_rot, self.spec.n_rot);
        compute.threads.for_each_row_mut(n, CHUNK_ROWS, [q, latent, k_rot], |row, [q, latent, k_rot]| {
            let (cos, sin) = angles.of_row(row);
            self.latent_norm.apply_in_place(compute, latent);
            let table = compute.kernels.rope;
            table.rotate(angles.style, k_rot, n_rot, cos, sin);
            for head in q.chunks_exact_mut(self.q_dim()) {
                table.rotate(angles.style, &mut head[self.spec.n_nope..], n_rot, cos, sin);
            }
        });
    }

    /// Makes the keys and values of every head: `both` has those parts of them that were made of the short row.
    fn join(&self, compute: &Compute, rows: &Rows<'_>, both: &[f32], k: &mut [f32], v: &mut [f32]) {
        let (n_nope, n_rot, v_dim) = (self.spec.n_nope, self.spec.n_rot, self.spec.v_dim);
        let both_width = self.spec.n_heads * (n_nope + v_dim);
        compute.threads.for_each_row_mut(rows.n, CHUNK_ROWS, [k, v], |row, [k, v]| {
            let heads = k.chunks_exact_mut(n_nope + n_rot).zip(v.chunks_exact_mut(v_dim));
            let made = both[row * both_width..(row + 1) * both_width].chunks_exact(n_nope + v_dim);
            for ((k, v), made) in heads.zip(made) {
                k[..n_nope].copy_from_slice(&made[..n_nope]);
                k[n_nope..].copy_from_slice(&rows.k_rot[row * n_rot..(row + 1) * n_rot]);
                v.copy_from_slice(&made[n_nope..]);
            }
        });
    }

    /// Brings every head's query to the space of the short row: `[n, n_heads·(n_latent + n_rot)]`.
    fn absorb(
        &self,
        compute: &Compute,
        operand: &mut Operand<'_>,
        matrices: &[Linear],
        rows: &Rows<'_>,
        parts: &mut [Vec<f32>; 2],
        out: &mut [f32],
    ) {
        let (q_width, k_dim) = (self.q.n_out(), self.n_latent() + self.spec.n_rot);
        for (head, matrix) in matrices.iter().enumerate() {
            let (at, to) = (head * self.q_dim(), head * k_dim);
            let from = Part { rows: rows.q, width: q_width, at: at..at + self.spec.n_nope };
            let latent = PartMut { rows: out, width: self.spec.n_heads * k_dim, at: to..to + self.n_latent() };
            multiply_part(compute, operand.lend(), PartProduct { matrix, from, to: latent }, parts);
            for row in 0..rows.n {
                let rotated = &rows.q[row * q_width + at + self.spec.n_nope..][..self.spec.n_rot];
                out[row * self.spec.n_heads * k_dim + to + self.n_latent()..][..self.spec.n_rot]
                    .copy_from_slice(rotated);
            }
        }
    }

    /// Makes the one key and value of each row.
    fn keep(&self, rows: &Rows<'_>, k: &mut [f32], v: &mut [f32]) {
        v.copy_from_slice(rows.latent);
        let parts = rows.latent.chunks_exact(self.n_latent()).zip(rows.k_rot.chunks_exact(self.spec.n_rot));
        for (k, (latent, k_rot)) in k.chunks_exact_mut(self.n_latent() + self.spec.n_rot).zip(parts) {
            k[..latent.len()].copy_from_slice(latent);
            k[latent.len()..].copy_from_slice(k_rot);
        }
    }

    /// Makes values of what every head mixed: `[n, n_heads·v_dim]`.
    fn expand(
        &self,
        compute: &Compute,
        operand: &mut Operand<'_>,
        matrices: &[Linear],
        mixed: &[f32],
        parts: &mut [Vec<f32>; 2],
        values: &mut [f32],
    ) {
        let (n_latent, v_dim) = (self.n_latent(), self.spec.v_dim);
        for (head, matrix) in matrices.iter().enumerate() {
            let (from, to) = (head * n_latent..(head + 1) * n_latent, head * v_dim..(head + 1) * v_dim);
            let from = Part { rows: mixed, width: self.spec.n_heads * n_latent, at: from };
            let to = PartMut { rows: values, width: self.spec.n_heads * v_dim, at: to };
            multiply_part(compute, operand.lend(), PartProduct { matrix, from, to }, parts);
        }
    }
}

/// Rows of a pass before attention: queries, short rows and rotated keys.
struct Rows<'a> {
    n: usize,
    q: &'a [f32],
    latent: &'a [f32],
    k_rot: &'a [f32],
}

/// Queries, keys and values of the shape that is attended over.
struct Attended<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
}

/// A part of each of some rows.
struct Part<'a> {
    rows: &'a [f32],
    width: usize,
    at: Range<usize>,
}

/// A part of each of some rows, to be written.
struct PartMut<'a> {
    rows: &'a mut [f32],
    width: usize,
    at: Range<usize>,
}

/// Matrix that a part of each row is multiplied with, and the place of the results.
struct PartProduct<'a> {
    matrix: &'a Linear,
    from: Part<'a>,
    to: PartMut<'a>,
}

/// Multiplies a part of each row with a matrix and puts the result into a part of each row of others.
fn multiply_part(
    compute: &Compute,
    operand: Operand<'_>,
    PartProduct { matrix, from, to }: PartProduct<'_>,
    [x, y]: &mut [Vec<f32>; 2],
) {
    let n = operand.n_rows();
    let (x, y) = (&mut x[..n * from.at.len()], &mut y[..n * to.at.len()]);
    for (row, x) in from.rows.chunks_exact(from.width).zip(x.chunks_exact_mut(from.at.len())) {
        x.copy_from_slice(&row[from.at.clone()]);
    }
    operand.replaced_by(x).apply(compute, matrix, y);
    for (row, y) in to.rows.chunks_exact_mut(to.width).zip(y.chunks_exact(to.at.len())) {
        row[to.at.clone()].copy_from_slice(y);
    }
}
