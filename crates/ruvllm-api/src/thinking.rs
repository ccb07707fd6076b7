//! How much a model thinks: the fields of four APIs, and what they are for a chat template.

use ruvllm_engine::template::ChatTemplate;
use ruvllm_engine::thoughts::ThoughtFormat;
use ruvllm_engine::{GenerateRequest, ModelText};
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{Field, Kind, ValidBody, optional, required, unheeded};

/// Reasoning efforts, from nothing up.
pub const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// The object of OpenAI's API of responses, and of OpenRouter's chats.
pub const REASONING: &[Field] = &[
    optional("effort", Kind::Word(EFFORTS), "how much a model thinks, where its template asks for that"),
    optional("enabled", Kind::Bool, "whether it thinks"),
    unheeded("summary", Kind::Text, "what is thought is not summed up"),
    unheeded("generate_summary", Kind::Text, "what is thought is not summed up"),
    optional("max_tokens", BUDGET_TOKENS, "the most tokens of a thought; then it is ended"),
    optional("exclude", Kind::Bool, "leave what is thought out of the answer"),
    unheeded("context", Kind::Text, "what is sent is read"),
];

/// The object of Anthropic's API.
pub const THINKING: Kind = Kind::Tagged(&[
    ("disabled", &[required("type", Kind::Word(&["disabled"]), "it does not think")]),
    ("adaptive", &[required("type", Kind::Word(&["adaptive"]), "as the model likes"), DISPLAY]),
    (
        "enabled",
        &[
            required("type", Kind::Word(&["enabled"]), "it thinks"),
            optional("budget_tokens", BUDGET_TOKENS, "the most tokens of a thought; then it is ended"),
            DISPLAY,
        ],
    ),
]);

/// The field of Ollama's API.
pub const THINK: Field = optional(
    "think",
    Kind::Either(&[Kind::Bool, Kind::Word(&["low", "medium", "high", "max"])]),
    "whether the model thinks, or how much, where its template asks for that",
);

/// Whether the model thinks, in chats.
pub const ENABLE: Field =
    optional("enable_thinking", Kind::Bool, "whether the model thinks, where its template asks for that");

const BUDGET_TOKENS: Kind = Kind::Int(-1, 1 << 24);

/// Number of tokens that a thought may have.
pub const BUDGET: Field = optional(
    "thinking_budget_tokens",
    BUDGET_TOKENS,
    "the most tokens of a thought; then it is ended, and the answer begins; -1 lets the model end it",
)
.also(&["thinking_token_budget", "reasoning_budget", "thinking_budget"]);

/// Where thoughts are in an answer.
pub const FORMAT: Field = optional(
    "reasoning_format",
    Kind::Word(&["auto", "deepseek", "none"]),
    "none leaves what is thought in the answer's text, with its marks; otherwise it is in reasoning_content",
);

/// Whether thoughts are in an answer.
pub const INCLUDE: Field = optional("include_reasoning", Kind::Bool, "false leaves what is thought out of the answer");

/// Variables by which templates are told whether to think.
const VARIABLES: [&str; 3] = ["enable_thinking", "thinking", "reasoning_effort"];

/// Returns whether a model thinks, as its template tells: it asks whether to, or has a place for thoughts.
pub fn is_known(text: &ModelText) -> bool {
    let template = text.template().ok().flatten();
    template.is_some_and(|template| {
        VARIABLES.into_iter().any(|name| template.reads(name)) || ThoughtFormat::of(template).is_some()
    })
}

/// Has a request's answer begin with what the model thinks, told apart from what it says: to be called when the prompt is
/// known.
pub fn begin(given: &ValidBody, text: &ModelText, request: &mut GenerateRequest, prompt: &[u32]) {
    let format = text.template().ok().flatten().and_then(ThoughtFormat::of);
    if given.text(FORMAT.name) == Some("none") || given.get(THINK.name) == Some(&Value::Bool(false)) {
        return;
    }
    let Some(format) = format else { return };
    let may_begin = !is_off(given);
    request.thinking = format.behind(text.tokenizer(), prompt, may_begin);
    if let Some(thinking) = &mut request.thinking {
        thinking.n_tokens_max = budget(given);
        request.visible.extend(format.visible(text.tokenizer()));
    }
}

/// Reads whether what is thought is told.
pub fn is_told(given: &ValidBody) -> bool {
    let is_excluded = given.get("reasoning").is_some_and(|reasoning| reasoning["exclude"] == true);
    given.flag(INCLUDE.name, true) && !is_excluded
}

/// Reads how many tokens a thought may have; none is said with -1 as well.
fn budget(given: &ValidBody) -> Option<usize> {
    let of = |name: &str, field: &str| given.get(name).and_then(|object| object[field].as_i64());
    let budget = given.int(BUDGET.name).or_else(|| of("thinking", "budget_tokens"));
    let budget = budget.or_else(|| of("reasoning", "max_tokens"))?;
    usize::try_from(budget).ok()
}

/// What a request says about thinking.
struct Wish<'g> {
    effort: Option<&'g str>,
    /// The kind of Anthropic's object.
    kind: Option<&'g str>,
    is_on: Option<bool>,
}

impl Wish<'_> {
    fn of(given: &ValidBody) -> Wish<'_> {
        let effort = (given.text("reasoning_effort"))
            .or_else(|| given.get("reasoning")?["effort"].as_str())
            .or_else(|| given.get("output_config")?["effort"].as_str())
            .or_else(|| given.text(THINK.name));
        let kind = given.get("thinking").and_then(|thinking| thinking["type"].as_str());
        let flag = given.get("reasoning").and_then(|reasoning| reasoning["enabled"].as_bool());
        let flag = flag.or_else(|| given.get(THINK.name).or_else(|| given.get(ENABLE.name))?.as_bool());
        let is_on = match (kind, flag, effort) {
            (Some("disabled"), ..) | (_, Some(false), _) | (_, _, Some("none" | "minimal")) => Some(false),
            (Some("enabled"), ..) | (_, Some(true), _) | (_, _, Some(_)) => Some(true),
            _ => None,
        };
        Wish { effort, kind, is_on }
    }
}

/// Reads whether the model is asked not to think.
pub fn is_off(given: &ValidBody) -> bool {
    let variables = given.get("chat_template_kwargs");
    let of_template = ["enable_thinking", "thinking"].into_iter().find_map(|name| variables?[name].as_bool());
    of_template.or(Wish::of(given).is_on) == Some(false)
}

/// Returns what closes the thought that a rendered prompt ends in; nothing if it ends otherwise. There are templates that
/// open one whatever they are told.
pub fn closing(text: &ModelText, prompt: &str) -> &'static str {
    let format = text.template().ok().flatten().and_then(ThoughtFormat::of);
    format.filter(|format| prompt.trim_end().ends_with(format.open)).map_or("", |format| format.close)
}

/// Returns the field that asks for thoughts of a model that has none, which is then answered without.
pub fn not_done(given: &ValidBody, text: &ModelText) -> Option<&'static str> {
    (Wish::of(given).kind == Some("enabled") && !is_known(text)).then_some("thinking")
}

/// Returns what a request says about thinking in the fields that servers of OpenAI's chat API take.
pub fn for_server(given: &ValidBody) -> Map<String, Value> {
    let Wish { effort, is_on, .. } = Wish::of(given);
    let mut variables = given.get("chat_template_kwargs").and_then(Value::as_object).cloned().unwrap_or_default();
    if let Some(is_on) = is_on {
        variables.entry("enable_thinking").or_insert(json!(is_on));
    }
    let effort = effort.map(|effort| ("reasoning_effort", json!(effort)));
    let budget = budget(given).map(|n| (BUDGET.name, json!(n)));
    let variables = (!variables.is_empty()).then(|| ("chat_template_kwargs", Value::Object(variables)));
    [effort, budget, variables].into_iter().flatten().map(|(name, value)| (name.to_owned(), value)).collect()
}

const DISPLAY: Field = unheeded("display", Kind::Text, "thoughts are where the model writes them");

/// Returns the variables for a request's chat template: those that it gives, and what it says about thinking as far as the
/// template asks for that.
///
/// # Errors
/// 400: Ollama's API asks for thoughts, and the model's template knows none.
pub fn variables(given: &ValidBody, text: &ModelText, model_name: &str) -> Result<Map<String, Value>, ApiError> {
    let mut variables = given.get("chat_template_kwargs").and_then(Value::as_object).cloned().unwrap_or_default();
    let template = text.template()?;
    let reads = |name: &str| template.is_some_and(|template: &ChatTemplate| template.reads(name));
    let Wish { effort, is_on, .. } = Wish::of(given);
    if given.get(THINK.name).is_some_and(|think| *think != false) && !is_known(text) {
        let line = format!("'{model_name}' does not support thinking; leave out 'think'");
        return Err(ApiError::bad("think", line).code("unsupported"));
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
