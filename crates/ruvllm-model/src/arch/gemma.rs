//! Gemma: embeddings scaled by √n_embd, GeGLU. (The file's norm weights already hold the +1.)

use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::rope::RopeStyle;

use crate::builder::{AttentionOptions, Builder};
use crate::{InputSpec, LayerSpec, ModelError, ModelSpec};

pub(super) fn build(mut b: Builder<'_>) -> Result<ModelSpec, ModelError> {
    let rope = b.rope(RopeStyle::Neox)?;
    let layers = b.layers(|b, layer| {
        let mixer = b.attention(layer, b.causal(Some(rope)))?;
        let ffn = b.mlp(layer, Activation::GeluTanh)?;
        Ok(LayerSpec::pre_norm(b.norm(layer, "attn_norm")?, mixer, b.norm(layer, "ffn_norm")?, ffn))
    })?;
    let (input, output) = (scaled_input(&b)?, b.output()?);
    b.finish(input, layers, output)
}

/// Token embeddings scaled by √n_embd, as every Gemma has them.
pub(super) fn scaled_input(b: &Builder<'_>) -> Result<InputSpec, ModelError> {
    Ok(InputSpec { scale: (b.hp.n_embd as f32).sqrt(), ..b.input()? })
}

/// A layer with a norm before and after each branch.
pub(super) fn sandwich(b: &mut Builder<'_>, layer: usize, spec: AttentionOptions) -> Result<LayerSpec, ModelError> {
    let mixer = b.attention(layer, spec)?;
    let ffn = b.mlp(layer, Activation::GeluTanh)?;
    Ok(LayerSpec {
        mixer_post_norm: Some(b.norm(layer, "post_attention_norm")?),
        ffn_post_norm: Some(b.norm(layer, "post_ffw_norm")?),
        ..LayerSpec::pre_norm(b.norm(layer, "attn_norm")?, mixer, b.norm(layer, "ffn_norm")?, ffn)
    })
}

/// The score scale of Gemma 2 and 3: the largest model divides by the width of a head's share of the embedding.
pub(super) fn score_scale(b: &Builder<'_>, layers_of_27b: usize) -> f32 {
    let width = if b.hp.n_layers == layers_of_27b { b.hp.n_embd / b.hp.n_heads[0] } else { b.hp.k_dim };
    1.0 / (width as f32).sqrt()
}
