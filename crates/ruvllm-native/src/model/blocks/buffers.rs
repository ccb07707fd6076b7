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
}

/// Widths that state spaces need.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SsmSizes {
    /// What is filtered.
    pub n_channels: usize,
    /// What is gated.
    pub n_inner: usize,
    /// Lengths of steps.
    pub n_steps: usize,
    /// What Mamba makes them of.
    pub n_low: usize,
    /// What Mamba writes, and what it reads.
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

/// Routing lists and the experts' rows.
pub(crate) struct MoeBuffers {
    /// `[n_rows, n_experts]`
    pub scores: Vec<f32>,
    /// `[n_rows, n_used]`
    pub chosen: Vec<u32>,
    pub weights: Vec<f32>,
    /// Rows one expert works on and where their results go.
    pub rows: Vec<u32>,
    pub slots: Vec<u32>,
    /// `[n_rows, n_ff_expert]`
    pub gate: Vec<f32>,
    pub up: Vec<f32>,
    /// `[n_rows, n_embd]`: one expert's output, or the shared expert's.
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
        let k_max = [s.n_embd, s.o_width, s.n_ff, s.ssm.n_inner, s.ssm.n_low].into_iter().max().unwrap_or(0);
        let n_chosen = s.n_rows * s.n_experts_used;
        let n_routed = if s.n_experts > 0 { s.n_rows } else { 0 };
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
                rows: Vec::with_capacity(n_routed),
                slots: Vec::with_capacity(n_routed),
                gate: rows(s.n_ff_expert),
                up: rows(s.n_ff_expert),
                expert: vec![0.0; n_routed * s.n_embd],
                outputs: vec![0.0; n_chosen * s.n_embd],
                acts: Acts::new(s.n_ff_expert, n_routed),
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
