//! All servers of a configuration, for callers that block.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::Tool;
use serde_json::{Map, Value};
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

use crate::config::McpConfig;
use crate::error::{McpError, McpErrorKind};
use crate::limits::McpLimits;
use crate::names::{self, Names};
use crate::output::McpOutput;
use crate::server::Server;
use crate::visible::visible;

/// Variables that servers need to run at all; the caller looks them up and hands them over.
pub const INHERITED: [&str; 20] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "TEMP",
    "TMP",
    "SYSTEMROOT",
    "USERPROFILE",
    "APPDATA",
    "LOCALAPPDATA",
    "PROGRAMFILES",
    "PATHEXT",
    "COMSPEC",
];

/// Time that servers have to end, all together.
const STOP: Duration = Duration::from_secs(5);

/// A tool of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct McpTool {
    /// Its name among the tools of all servers: `SERVER__TOOL`, of letters, digits, `_` and `-`.
    pub name: String,
    /// Name of its server.
    pub server: String,
    /// Its name on that server.
    pub tool: String,
    /// Description for a model.
    pub description: Option<String>,
    /// A JSON Schema of the object of its arguments.
    pub parameters: Value,
}

/// Gives up a call from another thread.
#[derive(Clone, Debug, Default)]
pub struct McpCancel(CancellationToken);

impl McpCancel {
    /// Gives up the call that has this.
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// Returns whether it was given up.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}

/// Servers and their tools. They run until this is dropped.
#[derive(Debug)]
pub struct McpServers {
    runtime: Option<Runtime>,
    servers: Vec<Arc<Server>>,
    limits: McpLimits,
    listed: Mutex<Listed>,
}

/// Tools as the servers listed them last.
#[derive(Debug, Default)]
struct Listed {
    /// The list of each server.
    of_servers: Vec<Vec<Tool>>,
    tools: Arc<[McpTool]>,
    /// Lines about tools that are left out.
    notes: Vec<String>,
}

impl McpServers {
    /// Starts all servers at once and lists their tools. They get the variables of `environment`, such as those of
    /// [`INHERITED`], and those of their entry.
    ///
    /// # Errors
    /// The first one, in the order of the file, that does not start or lists more than may be; all are ended then.
    pub fn start(
        config: McpConfig,
        environment: Vec<(String, String)>,
        limits: McpLimits,
    ) -> Result<McpServers, McpError> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("mcp").enable_all().build();
        let runtime = runtime.map_err(|error| {
            McpError::new(McpErrorKind::Start, format_args!("cannot start a thread for MCP servers: {error}"))
        })?;
        let environment: Arc<[(String, String)]> = environment.into();
        let server = |config| Arc::new(Server::new(config, Arc::clone(&environment), limits.clone()));
        let servers: Vec<_> = config.servers.into_iter().map(server).collect();
        let started = McpServers { runtime: Some(runtime), servers, limits, listed: Mutex::default() };
        let all: Vec<usize> = (0..started.servers.len()).collect();
        started.list(&all)?;
        Ok(started)
    }

    /// Returns the tools of all servers.
    pub fn tools(&self) -> Arc<[McpTool]> {
        Arc::clone(&self.listed().tools)
    }

    /// Returns the names of the servers, in the order of the file.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.servers.iter().map(|server| server.name())
    }

    /// Returns lines about tools that are left out, each once.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut self.listed().notes)
    }

    /// Asks those servers for their tools again that said they have changed, or were started again. Returns whether the
    /// tools are others now.
    ///
    /// # Errors
    /// A server fails; the tools stay as they were.
    pub fn refresh(&self) -> Result<bool, McpError> {
        let stale: Vec<usize> = (0..self.servers.len()).filter(|&i| self.servers[i].take_stale()).collect();
        match stale.is_empty() {
            true => Ok(false),
            false => self.list(&stale),
        }
    }

    /// Calls a tool by its name among all. What the tool or its server says against the call is a result.
    ///
    /// # Errors
    /// There is no such tool, its server ended or takes too long, or the call was given up.
    pub fn call(&self, name: &str, arguments: Map<String, Value>, cancel: &McpCancel) -> Result<McpOutput, McpError> {
        self.call_cut(name, arguments, cancel, self.limits.result_bytes_max)
    }

    /// Calls a tool as [`McpServers::call`] does, for a result of so many bytes at most.
    ///
    /// # Errors
    /// As [`McpServers::call`].
    pub fn call_cut(
        &self,
        name: &str,
        arguments: Map<String, Value>,
        cancel: &McpCancel,
        result_bytes_max: usize,
    ) -> Result<McpOutput, McpError> {
        let tools = self.tools();
        let missing = || McpError::new(McpErrorKind::Missing, format_args!("there is no tool '{name}'"));
        let tool = tools.iter().find(|tool| tool.name == name).ok_or_else(missing)?;
        let server = self.servers.iter().find(|server| server.name() == tool.server).ok_or_else(missing)?;
        self.runtime().block_on(async {
            tokio::select! {
                output = server.call(&tool.tool, arguments, result_bytes_max) => output,
                () = cancel.0.cancelled() => {
                    let line = format_args!("the call of '{name}' was given up");
                    Err(McpError::new(McpErrorKind::Cancelled, line))
                }
            }
        })
    }

    /// Lists the tools of some servers again, and makes one list of all.
    fn list(&self, which: &[usize]) -> Result<bool, McpError> {
        let asked = self.runtime().block_on(async {
            let task = |&i: &usize| {
                let server = Arc::clone(&self.servers[i]);
                tokio::spawn(async move { server.list().await })
            };
            let (tasks, mut lists) = (which.iter().map(task).collect::<Vec<_>>(), Vec::new());
            for task in tasks {
                lists.push(task.await.unwrap_or_else(|error| Err(McpError::new(McpErrorKind::Server, error))));
            }
            lists.into_iter().collect::<Result<Vec<_>, _>>()
        })?;
        let mut listed = self.listed();
        listed.of_servers.resize(self.servers.len(), Vec::new());
        for (&i, tools) in which.iter().zip(asked) {
            listed.of_servers[i] = tools;
        }
        let (mut tools, mut notes, mut names) = (Vec::new(), Vec::new(), Names::default());
        for (server, given) in self.servers.iter().zip(&listed.of_servers) {
            for tool in given {
                match self.checked(server.name(), tool, &mut names) {
                    Ok(tool) => tools.push(tool),
                    Err(why) => {
                        let (name, server) = (visible(&tool.name, 64), server.name());
                        notes.push(format!("the tool '{name}' of the MCP server '{server}' is left out: {why}"));
                    }
                }
            }
        }
        let is_changed = listed.tools[..] != tools[..];
        (listed.tools, listed.notes) = (tools.into(), notes);
        Ok(is_changed)
    }

    /// Returns a tool as it is told, or why it is left out.
    fn checked(&self, server: &str, tool: &Tool, names: &mut Names) -> Result<McpTool, String> {
        let parameters = Value::Object((*tool.input_schema).clone());
        let (n_bytes, n_max) = (parameters.to_string().len(), self.limits.schema_bytes_max);
        if n_bytes > n_max {
            return Err(format!("its schema has {n_bytes} bytes, {n_max} are allowed"));
        }
        if parameters.get("type").is_some_and(|kind| kind != "object") {
            return Err("its schema is not that of an object".to_owned());
        }
        let name = names.of(&names::prefix(server), &tool.name);
        let description = tool.description.as_deref().or(tool.title.as_deref());
        let cut = |text: &str| text.chars().take(self.limits.description_chars_max).collect();
        Ok(McpTool {
            name,
            server: server.to_owned(),
            tool: tool.name.to_string(),
            description: description.map(cut),
            parameters,
        })
    }

    fn listed(&self) -> std::sync::MutexGuard<'_, Listed> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it is taken when this is dropped")
    }
}

impl Drop for McpServers {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        let stop = || {
            runtime.block_on(async {
                let stops: Vec<_> = self
                    .servers
                    .iter()
                    .cloned()
                    .map(|server| tokio::spawn(async move { server.stop().await }))
                    .collect();
                let all = async {
                    for stop in stops {
                        let _ = stop.await;
                    }
                };
                let _ = tokio::time::timeout(STOP, all).await;
            });
            runtime.shutdown_timeout(Duration::from_millis(100));
        };
        // A thread of its own: the caller's may be one of another runtime, which must not block.
        std::thread::scope(|scope| drop(scope.spawn(stop).join()));
    }
}
