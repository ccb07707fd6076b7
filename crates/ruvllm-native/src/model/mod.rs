//! Models: hyperparameters, tensors, shared blocks, one file an architecture, and the forward pass.

mod blocks;
mod forward;
mod head_shortlist;
mod last;
mod loader;
mod make;
mod wanted;

pub(crate) use blocks::Rows;
pub(crate) use forward::{Batch, ForwardState, RowCounts};
pub(crate) use head_shortlist::ShortlistState;
pub(crate) use last::{LastBlock, has_last_block};
pub(crate) use loader::Loader;

use ruvllm_backend::pooling::PairHead;
use ruvllm_cpu::NextShares;
use ruvllm_kernels::matmul::{self, ActFormat, HeadShortlist, Matrix};
use ruvllm_kernels::rope::Rope;
use ruvllm_kvcache::KvLayout;
use ruvllm_model::{ModelSpec, Wiring};

use blocks::{Attention, AttentionShape, LatentAttention, Linear, Mamba, Mamba2, Mlp, Moe, Norm, ShortConv, Sizes};
use loader::Embedding;

/// A loaded model: weights in the form the kernels read, wired by its architecture.
pub(crate) struct Model {
    /// Spec of the model, read from its file.
    pub spec: ModelSpec,
    pub input: Input,
    pub layers: Vec<Layer>,
    pub output: Output,
    pub ropes: Vec<Rope>,
    pub kv_layout: KvLayout,
    /// Set for cross-encoders: what makes a score of the first token's vector.
    pub ranker: Option<PairHead>,
    /// Values of recurrent state a sequence carries beside its keys and values.
    pub state_len: usize,
}

/// From token ids to the residual stream.
pub(crate) struct Input {
    pub tokens: Embedding,
    pub scale: f32,
    /// Learned positions: `[n_ctx_train, n_embd]`.
    pub positions: Option<Embedding>,
    /// Vectors of the segments, added to their rows (BERT): the first text's, then the second's.
    pub types: Vec<Vec<f32>>,
    pub norm: Option<Norm>,
}

/// From the residual stream to logits.
pub(crate) struct Output {
    pub norm: Option<Norm>,
    pub head: Option<Linear>,
    pub scale: f32,
    pub softcap: Option<f32>,
}

/// One layer. An absent norm passes its input on.
pub(crate) struct Layer {
    pub mixer_norm: Option<Norm>,
    pub mixer: Mixer,
    pub mixer_post_norm: Option<Norm>,
    pub ffn_norm: Option<Norm>,
    pub ffn: Option<Ffn>,
    pub ffn_post_norm: Option<Norm>,
    pub wiring: Wiring,
}

/// What mixes tokens.
#[expect(clippy::large_enum_variant, reason = "one a layer, made once; a box would only add a hop")]
pub(crate) enum Mixer {
    Attention(Attention),
    LatentAttention(LatentAttention),
    ShortConv(ShortConv),
    Mamba(Mamba),
    Mamba2(Mamba2),
    AttentionAndMamba2(Attention, Mamba2),
}

/// What works on each token alone.
#[expect(clippy::large_enum_variant, reason = "one a layer, made once; a box would only add a hop")]
pub(crate) enum Ffn {
    Mlp(Mlp),
    Moe(Moe),
}

impl Mixer {
    /// Returns what it multiplies with first.
    pub(crate) fn format(&self) -> ActFormat {
        match self {
            Mixer::Attention(attention) | Mixer::AttentionAndMamba2(attention, _) => attention.q.format(),
            Mixer::LatentAttention(attention) => attention.first().format(),
            Mixer::ShortConv(conv) => conv.in_proj.format(),
            Mixer::Mamba(mamba) => mamba.x.format(),
            Mixer::Mamba2(mamba) => mamba.z.format(),
        }
    }

    /// Returns the heads of its attention, if it has one.
    fn attention(&self) -> Option<AttentionShape> {
        match self {
            Mixer::Attention(attention) | Mixer::AttentionAndMamba2(attention, _) => Some(attention.shape()),
            Mixer::LatentAttention(attention) => Some(attention.shape()),
            Mixer::ShortConv(_) | Mixer::Mamba(_) | Mixer::Mamba2(_) => None,
        }
    }

    fn linears(&self) -> Vec<&Linear> {
        match self {
            Mixer::Attention(attention) => attention.linears().collect(),
            Mixer::LatentAttention(attention) => attention.linears(),
            Mixer::ShortConv(conv) => conv.linears().collect(),
            Mixer::Mamba(mamba) => mamba.linears().collect(),
            Mixer::Mamba2(mamba) => mamba.linears().collect(),
            Mixer::AttentionAndMamba2(attention, mamba) => attention.linears().chain(mamba.linears()).collect(),
        }
    }

    fn groups(&mut self) -> Vec<Vec<&mut Linear>> {
        match self {
            Mixer::Attention(attention) => attention.groups(),
            Mixer::LatentAttention(attention) => attention.groups(),
            Mixer::ShortConv(_) => Vec::new(),
            Mixer::Mamba(mamba) => mamba.groups(),
            Mixer::Mamba2(mamba) => mamba.groups(),
            Mixer::AttentionAndMamba2(attention, mamba) => {
                attention.groups().into_iter().chain(mamba.groups()).collect()
            }
        }
    }

    /// Raises sizes to those that it needs.
    fn raise(&self, sizes: &mut Sizes) {
        if let Some(shape) = self.attention() {
            sizes.q_width = sizes.q_width.max(shape.q_width());
            sizes.k_width = sizes.k_width.max(shape.k_width());
            sizes.v_width = sizes.v_width.max(shape.v_width());
            sizes.o_width = sizes.o_width.max(shape.o_width());
        }
        match self {
            Mixer::Attention(_) => {}
            Mixer::LatentAttention(attention) => sizes.latent = sizes.latent.max(attention.sizes()),
            Mixer::ShortConv(_) => sizes.conv = true,
            Mixer::Mamba(mamba) => sizes.ssm = sizes.ssm.max(mamba.sizes()),
            Mixer::Mamba2(mamba) | Mixer::AttentionAndMamba2(_, mamba) => sizes.ssm = sizes.ssm.max(mamba.sizes()),
        }
    }
}

impl Ffn {
    /// Returns what it multiplies with first.
    pub(crate) fn format(&self) -> ActFormat {
        match self {
            Ffn::Mlp(mlp) => mlp.up.format(),
            Ffn::Moe(moe) => moe.router.format(),
        }
    }
}

impl Layer {
    fn linears(&self) -> Vec<&Linear> {
        let mut all = self.mixer.linears();
        match &self.ffn {
            None => {}
            Some(Ffn::Mlp(mlp)) => all.extend(mlp.linears()),
            Some(Ffn::Moe(moe)) => all.extend(moe.linears()),
        }
        all
    }

    /// Returns the matrices that are multiplied together, in the order of a forward pass.
    fn groups(&mut self) -> Vec<Vec<&mut Linear>> {
        let mut all = self.mixer.groups();
        if let Some(Ffn::Mlp(mlp)) = &mut self.ffn {
            all.extend(mlp.groups());
        }
        all
    }

    /// Returns the weight bytes one token reads; of the experts only the share it visits.
    fn read_bytes(&self) -> usize {
        let all: usize = self.linears().iter().map(|linear| linear.weight_bytes()).sum();
        match &self.ffn {
            None | Some(Ffn::Mlp(_)) => all,
            Some(Ffn::Moe(moe)) => {
                let experts: usize = moe.experts().map(Linear::weight_bytes).sum();
                all - experts + (experts as f64 * moe.read_share()) as usize
            }
        }
    }
}

impl Model {
    /// Iterates over the heads of the layers with attention.
    pub(crate) fn attentions(&self) -> impl Iterator<Item = AttentionShape> {
        self.layers.iter().filter_map(|layer| layer.mixer.attention())
    }

    /// Tells every product what a pass of a pool of `n_threads` reads after its weights; of the head that is the shortlist,
    /// where there is one.
    pub(crate) fn link(&mut self, n_threads: usize, shortlist: Option<&HeadShortlist>) {
        let mut groups: Vec<Vec<&mut Linear>> = self.layers.iter_mut().flat_map(Layer::groups).collect();
        groups.extend(self.output.head.as_mut().map(|head| vec![head]));
        let next_shares = |group: &Vec<&mut Linear>| {
            let matrices: Vec<&Matrix> = group.iter().map(|linear| linear.matrix()).collect();
            matmul::next_shares(n_threads, &matrices)
        };
        let mut reads: Vec<NextShares> = groups.iter().map(next_shares).collect();
        if let (Some(shortlist), Some(head)) = (shortlist, reads.last_mut()) {
            *head = matmul::next_shares(n_threads, &[shortlist.coarse()]);
        }
        // The last is followed by the first of the next pass.
        let n_first = reads.len().min(1);
        reads.rotate_left(n_first);
        for (group, next) in groups.iter_mut().zip(reads) {
            group.iter_mut().for_each(|linear| linear.next = next.clone());
        }
    }

    /// Returns the weight bytes that decoding one token reads.
    pub(crate) fn read_bytes(&self) -> usize {
        let layers: usize = self.layers.iter().map(Layer::read_bytes).sum();
        layers + self.output.head.as_ref().map_or(0, Linear::weight_bytes)
    }

    /// Returns the largest buffer sizes any layer needs for `n_rows` rows at once.
    pub(crate) fn sizes(&self, n_rows: usize) -> Sizes {
        let mut sizes = Sizes { n_rows, n_embd: self.spec.n_embd, ..Sizes::default() };
        for layer in &self.layers {
            layer.mixer.raise(&mut sizes);
            match &layer.ffn {
                None => {}
                Some(Ffn::Mlp(mlp)) => sizes.n_ff = sizes.n_ff.max(mlp.n_ff()),
                Some(Ffn::Moe(moe)) => {
                    sizes.n_experts = moe.up.len();
                    sizes.n_experts_used = moe.spec.n_used;
                    sizes.n_ff_expert = sizes.n_ff_expert.max(moe.n_ff());
                    let shared = moe.shared.as_ref().map_or(0, |shared| shared.mlp.n_ff());
                    sizes.n_ff = sizes.n_ff.max(shared);
                }
            }
        }
        sizes
    }
}
