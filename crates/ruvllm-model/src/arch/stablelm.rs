//! StableLM 2: LayerNorm, partial rotary, SwiGLU; without an FFN norm the two branches run in parallel.

use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::rope::RopeStyle;

use crate::builder::Builder;
use crate::{LayerSpec, ModelError, ModelSpec, NormKind, Wiring};

pub(super) fn build(mut b: Builder<'_>) -> Result<ModelSpec, ModelError> {
    b.norm_kind = NormKind::Layer;
    let rope = b.rope(RopeStyle::Neox)?;
    let layers = b.layers(|b, layer| {
        let ffn_norm = b.norm_if_any(layer, "ffn_norm")?;
        Ok(LayerSpec {
            mixer_norm: Some(b.norm(layer, "attn_norm")?),
            mixer: b.attention(layer, b.causal(Some(rope)))?,
            mixer_post_norm: None,
            wiring: if ffn_norm.is_some() { Wiring::Sequential } else { Wiring::Parallel },
            ffn_norm,
            ffn: Some(b.mlp(layer, Activation::Silu)?),
            ffn_post_norm: None,
        })
    })?;
    let (input, output) = (b.input()?, b.output()?);
    b.finish(input, layers, output)
}
