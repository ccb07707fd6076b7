//! Tools of MCP servers in a conversation: offered to the model, and called for it within what the person allows.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use ruvllm_api::reading::ToolCall;
use ruvllm_api::tools::Offer;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::interrupt;
use ruvllm_cli_tools::output::{Ui, bytes, table};
use ruvllm_engine::tools::{Tool, ToolChoice};
use ruvllm_mcp::{McpCallResult, McpCancel, McpConfig, McpLimits, McpServers, McpTool, arguments, visible};
use serde_json::{Map, Value, json};

use crate::commands::chat::consent::{Consent, Verdict};

/// Rounds of calls where none are given.
const N_ROUNDS: usize = 8;
/// Characters of a description in the list of tools.
const LISTED_CHARS: usize = 80;

/// Options of MCP servers.
#[derive(Args, Debug)]
pub struct McpArgs {
    /// File of MCP servers whose tools the model may call, as other programs have it: {"mcpServers": {"NAME": {"command": ...}}}
    #[arg(long, value_name = "CONFIG", help_heading = "MCP")]
    mcp: Option<PathBuf>,
    /// Tools that run without a question: fs__read_file, fs__* or *; may be given several times
    #[arg(long, value_name = "PATTERN", requires = "mcp", help_heading = "MCP")]
    mcp_allow: Vec<String>,
    /// Most rounds of calls for one answer [default: 8]
    #[arg(long, value_name = "N", requires = "mcp", help_heading = "MCP")]
    mcp_rounds: Option<usize>,
    /// Whether an answer begins with a call: auto, required, or the tool that is called first [default: auto]
    #[arg(long, value_name = "CHOICE", requires = "mcp", help_heading = "MCP")]
    mcp_choice: Option<String>,
}

/// Servers that are to be started.
#[derive(Debug)]
pub struct McpPlan {
    config: McpConfig,
    consent: Consent,
    n_rounds: usize,
    choice: Option<String>,
}

impl McpArgs {
    /// Reads the file; `None` if none is given. With `can_ask` a person is asked about tools that no pattern allows.
    ///
    /// # Errors
    /// It cannot be read or used, or a pattern is none.
    pub fn plan(&self, can_ask: bool) -> Result<Option<McpPlan>> {
        let Some(file) = &self.mcp else { return Ok(None) };
        Ok(Some(McpPlan {
            config: McpConfig::read(file)?,
            consent: Consent::new(&self.mcp_allow, can_ask)?,
            n_rounds: self.mcp_rounds.unwrap_or(N_ROUNDS),
            choice: self.mcp_choice.clone(),
        }))
    }
}

impl McpPlan {
    /// Starts the servers, for a model with a context of so many tokens, if that is known.
    ///
    /// # Errors
    /// A server does not start, or the tool that is to be called first is not there.
    pub fn start(self, app: &App, n_ctx: Option<usize>) -> Result<Toolbox> {
        let limits = McpLimits { result_bytes_max: McpLimits::result_bytes_for(n_ctx), ..McpLimits::default() };
        let work = app.ui.spinner("starting MCP servers");
        let servers = McpServers::start(self.config, app.settings.inherited.clone(), limits);
        work.finish_and_clear();
        let mut toolbox = Toolbox {
            servers: servers?,
            consent: self.consent,
            n_rounds: self.n_rounds,
            first: ToolChoice::Auto,
            offer: Offer { tools: Vec::new(), choice: ToolChoice::Auto, is_parallel: true },
            tools: Arc::default(),
            ui: app.ui,
        };
        toolbox.take_list();
        toolbox.first = toolbox.choice(self.choice.as_deref())?;
        Ok(toolbox)
    }
}

/// Servers that run, and their tools.
#[derive(Debug)]
pub struct Toolbox {
    servers: McpServers,
    consent: Consent,
    n_rounds: usize,
    /// Whether an answer begins with a call.
    first: ToolChoice,
    offer: Offer,
    tools: Arc<[McpTool]>,
    ui: Ui,
}

/// A call that is over.
#[derive(Debug)]
pub struct Called {
    /// Its result for the model.
    pub text: String,
    /// The call for programs.
    pub json: Value,
}

impl Toolbox {
    /// Returns the tools that are offered in a round, the first of which is 0; none once all rounds are over.
    pub fn offer(&self, round: usize) -> Option<Offer> {
        if round >= self.n_rounds || self.offer.tools.is_empty() {
            return None;
        }
        let choice = if round == 0 { self.first.clone() } else { ToolChoice::Auto };
        Some(Offer { choice, ..self.offer.clone() })
    }

    /// Returns the line about rounds that are over; `None` while they are not.
    pub fn rounds_over(&self, round: usize) -> Option<String> {
        let n = self.n_rounds;
        let line =
            format!("({n} rounds of calls are over: this is answered without tools; --mcp-rounds N allows more)");
        (round >= n && n > 0).then_some(line)
    }

    /// Asks servers whose tools changed for them again. One that does not tell is noted, and its tools stay as they were.
    pub fn refresh(&mut self) {
        match self.servers.refresh() {
            Ok(false) => {}
            Ok(true) => {
                self.ui.note("(the tools of the MCP servers changed; /tools shows them)");
                self.take_list();
            }
            Err(error) => self.ui.warn(&error.to_string()),
        }
    }

    /// Runs a call, if it may, and returns its result. Ctrl-C gives it up.
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub fn call(&mut self, id: &str, call: &ToolCall) -> Result<Called> {
        let start = Instant::now();
        let tools = Arc::clone(&self.tools);
        let tool = tools.iter().find(|tool| tool.name == call.name);
        let arguments = arguments(&call.arguments);
        let result = match (tool, &arguments) {
            (None, _) => McpCallResult::unknown(&call.name),
            (Some(_), Err(result)) => result.clone(),
            (Some(tool), Ok(arguments)) => self.decided(tool, arguments.clone())?,
        };
        let (outcome, text) = (result.outcome.as_str(), result.for_model());
        let ms = start.elapsed().as_secs_f64() * 1e3;
        self.ui.note(&format!(
            "({}: {outcome}, {} in {:.1} s)",
            visible(&call.name, 80),
            bytes(text.len() as u64),
            ms / 1e3
        ));
        let json = json!({
            "id": id,
            "name": call.name,
            "server": tool.map(|tool| &tool.server),
            "tool": tool.map(|tool| &tool.tool),
            "arguments": arguments.map_or_else(|_| call.arguments.clone().into(), Value::Object),
            "outcome": outcome,
            "result": text,
            "ms": ms,
        });
        Ok(Called { text, json })
    }

    /// Runs a call if it is allowed.
    fn decided(&mut self, tool: &McpTool, arguments: Map<String, Value>) -> Result<McpCallResult> {
        match self.consent.decide(tool, &Value::Object(arguments.clone()).to_string())? {
            Verdict::Denied => return Ok(McpCallResult::denied("the person does not allow this call")),
            Verdict::Unasked => {
                let advice = format!("{} was not run: nobody can be asked; --mcp-allow {0} allows it", tool.name);
                self.ui.warn(&advice);
                return Ok(McpCallResult::denied("this call is not allowed, and nobody can be asked"));
            }
            Verdict::Allowed => {}
        }
        let (cancel, work) = (McpCancel::default(), self.ui.spinner("running").of(tool.name.clone()));
        let called = {
            let _guard = interrupt::gives_up(&cancel);
            self.servers.call(&tool.name, arguments, &cancel)
        };
        work.finish_and_clear();
        Ok(McpCallResult::of(called))
    }

    /// Returns the tools, one a line.
    pub fn list(&self) -> String {
        let row = |tool: &McpTool| {
            let consent = if self.consent.is_allowed(tool) { "allowed" } else { "asks" };
            let description = tool.description.as_deref().unwrap_or_default().lines().next().unwrap_or_default();
            vec![tool.name.clone(), consent.to_owned(), visible(description, LISTED_CHARS)]
        };
        let rows: Vec<Vec<String>> = self.tools.iter().map(row).collect();
        match rows.is_empty() {
            true => "the MCP servers have no tools".to_owned(),
            false => table(&rows, &[]).trim_end().to_owned(),
        }
    }

    /// Takes the list of tools as the servers told it last.
    fn take_list(&mut self) {
        self.tools = self.servers.tools();
        let tool = |tool: &McpTool| Tool {
            name: tool.name.clone(),
            description: tool.description.clone(),
            parameters: Some(tool.parameters.clone()),
            is_strict: false,
        };
        self.offer.tools = self.tools.iter().map(tool).collect();
        self.servers.take_notes().iter().for_each(|line| self.ui.warn(line));
    }

    /// Reads the option of whether an answer begins with a call.
    fn choice(&self, given: Option<&str>) -> Result<ToolChoice> {
        match given {
            None | Some("auto") => Ok(ToolChoice::Auto),
            Some("required") => Ok(ToolChoice::Required),
            Some(name) if self.tools.iter().any(|tool| tool.name == name) => Ok(ToolChoice::Named(name.to_owned())),
            Some(name) => {
                let known: Vec<&str> = self.tools.iter().map(|tool| &*tool.name).collect();
                Err(Error::usage(format_args!(
                    "--mcp-choice {name}: there is no such tool; auto, required, {}",
                    known.join(", ")
                )))
            }
        }
    }
}
