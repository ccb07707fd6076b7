//! Running a request again by its record.

use ruvllm_engine::{
    AdapterSet, Engine, EngineError, ErrorKind, FinishReason, GenerateRequest, GenerationSummary, Grammar,
    GrammarCompiler, LoadOptions,
};
use ruvllm_kernels::Isa;
use ruvllm_sona::witness::{Content, Served};

use crate::settings::{Settings, format_of, read};
use crate::{Recorder, Running, program};

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
    let loaded = Loaded { name: &engine.info().name, model: engine.content_hash()?, running: &Running::of(engine) };
    check_model(&loaded, served, &settings)?;
    check_adapters(&settings, adapters)?;
    let grammar = grammar_of(&settings, || engine.grammar_compiler().map(|compiler| &**compiler))?;
    let request = GenerateRequest { adapters: adapters.clone(), grammar, ..request_of(served, &settings) };
    let summary = engine.generate(&request)?.for_each_token(|_| {})?;
    Ok(compared(served, &settings, &summary))
}

impl Recorder {
    /// Returns the request of a record, to be run again by the model of this recorder, which a service has. Requests with adapters
    /// are for [`replay`].
    ///
    /// # Errors
    /// As [`replay`].
    pub fn replay_request<'a>(
        &self,
        name: &str,
        served: &Served,
        compiler: impl FnOnce() -> Result<&'a GrammarCompiler, EngineError>,
    ) -> Result<GenerateRequest, EngineError> {
        check(served)?;
        let settings = read(&served.settings)?;
        check_model(&Loaded { name, model: self.model, running: &self.running }, served, &settings)?;
        check_adapters(&settings, &AdapterSet::default())?;
        let grammar = grammar_of(&settings, compiler)?;
        // Nothing of it depends on what is cached; it is computed anew, so that this is seen.
        Ok(GenerateRequest { grammar, ignore_cache: true, ..request_of(served, &settings) })
    }
}

/// Compares what a request came to when it was run again.
///
/// # Errors
/// The record's settings cannot be read.
pub fn compare(served: &Served, summary: &GenerationSummary) -> Result<Replayed, EngineError> {
    Ok(compared(served, &read(&served.settings)?, summary))
}

/// Returns whether an answer ended by itself; what ended it from outside does not come again, but its tokens do.
fn ended_by_itself(served: &Served) -> bool {
    ["stop", "length"].contains(&served.finish.as_str())
}

fn request_of(served: &Served, settings: &Settings) -> GenerateRequest {
    let prompt = served.prompt.tokens.clone().unwrap_or_default();
    let mut request = GenerateRequest { prompt, ..settings.request.clone() };
    request.sampling.seed = Some(served.seed);
    if !ended_by_itself(served) {
        request.max_tokens = Some(served.completion.n_tokens as usize);
    }
    request
}

/// Compiles the grammar of a request, if it had one.
fn grammar_of<'a>(
    settings: &Settings,
    compiler: impl FnOnce() -> Result<&'a GrammarCompiler, EngineError>,
) -> Result<Option<Grammar>, EngineError> {
    let Some((source, stops)) = &settings.grammar else { return Ok(None) };
    let grammar = compiler()?.compile(source)?;
    Ok(Some(if *stops { grammar.with_stops() } else { grammar }))
}

fn compared(served: &Served, settings: &Settings, summary: &GenerationSummary) -> Replayed {
    let (n_tokens, tokens) = (served.completion.n_tokens as usize, summary.tokens.clone());
    let n_same = match &served.completion.tokens {
        Some(recorded) => recorded.iter().zip(&tokens).take_while(|(a, b)| a == b).count(),
        None if Content::digest_of(&tokens) == served.completion.digest => n_tokens,
        None => 0,
    };
    let finish = summary.finish_reason;
    let differs = ended_by_itself(served) && finish.as_str() != served.finish && finish != FinishReason::Cancelled;
    Replayed {
        n_tokens,
        n_same,
        other_finish: differs.then(|| (served.finish.clone(), finish.as_str().to_owned())),
        other_program: (settings.program != program()).then(|| settings.program.clone()),
        tokens,
    }
}

/// The model that a record is to be repeated on.
struct Loaded<'a> {
    name: &'a str,
    model: [u8; 32],
    running: &'a Running,
}

fn check_model(loaded: &Loaded<'_>, served: &Served, settings: &Settings) -> Result<(), EngineError> {
    let Loaded { name, running, .. } = loaded;
    let (own, recorded) = (hex::encode(loaded.model), hex::encode(served.model));
    if own != recorded {
        let (own, recorded) = (&own[..16], &recorded[..16]);
        return Err(refused(format!("it was answered by the model {recorded}…; '{name}' is {own}…")));
    }
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
