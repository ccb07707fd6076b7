//! Shapes of models that people run.

/// Sizes of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub name: &'static str,
    pub arch: &'static str,
    pub pre_tokenizer: &'static str,
    pub n_layers: usize,
    pub n_embd: usize,
    /// Of one expert, where there are some.
    pub n_ff: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub n_vocab: usize,
    pub n_ctx: usize,
    pub rope_base: f32,
    /// Whether the head is the token embeddings.
    pub is_tied: bool,
    pub n_experts: usize,
    pub n_experts_used: usize,
    /// Width of the norms over queries and keys.
    pub qk_norm: QkNorm,
}

/// Norms over queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QkNorm {
    None,
    Head,
    Row,
}

const LLAMA: Shape = Shape {
    name: "llama8b",
    arch: "llama",
    pre_tokenizer: "llama-bpe",
    n_layers: 32,
    n_embd: 4096,
    n_ff: 14336,
    n_heads: 32,
    n_kv_heads: 8,
    head_dim: 128,
    n_vocab: 128_256,
    n_ctx: 131_072,
    rope_base: 500_000.0,
    is_tied: false,
    n_experts: 0,
    n_experts_used: 0,
    qk_norm: QkNorm::None,
};

/// Llama 3.1 8B; Llama 3.2 3B; Qwen3 8B; OLMoE 1B-7B; Qwen3 30B-A3B with 8 of its 48 layers.
const SHAPES: [Shape; 5] = [
    LLAMA,
    Shape { name: "llama3b", n_layers: 28, n_embd: 3072, n_ff: 8192, n_heads: 24, is_tied: true, ..LLAMA },
    Shape {
        name: "qwen3-8b",
        arch: "qwen3",
        pre_tokenizer: "qwen2",
        n_layers: 36,
        n_ff: 12288,
        n_vocab: 151_936,
        n_ctx: 40_960,
        rope_base: 1e6,
        qk_norm: QkNorm::Head,
        ..LLAMA
    },
    Shape {
        name: "olmoe",
        arch: "olmoe",
        pre_tokenizer: "olmo",
        n_layers: 16,
        n_embd: 2048,
        n_ff: 1024,
        n_heads: 16,
        n_kv_heads: 16,
        n_vocab: 50_304,
        n_ctx: 4096,
        rope_base: 10_000.0,
        n_experts: 64,
        n_experts_used: 8,
        qk_norm: QkNorm::Row,
        ..LLAMA
    },
    Shape {
        name: "qwen3-30b-a3b-small",
        arch: "qwen3moe",
        pre_tokenizer: "qwen2",
        n_layers: 8,
        n_embd: 2048,
        n_ff: 768,
        n_kv_heads: 4,
        n_vocab: 151_936,
        n_ctx: 40_960,
        rope_base: 1e6,
        n_experts: 128,
        n_experts_used: 8,
        qk_norm: QkNorm::Head,
        ..LLAMA
    },
];

/// The names of the shapes.
pub(super) fn names() -> [&'static str; SHAPES.len()] {
    SHAPES.each_ref().map(|shape| shape.name)
}

/// Returns a shape by one of [`names`].
pub(super) fn find(name: &str) -> &'static Shape {
    SHAPES.iter().find(|shape| shape.name == name).expect("the command line takes these names only")
}

/// A tensor of a model: its dimensions as GGUF has them, the length of a row first.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub name: String,
    pub dims: Vec<usize>,
    /// Which layer it is in.
    pub layer: Option<usize>,
}

impl Tensor {
    pub(super) fn is_norm(&self) -> bool {
        self.name.contains("norm")
    }
}

impl Shape {
    /// Returns the counts of the metadata, by their keys behind the architecture.
    pub(super) fn counts(&self) -> Vec<(&'static str, usize)> {
        let mut counts = vec![
            ("block_count", self.n_layers),
            ("context_length", self.n_ctx),
            ("embedding_length", self.n_embd),
            ("feed_forward_length", self.n_ff),
            ("attention.head_count", self.n_heads),
            ("attention.head_count_kv", self.n_kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
            ("vocab_size", self.n_vocab),
        ];
        if self.n_experts > 0 {
            let experts = [("expert_count", self.n_experts), ("expert_used_count", self.n_experts_used)];
            counts.extend(experts);
            counts.push(("expert_feed_forward_length", self.n_ff));
        }
        counts
    }

    /// Returns the tensors of a file, in order.
    pub(super) fn tensors(&self) -> Vec<Tensor> {
        let mut all = Vec::new();
        let mut add = |name: String, dims: &[usize], layer| all.push(Tensor { name, dims: dims.to_vec(), layer });
        add("token_embd.weight".to_owned(), &[self.n_embd, self.n_vocab], None);
        if !self.is_tied {
            add("output.weight".to_owned(), &[self.n_embd, self.n_vocab], None);
        }
        add("output_norm.weight".to_owned(), &[self.n_embd], None);
        for layer in 0..self.n_layers {
            for (name, dims) in self.layer() {
                add(format!("blk.{layer}.{name}.weight"), &dims, Some(layer));
            }
        }
        all
    }

    fn layer(&self) -> Vec<(&'static str, Vec<usize>)> {
        let (n_embd, n_ff, n_experts) = (self.n_embd, self.n_ff, self.n_experts);
        let (n_q, n_kv) = (self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim);
        let mut all = vec![
            ("attn_norm", vec![n_embd]),
            ("ffn_norm", vec![n_embd]),
            ("attn_q", vec![n_embd, n_q]),
            ("attn_k", vec![n_embd, n_kv]),
            ("attn_v", vec![n_embd, n_kv]),
            ("attn_output", vec![n_q, n_embd]),
        ];
        match self.qk_norm {
            QkNorm::None => {}
            QkNorm::Head => all.extend([("attn_q_norm", vec![self.head_dim]), ("attn_k_norm", vec![self.head_dim])]),
            QkNorm::Row => all.extend([("attn_q_norm", vec![n_q]), ("attn_k_norm", vec![n_kv])]),
        }
        if n_experts == 0 {
            let dense = [("ffn_gate", n_embd, n_ff), ("ffn_up", n_embd, n_ff), ("ffn_down", n_ff, n_embd)];
            all.extend(dense.map(|(name, n_in, n_out)| (name, vec![n_in, n_out])));
        } else {
            let experts =
                [("ffn_gate_exps", n_embd, n_ff), ("ffn_up_exps", n_embd, n_ff), ("ffn_down_exps", n_ff, n_embd)];
            all.push(("ffn_gate_inp", vec![n_embd, n_experts]));
            all.extend(experts.map(|(name, n_in, n_out)| (name, vec![n_in, n_out, n_experts])));
        }
        all
    }
}
