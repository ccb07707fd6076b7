//! gpt-oss: attention sinks, a window on every other layer, biased experts with a clamped SwiGLU, YaRN.

use ruvllm_kernels::rope::RopeStyle;

use crate::builder::{AttentionOptions, Builder, MoeOptions};
use crate::{ExpertActivation, Gating, LayerSpec, ModelError, ModelSpec};

pub(super) fn build(mut b: Builder<'_>) -> Result<ModelSpec, ModelError> {
    let rope = b.rope(RopeStyle::Neox)?;
    let windowed = b.window_layers(2)?;
    let n_ff = b.keys.need_count("expert_feed_forward_length")?;
    let moe = MoeOptions {
        n_ff,
        gating: Gating::SoftmaxOfChosen,
        normalize: false,
        activation: ExpertActivation::ClampedSwiglu { alpha: 1.702, limit: 7.0 },
    };
    let layers = b.layers(|b, layer| {
        let window = b.hp.window.filter(|_| windowed[layer]);
        let mixer = b.attention(layer, AttentionOptions { window, ..b.causal(Some(rope)) })?;
        let ffn = b.moe(layer, moe)?;
        Ok(LayerSpec::pre_norm(b.norm(layer, "attn_norm")?, mixer, b.norm(layer, "post_attention_norm")?, ffn))
    })?;
    let (input, output) = (b.input()?, b.output()?);
    b.finish(input, layers, output)
}
