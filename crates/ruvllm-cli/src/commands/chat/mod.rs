//! `ruvllm chat`: talk to a model.

mod consent;
mod input;
mod local;
mod server;
mod session;
#[cfg(test)]
mod tests;
mod toolbox;

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::cache::CacheArgs;
use ruvllm_cli_tools::args::sampling::SamplingArgs;
use ruvllm_cli_tools::args::{ContextArgs, LoadArgs, ModelArgs, OutputArgs};
use ruvllm_cli_tools::backend::LocalBackend;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::interrupt;
use ruvllm_cli_tools::learning::LearningArgs;
use ruvllm_cli_tools::remote::{self, BackendArgs, Chosen};
use ruvllm_cli_tools::resume::Resume;
use ruvllm_cli_tools::speculation::{DraftHistoryArgs, SpeculationArgs};
use ruvllm_cli_tools::template::{self, TemplateArgs};
use ruvllm_cli_tools::values::{MaxTokens, unescaped};
use ruvllm_engine::LoadOptions;

use input::{Line, Reader};
use local::{Begun, LocalModel};
use server::RemoteModel;
use session::{Answers as _, Session, Settings};
use toolbox::{McpArgs, McpPlan};

const EXAMPLES: &str = "\
Examples:
  ruvllm chat
  ruvllm chat --model qwen2.5-coder:0.5b --system \"You answer in one sentence.\"
  ruvllm chat --backend remote --url http://127.0.0.1:8000/v1     another server answers
  ruvllm chat --session trip                     a conversation that is there again next time
  ruvllm chat --mcp mcp.json --mcp-allow 'fs__read_*'   tools of MCP servers; others are asked about
  printf 'Hello\\nAnd now in French\\n' | ruvllm chat --temp 0     one line a turn

/help shows the commands inside. Ctrl-C stops an answer, Ctrl-D leaves.";

/// Options of `ruvllm chat`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ChatArgs {
    /// Instructions that stand before the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Read \n, \r, \t, \', \", \\ and \xHH in --system as the characters they name [default: as they are]
    #[arg(short, long)]
    escape: bool,
    /// Most tokens of one answer; -1 is until the context is full [default: -1]
    #[arg(long, value_name = "N")]
    max_tokens: Option<MaxTokens>,
    /// Read control tokens (<|im_end|> and its like) in messages as such, not as text: they can open and end turns
    #[arg(long)]
    parse_special: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    learning: LearningArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    draft_history: DraftHistoryArgs,
    #[command(flatten)]
    mcp: McpArgs,
    #[command(flatten)]
    output: OutputArgs,
}

const HELP: &str = "\
/system [TEXT]    set the instructions and start again; alone: show them
/clear            start again
/regen            answer the last question again
/save FILE        write the conversation to a JSON file
/load FILE        go on with a saved conversation
/set KEY VALUE    an option of sampling as the command line names it, or max-tokens; alone: show them
/stats            speed of the last answer, how full the context is
/tools            the tools of the MCP servers (with --mcp), and which run without a question
/good             the last answer was right: learn it (with --learn, as the next two)
/bad              it was wrong: do not say it to that question again
/correct TEXT     this is what it should have been
/exit             leave (also Ctrl-D)
A line that ends in \\ goes on in the next; \"\"\" begins and ends a text of many lines. Ctrl-C stops an answer.";

impl ChatArgs {
    /// Talks until the person leaves.
    ///
    /// # Errors
    /// A failure if the model cannot be had; without a terminal also whatever stops a turn.
    pub fn run(&self, app: &App) -> Result<()> {
        self.sampling.check()?;
        let (mut reader, mut session) = match self.backend.chosen(&self.load)? {
            Chosen::Local(backend) => self.with_local(app, backend)?,
            Chosen::Remote(url) => self.with_remote(app, url)?,
        };
        let is_person = Reader::is_person();
        while let Some(line) = reader.next_line()? {
            match turn(&mut session, line) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if is_person && !matches!(error, Error::BrokenPipe) => {
                    if let Some(line) = error.line() {
                        eprintln!("error: {line}");
                    }
                }
                Err(error) => return Err(error),
            }
        }
        reader.save_history();
        session.save_learned()
    }

    /// Begins a conversation with a model of this process.
    fn with_local(&self, app: &App, backend: LocalBackend) -> Result<(Reader, Session)> {
        let (reader, mcp) = self.reader(app)?;
        self.learning.check(app, &[])?;
        self.cache.check(&app.settings)?;
        app.store().check(&self.model.model)?;
        self.speculation.check(app)?;
        let template = self.template.read()?;
        let path = app.store().locate(&self.model.model, true)?;
        let draft = self.speculation.draft(app)?;
        let load = LoadOptions { draft, ..self.load.options(&app.settings, self.context.n_ctx) };
        let mut engine = app.load_cached(backend, &path, load, &self.cache)?;
        template::apply(&mut engine, template.as_deref())?;
        engine.runner_mut().set_history_bytes(self.draft_history.bytes_max(&app.settings));
        if engine.info().is_encoder {
            return Err(Error::failure("this model makes embeddings and writes no text; chat with another one"));
        }
        let info = engine.info();
        let n_ctx = info.n_ctx;
        self.greet(app, &format!("{}, {n_ctx} tokens of context", info.name));
        if engine.chat_template()?.is_none() {
            if mcp.is_some() {
                return Err(Error::failure(
                    "this model has no chat template, so it cannot be told of tools; leave --mcp out, or chat with another one",
                ));
            }
            app.ui.note("this model has no chat template: it continues text and may not answer like an assistant");
        }
        let learning = self.learning.open(app, &mut engine)?;
        let resume = Resume::load(&mut engine, &self.cache)?;
        let mut model = LocalModel::new(engine, app.ui, self.speculation.speculate, self.parse_special);
        model.set_learning(learning);
        let begun = model.begin(self.instructions(), resume)?;
        let toolbox = mcp.map(|plan| plan.start(app, Some(n_ctx))).transpose()?;
        let mut session = Session::new(Box::new(model), app.ui, self.settings(), begun);
        session.set_toolbox(toolbox);
        Ok((reader, session))
    }

    /// Begins a conversation with a model of another server.
    fn with_remote(&self, app: &App, url: &str) -> Result<(Reader, Session)> {
        remote::refuse_local(&remote::of_loading(&self.load, &self.context))?;
        remote::refuse_local(&[
            ("--parse-special", self.parse_special),
            ("--chat-template", self.template.is_given()),
            ("--learn", self.learning.learn),
            ("--session", self.cache.session.is_some()),
            ("--cache-dir", self.cache.cache_dir.is_some()),
            ("--cache-mib", self.cache.size.cache_mib.is_some()),
            ("--no-prefix-cache", self.cache.no_prefix_cache),
            ("--draft-model", self.speculation.draft_model.is_some()),
            ("--draft-history", self.draft_history.draft_history.is_some()),
        ])?;
        remote::samplers(&self.sampling.params())?;
        let (reader, mcp) = self.reader(app)?;
        let model = RemoteModel::new(remote::connect(app, url, &self.model.model)?, app.ui);
        self.greet(app, &format!("{} at {url}", model.name()));
        let begun = Begun { system: self.instructions(), ..Begun::default() };
        let toolbox = mcp.map(|plan| plan.start(app, None)).transpose()?;
        let mut session = Session::new(Box::new(model), app.ui, self.settings(), begun);
        session.set_toolbox(toolbox);
        Ok((reader, session))
    }

    /// Opens the input, and reads which MCP servers are to be started.
    fn reader(&self, app: &App) -> Result<(Reader, Option<McpPlan>)> {
        let reader = Reader::new(&app.settings.home.join("history.txt"), self.output.json)?;
        let mcp = self.mcp.plan(reader.can_ask())?;
        interrupt::install()?;
        Ok((reader, mcp))
    }

    /// Tells a person who answers.
    fn greet(&self, app: &App, who: &str) {
        if Reader::is_person() && !self.output.json {
            app.ui.note(&format!("{who}; /help shows the commands"));
        }
    }

    fn settings(&self) -> Settings {
        let max_tokens = self.max_tokens.and_then(|MaxTokens(n)| n);
        Settings { sampling: self.sampling.params(), max_tokens, json: self.output.json }
    }

    fn instructions(&self) -> Option<String> {
        self.system.as_deref().map(|text| if self.escape { unescaped(text) } else { text.to_owned() })
    }
}

/// Does what a line asks for; returns whether to go on.
fn turn(session: &mut Session, line: Line) -> Result<bool> {
    match line {
        Line::Empty => {}
        Line::Say(text) => session.say(text)?,
        Line::Help => session.tell(HELP)?,
        Line::System(None) => session.tell(session.system().unwrap_or("no instructions; /system TEXT sets them"))?,
        Line::System(Some(text)) => session.set_system(Some(text))?,
        Line::Clear => session.clear()?,
        Line::Regen => session.regenerate()?,
        Line::Save(file) => session.save(&file)?,
        Line::Load(file) => session.load(&file)?,
        Line::Set(None) => session.tell(&session.settings())?,
        Line::Set(Some((key, value))) => session.set(&key, &value)?,
        Line::Stats => session.tell(&session.stats())?,
        Line::Tools => session.tell(&session.tools())?,
        Line::Good => session.judge(1.0)?,
        Line::Bad => session.judge(0.0)?,
        Line::Correct(text) => session.correct(text)?,
        Line::Exit => return Ok(false),
        Line::Wrong(line) => return Err(Error::usage(line)),
    }
    Ok(true)
}
