//! GLM-4 (0414): partial interleaved rotary, a norm before and after each branch, fused gate·up.

use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::rope::RopeStyle;

use super::super::builder::Builder;
use super::super::{Layer, Model};
use ruvllm_backend::BackendError;

pub(super) fn build(mut b: Builder<'_>) -> Result<Model, BackendError> {
    let rope = b.rope(RopeStyle::Norm)?;
    let layers = b.layers(|b, layer| {
        let mixer = b.attention(layer, b.causal(Some(rope)))?;
        let ffn = b.mlp(layer, Activation::Silu)?;
        Ok(Layer {
            mixer_post_norm: Some(b.norm(layer, "post_attention_norm")?),
            ffn_post_norm: Some(b.norm(layer, "post_ffw_norm")?),
            ..Layer::pre_norm(b.norm(layer, "attn_norm")?, mixer, b.norm(layer, "ffn_norm")?, ffn)
        })
    })?;
    let (input, output) = (b.input()?, b.output()?);
    b.finish(input, layers, output)
}
