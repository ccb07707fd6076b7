//! GPT-2: learned positions, LayerNorm, fused projections, a plain GELU block.

use ruvllm_kernels::activation::Activation;

use super::super::blocks::NormKind;
use super::super::builder::Builder;
use super::super::{Input, Layer, Model};
use ruvllm_backend::BackendError;

pub(super) fn build(mut b: Builder<'_>) -> Result<Model, BackendError> {
    b.norm_kind = NormKind::Layer;
    let layers = b.layers(|b, layer| {
        let mixer = b.attention(layer, b.causal(None))?;
        let ffn = b.mlp(layer, Activation::GeluTanh)?;
        Ok(Layer::pre_norm(b.norm(layer, "attn_norm")?, mixer, b.norm(layer, "ffn_norm")?, ffn))
    })?;
    let positions = Some(b.loader.embedding("position_embd.weight", b.hp.n_embd)?);
    let (input, output) = (Input { positions, ..b.input()? }, b.output()?);
    b.finish(input, layers, output)
}
