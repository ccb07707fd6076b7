//! Tools of MCP servers that a server runs for its clients: what the operator allows, and how many calls there are at once.

use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use http::StatusCode;
use ruvllm_api::error::ApiError;
use ruvllm_mcp::{
    McpCallResult, McpCancel, McpConfig, McpError, McpLimits, McpPatterns, McpServers, McpTool, arguments,
};

use super::gate::Gates;
use super::metrics::Metrics;

/// Longest time that a request waits for lists of tools that changed; then it has those from before.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(2);

/// Options of the MCP servers that a server starts.
#[derive(Clone, Debug, PartialEq)]
pub struct McpOptions {
    /// The servers.
    pub config: McpConfig,
    /// Variables of this process that they get.
    pub environment: Vec<(String, String)>,
    /// Tools that may run at all; no others do, whatever a client approves.
    pub allowed: McpPatterns,
    /// Bounds of what the servers may cost.
    pub limits: McpLimits,
    /// The most rounds of calls of one request.
    pub n_rounds: usize,
    /// The most calls at once.
    pub n_calls_max: usize,
    /// The most of them of one tenant. Without keys there is one tenant, and it may have all.
    pub n_tenant_calls_max: usize,
}

impl McpOptions {
    /// Makes options of servers none of whose tools is allowed: 8 rounds, 8 calls at once, 2 of a tenant.
    pub fn new(config: McpConfig) -> McpOptions {
        McpOptions {
            config,
            environment: Vec::new(),
            allowed: McpPatterns::default(),
            limits: McpLimits::default(),
            n_rounds: 8,
            n_calls_max: 8,
            n_tenant_calls_max: 2,
        }
    }
}

/// MCP servers that run, for all clients of a server.
#[derive(Debug)]
pub struct Mcp {
    servers: McpServers,
    options: McpOptions,
    /// Gates at which calls wait for each other.
    gates: Gates,
    /// Held while lists are asked for again.
    refreshing: Mutex<()>,
}

/// A call that a client's request makes.
#[derive(Clone, Copy, Debug)]
pub struct McpRequest<'a> {
    /// The tool.
    pub tool: &'a McpTool,
    /// Its arguments, as JSON.
    pub arguments: &'a str,
    /// The client's tenant.
    pub tenant: u64,
    /// The most bytes of the result.
    pub result_bytes_max: usize,
}

impl Mcp {
    /// Starts the servers; it blocks until all have listed their tools.
    ///
    /// # Errors
    /// One does not start, or lists more than may be.
    pub fn start(options: &McpOptions) -> Result<Mcp, McpError> {
        let options = options.clone();
        let servers = McpServers::start(options.config.clone(), options.environment.clone(), options.limits.clone())?;
        if options.allowed.is_empty() {
            tracing::warn!("no tool of the MCP servers may run: --mcp-allow says which may");
        }
        let gates = Gates::bounded(options.n_calls_max, options.n_tenant_calls_max);
        let mcp = Mcp { servers, options, gates, refreshing: Mutex::default() };
        mcp.tell_notes();
        Ok(mcp)
    }

    /// Returns the tools of all servers.
    pub fn tools(&self) -> Arc<[McpTool]> {
        self.servers.tools()
    }

    /// Returns the names of the servers, in the order of the file.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.servers.names()
    }

    /// Returns the most rounds of calls of one request.
    pub fn n_rounds(&self) -> usize {
        self.options.n_rounds
    }

    /// Returns whether the operator lets a tool run.
    pub fn is_allowed(&self, tool: &McpTool) -> bool {
        self.options.allowed.allows(tool)
    }

    /// Asks servers for their tools again that said they have changed, and waits a little for that.
    pub async fn refresh(self: &Arc<Mcp>) {
        let mcp = Arc::clone(self);
        let work = tokio::task::spawn_blocking(move || {
            let _refreshing = match mcp.refreshing.try_lock() {
                Err(TryLockError::WouldBlock) => return,
                Ok(guard) => guard,
                Err(TryLockError::Poisoned(error)) => error.into_inner(),
            };
            match mcp.servers.refresh() {
                Ok(false) => {}
                Ok(true) => tracing::info!("the tools of the MCP servers changed"),
                Err(error) => tracing::warn!("the tools of the MCP servers stay as they were: {error}"),
            }
            mcp.tell_notes();
        });
        let _ = tokio::time::timeout(REFRESH_TIMEOUT, work).await;
    }

    /// Runs a tool if the operator allows it, and counts that. It waits for its turn among the calls of all tenants. To drop the
    /// future gives the call up, and tells the server.
    pub async fn call(self: &Arc<Mcp>, request: McpRequest<'_>, metrics: &Arc<Metrics>) -> McpCallResult {
        let McpRequest { tool, arguments: given, tenant, result_bytes_max } = request;
        let counted = |result: McpCallResult| {
            metrics.mcp_called(&tool.server, result.outcome.as_str());
            result
        };
        if !self.is_allowed(tool) {
            return counted(McpCallResult::denied("the operator of this server does not allow this tool"));
        }
        let arguments = match arguments(given) {
            Ok(arguments) => arguments,
            Err(result) => return counted(result),
        };
        let turn = self.gates.of(tenant).turn();
        let Ok(turn) = tokio::time::timeout(self.options.limits.call, turn).await else {
            return counted(McpCallResult::failed("the calls of others take all places; the call was not made"));
        };
        let cancel = McpCancel::default();
        let _guard = CancelOnDrop(cancel.clone());
        let (mcp, metrics, tool) = (Arc::clone(self), Arc::clone(metrics), tool.clone());
        let work = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let called = mcp.servers.call_cut(&tool.name, arguments, &cancel, result_bytes_max);
            let result = McpCallResult::of(called);
            metrics.mcp_called(&tool.server, result.outcome.as_str());
            tracing::info!(tool = &*tool.name, outcome = result.outcome.as_str(), "tool called");
            result
        });
        work.await.unwrap_or_else(|_| McpCallResult::failed("internal error; the server's log tells more"))
    }

    /// Writes what was said about tools that are left out to the log.
    fn tell_notes(&self) {
        self.servers.take_notes().iter().for_each(|line| tracing::warn!("{line}"));
    }
}

/// Gives a call up when it is dropped; one that is over takes no notice.
struct CancelOnDrop(McpCancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// There are no MCP servers.
pub fn off() -> ApiError {
    let line = "this server has no MCP servers; start it with --mcp CONFIG";
    ApiError::new(StatusCode::NOT_FOUND, line).code("no_mcp")
}
