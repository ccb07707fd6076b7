//! Llama 1–3, SmolLM, Mistral and, with experts, Mixtral.

use ruvllm_kernels::rope::RopeStyle;

use crate::builder::{AttentionOptions, Builder};
use crate::{LayerSpec, ModelError, ModelSpec};

pub(super) fn build(mut b: Builder<'_>) -> Result<ModelSpec, ModelError> {
    let rope = b.rope(RopeStyle::Norm)?;
    let layers = b.layers(|b, layer| {
        // Llama files have no window; a Mistral file that names one means it for every layer.
        let spec = AttentionOptions { window: b.hp.window, ..b.causal(Some(rope)) };
        let mixer = b.attention(layer, spec)?;
        let ffn = b.swiglu(layer, b.hp.n_ff[layer], true)?;
        Ok(LayerSpec::pre_norm(b.norm(layer, "attn_norm")?, mixer, b.norm(layer, "ffn_norm")?, ffn))
    })?;
    let (input, output) = (b.input()?, b.output()?);
    b.finish(input, layers, output)
}
