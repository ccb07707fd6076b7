//! Running a request again by its record.

use ruvllm_engine::{AdapterSet, Engine, EngineError, ErrorKind, FinishReason, GenerateRequest, LoadOptions};
use ruvllm_kernels::Isa;
use ruvllm_sona::witness::{Content, Served};

use crate::settings::{Settings, format_of, read};
use crate::{Running, program};

/// Result of running a request again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// Tokens of the recorded answer.
    pub n_tokens: usize,
    /// Leading tokens that are the same; the digest decides where the tokens were not kept.
    pub n_same: usize,
    /// Why the answer ended then, and why now, where the two differ and the first end can be repeated.
    pub other_finish: Option<(String, String)>,
    /// The program that recorded, if it is not this one: then other tokens need not be a fault.
    pub other_program: Option<String>,
    /// The answer's tokens now.
    pub tokens: Vec<u32>,
}

impl Replayed {
    /// Returns whether it came out token for token, with the same end.
    pub fn is_same(&self) -> bool {
        self.n_same == self.n_tokens && self.tokens.len() == self.n_tokens && self.other_finish.is_none()
    }
}

/// Returns how a model must be loaded to repeat a request, given how it would be loaded.
///
/// # Errors
/// The record's settings cannot be read, or name what this machine does not have.
pub fn load_options(served: &Served, options: LoadOptions) -> Result<LoadOptions, EngineError> {
    let settings = read(&served.settings)?;
    let isa: Isa = settings.isa.parse().map_err(|error| refused(format!("the recorded instruction set: {error}")))?;
    if !isa.is_available() {
        return Err(refused(format!(
            "it ran with {isa}, which this machine does not have; replay it on one that does"
        )));
    }
    let kv = settings.kv.parse().map_err(|error| refused(format!("the recorded cache policy: {error}")))?;
    Ok(LoadOptions {
        isa,
        kv,
        n_ctx: Some(settings.n_ctx),
        draft: None,
        prefix_cache: false,
        cache_dir: None,
        ..options
    })
}

/// Returns the adapters that a request had: names, hashes of their contents in hexadecimal digits, and scales.
///
/// # Errors
/// The record's settings cannot be read.
pub fn adapters_of(served: &Served) -> Result<Vec<(String, String, f32)>, EngineError> {
    let adapters = read(&served.settings)?.adapters;
    Ok(adapters.into_iter().map(|used| (used.name, used.content, used.scale)).collect())
}

/// Says whether a record holds what replaying needs, before a model is loaded for it.
///
/// # Errors
/// What is missing.
pub fn check(served: &Served) -> Result<(), EngineError> {
    let settings = read(&served.settings)?;
    if let Some(error) = &served.error {
        return Err(refused(format!("the request failed: {error}; there is no answer to repeat")));
    }
    if !settings.is_whole || served.prompt.tokens.is_none() {
        return Err(refused("its tokens were not kept; record with --witness-keep tokens to replay".to_owned()));
    }
    if settings.is_learned || served.adapter_generation != 0 {
        let generation = served.adapter_generation;
        return Err(refused(format!(
            "it was answered with what was learned (generation {generation}), not by the model alone"
        )));
    }
    if settings.is_gated {
        return Err(refused("its adapters were weighed by a gate, which is not on record".to_owned()));
    }
    Ok(())
}

/// Runs a request again on a model that was loaded with [`load_options`], with `adapters` where it had some.
///
/// # Errors
/// As [`check`]; the model or an adapter is another, or runs otherwise; or what running it says.
pub fn replay(engine: &mut Engine, served: &Served, adapters: &AdapterSet) -> Result<Replayed, EngineError> {
    check(served)?;
    let settings = read(&served.settings)?;
    check_model(engine, served, &settings)?;
    check_adapters(&settings, adapters)?;
    let grammar = match &settings.grammar {
        None => None,
        Some((source, stops)) => {
            let grammar = engine.grammar_compiler()?.compile(source)?;
            Some(if *stops { grammar.with_stops() } else { grammar })
        }
    };
    let n_tokens = served.completion.n_tokens as usize;
    // What ended an answer from outside does not come again; its tokens do.
    let is_cut = !["stop", "length"].contains(&served.finish.as_str());
    let mut request = GenerateRequest {
        prompt: served.prompt.tokens.clone().unwrap_or_default(),
        grammar,
        adapters: adapters.clone(),
        ..settings.request
    };
    request.sampling.seed = Some(served.seed);
    if is_cut {
        request.max_tokens = Some(n_tokens);
    }
    let summary = engine.generate(&request)?.for_each_token(|_| {})?;
    let tokens = summary.tokens;
    let n_same = match &served.completion.tokens {
        Some(recorded) => recorded.iter().zip(&tokens).take_while(|(a, b)| a == b).count(),
        None if Content::digest_of(&tokens) == served.completion.digest => n_tokens,
        None => 0,
    };
    let finish = summary.finish_reason;
    let differs = !is_cut && finish.as_str() != served.finish && finish != FinishReason::Cancelled;
    Ok(Replayed {
        n_tokens,
        n_same,
        other_finish: differs.then(|| (served.finish.clone(), finish.as_str().to_owned())),
        other_program: (settings.program != program()).then_some(settings.program),
        tokens,
    })
}

fn check_model(engine: &Engine, served: &Served, settings: &Settings) -> Result<(), EngineError> {
    let (own, recorded) = (hex::encode(engine.content_hash()?), hex::encode(served.model));
    if own != recorded {
        let (name, own, recorded) = (&engine.info().name, &own[..16], &recorded[..16]);
        return Err(refused(format!("it was answered by the model {recorded}…; '{name}' is {own}…")));
    }
    let running = Running::of(engine);
    let pairs = [
        ("instruction set", settings.isa.clone(), running.isa.clone()),
        ("cache policy", settings.kv.clone(), running.kv.to_string()),
        ("context", settings.n_ctx.to_string(), running.n_ctx.to_string()),
    ];
    match pairs.into_iter().find(|(_, then, now)| then != now) {
        None => Ok(()),
        Some((what, then, now)) => Err(refused(format!("its {what} was {then}; the model was loaded with {now}"))),
    }
}

fn check_adapters(settings: &Settings, adapters: &AdapterSet) -> Result<(), EngineError> {
    let given = adapters.iter().map(|(adapter, scale)| (hex::encode(adapter.content()), format_of(adapter), scale));
    let had = settings.adapters.iter().map(|used| (used.content.clone(), used.format.clone(), used.scale));
    if given.eq(had) {
        return Ok(());
    }
    let names: Vec<String> = settings.adapters.iter().map(|used| format!("{}:{}", used.name, used.scale)).collect();
    let line = match names.is_empty() {
        true => "it was answered without adapters; replay it without".to_owned(),
        false => format!("it was answered with the adapters {}; give them with --lora", names.join(", ")),
    };
    Err(refused(line))
}

fn refused(line: String) -> EngineError {
    EngineError::new(ErrorKind::Options, line)
}
