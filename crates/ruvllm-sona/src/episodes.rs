//! Corrections: told once, said again when the same is asked, and nowhere else.
//!
//! ```text
//! told:    key of the last prompt token (the question), its names, and for each token of the answer key → token
//! asked:   the nearest told question, if it is near enough (0.8) and the names fit
//! inside:  shares of the answer's tokens by their keys; right answers are mixed in by 0.97 (p_memory of the recall),
//!          wrong ones taken out:  logit += ln(1 - 0.97·share)
//! ```
//! A low-rank adapter cannot do this: at rank 2 it recalls one of thirty facts and disturbs everything else. Nor can a plain
//! memory: it recalls all of them, for every neighbour of the entity too.

use ruvllm_kernels::distance::DistanceKernels;
use ruvllm_kernels::softmax;

use crate::codec::{Reader, Writer};
use crate::error::{SonaError, SonaErrorKind};
use crate::memory::Context;
use crate::names::{Kind, Names};
use crate::recall::Recall;
use crate::whiten::Key;

/// What a snapshot begins with.
const MAGIC: [u8; 8] = *b"ruvepis2";
/// The share of a told answer, and of a wrong one that is taken away.
const SHARE: f32 = 0.97;
/// A question as near as this is the same, if the names fit.
const QUESTION_NEAR: f32 = 0.8;
/// A told question as near as this, with the same names, is replaced.
const QUESTION_SAME: f32 = 0.98;
/// Inside an answer, keys farther than this say nothing.
const ANSWER_NEAR: f32 = 0.6;
/// Shares inside an answer are `softmax(similarity / this)`.
const TEMPERATURE: f32 = 0.04;
/// What a token in common before counts inside an answer: the way so far says where in it one is.
const CONTEXT_BONUS: f32 = 0.03;
/// The longest answer.
const N_TOKENS_MAX: usize = 1024;
/// The most episodes.
const N_EPISODES_MAX: usize = 1 << 20;

/// Whether a told answer is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is what should be said.
    Right,
    /// It is what should not.
    Wrong,
}

/// A question and an answer to it.
#[derive(Clone, Debug, PartialEq)]
struct Episode {
    verdict: Verdict,
    question: Key,
    names: Names,
    /// `[n, n_key]`
    keys: Vec<i8>,
    scales: Vec<f32>,
    tokens: Vec<u32>,
}

/// Corrections that were told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Episodes {
    n_key: usize,
    all: Vec<Episode>,
}

/// What was told of a question that is being answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Opened {
    right: Option<usize>,
    wrong: Option<usize>,
}

impl Opened {
    /// Returns whether nothing was told.
    pub(crate) fn is_empty(self) -> bool {
        self == Opened::default()
    }
}

impl Episodes {
    /// Makes an empty list, for keys of `n_key` bytes.
    pub(crate) fn new(n_key: usize) -> Episodes {
        Episodes { n_key, all: Vec::new() }
    }

    /// Returns how many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns whether nothing was told.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Remembers an answer: for each of its tokens the key of the state that it follows. The first of those is the question's
    /// own. What was told of the same question with the same verdict is replaced.
    ///
    /// # Errors
    /// No tokens, more than 1,024, a key of another width, or too many episodes.
    pub fn tell(
        &mut self,
        names: &Names,
        answer: &[(Key, u32)],
        verdict: Verdict,
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
        let episode = Episode {
            verdict,
            question: question.clone(),
            names: names.clone(),
            keys: answer.iter().flat_map(|(key, _)| key.bytes.iter().copied()).collect(),
            scales: answer.iter().map(|(key, _)| key.scale).collect(),
            tokens: answer.iter().map(|&(_, token)| token).collect(),
        };
        let same = |other: &Episode| {
            let near = similarity(question, &other.question, kernels);
            other.verdict == verdict && other.names == *names && near >= QUESTION_SAME
        };
        match self.all.iter().position(same) {
            Some(at) => self.all[at] = episode,
            None if self.all.len() < N_EPISODES_MAX => self.all.push(episode),
            None => {
                let line = format!("{N_EPISODES_MAX} corrections are remembered already; forget some");
                return Err(SonaError::new(SonaErrorKind::Limit, line));
            }
        }
        Ok(())
    }

    /// Finds what was told of a question: the nearest right and the nearest wrong answer.
    pub(crate) fn open(&self, question: &Key, names: &Names, kernels: &DistanceKernels) -> Opened {
        let mut nearest = [(QUESTION_NEAR, None); 2];
        for (i, episode) in self.all.iter().enumerate() {
            let (near, found) = &mut nearest[usize::from(episode.verdict == Verdict::Wrong)];
            let this = similarity(question, &episode.question, kernels);
            // Of equals the one told last counts.
            if this >= *near && episode.names.fit(names) {
                (*near, *found) = (this, Some(i));
            }
        }
        Opened { right: nearest[0].1, wrong: nearest[1].1 }
    }

    /// Changes the logits of a token inside an answer.
    pub(crate) fn adjust(
        &self,
        opened: Opened,
        (key, context): (&Key, Context),
        kernels: &DistanceKernels,
        softmax: &softmax::SoftmaxKernels,
        logits: &mut [f32],
    ) {
        if let Some(recall) = opened.wrong.and_then(|at| self.recall(at, (key, context), kernels)) {
            for &(token, share) in recall.classes() {
                if let Some(logit) = logits.get_mut(token as usize) {
                    *logit += (1.0 - SHARE * share).ln();
                }
            }
        }
        if let Some(recall) = opened.right.and_then(|at| self.recall(at, (key, context), kernels)) {
            let log_sum = softmax.log_sum_exp(logits) as f32;
            if log_sum.is_finite() {
                recall.mix(SHARE, log_sum, logits);
            }
        }
    }

    /// Returns what an answer says of the token to come, if it says anything.
    fn recall(&self, at: usize, (key, context): (&Key, Context), kernels: &DistanceKernels) -> Option<Recall> {
        let episode = self.all.get(at)?;
        let mut dots = vec![0; episode.tokens.len()];
        kernels.dots(&key.bytes, &episode.keys, &mut dots);
        let near = dots.iter().zip(&episode.scales).map(|(&dot, scale)| dot as f32 * (scale * key.scale));
        let near: Vec<f32> = near.collect();
        if near.iter().fold(0.0f32, |max, &x| max.max(x)) < ANSWER_NEAR {
            return None;
        }
        let mut before = Context::default();
        let steps: Vec<(f32, u32)> = near
            .into_iter()
            .zip(&episode.tokens)
            .map(|(near, &token)| {
                let bonus = CONTEXT_BONUS * before.n_common(context) as f32;
                before.push(token);
                (near + bonus, token)
            })
            .collect();
        Some(Recall::of_steps(&steps, TEMPERATURE))
    }

    /// Returns everything as bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = Writer::of(MAGIC);
        out.u64(self.n_key as u64);
        out.u64(self.all.len() as u64);
        for episode in &self.all {
            out.u64(u64::from(episode.verdict == Verdict::Wrong));
            out.u64(episode.names.values().len() as u64);
            episode.names.values().for_each(|(word, kind)| {
                out.u64(word);
                out.u64(kind as u64);
            });
            out.u64(episode.tokens.len() as u64);
            out.i8s(&episode.keys);
            out.plain_f32s(&episode.scales);
            out.plain_u32s(&episode.tokens);
        }
        out.take()
    }

    /// Reads what [`Episodes::snapshot`] gave.
    ///
    /// # Errors
    /// The bytes are damaged, or of another version.
    pub fn restore(bytes: &[u8]) -> Result<Episodes, SonaError> {
        let mut from = Reader::of(bytes, MAGIC, "list of corrections")?;
        let mut episodes = Episodes::new(from.number(crate::whiten::N_EMBD_MAX * 2)?);
        for _ in 0..from.number(N_EPISODES_MAX)? {
            let verdict = if from.number(1)? == 1 { Verdict::Wrong } else { Verdict::Right };
            let mut words = Vec::new();
            for _ in 0..from.number(Names::N_MAX)? {
                words.push((from.u64()?, Kind::ALL[from.number(Kind::ALL.len() - 1)?]));
            }
            let names = Names::from_values(words).ok_or_else(|| from.invalid("words in no order"))?;
            let n = from.number(N_TOKENS_MAX)?;
            let (keys, scales, tokens) = (from.i8s(n * episodes.n_key)?, from.plain_f32s(n)?, from.plain_u32s(n)?);
            let (Some(bytes), Some(&scale)) = (keys.get(..episodes.n_key), scales.first()) else {
                return Err(from.invalid("an answer of 0 tokens"));
            };
            let question = Key { bytes: bytes.to_vec(), scale };
            episodes.all.push(Episode { verdict, question, names, keys, scales, tokens });
        }
        from.end()?;
        Ok(episodes)
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
