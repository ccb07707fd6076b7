//! Attention over a short row that heads share, computed as it is defined: the keys and values of every head are made of it and
//! kept, however the file has the matrices.

use candle_core::{D, Result, Tensor};
use ruvllm_backend::BackendError;
use ruvllm_model::{ExpansionSpec, LatentAttentionSpec, LinearSpec};

use crate::attention::{Angles, Kv, mask};
use crate::weights::{Linear, Norm, Weights, failed, normed, softmax};

/// An attention layer over a short row.
pub(crate) struct LatentAttention {
    spec: LatentAttentionSpec,
    q_down: Option<Linear>,
    q_norm: Option<Norm>,
    q: Linear,
    latent: Linear,
    latent_norm: Option<Norm>,
    k_rot: Linear,
    /// Maps the short row to keys: `[n_heads, n_latent, n_nope]`.
    k: Tensor,
    /// Maps it to values: `[n_heads, n_latent, v_dim]`.
    v: Tensor,
    o: Linear,
}

impl LatentAttention {
    pub(crate) fn make(
        spec: &LatentAttentionSpec,
        weights: &Weights<'_>,
    ) -> std::result::Result<LatentAttention, BackendError> {
        let q_low = spec.q_low.as_ref();
        let (k, v) = match &spec.expansion {
            ExpansionSpec::Joint(both) => split(&weights.matrix(&both.weight)?, spec).map_err(failed)?,
            ExpansionSpec::Absorbed { k, v } => {
                let stacked = |all: &[LinearSpec]| {
                    let all: std::result::Result<Vec<_>, _> =
                        all.iter().map(|one| weights.matrix(&one.weight)).collect();
                    Tensor::stack(&all?, 0).map_err(failed)
                };
                (stacked(k)?, stacked(v)?.transpose(1, 2).and_then(|v| v.contiguous()).map_err(failed)?)
            }
        };
        Ok(LatentAttention {
            q_down: q_low.map(|low| weights.linear(&low.down)).transpose()?,
            q_norm: weights.norm(q_low.map(|low| &low.norm))?,
            q: weights.linear(&spec.q)?,
            latent: weights.linear(&spec.latent)?,
            latent_norm: weights.norm(Some(&spec.latent_norm))?,
            k_rot: weights.linear(&spec.k_rot)?,
            k,
            v,
            o: weights.linear(&spec.o)?,
            spec: spec.clone(),
        })
    }

    /// Computes rows `[n, n_embd]` that come behind what `kv` holds, and adds theirs to it.
    pub(crate) fn forward(&self, x: &Tensor, angles: &[Angles], kv: &mut Option<Kv>) -> Result<Tensor> {
        let LatentAttentionSpec { n_heads, n_nope, n_rot, v_dim, rope, .. } = self.spec;
        let (n, angles) = (x.dim(0)?, &angles[rope]);
        let low = self.q_down.as_ref().map_or_else(|| Ok(x.clone()), |down| down.forward(x))?;
        let q = self.q.forward(&normed(self.q_norm.as_ref(), &low)?)?;
        let q = q.reshape((n, n_heads, n_nope + n_rot))?.transpose(0, 1)?.contiguous()?;
        let turned = angles.turn(&q.narrow(2, n_nope, n_rot)?.contiguous()?)?;
        let q = Tensor::cat(&[q.narrow(2, 0, n_nope)?, turned], 2)?;
        let latent = normed(self.latent_norm.as_ref(), &self.latent.forward(x)?)?.unsqueeze(0)?;
        let k_rot = angles.turn(&self.k_rot.forward(x)?.unsqueeze(0)?)?.broadcast_as((n_heads, n, n_rot))?;
        let values = latent.broadcast_matmul(&self.v)?;
        let keys = Tensor::cat(&[latent.broadcast_matmul(&self.k)?, k_rot.contiguous()?], 2)?;
        let all = Kv { keys, values }.after(kv.take())?;
        let scores = (q.matmul(&all.keys.transpose(1, 2)?.contiguous()?)? * f64::from(self.spec.scale))?;
        let seen = mask(n, scores.dim(D::Minus1)?, |query, key| key <= query, x.device())?;
        let mixed = softmax(&scores.broadcast_add(&seen)?)?.matmul(&all.values.contiguous()?)?;
        *kv = Some(all);
        self.o.forward(&mixed.transpose(0, 1)?.reshape((n, n_heads * v_dim))?)
    }
}

/// Splits the matrix of all heads' keys and values: `[n_heads·(n_nope + v_dim), n_latent]`.
fn split(both: &Tensor, spec: &LatentAttentionSpec) -> Result<(Tensor, Tensor)> {
    let heads = both.reshape((spec.n_heads, spec.n_nope + spec.v_dim, both.dim(1)?))?.transpose(1, 2)?;
    let part = |at, len| heads.narrow(2, at, len)?.contiguous();
    Ok((part(0, spec.n_nope)?, part(spec.n_nope, spec.v_dim)?))
}
