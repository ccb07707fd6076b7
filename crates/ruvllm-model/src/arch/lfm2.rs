//! LFM2: gated short convolutions where a layer has no key heads, attention with head norms elsewhere.

use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::rope::RopeStyle;

use crate::builder::Builder;
use crate::{LayerSpec, MixerSpec, ModelError, ModelSpec, ShortConvSpec};

pub(super) fn build(mut b: Builder<'_>) -> Result<ModelSpec, ModelError> {
    let rope = b.rope(RopeStyle::Neox)?;
    let (n_embd, n_taps) = (b.hp.n_embd, b.keys.need_count("shortconv.l_cache")?);
    if !(2..=64).contains(&n_taps) {
        return Err(ModelError::damaged(format!("a short convolution of {n_taps} taps is not one")));
    }
    let layers = b.layers(|b, layer| {
        let mixer = match b.hp.n_kv_heads[layer] {
            0 => {
                let name = |part: &str| format!("blk.{layer}.shortconv.{part}");
                MixerSpec::ShortConv(ShortConvSpec {
                    in_proj: b.linear(&name("in_proj"), n_embd, 3 * n_embd)?,
                    out_proj: b.linear(&name("out_proj"), n_embd, n_embd)?,
                    taps: b.tensors.table(&name("conv.weight"), n_taps, n_embd)?,
                })
            }
            _ => b.attention(layer, b.causal(Some(rope)))?,
        };
        let ffn = b.mlp(layer, Activation::Silu)?;
        Ok(LayerSpec::pre_norm(b.norm(layer, "attn_norm")?, mixer, b.norm(layer, "ffn_norm")?, ffn))
    })?;
    // LFM2 files call the final norm by the name others use for one after the embeddings.
    let (input, output) = (b.input()?, b.output_after("token_embd_norm")?);
    b.finish(input, layers, output)
}
