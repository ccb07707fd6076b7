//! Tools of MCP servers in a response: those that a request offers, calls that its client approves, and calls that are run.

use std::sync::{Arc, PoisonError};

use axum::http::StatusCode;
use ruvllm_api::error::ApiError;
use ruvllm_api::reading::ToolCall;
use ruvllm_api::tools::call_id;
use ruvllm_mcp::{McpCallResult, McpLimits, McpOutcome, McpTool};
use ruvllm_server_state::keys::TenantSlot;
use ruvllm_server_state::mcp::{Mcp, McpRequest, off};
use serde_json::{Value, json};

use crate::call::{Call, body};
use crate::handlers::openai::responses::items;
use crate::handlers::openai::responses::output::{Output, Stop};

/// The most calls that are run of an answer of the model, or approved by a request.
const N_CALLS_MAX: usize = 16;

/// MCP servers whose tools a request offers to the model.
pub(super) struct Offered {
    mcp: Arc<Mcp>,
    servers: Vec<OfferedServer>,
    /// The fields `tools` and `tool_choice` as the request has them.
    given: [Value; 2],
    /// Functions of the request.
    functions: Vec<Value>,
    /// Requests for approval that the client approved, and that are to be run.
    approved: Vec<Value>,
}

struct OfferedServer {
    label: String,
    tools: Vec<OfferedTool>,
}

struct OfferedTool {
    tool: McpTool,
    /// Whether the client approves its calls.
    needs_approval: bool,
}

/// A call on its way.
struct Made<'a> {
    label: &'a str,
    name: &'a str,
    arguments: &'a str,
    /// The request for approval that it came of.
    approval: Option<&'a str>,
    /// The tool, or why it is not run.
    tool: Result<&'a McpTool, McpCallResult>,
}

impl Offered {
    /// Reads what a request offers, and puts it among the functions that the model may call; `None` if it offers no tools of MCP
    /// servers.
    ///
    /// # Errors
    /// 400: there is no such server or tool, or a call is approved that nobody asked about.
    pub(super) async fn of(call: &mut Call) -> Result<Option<Offered>, ApiError> {
        let approved = approved(call.body.list("input").map_or(&[], |items| items))?;
        let is_mcp = |tool: &Value| tool["type"] == "mcp";
        let Some(first) = call.body.list("tools").and_then(|tools| tools.iter().position(is_mcp)) else {
            return match approved.first() {
                Some(asked) => Err(not_offered(&asked["server_label"])),
                None => Ok(None),
            };
        };
        let Some(mcp) = call.server.mcp.clone() else {
            return Err(ApiError::bad(format!("tools[{first}]"), off().message));
        };
        let given: Vec<Value> = call.body.list("tools").cloned().unwrap_or_default();
        mcp.refresh().await;
        let (all, mut servers) = (mcp.tools(), Vec::<OfferedServer>::new());
        for (i, entry) in given.iter().enumerate().filter(|(_, tool)| is_mcp(tool)) {
            let server = OfferedServer::of(&mcp, &all, entry, i)?;
            if servers.iter().any(|other| other.label == server.label) {
                let line = format!("'tools[{i}].server_label' is '{}' a second time; name each once", server.label);
                return Err(ApiError::bad(format!("tools[{i}].server_label"), line));
            }
            servers.push(server);
        }
        if let Some(asked) = approved.iter().find(|asked| servers.iter().all(|s| s.label != asked["server_label"])) {
            return Err(not_offered(&asked["server_label"]));
        }
        let functions = given.iter().filter(|tool| !is_mcp(tool)).cloned().collect();
        let given = [Value::Array(given), call.body.get("tool_choice").cloned().unwrap_or_else(|| json!("auto"))];
        let offered = Offered { mcp, servers, given, functions, approved };
        offered.choose(call)?;
        offered.offer(call);
        Ok(Some(offered))
    }

    /// Returns the field `tools` or `tool_choice` as the request has it.
    pub(super) fn given(&self, name: &str) -> Option<&Value> {
        match name {
            "tools" => Some(&self.given[0]),
            "tool_choice" => Some(&self.given[1]),
            _ => None,
        }
    }

    /// Returns whether there are approved calls to run before the model answers.
    pub(super) fn has_approved(&self) -> bool {
        !self.approved.is_empty()
    }

    /// Puts the tool that is called first in the place of the words for it.
    fn choose(&self, call: &mut Call) -> Result<(), ApiError> {
        let choice = &self.given[1];
        if choice["type"] != "mcp" {
            return Ok(());
        }
        let (label, name) = (&choice["server_label"], &choice["name"]);
        let found = self.tools().find(|offered| offered.tool.server == *label && offered.tool.tool == *name);
        let Some(found) = found else {
            let line = format!("'tool_choice' names {name} of the MCP server {label}, which 'tools' does not offer");
            return Err(ApiError::bad("tool_choice", line).code("invalid_value"));
        };
        call.body.set("tool_choice", json!({ "type": "function", "name": found.tool.name }));
        Ok(())
    }

    /// Sets what the model may call in the round that comes: once all rounds are over no tools of MCP servers. Only the first
    /// begins with a call if one is asked for.
    pub(super) fn offer(&self, call: &mut Call) {
        let mut tools = self.functions.clone();
        if call.round < self.mcp.n_rounds() {
            tools.extend(self.tools().map(|offered| function(&offered.tool)));
        }
        if call.round > 0 {
            drop(call.body.take("tool_choice"));
        }
        call.body.set("tools", Value::Array(tools));
    }

    fn tools(&self) -> impl Iterator<Item = &OfferedTool> {
        self.servers.iter().flat_map(|server| &server.tools)
    }

    /// Returns whether a name that the model called is that of a tool here.
    pub(super) fn has(&self, name: &str) -> bool {
        self.tools().any(|offered| offered.tool.name == name)
    }

    /// Adds the lists of tools that the conversation does not have.
    pub(super) async fn list(&self, call: &Call, output: &mut Output) -> Result<(), Stop> {
        for server in &self.servers {
            let item = server.listed(call, output);
            let is_same = |other: &Value| {
                other["type"] == "mcp_list_tools"
                    && other["server_label"] == item["server_label"]
                    && other["tools"] == item["tools"]
            };
            if call.body.list("input").is_some_and(|items| items.iter().any(is_same)) {
                continue;
            }
            let mut empty = item.clone();
            empty["tools"] = json!([]);
            output.added(empty).await?;
            for state in ["in_progress", "completed"] {
                output.send_of(&item, &format!("response.mcp_list_tools.{state}"), json!({})).await?;
            }
            output.is_done(item).await?;
        }
        Ok(())
    }

    /// Runs the calls that the client approved.
    pub(super) async fn run_approved(&self, call: &Call, place: &TenantSlot, output: &mut Output) -> Result<(), Stop> {
        for asked in &self.approved {
            let (label, name) = (text(&asked["server_label"]), text(&asked["name"]));
            let found = self.tools().find(|offered| offered.tool.server == label && offered.tool.tool == name);
            let tool = found.map(|offered| &offered.tool).ok_or_else(|| McpCallResult::unknown(name));
            let (arguments, approval) = (text(&asked["arguments"]), asked["id"].as_str());
            self.run(call, Made { label, name, arguments, approval, tool }, place, output).await?;
        }
        Ok(())
    }

    /// Runs the calls of an answer of the model, none if it was cut. Returns whether some wait for the client's approval.
    pub(super) async fn answer(
        &self,
        call: &Call,
        calls: &[ToolCall],
        is_cut: bool,
        place: &TenantSlot,
        output: &mut Output,
    ) -> Result<bool, Stop> {
        let mut is_waiting = false;
        for (i, called) in calls.iter().enumerate() {
            let Some(offered) = self.tools().find(|offered| offered.tool.name == called.name) else { continue };
            let (tool, arguments) = (&offered.tool, &*called.arguments);
            let runs = !is_cut && i < N_CALLS_MAX;
            // What never runs is not asked about.
            if runs && offered.needs_approval && self.mcp.is_allowed(tool) {
                let item = json!({
                    "type": "mcp_approval_request",
                    "id": call_id(&call.id, "mcpr", 0, output.done.len()),
                    "server_label": tool.server,
                    "name": tool.tool,
                    "arguments": arguments,
                });
                output.added(item.clone()).await?;
                output.is_done(item).await?;
                is_waiting = true;
                continue;
            }
            let tool_or_why = match (runs, is_cut) {
                (true, _) => Ok(tool),
                (_, true) => Err(McpCallResult::failed("the answer was cut; the call was not made")),
                _ => {
                    let line = format!("an answer has more than {N_CALLS_MAX} calls; this one was not made");
                    Err(McpCallResult::failed(line))
                }
            };
            let made = Made { label: &tool.server, name: &tool.tool, arguments, approval: None, tool: tool_or_why };
            self.run(call, made, place, output).await?;
        }
        Ok(is_waiting)
    }

    /// Runs a call, and adds its item.
    async fn run(&self, call: &Call, made: Made<'_>, place: &TenantSlot, output: &mut Output) -> Result<(), Stop> {
        let mut item = json!({
            "type": "mcp_call",
            "id": call_id(&call.id, "mcp", 0, output.done.len()),
            "server_label": made.label,
            "name": made.name,
            "arguments": "",
            "approval_request_id": made.approval,
            "output": null,
            "error": null,
            "status": "in_progress",
        });
        output.added(item.clone()).await?;
        output.send_of(&item, "response.mcp_call.in_progress", json!({})).await?;
        let delta = json!({ "delta": made.arguments });
        output.send_of(&item, "response.mcp_call_arguments.delta", delta).await?;
        let whole = json!({ "arguments": made.arguments });
        output.send_of(&item, "response.mcp_call_arguments.done", whole).await?;
        let result = match made.tool {
            Ok(tool) => self.called(call, tool, made.arguments, place).await?,
            Err(result) => result,
        };
        // It is held as long as the conversation that it becomes part of.
        let room = body::room(&call.server.bodies, call.tenant.id, 2 * (result.text.len() + made.arguments.len()))?;
        call.held.lock().unwrap_or_else(PoisonError::into_inner).push(room);
        let (field, status) = match result.outcome {
            McpOutcome::Ran => ("output", "completed"),
            _ => ("error", "failed"),
        };
        item["arguments"] = json!(made.arguments);
        (item[field], item["status"]) = (json!(result.text), json!(status));
        output.send_of(&item, &format!("response.mcp_call.{status}"), json!({})).await?;
        Ok(output.is_done(item).await?)
    }

    /// Calls a tool, within the time of the request and while its key is one.
    async fn called(
        &self,
        call: &Call,
        tool: &McpTool,
        arguments: &str,
        place: &TenantSlot,
    ) -> Result<McpCallResult, ApiError> {
        let n_ctx = call.model.engine().map(|service| service.info().n_ctx);
        let result_bytes_max = McpLimits::result_bytes_for(n_ctx);
        let request = McpRequest { tool, arguments, tenant: call.tenant.id, result_bytes_max };
        let over = async {
            match call.deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            result = self.mcp.call(request, &call.server.metrics) => Ok(result),
            error = place.revoked() => Err(error),
            () = over => {
                let line = "the request's time was over while a tool ran; allow more of it";
                Err(ApiError::new(StatusCode::GATEWAY_TIMEOUT, line).code("timeout"))
            }
        }
    }
}

impl OfferedServer {
    /// Reads entry `i` of the request's tools.
    fn of(mcp: &Mcp, all: &[McpTool], entry: &Value, i: usize) -> Result<OfferedServer, ApiError> {
        let label = text(&entry["server_label"]);
        let bad = |field: &str, line: String| {
            Err(ApiError::bad(format!("tools[{i}].{field}"), format!("'tools[{i}].{field}' {line}"))
                .code("invalid_value"))
        };
        if mcp.names().all(|name| name != label) {
            let known: Vec<&str> = mcp.names().collect();
            return bad("server_label", format!("names no MCP server of this server; there is {}", known.join(", ")));
        }
        let of_server = || all.iter().filter(|tool| tool.server == label);
        let named = &entry["allowed_tools"];
        let named = named.as_array().or_else(|| named["tool_names"].as_array());
        let mut names = named.into_iter().flatten().map(text);
        if let Some(name) = names.find(|name| of_server().all(|tool| tool.tool != *name)) {
            return bad(
                "allowed_tools",
                format!("names the tool '{name}', which the MCP server '{label}' does not have"),
            );
        }
        let is_meant = |tool: &&McpTool| named.is_none_or(|names| names.iter().any(|name| tool.tool == *name));
        let offered = |tool: &McpTool| OfferedTool {
            needs_approval: needs_approval(&entry["require_approval"], &tool.tool),
            tool: tool.clone(),
        };
        let tools = of_server().filter(is_meant).map(offered).collect();
        Ok(OfferedServer { label: label.to_owned(), tools })
    }

    /// Returns the item that lists its tools.
    fn listed(&self, call: &Call, output: &Output) -> Value {
        let tool = |offered: &OfferedTool| {
            let McpTool { tool, description, parameters, .. } = &offered.tool;
            json!({ "name": tool, "description": description, "input_schema": parameters, "annotations": null })
        };
        json!({
            "type": "mcp_list_tools",
            "id": call_id(&call.id, "mcpl", 0, output.done.len()),
            "server_label": self.label,
            "tools": self.tools.iter().map(tool).collect::<Vec<_>>(),
            "error": null,
        })
    }
}

/// Returns whether calls of a tool need the client's approval, as `require_approval` says.
fn needs_approval(given: &Value, name: &str) -> bool {
    let is_named = |key: &str| given[key]["tool_names"].as_array().is_some_and(|names| names.iter().any(|n| n == name));
    match given.as_str() {
        Some(word) => word != "never",
        None => is_named("always") || !is_named("never"),
    }
}

/// Returns a tool as a function of a request.
fn function(tool: &McpTool) -> Value {
    json!({
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    })
}

/// Returns the requests for approval that were approved and of which no call came, each once.
///
/// # Errors
/// 400: what is approved or refused is not there, or more is approved than is run at once.
fn approved(items: &[Value]) -> Result<Vec<Value>, ApiError> {
    let mut found: Vec<Value> = Vec::new();
    for item in items.iter().filter(|item| item["type"] == "mcp_approval_response") {
        let id = &item["approval_request_id"];
        let Some(asked) = approval_of(items, item) else {
            let line = format!(
                "'approval_request_id' is {id}, and the conversation has no such request; send previous_response_id, or the item that asks"
            );
            return Err(ApiError::bad("input", line).code("item_not_found"));
        };
        let is_refused = |other: &Value| other["approval_request_id"] == *id && other["approve"] == false;
        let is_run = |other: &Value| other["approval_request_id"] == *id && other["type"] == "mcp_call";
        let is_over = items.iter().any(|other| is_refused(other) || is_run(other));
        if !is_over && found.iter().all(|other| other["id"] != *id) {
            found.push(asked.clone());
        }
    }
    if found.len() > N_CALLS_MAX {
        let line = format!("{} calls are approved at once; {N_CALLS_MAX} are the most", found.len());
        return Err(ApiError::bad("input", line).code("invalid_value"));
    }
    Ok(found)
}

/// A call is approved whose server is not offered.
fn not_offered(label: &Value) -> ApiError {
    let line =
        format!("a call of the MCP server {label} is approved, which 'tools' does not offer; name it there again");
    ApiError::bad("tools", line).code("invalid_value")
}

/// Returns the request for approval that an item answers.
pub(super) fn approval_of<'i>(items: &'i [Value], answer: &Value) -> Option<&'i Value> {
    let id = &answer["approval_request_id"];
    items.iter().find(|item| item["type"] == "mcp_approval_request" && item["id"] == *id)
}

/// Returns the result of a call that the client refused.
pub(super) fn refusal(answer: &Value) -> McpCallResult {
    McpCallResult::denied(match answer["reason"].as_str() {
        Some(reason) => format!("the person does not allow this call: {reason}"),
        None => "the person does not allow this call".to_owned(),
    })
}

/// Returns the result of a call of an earlier answer.
pub(super) fn result_of(item: &Value) -> McpCallResult {
    match (item["output"].as_str(), item["error"].as_str()) {
        (Some(output), _) => McpCallResult { outcome: McpOutcome::Ran, text: output.to_owned() },
        (None, error) => McpCallResult::failed(error.unwrap_or("there is no result")),
    }
}

/// Adds a call and its result to the conversation that the chat template reads.
pub(super) fn add_call(messages: &mut Vec<Value>, item: &Value, result: &McpCallResult, call: &Call) {
    let (server, tool) = (text(&item["server_label"]), text(&item["name"]));
    let tools = call.server.mcp.as_ref().map(|mcp| mcp.tools());
    let known = tools.iter().flat_map(|tools| tools.iter()).find(|known| known.server == server && known.tool == tool);
    let name = known.map_or_else(|| format!("{server}__{tool}"), |known| known.name.clone());
    let asked = json!({ "call_id": item["id"], "name": name, "arguments": item["arguments"] });
    items::add_call(messages, &asked);
    messages.push(json!({ "role": "tool", "tool_call_id": item["id"], "content": result.for_model() }));
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
