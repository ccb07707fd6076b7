//! What a datastore says of the next token.

use crate::datastore::{Context, Datastore, Hit};

/// How far the model's own opinion of a token goes into the share of its entries: as this power of its probability.
const MODEL_SHARE: f32 = 0.15;
/// Log probabilities below this count as this.
const LOG_P_MIN: f32 = -9.0;
/// How much an entry counts that the model has in view: it read the same itself, and what it makes of that is in its own distribution.
const IN_VIEW: f32 = 0.1;

/// A distribution over the tokens of the nearest entries.
#[derive(Clone, Debug, Default)]
pub struct KnnDistribution {
    /// Entries, their shares, and their tokens; nearest first.
    pub(crate) hits: Vec<(u32, f32, u32)>,
    /// Tokens with their shares, which add up to 1, the likeliest first (of equals the one whose entry is nearer).
    pub(crate) classes: Vec<(u32, f32)>,
    /// Similarity of the nearest entry.
    pub(crate) nearest: f32,
}

impl KnnDistribution {
    /// Reads the tokens of found entries. A share is `exp(similarity / temperature)`, less for tokens that the model itself, of which
    /// `log_p` gives log probabilities, hardly thinks of, and for what stands behind contexts that it has in view.
    pub(crate) fn read(
        &mut self,
        datastore: &Datastore,
        hits: &[Hit],
        temperature: f32,
        log_p: impl Fn(u32) -> f32,
        is_in_view: impl Fn(Context) -> bool,
    ) {
        self.hits.clear();
        self.classes.clear();
        self.nearest = hits.first().map_or(0.0, |hit| hit.value);
        let nearest = self.nearest;
        let weight = |hit: &Hit, token: u32| {
            let of_model = MODEL_SHARE * log_p(token).max(LOG_P_MIN);
            let of_view = if is_in_view(datastore.context_behind(hit.index)) { IN_VIEW } else { 1.0 };
            of_view * ((hit.value - nearest) / temperature + of_model).exp()
        };
        self.hits.extend(hits.iter().map(|hit| {
            let token = datastore.token(hit.index);
            (hit.index, weight(hit, token), token)
        }));
        let sum: f32 = self.hits.iter().map(|&(_, weight, _)| weight).sum();
        for (_, share, token) in &mut self.hits {
            *share /= sum;
            add(&mut self.classes, *token, *share);
        }
        self.classes.sort_by(|a, b| b.1.total_cmp(&a.1));
    }

    /// Makes a distribution of similarities and tokens: shares are `softmax(similarity / temperature)`.
    pub(crate) fn of_steps(steps: &[(f32, u32)], temperature: f32) -> KnnDistribution {
        let nearest = steps.iter().fold(f32::NEG_INFINITY, |max, step| max.max(step.0));
        let weight = |similarity: f32| ((similarity - nearest) / temperature).exp();
        let sum: f32 = steps.iter().map(|step| weight(step.0)).sum();
        let mut knn = KnnDistribution { nearest, ..KnnDistribution::default() };
        steps.iter().for_each(|&(similarity, token)| add(&mut knn.classes, token, weight(similarity) / sum));
        knn.classes.sort_by(|a, b| b.1.total_cmp(&a.1));
        knn
    }

    /// Returns the share of a token: its probability by the datastore.
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

    /// Adds a share `lambda` of this to the model's own distribution: `p = (1 - λ)·p_model + λ·p_knn`. Only the logits of
    /// remembered tokens change, since `1 - λ` is common to all: `logit += ln(1 + λ/(1-λ)·p_knn/p_model)`. `log_sum` is
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

/// Gives a share to a token.
fn add(classes: &mut Vec<(u32, f32)>, token: u32, share: f32) {
    match classes.iter_mut().find(|(other, _)| *other == token) {
        Some((_, all)) => *all += share,
        None => classes.push((token, share)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datastore::DatastoreOptions;
    use crate::whiten::Key;

    #[test]
    fn shares_go_by_similarity_the_models_opinion_and_what_is_in_view() {
        let mut datastore = Datastore::new(64, DatastoreOptions::default()).expect("options");
        let key = Key { bytes: vec![1; 64], scale: 0.125 };
        let (mut context, mut in_view) = (Context::default(), None);
        for token in 0..4 {
            datastore.push(&key, context, token, 1.0);
            context.push(token);
            // The third token came behind the first two in this request too.
            if token == 2 {
                in_view = Some(context);
            }
        }
        let read = |indices: [u32; 2], ahead: f32, log_p: fn(u32) -> f32| {
            let mut knn = KnnDistribution::default();
            let hits = [(indices[0], 0.5 + ahead), (indices[1], 0.5)].map(|(index, value)| Hit { index, value });
            knn.read(&datastore, &hits, 0.05, log_p, |context| in_view == Some(context));
            assert!((knn.classes.iter().map(|class| class.1).sum::<f32>() - 1.0).abs() < 1e-5);
            knn.probability(indices[0]) / knn.probability(indices[1])
        };
        let is_about = |x: f32, y: f32| assert!((x / y - 1.0).abs() < 1e-3, "{x} for {y}");
        is_about(read([0, 1], 0.0, |_| -1.0), 1.0);
        is_about(read([0, 1], 0.05, |_| -1.0), 1f32.exp());
        is_about(read([0, 1], 0.0, |token| -2.0 * token as f32), (2.0 * MODEL_SHARE).exp());
        is_about(read([0, 2], 0.0, |_| -1.0), 1.0 / IN_VIEW);
        is_about(read([3, 1], 0.0, |_| -1.0), 1.0);
        // What was ruled out, or is no number, is only unlikely.
        for log_p in
            [|token| if token == 1 { f32::NEG_INFINITY } else { 0.0 }, |token| if token == 1 { f32::NAN } else { 0.0 }]
        {
            is_about(read([0, 1], 0.0, log_p), (-LOG_P_MIN * MODEL_SHARE).exp());
        }
    }
}
