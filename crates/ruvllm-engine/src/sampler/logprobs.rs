//! Log-probabilities: what the model itself thought of a token.

use super::candidates::Candidate;

/// A chosen token's log-probability, and those of the most likely tokens.
///
/// They are the model's own: of the softmax of its logits as they come, before bias, penalties, grammar, cuts and
/// temperature. So they do not depend on how the token was chosen, and a token may be none of the most likely.
/// [`GenerateRequest::logprobs_of_draw`](crate::GenerateRequest::logprobs_of_draw) asks for those of the draw instead.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The natural logarithm of the chosen token's probability.
    pub logprob: f32,
    /// The most likely tokens and theirs, the most likely first.
    pub top: Vec<(u32, f32)>,
}

/// Returns what the logits of a place say of a token.
pub(crate) fn logprobs_of(logits: &[f32], id: u32, n_top: usize) -> TokenLogprobs {
    Logprobs::new(logits, n_top).of(logits[id as usize])
}

/// Returns the log-probabilities of a draw: of the token that was drawn and of the most likely candidates, whose probabilities are known.
/// Where there are fewer of these than are to be told, tokens follow that could not be drawn, the largest logits first.
pub(super) fn of_draw(drawn: &[Candidate], logits: &[f32], id: u32, n_top: usize) -> TokenLogprobs {
    let mut top: Vec<(u32, f32)> = drawn.iter().map(|candidate| (candidate.id, candidate.p.ln())).collect();
    top.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let logprob = top.iter().find(|(other, _)| *other == id).map_or(f32::NEG_INFINITY, |(_, logprob)| *logprob);
    top.truncate(n_top);
    if top.len() < n_top {
        let rest = Logprobs::new(logits, n_top).top.into_iter().map(|(id, _)| (id, f32::NEG_INFINITY));
        let is_new = |(id, _): &(u32, f32)| drawn.iter().all(|candidate| candidate.id != *id);
        let n_more = n_top - top.len();
        top.extend(rest.filter(is_new).take(n_more));
    }
    TokenLogprobs { logprob, top }
}

/// The logarithms of a distribution's probabilities, of which one token is to be chosen.
pub(super) struct Logprobs {
    /// What is taken from a logit: the logarithm of the sum of their exponentials.
    norm: f64,
    top: Vec<(u32, f32)>,
}

impl Logprobs {
    /// Takes note of the `n_top` most likely; `logits`: `[n_vocab]`, of which one is finite.
    pub(super) fn new(logits: &[f32], n_top: usize) -> Logprobs {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let numbers = logits.iter().filter(|logit| !logit.is_nan());
        let sum: f64 = numbers.map(|&logit| f64::from((logit - max).exp())).sum();
        let norm = f64::from(max) + sum.ln();
        let mut top: Vec<(u32, f32)> = Vec::with_capacity(n_top + 1);
        for (id, &logit) in logits.iter().enumerate().filter(|(_, logit)| !logit.is_nan()) {
            if top.len() < n_top || top.last().is_some_and(|last| logit > last.1) {
                // Behind its equals, which have lower ids.
                let place = top.partition_point(|other| other.1 >= logit);
                top.insert(place, (id as u32, logit));
                top.truncate(n_top);
            }
        }
        top.iter_mut().for_each(|(_, logit)| *logit = (f64::from(*logit) - norm) as f32);
        Logprobs { norm, top }
    }

    /// Returns them with that of the chosen token, which had this logit.
    pub(super) fn of(self, logit: f32) -> TokenLogprobs {
        TokenLogprobs { logprob: (f64::from(logit) - self.norm) as f32, top: self.top }
    }
}
