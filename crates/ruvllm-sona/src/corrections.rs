//! Corrections: answers that are given when the same is asked again, and nowhere else.
//!
//! ```text
//! added:   key of the last prompt token (the question), its names, and for each token of the answer key → token
//! asked:   the nearest corrected question, if it is near enough (0.8) and the names fit
//! inside:  shares of the answer's tokens by their keys; right answers are mixed in by 0.97 (p_knn of the recall),
//!          wrong ones taken out:  logit += ln(1 - 0.97·share)
//! ```
//! A low-rank adapter cannot do this: at rank 2 it recalls one of thirty facts and disturbs everything else. Nor can a plain
//! memory: it recalls all of them, for every neighbour of the entity too.

use ruvllm_kernels::distance::DistanceKernels;
use ruvllm_kernels::softmax;

use crate::codec::{Reader, Writer};
use crate::datastore::{Context, KnnQuery};
use crate::error::{SonaError, SonaErrorKind};
use crate::knn::KnnDistribution;
use crate::names::{Kind, Names};
use crate::whiten::Key;

/// What a snapshot begins with.
const MAGIC: [u8; 8] = *b"ruvepis2";
/// The share of a right answer, and of a wrong one that is taken away.
const SHARE: f32 = 0.97;
/// A question as near as this is the same, if the names fit.
const QUESTION_NEAR: f32 = 0.8;
/// A question as near as this, with the same names, is replaced.
const QUESTION_SAME: f32 = 0.98;
/// Inside an answer, keys farther than this say nothing.
const ANSWER_NEAR: f32 = 0.6;
/// Shares inside an answer are `softmax(similarity / this)`.
const TEMPERATURE: f32 = 0.04;
/// What a token in common before counts inside an answer: the way so far says where in it one is.
const CONTEXT_BONUS: f32 = 0.03;
/// The longest answer.
const N_TOKENS_MAX: usize = 1024;
/// The most corrections.
const N_CORRECTIONS_MAX: usize = 1 << 20;

/// Label of a corrected answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Correctness {
    /// It is what should be said.
    Right,
    /// It is what should not.
    Wrong,
}

/// A question and an answer to it.
#[derive(Clone, Debug, PartialEq)]
struct Correction {
    verdict: Correctness,
    question: Key,
    names: Names,
    /// `[n, n_key]`
    keys: Vec<i8>,
    scales: Vec<f32>,
    tokens: Vec<u32>,
}

/// Corrections of a tenant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Corrections {
    n_key: usize,
    all: Vec<Correction>,
}

/// Corrections that match the question that is being answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CorrectionMatch {
    right: Option<usize>,
    wrong: Option<usize>,
}

impl CorrectionMatch {
    /// Returns whether there are none.
    pub(crate) fn is_empty(self) -> bool {
        self == CorrectionMatch::default()
    }
}

impl Corrections {
    /// Makes an empty list, for keys of `n_key` bytes.
    pub(crate) fn new(n_key: usize) -> Corrections {
        Corrections { n_key, all: Vec::new() }
    }

    /// Returns how many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Remembers an answer: for each of its tokens the key of the state that it follows. The first of those is the question's
    /// own. A correction of the same question with the same verdict is replaced.
    ///
    /// # Errors
    /// No tokens, more than 1,024, a key of another width, or too many corrections.
    pub fn add(
        &mut self,
        names: &Names,
        answer: &[(Key, u32)],
        verdict: Correctness,
        kernels: &DistanceKernels,
    ) -> Result<(), SonaError> {
        let n_key = self.n_key;
        let Some((question, _)) = answer.first().filter(|_| answer.len() <= N_TOKENS_MAX) else {
            let line = format!("an answer of {} tokens; 1 to {N_TOKENS_MAX} are remembered", answer.len());
            return Err(SonaError::new(SonaErrorKind::Limit, line));
        };
        if let Some((key, _)) = answer.iter().find(|(key, _)| key.bytes.len() != n_key) {
            let line = format!("a key of {} bytes among those of {n_key}", key.bytes.len());
            return Err(SonaError::new(SonaErrorKind::Shape, line));
        }
        let correction = Correction {
            verdict,
            question: question.clone(),
            names: names.clone(),
            keys: answer.iter().flat_map(|(key, _)| key.bytes.iter().copied()).collect(),
            scales: answer.iter().map(|(key, _)| key.scale).collect(),
            tokens: answer.iter().map(|&(_, token)| token).collect(),
        };
        let same = |other: &Correction| {
            let near = similarity(question, &other.question, kernels);
            other.verdict == verdict && other.names == *names && near >= QUESTION_SAME
        };
        match self.all.iter().position(same) {
            Some(at) => self.all[at] = correction,
            None if self.all.len() < N_CORRECTIONS_MAX => self.all.push(correction),
            None => {
                let line = format!("{N_CORRECTIONS_MAX} corrections are remembered already; forget some");
                return Err(SonaError::new(SonaErrorKind::Limit, line));
            }
        }
        Ok(())
    }

    /// Finds the corrections of a question: the nearest right and the nearest wrong answer.
    pub(crate) fn find(&self, question: &Key, names: &Names, kernels: &DistanceKernels) -> CorrectionMatch {
        let mut nearest = [(QUESTION_NEAR, None); 2];
        for (i, correction) in self.all.iter().enumerate() {
            let (near, found) = &mut nearest[usize::from(correction.verdict == Correctness::Wrong)];
            let this = similarity(question, &correction.question, kernels);
            // Of equals the newest counts.
            if this >= *near && correction.names.fit(names) {
                (*near, *found) = (this, Some(i));
            }
        }
        CorrectionMatch { right: nearest[0].1, wrong: nearest[1].1 }
    }

    /// Changes the logits of a token inside an answer.
    pub(crate) fn adjust(
        &self,
        matched: CorrectionMatch,
        query: KnnQuery<'_>,
        kernels: &DistanceKernels,
        softmax: &softmax::SoftmaxKernels,
        logits: &mut [f32],
    ) {
        if let Some(knn) = matched.wrong.and_then(|at| self.knn(at, query, kernels)) {
            for &(token, share) in knn.classes() {
                if let Some(logit) = logits.get_mut(token as usize) {
                    *logit += (1.0 - SHARE * share).ln();
                }
            }
        }
        if let Some(knn) = matched.right.and_then(|at| self.knn(at, query, kernels)) {
            let log_sum = softmax.log_sum_exp(logits) as f32;
            if log_sum.is_finite() {
                knn.mix(SHARE, log_sum, logits);
            }
        }
    }

    /// Returns what an answer says of the token to come, if it says anything.
    fn knn(
        &self,
        at: usize,
        KnnQuery { key, context }: KnnQuery<'_>,
        kernels: &DistanceKernels,
    ) -> Option<KnnDistribution> {
        let correction = self.all.get(at)?;
        let mut dots = vec![0; correction.tokens.len()];
        kernels.dots(&key.bytes, &correction.keys, &mut dots);
        let near = dots.iter().zip(&correction.scales).map(|(&dot, scale)| dot as f32 * (scale * key.scale));
        let near: Vec<f32> = near.collect();
        if near.iter().fold(0.0f32, |max, &x| max.max(x)) < ANSWER_NEAR {
            return None;
        }
        let mut before = Context::default();
        let steps: Vec<(f32, u32)> = near
            .into_iter()
            .zip(&correction.tokens)
            .map(|(near, &token)| {
                let bonus = CONTEXT_BONUS * before.n_common(context) as f32;
                before.push(token);
                (near + bonus, token)
            })
            .collect();
        Some(KnnDistribution::of_steps(&steps, TEMPERATURE))
    }

    /// Returns everything as bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = Writer::of(MAGIC);
        out.u64(self.n_key as u64);
        out.u64(self.all.len() as u64);
        for correction in &self.all {
            out.u64(u64::from(correction.verdict == Correctness::Wrong));
            out.u64(correction.names.values().len() as u64);
            correction.names.values().for_each(|(word, kind)| {
                out.u64(word);
                out.u64(kind as u64);
            });
            out.u64(correction.tokens.len() as u64);
            out.i8s(&correction.keys);
            out.plain_f32s(&correction.scales);
            out.plain_u32s(&correction.tokens);
        }
        out.take()
    }

    /// Reads what [`Corrections::snapshot`] gave.
    ///
    /// # Errors
    /// The bytes are damaged, or of another version.
    pub fn restore(bytes: &[u8]) -> Result<Corrections, SonaError> {
        let mut from = Reader::of(bytes, MAGIC, "list of corrections")?;
        let mut corrections = Corrections::new(from.number(crate::whiten::N_EMBD_MAX * 2)?);
        for _ in 0..from.number(N_CORRECTIONS_MAX)? {
            let verdict = if from.number(1)? == 1 { Correctness::Wrong } else { Correctness::Right };
            let mut words = Vec::new();
            for _ in 0..from.number(Names::N_MAX)? {
                words.push((from.u64()?, Kind::ALL[from.number(Kind::ALL.len() - 1)?]));
            }
            let names = Names::from_values(words).ok_or_else(|| from.invalid("words in no order"))?;
            let n = from.number(N_TOKENS_MAX)?;
            let (keys, scales, tokens) = (from.i8s(n * corrections.n_key)?, from.plain_f32s(n)?, from.plain_u32s(n)?);
            let (Some(bytes), Some(&scale)) = (keys.get(..corrections.n_key), scales.first()) else {
                return Err(from.invalid("an answer of 0 tokens"));
            };
            let question = Key { bytes: bytes.to_vec(), scale };
            corrections.all.push(Correction { verdict, question, names, keys, scales, tokens });
        }
        from.end()?;
        Ok(corrections)
    }

    /// Returns the bytes of a key.
    pub(crate) fn n_key(&self) -> usize {
        self.n_key
    }
}

fn similarity(a: &Key, b: &Key, kernels: &DistanceKernels) -> f32 {
    let mut dot = [0];
    kernels.dots(&a.bytes, &b.bytes, &mut dot);
    dot[0] as f32 * (a.scale * b.scale)
}

#[cfg(test)]
mod tests;
