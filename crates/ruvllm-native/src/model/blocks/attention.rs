//! Self-attention over the paged KV cache: project, normalise, rotate, write, attend, project.

use ruvllm_kernels::attention::{self, Options, Segment};
use ruvllm_kvcache::BlockPool;
use ruvllm_model::AttentionSpec;

use super::buffers::{Angles, AttentionBuffers};
use super::{Linear, Norm, Operand};
use crate::kernels::Compute;

/// Values of queries and keys in a chunk: worth handing to another thread.
const CHUNK_LEN: usize = 2048;

/// Rows up to which memory that is read soon is prefetched; more rows keep the cores busy anyway. Keys and values are,
/// while queries are computed, where no adapters are to come in between.
pub(crate) const PREFETCH_ROWS: usize = 16;
/// Bytes that are prefetched for each thread: they leave room in L2 for the weights that are read at the same time.
const PREFETCH_BYTES: usize = 128 * 1024;

/// Consecutive rows of a batch that belong to one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    /// First row in the batch.
    pub first: usize,
    /// Number of rows.
    pub n: usize,
    /// Position of the first row in its sequence.
    pub pos: usize,
    /// Index of the sequence slot that the rows belong to.
    pub state_idx: usize,
}

/// The rows of a batch whose results are wanted, where others only leave keys and values.
#[derive(Clone, Copy)]
pub(crate) struct Tail<'a> {
    /// Their places in the batch, ascending.
    pub rows: &'a [u32],
    /// Segments of the rows: row `i` is that of `rows[i]`.
    pub segments: &'a [Segment<'a>],
}

impl Tail<'_> {
    /// Moves its rows of `x` to the front.
    pub(crate) fn gather(&self, x: &mut [f32], width: usize) {
        for (i, &row) in self.rows.iter().enumerate() {
            if row as usize != i {
                let start = row as usize * width;
                x.copy_within(start..start + width, i * width);
            }
        }
    }
}

/// A norm over query or key heads.
pub(crate) enum HeadNorm {
    /// One norm for every head, or for the whole row, by its width.
    Same(Norm),
    /// A norm of its own for each head.
    Each(Vec<Norm>),
}

impl HeadNorm {
    /// Normalises a row of heads.
    pub(crate) fn apply_in_place(&self, compute: &Compute, row: &mut [f32]) {
        match self {
            HeadNorm::Same(norm) => norm.apply_in_place(compute, row),
            HeadNorm::Each(norms) => {
                let head_dim = row.len() / norms.len();
                for (norm, head) in norms.iter().zip(row.chunks_exact_mut(head_dim)) {
                    norm.apply_in_place(compute, head);
                }
            }
        }
    }
}

/// Heads of an attention and their lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionShape {
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub k_dim: usize,
    pub v_dim: usize,
}

impl AttentionShape {
    /// Returns the width of all queries.
    pub(crate) fn q_width(self) -> usize {
        self.n_heads * self.k_dim
    }

    /// Returns the width of all keys.
    pub(crate) fn k_width(self) -> usize {
        self.n_kv_heads * self.k_dim
    }

    /// Returns the width of all values.
    pub(crate) fn v_width(self) -> usize {
        self.n_kv_heads * self.v_dim
    }

    /// Returns the width of what is mixed.
    pub(crate) fn o_width(self) -> usize {
        self.n_heads * self.v_dim
    }
}

/// The keys and values of a batch: where they are kept and which blocks each segment's sequence owns.
pub(crate) struct KvAccess<'a> {
    pub pool: &'a mut BlockPool,
    /// One entry a segment, in batch order.
    pub segments: &'a [Segment<'a>],
}

/// Inputs of an attention layer beyond its operand.
pub(crate) struct AttentionInputs<'a, 'b> {
    /// One entry a rotary table.
    pub angles: &'a [Angles],
    pub kv: &'a mut KvAccess<'b>,
    /// Rows whose results are wanted, if not all.
    pub tail: Option<Tail<'a>>,
}

/// An attention layer.
pub(crate) struct Attention {
    pub q: Linear,
    pub k: Linear,
    pub v: Linear,
    pub o: Linear,
    pub q_norm: Option<HeadNorm>,
    pub k_norm: Option<HeadNorm>,
    /// One logit a head that joins the softmax denominator (gpt-oss).
    pub sinks: Option<Vec<f32>>,
    pub spec: AttentionSpec,
    /// Number of this layer among those with keys and values.
    pub kv_layer: usize,
}

impl Attention {
    /// Returns its heads and their lengths.
    pub(crate) fn shape(&self) -> AttentionShape {
        let AttentionSpec { n_heads, n_kv_heads, k_dim, v_dim, .. } = self.spec;
        AttentionShape { n_heads, n_kv_heads, k_dim, v_dim }
    }

    pub(crate) fn linears(&self) -> impl Iterator<Item = &Linear> {
        [&self.q, &self.k, &self.v, &self.o].into_iter()
    }

    /// Returns the matrices that are multiplied together, in order.
    pub(crate) fn groups(&mut self) -> Vec<Vec<&mut Linear>> {
        vec![vec![&mut self.q, &mut self.k, &mut self.v], vec![&mut self.o]]
    }

    /// Writes the block's output for the operand's rows to `out`: `[n, n_embd]`; of a `tail`, for its rows only.
    pub(crate) fn forward(
        &self,
        compute: &Compute,
        mut operand: Operand<'_>,
        inputs: AttentionInputs<'_, '_>,
        buffers: &mut AttentionBuffers,
        out: &mut [f32],
    ) {
        let AttentionInputs { angles, kv, tail } = inputs;
        let n = operand.n_rows();
        let shape = self.shape();
        let (q_width, o_width) = (shape.q_width(), shape.o_width());
        let q = &mut buffers.q[..n * q_width];
        let k = &mut buffers.k[..n * shape.k_width()];
        let v = &mut buffers.v[..n * shape.v_width()];
        let AttentionSpec { n_heads, n_kv_heads, k_dim, v_dim, scale, softcap, window, is_causal, .. } = self.spec;
        let options = Options {
            n_heads,
            n_kv_heads,
            k_dim,
            v_dim,
            scale,
            softcap,
            window,
            causal: is_causal,
            sinks: self.sinks.as_deref(),
            alibi: None,
        };
        let plan = (n <= PREFETCH_ROWS && !operand.is_adapted()).then(|| {
            let n_bytes = PREFETCH_BYTES * compute.threads.n_threads();
            attention::prefetch_plan(&options, kv.pool.layer(self.kv_layer), kv.segments, n_bytes)
        });
        let products = [(&self.q, &mut *q), (&self.k, &mut *k), (&self.v, &mut *v)];
        operand.apply_many_prefetching(compute, products, plan);
        let angles = self.spec.rope.map(|idx| &angles[idx]);
        self.place(compute, [(&mut *q, self.q_norm.as_ref()), (&mut *k, self.k_norm.as_ref())], n, angles);
        kv.pool.write_rows(&compute.threads, self.kv_layer, kv.segments, k, v);
        let (n_kept, segments) = tail.map_or((n, kv.segments), |tail| (tail.rows.len(), tail.segments));
        if n_kept == 0 {
            return;
        }
        tail.iter().for_each(|tail| tail.gather(q, q_width));
        let mixed = &mut buffers.mixed[..n_kept * o_width];
        let layer = kv.pool.layer(self.kv_layer);
        let inputs = attention::Inputs { options: &options, kv: layer, segments, q: &q[..n_kept * q_width] };
        attention::attend(compute.kernels.attention, &compute.threads, &mut buffers.scratch, &inputs, mixed);
        match tail {
            None => operand.replaced_by(mixed).apply(compute, &self.o, out),
            Some(tail) => operand.replaced_by(mixed).of_rows(tail.rows).apply(compute, &self.o, out),
        }
    }

    /// Normalises and rotates the heads of the `n` rows of queries and of keys in place.
    fn place(&self, compute: &Compute, parts: [(&mut [f32], Option<&HeadNorm>); 2], n: usize, angles: Option<&Angles>) {
        if angles.is_none() && parts.iter().all(|(_, norm)| norm.is_none()) {
            return;
        }
        let chunk_rows = (CHUNK_LEN * n).div_ceil(parts.iter().map(|(x, _)| x.len()).sum::<usize>().max(1));
        let norms = parts.each_ref().map(|(_, norm)| *norm);
        compute.threads.for_each_row_mut(n, chunk_rows, parts.map(|(x, _)| x), |row, parts| {
            for (heads, norm) in parts.into_iter().zip(norms) {
                if let Some(norm) = norm {
                    norm.apply_in_place(compute, heads);
                }
                if let Some(angles) = angles {
                    let (cos, sin) = angles.of_row(row);
                    compute.kernels.rope.rotate(angles.style, heads, self.spec.k_dim, cos, sin);
                }
            }
        });
    }
}
