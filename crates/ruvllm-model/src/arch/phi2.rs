//! Phi-1 and Phi-2: LayerNorm, partial rotary, attention and a plain GELU block in parallel after one norm.

use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::rope::RopeStyle;

use crate::builder::Builder;
use crate::{LayerSpec, ModelError, ModelSpec, NormKind, Wiring};

pub(super) fn build(mut b: Builder<'_>) -> Result<ModelSpec, ModelError> {
    b.norm_kind = NormKind::Layer;
    let rope = b.rope(RopeStyle::Neox)?;
    let layers = b.layers(|b, layer| {
        Ok(LayerSpec {
            mixer_norm: Some(b.norm(layer, "attn_norm")?),
            mixer: b.attention(layer, b.causal(Some(rope)))?,
            mixer_post_norm: None,
            ffn_norm: None,
            ffn: Some(b.mlp(layer, Activation::GeluTanh)?),
            ffn_post_norm: None,
            wiring: Wiring::Parallel,
        })
    })?;
    let (input, output) = (b.input()?, b.output()?);
    b.finish(input, layers, output)
}
