//! One server: started when it is needed, asked for its tools, and called.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientCapabilities, ClientConfig, Implementation, PaginatedRequestParams,
    Tool,
};
use rmcp::service::{NotificationContext, Peer, RunningService, serve_client};
use rmcp::{ClientHandler, RoleClient, ServiceError};
use serde_json::{Map, Value};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::config::McpServerConfig;
use crate::error::{McpError, McpErrorKind};
use crate::limits::McpLimits;
use crate::output::McpOutput;
use crate::process::{Ended, Process};

/// A server, whether it runs or not.
#[derive(Debug)]
pub(crate) struct Server {
    config: McpServerConfig,
    environment: Arc<[(String, String)]>,
    limits: McpLimits,
    state: Mutex<State>,
    /// Whether its list of tools may have changed.
    is_stale: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct State {
    running: Option<Running>,
    /// Number of times that it ended or did not start, since the last result.
    n_ends: usize,
    /// The reason of the last end.
    last: String,
}

/// A server that runs.
#[derive(Debug)]
struct Running {
    service: RunningService<RoleClient, Client>,
    ended: Arc<Ended>,
}

/// This side of a connection. It offers servers nothing: no files, no questions to the person, no answers of the model.
#[derive(Debug)]
struct Client {
    is_stale: Arc<AtomicBool>,
}

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(ClientCapabilities::default(), Implementation::new("ruvllm", env!("CARGO_PKG_VERSION")))
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.is_stale.store(true, Ordering::Relaxed);
    }
}

impl Server {
    pub(crate) fn new(config: McpServerConfig, environment: Arc<[(String, String)]>, limits: McpLimits) -> Server {
        Server { config, environment, limits, state: Mutex::default(), is_stale: Arc::default() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }

    /// Returns whether its list of tools may have changed, and that this was asked.
    pub(crate) fn take_stale(&self) -> bool {
        self.is_stale.swap(false, Ordering::Relaxed)
    }

    /// Lists its tools, and starts it for that.
    ///
    /// # Errors
    /// It does not start, takes too long, or lists more than may be.
    pub(crate) async fn list(&self) -> Result<Vec<Tool>, McpError> {
        let (peer, limits) = (self.peer().await?, &self.limits);
        match timeout(limits.start, pages(&peer, limits)).await {
            Ok(Ok(tools)) => Ok(tools),
            Ok(Err(Listing::Service(error))) => Err(self.fault("did not list its tools", error).await),
            Ok(Err(Listing::TooLong(line))) => {
                Err(self.error(McpErrorKind::Server, format_args!("{line}; such a list is not used")))
            }
            Err(_) => {
                let line = format_args!("did not list its tools within {} s", limits.start.as_secs_f64());
                Err(self.error(McpErrorKind::Timeout, line))
            }
        }
    }

    /// Calls a tool, and starts the server for that if it does not run. To drop the future gives the call up, and tells the server.
    ///
    /// # Errors
    /// It does not start, ends, or takes too long.
    pub(crate) async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        result_bytes_max: usize,
    ) -> Result<McpOutput, McpError> {
        let (peer, limits) = (self.peer().await?, &self.limits);
        let params = CallToolRequestParams::new(Cow::Owned(tool.to_owned())).with_arguments(arguments);
        let refusal = |line: &str| McpOutput::new(line, true, result_bytes_max);
        let output = match timeout(limits.call, peer.call_tool_once(params)).await {
            Ok(Ok(CallToolResponse::Complete(result))) => McpOutput::of(&result, result_bytes_max),
            Ok(Ok(_)) => refusal("the tool asks for more than a call, which this client does not give"),
            Ok(Err(ServiceError::McpError(error))) => refusal(&error.message),
            Ok(Err(error)) => return Err(self.fault(&format!("gave no result of '{tool}'"), error).await),
            Err(_) => {
                let line = format_args!(
                    "gave no result of '{tool}' within {} s; the call was given up",
                    limits.call.as_secs_f64()
                );
                return Err(self.error(McpErrorKind::Timeout, line));
            }
        };
        self.state.lock().await.n_ends = 0;
        Ok(output)
    }

    /// Ends the server.
    pub(crate) async fn stop(&self) {
        if let Some(mut running) = self.state.lock().await.running.take() {
            // Its process is ended by force in the end, so this does not take long.
            let _ = running.service.close().await;
        }
    }

    /// Returns the connection to the server, which is started if it does not run.
    async fn peer(&self) -> Result<Peer<RoleClient>, McpError> {
        let mut state = self.state.lock().await;
        if let Some(running) = &state.running {
            if !running.service.is_closed() && !running.service.peer().is_transport_closed() {
                return Ok(running.service.peer().clone());
            }
            self.note_end(&mut state).await;
        }
        let n_max = self.limits.n_ends_max;
        if state.n_ends >= n_max {
            let line = format_args!("ended {n_max} times and is not started again; the last time it {}", state.last);
            return Err(self.error(McpErrorKind::Server, line));
        }
        // Only the first start is not a change.
        let is_again = state.n_ends > 0;
        match self.start().await {
            Ok(running) => {
                let peer = running.service.peer().clone();
                state.running = Some(running);
                self.is_stale.fetch_or(is_again, Ordering::Relaxed);
                Ok(peer)
            }
            Err((line, error)) => {
                (state.n_ends, state.last) = (state.n_ends + 1, line);
                Err(error)
            }
        }
    }

    /// Starts the server and greets it; on an error returns also why, as the end of a line.
    async fn start(&self) -> Result<Running, (String, McpError)> {
        let fault = |kind, line: String| (line.clone(), self.error(kind, line));
        let started = Process::start(&self.config, &self.environment, self.limits.message_bytes_max);
        let (process, ended) = started.map_err(|error| {
            let command = &self.config.command;
            let line = match error.kind() {
                std::io::ErrorKind::NotFound => format!(
                    "cannot be started: there is no program '{command}' in PATH, or no folder of its 'cwd'; install it, or write its whole path"
                ),
                _ => format!("cannot be started: '{command}': {error}"),
            };
            fault(McpErrorKind::Start, line)
        })?;
        let client = Client { is_stale: Arc::clone(&self.is_stale) };
        let greeted = timeout(self.limits.start, serve_client(client, process)).await;
        match greeted {
            Ok(Ok(service)) => Ok(Running { service, ended }),
            Ok(Err(error)) => {
                // The process was dropped, and with it ended; a moment later its last words are here.
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                let why = match ended.said() {
                    said if said.is_empty() => error.to_string(),
                    said => said,
                };
                Err(fault(McpErrorKind::Start, format!("did not start: {why}")))
            }
            Err(_) => {
                let why = match ended.said() {
                    said if said.is_empty() => String::new(),
                    said => format!("; it said: {said}"),
                };
                let n_s = self.limits.start.as_secs_f64();
                Err(fault(McpErrorKind::Timeout, format!("did not answer within {n_s} s{why}")))
            }
        }
    }

    /// Makes an error of one of the protocol's; a server that is gone is noted.
    async fn fault(&self, doing: &str, error: ServiceError) -> McpError {
        let is_gone = matches!(error, ServiceError::TransportClosed | ServiceError::TransportSend(_));
        if !is_gone {
            return self.error(McpErrorKind::Server, format_args!("{doing}: {error}"));
        }
        let mut state = self.state.lock().await;
        if state.running.is_some() {
            self.note_end(&mut state).await;
        }
        self.error(McpErrorKind::Server, format_args!("{}; it is started again at the next call", state.last))
    }

    /// Ends what is left of a server, and notes why it ended.
    async fn note_end(&self, state: &mut State) {
        let Some(mut running) = state.running.take() else { return };
        let _ = running.service.close().await;
        (state.n_ends, state.last) = (state.n_ends + 1, running.ended.reason());
    }

    fn error(&self, kind: McpErrorKind, line: impl std::fmt::Display) -> McpError {
        McpError::new(kind, format_args!("the MCP server '{}' {line}", self.config.name))
    }
}

/// Reason for which there is no list.
enum Listing {
    Service(ServiceError),
    /// It is longer than may be.
    TooLong(String),
}

/// Asks for all pages of a list of tools.
async fn pages(peer: &Peer<RoleClient>, limits: &McpLimits) -> Result<Vec<Tool>, Listing> {
    let (mut tools, mut cursor) = (Vec::new(), None);
    for _ in 0..limits.n_pages_max {
        let params = PaginatedRequestParams::default().with_cursor(cursor);
        let page = peer.list_tools(Some(params)).await.map_err(Listing::Service)?;
        tools.extend(page.tools);
        if tools.len() > limits.n_tools_max {
            return Err(Listing::TooLong(format!("lists more than {} tools", limits.n_tools_max)));
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(tools);
        }
    }
    Err(Listing::TooLong(format!("lists its tools in more than {} pages", limits.n_pages_max)))
}
