//! BERT encoders (sentence embeddings): learned positions, norms after each sum, attention both ways; cross-encoders, which score a
//! pair of texts, have a head on top.

use ruvllm_kernels::activation::Activation;

use crate::builder::{AttentionOptions, Builder};
use crate::{InputSpec, LayerSpec, ModelError, ModelSpec, NormKind, OutputSpec, RankerSpec, Wiring};

pub(super) fn build(mut b: Builder<'_>) -> Result<ModelSpec, ModelError> {
    b.norm_kind = NormKind::Layer;
    let layers = b.layers(|b, layer| {
        let spec = AttentionOptions { is_causal: false, ..b.causal(None) };
        Ok(LayerSpec {
            mixer_norm: None,
            mixer: b.attention(layer, spec)?,
            mixer_post_norm: Some(b.norm(layer, "attn_output_norm")?),
            ffn_norm: None,
            ffn: Some(b.mlp(layer, Activation::GeluErf)?),
            ffn_post_norm: Some(b.norm(layer, "layer_output_norm")?),
            wiring: Wiring::PostNorm,
        })
    })?;
    let n_embd = b.hp.n_embd;
    let types = match b.tensors.has("token_types.weight") {
        true => Some(b.tensors.embedding("token_types.weight", n_embd)?),
        false => None,
    };
    let input = InputSpec {
        positions: Some(b.tensors.embedding("position_embd.weight", n_embd)?),
        types,
        norm: Some(b.tensors.norm(NormKind::Layer, "token_embd_norm", n_embd, b.hp.eps)?),
        ..b.input()?
    };
    let Some(pooling) = b.pooling()? else {
        let other = b.keys.count("pooling_type")?;
        return Err(ModelError::damaged(format!("pooling_type {other:?} makes no embedding; known are 1, 2, 3 and 4")));
    };
    let ranker = ranker(&b)?;
    let output = OutputSpec { norm: None, head: None, scale: 1.0, softcap: None };
    Ok(ModelSpec { is_encoder: true, pooling, ranker, ..b.finish(input, layers, output)? })
}

/// Takes the head of a cross-encoder, if the file has one: `cls.output`, behind `cls` where that is there; or `cls` alone.
fn ranker(b: &Builder<'_>) -> Result<Option<RankerSpec>, ModelError> {
    let n_embd = b.hp.n_embd;
    let (dense, last) = match (b.tensors.has("cls.output.weight"), b.tensors.has("cls.weight")) {
        (true, has_dense) => (has_dense, "cls.output"),
        (false, true) => (false, "cls"),
        (false, false) => return Ok(None),
    };
    let n_scores = b.tensors.n_rows(&format!("{last}.weight"))?;
    if n_scores != 1 {
        // Classes are no order.
        return Ok(None);
    }
    let dense = dense.then(|| {
        let matrix = b.tensors.table("cls.weight", n_embd, n_embd)?;
        Ok::<_, ModelError>((matrix, b.tensors.vector("cls.bias", n_embd)?))
    });
    Ok(Some(RankerSpec {
        dense: dense.transpose()?,
        weight: b.tensors.vector(&format!("{last}.weight"), n_embd)?,
        bias: b.tensors.vector_if_any(&format!("{last}.bias"), 1)?,
    }))
}
