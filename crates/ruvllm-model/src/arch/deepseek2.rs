//! DeepSeek 2, 2.5 and 3: attention over a short row that heads share, then experts behind some dense layers.

use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::rope::{RopeScaling, RopeStyle};

use crate::builder::{Builder, MoeOptions};
use crate::latent::LatentOptions;
use crate::{ExpertActivation, Gating, LayerSpec, MixerSpec, ModelError, ModelSpec};

pub(super) fn build(mut b: Builder<'_>) -> Result<ModelSpec, ModelError> {
    let scale = take_magnitude(&mut b)?;
    let rope = b.rope(RopeStyle::Norm)?;
    let n_dense = b.keys.count("leading_dense_block_count")?.unwrap_or(0);
    let normalize = b.keys.flag("expert_weights_norm")?.unwrap_or(false);
    let n_ff = b.keys.count("expert_feed_forward_length")?.unwrap_or(0);
    let layers = b.layers(|b, layer| {
        let mixer = MixerSpec::LatentAttention(b.latent_attention(layer, LatentOptions { rope, scale })?);
        let ffn = if layer < n_dense || b.hp.n_experts == 0 {
            b.mlp(layer, Activation::Silu)?
        } else {
            let activation = ExpertActivation::Gated(Activation::Silu);
            b.moe(layer, MoeOptions { n_ff, gating: Gating::Softmax, normalize, activation })?
        };
        Ok(LayerSpec::pre_norm(b.norm(layer, "attn_norm")?, mixer, b.norm(layer, "ffn_norm")?, ffn))
    })?;
    let (input, output) = (b.input()?, b.output()?);
    b.finish(input, layers, output)
}

/// Returns what scores are multiplied with. YaRN's magnitude is theirs here: where the file says how it grows, rotated values keep
/// theirs (llama.cpp's `deepseek2.cpp`).
fn take_magnitude(b: &mut Builder<'_>) -> Result<f32, ModelError> {
    let plain = 1.0 / (b.latent_k_dim()? as f32).sqrt();
    // Converters write a tenth of it, which YaRN's formula multiplies it with.
    let growth = b.keys.float("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0);
    let RopeScaling::Yarn { factor, ext_factor, attn_factor, .. } = &mut b.hp.rope_scaling else { return Ok(plain) };
    if *ext_factor == 0.0 {
        return Ok(plain);
    }
    let own = 1.0 + 0.1 * factor.ln();
    if growth != 0.0 {
        *attn_factor = 1.0 / own;
    }
    let magnitude = b.hp.rope_attn_factor * *attn_factor * own * (1.0 + growth * factor.ln());
    Ok(magnitude * magnitude * plain)
}
