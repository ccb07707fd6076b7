//! OLMoE: query and key norms over the whole row, experts whose weights are not normalised.

use ruvllm_kernels::rope::RopeStyle;

use crate::builder::{AttentionOptions, Builder, QkNorm};
use crate::{LayerSpec, ModelError, ModelSpec};

pub(super) fn build(mut b: Builder<'_>) -> Result<ModelSpec, ModelError> {
    let rope = b.rope(RopeStyle::Neox)?;
    let layers = b.layers(|b, layer| {
        let spec = AttentionOptions { qk_norm: QkNorm::Whole, ..b.causal(Some(rope)) };
        let mixer = b.attention(layer, spec)?;
        let ffn = b.swiglu(layer, b.hp.n_ff[layer], false)?;
        Ok(LayerSpec::pre_norm(b.norm(layer, "attn_norm")?, mixer, b.norm(layer, "ffn_norm")?, ffn))
    })?;
    let (input, output) = (b.input()?, b.output()?);
    b.finish(input, layers, output)
}
