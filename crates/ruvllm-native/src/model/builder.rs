//! What the architecture files wire models with: shared blocks built from the GGUF tensor names.

use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::rope::{Rope, RopeConfig, RopeScaling, RopeStyle};
use ruvllm_kvcache::{KvLayout, LayerKv};

use super::blocks::{Attention, ExpertActivation, Gating, HeadNorm, Mlp, Moe, Norm, NormKind, SharedExpert};
use super::hparams::{Hparams, Keys, model_error};
use super::loader::Loader;
use super::{Ffn, Input, Layer, Mixer, Model, Output, Pooling};
use ruvllm_backend::{BackendError, BackendErrorKind};

/// How queries and keys are normalised before RoPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QkNorm {
    /// Not at all, unless the file has norm weights of one head's width.
    IfAny,
    /// Over the whole row of all heads.
    Whole,
}

/// What an architecture says about one attention layer; the tensors say the rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionSpec {
    /// Which rotary table, if positions are rotated at all.
    pub rope: Option<usize>,
    pub scale: f32,
    pub softcap: Option<f32>,
    pub window: Option<usize>,
    pub qk_norm: QkNorm,
    pub causal: bool,
}

/// What an architecture says about its experts.
#[derive(Clone, Copy, Debug)]
pub(super) struct MoeSpec {
    pub n_ff: usize,
    pub gating: Gating,
    pub normalize: bool,
    pub activation: ExpertActivation,
}

/// A model under construction.
pub(super) struct Builder<'a> {
    pub hp: Hparams,
    pub keys: Keys<'a>,
    pub loader: &'a Loader<'a>,
    pub norm_kind: NormKind,
    ropes: Vec<Rope>,
    kv_layers: Vec<LayerKv>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(hp: Hparams, keys: Keys<'a>, loader: &'a Loader<'a>) -> Builder<'a> {
        Builder { hp, keys, loader, norm_kind: NormKind::Rms, ropes: Vec::new(), kv_layers: Vec::new() }
    }

    /// Adds a rotary table and returns its index. `factors` names a tensor of frequency factors, used if present.
    pub(super) fn rope_with(
        &mut self,
        style: RopeStyle,
        base: f32,
        scaling: RopeScaling,
        factors: &str,
    ) -> Result<usize, BackendError> {
        let n_rot = self.hp.n_rot;
        if n_rot == 0 || !(base.is_finite() && base > 0.0) {
            return Err(model_error(format!("cannot rotate {n_rot} dimensions with a frequency base of {base}")));
        }
        let freq_factors = self.loader.vector_if_any(factors, n_rot / 2)?;
        if freq_factors.as_ref().is_some_and(|f| f.iter().any(|&x| x <= 0.0 || !x.is_finite())) {
            return Err(model_error(format!("tensor '{factors}' holds a frequency factor that is not positive")));
        }
        let attn_factor = self.hp.rope_attn_factor;
        let config = RopeConfig { style, n_rot, base, scaling, attn_factor, freq_factors };
        self.ropes.push(Rope::new(&config));
        Ok(self.ropes.len() - 1)
    }

    /// Adds the rotary table the metadata describes, with Llama 3's factors where the file has them.
    pub(super) fn rope(&mut self, style: RopeStyle) -> Result<usize, BackendError> {
        self.rope_with(style, self.hp.rope_base, self.hp.rope_scaling, "rope_freqs.weight")
    }

    /// Returns a causal attention with the scale of the metadata and no extras.
    pub(super) fn causal(&self, rope: Option<usize>) -> AttentionSpec {
        AttentionSpec {
            rope,
            scale: self.hp.score_scale(),
            softcap: None,
            window: None,
            qk_norm: QkNorm::IfAny,
            causal: true,
        }
    }

    /// Takes the norm `blk.{layer}.{name}` over `n_embd` values.
    pub(super) fn norm(&self, layer: usize, name: &str) -> Result<Norm, BackendError> {
        self.loader.norm(self.norm_kind, &format!("blk.{layer}.{name}"), self.hp.n_embd, self.hp.eps)
    }

    pub(super) fn norm_if_any(&self, layer: usize, name: &str) -> Result<Option<Norm>, BackendError> {
        self.loader.norm_if_any(self.norm_kind, &format!("blk.{layer}.{name}"), self.hp.n_embd, self.hp.eps)
    }

    /// Takes an attention block: split or fused projections, norms and sinks where the file has them.
    pub(super) fn attention(&mut self, layer: usize, spec: AttentionSpec) -> Result<Mixer, BackendError> {
        let hp = &self.hp;
        let (n_heads, n_kv_heads) = (hp.n_heads[layer], hp.n_kv_heads[layer]);
        if n_heads == 0 || n_kv_heads == 0 {
            return Err(model_error(format!("layer {layer} has no attention heads")));
        }
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (q, k, v) = (n_heads * hp.k_dim, n_kv_heads * hp.k_dim, n_kv_heads * hp.v_dim);
        let (q_proj, k_proj, v_proj) = if self.loader.has(&name("attn_qkv.weight")) {
            let part = |alias: &str, rows| {
                let names = (&*name("attn_qkv"), Some(&*name(alias)));
                self.loader.linear_rows(names, hp.n_embd, q + k + v, rows)
            };
            (part("attn_q", 0..q)?, part("attn_k", q..q + k)?, part("attn_v", q + k..q + k + v)?)
        } else {
            let part = |part: &str, n_out| self.loader.linear(&name(part), hp.n_embd, n_out);
            (part("attn_q", q)?, part("attn_k", k)?, part("attn_v", v)?)
        };
        self.kv_layers.push(LayerKv { n_kv_heads, k_dim: hp.k_dim, v_dim: hp.v_dim });
        Ok(Mixer::Attention(Attention {
            q: q_proj,
            k: k_proj,
            v: v_proj,
            o: self.loader.linear(&name("attn_output"), n_heads * hp.v_dim, hp.n_embd)?,
            q_norm: self.head_norm(&name("attn_q_norm"), q, n_heads, spec.qk_norm)?,
            k_norm: self.head_norm(&name("attn_k_norm"), k, n_kv_heads, spec.qk_norm)?,
            sinks: self.loader.vector_if_any(&name("attn_sinks.weight"), n_heads)?,
            n_heads,
            n_kv_heads,
            k_dim: hp.k_dim,
            v_dim: hp.v_dim,
            rope: spec.rope,
            scale: spec.scale,
            softcap: spec.softcap,
            window: spec.window,
            causal: spec.causal,
            kv_layer: self.kv_layers.len() - 1,
        }))
    }

    /// Takes a query or key norm. StableLM 2 has one weight row a head, the others one for all heads.
    fn head_norm(
        &self,
        name: &str,
        width: usize,
        n_heads: usize,
        kind: QkNorm,
    ) -> Result<Option<HeadNorm>, BackendError> {
        if !self.loader.has(&format!("{name}.weight")) {
            return Ok(None);
        }
        let (kind_of_norm, eps) = (self.norm_kind, self.hp.eps);
        let head_dim = width / n_heads;
        if kind == QkNorm::Whole {
            return Ok(Some(HeadNorm::Same(self.loader.norm(kind_of_norm, name, width, eps)?)));
        }
        if self.loader.n_rows(&format!("{name}.weight"))? == n_heads && n_heads > 1 {
            let weights = self.loader.table(&format!("{name}.weight"), head_dim, n_heads)?;
            let one = |weight: &[f32]| Norm { kind: kind_of_norm, weight: weight.to_vec(), bias: None, eps };
            return Ok(Some(HeadNorm::Each(weights.chunks_exact(head_dim).map(one).collect())));
        }
        Ok(Some(HeadNorm::Same(self.loader.norm(kind_of_norm, name, head_dim, eps)?)))
    }

    /// Takes a dense feed-forward block; gated where the file has a gate, alone or fused with `ffn_up`.
    pub(super) fn mlp(&self, layer: usize, activation: Activation) -> Result<Ffn, BackendError> {
        let (n_embd, n_ff) = (self.hp.n_embd, self.hp.n_ff[layer]);
        Ok(Ffn::Mlp(self.mlp_named(&format!("blk.{layer}.ffn"), "", n_embd, n_ff, activation)?))
    }

    fn mlp_named(
        &self,
        prefix: &str,
        suffix: &str,
        n_embd: usize,
        n_ff: usize,
        activation: Activation,
    ) -> Result<Mlp, BackendError> {
        let name = |part: &str| format!("{prefix}_{part}{suffix}");
        let fused =
            !self.loader.has(&name("gate").add_weight()) && self.loader.n_rows(&name("up").add_weight())? == 2 * n_ff;
        let (gate, up) = if fused {
            let part = |alias, rows| self.loader.linear_rows((&name("up"), alias), n_embd, 2 * n_ff, rows);
            (Some(part(Some(&name("gate")), 0..n_ff)?), part(None, n_ff..2 * n_ff)?)
        } else {
            let gate = match self.loader.has(&name("gate").add_weight()) {
                true => Some(self.loader.linear(&name("gate"), n_embd, n_ff)?),
                false => None,
            };
            (gate, self.loader.linear(&name("up"), n_embd, n_ff)?)
        };
        Ok(Mlp { gate, up, down: self.loader.linear(&name("down"), n_ff, n_embd)?, activation })
    }

    /// Takes a SwiGLU block: dense, or with experts of `n_ff_expert` chosen by softmax where the model has them.
    pub(super) fn swiglu(&self, layer: usize, n_ff_expert: usize, normalize: bool) -> Result<Ffn, BackendError> {
        if self.hp.n_experts == 0 {
            return self.mlp(layer, Activation::Silu);
        }
        let activation = ExpertActivation::Gated(Activation::Silu);
        self.moe(layer, MoeSpec { n_ff: n_ff_expert, gating: Gating::Softmax, normalize, activation })
    }

    /// Takes a mixture-of-experts block, with the shared expert where the file has one.
    pub(super) fn moe(&self, layer: usize, spec: MoeSpec) -> Result<Ffn, BackendError> {
        let (n_embd, n_experts) = (self.hp.n_embd, self.hp.n_experts);
        if spec.n_ff == 0 {
            return Err(model_error("metadata expert_feed_forward_length is missing or 0"));
        }
        // llama.cpp's numbers: 1 softmax, 2 sigmoid, 3 softmax over the chosen.
        let gating = match self.keys.count("expert_gating_func")? {
            None | Some(0) => spec.gating,
            Some(1) => Gating::Softmax,
            Some(2) => Gating::Sigmoid,
            Some(3) => Gating::SoftmaxOfChosen,
            Some(other) => {
                let line = format!("expert gating function {other} is not supported");
                return Err(BackendError::new(BackendErrorKind::Unsupported, line));
            }
        };
        let experts = |kind: &str, n_in, n_out| self.loader.experts(layer, kind, n_experts, n_in, n_out);
        let shared_name = format!("blk.{layer}.ffn_up_shexp.weight");
        let shared = match self.loader.has(&shared_name) {
            true => {
                let n_ff = self.loader.n_rows(&shared_name)?;
                let gate_name = format!("blk.{layer}.ffn_gate_inp_shexp");
                let gate = self.loader.has(&gate_name.add_weight()).then(|| self.loader.linear(&gate_name, n_embd, 1));
                let mlp = self.mlp_named(&format!("blk.{layer}.ffn"), "_shexp", n_embd, n_ff, Activation::Silu)?;
                Some(SharedExpert { mlp, gate: gate.transpose()? })
            }
            false => None,
        };
        Ok(Ffn::Moe(Moe {
            router: self.loader.linear(&format!("blk.{layer}.ffn_gate_inp"), n_embd, n_experts)?,
            choice_bias: self.loader.vector_if_any(&format!("blk.{layer}.exp_probs_b.bias"), n_experts)?,
            gate: experts("ffn_gate", n_embd, spec.n_ff)?,
            up: experts("ffn_up", n_embd, spec.n_ff)?,
            down: experts("ffn_down", spec.n_ff, n_embd)?,
            n_used: self.hp.n_experts_used,
            gating,
            normalize: spec.normalize,
            weight_scale: self.keys.float("expert_weights_scale")?.filter(|&scale| scale != 0.0).unwrap_or(1.0),
            activation: spec.activation,
            shared,
        }))
    }

    /// Builds every layer in order.
    pub(super) fn layers(
        &mut self,
        mut one: impl FnMut(&mut Builder<'a>, usize) -> Result<Layer, BackendError>,
    ) -> Result<Vec<Layer>, BackendError> {
        (0..self.hp.n_layers).map(|layer| one(self, layer)).collect()
    }

    /// Takes the token embeddings and nothing else.
    pub(super) fn input(&self) -> Result<Input, BackendError> {
        let tokens = self.loader.embedding("token_embd.weight", self.hp.n_embd)?;
        Ok(Input { tokens, scale: 1.0, positions: None, types: Vec::new(), norm: None })
    }

    /// Takes the final norm and the head; a file without `output.weight` ties it to the token embeddings.
    pub(super) fn output(&self) -> Result<Output, BackendError> {
        self.output_after("output_norm")
    }

    pub(super) fn output_after(&self, norm: &str) -> Result<Output, BackendError> {
        let n_embd = self.hp.n_embd;
        let name = if self.loader.has("output.weight") { "output" } else { "token_embd" };
        let n_vocab = self.loader.n_rows(&name.add_weight())?;
        Ok(Output {
            norm: Some(self.loader.norm(self.norm_kind, norm, n_embd, self.hp.eps)?),
            head: Some(self.loader.linear(name, n_embd, n_vocab)?),
            scale: 1.0,
            softcap: None,
        })
    }

    /// Returns which layers use the sliding window: the file's pattern array or number, else every layer of a period
    /// but its last (llama.cpp's `load_swa_pattern`).
    pub(super) fn window_layers(&self, period: usize) -> Result<Vec<bool>, BackendError> {
        let n_layers = self.hp.n_layers;
        let key = "attention.sliding_window_pattern";
        match self.keys.flags(key, n_layers)? {
            Some(pattern) => Ok(pattern),
            None => {
                let period = self.keys.count_if_scalar(key)?.unwrap_or(period);
                Ok((0..n_layers).map(|layer| period == 0 || layer % period < period - 1).collect())
            }
        }
    }

    /// Returns how the file says that token vectors become one, if it says so in a way that gives one vector.
    pub(super) fn pooling(&self) -> Result<Option<Pooling>, BackendError> {
        Ok(match self.keys.count("pooling_type")? {
            Some(1) => Some(Pooling::Mean),
            // Of what ranks, the first vector is looked at.
            Some(2 | 4) => Some(Pooling::Cls),
            Some(3) => Some(Pooling::Last),
            _ => None,
        })
    }

    /// Puts the parts together.
    pub(super) fn finish(self, input: Input, layers: Vec<Layer>, output: Output) -> Result<Model, BackendError> {
        let n_vocab = output.head.as_ref().map_or(input.tokens.n_rows, |head| head.n_out());
        if n_vocab > input.tokens.n_rows {
            let line = format!("the head has {n_vocab} rows, the embeddings {}", input.tokens.n_rows);
            return Err(model_error(line));
        }
        let pooling = self.pooling()?.unwrap_or(Pooling::Mean);
        Ok(Model {
            hparams: self.hp,
            input,
            layers,
            output,
            residual_scale: 1.0,
            ropes: self.ropes,
            kv_layout: KvLayout { layers: self.kv_layers },
            is_encoder: false,
            pooling,
            ranker: None,
            n_vocab,
            state_len: 0,
        })
    }
}

/// `{name}.weight`, the tensor behind a block's name.
trait AddWeight {
    fn add_weight(&self) -> String;
}

impl AddWeight for str {
    fn add_weight(&self) -> String {
        format!("{self}.weight")
    }
}
