//! Tools of MCP servers (Model Context Protocol): their processes, their lists, and calls within bounds.
//!
//! ```no_run
//! use ruvllm_mcp::{McpCancel, McpConfig, McpLimits, McpServers};
//!
//! # fn main() -> Result<(), ruvllm_mcp::McpError> {
//! let config = McpConfig::read("mcp.json".as_ref())?;
//! let servers = McpServers::start(config, Vec::new(), McpLimits::default())?;
//! for tool in servers.tools().iter() {
//!     println!("{}: {}", tool.name, tool.description.as_deref().unwrap_or("-"));
//! }
//! let arguments = serde_json::Map::from_iter([("path".to_owned(), "notes.txt".into())]);
//! println!("{}", servers.call("fs__read_file", arguments, &McpCancel::default())?.text);
//! # Ok(())
//! # }
//! ```
//!
//! [`McpConfig`] reads the file that Claude Desktop, Cursor and others use. [`McpServers`] starts its servers as child
//! processes, asks each for its tools, and calls one: it blocks, and has a runtime of its own. A server that ends is an
//! error of the call, and is started again at the next one.
//!
//! Servers are not trusted: lists, schemas, results, messages and times are bounded ([`McpLimits`]). They get the
//! variables they are given and no others. This crate knows no model, no request and no HTTP; it reads no environment,
//! prints nothing, and asks nobody whether a tool may run: that is the caller's to do, for which there are [`McpPatterns`].

#![forbid(unsafe_code)]

mod config;
mod consent;
mod error;
mod limits;
mod names;
mod output;
mod process;
mod result;
mod server;
mod servers;
mod visible;

pub use config::{McpConfig, McpServerConfig};
pub use consent::McpPatterns;
pub use error::{McpError, McpErrorKind};
pub use limits::McpLimits;
pub use output::McpOutput;
pub use result::{McpCallResult, McpOutcome, arguments};
pub use servers::{INHERITED, McpCancel, McpServers, McpTool};
pub use visible::visible;
