//! Options of sampling.

use clap::Args;
use ruvllm_engine::{Mirostat, SamplerKind, SamplingParams};

use crate::error::Result;
use crate::values::{Seed, non_negative, positive, probability, some_text};

/// Sampling parameters. The defaults are llama.cpp's.
#[derive(Args, Clone, Debug)]
pub struct SamplingArgs {
    /// Temperature; 0 always takes the most likely token
    #[arg(long, value_name = "T", default_value_t = 0.8, value_parser = non_negative, help_heading = "Sampling")]
    pub temp: f32,
    /// Keep the K most likely tokens; 0 keeps all
    #[arg(long, value_name = "K", default_value_t = 40, help_heading = "Sampling")]
    pub top_k: usize,
    /// Keep the most likely tokens that make up P together; 1 keeps all
    #[arg(long, value_name = "P", default_value_t = 0.95, value_parser = probability, help_heading = "Sampling")]
    pub top_p: f32,
    /// Drop tokens less likely than P times the most likely one; 0 keeps all
    #[arg(long, value_name = "P", default_value_t = 0.05, value_parser = probability, help_heading = "Sampling")]
    pub min_p: f32,
    /// Keep the tokens about as surprising as is to be expected that make up P together; 1 keeps all
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = probability, help_heading = "Sampling")]
    pub typical: f32,
    /// Drop tokens more than N standard deviations below the most likely one; 0 keeps all
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = non_negative, help_heading = "Sampling")]
    pub top_n_sigma: f32,
    /// Probability that all but the least of the likely tokens are dropped; 0 is never
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = probability, help_heading = "Sampling")]
    pub xtc_probability: f32,
    /// From which probability on a token is likely for that
    #[arg(long, value_name = "P", default_value_t = 0.1, value_parser = probability, help_heading = "Sampling")]
    pub xtc_threshold: f32,
    /// Let the temperature go this far below and above with how uncertain the model is; 0 keeps it
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = non_negative, help_heading = "Sampling")]
    pub dynatemp_range: f32,
    /// Power by which the uncertainty maps to that range
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = non_negative, help_heading = "Sampling")]
    pub dynatemp_exponent: f32,
    /// Divide the score of recent tokens by this; 1 does nothing
    #[arg(long, value_name = "R", default_value_t = 1.0, value_parser = positive, help_heading = "Sampling")]
    pub repeat_penalty: f32,
    /// Take this from a recent token's score for each time it occurred
    #[arg(long, value_name = "X", default_value_t = 0.0, help_heading = "Sampling")]
    pub frequency_penalty: f32,
    /// Take this from a recent token's score once
    #[arg(long, value_name = "X", default_value_t = 0.0, help_heading = "Sampling")]
    pub presence_penalty: f32,
    /// Number of recent tokens that these penalties look at
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = "Sampling")]
    pub repeat_last_n: usize,
    /// Take X times a power of the length from the score of a token that would go on with a repetition; 0 takes nothing
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = non_negative, help_heading = "Sampling")]
    pub dry_multiplier: f32,
    /// The base of that power
    #[arg(long, value_name = "X", default_value_t = 1.75, value_parser = non_negative, help_heading = "Sampling")]
    pub dry_base: f32,
    /// Repetitions up to this many tokens cost nothing
    #[arg(long, value_name = "N", default_value_t = 2, help_heading = "Sampling")]
    pub dry_allowed_length: usize,
    /// Number of recent tokens that are searched for repetitions
    #[arg(long, alias = "dry-last-n", value_name = "N", default_value_t = 64, help_heading = "Sampling")]
    pub dry_penalty_last_n: usize,
    /// Nothing counts as a repetition across this text; may be given several times [default: line feed, ':', '"' and '*']
    #[arg(long, alias = "dry-breaker", value_name = "TEXT", value_parser = some_text, help_heading = "Sampling")]
    pub dry_sequence_breaker: Vec<String>,
    /// Aim at a level of surprise instead of the cuts and penalties: 1 or 2 is the version, 0 does not
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2), help_heading = "Sampling")]
    pub mirostat: u8,
    /// The surprise to aim at, in bits
    #[arg(long, value_name = "X", default_value_t = 5.0, value_parser = non_negative, help_heading = "Sampling")]
    pub mirostat_tau: f32,
    /// Rate at which to follow it
    #[arg(long, value_name = "X", default_value_t = 0.1, value_parser = non_negative, help_heading = "Sampling")]
    pub mirostat_eta: f32,
    /// Add to a token's score, as in 42+1.5 or 42-inf; may be given several times
    #[arg(long, value_name = "ID±X", value_parser = logit_bias, allow_hyphen_values = true, help_heading = "Sampling")]
    pub logit_bias: Vec<(u32, f32)>,
    /// The samplers in their order; one that is missing does nothing
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_values_t = SamplerKind::ALL, help_heading = "Sampling")]
    pub samplers: Vec<SamplerKind>,
    /// Seed of the random choice; -1 is another every time [default: -1]
    #[arg(long, value_name = "S", help_heading = "Sampling")]
    pub seed: Option<Seed>,
}

/// Versions of mirostat, by the number that `--mirostat` has.
pub const MIROSTATS: [Mirostat; 3] = [Mirostat::Off, Mirostat::V1, Mirostat::V2];

impl SamplingArgs {
    /// Checks the parameters.
    ///
    /// # Errors
    /// A usage error that names the value and its range.
    pub fn check(&self) -> Result<()> {
        Ok(self.params().validate()?)
    }

    /// Returns the engine's parameters.
    pub fn params(&self) -> SamplingParams {
        SamplingParams {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical,
            top_n_sigma: self.top_n_sigma,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            dynatemp_range: self.dynatemp_range,
            dynatemp_exponent: self.dynatemp_exponent,
            repeat_penalty: self.repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            repeat_last_n: self.repeat_last_n,
            dry_multiplier: self.dry_multiplier,
            dry_base: self.dry_base,
            dry_allowed_length: self.dry_allowed_length,
            dry_penalty_last_n: self.dry_penalty_last_n,
            dry_sequence_breakers: match self.dry_sequence_breaker.is_empty() {
                true => SamplingParams::default().dry_sequence_breakers,
                false => self.dry_sequence_breaker.clone(),
            },
            mirostat: MIROSTATS[usize::from(self.mirostat)],
            mirostat_tau: self.mirostat_tau,
            mirostat_eta: self.mirostat_eta,
            logit_bias: self.logit_bias.clone(),
            order: self.samplers.clone(),
            seed: self.seed.and_then(|Seed(seed)| seed),
        }
    }
}

/// Reads a token id and what is added to its score: `42+1.5`, `42-inf`.
fn logit_bias(text: &str) -> std::result::Result<(u32, f32), String> {
    let pair = text.find(['+', '-']).map(|at| text.split_at(at));
    let pair = pair.and_then(|(id, bias)| Some((id.parse().ok()?, bias.parse().ok()?)));
    pair.ok_or_else(|| "use a token id and a number with its sign, as in 42+1.5 or 42-inf".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biases_are_added_to_tokens() {
        assert_eq!(logit_bias("42-inf"), Ok((42, f32::NEG_INFINITY)));
        assert!(logit_bias("42+1.5") == Ok((42, 1.5)) && logit_bias("42").is_err() && logit_bias("+1").is_err());
    }
}
