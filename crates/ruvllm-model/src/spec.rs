//! What a model is made of: which blocks in which order, and which tensors they read.

use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::rope::{RopeScaling, RopeStyle};

use crate::TensorRows;

/// A model as its file describes it: sizes, tensors and wiring, and no weights.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// `general.architecture`.
    pub arch: String,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Tokens that logits are computed for.
    pub n_vocab: usize,
    /// Tokens of context that the model was trained for.
    pub n_ctx_train: usize,
    /// Tokens of context that it was opened with: what was asked for, else `n_ctx_train`. Some models scale rotary positions by it.
    pub n_ctx: usize,
    /// From token ids to the residual stream.
    pub input: InputSpec,
    /// The layers, in order.
    pub layers: Vec<LayerSpec>,
    /// From the residual stream to logits.
    pub output: OutputSpec,
    /// Every branch is multiplied with it before it joins the stream (Granite).
    pub residual_scale: f32,
    /// The ways in which positions are rotated; layers name one by its place.
    pub ropes: Vec<RopeSpec>,
    /// Whether every token sees every other, and the file has no head for tokens.
    pub is_encoder: bool,
    /// Pooling of token vectors, unless somebody asks for another one.
    pub pooling: Pooling,
    /// The head of a cross-encoder, which makes a score of the first token's vector.
    pub ranker: Option<RankerSpec>,
}

/// Way in which the vectors of a text's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The first token's.
    Cls,
    /// The last token's.
    Last,
    /// None: each token keeps its own. No file says so.
    None,
}

/// From token ids to the residual stream.
#[derive(Clone, Debug, PartialEq)]
pub struct InputSpec {
    /// Token embeddings: `[n_vocab, n_embd]`.
    pub tokens: TensorRows,
    /// Token embeddings are multiplied with it.
    pub scale: f32,
    /// Learned positions, added: `[n_positions, n_embd]`.
    pub positions: Option<TensorRows>,
    /// Vectors of the segments, added (BERT): the first text's, then the second's.
    pub types: Option<TensorRows>,
    /// Over the sum.
    pub norm: Option<NormSpec>,
}

/// From the residual stream to logits.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputSpec {
    /// The final norm.
    pub norm: Option<NormSpec>,
    /// The head; encoders have none.
    pub head: Option<LinearSpec>,
    /// Logits are multiplied with it.
    pub scale: f32,
    /// `l = cap·tanh(l / cap)`, behind the scale.
    pub softcap: Option<f32>,
}

/// From the first token's vector `x` to a score: `w·tanh(W·x + b) + c`, or `w·x + c` without the inner layer.
#[derive(Clone, Debug, PartialEq)]
pub struct RankerSpec {
    /// `W` and `b`: `[n_embd, n_embd]` and `[n_embd]`.
    pub dense: Option<(TensorRows, TensorRows)>,
    /// `w`: `[n_embd]`.
    pub weight: TensorRows,
    /// `c`: one value.
    pub bias: Option<TensorRows>,
}

/// Way in which a layer's two branches join the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    /// `x += mixer(norm(x)); x += ffn(norm(x))`
    Sequential,
    /// `x += mixer(norm(x)) + ffn(norm(x))`
    Parallel,
    /// `x = norm(x + mixer(x)); x = norm(x + ffn(x))`
    PostNorm,
}

/// One layer. An absent norm passes its input on.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Before the mixer.
    pub mixer_norm: Option<NormSpec>,
    /// The block that mixes tokens.
    pub mixer: MixerSpec,
    /// Behind the mixer.
    pub mixer_post_norm: Option<NormSpec>,
    /// Before the feed-forward block; without one in [`Wiring::Parallel`], both branches read the same.
    pub ffn_norm: Option<NormSpec>,
    /// Feed-forward block, which works on each token alone; a layer of Mamba has none.
    pub ffn: Option<FfnSpec>,
    /// Behind the feed-forward block.
    pub ffn_post_norm: Option<NormSpec>,
    /// Way in which the branches join the stream.
    pub wiring: Wiring,
}

/// Block that mixes tokens.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one a layer; a box would only add a hop")]
pub enum MixerSpec {
    /// Self-attention.
    Attention(AttentionSpec),
    /// Self-attention whose keys and values are made of one short row (DeepSeek).
    LatentAttention(LatentAttentionSpec),
    /// A gated short convolution (LFM2).
    ShortConv(ShortConvSpec),
    /// A selective state space with a state of its own for every channel (Mamba).
    Mamba(MambaSpec),
    /// A selective state space of heads (Mamba 2).
    Mamba2(Mamba2Spec),
    /// Both of the same input; what they give is added (Falcon-H1).
    AttentionAndMamba2(AttentionSpec, Mamba2Spec),
}

/// Feed-forward block, which works on each token alone.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one a layer; a box would only add a hop")]
pub enum FfnSpec {
    /// A dense block.
    Mlp(MlpSpec),
    /// A mixture of experts.
    Moe(MoeSpec),
}

/// A linear layer: `y = W·x + b`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearSpec {
    /// Its number among the model's linear layers.
    pub id: usize,
    /// `W`: `[n_out, n_in]`.
    pub weight: TensorRows,
    /// `b`: `[n_out]`.
    pub bias: Option<TensorRows>,
    /// Name in adapters: the tensor without `.weight`, `output` for a head that is tied to the embeddings, and with its
    /// number behind for an expert.
    pub name: String,
    /// Its rows of what has that name.
    pub name_rows: std::ops::Range<usize>,
    /// Name in files that have it as a tensor of its own, where `weight` is a part of one.
    pub alias: Option<String>,
}

impl LinearSpec {
    /// Returns the length of its input.
    pub fn n_in(&self) -> usize {
        self.weight.n_cols
    }

    /// Returns the length of its output.
    pub fn n_out(&self) -> usize {
        self.weight.n_rows()
    }
}

/// Kind of a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// RMSNorm: rows are divided by their root mean square.
    Rms,
    /// LayerNorm: the mean is taken away before.
    Layer,
}

/// A norm over rows.
#[derive(Clone, Debug, PartialEq)]
pub struct NormSpec {
    /// Kind of the norm.
    pub kind: NormKind,
    /// `[n_sets, width]`: part `i` of a row is scaled by set `i % n_sets`. One set, unless heads have their own.
    pub weight: TensorRows,
    /// `[n_sets, width]`, added behind the scaling.
    pub bias: Option<TensorRows>,
    /// Added to the mean square.
    pub eps: f32,
}

/// Self-attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// From the stream to queries.
    pub q: LinearSpec,
    /// From the stream to keys.
    pub k: LinearSpec,
    /// From the stream to values.
    pub v: LinearSpec,
    /// From the mixed values back to the stream.
    pub o: LinearSpec,
    /// Over queries, before they are rotated: of one head's width, or of the whole row's.
    pub q_norm: Option<NormSpec>,
    /// Over keys, likewise.
    pub k_norm: Option<NormSpec>,
    /// One logit a head that joins the softmax's denominator (gpt-oss): `[n_heads]`.
    pub sinks: Option<TensorRows>,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Length of a query or key head.
    pub k_dim: usize,
    /// Length of a value head.
    pub v_dim: usize,
    /// Index in [`ModelSpec::ropes`] of the rotation of positions, if any.
    pub rope: Option<usize>,
    /// Scores are multiplied with it.
    pub scale: f32,
    /// `s = cap·tanh(s / cap)`
    pub softcap: Option<f32>,
    /// Number of positions back that a query sees, itself counted.
    pub window: Option<usize>,
    /// Whether a query sees only what is before it.
    pub is_causal: bool,
}

/// Self-attention whose keys and values are made of one short row that all heads share (multi-head latent attention, DeepSeek).
///
/// `c = norm(latent(row))` and `r = rope(k_rot(row))`. The key of a head is `[k(c), r]` and its value `v(c)`; of its query the first
/// `n_nope` values meet `k(c)`, and the rest are rotated and meet `r`.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentAttentionSpec {
    /// Low-rank projection before `q`, if there is one.
    pub q_low: Option<LowRankSpec>,
    /// To the queries: `[n_heads·(n_nope + n_rot), …]`.
    pub q: LinearSpec,
    /// From the stream to the short row: `[n_latent, n_embd]`.
    pub latent: LinearSpec,
    /// From the stream to the part of the keys that is rotated: `[n_rot, n_embd]`.
    pub k_rot: LinearSpec,
    /// Over the short row.
    pub latent_norm: NormSpec,
    /// Expansion of the short row to keys and values.
    pub expansion: ExpansionSpec,
    /// From the mixed values back to the stream: `[n_embd, n_heads·v_dim]`.
    pub o: LinearSpec,
    /// Heads.
    pub n_heads: usize,
    /// Values of a head's key that are made of the short row.
    pub n_nope: usize,
    /// Values of a key that are rotated.
    pub n_rot: usize,
    /// Length of a value head.
    pub v_dim: usize,
    /// Index in [`ModelSpec::ropes`] of the rotation of positions.
    pub rope: usize,
    /// Scores are multiplied with it.
    pub scale: f32,
}

/// A projection to few values and a norm over them.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRankSpec {
    /// From the stream.
    pub down: LinearSpec,
    /// Over what it gives.
    pub norm: NormSpec,
}

/// Expansion of the short row to keys and values, in the layout of the file.
#[derive(Clone, Debug, PartialEq)]
pub enum ExpansionSpec {
    /// One matrix of all heads' keys and values, head by head: `[n_heads·(n_nope + v_dim), n_latent]`.
    Joint(LinearSpec),
    /// Two matrices a head, for attention in the space of the short row, which is its key and its value then.
    Absorbed {
        /// Brings a head's query there: the transposed matrix of its keys, `[n_latent, n_nope]`.
        k: Vec<LinearSpec>,
        /// Brings what a head mixed back to its values: `[v_dim, n_latent]`.
        v: Vec<LinearSpec>,
    },
}

/// A gated short convolution: `out(c · conv(b · x))` with `(b, c, x) = in(row)`.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConvSpec {
    /// From the stream to `b`, `c` and `x`: `[3·n_embd, n_embd]`.
    pub in_proj: LinearSpec,
    /// Back to the stream.
    pub out_proj: LinearSpec,
    /// `[n_embd, n_taps]`, oldest tap first.
    pub taps: TensorRows,
}

/// A causal convolution of every channel by itself, before an activation.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvSpec {
    /// `[n_channels, n_taps]`, oldest tap first.
    pub taps: TensorRows,
    /// Added to the sum: `[n_channels]`.
    pub bias: Option<TensorRows>,
}

/// A selective state space (Mamba): `out(silu(z) · (ssm(x') + d·x'))` with `x' = silu(conv(x(row)))` and `z = z(row)`.
///
/// Every channel has a state `h`: `[n_state]`. A step is `h = exp(Δ·a)·h + Δ·x'·b` and gives `h·c`, with
/// `Δ = softplus(dt(low(x')))`, `b = b(x')` and `c = c(x')`.
#[derive(Clone, Debug, PartialEq)]
pub struct MambaSpec {
    /// From the stream to the channels: `[n_inner, n_embd]`.
    pub x: LinearSpec,
    /// From the stream to what gates them: `[n_inner, n_embd]`.
    pub z: LinearSpec,
    /// Over the channels.
    pub conv: ConvSpec,
    /// From the channels to what steps are made of: `[n_low, n_inner]`.
    pub low: LinearSpec,
    /// From the channels to what is written: `[n_state, n_inner]`.
    pub b: LinearSpec,
    /// From the channels to what is read: `[n_state, n_inner]`.
    pub c: LinearSpec,
    /// Epsilon of the RMS norms without weights over `low`, `b` and `c`, where the model has them (FalconMamba).
    pub inner_eps: Option<f32>,
    /// From `low` to the length of a step, before its softplus: `[n_inner, n_low]`.
    pub dt: LinearSpec,
    /// The decay's rate: `[n_inner, n_state]`, negative.
    pub a: TensorRows,
    /// Share of the channels that passes by the state: `[n_inner]`.
    pub d: TensorRows,
    /// Back to the stream: `[n_embd, n_inner]`.
    pub out: LinearSpec,
}

/// A selective state space of heads (Mamba 2): `out(norm(silu(z) · (ssm(x') + d·x')))` with `x', b, c = silu(conv(x, b, c))`.
///
/// Every channel has a state `h`: `[n_state]`. A step is `h = exp(Δ·a)·h + Δ·x'·b` and gives `h·c`, where `Δ = softplus(dt)` and
/// `a` are those of the channel's head, and `b` and `c` those of its group of heads.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba2Spec {
    /// From the stream to what gates the channels: `[n_inner, n_embd]`.
    pub z: LinearSpec,
    /// From the stream to the channels, what is written and what is read: `[n_inner + 2·n_groups·n_state, n_embd]`.
    pub xbc: LinearSpec,
    /// From the stream to the length of a step: `[n_heads, n_embd]`.
    pub dt: LinearSpec,
    /// Over the channels, what is written and what is read.
    pub conv: ConvSpec,
    /// Added to the length of a step, before its softplus: `[n_heads]`.
    pub dt_bias: TensorRows,
    /// The decay's rate: `[n_heads]`, negative.
    pub a: TensorRows,
    /// Share of the channels that passes by the state: `[n_heads]`.
    pub d: TensorRows,
    /// Over the channels of each group.
    pub norm: Option<NormSpec>,
    /// Back to the stream: `[n_embd, n_inner]`.
    pub out: LinearSpec,
    /// Heads, each of as many channels.
    pub n_heads: usize,
    /// Groups of heads that share what is written and read.
    pub n_groups: usize,
    /// Values of a channel's state.
    pub n_state: usize,
}

/// A dense feed-forward block: `down(act(gate(x)) · up(x))`, or `down(act(up(x)))` without a gate.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpSpec {
    /// Gate, which is activated and multiplied with.
    pub gate: Option<LinearSpec>,
    /// From the stream to the inner row.
    pub up: LinearSpec,
    /// Back to the stream.
    pub down: LinearSpec,
    /// The activation.
    pub activation: Activation,
}

/// Way in which router logits become expert weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts, then the best ones.
    Softmax,
    /// The best logits, then softmax over them.
    SoftmaxOfChosen,
    /// Sigmoid of each logit, then the best ones.
    Sigmoid,
}

/// Groups of experts next to each other, of which some are chosen before experts are: those whose two best scores have the largest sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups.
    pub n_groups: usize,
    /// Number of groups that a row chooses among.
    pub n_used: usize,
}

/// Activation of experts between their matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpertActivation {
    /// `act(gate)·up`
    Gated(Activation),
    /// `gate·σ(alpha·gate)·(up + 1)`, the gate at most `limit` and `up` within `±limit` (gpt-oss).
    ClampedSwiglu {
        /// Steepness of the gate.
        alpha: f32,
        /// The bound.
        limit: f32,
    },
}

/// An expert that every row visits.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedExpertSpec {
    /// The block.
    pub mlp: MlpSpec,
    /// Its output is multiplied with the sigmoid of this, `[1, n_embd]` (qwen2moe).
    pub gate: Option<LinearSpec>,
}

/// A mixture of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeSpec {
    /// From the stream to a logit an expert.
    pub router: LinearSpec,
    /// Added to the scores for choosing only (DeepSeek V3): `[n_experts]`.
    pub choice_bias: Option<TensorRows>,
    /// Gates, which are activated, by expert.
    pub gate: Vec<LinearSpec>,
    /// From the stream to the inner row, by expert.
    pub up: Vec<LinearSpec>,
    /// Back to the stream, by expert.
    pub down: Vec<LinearSpec>,
    /// Number of experts that a row visits.
    pub n_used: usize,
    /// Groups that are chosen first (DeepSeek V3).
    pub groups: Option<ExpertGroups>,
    /// Way in which scores are made.
    pub gating: Gating,
    /// Whether the chosen weights are rescaled to sum to one.
    pub normalize: bool,
    /// Weights are multiplied with it at last.
    pub weight_scale: f32,
    /// Activation of experts between their matrices.
    pub activation: ExpertActivation,
    /// Expert that every row visits in addition.
    pub shared: Option<SharedExpertSpec>,
}

/// A way in which positions are rotated.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Pairing of the values of a head.
    pub style: RopeStyle,
    /// Values of a head that are rotated; the rest stay.
    pub n_rot: usize,
    /// Base of the frequencies.
    pub base: f32,
    /// Scaling that brings positions beyond the trained context into it.
    pub scaling: RopeScaling,
    /// Cosines and sines are multiplied with it.
    pub attn_factor: f32,
    /// Frequencies are divided by them: `[n_rot / 2]`, all positive.
    pub factors: Option<TensorRows>,
}
