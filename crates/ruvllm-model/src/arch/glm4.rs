//! GLM-4 (0414): partial interleaved rotary, a norm before and after each branch, fused gate·up.

use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::rope::RopeStyle;

use crate::builder::Builder;
use crate::{LayerSpec, ModelError, ModelSpec};

pub(super) fn build(mut b: Builder<'_>) -> Result<ModelSpec, ModelError> {
    let rope = b.rope(RopeStyle::Norm)?;
    let layers = b.layers(|b, layer| {
        let mixer = b.attention(layer, b.causal(Some(rope)))?;
        let ffn = b.mlp(layer, Activation::Silu)?;
        Ok(LayerSpec {
            mixer_post_norm: Some(b.norm(layer, "post_attention_norm")?),
            ffn_post_norm: Some(b.norm(layer, "post_ffw_norm")?),
            ..LayerSpec::pre_norm(b.norm(layer, "attn_norm")?, mixer, b.norm(layer, "ffn_norm")?, ffn)
        })
    })?;
    let (input, output) = (b.input()?, b.output()?);
    b.finish(input, layers, output)
}
