//! Answers of a given form: the fields that ask for one, and grammars that are compiled once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::StatusCode;
use ruvllm_engine::{GenerateRequest, Grammar, GrammarCompiler, GrammarError, GrammarSource};
use serde_json::{Value, json};

use crate::app::Call;
use crate::error::ApiError;
use crate::fields::{Field, Given, Kind, optional, required};
use crate::generate::offload;

/// Memory for the compiled grammars that a model keeps.
const KEPT_BYTES_MAX: usize = 128 << 20;
/// Memory for the grammars of all requests that wait or run.
pub(crate) const GRAMMAR_BYTES_MAX: usize = 512 << 20;

const JSON_SCHEMA: &[Field] = &[
    required("schema", Kind::Map(&Kind::Any), "a JSON Schema; a keyword that cannot be held to is refused by name"),
    optional("name", Kind::Text, "a label; the model is held to the schema and not told about it"),
    optional("description", Kind::Text, "a label as well"),
    optional("strict", Kind::Bool, "an answer is valid in any case"),
];

const FORMAT: &[Field] = &[
    required(
        "type",
        Kind::Word(&["text", "json_object", "json_schema"]),
        "any text, any JSON object, or one of a schema",
    ),
    optional("json_schema", Kind::Object(JSON_SCHEMA), "the schema, for that type"),
    optional("schema", Kind::Map(&Kind::Any), "a JSON Schema, for any JSON object"),
];

/// The field of OpenAI's API.
pub(crate) const RESPONSE_FORMAT: Field = optional("response_format", Kind::Object(FORMAT), "the form of the answer");

const FLAT_FORMAT: &[Field] = &[
    required(
        "type",
        Kind::Word(&["text", "json_object", "json_schema"]),
        "any text, any JSON object, or one of a schema",
    ),
    optional("schema", Kind::Map(&Kind::Any), "a JSON Schema, for that type"),
    optional("name", Kind::Text, "a label; the model is held to the schema and not told about it"),
    optional("description", Kind::Text, "a label as well"),
    optional("strict", Kind::Bool, "an answer is valid in any case"),
];

/// The same in the API of responses.
pub(crate) const TEXT_FORMAT: Kind = Kind::Object(FLAT_FORMAT);

const OUTPUTS: &[Field] = &[
    optional("json", Kind::Map(&Kind::Any), "JSON of this schema"),
    optional("json_object", Kind::Only("true", "leave it out"), "any JSON object"),
    optional("regex", Kind::Text, "a text that this regular expression matches as a whole"),
    optional("choice", Kind::List(&Kind::Text, 1, 4096), "one of these texts"),
    optional("grammar", Kind::Text, "a text of this grammar in llama.cpp's syntax (GBNF)"),
    optional("lark", Kind::Text, "a text of this grammar in Lark's syntax"),
];

/// The field for every other form.
pub(crate) const STRUCTURED_OUTPUTS: Field =
    optional("structured_outputs", Kind::Object(OUTPUTS), "the form of the answer, in one of these ways");

/// The names that vLLM and llama.cpp had or have for single forms.
pub(crate) const GUIDED_JSON: Field =
    optional("guided_json", Kind::Map(&Kind::Any), "structured_outputs.json").also(&["json_schema"]);
pub(crate) const GUIDED_REGEX: Field = optional("guided_regex", Kind::Text, "structured_outputs.regex");
pub(crate) const GUIDED_CHOICE: Field =
    optional("guided_choice", Kind::List(&Kind::Text, 1, 4096), "structured_outputs.choice");
pub(crate) const GUIDED_GRAMMAR: Field =
    optional("guided_grammar", Kind::Text, "structured_outputs.grammar").also(&["grammar"]);

/// Compiled grammars of a model, each tenant's for itself, the one that was used last at the end.
#[derive(Debug, Default)]
pub(crate) struct Grammars(Mutex<VecDeque<Kept>>);

/// A grammar that is kept.
#[derive(Debug)]
struct Kept {
    tenant: u64,
    source: GrammarSource,
    grammar: Grammar,
}

impl Grammars {
    fn find(&self, tenant: u64, source: &GrammarSource) -> Option<Grammar> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|known| known.tenant == tenant && known.source == *source)?;
        let found = kept.remove(at)?;
        let grammar = found.grammar.clone();
        kept.push_back(found);
        Some(grammar)
    }

    /// Keeps a grammar; what was used the longest ago goes, of the tenant beyond its half and of all beyond the whole.
    fn keep(&self, tenant: u64, source: GrammarSource, grammar: Grammar) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(Kept { tenant, source, grammar });
        let is_own = |kept: &Kept| kept.tenant == tenant;
        drop_beyond(&mut kept, if tenant == 0 { KEPT_BYTES_MAX } else { KEPT_BYTES_MAX / 2 }, is_own);
        drop_beyond(&mut kept, KEPT_BYTES_MAX, |_| true);
    }
}

/// Drops the oldest of those that `counts` until they take no more than `n_bytes_max`.
fn drop_beyond(kept: &mut VecDeque<Kept>, n_bytes_max: usize, counts: impl Fn(&Kept) -> bool) {
    let mut n_bytes: usize = kept.iter().filter(|kept| counts(kept)).map(|kept| kept.grammar.n_bytes()).sum();
    kept.retain(|kept| {
        let goes = n_bytes > n_bytes_max && counts(kept);
        n_bytes -= if goes { kept.grammar.n_bytes() } else { 0 };
        !goes
    });
}

/// Returns a compiled grammar for a request, and keeps memory for it until its answers are over.
///
/// # Errors
/// As [`GrammarCompiler::compile`]; 503: the grammars of others have the memory.
pub(crate) async fn compiled(
    call: &Call,
    source: GrammarSource,
    compile: impl FnOnce(&GrammarCompiler, &GrammarSource) -> Result<Grammar, GrammarError> + Send + 'static,
) -> Result<Grammar, ApiError> {
    let tenant = call.tenant.id;
    let grammar = match call.model.grammars.find(tenant, &source) {
        Some(grammar) => grammar,
        None => {
            // Of each tenant one is compiled at once: however many one sends, others find a thread. The turn lasts as long as
            // the work, which goes on when its client has left.
            let turn = call.server.grammar_gates.of(tenant).own().await;
            let model = Arc::clone(&call.model);
            let work = move || {
                let _turn = turn;
                let grammar = compile(model.service.grammar_compiler()?, &source)?;
                model.grammars.keep(tenant, source, grammar.clone());
                Ok(grammar)
            };
            offload(work).await?
        }
    };
    let part = call.server.grammar_bytes.take(tenant, grammar.n_bytes()).ok_or_else(|| {
        let line = "the server has no memory for this form: those of other requests have it; try again";
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, line).code("overloaded");
        ApiError { retry_after_s: Some(1), ..error }
    })?;
    call.held.lock().unwrap_or_else(PoisonError::into_inner).push(part);
    Ok(grammar)
}

/// Returns the grammar that a request asks for.
///
/// # Errors
/// 400: it cannot be compiled, it uses what is not supported, or other fields do not go with it.
pub(crate) async fn grammar(call: &Call, request: &GenerateRequest) -> Result<Option<Grammar>, ApiError> {
    let Some((field, source)) = source(&call.given)? else { return Ok(None) };
    if request.ignore_eos {
        let line = format!("'ignore_eos' does not go with '{field}': the answer ends where its form is complete");
        return Err(ApiError::bad("ignore_eos", line));
    }
    let grammar = compiled(call, source, GrammarCompiler::compile).await;
    let grammar = grammar.map_err(|error| ApiError { param: Some(field.to_owned()), ..error })?;
    Ok(Some(for_stops_of(request, grammar)))
}

/// Returns the grammar of a request's answer: what its stop texts cut off is missing in the form.
pub(crate) fn for_stops_of(request: &GenerateRequest, grammar: Grammar) -> Grammar {
    if request.stop.is_empty() { grammar } else { grammar.with_stops() }
}

/// Returns the form that a request asks for, and the field that does.
pub(crate) fn source(given: &Given) -> Result<Option<(&'static str, GrammarSource)>, ApiError> {
    // Ollama's API: "json", or a schema.
    match given.get("format") {
        Some(Value::String(word)) if word == "json" => return Ok(Some(("format", GrammarSource::JsonObject))),
        Some(schema @ Value::Object(_)) => {
            return Ok(Some(("format", GrammarSource::JsonSchema(schema.clone()))));
        }
        _ => {}
    }
    // The API of responses has the schema's fields beside the type.
    let flat = given.get("text").map(|text| &text["format"]).filter(|format| format["type"] == "json_schema");
    let flat = flat.map(|format| json!({ "type": "json_schema", "json_schema": format }));
    let anthropic = given.get("output_format").or_else(|| Some(&given.get("output_config")?["format"]));
    let anthropic = anthropic.filter(|format| !format.is_null());
    let anthropic =
        anthropic.map(|format| json!({ "type": "json_schema", "json_schema": { "schema": format["schema"] } }));
    let nested = given.get("response_format").or_else(|| given.get("text").map(|text| &text["format"]));
    let nested = nested.or(anthropic.as_ref());
    let format = match flat.as_ref().or(nested).filter(|format| !format.is_null()) {
        Some(format) => of_format(format)?,
        None => None,
    };
    let outputs = given.get("structured_outputs").and_then(Value::as_object);
    let outputs = outputs.into_iter().flatten().map(|(name, value)| (name.as_str(), value));
    let guided = ["json", "regex", "choice", "grammar"].into_iter();
    let guided = guided.filter_map(|name| Some((name, given.get(&format!("guided_{name}"))?)));
    // An empty grammar is none, as for llama.cpp.
    let guided = guided.filter(|(name, value)| !(*name == "grammar" && value.as_str() == Some("")));
    let mut outputs = outputs.filter(|(_, value)| !value.is_null()).chain(guided);
    let Some((name, value)) = outputs.next() else {
        let fields = ["text", "output_config", "output_format"];
        let field = fields.into_iter().find(|field| given.get(field).is_some()).unwrap_or("response_format");
        return Ok(format.map(|source| (field, source)));
    };
    if format.is_some() || outputs.next().is_some() {
        let line = "'structured_outputs' asks for one form; there is another one in it or in 'response_format'";
        return Err(ApiError::bad("structured_outputs", line));
    }
    let text = || value.as_str().unwrap_or_default().to_owned();
    let source = match name {
        "json" => GrammarSource::JsonSchema(value.clone()),
        "json_object" => GrammarSource::JsonObject,
        "regex" => GrammarSource::Regex(text()),
        "choice" => {
            let texts = value.as_array().into_iter().flatten().filter_map(Value::as_str);
            GrammarSource::Choice(texts.map(str::to_owned).collect())
        }
        "lark" => GrammarSource::Lark(text()),
        _ => GrammarSource::Gbnf(text()),
    };
    Ok(Some(("structured_outputs", source)))
}

fn of_format(format: &Value) -> Result<Option<GrammarSource>, ApiError> {
    let schema = format.get("json_schema").filter(|schema| !schema.is_null());
    match (format["type"].as_str(), schema) {
        (Some("json_schema"), Some(schema)) if schema["schema"].is_object() => {
            Ok(Some(GrammarSource::JsonSchema(schema["schema"].clone())))
        }
        (Some("json_schema"), _) => {
            let line = "the format json_schema has no schema that the answer is to be valid by";
            Err(ApiError::bad("response_format", line))
        }
        (_, Some(_)) => {
            let line = "'response_format.json_schema' is for the type json_schema";
            Err(ApiError::bad("response_format.json_schema", line))
        }
        (Some("json_object"), None) => Ok(Some(match format.get("schema").filter(|schema| schema.is_object()) {
            Some(schema) => GrammarSource::JsonSchema(schema.clone()),
            None => GrammarSource::JsonObject,
        })),
        _ => Ok(None),
    }
}
