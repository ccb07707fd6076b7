//! How good an answer is, by what can be said without asking anybody: each score is one formula between 0 and 1.
//!
//! | score | 1 | 0 |
//! |---|---|---|
//! | [`schema_compliance`] | the answer has the form that was asked for | it breaks it with its first token |
//! | [`coherence`] | each part is about what the part before is about | no two parts that follow each other share anything |
//! | [`diversity`] | no run of tokens comes twice | the same again and again |
//! | [`consistency`] | who asked the same before got the same answer | they got another one |
//! | [`uniqueness`] | no earlier answer has a run of four tokens of it | an earlier answer has them all |
//!
//! They see vectors and token ids, no text. None of them knows what is true: they find answers that are broken, loop, fall
//! apart or contradict earlier ones. [`Scorer`] remembers earlier answers, so that the last two can be computed.
//!
//! ```
//! use ruvllm_sona::quality::{Answered, Scorer, ScorerOptions};
//!
//! let mut scorer = Scorer::new(ScorerOptions::default());
//! let looping = Answered { tokens: &[5, 6, 5, 6, 5, 6, 5, 6, 5, 6], unix_ms: 1_000, ..Answered::default() };
//! let scores = scorer.score("ann", &looping);
//! assert!(scores.diversity.expect("it has runs") < 0.1 && scores.uniqueness == Some(1.0));
//! // The same again is as diverse, and not new.
//! assert_eq!(scorer.score("ann", &looping).uniqueness, Some(0.0));
//! ```

mod scorer;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

pub use scorer::{Answered, Scorer, ScorerOptions};

/// Runs of so many tokens are what [`uniqueness`] compares.
const GRAM: usize = 4;
/// Questions that are less alike are different questions: the cosine from which on earlier answers bind.
pub const SAME_QUESTION: f32 = 0.8;
/// An earlier answer binds half as much after this time.
pub const HALF_LIFE_MS: f64 = 7.0 * 24.0 * 3600.0 * 1000.0;

/// Quality of an answer, part by part; `None` where there is nothing to judge by.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scores {
    /// [`schema_compliance`].
    pub schema: Option<f32>,
    /// [`coherence`].
    pub coherence: Option<f32>,
    /// [`diversity`].
    pub diversity: Option<f32>,
    /// [`consistency`].
    pub consistency: Option<f32>,
    /// [`uniqueness`].
    pub uniqueness: Option<f32>,
}

impl Scores {
    /// The scores by name, in the order in which they are shown.
    pub fn named(&self) -> [(&'static str, Option<f32>); 5] {
        let Scores { schema, coherence, diversity, consistency, uniqueness } = *self;
        [
            ("schema", schema),
            ("coherence", coherence),
            ("diversity", diversity),
            ("consistency", consistency),
            ("uniqueness", uniqueness),
        ]
    }

    /// Returns one number for all: `schema · mean(coherence, diversity, consistency)` of those that are known. What has not
    /// the form that was asked for is worth that much less whatever it says; being new is no merit where an old answer
    /// was right, so uniqueness does not count. `None` if none of the four is known.
    pub fn overall(&self) -> Option<f32> {
        let known = [self.coherence, self.diversity, self.consistency];
        let n = known.iter().flatten().count();
        let mean = match n {
            0 => self.schema.map(|_| 1.0),
            n => Some(known.iter().flatten().sum::<f32>() / n as f32),
        };
        mean.map(|mean| mean * self.schema.unwrap_or(1.0))
    }
}

/// Extent to which an answer goes by a grammar or a schema.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Leading tokens that it allows.
    pub n_valid: usize,
    /// Tokens of the answer.
    pub n_tokens: usize,
    /// All of them are valid, and it may end there.
    pub is_complete: bool,
}

/// Returns how well an answer keeps to the form that was asked for: 1 if it is valid as a whole, else
/// `½ · n_valid / n_tokens`. An answer that was cut off is worth at most half, and less the earlier it broke.
pub fn schema_compliance(checked: Checked) -> f32 {
    let Checked { n_valid, n_tokens, is_complete } = checked;
    match n_tokens {
        _ if is_complete => 1.0,
        0 => 0.0,
        n => 0.5 * n_valid.min(n) as f32 / n as f32,
    }
}

/// Returns the mean cosine of parts that follow each other, `mean_i max(0, cos(v_i, v_{i+1}))` (Foltz, Kintsch and Landauer
/// 1998, "The measurement of textual coherence with latent semantic analysis", with the caller's vectors in the place of
/// theirs). Parts: `[n][dim]`; those without content (all zeros) are left out. `None` for fewer than two.
pub fn coherence(parts: &[Vec<f32>]) -> Option<f32> {
    let parts: Vec<&Vec<f32>> = parts.iter().filter(|part| part.iter().any(|&x| x != 0.0)).collect();
    let pairs = parts.windows(2).map(|pair| cosine(pair[0], pair[1]).max(0.0));
    (parts.len() >= 2).then(|| pairs.sum::<f32>() / (parts.len() - 1) as f32)
}

/// Returns how little is said twice: `∏_{n = 2, 3, 4} distinct n-grams / n-grams` (Su 2022, arXiv:2202.06417, from the
/// repetition of Welleck 2019, arXiv:1908.04319). `None` for fewer than five tokens.
pub fn diversity(tokens: &[u32]) -> Option<f32> {
    let share = |n: usize| {
        let distinct: HashSet<&[u32]> = tokens.windows(n).collect();
        distinct.len() as f32 / (tokens.len() + 1 - n) as f32
    };
    (tokens.len() > GRAM).then(|| (2..=4).map(share).product())
}

/// A question and what was answered to it, as vectors.
#[derive(Clone, Copy, Debug)]
pub struct QuestionAnswer<'a> {
    /// Of the question.
    pub question: &'a [f32],
    /// Of the answer.
    pub answer: &'a [f32],
    /// When, in Unix milliseconds.
    pub unix_ms: u64,
}

/// Returns whether who asked the same before got the same answer: `Σ w_j · max(0, cos(a, a_j)) / Σ w_j` over earlier answers,
/// with `w_j = max(0, cos(q, q_j) - θ) / (1 - θ) · 2^(-Δt / h)`, `θ` [`SAME_QUESTION`] and `h` [`HALF_LIFE_MS`]. `None` if
/// nobody asked it.
pub fn consistency<'a>(now: QuestionAnswer<'_>, earlier: impl Iterator<Item = QuestionAnswer<'a>>) -> Option<f32> {
    let (mut sum, mut weights) = (0.0, 0.0);
    for past in earlier {
        let likeness = (cosine(now.question, past.question) - SAME_QUESTION) / (1.0 - SAME_QUESTION);
        let age_ms = now.unix_ms.saturating_sub(past.unix_ms) as f64;
        let weight = f64::from(likeness.max(0.0)) * (-age_ms / HALF_LIFE_MS).exp2();
        sum += weight * f64::from(cosine(now.answer, past.answer).max(0.0));
        weights += weight;
    }
    (weights > 0.0).then(|| (sum / weights) as f32)
}

/// The runs of four tokens of an answer, by hash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grams(HashSet<u64>);

impl Grams {
    /// Of these tokens.
    pub fn of(tokens: &[u32]) -> Grams {
        // FNV-1a over the ids: two runs of an answer that fall together cost a little of a score, nothing else.
        let hash = |run: &[u32]| {
            run.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, &id| {
                (hash ^ u64::from(id)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
            })
        };
        Grams(tokens.windows(GRAM).map(hash).collect())
    }
}

/// Returns how much of an answer was never said: `1 - max_j |G ∩ G_j| / |G|` over earlier answers, `G` its runs of four
/// tokens (containment, Broder 1997, "On the resemblance and containment of documents"). 1 if nothing was said before;
/// `None` for an answer without such runs.
pub fn uniqueness<'a>(answer: &Grams, earlier: impl Iterator<Item = &'a Grams>) -> Option<f32> {
    let n = answer.0.len();
    let shared = |other: &Grams| answer.0.iter().filter(|gram| other.0.contains(gram)).count();
    (n > 0).then(|| 1.0 - earlier.map(shared).max().unwrap_or(0) as f32 / n as f32)
}

/// The cosine of two vectors of one width; 0 if one is all zeros.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum::<f64>();
    let norm = (dot(a, a) * dot(b, b)).sqrt();
    if norm > 0.0 { (dot(a, b) / norm).clamp(-1.0, 1.0) as f32 } else { 0.0 }
}
