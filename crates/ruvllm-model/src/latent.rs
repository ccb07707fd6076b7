//! Attention over one short row that all heads share: its sizes, within bounds, and the block that is made of them.

use crate::ModelError;
use crate::builder::Builder;
use crate::spec::{ExpansionSpec, LatentAttentionSpec, LinearSpec, LowRankSpec};

/// What an architecture says about one such layer; metadata and tensors say the rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct LatentOptions {
    /// Index of the rotary table.
    pub rope: usize,
    pub scale: f32,
}

impl Builder<'_> {
    /// Returns the length of a key head, before and behind what is made of the short row. Files that name the length in the space
    /// of the short row have that of a head by a key of its own.
    pub(super) fn latent_k_dim(&self) -> Result<usize, ModelError> {
        let k_dim = self.keys.count("attention.key_length_mla")?.filter(|&n| n > 0).unwrap_or(self.hp.k_dim);
        match k_dim > self.hp.n_rot {
            true => Ok(k_dim),
            false => Err(ModelError::damaged(format!(
                "keys of {k_dim} values have none beside the {} that are rotated",
                self.hp.n_rot
            ))),
        }
    }

    /// Describes such a block of a layer.
    pub(super) fn latent_attention(
        &mut self,
        layer: usize,
        options: LatentOptions,
    ) -> Result<LatentAttentionSpec, ModelError> {
        let (n_embd, n_rot, n_heads) = (self.hp.n_embd, self.hp.n_rot, self.hp.n_heads[layer]);
        if n_heads == 0 {
            return Err(ModelError::damaged(format!("layer {layer} has no attention heads")));
        }
        let k_dim = self.latent_k_dim()?;
        let n_nope = k_dim - n_rot;
        let v_dim = self.keys.count("attention.value_length_mla")?.filter(|&n| n > 0).unwrap_or(self.hp.v_dim);
        let n_latent = self.keys.need_count("attention.kv_lora_rank")?;
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (q_low, q) = self.latent_query(layer, n_heads * k_dim)?;
        let [latent, k_rot] = self.parts(&name("attn_kv_a_mqa"), n_embd, [n_latent, n_rot])?;
        let expansion = if self.tensors.has(&name("attn_kv_b.weight")) {
            ExpansionSpec::Joint(self.linear(&name("attn_kv_b"), n_latent, n_heads * (n_nope + v_dim))?)
        } else {
            ExpansionSpec::Absorbed {
                k: self.stacked(&name("attn_k_b"), n_heads, n_nope, n_latent)?,
                v: self.stacked(&name("attn_v_b"), n_heads, n_latent, v_dim)?,
            }
        };
        Ok(LatentAttentionSpec {
            q_low,
            q,
            latent,
            k_rot,
            latent_norm: self.tensors.norm(self.norm_kind, &name("attn_kv_a_norm"), n_latent, self.hp.eps)?,
            expansion,
            o: self.linear(&name("attn_output"), n_heads * v_dim, n_embd)?,
            n_heads,
            n_nope,
            n_rot,
            v_dim,
            rope: options.rope,
            scale: options.scale,
        })
    }

    /// Describes how queries are made: by one matrix, or by two with a norm between them.
    fn latent_query(&mut self, layer: usize, n_q: usize) -> Result<(Option<LowRankSpec>, LinearSpec), ModelError> {
        let (n_embd, name) = (self.hp.n_embd, |part: &str| format!("blk.{layer}.{part}"));
        if self.tensors.has(&name("attn_q.weight")) {
            return Ok((None, self.linear(&name("attn_q"), n_embd, n_q)?));
        }
        let n_low = self.keys.need_count("attention.q_lora_rank")?;
        let down = self.linear(&name("attn_q_a"), n_embd, n_low)?;
        let norm = self.tensors.norm(self.norm_kind, &name("attn_q_a_norm"), n_low, self.hp.eps)?;
        Ok((Some(LowRankSpec { down, norm }), self.linear(&name("attn_q_b"), n_low, n_q)?))
    }
}

#[cfg(test)]
mod tests;
