//! How an answer was asked for, as a JSON text: written with a record, read again to replay it.

use std::sync::Arc;

use ruvllm_engine::{
    BoundAdapter, EngineError, ErrorKind, GenerateRequest, GrammarSource, KvPolicy, Mirostat, SamplingParams,
};
use serde_json::{Map, Number, Value, json};

use crate::Running;

/// Returns how the factors of an adapter are kept.
pub(crate) fn format_of(adapter: &BoundAdapter) -> String {
    format!("{:?}", adapter.format()).to_lowercase()
}

/// What is withheld where texts are not kept: the digest of the whole stands for it.
const TEXTS: [&str; 4] = ["stop", "grammar", "dry_breakers", "logit_bias"];

/// Returns a number as it is written in the shortest way that reads as the same `f32`: 0.8, where that is 0.800000011920929;
/// null for what JSON has no number for.
pub fn decimal(x: f32) -> Value {
    x.to_string().parse().ok().and_then(Number::from_f64).map_or(Value::Null, Value::Number)
}

/// Returns the settings of a request; its prompt and seed stand elsewhere. Without `keeps_texts`, what may hold texts is
/// left out.
pub(crate) fn write(request: &GenerateRequest, running: &Running, keeps_texts: bool) -> Value {
    let Running { program, isa, kv, n_ctx } = running;
    let mut all = Map::new();
    all.insert("program".into(), json!(program));
    all.insert("isa".into(), json!(isa));
    all.insert("kv".into(), json!(kv.to_string()));
    all.insert("ctx".into(), json!(n_ctx));
    all.insert("max_tokens".into(), json!(request.max_tokens));
    all.insert("ignore_eos".into(), json!(request.ignore_eos));
    all.insert("visible".into(), json!(request.visible));
    write_sampling(&request.sampling, &mut all);
    all.insert("stop".into(), json!(request.stop));
    if let Some(grammar) = &request.grammar {
        let source = write_grammar(grammar.source());
        all.insert("grammar".into(), json!({ "source": source, "stops": grammar.allows_stops() }));
    }
    if !request.adapters.is_empty() {
        let adapter = |(adapter, scale): (&Arc<BoundAdapter>, f32)| {
            let content = hex::encode(adapter.content());
            json!({ "name": adapter.name(), "content": content, "format": format_of(adapter), "scale": decimal(scale) })
        };
        all.insert("adapters".into(), request.adapters.iter().map(adapter).collect());
        all.insert("gated".into(), json!(request.adapters.gate().is_some()));
    }
    if request.logits_processor.is_some() {
        all.insert("learned".into(), json!(true));
    }
    if !keeps_texts {
        let digest = blake3::hash(Value::Object(all.clone()).to_string().as_bytes());
        all.retain(|name, _| !TEXTS.contains(&name.as_str()));
        all.insert("digest".into(), json!(digest.to_hex().as_str()));
    }
    Value::Object(all)
}

/// Returns settings with another policy of the cache.
pub(crate) fn with_kv(settings: &str, kv: KvPolicy) -> String {
    let mut all: Value = serde_json::from_str(settings).unwrap_or(Value::Null);
    if let Some(object) = all.as_object_mut() {
        object.insert("kv".into(), json!(kv.to_string()));
    }
    all.to_string()
}

fn write_sampling(sampling: &SamplingParams, all: &mut Map<String, Value>) {
    let numbers = [
        ("temperature", sampling.temperature),
        ("dynatemp_range", sampling.dynatemp_range),
        ("dynatemp_exponent", sampling.dynatemp_exponent),
        ("top_p", sampling.top_p),
        ("min_p", sampling.min_p),
        ("typical_p", sampling.typical_p),
        ("top_n_sigma", sampling.top_n_sigma),
        ("xtc_probability", sampling.xtc_probability),
        ("xtc_threshold", sampling.xtc_threshold),
        ("repeat_penalty", sampling.repeat_penalty),
        ("frequency_penalty", sampling.frequency_penalty),
        ("presence_penalty", sampling.presence_penalty),
        ("dry_multiplier", sampling.dry_multiplier),
        ("dry_base", sampling.dry_base),
        ("mirostat_tau", sampling.mirostat_tau),
        ("mirostat_eta", sampling.mirostat_eta),
    ];
    all.extend(numbers.map(|(name, x)| (name.to_owned(), decimal(x))));
    let counts = [
        ("top_k", sampling.top_k),
        ("repeat_last_n", sampling.repeat_last_n),
        ("dry_allowed_length", sampling.dry_allowed_length),
        ("dry_last_n", sampling.dry_penalty_last_n),
    ];
    all.extend(counts.map(|(name, n)| (name.to_owned(), json!(n))));
    let mirostat = match sampling.mirostat {
        Mirostat::Off => 0,
        Mirostat::V1 => 1,
        Mirostat::V2 => 2,
    };
    all.insert("mirostat".into(), json!(mirostat));
    all.insert("samplers".into(), sampling.order.iter().map(|kind| kind.as_str()).collect());
    all.insert("dry_breakers".into(), json!(sampling.dry_sequence_breakers));
    // JSON has no infinity: null rules a token out.
    let biases = sampling.logit_bias.iter().map(|&(id, bias)| json!([id, decimal(bias)]));
    all.insert("logit_bias".into(), biases.collect());
}

fn write_grammar(source: &GrammarSource) -> Value {
    match source {
        GrammarSource::JsonObject => json!({ "kind": "json_object" }),
        GrammarSource::JsonSchema(schema) => json!({ "kind": "json_schema", "of": schema }),
        GrammarSource::Regex(text) => json!({ "kind": "regex", "of": text }),
        GrammarSource::Choice(texts) => json!({ "kind": "choice", "of": texts }),
        GrammarSource::Lark(text) => json!({ "kind": "lark", "of": text }),
        GrammarSource::Gbnf(text) => json!({ "kind": "gbnf", "of": text }),
    }
}

/// An adapter that a request named.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UsedAdapter {
    pub name: String,
    pub content: String,
    pub format: String,
    pub scale: f32,
}

/// What stands in the settings of a record.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub program: String,
    pub isa: String,
    pub kv: String,
    pub n_ctx: usize,
    pub adapters: Vec<UsedAdapter>,
    pub is_gated: bool,
    pub is_learned: bool,
    /// Whether texts were kept.
    pub is_whole: bool,
    pub grammar: Option<(GrammarSource, bool)>,
    /// Without prompt, seed, grammar and adapters.
    pub request: GenerateRequest,
}

/// Reads what [`write`] made.
///
/// # Errors
/// Kind `Options` if it is something else, naming what is missing.
pub(crate) fn read(text: &str) -> Result<Settings, EngineError> {
    let all: Value = serde_json::from_str(text).map_err(|error| unreadable(&error.to_string()))?;
    let fields = Fields(&all);
    let is_whole = all.get("digest").is_none();
    let request = GenerateRequest {
        max_tokens: match &all["max_tokens"] {
            Value::Null => None,
            _ => Some(fields.count("max_tokens")?),
        },
        ignore_eos: all["ignore_eos"] == true,
        visible: fields.list("visible")?.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect(),
        stop: if is_whole { fields.texts("stop")? } else { Vec::new() },
        sampling: read_sampling(&fields, is_whole)?,
        ..GenerateRequest::default()
    };
    let adapters = match all.get("adapters") {
        None => Vec::new(),
        Some(_) => fields.list("adapters")?.iter().map(read_adapter).collect::<Result<_, _>>()?,
    };
    let grammar = match all.get("grammar") {
        None => None,
        Some(grammar) => Some((read_grammar(&grammar["source"])?, grammar["stops"] == true)),
    };
    Ok(Settings {
        program: fields.text("program")?,
        isa: fields.text("isa")?,
        kv: fields.text("kv")?,
        n_ctx: fields.count("ctx")?,
        adapters,
        is_gated: all["gated"] == true,
        is_learned: all["learned"] == true,
        is_whole,
        grammar,
        request,
    })
}

fn read_sampling(fields: &Fields<'_>, is_whole: bool) -> Result<SamplingParams, EngineError> {
    let bias = |pair: &Value| {
        let id = u32::try_from(pair[0].as_u64()?).ok()?;
        Some((id, pair[1].as_f64().map_or(f32::NEG_INFINITY, |bias| bias as f32)))
    };
    let default = SamplingParams::default();
    Ok(SamplingParams {
        temperature: fields.number("temperature")?,
        dynatemp_range: fields.number("dynatemp_range")?,
        dynatemp_exponent: fields.number("dynatemp_exponent")?,
        top_k: fields.count("top_k")?,
        top_p: fields.number("top_p")?,
        min_p: fields.number("min_p")?,
        typical_p: fields.number("typical_p")?,
        top_n_sigma: fields.number("top_n_sigma")?,
        xtc_probability: fields.number("xtc_probability")?,
        xtc_threshold: fields.number("xtc_threshold")?,
        repeat_penalty: fields.number("repeat_penalty")?,
        frequency_penalty: fields.number("frequency_penalty")?,
        presence_penalty: fields.number("presence_penalty")?,
        repeat_last_n: fields.count("repeat_last_n")?,
        dry_multiplier: fields.number("dry_multiplier")?,
        dry_base: fields.number("dry_base")?,
        dry_allowed_length: fields.count("dry_allowed_length")?,
        dry_penalty_last_n: fields.count("dry_last_n")?,
        dry_sequence_breakers: if is_whole { fields.texts("dry_breakers")? } else { default.dry_sequence_breakers },
        mirostat: match fields.count("mirostat")? {
            0 => Mirostat::Off,
            1 => Mirostat::V1,
            _ => Mirostat::V2,
        },
        mirostat_tau: fields.number("mirostat_tau")?,
        mirostat_eta: fields.number("mirostat_eta")?,
        logit_bias: if is_whole { fields.list("logit_bias")?.iter().filter_map(bias).collect() } else { Vec::new() },
        order: {
            let kind = |name: &String| name.parse().map_err(|_| unreadable(&format!("a sampler '{name}'")));
            fields.texts("samplers")?.iter().map(kind).collect::<Result<_, _>>()?
        },
        seed: None,
    })
}

fn read_adapter(adapter: &Value) -> Result<UsedAdapter, EngineError> {
    let fields = Fields(adapter);
    let (name, content, format) = (fields.text("name")?, fields.text("content")?, fields.text("format")?);
    Ok(UsedAdapter { name, content, format, scale: fields.number("scale")? })
}

fn read_grammar(source: &Value) -> Result<GrammarSource, EngineError> {
    let fields = Fields(source);
    Ok(match fields.text("kind")?.as_str() {
        "json_object" => GrammarSource::JsonObject,
        "json_schema" => GrammarSource::JsonSchema(source["of"].clone()),
        "regex" => GrammarSource::Regex(fields.text("of")?),
        "choice" => GrammarSource::Choice(fields.texts("of")?),
        "lark" => GrammarSource::Lark(fields.text("of")?),
        "gbnf" => GrammarSource::Gbnf(fields.text("of")?),
        kind => return Err(unreadable(&format!("a grammar of kind '{kind}'"))),
    })
}

/// Fields of a JSON object that must be there.
struct Fields<'a>(&'a Value);

impl Fields<'_> {
    fn missing(name: &str) -> EngineError {
        unreadable(&format!("'{name}' is missing or of another kind"))
    }

    fn text(&self, name: &str) -> Result<String, EngineError> {
        self.0[name].as_str().map(str::to_owned).ok_or_else(|| Fields::missing(name))
    }

    fn number(&self, name: &str) -> Result<f32, EngineError> {
        self.0[name].as_f64().map(|x| x as f32).ok_or_else(|| Fields::missing(name))
    }

    fn count(&self, name: &str) -> Result<usize, EngineError> {
        self.0[name].as_u64().map(|n| n as usize).ok_or_else(|| Fields::missing(name))
    }

    fn list(&self, name: &str) -> Result<&[Value], EngineError> {
        self.0[name].as_array().map(Vec::as_slice).ok_or_else(|| Fields::missing(name))
    }

    fn texts(&self, name: &str) -> Result<Vec<String>, EngineError> {
        let text = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(|| Fields::missing(name));
        self.list(name)?.iter().map(text).collect()
    }
}

fn unreadable(why: &str) -> EngineError {
    EngineError::new(ErrorKind::Options, format!("the settings of a record cannot be read: {why}"))
}
