//! The layers: their weights on the device, and the dispatches that compute them.

mod latent;
mod state_space;

use ruvllm_backend::BackendError;
use ruvllm_gpu::GpuBuffer;
use ruvllm_kernels::activation::Activation;
use ruvllm_kvcache::LayerKv;
use ruvllm_model::{AttentionSpec, ExpertActivation, FfnSpec, Gating, LayerSpec, MixerSpec, MlpSpec, MoeSpec, Wiring};
use ruvllm_shaders::{AttentionParams, KvAppendParams, KvType, RouteParams, flags};

use crate::cache_shape::{CacheShape, latent_kv};
use crate::scratch::Scratch;
use crate::steps::{
    AttentionBuffers, ConvBuffers, ExpertRows, Function, Gated, RotatedHeads, RowClass, StepList, Target,
};
use crate::weights::{Experts, Linear, Norm, Weights};
use latent::LatentAttention;
use state_space::{Mamba, Mamba2};

/// Keys of a split of attention, and the most splits.
const SPLIT_KEYS: usize = 256;
const SPLITS_MAX: usize = 16;

/// Keys and values of a layer, in blocks; of a short convolution its inputs, in the place of keys.
pub(crate) struct LayerCache {
    pub keys: GpuBuffer,
    pub values: GpuBuffer,
    /// Recurrent state of all sequences.
    pub state: GpuBuffer,
    pub shape: CacheShape,
}

/// A layer's weights.
pub(crate) struct Layer {
    mixer_norm: Option<Norm>,
    mixer: Mixer,
    mixer_post_norm: Option<Norm>,
    ffn_norm: Option<Norm>,
    ffn: Option<Ffn>,
    ffn_post_norm: Option<Norm>,
    wiring: Wiring,
}

enum Mixer {
    Attention(Attention),
    LatentAttention(LatentAttention),
    ShortConv(ShortConv),
    Mamba(Mamba),
    Mamba2(Mamba2),
    /// Both of the same input, added.
    AttentionAndMamba2(Attention, Mamba2),
}

struct ShortConv {
    in_proj: Linear,
    out_proj: Linear,
    /// `[n_embd, n_taps]`
    taps: GpuBuffer,
    n_taps: usize,
}

struct Attention {
    spec: AttentionSpec,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    q_norm: Option<Norm>,
    k_norm: Option<Norm>,
    sinks: Option<GpuBuffer>,
}

#[expect(clippy::large_enum_variant, reason = "one a layer; a box would only add a hop")]
enum Ffn {
    Mlp(Mlp),
    Moe(Box<Moe>),
}

struct Mlp {
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
    activation: Activation,
}

struct Moe {
    router: Linear,
    choice_bias: Option<GpuBuffer>,
    gate: Experts,
    up: Experts,
    down: Experts,
    shared: Option<(Mlp, Option<Linear>)>,
    route: RouteParams,
    n_used: usize,
    n_ff: usize,
    activation: ExpertActivation,
}

impl Layer {
    /// Uploads a layer that [`support::check`](crate::support::check) allowed.
    pub(crate) fn upload(spec: &LayerSpec, weights: &Weights<'_>) -> Result<Layer, BackendError> {
        let mixer = match &spec.mixer {
            MixerSpec::Attention(attention) => Mixer::Attention(Attention::upload(attention, weights)?),
            MixerSpec::ShortConv(conv) => Mixer::ShortConv(ShortConv {
                in_proj: weights.linear(&conv.in_proj)?,
                out_proj: weights.linear(&conv.out_proj)?,
                taps: weights.vector(&conv.taps)?,
                n_taps: conv.taps.n_cols,
            }),
            MixerSpec::LatentAttention(own) => Mixer::LatentAttention(LatentAttention::upload(own, weights)?),
            MixerSpec::Mamba(own) => Mixer::Mamba(Mamba::upload(own, weights)?),
            MixerSpec::Mamba2(own) => Mixer::Mamba2(Mamba2::upload(own, weights)?),
            MixerSpec::AttentionAndMamba2(attention, mamba) => {
                Mixer::AttentionAndMamba2(Attention::upload(attention, weights)?, Mamba2::upload(mamba, weights)?)
            }
        };
        Ok(Layer {
            mixer_norm: weights.norm_if_any(spec.mixer_norm.as_ref())?,
            mixer,
            mixer_post_norm: weights.norm_if_any(spec.mixer_post_norm.as_ref())?,
            ffn_norm: weights.norm_if_any(spec.ffn_norm.as_ref())?,
            ffn: match &spec.ffn {
                None => None,
                Some(FfnSpec::Mlp(mlp)) => Some(Ffn::Mlp(Mlp::upload(mlp, weights)?)),
                Some(FfnSpec::Moe(moe)) => Some(Ffn::Moe(Box::new(Moe::upload(moe, weights)?))),
            },
            ffn_post_norm: weights.norm_if_any(spec.ffn_post_norm.as_ref())?,
            wiring: spec.wiring,
        })
    }
}

impl Attention {
    fn upload(spec: &AttentionSpec, weights: &Weights<'_>) -> Result<Attention, BackendError> {
        Ok(Attention {
            q: weights.linear(&spec.q)?,
            k: weights.linear(&spec.k)?,
            v: weights.linear(&spec.v)?,
            o: weights.linear(&spec.o)?,
            q_norm: weights.norm_if_any(spec.q_norm.as_ref())?,
            k_norm: weights.norm_if_any(spec.k_norm.as_ref())?,
            sinks: spec.sinks.as_ref().map(|sinks| weights.vector(sinks)).transpose()?,
            spec: spec.clone(),
        })
    }
}

impl Mlp {
    fn upload(spec: &MlpSpec, weights: &Weights<'_>) -> Result<Mlp, BackendError> {
        Ok(Mlp {
            gate: spec.gate.as_ref().map(|gate| weights.linear(gate)).transpose()?,
            up: weights.linear(&spec.up)?,
            down: weights.linear(&spec.down)?,
            activation: spec.activation,
        })
    }
}

impl Moe {
    fn upload(spec: &MoeSpec, weights: &Weights<'_>) -> Result<Moe, BackendError> {
        let shared = spec.shared.as_ref().map(|shared| {
            let gate = shared.gate.as_ref().map(|gate| weights.linear(gate)).transpose()?;
            Ok::<_, BackendError>((Mlp::upload(&shared.mlp, weights)?, gate))
        });
        Ok(Moe {
            router: weights.linear(&spec.router)?,
            choice_bias: spec.choice_bias.as_ref().map(|bias| weights.vector(bias)).transpose()?,
            gate: weights.experts(&spec.gate)?,
            up: weights.experts(&spec.up)?,
            down: weights.experts(&spec.down)?,
            shared: shared.transpose()?,
            route: RouteParams {
                n: spec.up.len() as u32,
                n_slots: spec.n_used as u32,
                gating: match spec.gating {
                    Gating::Softmax => 0,
                    Gating::SoftmaxOfChosen => 1,
                    Gating::Sigmoid => 2,
                },
                n_groups: spec.groups.map_or(1, |groups| groups.n_groups as u32),
                n_groups_used: spec.groups.map_or(1, |groups| groups.n_used as u32),
                scale: spec.weight_scale,
                flags: if spec.normalize { flags::NORMALIZE } else { 0 },
                ..RouteParams::default()
            },
            n_used: spec.n_used,
            n_ff: spec.up[0].n_out(),
            activation: spec.activation,
        })
    }
}

/// A rotation as kernels need it.
#[derive(Clone, Copy)]
pub(crate) struct RopeShape {
    pub is_neox: bool,
    pub n_pairs: usize,
}

/// Adds the dispatches of layers to a list.
pub(crate) struct LayerSteps<'a> {
    pub list: StepList<'a>,
    pub on: &'a Scratch,
    pub ropes: &'a [RopeShape],
    pub n_embd: usize,
    pub n_ctx: usize,
    pub kv: KvType,
    pub residual_scale: f32,
    /// Place of the two that the residual stream is at.
    pub place: usize,
}

impl<'a> LayerSteps<'a> {
    /// Returns the residual stream.
    pub(crate) fn stream(&self) -> &'a GpuBuffer {
        &self.on.stream[self.place]
    }

    /// Puts the norm of the stream in its place.
    pub(crate) fn norm_stream(&mut self, norm: Option<&'a Norm>) {
        if let Some(norm) = norm {
            let (from, to) = (self.stream(), &self.on.stream[1 - self.place]);
            self.list.norm(norm, from, to, self.n_embd);
            self.place = 1 - self.place;
        }
    }

    /// Returns the norm of the stream, or the stream where there is no norm.
    fn normed(&mut self, norm: Option<&'a Norm>, to: &'a GpuBuffer) -> &'a GpuBuffer {
        let Some(norm) = norm else { return self.stream() };
        self.list.norm(norm, self.stream(), to, self.n_embd);
        to
    }

    /// Adds a layer.
    pub(crate) fn layer(&mut self, layer: &'a Layer, cache: &'a LayerCache) {
        let on = self.on;
        let source = self.normed(layer.mixer_norm.as_ref(), &on.normed[0]);
        match (layer.wiring, &layer.ffn) {
            (Wiring::Sequential, _) | (Wiring::Parallel | Wiring::PostNorm, None) => {
                let join = self.join(source, layer.mixer_post_norm.as_ref(), self.residual_scale);
                self.mix(&layer.mixer, cache, source, join.target);
                self.joined(join);
                if let Some(ffn) = &layer.ffn {
                    let source = self.normed(layer.ffn_norm.as_ref(), &on.normed[0]);
                    let join = self.join(source, layer.ffn_post_norm.as_ref(), self.residual_scale);
                    self.feed(ffn, source, join.target);
                    self.joined(join);
                }
            }
            (Wiring::Parallel, Some(ffn)) => {
                let fed = match &layer.ffn_norm {
                    Some(norm) => self.normed(Some(norm), &on.normed[1]),
                    None => source,
                };
                self.mix(&layer.mixer, cache, source, Target::add(self.stream()));
                self.feed(ffn, fed, Target::add(self.stream()));
            }
            (Wiring::PostNorm, Some(ffn)) => {
                let join = self.join(source, None, 1.0);
                self.mix(&layer.mixer, cache, source, join.target);
                self.joined(join);
                self.norm_stream(layer.mixer_post_norm.as_ref());
                let join = self.join(self.stream(), None, 1.0);
                self.feed(ffn, self.stream(), join.target);
                self.joined(join);
                self.norm_stream(layer.ffn_post_norm.as_ref());
            }
        }
    }

    /// Returns where a branch goes: to the stream itself if nothing comes between and the branch does not read it.
    fn join(&self, source: &'a GpuBuffer, norm: Option<&'a Norm>, scale: f32) -> Join<'a> {
        let is_direct = norm.is_none() && scale == 1.0 && !std::ptr::eq(source, self.stream());
        let target = if is_direct { Target::add(self.stream()) } else { Target::write(&self.on.branch[0]) };
        Join { target, norm, scale }
    }

    /// Adds a branch to the stream, if it is not there yet.
    fn joined(&mut self, join: Join<'a>) {
        if join.target.adds {
            return;
        }
        let mut branch = &self.on.branch[0];
        if let Some(norm) = join.norm {
            self.list.norm(norm, branch, &self.on.branch[1], self.n_embd);
            branch = &self.on.branch[1];
        }
        self.list.add(branch, None, self.stream(), self.n_embd, join.scale);
    }

    fn mix(&mut self, mixer: &'a Mixer, cache: &'a LayerCache, source: &'a GpuBuffer, to: Target<'a>) {
        match mixer {
            Mixer::Attention(attention) => self.attend(attention, cache, source, to),
            Mixer::LatentAttention(attention) => self.attend_latent(attention, cache, source, to),
            Mixer::Mamba(mamba) => self.mamba(mamba, cache, source, to),
            Mixer::Mamba2(mamba) => self.mamba2(mamba, cache, source, to),
            Mixer::AttentionAndMamba2(attention, mamba) => {
                self.attend(attention, cache, source, to);
                self.mamba2(mamba, cache, source, Target::add(to.buffer));
            }
            Mixer::ShortConv(conv) => {
                let (on, n_taps) = (self.on, conv.n_taps);
                self.list.linear(&conv.in_proj, source, Target::write(&on.q[0]));
                let buffers = ConvBuffers { x: &on.q[0], inputs: &cache.keys, taps: &conv.taps, y: &on.attended };
                self.list.short_conv(buffers, self.n_embd, n_taps);
                self.list.linear(&conv.out_proj, &on.attended, to);
            }
        }
    }

    fn attend(&mut self, attention: &'a Attention, cache: &'a LayerCache, source: &'a GpuBuffer, to: Target<'a>) {
        let (on, spec) = (self.on, &attention.spec);
        let AttentionSpec { n_heads, n_kv_heads, k_dim, v_dim, .. } = *spec;
        self.list.linear(&attention.q, source, Target::write(&on.q[0]));
        self.list.linear(&attention.k, source, Target::write(&on.k[0]));
        self.list.linear(&attention.v, source, Target::write(&on.v));
        let q = self.heads(attention.q_norm.as_ref(), &on.q, n_heads, spec);
        let k = self.heads(attention.k_norm.as_ref(), &on.k, n_kv_heads, spec);
        let rows = AttendedRows { q, k, v: &on.v, sinks: attention.sinks.as_ref() };
        let shape = AttendedShape {
            n_heads,
            kv: LayerKv { n_kv_heads, k_dim, v_dim },
            scale: spec.scale,
            softcap: spec.softcap,
            window: spec.window,
            is_causal: spec.is_causal,
        };
        self.attend_over(shape, rows, cache);
        self.list.linear(&attention.o, &on.attended, to);
    }

    /// Adds the writing of keys and values, and attention over the cache.
    fn attend_over(&mut self, shape: AttendedShape, rows: AttendedRows<'a>, cache: &'a LayerCache) {
        let AttendedShape { n_heads, kv: LayerKv { n_kv_heads, k_dim, v_dim }, .. } = shape;
        let append = KvAppendParams {
            n_kv_heads: n_kv_heads as u32,
            k_dim: k_dim as u32,
            v_dim: v_dim as u32,
            k_stride: (n_kv_heads * k_dim) as u32,
            v_stride: (n_kv_heads * v_dim) as u32,
            ..KvAppendParams::default()
        };
        self.list.append(self.kv, append, [rows.k, rows.v], [&cache.keys, &cache.values]);
        let params = AttentionParams {
            n_heads: n_heads as u32,
            n_kv_heads: n_kv_heads as u32,
            k_dim: k_dim as u32,
            v_dim: v_dim as u32,
            q_stride: (n_heads * k_dim) as u32,
            y_stride: (n_heads * v_dim) as u32,
            scale: shape.scale,
            softcap: shape.softcap.unwrap_or(0.0),
            window: shape.window.map_or(0, |window| u32::try_from(window).unwrap_or(u32::MAX)),
            n_splits: n_splits(self.list.class, shape.is_causal, shape.window, self.n_ctx) as u32,
            ..AttentionParams::default()
        };
        let AttendedRows { q, sinks, .. } = rows;
        let (keys, values, on) = (&cache.keys, &cache.values, self.on);
        let buffers = AttentionBuffers { q, keys, values, sinks, splits: &on.splits, y: &on.attended };
        self.list.attention(self.kv, params, buffers);
    }

    /// Adds norm and rotation of heads, and returns where they are then.
    fn heads(
        &mut self,
        norm: Option<&'a Norm>,
        places: &'a [GpuBuffer; 2],
        n_heads: usize,
        spec: &AttentionSpec,
    ) -> &'a GpuBuffer {
        let mut x = &places[0];
        if let Some(norm) = norm {
            self.list.norm(norm, x, &places[1], n_heads * spec.k_dim);
            x = &places[1];
        }
        if let Some(rope) = spec.rope {
            let RopeShape { is_neox, n_pairs } = self.ropes[rope];
            let heads = RotatedHeads { n_heads, head_dim: spec.k_dim, first: 0, n_pairs };
            self.list.rope(&self.on.angles[rope], is_neox, x, heads);
        }
        x
    }

    fn feed(&mut self, ffn: &'a Ffn, source: &'a GpuBuffer, to: Target<'a>) {
        match ffn {
            Ffn::Mlp(mlp) => self.mlp(mlp, source, to),
            Ffn::Moe(moe) => self.moe(moe, source, to),
        }
    }

    fn mlp(&mut self, mlp: &'a Mlp, source: &'a GpuBuffer, to: Target<'a>) {
        let on = self.on;
        self.list.linear(&mlp.up, source, Target::write(&on.up));
        let inputs = match &mlp.gate {
            None => Gated { a: &on.up, b: None },
            Some(gate) => {
                self.list.linear(gate, source, Target::write(&on.gate));
                Gated { a: &on.gate, b: Some(&on.up) }
            }
        };
        self.list.activate(Function::Plain(mlp.activation), inputs, &on.inner, mlp.up.matrix.n_rows, 1);
        self.list.linear(&mlp.down, &on.inner, to);
    }

    fn moe(&mut self, moe: &'a Moe, source: &'a GpuBuffer, to: Target<'a>) {
        let (on, n_slots) = (self.on, moe.n_used);
        self.list.linear(&moe.router, source, Target::write(&on.router));
        self.list.route(moe.route, moe.choice_bias.as_ref(), &on.router, [&on.experts, &on.expert_weights]);
        let rows = ExpertRows {
            x: source,
            x_stride: self.n_embd,
            x_slot_stride: 0,
            experts: Some(&on.experts),
            y: &on.expert_gate,
            n_slots,
        };
        self.list.experts(&moe.gate, rows);
        self.list.experts(&moe.up, ExpertRows { y: &on.expert_up, ..rows });
        let function = match moe.activation {
            ExpertActivation::Gated(activation) => Function::Plain(activation),
            ExpertActivation::ClampedSwiglu { alpha, limit } => Function::Clamped { alpha, limit },
        };
        let gated = Gated { a: &on.expert_gate, b: Some(&on.expert_up) };
        self.list.activate(function, gated, &on.expert_inner, moe.n_ff, n_slots);
        let (x_stride, x_slot_stride) = (n_slots * moe.n_ff, moe.n_ff);
        let rows = ExpertRows { x: &on.expert_inner, x_stride, x_slot_stride, y: &on.expert_out, ..rows };
        self.list.experts(&moe.down, rows);
        self.list.combine(&on.expert_out, &on.expert_weights, to, self.n_embd, n_slots);
        match &moe.shared {
            None => {}
            Some((mlp, None)) => self.mlp(mlp, source, Target::add(to.buffer)),
            Some((mlp, Some(gate))) => {
                self.mlp(mlp, source, Target::write(&on.shared));
                self.list.linear(gate, source, Target::write(&on.shared_gate));
                self.list.add(&on.shared, Some(&on.shared_gate), to.buffer, self.n_embd, 1.0);
            }
        }
    }
}

/// Way of a branch to the stream.
#[derive(Clone, Copy)]
struct Join<'a> {
    target: Target<'a>,
    norm: Option<&'a Norm>,
    scale: f32,
}

/// Shape of attention.
#[derive(Clone, Copy)]
struct AttendedShape {
    n_heads: usize,
    kv: LayerKv,
    scale: f32,
    softcap: Option<f32>,
    window: Option<usize>,
    is_causal: bool,
}

/// Rows that attention reads.
#[derive(Clone, Copy)]
struct AttendedRows<'a> {
    q: &'a GpuBuffer,
    k: &'a GpuBuffer,
    v: &'a GpuBuffer,
    sinks: Option<&'a GpuBuffer>,
}

/// Returns over how many workgroups the keys of a row are split: several where few rows may have many keys.
fn n_splits(class: RowClass, is_causal: bool, window: Option<usize>, n_ctx: usize) -> usize {
    match class {
        RowClass::One | RowClass::Few if is_causal => {
            window.unwrap_or(n_ctx).min(n_ctx).div_ceil(SPLIT_KEYS).clamp(1, SPLITS_MAX)
        }
        _ => 1,
    }
}

/// Returns the words that the splits of a row take, of the layer that has most.
pub(crate) fn split_words(layers: &[LayerSpec], n_ctx: usize) -> usize {
    let words = |n_heads: usize, v_dim: usize, is_causal: bool, window: Option<usize>| {
        n_heads * n_splits(RowClass::One, is_causal, window, n_ctx) * (v_dim + 2)
    };
    let of_layer = |layer: &LayerSpec| match (&layer.mixer, layer.mixer.attention()) {
        (_, Some(own)) => words(own.n_heads, own.v_dim, own.is_causal, own.window),
        (MixerSpec::LatentAttention(own), _) => words(own.n_heads, latent_kv(own).v_dim, true, None),
        _ => 0,
    };
    layers.iter().map(of_layer).max().unwrap_or(0)
}
