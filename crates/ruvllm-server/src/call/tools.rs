//! Requests whose answers may be calls of tools.

use ruvllm_api::error::ApiError;
use ruvllm_api::tools::in_tools;
use ruvllm_api::{response_format, tools};
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

/// Makes a request one whose answer may be calls, or has the form that is asked for. Both together are one or the other: a
/// call, or an answer in the form.
///
/// # Errors
/// 400: a schema that arguments or answers cannot be held to, or a field that does not go with calls.
pub(crate) async fn use_tools(
    call: &Call,
    tool_use: Option<ToolUse>,
    request: &mut GenerateRequest,
) -> Result<Option<ToolUse>, ApiError> {
    let Some(tool_use) = tool_use else {
        request.grammar = grammar::grammar(call, request).await?;
        return Ok(None);
    };
    if request.ignore_eos {
        return Err(ApiError::bad(
            "ignore_eos",
            "'ignore_eos' does not go with 'tools': an answer ends behind its calls",
        ));
    }
    let tool_use = match response_format::source(&call.body)? {
        Some((field, form)) => tool_use
            .with_form(form)
            .map_err(|error| ApiError { param: Some(field.to_owned()), ..ApiError::from(error) })?,
        None => tool_use,
    };
    if tool_use.is_forced() {
        // They look at what is said, and nothing is.
        request.stop.clear();
    }
    request.visible = tool_use.visible();
    let (source, of_grammar) = (tool_use.source().map_err(|error| in_tools(error.into()))?, tool_use.clone());
    let compiled = grammar::compiled(call, source, move |compiler, _| compiler.compile_calls(&of_grammar)).await;
    request.grammar = Some(grammar::for_stops_of(request, compiled.map_err(in_tools)?));
    Ok(Some(tool_use))
}
