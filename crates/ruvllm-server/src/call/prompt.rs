//! The prompt of a chat, its length, and how many log-probabilities come with its answer.

use ruvllm_api::error::ApiError;
use ruvllm_api::{messages, thinking};
use ruvllm_engine::GenerateRequest;
use ruvllm_engine::template::ChatInput;
use ruvllm_engine::tools::ToolUse;
use serde_json::Value;

use super::Call;
use super::generate::ParsedRequest;
use super::patterns::attend;
use crate::state::gate::offload;

/// Reads of how many tokens log-probabilities are told beside those of the answer; none unless they are asked for.
pub(crate) fn n_logprobs(call: &Call) -> Result<Option<usize>, ApiError> {
    match (call.body.is_set("logprobs"), call.body.count("top_logprobs")) {
        (true, n) => Ok(Some(n.unwrap_or(0))),
        (false, Some(n)) if n > 0 => {
            Err(ApiError::bad("top_logprobs", "'top_logprobs' needs 'logprobs'; set that to true as well"))
        }
        (false, _) => Ok(None),
    }
}

/// Returns the tokens of a conversation and of what the assistant has begun to answer.
pub(crate) async fn prompt(
    call: &mut Call,
    asked: &ParsedRequest,
    tool_use: Option<&ToolUse>,
    messages: Vec<Value>,
    begun: Option<String>,
) -> Result<Vec<u32>, ApiError> {
    let text = call.text().clone();
    let input = ChatInput {
        messages,
        tools: tool_use.map(ToolUse::definitions),
        add_generation_prompt: begun.is_some() || call.body.flag(messages::OPENS_ANSWER.name, true),
        extra: thinking::variables(&call.body, call.text(), &call.model_name)?,
        ..ChatInput::default()
    };
    let input = attend(call, input).await?;
    let n_max = asked.is_truncated.then(|| prompt_max(call, &asked.request));
    let (parse_special, thinks_not) = (call.body.is_set("parse_special"), thinking::is_off(&call.body));
    offload(move || {
        let begun = begun.as_deref().unwrap_or_default();
        let encoding = messages::Encoding { n_max, parse_special, thinks_not, begun };
        messages::encode(&text, input, encoding)
    })
    .await
}

/// Drops the beginnings of prompts that leave no room for an answer, if the request asks for that; returns which it did.
pub(crate) fn shorten(call: &Call, asked: &ParsedRequest, prompts: &mut [Vec<u32>]) -> Vec<bool> {
    let n_max = if asked.is_truncated { prompt_max(call, &asked.request) } else { usize::MAX };
    let shorten = |prompt: &mut Vec<u32>| prompt.drain(..prompt.len().saturating_sub(n_max)).count() > 0;
    prompts.iter_mut().map(shorten).collect()
}

/// Returns how many tokens a prompt may have that leaves room for its answer: up to half of the context is kept for it.
pub(crate) fn prompt_max(call: &Call, request: &GenerateRequest) -> usize {
    let n_ctx = call.model.service.info().n_ctx;
    n_ctx - request.max_tokens.unwrap_or(1).clamp(1, (n_ctx / 2).max(1))
}
