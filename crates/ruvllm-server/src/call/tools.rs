//! Requests whose answers may be calls of tools.

use ruvllm_api::error::ApiError;
use ruvllm_api::form::{AnswerForm, for_stops_of};
use ruvllm_api::tools;
use ruvllm_engine::tools::ToolUse;
use ruvllm_engine::{GenerateRequest, Service};

use super::{Call, grammar};

/// Reads the functions that the model may call, and makes a request one whose answer may be calls. Another server does both by
/// itself.
///
/// # Errors
/// As [`tools::read`] and [`use_tools`].
pub(crate) async fn read_tools(call: &Call, request: &mut GenerateRequest) -> Result<Option<ToolUse>, ApiError> {
    let read = |service: &Service| tools::read(&call.body, service.text());
    let tool_use = call.model.engine().map(read).transpose()?.flatten();
    use_tools(call, tool_use, request).await
}

/// Makes a request one whose answer may be calls, or has the form that is asked for.
///
/// # Errors
/// As [`AnswerForm::of_calls`].
pub(crate) async fn use_tools(
    call: &Call,
    tool_use: Option<ToolUse>,
    request: &mut GenerateRequest,
) -> Result<Option<ToolUse>, ApiError> {
    let Some(tool_use) = tool_use else {
        request.grammar = grammar::grammar(call, request).await?;
        return Ok(None);
    };
    let (tool_use, form) = AnswerForm::of_calls(&call.body, tool_use, request)?;
    request.grammar = Some(for_stops_of(request, grammar::compiled(call, form).await?));
    Ok(Some(tool_use))
}
