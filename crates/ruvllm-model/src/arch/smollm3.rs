//! SmolLM3: Llama without rotary positions in every fourth layer.

use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::rope::RopeStyle;

use crate::builder::Builder;
use crate::{LayerSpec, ModelError, ModelSpec};

/// Every n-th layer has no rotary positions.
const NO_ROPE_STEP: usize = 4;

pub(super) fn build(mut b: Builder<'_>) -> Result<ModelSpec, ModelError> {
    let rope = b.rope(RopeStyle::Norm)?;
    let layers = b.layers(|b, layer| {
        let rotated = !(layer + 1).is_multiple_of(NO_ROPE_STEP);
        let mixer = b.attention(layer, b.causal(rotated.then_some(rope)))?;
        let ffn = b.mlp(layer, Activation::Silu)?;
        Ok(LayerSpec::pre_norm(b.norm(layer, "attn_norm")?, mixer, b.norm(layer, "ffn_norm")?, ffn))
    })?;
    let (input, output) = (b.input()?, b.output()?);
    b.finish(input, layers, output)
}
