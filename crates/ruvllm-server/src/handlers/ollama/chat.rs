//! `/api/chat`.

use ruvllm_api::error::ApiError;
use ruvllm_api::fields::{Field, optional};
use ruvllm_api::messages::OPENS_ANSWER;
use ruvllm_engine::tools::ToolUse;
use serde_json::Value;

use crate::call::generate::ParsedRequest;
use crate::call::prompt::{self as chat_prompt, Conversation, Prompt};
use crate::call::tools::read_tools;
use crate::call::{Call, HandlerFuture};
use crate::handlers::ollama::answer::{self, Form};
use crate::handlers::ollama::{messages, options};

/// Fields of a chat beside those of how the answer is written.
pub(super) const FIELDS: &[Field] =
    &[optional("messages", messages::MESSAGES, "the conversation; one that ends with the assistant is gone on with")];

/// Answers a conversation.
pub(super) fn answer(mut call: Call) -> HandlerFuture {
    Box::pin(async move {
        options::lift(&mut call.body);
        let given = call.body.list("messages").cloned().unwrap_or_default();
        if given.is_empty() {
            return Ok(answer::loaded(&call, Form::Chat));
        }
        let mut asked = answer::asked(&call)?;
        let tool_use = read_tools(&call, &mut asked.request).await?;
        let said = messages::for_template(&given, &call)?;
        let prompt = prompt(&mut call, &asked, tool_use.as_ref(), said).await?;
        answer::respond(call, asked, tool_use, prompt, Form::Chat).await
    })
}

/// Returns the prompt of a conversation.
pub(super) async fn prompt(
    call: &mut Call,
    asked: &ParsedRequest,
    tool_use: Option<&ToolUse>,
    mut messages: Vec<Value>,
) -> Result<Prompt, ApiError> {
    let is_begun = |last: &Value| last["role"] == "assistant" && last["tool_calls"].is_null();
    let begun = if messages.len() > 1 { messages.pop_if(|last| is_begun(last)) } else { None };
    let begun = begun.map(|begun| begun["content"].as_str().unwrap_or_default().to_owned());
    let opens_answer = call.body.flag(OPENS_ANSWER.name, true);
    chat_prompt::prompt(call, Some(asked), tool_use, Conversation { messages, begun, opens_answer }).await
}
