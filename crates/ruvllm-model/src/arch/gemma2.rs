//! Gemma 2: norms around each branch, soft-capped scores and logits, a window on every other layer.

use ruvllm_kernels::rope::RopeStyle;

use super::gemma;
use crate::builder::{AttentionOptions, Builder};
use crate::{ModelError, ModelSpec};

pub(super) fn build(mut b: Builder<'_>) -> Result<ModelSpec, ModelError> {
    let rope = b.rope(RopeStyle::Neox)?;
    let windowed = b.window_layers(2)?;
    let softcap = Some(b.keys.float("attn_logit_softcapping")?.unwrap_or(50.0));
    let scale = gemma::score_scale(&b, 46);
    let layers = b.layers(|b, layer| {
        let window = b.hp.window.filter(|_| windowed[layer]);
        let spec = AttentionOptions { scale, softcap, window, ..b.causal(Some(rope)) };
        gemma::sandwich(b, layer, spec)
    })?;
    let (input, mut output) = (gemma::scaled_input(&b)?, b.output()?);
    output.softcap = Some(b.keys.float("final_logit_softcapping")?.unwrap_or(30.0));
    b.finish(input, layers, output)
}
