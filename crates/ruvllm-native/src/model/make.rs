//! From a model's description to its parts with their weights.

use std::ops::Range;

use ruvllm_backend::BackendError;
use ruvllm_backend::pooling::PairHead;
use ruvllm_kernels::activation::Activation;
use ruvllm_kvcache::{KvLayout, LayerKv};
use ruvllm_model::{
    AttentionSpec, ConvSpec, ExpansionSpec, FfnSpec, LatentAttentionSpec, LayerSpec, LinearSpec, Mamba2Spec, MambaSpec,
    MixerSpec, MlpSpec, ModelSpec, MoeSpec, NormKind, NormSpec, SharedExpertSpec, ShortConvSpec,
};

use super::blocks::{
    Attention, AttentionShape, CausalConv, Expansion, HeadNorm, LatentAttention, Linear, Mamba, Mamba2, Mlp, Moe, Norm,
    SharedExpert, ShortConv,
};
use super::{Ffn, Input, Layer, Loader, Mixer, Model, Output};

/// Takes the parts of one model, layer by layer.
struct Maker<'a, 'f> {
    loader: &'a Loader<'f>,
    spec: &'a ModelSpec,
    kv_layers: Vec<LayerKv>,
    /// Values of recurrent state so far.
    state_len: usize,
}

impl Model {
    /// Takes the weights that a description names.
    ///
    /// # Errors
    /// A tensor has a type that is no weight format, or a factor of frequencies is not positive.
    pub(crate) fn make(spec: ModelSpec, loader: &Loader<'_>) -> Result<Model, BackendError> {
        let ropes =
            spec.ropes.iter().map(|own| own.rope(|factors| loader.values(factors))).collect::<Result<_, _>>()?;
        let mut maker = Maker { loader, spec: &spec, kv_layers: Vec::new(), state_len: 0 };
        let layers: Vec<Layer> = spec.layers.iter().map(|layer| maker.layer(layer)).collect::<Result<_, _>>()?;
        let output = maker.output()?;
        let (input, ranker) = (maker.input(&output)?, maker.ranker()?);
        let state_len = maker.state_len;
        let kv_layout = KvLayout { layers: std::mem::take(&mut maker.kv_layers) };
        let mut model = Model { input, layers, output, ropes, kv_layout, ranker, state_len, spec };
        model.link(loader.n_threads(), None);
        Ok(model)
    }
}

impl Maker<'_, '_> {
    fn layer(&mut self, spec: &LayerSpec) -> Result<Layer, BackendError> {
        let mixer = match &spec.mixer {
            MixerSpec::Attention(own) => Mixer::Attention(self.attention(own)?),
            MixerSpec::LatentAttention(own) => Mixer::LatentAttention(self.latent_attention(own)?),
            MixerSpec::ShortConv(own) => Mixer::ShortConv(self.short_conv(own)?),
            MixerSpec::Mamba(own) => Mixer::Mamba(self.mamba(own)?),
            MixerSpec::Mamba2(own) => Mixer::Mamba2(self.mamba2(own)?),
            MixerSpec::AttentionAndMamba2(attention, mamba) => {
                Mixer::AttentionAndMamba2(self.attention(attention)?, self.mamba2(mamba)?)
            }
        };
        let ffn = match &spec.ffn {
            None => None,
            Some(FfnSpec::Mlp(own)) => Some(Ffn::Mlp(self.mlp(own)?)),
            Some(FfnSpec::Moe(own)) => Some(Ffn::Moe(self.moe(own)?)),
        };
        Ok(Layer {
            mixer_norm: self.norm(spec.mixer_norm.as_ref())?,
            mixer,
            mixer_post_norm: self.norm(spec.mixer_post_norm.as_ref())?,
            ffn_norm: self.norm(spec.ffn_norm.as_ref())?,
            ffn,
            ffn_post_norm: self.norm(spec.ffn_post_norm.as_ref())?,
            wiring: spec.wiring,
        })
    }

    fn attention(&mut self, spec: &AttentionSpec) -> Result<Attention, BackendError> {
        let AttentionSpec { n_kv_heads, k_dim, v_dim, .. } = *spec;
        self.kv_layers.push(LayerKv { n_kv_heads, k_dim, v_dim });
        Ok(Attention {
            q: self.loader.linear(&spec.q)?,
            k: self.loader.linear(&spec.k)?,
            v: self.loader.linear(&spec.v)?,
            o: self.loader.linear(&spec.o)?,
            q_norm: self.head_norm(spec.q_norm.as_ref())?,
            k_norm: self.head_norm(spec.k_norm.as_ref())?,
            sinks: self.loader.values_if_any(spec.sinks.as_ref())?,
            spec: spec.clone(),
            kv_layer: self.kv_layers.len() - 1,
        })
    }

    fn latent_attention(&mut self, spec: &LatentAttentionSpec) -> Result<LatentAttention, BackendError> {
        let low = spec.q_low.as_ref();
        let q_low =
            low.map(|low| Ok::<_, BackendError>((self.loader.linear(&low.down)?, self.loader.norm(&low.norm)?)));
        let made = LatentAttention {
            q_low: q_low.transpose()?,
            q: self.loader.linear(&spec.q)?,
            latent: self.loader.linear(&spec.latent)?,
            k_rot: self.loader.linear(&spec.k_rot)?,
            latent_norm: self.loader.norm(&spec.latent_norm)?,
            expansion: match &spec.expansion {
                ExpansionSpec::Joint(kv) => Expansion::Joint(self.loader.linear(kv)?),
                ExpansionSpec::Absorbed { k, v } => Expansion::Absorbed { k: self.linears(k)?, v: self.linears(v)? },
            },
            o: self.loader.linear(&spec.o)?,
            spec: spec.clone(),
            kv_layer: self.kv_layers.len(),
        };
        let AttentionShape { n_kv_heads, k_dim, v_dim, .. } = made.shape();
        self.kv_layers.push(LayerKv { n_kv_heads, k_dim, v_dim });
        Ok(made)
    }

    fn short_conv(&mut self, spec: &ShortConvSpec) -> Result<ShortConv, BackendError> {
        let (in_proj, out_proj) = (self.loader.linear(&spec.in_proj)?, self.loader.linear(&spec.out_proj)?);
        let conv = CausalConv::new(&self.loader.values(&spec.taps)?, spec.taps.n_cols, None, None);
        let state = self.state(conv.state_len());
        Ok(ShortConv { in_proj, out_proj, conv, state })
    }

    fn mamba(&mut self, spec: &MambaSpec) -> Result<Mamba, BackendError> {
        let conv = self.conv(&spec.conv)?;
        let a = self.loader.values(&spec.a)?;
        let norm =
            |linear: &LinearSpec, eps| Norm { kind: NormKind::Rms, weight: vec![1.0; linear.n_out()], bias: None, eps };
        Ok(Mamba {
            x: self.loader.linear(&spec.x)?,
            z: self.loader.linear(&spec.z)?,
            low: self.loader.linear(&spec.low)?,
            b: self.loader.linear(&spec.b)?,
            c: self.loader.linear(&spec.c)?,
            inner_norms: spec.inner_eps.map(|eps| [&spec.low, &spec.b, &spec.c].map(|linear| norm(linear, eps))),
            dt: self.loader.linear(&spec.dt)?,
            d: self.loader.values(&spec.d)?,
            out: self.loader.linear(&spec.out)?,
            state: self.state(Mamba::state_len(&conv, &a)),
            conv,
            a,
        })
    }

    fn mamba2(&mut self, spec: &Mamba2Spec) -> Result<Mamba2, BackendError> {
        let conv = self.conv(&spec.conv)?;
        Ok(Mamba2 {
            z: self.loader.linear(&spec.z)?,
            xbc: self.loader.linear(&spec.xbc)?,
            dt: self.loader.linear(&spec.dt)?,
            dt_bias: self.loader.values(&spec.dt_bias)?,
            a: self.loader.values(&spec.a)?,
            d: self.loader.values(&spec.d)?,
            norm: self.head_norm(spec.norm.as_ref())?,
            out: self.loader.linear(&spec.out)?,
            n_groups: spec.n_groups,
            n_state: spec.n_state,
            state: self.state(Mamba2::state_len(&conv, spec.z.n_out(), spec.n_state)),
            conv,
        })
    }

    fn conv(&self, spec: &ConvSpec) -> Result<CausalConv, BackendError> {
        let bias = self.loader.values_if_any(spec.bias.as_ref())?;
        Ok(CausalConv::new(&self.loader.values(&spec.taps)?, spec.taps.n_cols, bias, Some(Activation::Silu)))
    }

    /// Returns where the next `n` values of a sequence's state lie.
    fn state(&mut self, n: usize) -> Range<usize> {
        self.state_len += n;
        self.state_len - n..self.state_len
    }

    fn mlp(&self, spec: &MlpSpec) -> Result<Mlp, BackendError> {
        Ok(Mlp {
            gate: spec.gate.as_ref().map(|gate| self.loader.linear(gate)).transpose()?,
            up: self.loader.linear(&spec.up)?,
            down: self.loader.linear(&spec.down)?,
            activation: spec.activation,
        })
    }

    fn moe(&self, spec: &MoeSpec) -> Result<Moe, BackendError> {
        let shared = spec.shared.as_ref().map(|shared| self.shared_expert(shared)).transpose()?;
        Ok(Moe {
            router: self.loader.linear(&spec.router)?,
            choice_bias: self.loader.values_if_any(spec.choice_bias.as_ref())?,
            gate: self.linears(&spec.gate)?,
            up: self.linears(&spec.up)?,
            down: self.linears(&spec.down)?,
            spec: spec.clone(),
            shared,
        })
    }

    fn linears(&self, specs: &[LinearSpec]) -> Result<Vec<Linear>, BackendError> {
        specs.iter().map(|one| self.loader.linear(one)).collect()
    }

    fn shared_expert(&self, spec: &SharedExpertSpec) -> Result<SharedExpert, BackendError> {
        let gate = spec.gate.as_ref().map(|gate| self.loader.linear(gate)).transpose()?;
        Ok(SharedExpert { mlp: self.mlp(&spec.mlp)?, gate })
    }

    fn norm(&self, spec: Option<&NormSpec>) -> Result<Option<Norm>, BackendError> {
        spec.map(|spec| self.loader.norm(spec)).transpose()
    }

    fn head_norm(&self, spec: Option<&NormSpec>) -> Result<Option<HeadNorm>, BackendError> {
        let Some(spec) = spec else { return Ok(None) };
        let norm = self.loader.norm(spec)?;
        if spec.weight.n_rows() == 1 {
            return Ok(Some(HeadNorm::Same(norm)));
        }
        let one = |weight: &[f32]| Norm { weight: weight.to_vec(), ..Norm { bias: None, ..norm.clone() } };
        Ok(Some(HeadNorm::Each(norm.weight.chunks_exact(spec.weight.n_cols).map(one).collect())))
    }

    fn input(&self, output: &Output) -> Result<Input, BackendError> {
        let (spec, head) = (&self.spec.input, &self.spec.output.head);
        let is_tied = head.as_ref().is_some_and(|head| head.weight == spec.tokens);
        let tied = output.head.as_ref().filter(|_| is_tied).map(Linear::matrix);
        let types = self.loader.values_if_any(spec.types.as_ref())?.unwrap_or_default();
        Ok(Input {
            tokens: self.loader.embedding(&spec.tokens, tied)?,
            scale: spec.scale,
            positions: spec.positions.as_ref().map(|rows| self.loader.embedding(rows, None)).transpose()?,
            types: types.chunks_exact(self.spec.n_embd).map(<[f32]>::to_vec).collect(),
            norm: self.norm(spec.norm.as_ref())?,
        })
    }

    fn output(&self) -> Result<Output, BackendError> {
        let spec = &self.spec.output;
        let head: Option<Linear> = spec.head.as_ref().map(|head| self.loader.linear(head)).transpose()?;
        Ok(Output { norm: self.norm(spec.norm.as_ref())?, head, scale: spec.scale, softcap: spec.softcap })
    }

    fn ranker(&self) -> Result<Option<PairHead>, BackendError> {
        let head = self.spec.ranker.as_ref().map(|spec| PairHead::read(spec, |rows| self.loader.values(rows)));
        head.transpose()
    }
}
