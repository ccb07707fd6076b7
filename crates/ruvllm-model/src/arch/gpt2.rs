//! GPT-2: learned positions, LayerNorm, fused projections, a plain GELU block.

use ruvllm_kernels::activation::Activation;

use crate::builder::Builder;
use crate::{InputSpec, LayerSpec, ModelError, ModelSpec, NormKind};

pub(super) fn build(mut b: Builder<'_>) -> Result<ModelSpec, ModelError> {
    b.norm_kind = NormKind::Layer;
    let layers = b.layers(|b, layer| {
        let mixer = b.attention(layer, b.causal(None))?;
        let ffn = b.mlp(layer, Activation::GeluTanh)?;
        Ok(LayerSpec::pre_norm(b.norm(layer, "attn_norm")?, mixer, b.norm(layer, "ffn_norm")?, ffn))
    })?;
    let positions = Some(b.tensors.embedding("position_embd.weight", b.hp.n_embd)?);
    let (input, output) = (InputSpec { positions, ..b.input()? }, b.output()?);
    b.finish(input, layers, output)
}
