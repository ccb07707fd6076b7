//! `ruvllm run`: answer one prompt.

use std::io::{IsTerminal, Read};

use clap::Args;
use ruvllm_backend::CompletionRequest;
use ruvllm_cli_tools::answer::{answer_shown, speed_line, summary_json};
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::cache::CacheArgs;
use ruvllm_cli_tools::args::grammar::GrammarArgs;
use ruvllm_cli_tools::args::sampling::SamplingArgs;
use ruvllm_cli_tools::args::{ContextArgs, LoadArgs, ModelArgs, OutputArgs};
use ruvllm_cli_tools::error::{Error, Result, io_reason};
use ruvllm_cli_tools::learning::LearningArgs;
use ruvllm_cli_tools::lora::LoraArgs;
use ruvllm_cli_tools::output::{print, print_json};
use ruvllm_cli_tools::remote::{self, BackendArgs, Chosen};
use ruvllm_cli_tools::resume::Resume;
use ruvllm_cli_tools::speculation::SpeculationArgs;
use ruvllm_cli_tools::template::{self, TemplateArgs};
use ruvllm_cli_tools::values::{MaxTokens, some_text, unescaped};
use ruvllm_engine::{Engine, FinishReason, GenerateRequest, GrammarSource, LoadOptions, PromptOptions};
use ruvllm_learning::Task;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  ruvllm run --prompt \"Why is the sky blue?\"
  ruvllm run --model gemma3:270m --raw --prompt \"Once upon a time\" --max-tokens 100
  ruvllm run --prompt \"2 + 2 =\" --temp 0 --json         the same answer every time
  ruvllm run --lora ./adapter --prompt \"Hello\"           with a LoRA adapter
  git diff | ruvllm run --prompt -                       the prompt from standard input
  ruvllm run --choice yes,no --prompt \"Is 7 a prime?\"    one of these, nothing else
  ruvllm run --json-schema person.json --prompt \"Invent a person.\"
  ruvllm run --model qwen2.5-coder:0.5b --escape --prompt \"a = [1,\" --suffix \"3]\\n\"   what is between them
  ruvllm run --backend remote --url http://127.0.0.1:8080/v1 --prompt \"Hello\"
  ruvllm run --session trip --prompt \"And in winter?\"    go on where this session ended

Ctrl-C ends the answer cleanly (exit code 130). The model is pulled if it is not on this machine.";

/// Options of `ruvllm run`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// What to answer; '-' or nothing reads standard input
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Continue the text as it is, without the model's chat template
    #[arg(long)]
    raw: bool,
    /// Text behind the answer: the model fills in between --prompt and this, if it was trained to
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with_all = ["raw", "parse_special", "session"])]
    suffix: Option<String>,
    /// Read control tokens (<|im_end|> and its like) in the prompt as such, not as text; so by default with --raw
    #[arg(long, conflicts_with = "no_parse_special")]
    parse_special: bool,
    /// Read control tokens in the prompt as text; so by default without --raw
    #[arg(long)]
    no_parse_special: bool,
    /// Read \n, \r, \t, \', \", \\ and \xHH in --prompt and --stop as the characters they name [default: as they are]
    #[arg(short, long)]
    escape: bool,
    /// Most tokens to answer with; -1 is until the context is full
    #[arg(long, value_name = "N", default_value = "512")]
    max_tokens: MaxTokens,
    /// End the answer before this text; may be given several times
    #[arg(long, value_name = "TEXT", value_parser = some_text, help_heading = "Sampling")]
    stop: Vec<String>,
    /// Tell each token's log-probability and those of the N likeliest ones; with --json
    #[arg(long, value_name = "N", requires = "json")]
    logprobs: Option<usize>,
    /// Go on past the end of the answer
    #[arg(long, help_heading = "Sampling")]
    ignore_eos: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    lora: LoraArgs,
    #[command(flatten)]
    learning: LearningArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    grammar: GrammarArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl RunArgs {
    /// Answers the prompt.
    ///
    /// # Errors
    /// A usage error without a prompt, a failure if the model cannot be had or the prompt does not fit.
    pub fn run(&self, app: &App) -> Result<()> {
        let backend = match self.backend.chosen(&self.load)? {
            Chosen::Remote(url) => return self.run_remote(app, url),
            Chosen::Local(backend) => backend,
        };
        self.check(app)?;
        let grammar = self.grammar.source()?;
        let template = self.template.read()?;
        let question = self.read_prompt()?;
        let path = app.store().locate(&self.model.model, true)?;
        self.lora.check_for(app, &path)?;
        let draft = self.speculation.draft(app)?;
        let load = LoadOptions { draft, ..self.load.options(&app.settings, self.context.n_ctx) };
        let mut engine = app.load_cached(backend, &path, load, &self.cache)?;
        template::apply(&mut engine, template.as_deref())?;
        let mut resume = Resume::load(&mut engine, &self.cache)?;
        let learning = self.learning.open(app, &mut engine)?;
        let prompt = self.encode(&engine, resume.as_mut(), &question)?;
        let compile = |source| Ok::<_, Error>(engine.grammar_compiler()?.compile(&source)?);
        let grammar = grammar.map(compile).transpose()?;
        let mut sampling = self.sampling.params();
        if let Some(resume) = &mut resume {
            app.ui.note(&resume.note());
            sampling.seed = sampling.seed.or(resume.session.seed);
            resume.session.seed = sampling.seed;
        }
        let adapters = self.lora.load(app, &engine)?;
        let request = GenerateRequest {
            prompt,
            adapters,
            logits_processor: learning.as_ref().map(|(_, tenant)| tenant.logits_processor(Task::of(&question), None)),
            max_tokens: self.max_tokens.0,
            sampling,
            logprobs: self.logprobs,
            speculation: self.speculation.speculate,
            grammar,
            stop: self.stop.iter().map(|text| self.read_escapes(text)).collect(),
            ignore_eos: self.ignore_eos,
            ..GenerateRequest::default()
        };
        let json = self.output.json;
        let mut write = |text: &str| if json { Ok(()) } else { print(text) };
        let summary = answer_shown(&app.ui, &mut engine, &request, json, &mut write)?;
        if let Some(resume) = &mut resume {
            resume.finish(&engine, &summary)?;
        }
        if let Some((learning, _)) = &learning {
            learning.save()?;
        }
        if json {
            print_json(&summary_json(&summary, resume.as_ref()))?;
        } else {
            if !summary.text.ends_with('\n') {
                print("\n")?;
            }
            app.ui.note(&speed_line(&summary.timings, summary.prompt_tokens.len(), summary.tokens.len()));
        }
        match summary.finish_reason {
            FinishReason::Cancelled => Err(Error::Interrupted),
            _ => Ok(()),
        }
    }

    /// Has another server answer the prompt.
    fn run_remote(&self, app: &App, url: &str) -> Result<()> {
        self.sampling.check()?;
        let request = self.remote_request()?;
        let backend = remote::connect(app, url, &self.model.model)?;
        remote::answer(app, &backend, &request, self.output.json)
    }

    /// Returns the request for another server.
    ///
    /// # Errors
    /// An option that only a backend with tokens can keep.
    fn remote_request(&self) -> Result<CompletionRequest> {
        let grammar = self.grammar.source()?;
        self.check_remote()?;
        let params = self.sampling.params();
        Ok(CompletionRequest {
            messages: vec![json!({ "role": "user", "content": self.read_prompt()? })],
            max_tokens: self.max_tokens.0,
            temperature: Some(params.temperature),
            top_p: Some(params.top_p),
            seed: params.seed,
            stop: self.stop.iter().map(|text| self.read_escapes(text)).collect(),
            response_format: match grammar {
                Some(GrammarSource::JsonSchema(schema)) => {
                    Some(json!({ "type": "json_schema", "json_schema": { "name": "answer", "schema": schema } }))
                }
                Some(_) => Some(json!({ "type": "json_object" })),
                None => None,
            },
            top_logprobs: self.logprobs,
            extra: remote::samplers(&params)?,
            ..CompletionRequest::default()
        })
    }

    /// Checks that no option is given that another server cannot keep.
    ///
    /// # Errors
    /// A usage error that names the first one.
    fn check_remote(&self) -> Result<()> {
        remote::refuse_local(&[
            ("--raw", self.raw),
            ("--suffix", self.suffix.is_some()),
            ("--parse-special", self.parse_special || self.no_parse_special),
            ("--ignore-eos", self.ignore_eos),
            ("--chat-template", self.template.is_given()),
            ("--lora", !self.lora.lora.is_empty()),
            ("--learn", self.learning.learn),
            ("--session", self.cache.session.is_some()),
            ("--draft-model", self.speculation.draft_model.is_some()),
            ("--grammar", self.grammar.grammar.is_some()),
            ("--regex", self.grammar.regex.is_some()),
            ("--choice", !self.grammar.choice.is_empty()),
        ])
    }

    /// Returns the tokens of the prompt, behind those of the session if there is one.
    fn encode(&self, engine: &Engine, resume: Option<&mut Resume>, prompt: &str) -> Result<Vec<u32>> {
        if let Some(suffix) = &self.suffix {
            return Ok(engine.tokenizer()?.encode_infill(prompt, &self.read_escapes(suffix))?);
        }
        let parse_special = self.parse_special || (self.raw && !self.no_parse_special);
        let options = PromptOptions { raw: self.raw, parse_special };
        match resume {
            None => Ok(engine.text()?.encode_prompt_as(prompt, options)?),
            Some(resume) if self.raw || engine.chat_template()?.is_none() => {
                resume.append(engine, prompt, parse_special)
            }
            Some(resume) => resume.ask(engine, prompt, parse_special),
        }
    }

    /// Checks what can be checked without the model.
    fn check(&self, app: &App) -> Result<()> {
        self.sampling.check()?;
        self.learning.check(app, &self.lora.lora)?;
        self.cache.check(&app.settings)?;
        app.store().check(&self.model.model)?;
        self.speculation.check(app)?;
        self.lora.check(app)
    }

    /// Returns a text of the command line as it is meant.
    fn read_escapes(&self, text: &str) -> String {
        if self.escape { unescaped(text) } else { text.to_owned() }
    }

    fn read_prompt(&self) -> Result<String> {
        match self.prompt.as_deref() {
            Some(prompt) if prompt != "-" => return Ok(self.read_escapes(prompt)),
            None if std::io::stdin().is_terminal() => {
                return Err(Error::usage("no prompt; pass --prompt TEXT, pipe one in, or use 'ruvllm chat'"));
            }
            _ => {}
        }
        let mut bytes = Vec::new();
        let read = std::io::stdin().read_to_end(&mut bytes);
        read.map_err(|error| Error::failure(format_args!("cannot read standard input: {}", io_reason(&error))))?;
        let text = String::from_utf8(bytes);
        let text =
            text.map_err(|_| Error::failure("the prompt on standard input is not UTF-8 text; convert it first"))?;
        let prompt = text.strip_suffix('\n').unwrap_or(&text);
        if prompt.is_empty() {
            return Err(Error::usage("the prompt on standard input is empty; pass --prompt TEXT or pipe one in"));
        }
        Ok(prompt.to_owned())
    }
}
