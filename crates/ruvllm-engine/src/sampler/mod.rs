//! Choosing the next token: a chain of samplers, one file each, in llama.cpp's order and with its effects.
//!
//! ```text
//! logits ─ bias ─ penalties ─ DRY ─ top-n-sigma ─ top-k ─ typical ─ top-p ─ min-p ─ XTC ─ temperature ─ draw
//! logits ─ bias ─ temperature ─ mirostat
//! ```
//! Temperature 0 is greedy: the largest logit that is left, the lowest id on a tie. A seed gives the same tokens on
//! every machine that gives the same logits; its stream is the request's own, so a batch changes nothing.

mod bias;
mod candidates;
mod draw;
mod dry;
mod logprobs;
mod min_p;
mod mirostat;
mod params;
mod penalties;
mod temperature;
#[cfg(test)]
mod tests;
mod top_k;
mod top_n_sigma;
mod top_p;
mod typical;
mod xtc;

pub use logprobs::TokenLogprobs;
pub(crate) use logprobs::logprobs_of;
pub use params::{Mirostat, SamplerKind, SamplingParams};

use std::sync::LazyLock;

use ruvllm_kernels::{Isa, softmax};
use ruvllm_text::tokenizer::Tokenizer;

use crate::{EngineError, ErrorKind};
use candidates::{Candidate, Candidates};
use draw::Rng;
use dry::Dry;
use logprobs::Logprobs;
use mirostat::Feedback;
use penalties::Penalties;

/// A token that was chosen.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chosen {
    pub id: u32,
    /// If they were asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// Log-probabilities that are told with each token.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    /// Number of most likely tokens whose logprobs are told; none where nothing is told.
    pub n_top: Option<usize>,
    /// Whether they are of the draw, not of the model.
    pub is_of_draw: bool,
}

impl Told {
    fn of_draw(self) -> Option<usize> {
        self.n_top.filter(|_| self.is_of_draw)
    }
}

/// The state of one request's sampling. Allocates when made; when sampling only log-probabilities do.
pub(crate) struct Sampler {
    params: SamplingParams,
    /// The samplers that do something, in order.
    chain: Vec<SamplerKind>,
    rng: Rng,
    penalties: Option<Penalties>,
    dry: Option<Dry>,
    mirostat: Feedback,
    candidates: Candidates,
    /// Whether the last token was drawn from them.
    is_drawn: bool,
    told: Told,
    /// The logits as they came, if log-probabilities are told.
    raw: Vec<f32>,
}

/// Returns a seed where nobody gave one: the time.
pub fn seed_of_clock() -> u64 {
    web_time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64)
}

impl Sampler {
    /// Makes the sampler of a request.
    ///
    /// # Errors
    /// A value is out of range.
    pub(crate) fn new(
        params: &SamplingParams,
        tokenizer: &Tokenizer,
        n_vocab: usize,
        told: Told,
    ) -> Result<Sampler, EngineError> {
        Sampler::assemble(params, n_vocab, told, || dry::breakers(tokenizer, &params.dry_sequence_breakers))
    }

    fn assemble(
        params: &SamplingParams,
        n_vocab: usize,
        told: Told,
        breakers: impl FnOnce() -> Result<dry::Breakers, EngineError>,
    ) -> Result<Sampler, EngineError> {
        params.validate()?;
        if let Some((id, _)) = params.logit_bias.iter().find(|(id, _)| *id as usize >= n_vocab) {
            let line = format!("the bias of token {id} is outside the vocabulary of {n_vocab}");
            return Err(EngineError::new(ErrorKind::Options, line));
        }
        if let Some(n) = told.n_top.filter(|&n| n > n_vocab) {
            let line = format!("log-probabilities of {n} tokens are more than the vocabulary of {n_vocab} has");
            return Err(EngineError::new(ErrorKind::Options, line));
        }
        let mut sampler = Sampler {
            chain: Vec::new(),
            rng: Rng::new(params.seed.unwrap_or_else(seed_of_clock)),
            penalties: Penalties::new(params, n_vocab),
            dry: Dry::new(params, breakers)?,
            mirostat: Feedback::new(params.mirostat_tau, params.mirostat_eta),
            candidates: Candidates::new(n_vocab),
            is_drawn: false,
            told,
            raw: Vec::new(),
            params: params.clone(),
        };
        sampler.chain = params.order.iter().copied().filter(|&kind| sampler.does(kind)).collect();
        Ok(sampler)
    }

    /// Returns a sampler that would choose as this one does, and tells no log-probabilities.
    pub(crate) fn copy(&self) -> Sampler {
        Sampler {
            chain: self.chain.clone(),
            rng: self.rng.clone(),
            penalties: self.penalties.clone(),
            dry: self.dry.clone(),
            mirostat: self.mirostat.clone(),
            candidates: Candidates::new(self.candidates.capacity()),
            is_drawn: false,
            told: Told::default(),
            raw: Vec::new(),
            params: self.params.clone(),
        }
    }

    /// Makes a [`Sampler::copy`] of `other` choose again as that would next: with its random numbers and what it took note
    /// of.
    pub(crate) fn follow(&mut self, other: &Sampler) {
        self.rng.clone_from(&other.rng);
        self.mirostat.clone_from(&other.mirostat);
        if let (Some(own), Some(penalties)) = (&mut self.penalties, &other.penalties) {
            own.follow(penalties);
        }
        if let (Some(own), Some(dry)) = (&mut self.dry, &other.dry) {
            own.follow(dry);
        }
    }

    /// Returns whether a sampler of the order changes anything.
    fn does(&self, kind: SamplerKind) -> bool {
        let p = &self.params;
        match kind {
            SamplerKind::Temperature => p.temperature != 1.0 || p.dynatemp_range > 0.0,
            _ if p.mirostat != Mirostat::Off => false,
            SamplerKind::Penalties => self.penalties.is_some(),
            SamplerKind::Dry => self.dry.is_some(),
            SamplerKind::TopNSigma => p.top_n_sigma > 0.0,
            SamplerKind::TopK => p.top_k > 0,
            SamplerKind::Typical => p.typical_p < 1.0,
            SamplerKind::TopP => p.top_p < 1.0,
            SamplerKind::MinP => p.min_p > 0.0,
            SamplerKind::Xtc => p.xtc_probability > 0.0 && p.xtc_threshold <= 0.5,
        }
    }

    /// Returns how many of the largest logits the choice depends on; `None` if on all.
    pub(crate) fn n_best(&self) -> Option<usize> {
        let sees_all = self.told.n_top.is_some() || !self.params.logit_bias.is_empty();
        match self.chain.first() {
            _ if sees_all || self.params.mirostat != Mirostat::Off => None,
            _ if self.is_greedy(&self.chain) => Some(1),
            Some(SamplerKind::TopK) => Some(self.params.top_k),
            _ => None,
        }
    }

    /// Returns whether these samplers leave the largest logit.
    fn is_greedy(&self, rest: &[SamplerKind]) -> bool {
        let is_greedy = self.params.temperature == 0.0 && self.params.dynatemp_range == 0.0;
        // The most likely token survives all cuts but these.
        let keeps_best = |kind: &SamplerKind| match kind {
            SamplerKind::TopNSigma | SamplerKind::TopK | SamplerKind::TopP | SamplerKind::MinP => true,
            SamplerKind::Temperature => true,
            SamplerKind::Typical | SamplerKind::Xtc | SamplerKind::Penalties | SamplerKind::Dry => false,
        };
        is_greedy && rest.contains(&SamplerKind::Temperature) && rest.iter().all(keeps_best)
    }

    /// Takes note of a token of the prompt or the answer.
    pub(crate) fn accept(&mut self, id: u32) {
        if let Some(penalties) = &mut self.penalties {
            penalties.accept(id);
        }
        if let Some(dry) = &mut self.dry {
            dry.accept(id);
        }
    }

    /// Takes note of these tokens instead of those so far.
    pub(crate) fn restart(&mut self, ids: &[u32]) {
        self.penalties.iter_mut().for_each(Penalties::clear);
        self.dry.iter_mut().for_each(Dry::clear);
        ids.iter().for_each(|&id| self.accept(id));
    }

    /// Chooses a token; `logits`: `[n_vocab]`, changed by bias, `mask` and penalties. `mask` sets those to -∞ that may not
    /// be chosen.
    ///
    /// # Errors
    /// [`ErrorKind::Model`] if no logit is a number; [`ErrorKind::Options`] if all tokens are ruled out.
    pub(crate) fn sample(&mut self, logits: &mut [f32], mask: impl FnOnce(&mut [f32])) -> Result<Chosen, EngineError> {
        if !logits.iter().any(is_number) {
            let line = "the model gave no finite logits; the file may be damaged";
            return Err(EngineError::new(ErrorKind::Model, line));
        }
        let told = self.told.n_top.filter(|_| !self.told.is_of_draw);
        let logprobs = told.map(|n_top| {
            self.raw.clear();
            self.raw.extend_from_slice(logits);
            Logprobs::new(logits, n_top)
        });
        bias::apply(logits, &self.params.logit_bias);
        mask(logits);
        let id = self.choose(logits).ok_or_else(|| {
            EngineError::new(ErrorKind::Options, "every token is ruled out; allow some by bias or grammar")
        })?;
        let of_draw = self.told.of_draw().map(|n_top| self.of_draw(logits, id, n_top));
        Ok(Chosen { id, logprobs: logprobs.map(|logprobs| logprobs.of(self.raw[id as usize])).or(of_draw) })
    }

    /// Returns a token that needs no choosing.
    pub(crate) fn forced(&self, logits: &[f32], id: u32) -> Chosen {
        let logprobs = self.told.n_top.map(|n_top| match self.told.is_of_draw {
            true => logprobs::of_draw(&[Candidate { id, logit: 0.0, p: 1.0 }], logits, id, n_top),
            false => Logprobs::new(logits, n_top).of(logits[id as usize]),
        });
        Chosen { id, logprobs }
    }

    /// Returns the log-probabilities of the draw that chose a token: of its candidates, or of the token alone where there was
    /// none.
    fn of_draw(&self, logits: &[f32], id: u32, n_top: usize) -> TokenLogprobs {
        let alone = [Candidate { id, logit: 0.0, p: 1.0 }];
        let drawn = if self.is_drawn { self.candidates.items() } else { &alone };
        logprobs::of_draw(drawn, logits, id, n_top)
    }

    /// Runs the chain; `None` if no token is possible.
    fn choose(&mut self, logits: &mut [f32]) -> Option<u32> {
        let n_dense = self.run_dense(logits);
        let rest = &self.chain[n_dense..];
        let best = argmax(logits)?;
        self.is_drawn = !self.is_greedy(rest);
        if !self.is_drawn {
            return Some(best);
        }
        match rest.first() {
            Some(SamplerKind::TopK) => self.candidates.fill_top(logits, self.params.top_k),
            _ => self.candidates.fill(logits),
        }
        for i in n_dense..self.chain.len() {
            self.run(self.chain[i]);
        }
        let drawn = match self.params.mirostat {
            _ if self.candidates.is_empty() => None,
            Mirostat::Off => draw::draw(&mut self.candidates, &mut self.rng).map(|drawn| drawn.id),
            Mirostat::V1 => self.mirostat.draw_v1(&mut self.candidates, logits.len(), &mut self.rng),
            Mirostat::V2 => self.mirostat.draw_v2(&mut self.candidates, &mut self.rng),
        };
        self.is_drawn = drawn.is_some();
        // Logits of +∞ have no probabilities.
        Some(drawn.unwrap_or(best))
    }

    /// Runs the penalties at the beginning of the chain, which need no candidates, and returns how many it were.
    fn run_dense(&mut self, logits: &mut [f32]) -> usize {
        for (n, kind) in self.chain.iter().enumerate() {
            match (kind, &self.penalties, &mut self.dry) {
                (SamplerKind::Penalties, Some(penalties), _) => penalties.apply_to_all(logits),
                (SamplerKind::Dry, _, Some(dry)) => dry.apply_to_all(logits),
                _ => return n,
            }
        }
        self.chain.len()
    }

    /// Runs a sampler of the chain on the candidates.
    fn run(&mut self, kind: SamplerKind) {
        let (candidates, p) = (&mut self.candidates, &self.params);
        match kind {
            SamplerKind::Penalties => self.penalties.iter().for_each(|penalties| penalties.apply(candidates)),
            SamplerKind::Dry => self.dry.iter_mut().for_each(|dry| dry.apply(candidates)),
            SamplerKind::TopNSigma => top_n_sigma::apply(candidates, p.top_n_sigma),
            SamplerKind::TopK => top_k::apply(candidates, p.top_k),
            SamplerKind::Typical => typical::apply(candidates, p.typical_p),
            SamplerKind::TopP => top_p::apply(candidates, p.top_p),
            SamplerKind::MinP => min_p::apply(candidates, p.min_p),
            SamplerKind::Xtc => xtc::apply(candidates, p.xtc_probability, p.xtc_threshold, &mut self.rng),
            SamplerKind::Temperature if p.dynatemp_range > 0.0 && p.mirostat == Mirostat::Off => {
                let (temperature, range, exponent) = (p.temperature, p.dynatemp_range, p.dynatemp_exponent);
                temperature::apply_dynamic(candidates, temperature::Dynamic { temperature, range, exponent });
            }
            SamplerKind::Temperature => temperature::apply(candidates, p.temperature),
        }
    }
}

/// Returns what compares logits. That is exact: every instruction set finds the same.
fn kernels() -> &'static softmax::SoftmaxKernels {
    static KERNELS: LazyLock<&softmax::SoftmaxKernels> = LazyLock::new(|| softmax::pick(Isa::best()));
    *KERNELS
}

/// Returns the index of the largest number, the first of equals; `None` if there is no number above -∞.
pub(crate) fn argmax(logits: &[f32]) -> Option<u32> {
    let at = kernels().argmax(logits);
    logits.get(at).filter(|logit| is_number(logit)).map(|_| at as u32)
}

/// Returns whether a logit is above -∞: not ruled out, and no NaN.
fn is_number(logit: &f32) -> bool {
    *logit > f32::NEG_INFINITY
}
