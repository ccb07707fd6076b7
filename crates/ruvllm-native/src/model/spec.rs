//! What a model is made of, as training reads it: no weights but norms and biases.

use ruvllm_lora::train::{AttentionSpec, HeadSpec, Joining, LayerSpec, LinearSpec, MlpSpec, NormSpec, Pooled, Spec};

use super::blocks::{Attention, HeadNorm, Linear, Mlp, Norm, NormKind};
use super::{Ffn, Layer, Mixer, Model, Pooling, Wiring};
use ruvllm_backend::{BackendError, BackendErrorKind};

fn unsupported(what: &str) -> BackendError {
    BackendError::new(
        BackendErrorKind::Unsupported,
        format!("models with {what} cannot be trained here; train a dense one"),
    )
}

/// Returns the blocks of a dense model.
///
/// # Errors
/// [`BackendErrorKind::Unsupported`]: it has others.
pub(crate) fn spec(model: &Model) -> Result<Spec, BackendError> {
    let input = &model.input;
    Ok(Spec {
        n_embd: model.hparams.n_embd,
        n_vocab: input.tokens.n_rows,
        embeddings: "token_embd".to_owned(),
        embedding_scale: input.scale,
        positions: input.positions.as_ref().map(|table| ("position_embd".to_owned(), table.n_rows)),
        segment: input.types.first().cloned(),
        input_norm: input.norm.as_ref().map(norm),
        layers: model.layers.iter().map(layer).collect::<Result<_, _>>()?,
        residual_scale: model.residual_scale,
        output_norm: model.output.norm.as_ref().map(norm),
        head: model.output.head.as_ref().map(|head| HeadSpec {
            linear: linear(head),
            scale: model.output.scale,
            softcap: model.output.softcap,
        }),
        ropes: model.ropes.clone(),
        pooled: match model.pooling {
            // No file asks for none.
            Pooling::Mean | Pooling::None => Pooled::Mean,
            Pooling::Cls => Pooled::First,
            Pooling::Last => Pooled::Last,
        },
    })
}

fn layer(layer: &Layer) -> Result<LayerSpec, BackendError> {
    let Mixer::Attention(mixer) = &layer.mixer else { return Err(unsupported("convolutions")) };
    let Ffn::Mlp(ffn) = &layer.ffn else { return Err(unsupported("experts")) };
    let optional = |own: &Option<Norm>| own.as_ref().map(norm);
    Ok(LayerSpec {
        attention_norm: optional(&layer.mixer_norm),
        attention: attention(mixer)?,
        attention_post_norm: optional(&layer.mixer_post_norm),
        mlp_norm: optional(&layer.ffn_norm),
        mlp: mlp(ffn),
        mlp_post_norm: optional(&layer.ffn_post_norm),
        joining: match layer.wiring {
            Wiring::Sequential => Joining::Sequential,
            Wiring::Parallel => Joining::Parallel,
            Wiring::PostNorm => Joining::PostNorm,
        },
    })
}

fn attention(own: &Attention) -> Result<AttentionSpec, BackendError> {
    if own.sinks.is_some() {
        return Err(unsupported("attention sinks"));
    }
    Ok(AttentionSpec {
        q: linear(&own.q),
        k: linear(&own.k),
        v: linear(&own.v),
        o: linear(&own.o),
        q_norm: own.q_norm.as_ref().map(head_norm),
        k_norm: own.k_norm.as_ref().map(head_norm),
        n_heads: own.n_heads,
        n_kv_heads: own.n_kv_heads,
        k_dim: own.k_dim,
        v_dim: own.v_dim,
        rope: own.rope,
        scale: own.scale,
        softcap: own.softcap,
        window: own.window,
        is_causal: own.causal,
    })
}

fn mlp(own: &Mlp) -> MlpSpec {
    MlpSpec {
        gate: own.gate.as_ref().map(linear),
        up: linear(&own.up),
        down: linear(&own.down),
        activation: own.activation,
    }
}

fn linear(own: &Linear) -> LinearSpec {
    let (target, bias) = own.parts();
    LinearSpec { target, bias: bias.map(<[f32]>::to_vec) }
}

fn norm(own: &Norm) -> NormSpec {
    NormSpec {
        is_layer: own.kind == NormKind::Layer,
        width: own.weight.len(),
        weight: own.weight.clone(),
        bias: own.bias.clone(),
        eps: own.eps,
    }
}

fn head_norm(own: &HeadNorm) -> NormSpec {
    match own {
        HeadNorm::Same(own) => norm(own),
        HeadNorm::Each(all) => NormSpec {
            weight: all.iter().flat_map(|norm| norm.weight.iter().copied()).collect(),
            bias: all.iter().map(|norm| norm.bias.clone()).collect::<Option<Vec<_>>>().map(|all| all.concat()),
            ..norm(&all[0])
        },
    }
}
