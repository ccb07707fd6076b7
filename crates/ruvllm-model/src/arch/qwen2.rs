//! Qwen 2 and 2.5 (biases on the query, key and value projections), dense or with experts.

use ruvllm_kernels::rope::RopeStyle;

use crate::builder::Builder;
use crate::{LayerSpec, ModelError, ModelSpec};

pub(super) fn build(b: Builder<'_>) -> Result<ModelSpec, ModelError> {
    build_with(b, false)
}

/// Qwen 2 and 3 differ in what the tensors say (biases or head norms) and in whether expert weights are normalised.
pub(super) fn build_with(mut b: Builder<'_>, normalize: bool) -> Result<ModelSpec, ModelError> {
    let rope = b.rope(RopeStyle::Neox)?;
    let n_ff_expert = b.keys.count("expert_feed_forward_length")?;
    let layers = b.layers(|b, layer| {
        let mixer = b.attention(layer, b.causal(Some(rope)))?;
        let n_ff_share = b.hp.n_ff[layer] / b.hp.n_experts_used.max(1);
        let ffn = b.swiglu(layer, n_ff_expert.unwrap_or(n_ff_share), normalize)?;
        Ok(LayerSpec::pre_norm(b.norm(layer, "attn_norm")?, mixer, b.norm(layer, "ffn_norm")?, ffn))
    })?;
    let (input, output) = (b.input()?, b.output()?);
    b.finish(input, layers, output)
}
