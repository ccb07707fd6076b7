//! What a pass computes on the way: buffers that all layers share.

use ruvllm_backend::BackendError;
use ruvllm_gpu::{Gpu, GpuBuffer};
use ruvllm_kvcache::LayerKv;
use ruvllm_model::{
    AttentionSpec, ExpansionSpec, FfnSpec, LatentAttentionSpec, Mamba2Spec, MambaSpec, MixerSpec, ModelSpec,
};
use ruvllm_shaders::TOP_K_MAX;

use crate::cache_shape::latent_kv;
use crate::error::failed;

/// The most rows of a pass of a decoder.
const ROWS_MAX: usize = 256;

/// The most bytes of logits that a pass gives; more come in several.
const LOGIT_BYTES_MAX: usize = 32 << 20;

/// Logits of a row that one workgroup looks through for the largest.
pub(crate) const LOGITS_OF_PART: usize = 2048;

/// Rows of a pass whose keys may be split over workgroups.
pub(crate) const SPLIT_ROWS_MAX: usize = 4;

/// Rows and outputs that the buffers have room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowLimits {
    /// Rows of a pass.
    pub n_rows: usize,
    /// Rows of a pass that give logits.
    pub n_outputs: usize,
}

/// Values that a row takes, by buffer: the most of any layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Widths {
    q: usize,
    k: usize,
    v: usize,
    attended: usize,
    /// Inner row of a dense block.
    inner: usize,
    /// Inner rows of the experts of a row.
    expert_inner: usize,
    /// Experts of a row.
    n_used: usize,
    n_experts: usize,
    ssm: SsmWidths,
    latent: LatentWidths,
}

/// Values that a row takes in a state space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SsmWidths {
    channels: usize,
    inner: usize,
    dt: usize,
    low: usize,
    bc: usize,
}

/// Values that a row takes in attention over a short row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LatentWidths {
    low: usize,
    row: usize,
    rot: usize,
    both: usize,
}

/// Buffers of state spaces.
pub(crate) struct SsmScratch {
    /// Inputs of the convolution; later what the gated state space gave.
    pub channels: GpuBuffer,
    /// Results of the convolution.
    pub mixed: GpuBuffer,
    pub z: GpuBuffer,
    pub dt: GpuBuffer,
    pub low: [GpuBuffer; 2],
    pub bc: [GpuBuffer; 2],
    pub y: GpuBuffer,
}

/// Buffers of attention over short rows.
pub(crate) struct LatentScratch {
    /// Between the two projections of queries.
    pub low: [GpuBuffer; 2],
    /// The short row, and its norm.
    pub row: [GpuBuffer; 2],
    /// Part of the keys that is rotated.
    pub rot: GpuBuffer,
    /// Keys and values of all heads before they are joined; queries in the space of the short row; values behind the mix.
    pub both: GpuBuffer,
}

/// Buffers of a pass.
pub(crate) struct Scratch {
    /// The residual stream, and the place that it moves to behind a norm of all of it.
    pub stream: [GpuBuffer; 2],
    /// Inputs of the two branches of a layer.
    pub normed: [GpuBuffer; 2],
    /// A branch before it joins the stream, and its norm.
    pub branch: [GpuBuffer; 2],
    pub q: [GpuBuffer; 2],
    pub k: [GpuBuffer; 2],
    pub v: GpuBuffer,
    pub splits: GpuBuffer,
    pub attended: GpuBuffer,
    pub ssm: SsmScratch,
    pub latent: LatentScratch,
    pub gate: GpuBuffer,
    pub up: GpuBuffer,
    pub inner: GpuBuffer,
    pub router: GpuBuffer,
    pub experts: GpuBuffer,
    pub expert_weights: GpuBuffer,
    pub expert_gate: GpuBuffer,
    pub expert_up: GpuBuffer,
    pub expert_inner: GpuBuffer,
    pub expert_out: GpuBuffer,
    /// A shared expert's output, and the logit of its gate.
    pub shared: GpuBuffer,
    pub shared_gate: GpuBuffer,
    /// Learned positions of the rows.
    pub positions: GpuBuffer,
    /// Cosines and sines of the rows, by rope.
    pub angles: Vec<GpuBuffer>,
    /// Rows that logits or states are wanted of, before and behind the final norm.
    pub outputs: GpuBuffer,
    pub hidden: GpuBuffer,
    pub logits: GpuBuffer,
    pub ids: GpuBuffer,
    pub values: GpuBuffer,
    /// Tokens of the largest logits of parts of rows, and those of whole rows with their logits.
    pub part_ids: GpuBuffer,
    pub pairs: GpuBuffer,
    pub none: GpuBuffer,
}

impl Widths {
    fn of(spec: &ModelSpec) -> Widths {
        let mut most = Widths::default();
        for layer in &spec.layers {
            match &layer.mixer {
                MixerSpec::Attention(attention) => most.take_attention(attention),
                MixerSpec::AttentionAndMamba2(attention, mamba) => {
                    most.take_attention(attention);
                    most.ssm.take_mamba2(mamba);
                }
                MixerSpec::LatentAttention(own) => most.take_latent(own),
                MixerSpec::Mamba(own) => most.ssm.take_mamba(own),
                MixerSpec::Mamba2(own) => most.ssm.take_mamba2(own),
                // Its rows lie where queries do.
                MixerSpec::ShortConv(conv) => {
                    raise(&mut most.q, conv.in_proj.n_out());
                    raise(&mut most.attended, conv.out_proj.n_in());
                }
            }
            match &layer.ffn {
                Some(FfnSpec::Mlp(mlp)) => raise(&mut most.inner, mlp.up.n_out()),
                Some(FfnSpec::Moe(moe)) => {
                    raise(&mut most.expert_inner, moe.n_used * moe.up[0].n_out());
                    raise(&mut most.n_used, moe.n_used);
                    raise(&mut most.n_experts, moe.up.len());
                    moe.shared.iter().for_each(|shared| raise(&mut most.inner, shared.mlp.up.n_out()));
                }
                None => {}
            }
        }
        most
    }

    fn take_attention(&mut self, attention: &AttentionSpec) {
        raise(&mut self.q, attention.q.n_out());
        raise(&mut self.k, attention.k.n_out());
        raise(&mut self.v, attention.v.n_out());
        raise(&mut self.attended, attention.o.n_in());
    }

    fn take_latent(&mut self, own: &LatentAttentionSpec) {
        let LayerKv { n_kv_heads, k_dim, v_dim } = latent_kv(own);
        raise(&mut self.q, own.n_heads * k_dim.max(own.n_nope + own.n_rot));
        raise(&mut self.k, n_kv_heads * k_dim);
        raise(&mut self.v, n_kv_heads * v_dim);
        raise(&mut self.attended, own.n_heads * v_dim);
        let (n_latent, latent) = (own.latent.n_out(), &mut self.latent);
        raise(&mut latent.low, own.q_low.as_ref().map_or(0, |low| low.down.n_out()));
        raise(&mut latent.row, n_latent);
        raise(&mut latent.rot, own.n_rot);
        let of_head = match &own.expansion {
            ExpansionSpec::Joint(_) => own.n_nope + own.v_dim,
            ExpansionSpec::Absorbed { .. } => n_latent.max(own.v_dim),
        };
        raise(&mut latent.both, own.n_heads * of_head);
    }

    fn widest(&self, n_embd: usize) -> usize {
        let Widths { q, k, v, attended, inner, expert_inner, n_used, n_experts, ssm, latent } = *self;
        let SsmWidths { channels, inner: n_inner, dt, low, bc } = ssm;
        let of_latent = [latent.low, latent.row, latent.rot, latent.both];
        [q, k, v, attended, inner, expert_inner, n_used * n_embd, n_experts, n_embd, channels, n_inner, dt, low, bc]
            .into_iter()
            .chain(of_latent)
            .max()
            .unwrap_or(1)
    }
}

impl SsmWidths {
    fn take_mamba(&mut self, own: &MambaSpec) {
        raise(&mut self.channels, own.x.n_out());
        raise(&mut self.inner, own.x.n_out());
        raise(&mut self.dt, own.dt.n_out());
        raise(&mut self.low, own.low.n_out().next_multiple_of(4));
        raise(&mut self.bc, own.b.n_out() + own.c.n_out());
    }

    fn take_mamba2(&mut self, own: &Mamba2Spec) {
        raise(&mut self.channels, own.xbc.n_out());
        raise(&mut self.inner, own.z.n_out());
        raise(&mut self.dt, own.n_heads);
    }
}

/// Returns how many tokens of a row are read back with their logits at most: a row of more is read back whole, and one that has
/// less than twice as many.
pub(crate) fn pairs_max(n_vocab: usize) -> usize {
    (TOP_K_MAX as usize).min(n_vocab / 2)
}

/// Raises a number to another.
fn raise(most: &mut usize, n: usize) {
    *most = (*most).max(n);
}

impl RowLimits {
    /// Returns how many rows passes of a model may have on a device; an encoder's text is one pass.
    ///
    /// # Errors
    /// Not even one row fits into a binding, or not a whole text.
    pub(crate) fn of(spec: &ModelSpec, gpu: &Gpu, n_ctx: usize) -> Result<RowLimits, BackendError> {
        let words_max = usize::try_from(gpu.info().binding_bytes_max / 4).unwrap_or(usize::MAX);
        let widest = Widths::of(spec).widest(spec.n_embd);
        let wanted = if spec.is_encoder { n_ctx } else { ROWS_MAX.min(n_ctx.max(1)) };
        let n_rows = wanted.min(words_max / widest.max(1));
        if n_rows == 0 || spec.is_encoder && n_rows < n_ctx {
            let line = format!(
                "backend gpu: {} grants bindings of {} bytes, and a row of this model takes {}; use native",
                gpu.info().name,
                gpu.info().binding_bytes_max,
                4 * widest
            );
            return Err(BackendError::unsupported(line));
        }
        let n_logits_max = (LOGIT_BYTES_MAX / 4).min(words_max) / spec.n_vocab.max(1);
        Ok(RowLimits { n_rows, n_outputs: n_logits_max.clamp(1, n_rows) })
    }
}

impl Scratch {
    /// Makes the buffers; `split_words` has what the splits of attention take for a row.
    pub(crate) fn new(
        gpu: &Gpu,
        spec: &ModelSpec,
        limits: RowLimits,
        split_words: usize,
    ) -> Result<Scratch, BackendError> {
        let (widths, n_embd) = (Widths::of(spec), spec.n_embd);
        let buffer = |name: &str, n_words: usize| gpu.buffer(name, n_words).map_err(failed);
        let rows = |name: &str, width: usize| buffer(name, limits.n_rows * width);
        let two = |name: &str, width: usize| Ok::<_, BackendError>([rows(name, width)?, rows(name, width)?]);
        let has_head = spec.output.head.is_some();
        let n_pairs = if has_head { pairs_max(spec.n_vocab) } else { 0 };
        let has_positions = spec.input.positions.is_some() || spec.input.types.is_some();
        let has_experts = widths.n_experts > 0;
        let of_experts = |width: usize| if has_experts { width } else { 0 };
        Ok(Scratch {
            stream: two("residual stream", n_embd)?,
            normed: two("inputs of branches", n_embd)?,
            branch: two("branch", n_embd)?,
            q: two("queries", widths.q)?,
            k: two("keys", widths.k)?,
            v: rows("values", widths.v)?,
            splits: buffer("splits of attention", SPLIT_ROWS_MAX * split_words)?,
            attended: rows("mixed values", widths.attended)?,
            ssm: SsmScratch {
                channels: rows("channels", widths.ssm.channels)?,
                mixed: rows("filtered channels", widths.ssm.channels)?,
                z: rows("gates of channels", widths.ssm.inner)?,
                dt: rows("lengths of steps", widths.ssm.dt)?,
                low: two("inputs of lengths of steps", widths.ssm.low)?,
                bc: two("inputs and outputs of states", widths.ssm.bc)?,
                y: rows("results of a state space", widths.ssm.inner)?,
            },
            latent: LatentScratch {
                low: two("inputs of queries", widths.latent.low)?,
                row: two("short rows", widths.latent.row)?,
                rot: rows("rotated parts of keys", widths.latent.rot)?,
                both: rows("keys and values of short rows", widths.latent.both)?,
            },
            gate: rows("gates", widths.inner)?,
            up: rows("inner rows", widths.inner)?,
            inner: rows("activated rows", widths.inner)?,
            router: rows("logits of experts", widths.n_experts)?,
            experts: rows("chosen experts", widths.n_used)?,
            expert_weights: rows("weights of experts", widths.n_used)?,
            expert_gate: rows("gates of experts", widths.expert_inner)?,
            expert_up: rows("inner rows of experts", widths.expert_inner)?,
            expert_inner: rows("activated rows of experts", widths.expert_inner)?,
            expert_out: rows("outputs of experts", widths.n_used * n_embd)?,
            shared: rows("output of the shared expert", of_experts(n_embd))?,
            shared_gate: rows("gate of the shared expert", of_experts(1))?,
            positions: rows("positions", if has_positions { n_embd } else { 0 })?,
            angles: spec.ropes.iter().map(|rope| rows("angles", rope.n_rot)).collect::<Result<_, _>>()?,
            outputs: rows("wanted rows", n_embd)?,
            hidden: rows("final hidden states", n_embd)?,
            logits: buffer("logits", if has_head { limits.n_outputs * spec.n_vocab } else { 0 })?,
            ids: buffer("most likely tokens", limits.n_outputs)?,
            values: buffer("largest logits", limits.n_outputs)?,
            part_ids: buffer("tokens of parts", limits.n_outputs * spec.n_vocab.div_ceil(LOGITS_OF_PART) * n_pairs)?,
            pairs: buffer("tokens with their logits", limits.n_outputs * 2 * n_pairs)?,
            none: buffer("nothing", 4)?,
        })
    }
}
