//! Mamba and FalconMamba: a selective state space behind a norm is all there is to a layer.

use crate::builder::Builder;
use crate::{LayerSpec, MixerSpec, ModelError, ModelSpec};

pub(super) fn build(mut b: Builder<'_>) -> Result<ModelSpec, ModelError> {
    let layers = b.layers(|b, layer| {
        let mixer = MixerSpec::Mamba(b.mamba(layer)?);
        Ok(LayerSpec::mixer_only(b.norm(layer, "attn_norm")?, mixer))
    })?;
    let (input, output) = (b.input()?, b.output()?);
    b.finish(input, layers, output)
}
