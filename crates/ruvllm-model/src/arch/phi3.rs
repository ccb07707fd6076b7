//! Phi-3, 3.5 and 4-mini: fused projections; longrope chooses its factors by the context the model is opened with.

use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::rope::RopeStyle;

use crate::builder::Builder;
use crate::{LayerSpec, ModelError, ModelSpec};

pub(super) fn build(mut b: Builder<'_>) -> Result<ModelSpec, ModelError> {
    let long = b.hp.n_ctx > b.hp.rope_ctx_orig;
    let factors = if long { "rope_factors_long.weight" } else { "rope_factors_short.weight" };
    let rope = b.rope_with(RopeStyle::Neox, b.hp.rope_base, b.hp.rope_scaling, factors)?;
    // The files name a sliding window, but the reference runs them without one, and so do we.
    let layers = b.layers(|b, layer| {
        let mixer = b.attention(layer, b.causal(Some(rope)))?;
        let ffn = b.mlp(layer, Activation::Silu)?;
        Ok(LayerSpec::pre_norm(b.norm(layer, "attn_norm")?, mixer, b.norm(layer, "ffn_norm")?, ffn))
    })?;
    let (input, output) = (b.input()?, b.output()?);
    b.finish(input, layers, output)
}
