//! Conversations with calls, for any chat template: as it wants them where it knows functions, as text where it does not.

use serde_json::{Map, Value, json};

use super::ToolFormat;
use crate::TextError;
use crate::template::{ChatInput, ChatTemplate};

/// Returns the text of a conversation, whatever the template knows of functions.
///
/// # Errors
/// The template refuses the messages.
pub(crate) fn render(template: &ChatTemplate, input: &ChatInput) -> Result<String, TextError> {
    let has_calls = input.messages.iter().any(|message| message["role"] == "tool" || !message["tool_calls"].is_null());
    if input.tools.is_none() && !has_calls {
        return template.render(input);
    }
    let format = ToolFormat::of(template);
    if format == ToolFormat::Generic {
        return as_text(template, input);
    }
    let mut input = input.clone();
    if matches!(format, ToolFormat::Mistral | ToolFormat::MistralArgs) {
        input.messages.iter_mut().for_each(shorten_ids);
    }
    if !template.source().contains("tool_calls") {
        input.messages = input.messages.iter().map(|message| calls_as_text(message, format)).collect();
    }
    template.render(&input).or_else(|error| {
        // Some templates want arguments as a text.
        input.messages.iter_mut().for_each(arguments_as_text);
        template.render(&input).map_err(|_| error)
    })
}

/// Renders for a template that knows no functions: they are described in the system's message, and in the first of the
/// user where the template takes none of the system.
fn as_text(template: &ChatTemplate, input: &ChatInput) -> Result<String, TextError> {
    let mut plain = ChatInput { tools: None, messages: flat(&input.messages), ..input.clone() };
    let Some(tools) = input.tools.as_ref().and_then(Value::as_array).filter(|tools| !tools.is_empty()) else {
        return template.render(&plain);
    };
    let (text, messages) = (description(tools), plain.messages.clone());
    match plain.messages.first_mut().filter(|first| first["role"] == "system") {
        Some(system) => system["content"] = json!(joined(system, &text)),
        None => plain.messages.insert(0, json!({ "role": "system", "content": text })),
    }
    template.render(&plain).or_else(|error| {
        plain.messages = messages;
        let user = plain.messages.iter_mut().find(|message| message["role"] == "user");
        let Some(user) = user else { return Err(error) };
        user["content"] = json!(format!("{text}\n\n{}", user["content"].as_str().unwrap_or_default()));
        template.render(&plain).map_err(|_| error)
    })
}

/// Tells a model that was trained for none which functions there are, and how to call one.
fn description(tools: &[Value]) -> String {
    let one = |tool: &Value| tool.get("function").unwrap_or(tool).to_string();
    let tools: Vec<String> = tools.iter().map(one).collect();
    format!(
        "You can call these functions, each described by a line of JSON:\n{}\n\n\
         To call a function, answer with nothing but a line of JSON that has its name and its arguments:\n\
         {{\"name\": \"NAME\", \"arguments\": {{\"ARGUMENT\": VALUE}}}}\n\
         For several calls write several such lines. What they return comes in the next message. \
         If no function helps, answer in plain text.",
        tools.join("\n")
    )
}

fn joined(message: &Value, text: &str) -> String {
    match message["content"].as_str().unwrap_or_default() {
        "" => text.to_owned(),
        content => format!("{content}\n\n{text}"),
    }
}

/// Returns messages without calls and results: calls as text of the assistant, results as text of the user.
fn flat(messages: &[Value]) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::new();
    for message in messages {
        let message = match message["role"] == "tool" {
            true => result_as_text(message, messages),
            false => calls_as_text(message, ToolFormat::Generic),
        };
        // Results and what the user says behind them are one message, as templates want roles to take turns.
        match out.last_mut() {
            Some(last) if last["is_result"] == true && message["role"] == "user" => {
                last["content"] = json!(joined(last, message["content"].as_str().unwrap_or_default()));
            }
            _ => out.push(message),
        }
    }
    for message in &mut out {
        message.as_object_mut().map(|message| message.remove("is_result"));
    }
    out
}

fn result_as_text(message: &Value, messages: &[Value]) -> Value {
    let calls = messages.iter().filter_map(|message| message["tool_calls"].as_array()).flatten();
    let id = &message["tool_call_id"];
    let named = calls.into_iter().find(|call| !id.is_null() && call["id"] == *id);
    let name = named.and_then(|call| call["function"]["name"].as_str()).unwrap_or("the function");
    let content = message["content"].as_str().unwrap_or_default();
    json!({ "role": "user", "content": format!("{name} returned: {content}"), "is_result": true })
}

/// Returns a message whose calls are part of its content.
fn calls_as_text(message: &Value, format: ToolFormat) -> Value {
    let Some(calls) = message["tool_calls"].as_array() else { return message.clone() };
    let function = |call: &Value| call.get("function").unwrap_or(call).clone();
    let text = format.syntax().written(&calls.iter().map(function).collect::<Vec<_>>());
    let content = match message["content"].as_str().unwrap_or_default() {
        "" => text,
        content => format!("{content}\n{text}"),
    };
    let mut message: Map<String, Value> = message.as_object().cloned().unwrap_or_default();
    message.remove("tool_calls");
    message.insert("content".to_owned(), json!(content));
    Value::Object(message)
}

fn arguments_as_text(message: &mut Value) {
    for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(function) = call.get_mut("function") else { continue };
        if !function["arguments"].is_string() {
            function["arguments"] = json!(function["arguments"].to_string());
        }
    }
}

/// Mistral's templates take ids of nine letters and digits only.
fn shorten_ids(message: &mut Value) {
    let short = |id: &mut Value| {
        let Some(text) = id.as_str() else { return };
        let is_short = text.len() == 9 && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_short {
            // FNV-1a: equal ids stay equal, others do not meet in a conversation.
            let hash = text
                .bytes()
                .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
            *id = json!(format!("{:09x}", hash >> 28));
        }
    };
    message.get_mut("tool_call_id").map(short);
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    calls.into_iter().flatten().filter_map(|call| call.get_mut("id")).for_each(short);
}
