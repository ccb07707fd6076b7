//! Items of conversations: what requests may send, and the conversation that the chat template reads.

use ruvllm_api::fields::{Field, Kind, joined as joined_tables, optional, required, unheeded};
use ruvllm_api::messages::{PARSED, PARSED_ARGUMENTS, joined};
use serde_json::{Value, json};

use crate::call::Call;
use crate::handlers::openai::responses::mcp;

const PART: &[Field] = &[
    required("type", Kind::Word(&["input_text", "output_text"]), "the model reads text only"),
    required("text", Kind::Text, "the text"),
    PARSED,
    optional("annotations", Kind::List(&Kind::Any, 0, 0), "nothing, in an answer that is sent back"),
    optional("logprobs", Kind::List(&Kind::Any, 0, 0), "nothing, in an answer that is sent back"),
];

const MESSAGE: &[Field] = &[
    optional("type", Kind::Word(&["message"]), "a message; so by default"),
    required("role", Kind::Word(&["system", "developer", "user", "assistant"]), "who says it; developer is system"),
    required("content", Kind::Either(&[Kind::Text, Kind::List(&Kind::Object(PART), 0, 4096)]), "what is said"),
    ID,
    STATUS,
    optional("phase", Kind::Word(&["commentary", "final_answer"]), "a label, in an answer that is sent back"),
];

const STATUS: Field = optional(
    "status",
    Kind::Word(&["completed", "incomplete", "in_progress"]),
    "a label, in an answer that is sent back",
);
const ID: Field = optional("id", Kind::Text, "a label, in an answer that is sent back");

const FUNCTION_CALL: &[Field] = &[
    required("type", Kind::Word(&["function_call"]), "a call that the model made"),
    required("call_id", Kind::Text, "what its output refers to"),
    required("name", Kind::Text, "the function's name"),
    required("arguments", Kind::Text, "its arguments, as JSON"),
    PARSED_ARGUMENTS,
    ID,
    STATUS,
];

const OUTPUT: &[Field] = &[
    required("type", Kind::Word(&["function_call_output"]), "what a function returned"),
    required("call_id", Kind::Text, "the call that it answers"),
    required("output", Kind::Either(&[Kind::Text, Kind::List(&Kind::Object(PART), 0, 4096)]), "what it returned"),
    ID,
    STATUS,
];

/// What a model thought, in an answer that is sent back.
const REASONING: &[Field] = &[
    required("type", Kind::Word(&["reasoning"]), "what the model thought"),
    optional(
        "content",
        Kind::List(&Kind::Any, 0, 4096),
        "its text; the model reads it if its template has a place for it",
    ),
    unheeded("summary", Kind::List(&Kind::Any, 0, 4096), "what was said of it"),
    unheeded("encrypted_content", Kind::Text, "what only its writer can read"),
    ID,
    STATUS,
];

const LABEL: Field = required("server_label", Kind::Text, "the MCP server");
const TOOL: Field = required("name", Kind::Text, "the tool's name there");
const ARGUMENTS: Field = required("arguments", Kind::Text, "its arguments, as JSON");

const MCP_TOOLS: &[Field] = &[
    required("type", Kind::Word(&["mcp_list_tools"]), "the tools of an MCP server, in an answer that is sent back"),
    LABEL,
    unheeded("tools", Kind::List(&Kind::Any, 0, 256), "the model reads those of the request"),
    unheeded("error", Kind::Any, "nothing"),
    ID,
    STATUS,
];

const MCP_CALL: &[Field] = &[
    required("type", Kind::Word(&["mcp_call"]), "a call of a tool of an MCP server that is over"),
    LABEL,
    TOOL,
    ARGUMENTS,
    optional("output", Kind::Text, "what it returned"),
    optional("error", Kind::Text, "why it returned nothing"),
    optional("approval_request_id", Kind::Text, "the approval request that it came of"),
    ID,
    optional(
        "status",
        Kind::Word(&["completed", "incomplete", "in_progress", "calling", "failed"]),
        "a label, in an answer that is sent back",
    ),
];

const APPROVAL_REQUEST: &[Field] = &[
    required("type", Kind::Word(&["mcp_approval_request"]), "a call that waits for the client to approve it"),
    required("id", Kind::Text, "what the approval refers to"),
    LABEL,
    TOOL,
    ARGUMENTS,
    STATUS,
];

const APPROVAL: &[Field] = &[
    required("type", Kind::Word(&["mcp_approval_response"]), "what the client says to a call that waits"),
    required("approval_request_id", Kind::Text, "the id of the approval request"),
    required("approve", Kind::Bool, "whether it is run"),
    optional("reason", Kind::Text, "why not; the model reads it"),
    ID,
    STATUS,
];

/// An item of a conversation.
pub(in crate::handlers::openai) const ITEM: Kind = Kind::Tagged(&ITEMS);

const ITEMS: [(&str, &[Field]); 8] = [
    ("message", MESSAGE),
    ("function_call", FUNCTION_CALL),
    ("function_call_output", OUTPUT),
    ("reasoning", REASONING),
    ("mcp_list_tools", MCP_TOOLS),
    ("mcp_call", MCP_CALL),
    ("mcp_approval_request", APPROVAL_REQUEST),
    ("mcp_approval_response", APPROVAL),
];

const REFERENCE: &[Field] = &[
    required("type", Kind::Word(&["item_reference"]), "an item of a kept answer, or of what it was made from"),
    required("id", Kind::Text, "its id"),
];

/// An item of a request: one that is kept may be named instead of sent.
pub(super) const INPUT_ITEM: Kind = Kind::Tagged(&INPUT_ITEMS);

const INPUT_ITEMS: [(&str, &[Field]); ITEMS.len() + 1] = joined_tables(&ITEMS, &[("item_reference", REFERENCE)]);

/// Returns the conversation as the chat template reads it.
pub(super) fn messages(call: &Call) -> Vec<Value> {
    let message = |role: &str, content: String| json!({ "role": if role == "developer" { "system" } else { role }, "content": content });
    let instructions = call.body.text("instructions").map(|text| message("system", text.to_owned()));
    let mut messages: Vec<Value> = instructions.into_iter().collect();
    match call.body.get("input") {
        Some(Value::Array(items)) => {
            for item in items {
                match item["type"].as_str() {
                    Some("function_call") => add_call(&mut messages, item),
                    // It belongs to what the assistant says next.
                    Some("reasoning") => messages.push(json!({
                        "role": "assistant",
                        "content": "",
                        "reasoning_content": joined(&item["content"]),
                    })),
                    Some("function_call_output") => messages.push(json!({
                        "role": "tool",
                        "tool_call_id": item["call_id"],
                        "content": joined(&item["output"]),
                    })),
                    Some("mcp_call") => mcp::add_call(&mut messages, item, &mcp::result_of(item), call),
                    Some("mcp_approval_response") if item["approve"] == false => {
                        let asked = mcp::approval_of(items, item);
                        asked.iter().for_each(|asked| mcp::add_call(&mut messages, asked, &mcp::refusal(item), call));
                    }
                    // What is approved is a call that follows; lists are in the request's tools.
                    Some("mcp_list_tools" | "mcp_approval_request" | "mcp_approval_response") => {}
                    _ => add_message(
                        &mut messages,
                        message(item["role"].as_str().unwrap_or_default(), joined(&item["content"])),
                    ),
                }
            }
        }
        input => messages.push(message("user", input.and_then(Value::as_str).unwrap_or_default().to_owned())),
    }
    messages
}

/// Adds a message; what the assistant says goes to what it thought in front of it.
fn add_message(messages: &mut Vec<Value>, message: Value) {
    let is_thought = |last: &Value| last["content"] == "" && last["reasoning_content"].is_string();
    match messages.last_mut().filter(|last| message["role"] == "assistant" && is_thought(last)) {
        Some(last) => last["content"] = message["content"].clone(),
        None => messages.push(message),
    }
}

/// Adds a call to what the assistant said in front of it, or to its calls.
pub(super) fn add_call(messages: &mut Vec<Value>, item: &Value) {
    // Those of a kept answer may have been cut; a conversation goes on behind it.
    let arguments = item["arguments"].as_str().and_then(|text| serde_json::from_str(text).ok());
    let arguments: Value = arguments.unwrap_or_else(|| item["arguments"].clone());
    let function = json!({ "name": item["name"], "arguments": arguments });
    let call = json!({ "id": item["call_id"], "type": "function", "function": function });
    if messages.last().is_none_or(|last| last["role"] != "assistant") {
        messages.push(json!({ "role": "assistant", "content": "" }));
    }
    let Some(last) = messages.last_mut() else { return };
    match last["tool_calls"].as_array_mut() {
        Some(calls) => calls.push(call),
        None => last["tool_calls"] = json!([call]),
    }
}
