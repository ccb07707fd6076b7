//! Losses that training makes small.

use candle_core::Tensor;

use super::data::Example;
use super::factors::Factors;
use super::model::{Packed, TrainModel};
use super::ops::{tensor, to_vec};
use crate::error::{LoraError, invalid};

/// Loss of a training.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Loss {
    /// `-log p` of each token that is learned, from those before it.
    #[default]
    NextToken,
    /// `max(0, margin - cos(anchor, positive) + cos(anchor, negative))` of pooled final states (Schroff et al. 2015,
    /// arXiv:1503.03832, with cosines).
    Triplet {
        /// By how much the positive must be nearer.
        margin: f64,
    },
    /// `-log softmax(cos / temperature)` of the positive among all positives and negatives of the pass (van den Oord et al. 2018,
    /// arXiv:1807.03748).
    InfoNce {
        /// How much small differences count.
        temperature: f64,
    },
    /// Direct preference optimisation of the best completion over the worst (Rafailov et al. 2023, arXiv:2305.18290):
    /// `-log σ(beta·(Δbest - Δworst))`, where `Δ` is by how much a completion became likelier than with the base.
    Dpo {
        /// How far from the base it may go; less is farther.
        beta: f64,
    },
    /// Completions weighted by how much better than their group they are (Shao et al. 2024, arXiv:2402.03300, eq. 3 and 4):
    /// clipped ratios to the base's probabilities, and a price for leaving it. The completions are those of the data, not drawn
    /// anew, so the base stands for the policy that wrote them.
    Grpo {
        /// How far the ratio may go from 1 and still count.
        clip: f64,
        /// The price of the divergence from the base.
        beta: f64,
    },
}

impl Loss {
    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Loss::NextToken => "next-token",
            Loss::Triplet { .. } => "triplet",
            Loss::InfoNce { .. } => "infonce",
            Loss::Dpo { .. } => "dpo",
            Loss::Grpo { .. } => "grpo",
        }
    }

    /// Returns how much an example counts: its learned tokens, or 1.
    pub(super) fn units(self, example: &Example) -> usize {
        match self {
            Loss::NextToken => example.sequences.iter().map(super::data::ScoredSequence::n_scored).sum(),
            _ => 1,
        }
    }

    /// Checks that an example is of the kind that this compares.
    ///
    /// # Errors
    /// It is not.
    pub fn check(self, example: &Example) -> Result<(), LoraError> {
        let (n, is_scored) = (example.sequences.len(), !example.scores.is_empty());
        let is_learned = example.sequences.iter().all(|sequence| sequence.n_scored() > 0);
        let (fits, wants) = match self {
            Loss::NextToken => (n == 1 && is_learned, "'messages', 'text', or 'prompt' and 'completion'"),
            Loss::Triplet { .. } => (n == 3 && !is_learned, "'anchor', 'positive' and 'negative'"),
            Loss::InfoNce { .. } => (n >= 2 && !is_learned, "'anchor' and 'positive'"),
            Loss::Dpo { .. } | Loss::Grpo { .. } => {
                (is_scored, "'prompt' with 'chosen' and 'rejected', or with 'completions'")
            }
        };
        if !fits {
            return Err(invalid(format!("the loss {} needs records with {wants}", self.name())));
        }
        let is_flat = is_scored && example.scores.iter().all(|score| *score == example.scores[0]);
        match self {
            Loss::Dpo { .. } if is_flat => Err(invalid("all completions have the same score, so none is preferred")),
            _ => Ok(()),
        }
    }
}

/// With which factors a model is run.
#[derive(Clone, Copy)]
pub(super) enum With<'a> {
    /// None.
    Base,
    /// These, without a gradient.
    Fixed(&'a Factors),
    /// These, with one.
    Trained(&'a Factors),
}

impl With<'_> {
    /// Returns `A` and `B` of a layer, if it is adapted.
    pub(super) fn pair(self, target: usize) -> Option<(Tensor, Tensor)> {
        match self {
            With::Base => None,
            With::Fixed(factors) => factors.pair(target).map(|(a, b)| (a.detach(), b.detach())),
            With::Trained(factors) => factors.pair(target).map(|(a, b)| (a.clone(), b.clone())),
        }
    }
}

/// Computes the sum of the loss over some examples, which are run together.
pub(super) fn sum(model: &TrainModel, with: With<'_>, loss: Loss, examples: &[&Example]) -> Result<Tensor, LoraError> {
    match loss {
        Loss::NextToken => next_token(model, with, examples),
        Loss::Triplet { .. } | Loss::InfoNce { .. } => contrastive(model, with, loss, examples),
        Loss::Dpo { beta } => dpo(model, with, beta, examples),
        Loss::Grpo { clip, beta } => grpo(model, with, clip, beta, examples),
    }
}

/// Log-probabilities of all learned tokens of some examples, and whose they are.
struct Likelihoods {
    /// `[n_scored]`
    log_probs: Tensor,
    /// Tokens of each sequence among them, in order.
    lengths: Vec<usize>,
}

fn likelihoods(model: &TrainModel, with: With<'_>, examples: &[&Example]) -> Result<Likelihoods, LoraError> {
    let (mut packed, mut rows, mut tokens, mut lengths) = (Packed::default(), Vec::new(), Vec::new(), Vec::new());
    for sequence in examples.iter().flat_map(|example| &example.sequences) {
        let first = packed.tokens.len();
        for i in (1..sequence.tokens.len()).filter(|&i| sequence.is_scored[i]) {
            rows.push((first + i - 1) as u32);
            tokens.push(sequence.tokens[i]);
        }
        lengths.push(sequence.n_scored());
        // The last token predicts nothing that is known.
        packed.push(&sequence.tokens[..sequence.tokens.len() - 1]);
    }
    let hidden = model.hidden(&packed, with)?;
    Ok(Likelihoods { log_probs: model.log_probs(&hidden, &rows, tokens)?, lengths })
}

fn next_token(model: &TrainModel, with: With<'_>, examples: &[&Example]) -> Result<Tensor, LoraError> {
    Ok(likelihoods(model, with, examples)?.log_probs.sum_all()?.neg()?)
}

/// Returns the numbers of the best and the worst.
fn extremes(scores: &[f32]) -> (usize, usize) {
    let (mut best, mut worst) = (0, 0);
    for (i, score) in scores.iter().enumerate() {
        best = if *score > scores[best] { i } else { best };
        worst = if *score < scores[worst] { i } else { worst };
    }
    (best, worst)
}

fn dpo(model: &TrainModel, with: With<'_>, beta: f64, examples: &[&Example]) -> Result<Tensor, LoraError> {
    let Likelihoods { log_probs, lengths } = likelihoods(model, with, examples)?;
    let base = likelihoods(model, With::Base, examples)?.log_probs;
    // One row an example: +1 at the tokens of the best completion, -1 at those of the worst.
    let n = log_probs.dims1()?;
    let (mut signs, mut sequence, mut first) = (vec![0.0; examples.len() * n], 0, 0);
    for (row, example) in signs.chunks_exact_mut(n).zip(examples) {
        let (best, worst) = extremes(&example.scores);
        for i in 0..example.sequences.len() {
            let tokens = first..first + lengths[sequence];
            row[tokens.clone()].fill(f32::from(u8::from(i == best)) - f32::from(u8::from(i == worst)));
            (first, sequence) = (tokens.end, sequence + 1);
        }
    }
    let gain = (log_probs - base.detach())?.reshape((n, 1))?;
    let margin = tensor(signs, (examples.len(), n))?.matmul(&gain)?.affine(beta, 0.0)?;
    // -log σ(x) = log(1 + e^-x) = max(-x, 0) + log(1 + e^-|x|), which never overflows.
    let away = margin.neg()?.relu()?;
    Ok((away + (margin.abs()?.neg()?.exp()? + 1.0)?.log()?)?.sum_all()?)
}

/// Returns by how many deviations each score is above the mean of its group.
fn advantages(scores: &[f32]) -> Vec<f32> {
    let n = scores.len() as f32;
    let mean = scores.iter().sum::<f32>() / n;
    let deviation = (scores.iter().map(|score| (score - mean).powi(2)).sum::<f32>() / n).sqrt();
    scores.iter().map(|score| if deviation > 0.0 { (score - mean) / deviation } else { 0.0 }).collect()
}

fn grpo(model: &TrainModel, with: With<'_>, clip: f64, beta: f64, examples: &[&Example]) -> Result<Tensor, LoraError> {
    let Likelihoods { log_probs, lengths } = likelihoods(model, with, examples)?;
    let base = likelihoods(model, With::Base, examples)?.log_probs.detach();
    let n = log_probs.dims1()?;
    // The mean over a completion's tokens, and over the completions of an example.
    let (mut better, mut shares, mut sequence) = (Vec::with_capacity(n), Vec::with_capacity(n), 0);
    for example in examples {
        for advantage in advantages(&example.scores) {
            let n_tokens = lengths[sequence];
            let share = 1.0 / (n_tokens * example.sequences.len()) as f32;
            better.extend(std::iter::repeat_n(advantage, n_tokens));
            shares.extend(std::iter::repeat_n(share, n_tokens));
            sequence += 1;
        }
    }
    let (better, shares) = (tensor(better, n)?, tensor(shares, n)?);
    let gain = (log_probs - base)?;
    let ratio = gain.exp()?;
    let gained = (&ratio * &better)?.minimum(&(ratio.clamp(1.0 - clip, 1.0 + clip)? * &better)?)?;
    // The estimator of Schulman 2020 that is never negative: e^-d + d - 1.
    let price = ((gain.neg()?.exp()? + &gain)? - 1.0)?;
    Ok(((price.affine(beta, 0.0)? - gained)? * shares)?.sum_all()?)
}

fn contrastive(model: &TrainModel, with: With<'_>, loss: Loss, examples: &[&Example]) -> Result<Tensor, LoraError> {
    let mut packed = Packed::default();
    // All anchors, then all positives, then all negatives.
    for i in 0..3 {
        examples
            .iter()
            .filter_map(|example| example.sequences.get(i))
            .for_each(|sequence| packed.push(&sequence.tokens));
    }
    let vectors = model.pooled(&model.hidden(&packed, with)?, &packed)?;
    let n = examples.len();
    let anchors = vectors.narrow(0, 0, n)?;
    let others = vectors.narrow(0, n, packed.lengths.len() - n)?.contiguous()?;
    let near = (&anchors * others.narrow(0, 0, n)?)?.sum(1)?;
    match loss {
        Loss::Triplet { margin } => {
            let far = (&anchors * others.narrow(0, n, n)?)?.sum(1)?;
            Ok(((far - near)? + margin)?.relu()?.sum_all()?)
        }
        Loss::InfoNce { temperature } => {
            // Cosines are at most 1, so taking 1 away keeps every power small.
            let by = 1.0 / temperature;
            let all = anchors.contiguous()?.matmul(&others.t()?)?.affine(by, -by)?;
            let sums = all.exp()?.sum(1)?.log()?;
            Ok((sums - near.affine(by, -by)?)?.sum_all()?)
        }
        _ => Err(invalid(format!("the loss {} compares no vectors", loss.name()))),
    }
}

/// Returns a sum as a number.
pub(super) fn value(sum: &Tensor) -> Result<f64, LoraError> {
    Ok(f64::from(to_vec(&sum.reshape(1)?)?[0]))
}
