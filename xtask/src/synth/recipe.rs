//! Mixes of types, by the role of a tensor, as llama.cpp has them.

use ruvllm_gguf::GgmlType;

use super::shapes::{Shape, Tensor};

/// A mix of types.
#[derive(Debug)]
pub(super) struct Recipe {
    name: &'static str,
    /// `general.file_type`.
    pub file_type: u32,
    usual: GgmlType,
    /// Values and the feed-forward block's way back in the layers that count most.
    more: GgmlType,
    /// The head, or the embeddings where they are the head.
    head: GgmlType,
}

const RECIPES: [Recipe; 7] = [
    Recipe { name: "Q4_K_M", file_type: 15, usual: GgmlType::Q4_K, more: GgmlType::Q6_K, head: GgmlType::Q6_K },
    Recipe { name: "Q5_K_M", file_type: 17, usual: GgmlType::Q5_K, more: GgmlType::Q6_K, head: GgmlType::Q6_K },
    Recipe { name: "Q6_K", file_type: 18, usual: GgmlType::Q6_K, more: GgmlType::Q6_K, head: GgmlType::Q6_K },
    Recipe { name: "Q8_0", file_type: 7, usual: GgmlType::Q8_0, more: GgmlType::Q8_0, head: GgmlType::Q8_0 },
    Recipe { name: "IQ4_XS", file_type: 30, usual: GgmlType::IQ4_XS, more: GgmlType::Q5_K, head: GgmlType::Q6_K },
    Recipe { name: "MXFP4", file_type: 38, usual: GgmlType::MXFP4, more: GgmlType::MXFP4, head: GgmlType::Q8_0 },
    Recipe { name: "F16", file_type: 1, usual: GgmlType::F16, more: GgmlType::F16, head: GgmlType::F16 },
];

/// The names of the recipes.
pub(super) fn names() -> [&'static str; RECIPES.len()] {
    RECIPES.each_ref().map(|recipe| recipe.name)
}

/// Returns a recipe by one of [`names`].
pub(super) fn find(name: &str) -> &'static Recipe {
    RECIPES.iter().find(|recipe| recipe.name == name).expect("the command line takes these names only")
}

impl Recipe {
    /// Returns the type of a tensor.
    pub(super) fn type_of(&self, tensor: &Tensor, shape: &Shape) -> GgmlType {
        let role = tensor.name.rsplit('.').nth(1).unwrap_or_default();
        match role {
            _ if tensor.is_norm() => GgmlType::F32,
            "ffn_gate_inp" => GgmlType::F32,
            "output" => self.head,
            "token_embd" if shape.is_tied => self.head,
            "attn_v" | "ffn_down" | "ffn_down_exps" if counts_more(tensor, shape.n_layers) => self.more,
            _ => self.usual,
        }
    }
}

/// The first and the last eighth of the layers, and each third between (`use_more_bits` of llama.cpp).
fn counts_more(tensor: &Tensor, n_layers: usize) -> bool {
    let eighth = n_layers / 8;
    tensor.layer.is_some_and(|layer| layer < eighth || layer >= 7 * n_layers / 8 || (layer - eighth) % 3 == 2)
}
