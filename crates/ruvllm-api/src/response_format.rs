//! Answers of a given form: the fields that ask for one, and grammars that are compiled once.

use ruvllm_engine::GrammarSource;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::{Field, Kind, ValidBody, optional, required};

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
pub const RESPONSE_FORMAT: Field = optional("response_format", Kind::Object(FORMAT), "the form of the answer");

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

/// Response format of the API of responses.
pub const TEXT_FORMAT: Kind = Kind::Object(FLAT_FORMAT);

const OUTPUTS: &[Field] = &[
    optional("json", Kind::Map(&Kind::Any), "JSON of this schema"),
    optional("json_object", Kind::Only("true", "leave it out"), "any JSON object"),
    optional("regex", Kind::Text, "a text that this regular expression matches as a whole"),
    optional("choice", Kind::List(&Kind::Text, 1, 4096), "one of these texts"),
    optional("grammar", Kind::Text, "a text of this grammar in llama.cpp's syntax (GBNF)"),
    optional("lark", Kind::Text, "a text of this grammar in Lark's syntax"),
];

/// The field for every other form.
pub const STRUCTURED_OUTPUTS: Field =
    optional("structured_outputs", Kind::Object(OUTPUTS), "the form of the answer, in one of these ways");

/// The names that vLLM and llama.cpp had or have for single forms.
pub const GUIDED_JSON: Field =
    optional("guided_json", Kind::Map(&Kind::Any), "structured_outputs.json").also(&["json_schema"]);
/// Single form: a regular expression.
pub const GUIDED_REGEX: Field = optional("guided_regex", Kind::Text, "structured_outputs.regex");
/// Single form: one of several texts.
pub const GUIDED_CHOICE: Field =
    optional("guided_choice", Kind::List(&Kind::Text, 1, 4096), "structured_outputs.choice");
/// Single form: a grammar.
pub const GUIDED_GRAMMAR: Field =
    optional("guided_grammar", Kind::Text, "structured_outputs.grammar").also(&["grammar"]);

/// Returns the form that a request asks for, and the field that does.
pub fn source(given: &ValidBody) -> Result<Option<(&'static str, GrammarSource)>, ApiError> {
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
