//! Role of a tensor by its name, and whether it is quantised at all.

use ruvllm_gguf::TensorInfo;

/// Role of a tensor, as far as recipes tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TensorRole {
    /// Embeddings of tokens.
    TokenEmbedding,
    /// The head.
    Output,
    /// Attention values, or a fused matrix that has them in it.
    AttentionValue,
    /// Attention queries.
    AttentionQuery,
    /// Attention keys.
    AttentionKey,
    /// The matrix after attention.
    AttentionOutput,
    /// The way up in a feed-forward part.
    FfnUp,
    /// The gate of a feed-forward part.
    FfnGate,
    /// The way down in a feed-forward part.
    FfnDown,
    /// All others.
    Other,
}

impl TensorRole {
    /// Returns the role of a tensor of this name.
    pub(crate) fn of(name: &str) -> TensorRole {
        const PARTS: [(&str, TensorRole); 9] = [
            ("attn_qkv.weight", TensorRole::AttentionValue),
            ("attn_kv_b.weight", TensorRole::AttentionValue),
            ("attn_v.weight", TensorRole::AttentionValue),
            ("attn_k.weight", TensorRole::AttentionKey),
            ("attn_q.weight", TensorRole::AttentionQuery),
            ("attn_output.weight", TensorRole::AttentionOutput),
            ("ffn_up", TensorRole::FfnUp),
            ("ffn_gate", TensorRole::FfnGate),
            ("ffn_down", TensorRole::FfnDown),
        ];
        match name {
            "output.weight" => TensorRole::Output,
            "token_embd.weight" | "per_layer_token_embd.weight" => TensorRole::TokenEmbedding,
            _ => PARTS.iter().find(|(part, _)| name.contains(part)).map_or(TensorRole::Other, |(_, role)| *role),
        }
    }
}

/// Parts of the names of matrices that stay as they are: norms, routers, positions, small ones.
const KEPT: [&str; 35] = [
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
];

/// Returns whether a tensor is quantised: a matrix, or several, of weights that are not small or sensitive.
pub(crate) fn is_quantized(tensor: &TensorInfo) -> bool {
    let is_matrix = tensor.shape.iter().skip(1).any(|&n| n > 1);
    let name = tensor.name.as_str();
    is_matrix
        && name.ends_with("weight")
        && !matches!(name, "position_embd.weight" | "token_types.weight")
        && !KEPT.iter().any(|part| name.contains(part))
}
