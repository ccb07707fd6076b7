//! Choosing the next token: penalties, then the cuts (top-k, top-p, min-p), then temperature, then a draw.
//!
//! The order is llama.cpp's default. Temperature 0 is greedy: the largest logit after penalties, the lowest id on a
//! tie. A seed gives the same tokens on every machine that gives the same logits.

mod cuts;
mod penalties;
#[cfg(test)]
mod tests;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::{EngineError, ErrorKind};
use penalties::Penalties;

/// How tokens are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Keeps the k likeliest tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the likeliest tokens whose probabilities first reach this sum; 1 keeps all.
    pub top_p: f32,
    /// Drops tokens less likely than this share of the likeliest one; 0 drops none.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of recent tokens; 1 leaves them.
    pub repeat_penalty: f32,
    /// How many recent tokens (prompt included) the penalty looks at.
    pub repeat_last_n: usize,
    /// Seed of the draws; `None` takes one from the clock.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    /// Temperature 0.8, top-k 40, top-p 0.95, min-p 0.05, no penalty.
    fn default() -> SamplingParams {
        SamplingParams {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            seed: None,
        }
    }
}

impl SamplingParams {
    /// Returns the parameters for greedy decoding.
    pub fn greedy() -> SamplingParams {
        SamplingParams { temperature: 0.0, ..SamplingParams::default() }
    }

    /// Checks every value.
    ///
    /// # Errors
    /// [`ErrorKind::Options`] naming the value and its range.
    pub fn validate(&self) -> Result<(), EngineError> {
        let check = |name: &str, value: f32, low: f32, high: f32| match value {
            v if v >= low && v <= high => Ok(()),
            v => Err(EngineError::new(ErrorKind::Options, format!("{name} {v} is not between {low} and {high}"))),
        };
        check("temperature", self.temperature, 0.0, 100.0)?;
        check("top-p", self.top_p, 0.0, 1.0)?;
        check("min-p", self.min_p, 0.0, 1.0)?;
        check("repeat penalty", self.repeat_penalty, 0.01, 100.0)
    }
}

/// A token that may be chosen, with its logit, and its probability once it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub id: u32,
    pub logit: f32,
    pub p: f32,
}

/// The state of one request's sampling. Allocates when made, never when sampling.
pub(crate) struct Sampler {
    params: SamplingParams,
    rng: ChaCha8Rng,
    penalties: Penalties,
    candidates: Vec<Candidate>,
}

impl Sampler {
    pub(crate) fn new(params: &SamplingParams, n_vocab: usize) -> Result<Sampler, EngineError> {
        params.validate()?;
        let clock = || std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
        Ok(Sampler {
            rng: ChaCha8Rng::seed_from_u64(params.seed.unwrap_or_else(clock)),
            penalties: Penalties::new(params.repeat_penalty, params.repeat_last_n, n_vocab),
            candidates: Vec::with_capacity(n_vocab),
            params: params.clone(),
        })
    }

    /// Takes note of a token of the prompt or the answer.
    pub(crate) fn accept(&mut self, id: u32) {
        self.penalties.accept(id);
    }

    /// Chooses a token; `logits`: `[n_vocab]`, changed by the penalties.
    ///
    /// # Errors
    /// [`ErrorKind::Model`] if no logit is a number.
    pub(crate) fn sample(&mut self, logits: &mut [f32]) -> Result<u32, EngineError> {
        self.penalties.apply(logits);
        let best = argmax(logits).ok_or_else(|| {
            EngineError::new(ErrorKind::Model, "the model gave no finite logits; the file may be damaged")
        })?;
        if self.params.temperature == 0.0 {
            return Ok(best);
        }
        self.candidates.clear();
        self.candidates.extend(logits.iter().enumerate().filter(|(_, l)| !l.is_nan()).map(|(id, &logit)| Candidate {
            id: id as u32,
            logit,
            p: 0.0,
        }));
        cuts::top_k(&mut self.candidates, self.params.top_k);
        cuts::top_p(&mut self.candidates, self.params.top_p);
        cuts::min_p(&mut self.candidates, self.params.min_p);
        cuts::probabilities(&mut self.candidates, self.params.temperature);
        Ok(self.draw().unwrap_or(best))
    }

    /// Draws a candidate by its probability; `None` if rounding leaves nothing.
    fn draw(&mut self) -> Option<u32> {
        // 53 random bits: a uniform value in [0, 1).
        let mut point = (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        for candidate in &self.candidates {
            point -= f64::from(candidate.p);
            if point < 0.0 {
                return Some(candidate.id);
            }
        }
        self.candidates.iter().rev().find(|candidate| candidate.p > 0.0).map(|candidate| candidate.id)
    }
}

/// Returns the index of the largest number, the first of equals; `None` if there is no number above -∞.
pub(crate) fn argmax(logits: &[f32]) -> Option<u32> {
    let mut best = (None, f32::NEG_INFINITY);
    for (id, &logit) in logits.iter().enumerate() {
        if logit > best.1 {
            best = (Some(id as u32), logit);
        }
    }
    best.0
}
