//! `/v1/mcp/tools`: the tools of MCP servers that the server runs.

use axum::http::{Method, StatusCode};
use ruvllm_mcp::McpTool;
use ruvllm_server_state::mcp::off;
use serde_json::{Value, json};

use crate::call::response::json_response;
use crate::call::{Endpoint, Handler, HandlerFuture, ServerCall};

/// The endpoint.
pub(crate) static ENDPOINTS: &[Endpoint] = &[Endpoint {
    method: Method::GET,
    path: "/v1/mcp/tools",
    summary: "Lists the tools of MCP servers that requests for responses may offer to the model, and which the operator allows to run",
    answers: &["object", "data"],
    run: Handler::Server(tools),
    ..Endpoint::POST
}];

fn tools(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        let mcp = call.server.mcp.clone().ok_or_else(off)?;
        mcp.refresh().await;
        let described = |tool: &McpTool| {
            json!({
                "id": tool.name,
                "object": "mcp.tool",
                "server": tool.server,
                "name": tool.tool,
                "description": tool.description,
                "schema": tool.parameters,
                "is_allowed": mcp.is_allowed(tool),
            })
        };
        let data: Vec<Value> = mcp.tools().iter().map(described).collect();
        Ok(json_response(StatusCode::OK, &json!({ "object": "list", "data": data })))
    })
}
