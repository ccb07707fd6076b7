//! How much a model thinks: the fields of four APIs, and what they are for a chat template.

use ruvllm_engine::ModelText;
use ruvllm_engine::template::ChatTemplate;
use serde_json::{Map, Value, json};

use crate::app::Call;
use crate::error::ApiError;
use crate::fields::{Field, Kind, optional, required, unheeded};

/// How much there is to think, from nothing up.
pub(crate) const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// The object of OpenAI's API of responses, and of OpenRouter's chats.
pub(crate) const REASONING: &[Field] = &[
    optional("effort", Kind::Word(EFFORTS), "how much a model thinks, where its template asks for that"),
    optional("enabled", Kind::Bool, "whether it thinks"),
    unheeded("summary", Kind::Text, "what is thought is not summed up"),
    unheeded("generate_summary", Kind::Text, "what is thought is not summed up"),
    unheeded("max_tokens", Kind::Int(0, 1 << 24), "thoughts have no count of their own"),
    unheeded("exclude", Kind::Bool, "thoughts are where the model writes them"),
    unheeded("context", Kind::Text, "what is sent is read"),
];

/// The object of Anthropic's API.
pub(crate) const THINKING: Kind = Kind::Tagged(&[
    ("disabled", &[required("type", Kind::Word(&["disabled"]), "it does not think")]),
    ("adaptive", &[required("type", Kind::Word(&["adaptive"]), "as the model likes"), DISPLAY]),
    (
        "enabled",
        &[
            required("type", Kind::Word(&["enabled"]), "it thinks"),
            unheeded("budget_tokens", Kind::Int(0, 1 << 24), "thoughts have no count of their own"),
            DISPLAY,
        ],
    ),
]);

/// The field of Ollama's API.
pub(crate) const THINK: Field = optional(
    "think",
    Kind::Either(&[Kind::Bool, Kind::Word(&["low", "medium", "high", "max"])]),
    "whether the model thinks, or how much, where its template asks for that",
);

/// Variables by which templates are told whether to think.
const VARIABLES: [&str; 3] = ["enable_thinking", "thinking", "reasoning_effort"];

/// Returns whether a model thinks, as its template tells: it asks whether to, or has a place for thoughts.
pub(crate) fn is_known(text: &ModelText) -> bool {
    let template = text.template().ok().flatten();
    template.is_some_and(|template| {
        VARIABLES.into_iter().any(|name| template.reads(name)) || template.source().contains("<think>")
    })
}

const DISPLAY: Field = unheeded("display", Kind::Text, "thoughts are where the model writes them");

/// Returns the variables for a request's chat template: those that it gives, and what it says about thinking as far as the
/// template asks for that.
///
/// # Errors
/// 400: thinking is asked for by name, and the model's template knows none.
pub(crate) fn variables(call: &Call) -> Result<Map<String, Value>, ApiError> {
    let given = &call.given;
    let mut variables = given.get("chat_template_kwargs").and_then(Value::as_object).cloned().unwrap_or_default();
    let template = call.model.service.text().template()?;
    let reads = |name: &str| template.is_some_and(|template: &ChatTemplate| template.reads(name));
    let effort = (given.text("reasoning_effort"))
        .or_else(|| given.get("reasoning")?["effort"].as_str())
        .or_else(|| given.get("output_config")?["effort"].as_str())
        .or_else(|| given.text(THINK.name));
    let by_kind = given.get("thinking").and_then(|thinking| thinking["type"].as_str());
    let by_flag = given.get("reasoning").and_then(|reasoning| reasoning["enabled"].as_bool());
    let by_flag = by_flag.or_else(|| given.get(THINK.name)?.as_bool());
    let is_on = match (by_kind, by_flag, effort) {
        (Some("disabled"), ..) | (_, Some(false), _) | (_, _, Some("none" | "minimal")) => Some(false),
        (Some("enabled"), ..) | (_, Some(true), _) | (_, _, Some(_)) => Some(true),
        _ => None,
    };
    if given.get(THINK.name).is_some_and(|think| *think != false) && !is_known(call.model.service.text()) {
        let line = format!("'{}' does not support thinking; leave out 'think'", call.model_name);
        return Err(ApiError::bad("think", line).code("unsupported"));
    }
    if by_kind == Some("enabled") && !VARIABLES.into_iter().any(reads) {
        let line = "'thinking' is enabled, and this model does not think; leave it out, or ask for adaptive";
        return Err(ApiError::bad("thinking", line).code("unsupported"));
    }
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value.filter(|_| reads(name)) {
            variables.entry(name.to_owned()).or_insert(value);
        }
    };
    set("enable_thinking", is_on.map(|is_on| json!(is_on)));
    set("thinking", is_on.map(|is_on| json!(is_on)));
    set("reasoning_effort", effort.map(|effort| json!(effort)));
    Ok(variables)
}
