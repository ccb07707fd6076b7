//! OLMo 2 and 3: norms after each branch only, query and key norms over the whole row; 3 adds windowed layers.

use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::rope::{RopeScaling, RopeStyle};

use crate::builder::{AttentionOptions, Builder, QkNorm};
use crate::{LayerSpec, ModelError, ModelSpec, Wiring};

pub(super) fn build(mut b: Builder<'_>) -> Result<ModelSpec, ModelError> {
    let global = b.rope(RopeStyle::Neox)?;
    // Windowed layers never see stretched positions.
    let base = b.keys.float("rope.freq_base_swa")?.unwrap_or(b.hp.rope_base);
    let local = b.rope_with(RopeStyle::Neox, base, RopeScaling::None, "rope_freqs.weight")?;
    let windowed = b.window_layers(4)?;
    let layers = b.layers(|b, layer| {
        let window = b.hp.window.filter(|_| windowed[layer]);
        let rope = if window.is_some() { local } else { global };
        let spec = AttentionOptions { window, qk_norm: QkNorm::Whole, ..b.causal(Some(rope)) };
        Ok(LayerSpec {
            mixer_norm: None,
            mixer: b.attention(layer, spec)?,
            mixer_post_norm: Some(b.norm(layer, "post_attention_norm")?),
            ffn_norm: None,
            ffn: Some(b.mlp(layer, Activation::Silu)?),
            ffn_post_norm: Some(b.norm(layer, "post_ffw_norm")?),
            wiring: Wiring::Sequential,
        })
    })?;
    let (input, output) = (b.input()?, b.output()?);
    b.finish(input, layers, output)
}
