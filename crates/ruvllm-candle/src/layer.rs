//! A model of layers, and the state that a sequence has in each.

use candle_core::{Device, Result, Tensor};
use ruvllm_backend::BackendError;
use ruvllm_kernels::rope::Rope;
use ruvllm_model::{FfnSpec, LayerSpec, MixerSpec, ModelSpec, RopeSpec, Wiring};

use crate::attention::{Angles, Attention, Kv};
use crate::ffn::Mlp;
use crate::latent::LatentAttention;
use crate::mamba::{Mamba, Mamba2, SsmState};
use crate::moe::Moe;
use crate::short_conv::ShortConv;
use crate::weights::{Linear, Norm, Weights, capped, normed};

/// A model's weights, wired as its description says.
pub(crate) struct Model {
    pub device: Device,
    input_norm: Option<Norm>,
    layers: Vec<Layer>,
    output_norm: Option<Norm>,
    head: Option<Linear>,
    ropes: Vec<Rope>,
    residual_scale: f64,
    logit_scale: f64,
    softcap: Option<f32>,
}

struct Layer {
    mixer_norm: Option<Norm>,
    mixer: Mixer,
    mixer_post_norm: Option<Norm>,
    ffn_norm: Option<Norm>,
    ffn: Option<Ffn>,
    ffn_post_norm: Option<Norm>,
    wiring: Wiring,
}

enum Mixer {
    Attention(Box<Attention>),
    LatentAttention(Box<LatentAttention>),
    ShortConv(ShortConv),
    Mamba(Mamba),
    Mamba2(Mamba2),
    AttentionAndMamba2(Box<Attention>, Mamba2),
}

enum Ffn {
    Mlp(Mlp),
    Moe(Box<Moe>),
}

/// State of a sequence in a layer.
#[derive(Clone)]
pub(crate) enum State {
    Kv(Option<Kv>),
    Conv(Option<Tensor>),
    Ssm(SsmState),
    KvAndSsm(Option<Kv>, SsmState),
}

impl State {
    /// Returns the state of the first `n_tokens`, where it can go back.
    pub(crate) fn first(&self, n_tokens: usize) -> Result<State> {
        match self {
            State::Kv(Some(kv)) if n_tokens > 0 => Ok(State::Kv(Some(kv.first(n_tokens)?))),
            State::Kv(_) => Ok(State::Kv(None)),
            State::Conv(_) | State::Ssm(_) | State::KvAndSsm(..) => {
                candle_core::bail!("recurrent state does not go back")
            }
        }
    }
}

impl Model {
    pub(crate) fn make(spec: &ModelSpec, weights: &Weights<'_>) -> std::result::Result<Model, BackendError> {
        let rope = |own: &RopeSpec| own.rope(|factors| weights.values(factors));
        Ok(Model {
            device: weights.device.clone(),
            input_norm: weights.norm(spec.input.norm.as_ref())?,
            layers: spec
                .layers
                .iter()
                .map(|layer| Layer::make(layer, weights))
                .collect::<std::result::Result<_, _>>()?,
            output_norm: weights.norm(spec.output.norm.as_ref())?,
            head: spec.output.head.as_ref().map(|head| weights.linear(head)).transpose()?,
            ropes: spec.ropes.iter().map(rope).collect::<std::result::Result<_, _>>()?,
            residual_scale: f64::from(spec.residual_scale),
            logit_scale: f64::from(spec.output.scale),
            softcap: spec.output.softcap,
        })
    }

    /// Returns the states of a sequence without tokens.
    pub(crate) fn fresh(&self) -> Vec<State> {
        let state = |layer: &Layer| match layer.mixer {
            Mixer::Attention(_) | Mixer::LatentAttention(_) => State::Kv(None),
            Mixer::ShortConv(_) => State::Conv(None),
            Mixer::Mamba(_) | Mixer::Mamba2(_) => State::Ssm(SsmState::default()),
            Mixer::AttentionAndMamba2(..) => State::KvAndSsm(None, SsmState::default()),
        };
        self.layers.iter().map(state).collect()
    }

    /// Returns whether sequences can go back.
    pub(crate) fn can_rewind(&self) -> bool {
        self.layers.iter().all(|layer| matches!(layer.mixer, Mixer::Attention(_) | Mixer::LatentAttention(_)))
    }

    /// Computes embedded rows at `positions` of a sequence: `[n, n_embd]`, behind the final norm.
    pub(crate) fn hidden(&self, x: &Tensor, positions: std::ops::Range<usize>, states: &mut [State]) -> Result<Tensor> {
        let angles = self.ropes.iter().map(|rope| Angles::new(rope, positions.clone(), &self.device));
        let angles: Vec<Angles> = angles.collect::<Result<_>>()?;
        let mut x = normed(self.input_norm.as_ref(), x)?;
        for (layer, state) in self.layers.iter().zip(states) {
            x = layer.forward(&x, &angles, state, self.residual_scale)?;
        }
        normed(self.output_norm.as_ref(), &x)
    }

    /// Computes logits of final states: `[n, n_vocab]`.
    pub(crate) fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        let Some(head) = &self.head else { candle_core::bail!("the model has no head") };
        capped((head.forward(hidden)? * self.logit_scale)?, self.softcap)
    }
}

impl Layer {
    fn make(spec: &LayerSpec, weights: &Weights<'_>) -> std::result::Result<Layer, BackendError> {
        Ok(Layer {
            mixer_norm: weights.norm(spec.mixer_norm.as_ref())?,
            mixer: match &spec.mixer {
                MixerSpec::Attention(own) => Mixer::Attention(Box::new(Attention::make(own, weights)?)),
                MixerSpec::LatentAttention(own) => {
                    Mixer::LatentAttention(Box::new(LatentAttention::make(own, weights)?))
                }
                MixerSpec::ShortConv(own) => Mixer::ShortConv(ShortConv::make(own, weights)?),
                MixerSpec::Mamba(own) => Mixer::Mamba(Mamba::make(own, weights)?),
                MixerSpec::Mamba2(own) => Mixer::Mamba2(Mamba2::make(own, weights)?),
                MixerSpec::AttentionAndMamba2(attention, mamba) => {
                    let attention = Box::new(Attention::make(attention, weights)?);
                    Mixer::AttentionAndMamba2(attention, Mamba2::make(mamba, weights)?)
                }
            },
            mixer_post_norm: weights.norm(spec.mixer_post_norm.as_ref())?,
            ffn_norm: weights.norm(spec.ffn_norm.as_ref())?,
            ffn: match &spec.ffn {
                None => None,
                Some(FfnSpec::Mlp(own)) => Some(Ffn::Mlp(Mlp::make(own, weights)?)),
                Some(FfnSpec::Moe(own)) => Some(Ffn::Moe(Box::new(Moe::make(own, weights)?))),
            },
            ffn_post_norm: weights.norm(spec.ffn_post_norm.as_ref())?,
            wiring: spec.wiring,
        })
    }

    fn forward(&self, x: &Tensor, angles: &[Angles], state: &mut State, scale: f64) -> Result<Tensor> {
        let join = |x: &Tensor, branch: Tensor| x + (branch * scale)?;
        let source = normed(self.mixer_norm.as_ref(), x)?;
        let mixed = match (&self.mixer, state) {
            (Mixer::Attention(attention), State::Kv(kv)) => attention.forward(&source, angles, kv)?,
            (Mixer::LatentAttention(attention), State::Kv(kv)) => attention.forward(&source, angles, kv)?,
            (Mixer::ShortConv(conv), State::Conv(state)) => conv.forward(&source, state)?,
            (Mixer::Mamba(mamba), State::Ssm(state)) => mamba.forward(&source, state)?,
            (Mixer::Mamba2(mamba), State::Ssm(state)) => mamba.forward(&source, state)?,
            (Mixer::AttentionAndMamba2(attention, mamba), State::KvAndSsm(kv, state)) => {
                (attention.forward(&source, angles, kv)? + mamba.forward(&source, state)?)?
            }
            _ => candle_core::bail!("a layer and its state are of two kinds"),
        };
        let Some(ffn) = &self.ffn else {
            return join(x, normed(self.mixer_post_norm.as_ref(), &mixed)?);
        };
        match self.wiring {
            Wiring::Sequential => {
                let x = join(x, normed(self.mixer_post_norm.as_ref(), &mixed)?)?;
                let fed = ffn.forward(&normed(self.ffn_norm.as_ref(), &x)?)?;
                join(&x, normed(self.ffn_post_norm.as_ref(), &fed)?)
            }
            Wiring::Parallel => {
                let source = self.ffn_norm.as_ref().map_or(Ok(source), |norm| norm.forward(x))?;
                (x + mixed)? + ffn.forward(&source)?
            }
            Wiring::PostNorm => {
                let x = normed(self.mixer_post_norm.as_ref(), &(x + mixed)?)?;
                normed(self.ffn_post_norm.as_ref(), &(&x + ffn.forward(&x)?)?)
            }
        }
    }
}

impl Ffn {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Ffn::Mlp(mlp) => mlp.forward(x),
            Ffn::Moe(moe) => moe.forward(x),
        }
    }
}
