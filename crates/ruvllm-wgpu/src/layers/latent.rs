//! Attention over one short row that all heads share (multi-head latent attention, DeepSeek).
//!
//! ```text
//! c = norm(latent(x))    r = rope(k_rot(x))    q = [q_nope, rope(q_rot)] by head
//! joint      keys [k(c), r] and values v(c) of every head are cached
//! absorbed   [c, r] is the one key head that is cached, and c its value: a query is [kᵀ·q_nope, q_rot], and v comes behind the mix
//! ```

use ruvllm_backend::BackendError;
use ruvllm_gpu::GpuBuffer;
use ruvllm_model::{ExpansionSpec, LatentAttentionSpec};

use super::{AttendedRows, AttendedShape, LayerCache, LayerSteps};
use crate::cache_shape::latent_kv;
use crate::steps::{ExpertRows, HeadPart, RotatedHeads, Target};
use crate::weights::{Experts, Linear, Norm, Weights};

/// An attention layer over a short row.
pub(super) struct LatentAttention {
    spec: LatentAttentionSpec,
    /// Low-rank projection before `q`.
    q_low: Option<(Linear, Norm)>,
    q: Linear,
    latent: Linear,
    k_rot: Linear,
    latent_norm: Norm,
    expansion: Expansion,
    o: Linear,
}

enum Expansion {
    Joint(Linear),
    /// A matrix a head each: to the space of the short row, and back to values.
    Absorbed {
        k: Experts,
        v: Experts,
    },
}

impl LatentAttention {
    pub(super) fn upload(spec: &LatentAttentionSpec, weights: &Weights<'_>) -> Result<LatentAttention, BackendError> {
        let q_low = spec.q_low.as_ref().map(|low| {
            let (down, norm) = (weights.linear(&low.down)?, weights.norm(&low.norm)?);
            Ok::<_, BackendError>((down, norm))
        });
        Ok(LatentAttention {
            q_low: q_low.transpose()?,
            q: weights.linear(&spec.q)?,
            latent: weights.linear(&spec.latent)?,
            k_rot: weights.linear(&spec.k_rot)?,
            latent_norm: weights.norm(&spec.latent_norm)?,
            expansion: match &spec.expansion {
                ExpansionSpec::Joint(kv) => Expansion::Joint(weights.linear(kv)?),
                ExpansionSpec::Absorbed { k, v } => {
                    Expansion::Absorbed { k: weights.experts(k)?, v: weights.experts(v)? }
                }
            },
            o: weights.linear(&spec.o)?,
            spec: spec.clone(),
        })
    }

    fn q_dim(&self) -> usize {
        self.spec.n_nope + self.spec.n_rot
    }

    fn n_latent(&self) -> usize {
        self.latent.matrix.n_rows
    }
}

impl<'a> LayerSteps<'a> {
    pub(super) fn attend_latent(
        &mut self,
        own: &'a LatentAttention,
        cache: &'a LayerCache,
        source: &'a GpuBuffer,
        to: Target<'a>,
    ) {
        let on = self.on;
        self.project(own, source);
        let shape = AttendedShape {
            n_heads: own.spec.n_heads,
            kv: latent_kv(&own.spec),
            scale: own.spec.scale,
            softcap: None,
            window: None,
            is_causal: true,
        };
        match &own.expansion {
            Expansion::Joint(kv) => {
                self.list.linear(kv, &on.latent.row[1], Target::write(&on.latent.both));
                self.join_heads(own);
                let rows = AttendedRows { q: &on.q[0], k: &on.k[0], v: &on.v, sinks: None };
                self.attend_over(shape, rows, cache);
                self.list.linear(&own.o, &on.attended, to);
            }
            Expansion::Absorbed { k, v } => {
                self.absorb(own, k);
                let rows = AttendedRows { q: &on.q[1], k: &on.k[0], v: &on.latent.row[1], sinks: None };
                self.attend_over(shape, rows, cache);
                let n_latent = own.n_latent();
                let back = ExpertRows {
                    x: &on.attended,
                    x_stride: own.spec.n_heads * n_latent,
                    x_slot_stride: n_latent,
                    experts: None,
                    y: &on.latent.both,
                    n_slots: own.spec.n_heads,
                };
                self.list.experts(v, back);
                self.list.linear(&own.o, &on.latent.both, to);
            }
        }
    }

    /// Adds queries, short rows and what of keys is rotated.
    fn project(&mut self, own: &'a LatentAttention, source: &'a GpuBuffer) {
        let (on, LatentAttentionSpec { n_heads, n_nope, n_rot, rope, .. }) = (self.on, &own.spec);
        let mut q_source = source;
        if let Some((down, norm)) = &own.q_low {
            self.list.linear(down, source, Target::write(&on.latent.low[0]));
            self.list.norm(norm, &on.latent.low[0], &on.latent.low[1], down.matrix.n_rows);
            q_source = &on.latent.low[1];
        }
        self.list.linear(&own.q, q_source, Target::write(&on.q[0]));
        self.list.linear(&own.latent, source, Target::write(&on.latent.row[0]));
        self.list.norm(&own.latent_norm, &on.latent.row[0], &on.latent.row[1], own.n_latent());
        self.list.linear(&own.k_rot, source, Target::write(&on.latent.rot));
        let (shape, angles) = (self.ropes[*rope], &on.angles[*rope]);
        let heads = |n_heads, head_dim, first| RotatedHeads { n_heads, head_dim, first, n_pairs: shape.n_pairs };
        self.list.rope(angles, shape.is_neox, &on.q[0], heads(*n_heads, own.q_dim(), *n_nope));
        self.list.rope(angles, shape.is_neox, &on.latent.rot, heads(1, *n_rot, 0));
    }

    /// Adds the making of every head's keys and values.
    fn join_heads(&mut self, own: &'a LatentAttention) {
        let (on, LatentAttentionSpec { n_heads, n_nope, n_rot, v_dim, .. }) = (self.on, own.spec.clone());
        let part = |rows, offset, head_stride, stride| HeadPart { rows, offset, stride, head_stride };
        let made = |offset| part(&on.latent.both, offset, n_nope + v_dim, n_heads * (n_nope + v_dim));
        let k = |offset| part(&on.k[0], offset, own.q_dim(), n_heads * own.q_dim());
        self.list.copy_heads(made(0), k(0), n_nope, n_heads);
        self.list.copy_heads(part(&on.latent.rot, 0, 0, n_rot), k(n_nope), n_rot, n_heads);
        self.list.copy_heads(made(n_nope), part(&on.v, 0, v_dim, n_heads * v_dim), v_dim, n_heads);
    }

    /// Adds the bringing of every head's query to the space of the short row, and the one key of each row.
    fn absorb(&mut self, own: &'a LatentAttention, k: &'a Experts) {
        let (on, LatentAttentionSpec { n_heads, n_nope, n_rot, .. }) = (self.on, own.spec.clone());
        let (q_dim, n_latent) = (own.q_dim(), own.n_latent());
        let (q_width, k_dim) = (n_heads * q_dim, n_latent + n_rot);
        let to_latent = ExpertRows {
            x: &on.q[0],
            x_stride: q_width,
            x_slot_stride: q_dim,
            experts: None,
            y: &on.latent.both,
            n_slots: n_heads,
        };
        self.list.experts(k, to_latent);
        let part = |rows, offset, head_stride, stride| HeadPart { rows, offset, stride, head_stride };
        let q = |offset| part(&on.q[1], offset, k_dim, n_heads * k_dim);
        self.list.copy_heads(part(&on.latent.both, 0, n_latent, n_heads * n_latent), q(0), n_latent, n_heads);
        self.list.copy_heads(part(&on.q[0], n_nope, q_dim, q_width), q(n_latent), n_rot, n_heads);
        let key = |offset| part(&on.k[0], offset, k_dim, k_dim);
        self.list.copy_heads(part(&on.latent.row[1], 0, 0, n_latent), key(0), n_latent, 1);
        self.list.copy_heads(part(&on.latent.rot, 0, 0, n_rot), key(n_latent), n_rot, 1);
    }
}
