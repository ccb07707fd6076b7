//! Every buffer a forward pass writes to, sized once when the model is loaded: decoding allocates nothing.

use ruvllm_kernels::attention;
use ruvllm_kernels::matmul::Acts;

/// The largest sizes any layer of the model needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sizes {
    /// Rows of one forward pass.
    pub n_rows: usize,
    pub n_embd: usize,
    /// Width of all query heads, of all key heads and of all value heads.
    pub q_width: usize,
    pub k_width: usize,
    pub v_width: usize,
    /// Width of the attention output before its projection (`n_heads · v_dim`).
    pub o_width: usize,
    pub n_ff: usize,
    pub n_experts: usize,
    pub n_experts_used: usize,
    pub n_ff_expert: usize,
    /// Whether any layer is a short convolution.
    pub conv: bool,
    pub ssm: SsmSizes,
    pub latent: LatentSizes,
}

/// Widths that attention over a short row needs beside those of its attention.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LatentSizes {
    /// Width of the low-rank row that queries are made of, if not of the stream.
    pub low: usize,
    /// All heads' queries.
    pub q: usize,
    /// The short row.
    pub latent: usize,
    /// Width of the rotated part of a key.
    pub k_rot: usize,
    /// All heads' keys and values that are made of the short row.
    pub kv: usize,
    /// The widest part of one head.
    pub head: usize,
    /// All heads' values.
    pub values: usize,
}

impl LatentSizes {
    /// Returns what serves both.
    pub(crate) fn max(self, other: LatentSizes) -> LatentSizes {
        LatentSizes {
            low: self.low.max(other.low),
            q: self.q.max(other.q),
            latent: self.latent.max(other.latent),
            k_rot: self.k_rot.max(other.k_rot),
            kv: self.kv.max(other.kv),
            head: self.head.max(other.head),
            values: self.values.max(other.values),
        }
    }
}

/// Widths that state spaces need.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SsmSizes {
    /// Channels that are filtered.
    pub n_channels: usize,
    /// Channels that are gated.
    pub n_inner: usize,
    /// Lengths of steps.
    pub n_steps: usize,
    /// Width of the row that Mamba makes them of.
    pub n_low: usize,
    /// Values that Mamba writes to a state, and reads of it.
    pub n_state: usize,
}

impl SsmSizes {
    /// Returns what serves both.
    pub(crate) fn max(self, other: SsmSizes) -> SsmSizes {
        SsmSizes {
            n_channels: self.n_channels.max(other.n_channels),
            n_inner: self.n_inner.max(other.n_inner),
            n_steps: self.n_steps.max(other.n_steps),
            n_low: self.n_low.max(other.n_low),
            n_state: self.n_state.max(other.n_state),
        }
    }
}

/// Buffers shared by all layers.
pub(crate) struct Buffers {
    pub acts: Acts,
    pub attention: AttentionBuffers,
    pub mlp: MlpBuffers,
    pub moe: MoeBuffers,
    pub conv: ShortConvBuffers,
    pub ssm: SsmBuffers,
    pub latent: LatentBuffers,
}

/// Queries, keys, values and attention output: `[n_rows, width]` each.
pub(crate) struct AttentionBuffers {
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub mixed: Vec<f32>,
    pub scratch: attention::Scratch,
}

/// The hidden layer: `[n_rows, n_ff]` each.
pub(crate) struct MlpBuffers {
    pub gate: Vec<f32>,
    pub up: Vec<f32>,
}

/// `bcx`: `[n_rows, 3·n_embd]`, `mixed`: `[n_rows, n_embd]`.
pub(crate) struct ShortConvBuffers {
    pub bcx: Vec<f32>,
    pub mixed: Vec<f32>,
}

/// Rows of a state space, by the names of [`SsmSizes`]: what is filtered and what comes of it, what gates, the lengths of steps
/// and what they are made of, what is written and what is read.
pub(crate) struct SsmBuffers {
    pub channels: Vec<f32>,
    pub mixed: Vec<f32>,
    pub z: Vec<f32>,
    pub dt: Vec<f32>,
    pub low: Vec<f32>,
    pub b: Vec<f32>,
    pub c: Vec<f32>,
}

/// Rows of attention over a short row, by the names of [`LatentSizes`]; `parts` are one head's before and behind a product.
pub(crate) struct LatentBuffers {
    pub low: Vec<f32>,
    pub q: Vec<f32>,
    pub latent: Vec<f32>,
    pub k_rot: Vec<f32>,
    pub kv: Vec<f32>,
    pub parts: [Vec<f32>; 2],
    pub values: Vec<f32>,
}

/// Rows of several experts that are computed together; one expert with more has a group of its own.
pub(crate) const GROUP_ROWS: usize = 32;

/// Routing lists and the experts' rows.
pub(crate) struct MoeBuffers {
    /// `[n_rows, n_experts]`
    pub scores: Vec<f32>,
    /// `[n_rows, n_used]`
    pub chosen: Vec<u32>,
    pub weights: Vec<f32>,
    /// Places among the `chosen` by expert, and the row of each: `[n_rows · n_used]`.
    pub slots: Vec<u32>,
    pub rows: Vec<u32>,
    /// The numbers from 0 on.
    pub order: Vec<u32>,
    /// `[rows of a group, n_ff_expert]`; a group has up to `n_rows` rows, or [`GROUP_ROWS`].
    pub gate: Vec<f32>,
    pub up: Vec<f32>,
    /// `[rows of a group, n_embd]`: the experts' output, or the shared expert's.
    pub expert: Vec<f32>,
    /// `[n_rows, n_used, n_embd]`
    pub outputs: Vec<f32>,
    pub acts: Acts,
}

impl Buffers {
    /// Makes the buffers. `attention` is what the attention kernel wants beside its inputs.
    pub(crate) fn new(sizes: &Sizes, attention: attention::Scratch) -> Buffers {
        let s = sizes;
        let rows = |width: usize| vec![0.0f32; s.n_rows * width];
        let k_max =
            [s.n_embd, s.o_width, s.n_ff, s.ssm.n_inner, s.ssm.n_low, s.latent.low, s.latent.head, s.latent.values];
        let k_max = k_max.into_iter().max().unwrap_or(0);
        let n_chosen = s.n_rows * s.n_experts_used;
        let n_grouped = if s.n_experts > 0 { s.n_rows.max(GROUP_ROWS) } else { 0 };
        Buffers {
            acts: Acts::new(k_max, s.n_rows),
            attention: AttentionBuffers {
                q: rows(s.q_width),
                k: rows(s.k_width),
                v: rows(s.v_width),
                mixed: rows(s.o_width),
                scratch: attention,
            },
            mlp: MlpBuffers { gate: rows(s.n_ff), up: rows(s.n_ff) },
            moe: MoeBuffers {
                scores: rows(s.n_experts),
                chosen: vec![0; n_chosen],
                weights: vec![0.0; n_chosen],
                slots: vec![0; n_chosen],
                rows: vec![0; n_chosen],
                order: (0..n_grouped as u32).collect(),
                gate: vec![0.0; n_grouped * s.n_ff_expert],
                up: vec![0.0; n_grouped * s.n_ff_expert],
                expert: vec![0.0; n_grouped * s.n_embd],
                outputs: vec![0.0; n_chosen * s.n_embd],
                acts: Acts::new(s.n_ff_expert, n_grouped),
            },
            conv: match s.conv {
                true => ShortConvBuffers { bcx: rows(3 * s.n_embd), mixed: rows(s.n_embd) },
                false => ShortConvBuffers { bcx: Vec::new(), mixed: Vec::new() },
            },
            ssm: SsmBuffers {
                channels: rows(s.ssm.n_channels),
                mixed: rows(s.ssm.n_channels),
                z: rows(s.ssm.n_inner),
                dt: rows(s.ssm.n_steps),
                low: rows(s.ssm.n_low),
                b: rows(s.ssm.n_state),
                c: rows(s.ssm.n_state),
            },
            latent: LatentBuffers {
                low: rows(s.latent.low),
                q: rows(s.latent.q),
                latent: rows(s.latent.latent),
                k_rot: rows(s.latent.k_rot),
                kv: rows(s.latent.kv),
                parts: [rows(s.latent.head), rows(s.latent.head)],
                values: rows(s.latent.values),
            },
        }
    }
}

/// Cosines and sines of one rotary table for the rows of a batch.
pub(crate) struct Angles {
    pub style: ruvllm_kernels::rope::RopeStyle,
    pub n_half: usize,
    pub cos: Vec<f32>,
    pub sin: Vec<f32>,
}

impl Angles {
    /// Returns the cosines and sines of one row.
    pub(crate) fn of_row(&self, row: usize) -> (&[f32], &[f32]) {
        let part = row * self.n_half..(row + 1) * self.n_half;
        (&self.cos[part.clone()], &self.sin[part])
    }
}
