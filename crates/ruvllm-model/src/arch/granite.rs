//! Granite 3 and 4 (dense or with experts): Llama with multipliers on embeddings, branches, scores and logits.

use ruvllm_kernels::rope::RopeStyle;

use crate::builder::Builder;
use crate::{LayerSpec, ModelError, ModelSpec};

pub(super) fn build(mut b: Builder<'_>) -> Result<ModelSpec, ModelError> {
    // Granite uses this key as a switch: without it positions are not rotated at all.
    let rotated = b.keys.flag("rope.scaling.finetuned")?.unwrap_or(true);
    let rope = if rotated { Some(b.rope(RopeStyle::Norm)?) } else { None };
    let layers = b.layers(|b, layer| {
        let mixer = b.attention(layer, b.causal(rope))?;
        let ffn = b.swiglu(layer, b.hp.n_ff[layer], true)?;
        Ok(LayerSpec::pre_norm(b.norm(layer, "attn_norm")?, mixer, b.norm(layer, "ffn_norm")?, ffn))
    })?;
    let (mut input, mut output) = (b.input()?, b.output()?);
    let positive = |scale: Option<f32>| scale.filter(|&scale| scale != 0.0).unwrap_or(1.0);
    input.scale = positive(b.keys.float("embedding_scale")?);
    output.scale = 1.0 / positive(b.keys.float("logit_scale")?);
    let residual_scale = positive(b.keys.float("residual_scale")?);
    Ok(ModelSpec { residual_scale, ..b.finish(input, layers, output)? })
}
