//! Parameters of sampling.

use std::fmt;
use std::str::FromStr;

use crate::{EngineError, ErrorKind};

/// The most bytes of a text that ends a repetition.
const BREAKER_BYTES_MAX: usize = 40;

/// Sampling parameters. Names, defaults and effects are llama.cpp's.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Lets the temperature go this far below and above with the entropy of the distribution; 0 keeps it.
    pub dynatemp_range: f32,
    /// Power by which the entropy's share of its maximum maps to that range.
    pub dynatemp_exponent: f32,
    /// Keeps the k most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the most likely tokens whose probabilities first reach this sum; 1 keeps all.
    pub top_p: f32,
    /// Drops tokens less likely than this share of the most likely one; 0 drops none.
    pub min_p: f32,
    /// Keeps the tokens whose surprise is closest to the expected one, until their probabilities pass this sum; 1 keeps
    /// all.
    pub typical_p: f32,
    /// Drops tokens whose logit is more than this many standard deviations below the largest; 0 or less drops none.
    pub top_n_sigma: f32,
    /// Probability that all but the least likely of the tokens above [`SamplingParams::xtc_threshold`] are dropped; 0 is never.
    pub xtc_probability: f32,
    /// From which probability on a token counts for that; above 0.5 there are never two of them.
    pub xtc_threshold: f32,
    /// Divides positive and multiplies negative logits of recent tokens; 1 leaves them.
    pub repeat_penalty: f32,
    /// Taken from a recent token's logit for each time it occurred.
    pub frequency_penalty: f32,
    /// Taken from a recent token's logit once.
    pub presence_penalty: f32,
    /// Number of recent tokens (prompt included) that these penalties look at.
    pub repeat_last_n: usize,
    /// Scale of what is taken from a token that would go on with a repetition; 0 takes nothing.
    pub dry_multiplier: f32,
    /// Factor by which the penalty grows with each token of the repetition; below 1 nothing is taken.
    pub dry_base: f32,
    /// Repetitions up to this many tokens cost nothing.
    pub dry_allowed_length: usize,
    /// Number of recent tokens (prompt included) that are searched for repetitions.
    pub dry_penalty_last_n: usize,
    /// Texts across which nothing counts as a repetition.
    pub dry_sequence_breakers: Vec<String>,
    /// Aims at a level of surprise, instead of the cuts and penalties.
    pub mirostat: Mirostat,
    /// The surprise that [`SamplingParams::mirostat`] aims at, in bits.
    pub mirostat_tau: f32,
    /// Learning rate of mirostat.
    pub mirostat_eta: f32,
    /// Added to the logits of tokens before anything else; -∞ rules a token out.
    pub logit_bias: Vec<(u32, f32)>,
    /// In which order the samplers act. One that is missing does nothing.
    pub order: Vec<SamplerKind>,
    /// Seed of the draws; `None` takes one from the clock.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    /// Temperature 0.8, top-k 40, top-p 0.95, min-p 0.05, nothing else.
    fn default() -> SamplingParams {
        SamplingParams {
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            top_n_sigma: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repeat_last_n: 64,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: 64,
            dry_sequence_breakers: ["\n", ":", "\"", "*"].map(str::to_owned).to_vec(),
            mirostat: Mirostat::Off,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            logit_bias: Vec::new(),
            order: SamplerKind::ALL.to_vec(),
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
        let error = |line: String| Err(EngineError::new(ErrorKind::Options, line));
        for (name, value, low, high) in [
            ("temperature", self.temperature, 0.0, 100.0),
            ("dynamic temperature range", self.dynatemp_range, 0.0, 100.0),
            ("dynamic temperature exponent", self.dynatemp_exponent, 0.0, 100.0),
            ("top-p", self.top_p, 0.0, 1.0),
            ("min-p", self.min_p, 0.0, 1.0),
            ("typical-p", self.typical_p, 0.0, 1.0),
            ("top-n-sigma", self.top_n_sigma, -1.0, 1e6),
            ("xtc probability", self.xtc_probability, 0.0, 1.0),
            ("xtc threshold", self.xtc_threshold, 0.0, 1.0),
            ("repeat penalty", self.repeat_penalty, 0.01, 100.0),
            ("frequency penalty", self.frequency_penalty, -100.0, 100.0),
            ("presence penalty", self.presence_penalty, -100.0, 100.0),
            ("dry multiplier", self.dry_multiplier, 0.0, 100.0),
            ("dry base", self.dry_base, 0.0, 100.0),
            ("mirostat tau", self.mirostat_tau, 0.0, 100.0),
            ("mirostat eta", self.mirostat_eta, 0.0, 10.0),
        ] {
            if !(low..=high).contains(&value) {
                return error(format!("{name} {value} is not between {low} and {high}"));
            }
        }
        if let Some((id, bias)) = self.logit_bias.iter().find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY) {
            return error(format!("the bias {bias} of token {id} is no number; use -inf to rule it out"));
        }
        if let Some(text) =
            self.dry_sequence_breakers.iter().find(|text| text.is_empty() || text.len() > BREAKER_BYTES_MAX)
        {
            let n = text.len();
            return error(format!("a dry breaker of {n} bytes; use 1 to {BREAKER_BYTES_MAX}"));
        }
        for (i, kind) in self.order.iter().enumerate() {
            if self.order[..i].contains(kind) {
                return error(format!("the sampler {kind} stands twice in the order; name it once"));
            }
        }
        Ok(())
    }
}

/// Aiming at a level of surprise (Basu 2020, arXiv:2007.14966).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mirostat {
    /// The cuts and penalties are used instead.
    #[default]
    Off,
    /// The first version: estimates how many of the most likely tokens to keep.
    V1,
    /// The second: drops tokens that surprise too much.
    V2,
}

/// A sampler, to say when it acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplerKind {
    /// The repetition, frequency and presence penalties.
    Penalties,
    /// "Don't repeat yourself".
    Dry,
    /// [`SamplingParams::top_n_sigma`].
    TopNSigma,
    /// [`SamplingParams::top_k`].
    TopK,
    /// [`SamplingParams::typical_p`].
    Typical,
    /// [`SamplingParams::top_p`].
    TopP,
    /// [`SamplingParams::min_p`].
    MinP,
    /// "Exclude top choices".
    Xtc,
    /// Temperature and dynamic temperature.
    Temperature,
}

impl SamplerKind {
    /// All of them in llama.cpp's order.
    pub const ALL: [SamplerKind; 9] = [
        SamplerKind::Penalties,
        SamplerKind::Dry,
        SamplerKind::TopNSigma,
        SamplerKind::TopK,
        SamplerKind::Typical,
        SamplerKind::TopP,
        SamplerKind::MinP,
        SamplerKind::Xtc,
        SamplerKind::Temperature,
    ];

    /// Returns its name, as llama.cpp spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            SamplerKind::Penalties => "penalties",
            SamplerKind::Dry => "dry",
            SamplerKind::TopNSigma => "top_n_sigma",
            SamplerKind::TopK => "top_k",
            SamplerKind::Typical => "typ_p",
            SamplerKind::TopP => "top_p",
            SamplerKind::MinP => "min_p",
            SamplerKind::Xtc => "xtc",
            SamplerKind::Temperature => "temperature",
        }
    }
}

impl fmt::Display for SamplerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SamplerKind {
    type Err = String;

    fn from_str(name: &str) -> Result<SamplerKind, String> {
        let spelled = name.replace('-', "_");
        SamplerKind::ALL.into_iter().find(|kind| kind.as_str() == spelled).ok_or_else(|| {
            let known = SamplerKind::ALL.map(SamplerKind::as_str).join(", ");
            format!("'{name}' is no sampler; known are {known}")
        })
    }
}
