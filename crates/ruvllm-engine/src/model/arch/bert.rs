//! BERT encoders (sentence embeddings): learned positions, norms after each sum, attention both ways.

use ruvllm_kernels::activation::Activation;

use super::super::blocks::NormKind;
use super::super::builder::{AttentionSpec, Builder};
use super::super::hparams::model_error;
use super::super::{Input, Layer, Model, Output, Pooling, Wiring};
use crate::EngineError;

pub(super) fn build(mut b: Builder<'_>) -> Result<Model, EngineError> {
    b.norm_kind = NormKind::Layer;
    let layers = b.layers(|b, layer| {
        let spec = AttentionSpec { causal: false, ..b.causal(None) };
        Ok(Layer {
            mixer_norm: None,
            mixer: b.attention(layer, spec)?,
            mixer_post_norm: Some(b.norm(layer, "attn_output_norm")?),
            ffn_norm: None,
            ffn: b.mlp(layer, Activation::GeluErf)?,
            ffn_post_norm: Some(b.norm(layer, "layer_output_norm")?),
            wiring: Wiring::PostNorm,
        })
    })?;
    let n_embd = b.hp.n_embd;
    let types = match b.loader.has("token_types.weight") {
        true => {
            let n_types = b.loader.n_rows("token_types.weight")?;
            let mut types = b.loader.table("token_types.weight", n_embd, n_types)?;
            types.truncate(n_embd);
            Some(types)
        }
        false => None,
    };
    let input = Input {
        positions: Some(b.loader.embedding("position_embd.weight", n_embd)?),
        types,
        norm: Some(b.loader.norm(NormKind::Layer, "token_embd_norm", n_embd, b.hp.eps)?),
        ..b.input()?
    };
    let pooling = match b.keys.count("pooling_type")? {
        Some(1) => Pooling::Mean,
        Some(2) => Pooling::Cls,
        Some(3) => Pooling::Last,
        other => return Err(model_error(format!("pooling_type {other:?} makes no embedding; known are 1, 2 and 3"))),
    };
    let output = Output { norm: None, head: None, scale: 1.0, softcap: None };
    Ok(Model { pooling: Some(pooling), ..b.finish(input, layers, output)? })
}
