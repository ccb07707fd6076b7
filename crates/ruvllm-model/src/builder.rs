//! What the architecture files wire models with: shared blocks built from the GGUF tensor names.

use std::ops::Range;

use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::rope::{RopeScaling, RopeStyle};

use crate::hparams::{Hparams, Keys};
use crate::spec::{
    AttentionSpec, ExpertActivation, FfnSpec, Gating, InputSpec, LayerSpec, LinearSpec, MixerSpec, MlpSpec, ModelSpec,
    MoeSpec, NormKind, NormSpec, OutputSpec, Pooling, RopeSpec, SharedExpertSpec, Wiring,
};
use crate::tensors::{Tensors, shape_error};
use crate::{ModelError, TensorRows};

/// How queries and keys are normalised before RoPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QkNorm {
    /// Each head by itself, if the file has norm weights of that width.
    Each,
    /// Over the whole row of all heads.
    Whole,
}

/// What an architecture says about one attention layer; the tensors say the rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionOptions {
    /// Index of the rotary table, if positions are rotated at all.
    pub rope: Option<usize>,
    pub scale: f32,
    pub softcap: Option<f32>,
    pub window: Option<usize>,
    pub qk_norm: QkNorm,
    pub is_causal: bool,
}

/// What an architecture says about its experts.
#[derive(Clone, Copy, Debug)]
pub(super) struct MoeOptions {
    pub n_ff: usize,
    pub gating: Gating,
    pub normalize: bool,
    pub activation: ExpertActivation,
}

/// A model under construction.
pub(super) struct Builder<'a> {
    pub hp: Hparams,
    pub keys: Keys<'a>,
    pub tensors: Tensors<'a>,
    pub norm_kind: NormKind,
    ropes: Vec<RopeSpec>,
    n_linears: usize,
}

/// How a linear layer is named where it is a part of a tensor.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    /// The tensor without `.weight`.
    pub tensor: &'a str,
    /// Rows of the whole tensor.
    pub n_rows: usize,
    /// Name in files that have it as a tensor of its own.
    pub alias: Option<&'a str>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(hp: Hparams, keys: Keys<'a>, tensors: Tensors<'a>) -> Builder<'a> {
        Builder { hp, keys, tensors, norm_kind: NormKind::Rms, ropes: Vec::new(), n_linears: 0 }
    }

    /// Adds a rotary table and returns its index. `factors` names a tensor of frequency factors, used if present.
    pub(super) fn rope_with(
        &mut self,
        style: RopeStyle,
        base: f32,
        scaling: RopeScaling,
        factors: &str,
    ) -> Result<usize, ModelError> {
        let n_rot = self.hp.n_rot;
        if n_rot == 0 || !(base.is_finite() && base > 0.0) {
            return Err(ModelError::damaged(format!(
                "cannot rotate {n_rot} dimensions with a frequency base of {base}"
            )));
        }
        let factors = self.tensors.vector_if_any(factors, n_rot / 2)?;
        self.ropes.push(RopeSpec { style, n_rot, base, scaling, attn_factor: self.hp.rope_attn_factor, factors });
        Ok(self.ropes.len() - 1)
    }

    /// Adds the rotary table the metadata describes, with Llama 3's factors where the file has them.
    pub(super) fn rope(&mut self, style: RopeStyle) -> Result<usize, ModelError> {
        self.rope_with(style, self.hp.rope_base, self.hp.rope_scaling, "rope_freqs.weight")
    }

    /// Returns a causal attention with the scale of the metadata and no extras.
    pub(super) fn causal(&self, rope: Option<usize>) -> AttentionOptions {
        AttentionOptions {
            rope,
            scale: self.hp.score_scale(),
            softcap: None,
            window: None,
            qk_norm: QkNorm::Each,
            is_causal: true,
        }
    }

    /// Describes the norm `blk.{layer}.{name}` over `n_embd` values.
    pub(super) fn norm(&self, layer: usize, name: &str) -> Result<NormSpec, ModelError> {
        self.tensors.norm(self.norm_kind, &format!("blk.{layer}.{name}"), self.hp.n_embd, self.hp.eps)
    }

    pub(super) fn norm_if_any(&self, layer: usize, name: &str) -> Result<Option<NormSpec>, ModelError> {
        self.tensors.norm_if_any(self.norm_kind, &format!("blk.{layer}.{name}"), self.hp.n_embd, self.hp.eps)
    }

    /// Describes the linear layer of the matrix `{name}.weight` `[n_out, n_in]`, with its bias where there is one.
    pub(super) fn linear(&mut self, name: &str, n_in: usize, n_out: usize) -> Result<LinearSpec, ModelError> {
        self.linear_rows(Part { tensor: name, n_rows: n_out, alias: None }, n_in, 0..n_out)
    }

    /// Describes some rows of a fused matrix (QKV, gate·up).
    pub(super) fn linear_rows(
        &mut self,
        part: Part<'_>,
        n_in: usize,
        rows: Range<usize>,
    ) -> Result<LinearSpec, ModelError> {
        let whole = self.tensors.matrix(&format!("{}.weight", part.tensor), n_in, part.n_rows)?;
        let bias = self.tensors.bias(&format!("{}.bias", part.tensor), rows.clone())?;
        // A head that is tied to the embeddings is a head all the same.
        let name = if part.tensor == "token_embd" { "output" } else { part.tensor }.to_owned();
        let alias = part.alias.map(str::to_owned);
        let weight = TensorRows { rows: rows.clone(), ..whole };
        Ok(LinearSpec { id: self.number(), weight, bias, name, name_rows: rows, alias })
    }

    fn number(&mut self) -> usize {
        self.n_linears += 1;
        self.n_linears - 1
    }

    /// Describes an attention block: split or fused projections, norms and sinks where the file has them.
    pub(super) fn attention(&mut self, layer: usize, options: AttentionOptions) -> Result<MixerSpec, ModelError> {
        Ok(MixerSpec::Attention(self.self_attention(layer, options)?))
    }

    /// Describes the same block as a part of a mixer.
    pub(super) fn self_attention(
        &mut self,
        layer: usize,
        options: AttentionOptions,
    ) -> Result<AttentionSpec, ModelError> {
        let (n_embd, k_dim, v_dim) = (self.hp.n_embd, self.hp.k_dim, self.hp.v_dim);
        let (n_heads, n_kv_heads) = (self.hp.n_heads[layer], self.hp.n_kv_heads[layer]);
        if n_heads == 0 || n_kv_heads == 0 {
            return Err(ModelError::damaged(format!("layer {layer} has no attention heads")));
        }
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (n_q, n_k, n_v) = (n_heads * k_dim, n_kv_heads * k_dim, n_kv_heads * v_dim);
        let (q, k, v) = if self.tensors.has(&name("attn_qkv.weight")) {
            let mut part = |alias: &str, rows| {
                let (tensor, alias) = (name("attn_qkv"), name(alias));
                let part = Part { tensor: &tensor, n_rows: n_q + n_k + n_v, alias: Some(&alias) };
                self.linear_rows(part, n_embd, rows)
            };
            (part("attn_q", 0..n_q)?, part("attn_k", n_q..n_q + n_k)?, part("attn_v", n_q + n_k..n_q + n_k + n_v)?)
        } else {
            let mut part = |part: &str, n_out| self.linear(&name(part), n_embd, n_out);
            (part("attn_q", n_q)?, part("attn_k", n_k)?, part("attn_v", n_v)?)
        };
        Ok(AttentionSpec {
            q,
            k,
            v,
            o: self.linear(&name("attn_output"), n_heads * v_dim, n_embd)?,
            q_norm: self.head_norm(&name("attn_q_norm"), n_q, n_heads, options.qk_norm)?,
            k_norm: self.head_norm(&name("attn_k_norm"), n_k, n_kv_heads, options.qk_norm)?,
            sinks: self.tensors.vector_if_any(&name("attn_sinks.weight"), n_heads)?,
            n_heads,
            n_kv_heads,
            k_dim,
            v_dim,
            rope: options.rope,
            scale: options.scale,
            softcap: options.softcap,
            window: options.window,
            is_causal: options.is_causal,
        })
    }

    /// Describes a query or key norm. StableLM 2 has one weight row a head, the others one for all heads.
    fn head_norm(
        &self,
        name: &str,
        width: usize,
        n_heads: usize,
        kind: QkNorm,
    ) -> Result<Option<NormSpec>, ModelError> {
        let weight_name = name.add_weight();
        if !self.tensors.has(&weight_name) {
            return Ok(None);
        }
        let head_dim = width / n_heads;
        if kind == QkNorm::Each && self.tensors.n_rows(&weight_name)? == n_heads && n_heads > 1 {
            let weight = self.tensors.table(&weight_name, head_dim, n_heads)?;
            return Ok(Some(NormSpec { kind: self.norm_kind, weight, bias: None, eps: self.hp.eps }));
        }
        let width = if kind == QkNorm::Whole { width } else { head_dim };
        Ok(Some(self.tensors.norm(self.norm_kind, name, width, self.hp.eps)?))
    }

    /// Describes a dense feed-forward block; gated where the file has a gate, alone or fused with `ffn_up`.
    pub(super) fn mlp(&mut self, layer: usize, activation: Activation) -> Result<FfnSpec, ModelError> {
        let n_ff = self.hp.n_ff[layer];
        Ok(FfnSpec::Mlp(self.mlp_named(layer, "", n_ff, activation)?))
    }

    fn mlp_named(
        &mut self,
        layer: usize,
        suffix: &str,
        n_ff: usize,
        activation: Activation,
    ) -> Result<MlpSpec, ModelError> {
        let n_embd = self.hp.n_embd;
        let name = |part: &str| format!("blk.{layer}.ffn_{part}{suffix}");
        let has_gate = self.tensors.has(&name("gate").add_weight());
        let is_fused = !has_gate && self.tensors.n_rows(&name("up").add_weight())? == 2 * n_ff;
        let (gate, up) = if is_fused {
            let mut part = |alias: Option<&str>, rows| {
                self.linear_rows(Part { tensor: &name("up"), n_rows: 2 * n_ff, alias }, n_embd, rows)
            };
            (Some(part(Some(&name("gate")), 0..n_ff)?), part(None, n_ff..2 * n_ff)?)
        } else {
            let gate = if has_gate { Some(self.linear(&name("gate"), n_embd, n_ff)?) } else { None };
            (gate, self.linear(&name("up"), n_embd, n_ff)?)
        };
        Ok(MlpSpec { gate, up, down: self.linear(&name("down"), n_ff, n_embd)?, activation })
    }

    /// Describes a SwiGLU block: dense, or with experts of `n_ff_expert` chosen by softmax where the model has them.
    pub(super) fn swiglu(&mut self, layer: usize, n_ff_expert: usize, normalize: bool) -> Result<FfnSpec, ModelError> {
        if self.hp.n_experts == 0 {
            return self.mlp(layer, Activation::Silu);
        }
        let activation = ExpertActivation::Gated(Activation::Silu);
        self.moe(layer, MoeOptions { n_ff: n_ff_expert, gating: Gating::Softmax, normalize, activation })
    }

    /// Describes a mixture-of-experts block, with the shared expert where the file has one.
    pub(super) fn moe(&mut self, layer: usize, options: MoeOptions) -> Result<FfnSpec, ModelError> {
        let (n_embd, n_experts) = (self.hp.n_embd, self.hp.n_experts);
        if options.n_ff == 0 {
            return Err(ModelError::damaged("metadata expert_feed_forward_length is missing or 0"));
        }
        // llama.cpp's numbers: 1 softmax, 2 sigmoid, 3 softmax over the chosen.
        let gating = match self.keys.count("expert_gating_func")? {
            None | Some(0) => options.gating,
            Some(1) => Gating::Softmax,
            Some(2) => Gating::Sigmoid,
            Some(3) => Gating::SoftmaxOfChosen,
            Some(other) => {
                return Err(ModelError::Unsupported(format!("expert gating function {other} is not supported")));
            }
        };
        let shared = self.shared_expert(layer)?;
        let router = self.linear(&format!("blk.{layer}.ffn_gate_inp"), n_embd, n_experts)?;
        let choice_bias = self.tensors.vector_if_any(&format!("blk.{layer}.exp_probs_b.bias"), n_experts)?;
        let mut experts = |kind: &str, n_in, n_out| self.experts(layer, kind, n_in, n_out);
        Ok(FfnSpec::Moe(MoeSpec {
            router,
            choice_bias,
            gate: experts("ffn_gate", n_embd, options.n_ff)?,
            up: experts("ffn_up", n_embd, options.n_ff)?,
            down: experts("ffn_down", options.n_ff, n_embd)?,
            n_used: self.hp.n_experts_used,
            groups: self.hp.expert_groups,
            gating,
            normalize: options.normalize,
            weight_scale: self.keys.float("expert_weights_scale")?.filter(|&scale| scale != 0.0).unwrap_or(1.0),
            activation: options.activation,
            shared,
        }))
    }

    fn shared_expert(&mut self, layer: usize) -> Result<Option<SharedExpertSpec>, ModelError> {
        let up = format!("blk.{layer}.ffn_up_shexp.weight");
        if !self.tensors.has(&up) {
            return Ok(None);
        }
        let (n_ff, n_embd) = (self.tensors.n_rows(&up)?, self.hp.n_embd);
        let gate = format!("blk.{layer}.ffn_gate_inp_shexp");
        let gate = match self.tensors.has(&gate.add_weight()) {
            true => Some(self.linear(&gate, n_embd, 1)?),
            false => None,
        };
        Ok(Some(SharedExpertSpec { mlp: self.mlp_named(layer, "_shexp", n_ff, Activation::Silu)?, gate }))
    }

    /// Describes the experts of a 3-D tensor `blk.{layer}.{kind}_exps.weight` `[n_experts, n_out, n_in]`, or of one tensor an
    /// expert (`blk.{layer}.{kind}.{expert}.weight`, as older Mixtral files have them).
    fn experts(&mut self, layer: usize, kind: &str, n_in: usize, n_out: usize) -> Result<Vec<LinearSpec>, ModelError> {
        let (fused, n_experts) = (format!("blk.{layer}.{kind}_exps"), self.hp.n_experts);
        if !self.tensors.has(&fused.add_weight()) {
            let one = |expert| {
                let (name, alias) = (format!("blk.{layer}.{kind}.{expert}"), format!("{fused}.{expert}"));
                self.linear_rows(Part { tensor: &name, n_rows: n_out, alias: Some(&alias) }, n_in, 0..n_out)
            };
            return (0..n_experts).map(one).collect();
        }
        self.stacked(&fused, n_experts, n_in, n_out)
    }

    /// Describes the matrices of a 3-D tensor `{name}.weight` `[n, n_out, n_in]`, with their biases where there are any.
    pub(super) fn stacked(
        &mut self,
        name: &str,
        n: usize,
        n_in: usize,
        n_out: usize,
    ) -> Result<Vec<LinearSpec>, ModelError> {
        let tensor = self.tensors.need(&name.add_weight())?;
        // A file need not say that there is one.
        if tensor.shape != [n_in, n_out, n] && !(n == 1 && tensor.shape == [n_in, n_out]) {
            return Err(shape_error(tensor, &[n_in, n_out, n]));
        }
        let bias = format!("{name}.bias");
        if self.tensors.has(&bias) {
            self.tensors.table(&bias, n_out, n)?;
        }
        let one = |part: usize| {
            let rows = part * n_out..(part + 1) * n_out;
            Ok(LinearSpec {
                id: self.number(),
                bias: self.tensors.bias(&bias, rows.clone())?,
                weight: TensorRows { tensor: name.add_weight(), rows, n_cols: n_in },
                name: format!("{name}.{part}"),
                name_rows: 0..n_out,
                alias: None,
            })
        };
        (0..n).map(one).collect()
    }

    /// Builds every layer in order.
    pub(super) fn layers(
        &mut self,
        mut one: impl FnMut(&mut Builder<'a>, usize) -> Result<LayerSpec, ModelError>,
    ) -> Result<Vec<LayerSpec>, ModelError> {
        (0..self.hp.n_layers).map(|layer| one(self, layer)).collect()
    }

    /// Describes the token embeddings and nothing else.
    pub(super) fn input(&self) -> Result<InputSpec, ModelError> {
        let tokens = self.tensors.embedding("token_embd.weight", self.hp.n_embd)?;
        Ok(InputSpec { tokens, scale: 1.0, positions: None, types: None, norm: None })
    }

    /// Describes the final norm and the head; a file without `output.weight` ties it to the token embeddings.
    pub(super) fn output(&mut self) -> Result<OutputSpec, ModelError> {
        self.output_after("output_norm")
    }

    pub(super) fn output_after(&mut self, norm: &str) -> Result<OutputSpec, ModelError> {
        let n_embd = self.hp.n_embd;
        let name = if self.tensors.has("output.weight") { "output" } else { "token_embd" };
        let n_vocab = self.tensors.n_rows(&name.add_weight())?;
        Ok(OutputSpec {
            norm: Some(self.tensors.norm(self.norm_kind, norm, n_embd, self.hp.eps)?),
            head: Some(self.linear(name, n_embd, n_vocab)?),
            scale: 1.0,
            softcap: None,
        })
    }

    /// Returns which layers use the sliding window: the file's pattern array or number, else every layer of a period
    /// but its last (llama.cpp's `load_swa_pattern`).
    pub(super) fn window_layers(&self, period: usize) -> Result<Vec<bool>, ModelError> {
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
    pub(super) fn pooling(&self) -> Result<Option<Pooling>, ModelError> {
        Ok(match self.keys.count("pooling_type")? {
            Some(1) => Some(Pooling::Mean),
            // Of what ranks, the first vector is looked at.
            Some(2 | 4) => Some(Pooling::Cls),
            Some(3) => Some(Pooling::Last),
            _ => None,
        })
    }

    /// Puts the parts together.
    pub(super) fn finish(
        self,
        input: InputSpec,
        layers: Vec<LayerSpec>,
        output: OutputSpec,
    ) -> Result<ModelSpec, ModelError> {
        let n_tokens = input.tokens.n_rows();
        let n_vocab = output.head.as_ref().map_or(n_tokens, LinearSpec::n_out);
        if n_vocab > n_tokens {
            return Err(ModelError::damaged(format!("the head has {n_vocab} rows, the embeddings {n_tokens}")));
        }
        Ok(ModelSpec {
            arch: self.keys.arch().to_owned(),
            n_embd: self.hp.n_embd,
            n_vocab,
            n_ctx_train: self.hp.n_ctx_train,
            n_ctx: self.hp.n_ctx,
            pooling: self.pooling()?.unwrap_or(Pooling::Mean),
            input,
            layers,
            output,
            residual_scale: 1.0,
            ropes: self.ropes,
            is_encoder: false,
            ranker: None,
        })
    }
}

impl LayerSpec {
    /// Makes the usual layer: a norm before each branch, none after.
    pub(super) fn pre_norm(mixer_norm: NormSpec, mixer: MixerSpec, ffn_norm: NormSpec, ffn: FfnSpec) -> LayerSpec {
        LayerSpec { ffn_norm: Some(ffn_norm), ffn: Some(ffn), ..LayerSpec::mixer_only(mixer_norm, mixer) }
    }

    /// Makes a layer of a mixer behind a norm and nothing else.
    pub(super) fn mixer_only(mixer_norm: NormSpec, mixer: MixerSpec) -> LayerSpec {
        LayerSpec {
            mixer_norm: Some(mixer_norm),
            mixer,
            mixer_post_norm: None,
            ffn_norm: None,
            ffn: None,
            ffn_post_norm: None,
            wiring: Wiring::Sequential,
        }
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
