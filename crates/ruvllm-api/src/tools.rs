//! Functions that a request lets the model call: the fields of three APIs, and the calls of an answer.

use ruvllm_engine::ModelText;
use ruvllm_engine::tools::{Tool, ToolChoice, ToolUse};
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Field, Kind, ValidBody, optional, required, unheeded};
use crate::messages::CACHE;

const NAME: Field = required("name", Kind::Text, "the function's name: letters, digits, underscores, dashes, dots");
const DESCRIPTION: Field = optional("description", Kind::Text, "what it does; the model reads it");
const PARAMETERS: Field =
    optional("parameters", Kind::Map(&Kind::Any), "a JSON Schema of the object of its arguments; any object without");
const STRICT: Field = optional(
    "strict",
    Kind::Bool,
    "refuse a schema that arguments cannot be held to, instead of allowing any where the model is free to call",
);

const FUNCTION: &[Field] = &[NAME, DESCRIPTION, PARAMETERS, STRICT, CACHE];

const TOOL: &[Field] = &[
    required("type", Kind::Word(&["function"]), "functions are the only tools"),
    required("function", Kind::Object(FUNCTION), "the function"),
    CACHE,
];

const MEANS: &str =
    "none calls nothing, auto leaves it to the model, required calls at least one, a name calls that one";
const WORDS: Kind = Kind::Word(&["none", "auto", "required"]);

const CHOSEN: &[Field] = &[
    required("type", Kind::Word(&["function"]), "functions are the only tools"),
    required("function", Kind::Object(&[NAME]), "the function to call"),
];

const PARALLEL: Field = optional(
    "parallel_tool_calls",
    Kind::Bool,
    "whether several calls may come in one answer; they may unless this is false",
);

/// The fields of `/v1/chat/completions`.
pub const CHAT: &[Field] = &[
    optional(
        "tools",
        Kind::List(&Kind::Known(&[("function", TOOL)]), 0, 256),
        "functions that the model may call; other tools are left out",
    ),
    optional("tool_choice", Kind::Either(&[WORDS, Kind::Object(CHOSEN)]), MEANS),
    PARALLEL,
];

const FLAT_TOOL: &[Field] = &[
    required("type", Kind::Word(&["function"]), "functions are the only tools"),
    NAME,
    DESCRIPTION,
    PARAMETERS,
    STRICT,
];

const FLAT_CHOSEN: &[Field] = &[required("type", Kind::Word(&["function"]), "a function of the request"), NAME];

/// Names of tools of an MCP server.
const TOOL_NAMES: &[Field] =
    &[optional("tool_names", Kind::List(&Kind::Text, 0, 256), "their names, as the MCP server has them")];

const APPROVALS: &[Field] = &[
    optional(
        "always",
        Kind::Object(TOOL_NAMES),
        "tools whose calls the client approves, as those that are in neither list",
    ),
    optional("never", Kind::Object(TOOL_NAMES), "tools that run without that"),
];

/// The value of keys that say where a server elsewhere is.
const OURS: Kind =
    Kind::Only("null", "MCP servers are those that this server was started with; name one by server_label");

/// Tools of an MCP server that the server runs.
const MCP_TOOL: &[Field] = &[
    required("type", Kind::Word(&["mcp"]), "tools of an MCP server, which the server runs itself"),
    required(
        "server_label",
        Kind::Text,
        "the MCP server, as the server's configuration names it; /v1/mcp/tools lists them",
    ),
    optional(
        "allowed_tools",
        Kind::Either(&[Kind::List(&Kind::Text, 0, 256), Kind::Object(TOOL_NAMES)]),
        "the tools that the model may call, by their names on the MCP server; all without",
    ),
    optional(
        "require_approval",
        Kind::Either(&[Kind::Word(&["always", "never"]), Kind::Object(APPROVALS)]),
        "whether the client approves each call before it is run; always by default. What the operator does not allow never runs",
    ),
    unheeded("server_description", Kind::Text, "the model reads the descriptions of the tools"),
    unheeded("defer_loading", Kind::Bool, "every tool is told to the model"),
    optional("server_url", OURS, "the address of a server elsewhere"),
    optional("connector_id", OURS, "a service elsewhere"),
    optional("authorization", OURS, "a key for a server elsewhere"),
    optional("headers", OURS, "what a server elsewhere is sent"),
];

const MCP_CHOSEN: &[Field] = &[
    required("type", Kind::Word(&["mcp"]), "a tool of an MCP server"),
    required("server_label", Kind::Text, "the MCP server"),
    required("name", Kind::Text, "the tool, by its name there; it is called first"),
];

/// The fields of `/v1/responses`.
pub const RESPONSES: &[Field] = &[
    optional(
        "tools",
        Kind::List(&Kind::Known(&[("function", FLAT_TOOL), ("mcp", MCP_TOOL)]), 0, 256),
        "functions that the model may call, and MCP servers whose tools it may call; other tools are left out",
    ),
    optional(
        "tool_choice",
        Kind::Either(&[WORDS, Kind::Tagged(&[("function", FLAT_CHOSEN), ("mcp", MCP_CHOSEN)])]),
        MEANS,
    ),
    PARALLEL,
];

const ANTHROPIC_TOOL: &[Field] = &[
    optional("type", Kind::Word(&["custom"]), "tools of the client's are the only ones"),
    NAME,
    DESCRIPTION,
    required("input_schema", Kind::Map(&Kind::Any), "a JSON Schema of the object of its input"),
    STRICT,
    CACHE,
    unheeded("eager_input_streaming", Kind::Bool, "what a tool is given comes piece by piece in any case"),
    unheeded("defer_loading", Kind::Bool, "every tool is told to the model"),
    unheeded("allowed_callers", Kind::List(&Kind::Text, 0, 16), "the model is the only caller"),
    unheeded("input_examples", Kind::List(&Kind::Any, 0, 64), "the model reads the description and the schema"),
];

const ALONE: Field = optional("disable_parallel_tool_use", Kind::Bool, "call one tool at most");

const ANTHROPIC_CHOICE: Kind = Kind::Tagged(&[
    ("auto", &[required("type", Kind::Word(&["auto"]), "as the model likes"), ALONE]),
    ("any", &[required("type", Kind::Word(&["any"]), "at least one tool"), ALONE]),
    ("tool", &[required("type", Kind::Word(&["tool"]), "the tool of this name"), NAME, ALONE]),
    ("none", &[required("type", Kind::Word(&["none"]), "no tool")]),
]);

/// The fields of `/v1/messages`.
pub const ANTHROPIC: &[Field] = &[
    optional(
        "tools",
        Kind::List(&Kind::Known(&[("custom", ANTHROPIC_TOOL)]), 0, 256),
        "tools that the model may use; those that a server has are left out",
    ),
    optional("tool_choice", ANTHROPIC_CHOICE, "whether it uses one"),
];

/// Functions that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// The functions.
    pub tools: Vec<Tool>,
    /// Whether one must be called.
    pub choice: ToolChoice,
    /// Whether several calls may come in one answer.
    pub is_parallel: bool,
}

/// Reads the functions that the model may call, in the way of any of the APIs; none if it may call none.
///
/// # Errors
/// 400: a choice without functions, or what [`ToolUse::new`] says.
pub fn read(given: &ValidBody, text: &ModelText) -> Result<Option<ToolUse>, ApiError> {
    let Some(Offer { tools, choice, is_parallel }) = offered(given)? else { return Ok(None) };
    Ok(Some(ToolUse::new(text, tools, choice, is_parallel).map_err(|error| in_tools(error.into()))?))
}

/// Reads the functions that the model may call as [`read`] does, for a model that is elsewhere.
///
/// # Errors
/// 400: a choice without functions.
pub fn offered(given: &ValidBody) -> Result<Option<Offer>, ApiError> {
    let choice = given.get("tool_choice");
    let kind = choice.and_then(|choice| choice.as_str().or_else(|| choice["type"].as_str()));
    let chosen = choice.and_then(|choice| choice["name"].as_str().or_else(|| choice["function"]["name"].as_str()));
    let choice_read = match (kind, chosen) {
        (Some("none"), _) => return Ok(None),
        (_, Some(name)) => ToolChoice::Named(name.to_owned()),
        (Some("required" | "any"), None) => ToolChoice::Required,
        _ => ToolChoice::Auto,
    };
    let tools: Vec<Tool> = given.list("tools").into_iter().flatten().filter(|tool| is_known(tool)).map(tool).collect();
    if tools.is_empty() {
        return match choice_read {
            ToolChoice::Auto => Ok(None),
            _ => Err(ApiError::bad("tool_choice", "'tool_choice' asks for a call and there are no 'tools'; name some")),
        };
    }
    let is_alone = choice.is_some_and(|choice| choice["disable_parallel_tool_use"] == true)
        || given.get("parallel_tool_calls") == Some(&Value::Bool(false));
    Ok(Some(Offer { tools, choice: choice_read, is_parallel: !is_alone }))
}

/// Returns whether a tool is one of the client's: those that a server has are left out.
fn is_known(tool: &Value) -> bool {
    tool["type"]
        .as_str()
        .is_none_or(|kind| kind == "function" || (kind == "custom" && tool["input_schema"].is_object()))
}

fn tool(given: &Value) -> Tool {
    let function = given.get("function").unwrap_or(given);
    let schema = function.get("parameters").or_else(|| function.get("input_schema"));
    Tool {
        name: function["name"].as_str().unwrap_or_default().to_owned(),
        description: function["description"].as_str().map(str::to_owned),
        parameters: schema.filter(|schema| !schema.is_null()).cloned(),
        is_strict: function["strict"] == true,
    }
}

/// Adds that an error is about the tools of a request.
pub fn in_tools(error: ApiError) -> ApiError {
    ApiError { param: Some("tools".to_owned()), ..error }
}

/// Returns the name of a call, which its result refers to: the same for as often as it is asked.
pub fn call_id(request: &str, prefix: &str, choice: usize, index: usize) -> String {
    format!("{prefix}_{request}{choice:02x}{index:02x}")
}
