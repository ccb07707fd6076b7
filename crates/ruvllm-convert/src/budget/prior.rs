//! Sensitivities by role, where none was measured.

/// Sensitivities by parts of names: means over SmolLM2 135M and Gemma 3 270M, which agree within a factor of two or three
/// (`adr/0037-recipes-of-a-size.md`). Heads were measured as token embeddings that are the head as well.
const ROLES: [(&str, f64); 8] = [
    ("attn_k", 0.2),
    ("attn_output", 0.16),
    ("attn_q", 0.16),
    ("attn_v", 0.16),
    ("ffn_down", 0.31),
    ("ffn_gate", 0.27),
    ("ffn_up", 0.26),
    ("token_embd", 0.3),
];

/// Sensitivity of a head.
const HEAD: f64 = 10.0;

/// Sensitivity of a role that was not measured.
const OTHER: f64 = 0.3;

/// Returns how sensitive a model is to the relative error of a tensor, by its name; `is_head` of what logits are computed with.
pub(super) fn of(name: &str, is_head: bool) -> f64 {
    match ROLES.iter().find(|(part, _)| name.contains(part)) {
        _ if is_head => HEAD,
        Some(&(_, value)) => value,
        None => OTHER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_told_from_other_outputs() {
        assert_eq!(of("output.weight", true), HEAD);
        assert_eq!((of("token_embd.weight", true), of("token_embd.weight", false)), (HEAD, 0.3));
        assert_eq!((of("blk.3.attn_output.weight", false), of("blk.3.ssm_in.weight", false)), (0.16, OTHER));
    }
}
