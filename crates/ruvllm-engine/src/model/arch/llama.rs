//! Llama 1–3, SmolLM, Mistral and, with experts, Mixtral.

use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::rope::RopeStyle;

use super::super::blocks::{ExpertActivation, Gating};
use super::super::builder::{AttentionSpec, Builder, MoeSpec};
use super::super::{Layer, Model};
use crate::EngineError;

pub(super) fn build(mut b: Builder<'_>) -> Result<Model, EngineError> {
    let rope = b.rope(RopeStyle::Norm)?;
    let layers = b.layers(|b, layer| {
        // Llama files have no window; a Mistral file that names one means it for every layer.
        let spec = AttentionSpec { window: b.hp.window, ..b.causal(Some(rope)) };
        let mixer = b.attention(layer, spec)?;
        let ffn = match b.hp.n_experts {
            0 => b.mlp(layer, Activation::Silu)?,
            _ => b.moe(
                layer,
                MoeSpec {
                    n_ff: b.hp.n_ff[layer],
                    gating: Gating::Softmax,
                    normalize: true,
                    activation: ExpertActivation::Gated(Activation::Silu),
                },
            )?,
        };
        Ok(Layer::pre_norm(b.norm(layer, "attn_norm")?, mixer, b.norm(layer, "ffn_norm")?, ffn))
    })?;
    let (input, output) = (b.input()?, b.output()?);
    b.finish(input, layers, output)
}
