//! gpt-oss: attention sinks, a window on every other layer, biased experts with a clamped SwiGLU, YaRN.

use ruvllm_kernels::rope::RopeStyle;

use super::super::blocks::{ExpertActivation, Gating};
use super::super::builder::{AttentionSpec, Builder, MoeSpec};
use super::super::{Layer, Model};
use ruvllm_backend::BackendError;

pub(super) fn build(mut b: Builder<'_>) -> Result<Model, BackendError> {
    let rope = b.rope(RopeStyle::Neox)?;
    let windowed = b.window_layers(2)?;
    let n_ff = b.keys.need_count("expert_feed_forward_length")?;
    let moe = MoeSpec {
        n_ff,
        gating: Gating::SoftmaxOfChosen,
        normalize: false,
        activation: ExpertActivation::ClampedSwiglu { alpha: 1.702, limit: 7.0 },
    };
    let layers = b.layers(|b, layer| {
        let window = b.hp.window.filter(|_| windowed[layer]);
        let mixer = b.attention(layer, AttentionSpec { window, ..b.causal(Some(rope)) })?;
        let ffn = b.moe(layer, moe)?;
        Ok(Layer::pre_norm(b.norm(layer, "attn_norm")?, mixer, b.norm(layer, "post_attention_norm")?, ffn))
    })?;
    let (input, output) = (b.input()?, b.output()?);
    b.finish(input, layers, output)
}
