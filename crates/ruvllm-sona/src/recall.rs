//! What a memory says of the next token.

use crate::memory::{Hit, Memory};

/// A distribution over the tokens of the nearest entries.
#[derive(Clone, Debug, Default)]
pub struct Recall {
    /// Entries, their shares, and their tokens; nearest first.
    pub(crate) hits: Vec<(u32, f32, u32)>,
    /// Tokens with their shares, which add up to 1, the likeliest first (of equals the one whose entry is nearer).
    pub(crate) classes: Vec<(u32, f32)>,
    /// Similarity of the nearest entry.
    pub(crate) nearest: f32,
}

impl Recall {
    /// Reads the tokens of found entries: shares are `softmax(similarity / temperature)`.
    pub(crate) fn read(&mut self, memory: &Memory, hits: &[Hit], temperature: f32) {
        self.hits.clear();
        self.classes.clear();
        self.nearest = hits.first().map_or(0.0, |hit| hit.value);
        let nearest = self.nearest;
        let weight = |hit: &Hit| ((hit.value - nearest) / temperature).exp();
        let sum: f32 = hits.iter().map(weight).sum();
        for hit in hits {
            let (token, share) = (memory.token(hit.index), weight(hit) / sum);
            self.hits.push((hit.index, share, token));
            self.add(token, share);
        }
        self.classes.sort_by(|a, b| b.1.total_cmp(&a.1));
    }

    /// Makes a distribution of similarities and tokens: shares are `softmax(similarity / temperature)`.
    pub(crate) fn of_steps(steps: &[(f32, u32)], temperature: f32) -> Recall {
        let nearest = steps.iter().fold(f32::NEG_INFINITY, |max, step| max.max(step.0));
        let weight = |similarity: f32| ((similarity - nearest) / temperature).exp();
        let sum: f32 = steps.iter().map(|step| weight(step.0)).sum();
        let mut recall = Recall { nearest, ..Recall::default() };
        steps.iter().for_each(|&(similarity, token)| recall.add(token, weight(similarity) / sum));
        recall.classes.sort_by(|a, b| b.1.total_cmp(&a.1));
        recall
    }

    fn add(&mut self, token: u32, share: f32) {
        match self.classes.iter_mut().find(|(other, _)| *other == token) {
            Some((_, all)) => *all += share,
            None => self.classes.push((token, share)),
        }
    }

    /// Returns the share of a token: its probability by the memory.
    pub fn probability(&self, token: u32) -> f32 {
        self.classes.iter().find(|(other, _)| *other == token).map_or(0.0, |&(_, share)| share)
    }

    /// Returns tokens with their shares, the likeliest first.
    pub fn classes(&self) -> &[(u32, f32)] {
        &self.classes
    }

    /// Returns the similarity of the nearest entry, 0 if there is none.
    pub fn nearest(&self) -> f32 {
        self.nearest
    }

    /// Adds a share `lambda` of this to the model's own distribution: `p = (1 - λ)·p_model + λ·p_memory`. Only the logits of
    /// remembered tokens change, since `1 - λ` is common to all: `logit += ln(1 + λ/(1-λ)·p_memory/p_model)`. `log_sum` is
    /// the logarithm of the sum of the row's exponentials.
    pub(crate) fn mix(&self, lambda: f32, log_sum: f32, logits: &mut [f32]) {
        let odds = lambda / (1.0 - lambda);
        for &(token, share) in &self.classes {
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            let gain = odds * share * (log_sum - *logit).exp();
            // Where the model says "never" (a ruled-out token), it stays so.
            if logit.is_finite() {
                *logit = if gain.is_finite() { *logit + gain.ln_1p() } else { log_sum + (odds * share).ln() };
            }
        }
    }
}
