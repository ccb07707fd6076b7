//! BERT encoders (sentence embeddings): learned positions, norms after each sum, attention both ways; cross-encoders, which score a
//! pair of texts, have a head on top.

use ruvllm_kernels::activation::Activation;

use super::super::blocks::NormKind;
use super::super::builder::{AttentionSpec, Builder};
use super::super::hparams::model_error;
use super::super::{Input, Layer, Model, Output, Ranker, Wiring};
use ruvllm_backend::BackendError;

pub(super) fn build(mut b: Builder<'_>) -> Result<Model, BackendError> {
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
            let types = b.loader.table("token_types.weight", n_embd, n_types)?;
            types.chunks_exact(n_embd).map(<[f32]>::to_vec).collect()
        }
        false => Vec::new(),
    };
    let input = Input {
        positions: Some(b.loader.embedding("position_embd.weight", n_embd)?),
        types,
        norm: Some(b.loader.norm(NormKind::Layer, "token_embd_norm", n_embd, b.hp.eps)?),
        ..b.input()?
    };
    let Some(pooling) = b.pooling()? else {
        let other = b.keys.count("pooling_type")?;
        return Err(model_error(format!("pooling_type {other:?} makes no embedding; known are 1, 2, 3 and 4")));
    };
    let ranker = ranker(&b)?;
    let output = Output { norm: None, head: None, scale: 1.0, softcap: None };
    Ok(Model { is_encoder: true, pooling, ranker, ..b.finish(input, layers, output)? })
}

/// Takes the head of a cross-encoder, if the file has one: `cls.output`, behind `cls` where that is there; or `cls` alone.
fn ranker(b: &Builder<'_>) -> Result<Option<Ranker>, BackendError> {
    let n_embd = b.hp.n_embd;
    let (dense, last) = match (b.loader.has("cls.output.weight"), b.loader.has("cls.weight")) {
        (true, has_dense) => (has_dense, "cls.output"),
        (false, true) => (false, "cls"),
        (false, false) => return Ok(None),
    };
    let n_scores = b.loader.n_rows(&format!("{last}.weight"))?;
    if n_scores != 1 {
        // Classes are no order.
        return Ok(None);
    }
    let dense = dense.then(|| {
        let matrix = b.loader.table("cls.weight", n_embd, n_embd)?;
        Ok::<_, BackendError>((matrix, b.loader.vector("cls.bias", n_embd)?))
    });
    let bias = b.loader.vector_if_any(&format!("{last}.bias"), 1)?.map_or(0.0, |bias| bias[0]);
    Ok(Some(Ranker { dense: dense.transpose()?, weight: b.loader.vector(&format!("{last}.weight"), n_embd)?, bias }))
}
