//! Self-attention: keys and values of a sequence are tensors that grow, so that a fork is a clone.

use candle_core::{Device, Result, Tensor};
use ruvllm_backend::BackendError;
use ruvllm_kernels::rope::{Rope, RopeStyle};
use ruvllm_model::AttentionSpec;

use crate::weights::{Linear, Norm, Weights, capped, softmax};

/// Keys and values of a sequence in one layer: `[n_kv_heads, n_tokens, dim]`.
#[derive(Clone)]
pub(crate) struct Kv {
    pub keys: Tensor,
    pub values: Tensor,
}

impl Kv {
    /// Adds later tokens to those of a sequence, and returns all.
    pub(crate) fn after(self, old: Option<Kv>) -> Result<Kv> {
        match old {
            None => Ok(self),
            Some(old) => Ok(Kv {
                keys: Tensor::cat(&[old.keys, self.keys], 1)?,
                values: Tensor::cat(&[old.values, self.values], 1)?,
            }),
        }
    }

    /// Returns the first `n_tokens`.
    pub(crate) fn first(&self, n_tokens: usize) -> Result<Kv> {
        Ok(Kv { keys: self.keys.narrow(1, 0, n_tokens)?, values: self.values.narrow(1, 0, n_tokens)? })
    }
}

/// Cosines and sines of consecutive positions: `[n, n_rot / 2]`.
pub(crate) struct Angles {
    style: RopeStyle,
    cos: Tensor,
    sin: Tensor,
}

impl Angles {
    pub(crate) fn new(rope: &Rope, positions: std::ops::Range<usize>, device: &Device) -> Result<Angles> {
        let (n, n_half) = (positions.len(), rope.n_rot() / 2);
        let (mut cos, mut sin) = (vec![0.0; n * n_half], vec![0.0; n * n_half]);
        for (i, pos) in positions.enumerate() {
            let part = i * n_half..(i + 1) * n_half;
            rope.angles(pos as u32, &mut cos[part.clone()], &mut sin[part]);
        }
        let table = |values| Tensor::from_vec(values, (n, n_half), device);
        Ok(Angles { style: rope.style(), cos: table(cos)?, sin: table(sin)? })
    }

    /// Turns heads: `[n_heads, n, dim]`.
    pub(crate) fn turn(&self, x: &Tensor) -> Result<Tensor> {
        let (n_heads, n, dim) = x.dims3()?;
        let n_half = self.cos.dim(1)?;
        let turned = x.narrow(2, 0, 2 * n_half)?;
        let pairs = match self.style {
            RopeStyle::Neox => turned.reshape((n_heads, n, 2, n_half))?,
            RopeStyle::Norm => turned.reshape((n_heads, n, n_half, 2))?.transpose(2, 3)?,
        };
        let (a, b) = (pairs.narrow(2, 0, 1)?.squeeze(2)?, pairs.narrow(2, 1, 1)?.squeeze(2)?);
        let by = |x: &Tensor, factor: &Tensor| x.broadcast_mul(factor);
        let first = (by(&a, &self.cos)? - by(&b, &self.sin)?)?;
        let second = (by(&a, &self.sin)? + by(&b, &self.cos)?)?;
        let turned = match self.style {
            RopeStyle::Neox => Tensor::cat(&[first, second], 2)?,
            RopeStyle::Norm => Tensor::stack(&[first, second], 3)?.reshape((n_heads, n, 2 * n_half))?,
        };
        match dim - 2 * n_half {
            0 => Ok(turned),
            n_rest => Tensor::cat(&[turned, x.narrow(2, 2 * n_half, n_rest)?], 2),
        }
    }
}

/// An attention layer.
pub(crate) struct Attention {
    spec: AttentionSpec,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    q_norm: Option<Norm>,
    k_norm: Option<Norm>,
    /// `[n_heads]`
    sinks: Option<Tensor>,
}

impl Attention {
    pub(crate) fn make(spec: &AttentionSpec, weights: &Weights<'_>) -> std::result::Result<Attention, BackendError> {
        Ok(Attention {
            q: weights.linear(&spec.q)?,
            k: weights.linear(&spec.k)?,
            v: weights.linear(&spec.v)?,
            o: weights.linear(&spec.o)?,
            q_norm: weights.norm(spec.q_norm.as_ref())?,
            k_norm: weights.norm(spec.k_norm.as_ref())?,
            sinks: weights.table_if_any(spec.sinks.as_ref())?,
            spec: spec.clone(),
        })
    }

    /// Computes rows `[n, n_embd]` that come behind what `kv` holds, and adds theirs to it.
    pub(crate) fn forward(&self, x: &Tensor, angles: &[Angles], kv: &mut Option<Kv>) -> Result<Tensor> {
        let AttentionSpec { n_heads, n_kv_heads, k_dim, v_dim, .. } = self.spec;
        let n = x.dim(0)?;
        let angles = self.spec.rope.map(|rope| &angles[rope]);
        let heads = |x: Tensor, n_heads: usize, norm: Option<&Norm>| {
            let x = place(x, norm)?.reshape((n, n_heads, k_dim))?.transpose(0, 1)?.contiguous()?;
            angles.map_or(Ok(x.clone()), |angles| angles.turn(&x))
        };
        let q = heads(self.q.forward(x)?, n_heads, self.q_norm.as_ref())?;
        let keys = heads(self.k.forward(x)?, n_kv_heads, self.k_norm.as_ref())?;
        let values = self.v.forward(x)?.reshape((n, n_kv_heads, v_dim))?.transpose(0, 1)?.contiguous()?;
        let all = Kv { keys, values }.after(kv.take())?;
        let mixed = self.attend(&q, &all)?;
        *kv = Some(all);
        self.o.forward(&mixed.transpose(0, 1)?.reshape((n, n_heads * v_dim))?)
    }

    /// Returns `[n_heads, n, v_dim]` of queries `[n_heads, n, k_dim]`.
    fn attend(&self, q: &Tensor, kv: &Kv) -> Result<Tensor> {
        let AttentionSpec { n_heads, n_kv_heads, k_dim, v_dim, .. } = self.spec;
        let (n, n_tokens, n_group) = (q.dim(1)?, kv.keys.dim(1)?, n_heads / n_kv_heads);
        let q = q.reshape((n_kv_heads, n_group * n, k_dim))?;
        let scores = (q.matmul(&kv.keys.transpose(1, 2)?.contiguous()?)? * f64::from(self.spec.scale))?;
        let scores = capped(scores, self.spec.softcap)?.reshape((n_heads, n, n_tokens))?;
        let window = self.spec.window.unwrap_or(usize::MAX);
        let sees = |query: usize, key: usize| (key <= query || !self.spec.is_causal) && query - key.min(query) < window;
        let scores = scores.broadcast_add(&mask(n, n_tokens, sees, q.device())?)?;
        let weights = match &self.sinks {
            None => softmax(&scores)?,
            Some(sinks) => {
                let sinks = sinks.reshape((n_heads, 1, 1))?.broadcast_as((n_heads, n, 1))?;
                softmax(&Tensor::cat(&[scores, sinks.contiguous()?], 2)?)?.narrow(2, 0, n_tokens)?
            }
        };
        let weights = weights.reshape((n_kv_heads, n_group * n, n_tokens))?;
        weights.matmul(&kv.values.contiguous()?)?.reshape((n_heads, n, v_dim))
    }
}

/// Returns 0 where a query sees a key and -∞ elsewhere, `[n, n_tokens]`: of the last `n` of `n_tokens`, by their positions.
pub(crate) fn mask(n: usize, n_tokens: usize, sees: impl Fn(usize, usize) -> bool, device: &Device) -> Result<Tensor> {
    let first = n_tokens - n;
    let values = (first..n_tokens).flat_map(|query| (0..n_tokens).map(move |key| (query, key)));
    let values = values.map(|(query, key)| if sees(query, key) { 0.0f32 } else { f32::NEG_INFINITY });
    Tensor::from_vec(values.collect::<Vec<f32>>(), (n, n_tokens), device)
}

/// Normalises rows of heads: each run of the norm's width by itself.
fn place(x: Tensor, norm: Option<&Norm>) -> Result<Tensor> {
    let Some(norm) = norm else { return Ok(x) };
    let (n, row_len) = x.dims2()?;
    let width = norm.width()?;
    norm.forward(&x.reshape((n, row_len / width, width))?)
}
