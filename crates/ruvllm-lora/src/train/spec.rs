//! What a model is made of, as training needs it: which blocks in which order, and numbers of linear layers whose weights are read
//! from the file. Who wires models fills it in; nothing here knows an architecture.

use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::rope::Rope;

/// A norm over rows of `width` values.
#[derive(Clone, Debug, PartialEq)]
pub struct NormSpec {
    /// Whether the mean is taken away first (LayerNorm), or only the length divided by (RMSNorm).
    pub is_layer: bool,
    /// Length of a row.
    pub width: usize,
    /// `[n_sets, width]`: row `i` is scaled by set `i % n_sets`. One set unless heads have their own.
    pub weight: Vec<f32>,
    /// `[n_sets, width]`, added behind the scaling.
    pub bias: Option<Vec<f32>>,
    /// Added to the mean square.
    pub eps: f32,
}

/// A linear layer: its number in [`Targets`](crate::Targets), which names the weights, and its bias.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearSpec {
    /// The layer's number.
    pub target: usize,
    /// `[n_out]`
    pub bias: Option<Vec<f32>>,
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
    /// Over queries, before they are rotated.
    pub q_norm: Option<NormSpec>,
    /// Over keys, before they are rotated.
    pub k_norm: Option<NormSpec>,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Length of a query or key head.
    pub k_dim: usize,
    /// Length of a value head.
    pub v_dim: usize,
    /// Which of [`Spec::ropes`] rotates positions, if any.
    pub rope: Option<usize>,
    /// Scores are multiplied with it.
    pub scale: f32,
    /// `s = cap·tanh(s / cap)`
    pub softcap: Option<f32>,
    /// How many positions back a query sees, itself counted.
    pub window: Option<usize>,
    /// Whether a query sees only what is before it.
    pub is_causal: bool,
}

/// A dense feed-forward block: `down(act(gate(x)) · up(x))`, or `down(act(up(x)))` without a gate.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpSpec {
    /// What is activated and multiplied with.
    pub gate: Option<LinearSpec>,
    /// Up.
    pub up: LinearSpec,
    /// Down.
    pub down: LinearSpec,
    /// The activation.
    pub activation: Activation,
}

/// How a layer's two branches join the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joining {
    /// `x += mixer(norm(x)); x += mlp(norm(x))`
    Sequential,
    /// `x += mixer(norm(x)) + mlp(norm(x))`
    Parallel,
    /// `x = norm(x + mixer(x)); x = norm(x + mlp(x))`
    PostNorm,
}

/// One layer. An absent norm passes its input on.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Before attention.
    pub attention_norm: Option<NormSpec>,
    /// What mixes tokens.
    pub attention: AttentionSpec,
    /// Behind attention.
    pub attention_post_norm: Option<NormSpec>,
    /// Before the feed-forward block; without one in [`Joining::Parallel`], both branches read the same.
    pub mlp_norm: Option<NormSpec>,
    /// What works on each token alone.
    pub mlp: MlpSpec,
    /// Behind the feed-forward block.
    pub mlp_post_norm: Option<NormSpec>,
    /// How the branches join.
    pub joining: Joining,
}

/// From the stream to logits.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadSpec {
    /// The matrix.
    pub linear: LinearSpec,
    /// Logits are multiplied with it.
    pub scale: f32,
    /// `l = cap·tanh(l / cap)`, behind the scale.
    pub softcap: Option<f32>,
}

/// How the vectors of a text's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooled {
    /// Their mean.
    Mean,
    /// The first.
    First,
    /// The last.
    Last,
}

/// A transformer.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Width of the stream.
    pub n_embd: usize,
    /// Number of token embeddings.
    pub n_vocab: usize,
    /// The tensor of token embeddings, without `.weight`.
    pub embeddings: String,
    /// Embeddings are multiplied with it.
    pub embedding_scale: f32,
    /// The tensor of learned positions, without `.weight`, and how many it has.
    pub positions: Option<(String, usize)>,
    /// `[n_embd]`, added to every row (BERT's first segment).
    pub segment: Option<Vec<f32>>,
    /// Over the rows before the first layer.
    pub input_norm: Option<NormSpec>,
    /// The layers.
    pub layers: Vec<LayerSpec>,
    /// Branches are multiplied with it before they join (Granite).
    pub residual_scale: f32,
    /// Over the rows behind the last layer.
    pub output_norm: Option<NormSpec>,
    /// The head; encoders have none.
    pub head: Option<HeadSpec>,
    /// How positions are rotated.
    pub ropes: Vec<Rope>,
    /// How token vectors become one.
    pub pooled: Pooled,
}

impl Spec {
    /// Iterates over the linear layers of layer `layer` with what they are called in [`TargetSet`].
    pub fn linears(&self, layer: usize) -> impl Iterator<Item = (Role, &LinearSpec)> {
        let LayerSpec { attention, mlp, .. } = &self.layers[layer];
        let own = [(Role::Query, &attention.q), (Role::Key, &attention.k), (Role::Value, &attention.v)];
        let gate = mlp.gate.iter().map(|gate| (Role::Mlp, gate));
        let rest = [(Role::Mlp, &mlp.up), (Role::Mlp, &mlp.down)];
        own.into_iter().chain([(Role::Output, &attention.o)]).chain(gate).chain(rest)
    }
}

/// What a linear layer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Makes queries.
    Query,
    /// Makes keys.
    Key,
    /// Makes values.
    Value,
    /// Makes attention's output.
    Output,
    /// Belongs to the feed-forward block.
    Mlp,
}

/// Which linear layers are adapted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetSet {
    /// Queries and values, as the first LoRAs.
    QueriesAndValues,
    /// All of attention.
    Attention,
    /// All of attention and of the feed-forward blocks.
    #[default]
    All,
}

impl TargetSet {
    /// Returns whether a layer is among them.
    pub fn has(self, role: Role) -> bool {
        match self {
            TargetSet::QueriesAndValues => matches!(role, Role::Query | Role::Value),
            TargetSet::Attention => role != Role::Mlp,
            TargetSet::All => true,
        }
    }

    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            TargetSet::QueriesAndValues => "qv",
            TargetSet::Attention => "attn",
            TargetSet::All => "all",
        }
    }
}
