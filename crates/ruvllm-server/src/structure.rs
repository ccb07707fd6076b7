//! Answers of a given form: the fields that ask for one, and grammars that are compiled once.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use ruvllm_engine::{Grammar, GrammarSource};
use serde_json::{Value, json};

use crate::app::Call;
use crate::error::ApiError;
use crate::fields::{Field, Given, Kind, optional, required};
use crate::generate::offload;

/// Grammars that are kept, as they were asked for last.
const N_KEPT: usize = 64;

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

/// Compiled grammars, the one that was used last at the end.
#[derive(Debug, Default)]
pub(crate) struct Grammars(Mutex<VecDeque<(GrammarSource, Grammar)>>);

impl Grammars {
    pub(crate) fn find(&self, source: &GrammarSource) -> Option<Grammar> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(known, _)| known == source)?;
        let found = kept.remove(at)?;
        let grammar = found.1.clone();
        kept.push_back(found);
        Some(grammar)
    }

    pub(crate) fn keep(&self, source: GrammarSource, grammar: Grammar) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == N_KEPT {
            kept.pop_front();
        }
        kept.push_back((source, grammar));
    }
}

/// Returns the grammar that a request asks for.
///
/// # Errors
/// 400: it cannot be compiled, it uses what is not supported, or other fields do not go with it.
pub(crate) async fn grammar(call: &Call) -> Result<Option<Grammar>, ApiError> {
    let Some((field, source)) = source(&call.given)? else { return Ok(None) };
    for other in ["stop", "ignore_eos"] {
        let is_set = call.given.is_set(other) || !call.given.texts(other).is_empty();
        if is_set {
            let line = format!("'{other}' does not go with '{field}': the answer ends where its form is complete");
            return Err(ApiError::bad(other, line));
        }
    }
    if let Some(grammar) = call.model.grammars.find(&source) {
        return Ok(Some(grammar));
    }
    let model = std::sync::Arc::clone(&call.model);
    let compile = move || {
        let compiler = model.service.grammar_compiler()?;
        let grammar = compiler.compile(&source)?;
        model.grammars.keep(source, grammar.clone());
        Ok(Some(grammar))
    };
    offload(compile).await.map_err(|error: ApiError| ApiError { param: Some(field.to_owned()), ..error })
}

/// Returns the form that a request asks for, and the field that does.
fn source(given: &Given) -> Result<Option<(&'static str, GrammarSource)>, ApiError> {
    // The API of responses has the schema's fields beside the type.
    let flat = given.get("text").map(|text| &text["format"]).filter(|format| format["type"] == "json_schema");
    let flat = flat.map(|format| json!({ "type": "json_schema", "json_schema": format }));
    let nested = given.get("response_format").or_else(|| given.get("text").map(|text| &text["format"]));
    let format = match flat.as_ref().or(nested).filter(|format| !format.is_null()) {
        Some(format) => of_format(format)?,
        None => None,
    };
    let outputs = given.get("structured_outputs").and_then(Value::as_object);
    let mut outputs = outputs.into_iter().flatten().filter(|(_, value)| !value.is_null());
    let Some((name, value)) = outputs.next() else {
        let field = if given.get("text").is_some() { "text" } else { "response_format" };
        return Ok(format.map(|source| (field, source)));
    };
    if format.is_some() || outputs.next().is_some() {
        let line = "'structured_outputs' asks for one form; there is another one in it or in 'response_format'";
        return Err(ApiError::bad("structured_outputs", line));
    }
    let text = || value.as_str().unwrap_or_default().to_owned();
    let source = match name.as_str() {
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
        (Some("json_object"), None) => Ok(Some(GrammarSource::JsonObject)),
        _ => Ok(None),
    }
}
