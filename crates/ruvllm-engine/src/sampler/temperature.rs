//! Temperature, and dynamic temperature (llama.cpp #4972).

use super::candidates::Candidates;

/// Divides the logits by `temperature`; 0 keeps the most likely token only.
pub(super) fn apply(candidates: &mut Candidates, temperature: f32) {
    match temperature > 0.0 {
        true => candidates.scale(temperature),
        false => candidates.keep(1),
    }
}

/// Options of a temperature that follows the entropy.
#[derive(Clone, Copy)]
pub(super) struct Dynamic {
    pub(super) temperature: f32,
    pub(super) range: f32,
    pub(super) exponent: f32,
}

/// Divides the logits by a temperature up to `range` below or above `temperature`: low where the distribution's entropy
/// is low, high where it is high.
pub(super) fn apply_dynamic(candidates: &mut Candidates, Dynamic { temperature, range, exponent }: Dynamic) {
    if candidates.len() <= 1 {
        return;
    }
    candidates.softmax();
    let share = candidates.entropy() / (candidates.len() as f32).ln();
    let (low, high) = ((temperature - range).max(0.0), temperature + range);
    apply(candidates, low + (high - low) * share.powf(exponent));
}
