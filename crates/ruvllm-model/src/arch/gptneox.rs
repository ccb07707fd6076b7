//! GPT-NeoX and Pythia: LayerNorm, partial rotary, erf GELU, branches in parallel with a norm each.

use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::rope::RopeStyle;

use crate::builder::Builder;
use crate::{LayerSpec, ModelError, ModelSpec, NormKind, Wiring};

pub(super) fn build(mut b: Builder<'_>) -> Result<ModelSpec, ModelError> {
    b.norm_kind = NormKind::Layer;
    let rope = b.rope(RopeStyle::Neox)?;
    let parallel = b.keys.flag("use_parallel_residual")?.unwrap_or(true);
    let layers = b.layers(|b, layer| {
        let mixer = b.attention(layer, b.causal(Some(rope)))?;
        let ffn = b.mlp(layer, Activation::GeluErf)?;
        Ok(LayerSpec {
            wiring: if parallel { Wiring::Parallel } else { Wiring::Sequential },
            ..LayerSpec::pre_norm(b.norm(layer, "attn_norm")?, mixer, b.norm(layer, "ffn_norm")?, ffn)
        })
    })?;
    let (input, output) = (b.input()?, b.output()?);
    b.finish(input, layers, output)
}
