//! Falcon-H1: attention and a state space read the same in every layer. Converters fold its multipliers into the weights.

use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::rope::RopeStyle;

use crate::builder::Builder;
use crate::{LayerSpec, MixerSpec, ModelError, ModelSpec, NormSpec};

pub(super) fn build(mut b: Builder<'_>) -> Result<ModelSpec, ModelError> {
    let rope = b.rope(RopeStyle::Neox)?;
    let layers = b.layers(|b, layer| {
        let attention = b.self_attention(layer, b.causal(Some(rope)))?;
        let mixer = MixerSpec::AttentionAndMamba2(attention, b.mamba2(layer)?);
        let ffn = b.mlp(layer, Activation::Silu)?;
        Ok(LayerSpec::pre_norm(b.norm(layer, "attn_norm")?, mixer, ffn_norm(b, layer)?, ffn))
    })?;
    let (input, output) = (b.input()?, b.output()?);
    b.finish(input, layers, output)
}

/// Describes the norm before the feed-forward block, which files of this architecture name without `.weight`.
fn ffn_norm(b: &Builder<'_>, layer: usize) -> Result<NormSpec, ModelError> {
    if let Some(norm) = b.norm_if_any(layer, "ffn_norm")? {
        return Ok(norm);
    }
    let weight = b.tensors.vector(&format!("blk.{layer}.ffn_norm"), b.hp.n_embd)?;
    Ok(NormSpec { kind: b.norm_kind, weight, bias: None, eps: b.hp.eps })
}
