//! LFM2: gated short convolutions where a layer has no key heads, attention with head norms elsewhere.

use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::rope::RopeStyle;

use super::super::blocks::ShortConv;
use super::super::builder::Builder;
use super::super::hparams::model_error;
use super::super::{Layer, Mixer, Model};
use ruvllm_backend::BackendError;

pub(super) fn build(mut b: Builder<'_>) -> Result<Model, BackendError> {
    let rope = b.rope(RopeStyle::Neox)?;
    let (n_embd, n_taps) = (b.hp.n_embd, b.keys.need_count("shortconv.l_cache")?);
    if !(2..=64).contains(&n_taps) {
        return Err(model_error(format!("a short convolution of {n_taps} taps is not one")));
    }
    let mut n_convs = 0;
    let layers = b.layers(|b, layer| {
        let mixer = match b.hp.n_kv_heads[layer] {
            0 => {
                let name = |part: &str| format!("blk.{layer}.shortconv.{part}");
                n_convs += 1;
                Mixer::ShortConv(ShortConv {
                    in_proj: b.loader.linear(&name("in_proj"), n_embd, 3 * n_embd)?,
                    out_proj: b.loader.linear(&name("out_proj"), n_embd, n_embd)?,
                    taps: b.loader.table(&name("conv.weight"), n_taps, n_embd)?,
                    n_taps,
                    state_idx: n_convs - 1,
                })
            }
            _ => b.attention(layer, b.causal(Some(rope)))?,
        };
        let ffn = b.mlp(layer, Activation::Silu)?;
        Ok(Layer::pre_norm(b.norm(layer, "attn_norm")?, mixer, b.norm(layer, "ffn_norm")?, ffn))
    })?;
    // LFM2 files call the final norm by the name others use for one after the embeddings.
    let (input, output) = (b.input()?, b.output_after("token_embd_norm")?);
    let state_len = n_convs * ShortConv::state_len(n_embd, n_taps);
    Ok(Model { state_len, ..b.finish(input, layers, output)? })
}
