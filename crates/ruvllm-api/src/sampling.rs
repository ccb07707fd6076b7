//! How tokens are chosen: the fields, and what they are for the engine's samplers.

use ruvllm_engine::tokenizer::{EncodeOptions, Tokenizer};
use ruvllm_engine::{Mirostat, SamplerKind, SamplingParams};
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Field, Kind, ValidBody, optional};

/// Number of most likely tokens that are kept.
pub const TOP_K: Kind = Kind::Int(-1, 1 << 20);

/// The most recent tokens that penalties look at.
const N_RECENT_MAX: i64 = 1 << 20;

/// Sampling parameters.
pub const SAMPLING: &[Field] = &[
    optional(
        "temperature",
        Kind::Number(-100.0, 100.0),
        "divides the logits; 0 and less always take the likeliest token",
    ),
    optional(
        "dynatemp_range",
        Kind::Number(0.0, 100.0),
        "lets the temperature go this far below and above with the entropy",
    ),
    optional("dynatemp_exponent", Kind::Number(0.0, 100.0), "how the entropy maps to that range: its power"),
    optional("top_p", Kind::Number(0.0, 1.0), "keeps the likeliest tokens that make up this share; 1 keeps all"),
    optional("top_k", TOP_K, "keeps the k likeliest tokens; 0 and -1 keep all"),
    optional(
        "min_p",
        Kind::Number(0.0, 1.0),
        "drops tokens less likely than this share of the likeliest; 0 drops none",
    ),
    optional("typical_p", Kind::Number(0.0, 1.0), "keeps tokens about as surprising as is to be expected; 1 keeps all")
        .also(&["typ_p"]),
    optional(
        "top_n_sigma",
        Kind::Number(-1.0, 1e6),
        "drops tokens this many standard deviations below the likeliest; 0 and -1 drop none",
    ),
    optional("xtc_probability", Kind::Number(0.0, 1.0), "how often all but the least of the likely tokens are dropped"),
    optional("xtc_threshold", Kind::Number(0.0, 1.0), "from which probability on a token is likely for that"),
    optional("repeat_penalty", REPEAT_PENALTY, "divides the logits of recent tokens; 1 and 0 leave them")
        .also(&["repetition_penalty"]),
    optional(
        "frequency_penalty",
        Kind::Number(-100.0, 100.0),
        "is taken from a recent token's logit for each time it occurred",
    ),
    optional("presence_penalty", Kind::Number(-100.0, 100.0), "is taken from a recent token's logit once"),
    optional(
        "repeat_last_n",
        Kind::Int(-1, N_RECENT_MAX),
        "how many recent tokens, of the prompt too, these penalties look at; -1 is all",
    ),
    optional(
        "dry_multiplier",
        Kind::Number(0.0, 100.0),
        "scale of what is taken from a token that goes on with a repetition",
    ),
    optional("dry_base", Kind::Number(0.0, 100.0), "by what that grows with each token of the repetition"),
    optional("dry_allowed_length", Kind::Int(0, 1 << 20), "repetitions up to this many tokens cost nothing"),
    optional(
        "dry_penalty_last_n",
        Kind::Int(-1, N_RECENT_MAX),
        "how many recent tokens are searched for repetitions; -1 is all",
    )
    .renamed(&["dry_last_n"]),
    optional(
        "dry_sequence_breakers",
        Kind::List(&Kind::Text, 0, 64),
        "texts across which nothing counts as a repetition",
    )
    .renamed(&["dry_breakers"]),
    optional("mirostat", Kind::Int(0, 2), "aims at a level of surprise, instead of cuts and penalties: version 1 or 2"),
    optional("mirostat_tau", Kind::Number(0.0, 100.0), "the surprise to aim at, in bits"),
    optional("mirostat_eta", Kind::Number(0.0, 10.0), "how fast to follow it"),
    optional(
        "logit_bias",
        Kind::Either(&[Kind::Map(&BIAS), Kind::List(&PAIR, 0, 1 << 20), Kind::Only("false", "name tokens")]),
        "is added to the logits of tokens, by their ids or by a text, all of whose tokens have it; false rules them out",
    ),
    optional(
        "samplers",
        Kind::Either(&[Kind::List(&SAMPLER, 0, 16), Kind::Text]),
        "the samplers in their order, or their letters (edskypmxt); one that is missing does nothing, as does infill (i)",
    ),
    optional("seed", Kind::Int(i64::MIN, i64::MAX), "the same seed gives the same answer; choice i of n has seed + i"),
];

const SAMPLER: Kind = Kind::Word(&[
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
    "infill",
]);

/// Samplers by the letters that llama.cpp has for them; `infill`, which is not here, is `i`.
const LETTERS: [(char, SamplerKind); 9] = [
    ('e', SamplerKind::Penalties),
    ('d', SamplerKind::Dry),
    ('s', SamplerKind::TopNSigma),
    ('k', SamplerKind::TopK),
    ('y', SamplerKind::Typical),
    ('p', SamplerKind::TopP),
    ('m', SamplerKind::MinP),
    ('x', SamplerKind::Xtc),
    ('t', SamplerKind::Temperature),
];

const REPEAT_PENALTY: Kind =
    Kind::Either(&[Kind::Number(0.01, 100.0), Kind::Only("0", "it is a divisor; 1 leaves logits as they are")]);

/// What is added to a logit.
const BIAS: Kind = Kind::Either(&[Kind::Number(-1e6, 1e6), Kind::Only("false", "it rules the token out")]);

/// A token or a text, and what is added to its logits.
const PAIR: Kind = Kind::List(
    &Kind::Either(&[Kind::Number(-1e6, 1e6), Kind::Text, Kind::Only("false", "it rules the token out")]),
    2,
    2,
);

/// Reads how tokens are chosen.
///
/// # Errors
/// 400 for a bias of what is no token, or a sampler that is named twice.
pub fn sampling(
    given: &ValidBody,
    defaults: &SamplingParams,
    tokenizer: &Tokenizer,
    n_vocab: usize,
) -> Result<SamplingParams, ApiError> {
    let number = |name: &str, default: f32| given.number(name).unwrap_or(default);
    let count = |name: &str, default: usize| given.count(name).unwrap_or(default);
    let recent = |name: &str, default: usize| match given.int(name) {
        Some(-1) => N_RECENT_MAX as usize,
        _ => count(name, default),
    };
    let params = SamplingParams {
        temperature: number("temperature", defaults.temperature).max(0.0),
        dynatemp_range: number("dynatemp_range", defaults.dynatemp_range),
        dynatemp_exponent: number("dynatemp_exponent", defaults.dynatemp_exponent),
        // -1 keeps all, as 0 does.
        top_k: given.int("top_k").map_or(defaults.top_k, |k| k.max(0) as usize),
        top_p: number("top_p", defaults.top_p),
        min_p: number("min_p", defaults.min_p),
        typical_p: number("typical_p", defaults.typical_p),
        top_n_sigma: number("top_n_sigma", defaults.top_n_sigma),
        xtc_probability: number("xtc_probability", defaults.xtc_probability),
        xtc_threshold: number("xtc_threshold", defaults.xtc_threshold),
        repeat_penalty: match given.number("repeat_penalty") {
            Some(0.0) => 1.0,
            given => given.unwrap_or(defaults.repeat_penalty),
        },
        frequency_penalty: number("frequency_penalty", defaults.frequency_penalty),
        presence_penalty: number("presence_penalty", defaults.presence_penalty),
        repeat_last_n: recent("repeat_last_n", defaults.repeat_last_n),
        dry_multiplier: number("dry_multiplier", defaults.dry_multiplier),
        dry_base: number("dry_base", defaults.dry_base),
        dry_allowed_length: count("dry_allowed_length", defaults.dry_allowed_length),
        dry_penalty_last_n: recent("dry_penalty_last_n", defaults.dry_penalty_last_n),
        dry_sequence_breakers: match given.list("dry_sequence_breakers") {
            Some(_) => given.texts("dry_sequence_breakers"),
            None => defaults.dry_sequence_breakers.clone(),
        },
        mirostat: match given.int("mirostat") {
            Some(0) => Mirostat::Off,
            Some(1) => Mirostat::V1,
            Some(_) => Mirostat::V2,
            None => defaults.mirostat,
        },
        mirostat_tau: number("mirostat_tau", defaults.mirostat_tau),
        mirostat_eta: number("mirostat_eta", defaults.mirostat_eta),
        logit_bias: logit_bias(given, tokenizer, n_vocab)?.unwrap_or_else(|| defaults.logit_bias.clone()),
        order: order(given)?.unwrap_or_else(|| defaults.order.clone()),
        // A negative seed is as good as any.
        seed: given.int("seed").map(|seed| seed as u64).or(defaults.seed),
    };
    params.validate()?;
    Ok(params)
}

/// Reads in which order the samplers act.
fn order(given: &ValidBody) -> Result<Option<Vec<SamplerKind>>, ApiError> {
    let letters = match given.get("samplers") {
        Some(Value::String(letters)) => letters,
        Some(Value::Array(names)) => {
            // The one that is no sampler here does nothing.
            return Ok(Some(names.iter().filter_map(|name| name.as_str()?.parse().ok()).collect()));
        }
        _ => return Ok(None),
    };
    let kind = |letter: char| {
        let known = LETTERS.iter().find(|(known, _)| *known == letter).map(|(_, kind)| *kind);
        known.ok_or_else(|| {
            let known: String = LETTERS.iter().map(|(letter, _)| *letter).collect();
            let line = format!("'{letter}' in 'samplers' is no sampler's letter; they are {known} and i");
            ApiError::bad("samplers", line).code("invalid_value")
        })
    };
    letters.chars().filter(|letter| *letter != 'i').map(kind).collect::<Result<_, _>>().map(Some)
}

/// Reads what is added to the logits of tokens; a text's is added to each of its tokens.
fn logit_bias(given: &ValidBody, tokenizer: &Tokenizer, n_vocab: usize) -> Result<Option<Vec<(u32, f32)>>, ApiError> {
    let token = |id: u64| {
        let known = u32::try_from(id).ok().filter(|&id| (id as usize) < n_vocab);
        known.map(|id| vec![id]).ok_or_else(|| {
            let line = format!("'{id}' in 'logit_bias' is no token; ids go from 0 to {}", n_vocab - 1);
            ApiError::bad("logit_bias", line)
        })
    };
    let tokens = |text: &str| match text.parse() {
        Ok(id) => token(id),
        Err(_) => Ok(tokenizer.encode(text, EncodeOptions { add_special: false, parse_special: false })?),
    };
    let mut all = Vec::new();
    let mut add = |tokens: Vec<u32>, bias: &Value| {
        let bias = bias.as_f64().map_or(f32::NEG_INFINITY, |bias| bias as f32);
        all.extend(tokens.into_iter().map(|id| (id, bias)));
    };
    match given.get("logit_bias") {
        Some(Value::Object(biases)) => {
            for (key, bias) in biases {
                add(tokens(key)?, bias);
            }
        }
        Some(Value::Array(pairs)) => {
            for (i, pair) in pairs.iter().enumerate() {
                match (&pair[0], &pair[1]) {
                    (Value::String(text), bias) if !bias.is_string() => add(tokens(text)?, bias),
                    (id, bias) if id.is_u64() && !bias.is_string() => {
                        add(token(id.as_u64().unwrap_or_default())?, bias)
                    }
                    _ => {
                        let line = format!("'logit_bias[{i}]' must be a token's id or a text, and a number or false");
                        return Err(ApiError::bad(format!("logit_bias[{i}]"), line).code("invalid_value"));
                    }
                }
            }
        }
        _ => return Ok(None),
    }
    Ok(Some(all))
}
