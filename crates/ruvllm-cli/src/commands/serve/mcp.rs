//! `ruvllm serve --mcp`: MCP servers whose tools requests may call.

use std::path::PathBuf;

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::error::Result;
use ruvllm_mcp::{McpConfig, McpPatterns};
use ruvllm_server::McpOptions;

/// Options of MCP servers.
#[derive(Args, Clone, Debug)]
pub(super) struct ServeMcpArgs {
    /// File of MCP servers whose tools requests may call (/v1/responses), as other programs have it: {"mcpServers": {"NAME": {"command": ...}}}
    #[arg(long, value_name = "CONFIG", help_heading = "MCP")]
    mcp: Option<PathBuf>,
    /// Tools that may run, for whoever may ask: fs__read_file, fs__* or *; no others do; may be given several times
    #[arg(long, value_name = "PATTERN", requires = "mcp", help_heading = "MCP")]
    mcp_allow: Vec<String>,
}

impl ServeMcpArgs {
    /// Reads the file; `None` if none is given.
    ///
    /// # Errors
    /// It cannot be read or used, or a pattern is none.
    pub(super) fn options(&self, app: &App) -> Result<Option<McpOptions>> {
        let Some(file) = &self.mcp else { return Ok(None) };
        Ok(Some(McpOptions {
            environment: app.settings.inherited.clone(),
            allowed: McpPatterns::new(&self.mcp_allow)?,
            ..McpOptions::new(McpConfig::read(file)?)
        }))
    }
}
