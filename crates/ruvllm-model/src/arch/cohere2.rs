//! Command R7B (Cohere 2): one norm, branches in parallel, windowed rotary layers and global ones without positions.

use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::rope::RopeStyle;

use crate::builder::{AttentionOptions, Builder};
use crate::{LayerSpec, ModelError, ModelSpec, NormKind, Wiring};

pub(super) fn build(mut b: Builder<'_>) -> Result<ModelSpec, ModelError> {
    b.norm_kind = NormKind::Layer;
    let rope = b.rope(RopeStyle::Norm)?;
    let windowed = b.window_layers(4)?;
    let layers = b.layers(|b, layer| {
        let window = b.hp.window.filter(|_| windowed[layer]);
        let spec = AttentionOptions { window, ..b.causal(windowed[layer].then_some(rope)) };
        Ok(LayerSpec {
            mixer_norm: Some(b.norm(layer, "attn_norm")?),
            mixer: b.attention(layer, spec)?,
            mixer_post_norm: None,
            ffn_norm: None,
            ffn: Some(b.mlp(layer, Activation::Silu)?),
            ffn_post_norm: None,
            wiring: Wiring::Parallel,
        })
    })?;
    let (input, mut output) = (b.input()?, b.output()?);
    output.scale = b.keys.float("logit_scale")?.filter(|&scale| scale != 0.0).unwrap_or(1.0);
    b.finish(input, layers, output)
}
