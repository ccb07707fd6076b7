//! Logit bias: what the request itself adds to a token's logit.

/// Adds each bias to its token's logit; ids outside the vocabulary are ignored.
pub(super) fn apply(logits: &mut [f32], bias: &[(u32, f32)]) {
    for &(id, bias) in bias {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit += bias;
        }
    }
}
