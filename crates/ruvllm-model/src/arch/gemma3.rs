//! Gemma 3: five windowed layers with a rotary base of their own to each global one, query and key norms.

use ruvllm_kernels::rope::{RopeScaling, RopeStyle};

use super::gemma;
use crate::builder::{AttentionOptions, Builder};
use crate::{ModelError, ModelSpec};

pub(super) fn build(mut b: Builder<'_>) -> Result<ModelSpec, ModelError> {
    let global = b.rope(RopeStyle::Neox)?;
    let base = b.keys.float("rope.freq_base_swa")?.unwrap_or(10000.0);
    let local = b.rope_with(RopeStyle::Neox, base, RopeScaling::None, "rope_freqs.weight")?;
    let windowed = b.window_layers(6)?;
    let scale = gemma::score_scale(&b, 62);
    let layers = b.layers(|b, layer| {
        let window = b.hp.window.filter(|_| windowed[layer]);
        let rope = if window.is_some() { local } else { global };
        gemma::sandwich(b, layer, AttentionOptions { scale, window, ..b.causal(Some(rope)) })
    })?;
    let (input, mut output) = (gemma::scaled_input(&b)?, b.output()?);
    output.softcap = b.keys.float("final_logit_softcapping")?.filter(|&cap| cap > 0.0);
    b.finish(input, layers, output)
}
