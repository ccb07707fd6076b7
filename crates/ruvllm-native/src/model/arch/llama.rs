//! Llama 1–3, SmolLM, Mistral and, with experts, Mixtral.

use ruvllm_kernels::rope::RopeStyle;

use super::super::builder::{AttentionSpec, Builder};
use super::super::{Layer, Model};
use ruvllm_backend::BackendError;

pub(super) fn build(mut b: Builder<'_>) -> Result<Model, BackendError> {
    let rope = b.rope(RopeStyle::Norm)?;
    let layers = b.layers(|b, layer| {
        // Llama files have no window; a Mistral file that names one means it for every layer.
        let spec = AttentionSpec { window: b.hp.window, ..b.causal(Some(rope)) };
        let mixer = b.attention(layer, spec)?;
        let ffn = b.swiglu(layer, b.hp.n_ff[layer], true)?;
        Ok(Layer::pre_norm(b.norm(layer, "attn_norm")?, mixer, b.norm(layer, "ffn_norm")?, ffn))
    })?;
    let (input, output) = (b.input()?, b.output()?);
    b.finish(input, layers, output)
}
