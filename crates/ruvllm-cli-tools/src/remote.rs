//! `--backend remote`: another server answers.

use std::ops::ControlFlow;
use std::time::Instant;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use ruvllm_api::reading::{AnswerEvent, ToolCall, Whole};
use ruvllm_api::remote::Calls;
use ruvllm_backend::{CompletionEnd, CompletionEvent, CompletionRequest, Completions};
use ruvllm_engine::{KvPolicy, SamplingParams};
use ruvllm_remote::{RemoteBackend, RemoteOptions};
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::args::{ContextArgs, LoadArgs};
use crate::backend::{GpuLayersArgs, LocalBackend, LocalName};
use crate::error::{Error, Result};
use crate::interrupt;
use crate::output::{Ui, print, print_json};
use ruvllm_hub::DEFAULT_MODEL;

/// Names of backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendName {
    /// One that runs the model in this process.
    Local(LocalName),
    /// Another server.
    Remote,
}

impl ValueEnum for BackendName {
    fn value_variants<'a>() -> &'a [BackendName] {
        &[
            BackendName::Local(LocalName::Native),
            #[cfg(feature = "gpu")]
            BackendName::Local(LocalName::Gpu),
            BackendName::Local(LocalName::Candle),
            BackendName::Remote,
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = "Another server with OpenAI's chat API: vLLM, SGLang, llama.cpp, another RuvLLM";
        match self {
            BackendName::Local(local) => local.to_possible_value(),
            BackendName::Remote => Some(PossibleValue::new("remote").help(help)),
        }
    }
}

/// The backend that runs the model.
#[derive(Args, Clone, Debug)]
pub struct BackendArgs {
    /// Backend that runs the model
    #[arg(long, value_name = "NAME", value_enum, default_value = "native", help_heading = "Model")]
    pub backend: BackendName,
    /// Address of the other server's API, as http://HOST:PORT/v1; its key is read from RUVLLM_REMOTE_KEY
    #[arg(long, value_name = "URL", required_if_eq("backend", "remote"), help_heading = "Model")]
    url: Option<String>,
    #[command(flatten)]
    gpu_layers: GpuLayersArgs,
}

/// The backend that was chosen.
pub enum Chosen<'a> {
    /// One of this process.
    Local(LocalBackend),
    /// The server at this address.
    Remote(&'a str),
}

impl BackendArgs {
    /// Returns the backend that answers.
    ///
    /// # Errors
    /// An address without `--backend remote`, or the other way round; as [`LocalBackend::new`].
    pub fn chosen(&self, load: &LoadArgs) -> Result<Chosen<'_>> {
        match (self.backend, &self.url) {
            (BackendName::Local(name), None) => LocalBackend::new(name, self.gpu_layers, load).map(Chosen::Local),
            (BackendName::Local(_), Some(_)) => {
                Err(Error::usage("--url is for --backend remote; add that, or leave it out"))
            }
            (BackendName::Remote, Some(_)) if self.gpu_layers.n_layers().is_some() => {
                Err(Error::usage("--gpu-layers needs --backend gpu"))
            }
            (BackendName::Remote, Some(url)) => Ok(Chosen::Remote(url)),
            (BackendName::Remote, None) => Err(Error::usage("--backend remote needs the address of a server: --url")),
        }
    }
}

/// Variable that the key of another server is read from.
const KEY_VARIABLE: &str = "RUVLLM_REMOTE_KEY";

/// Connects to a server. The default model stands for the first one that the server has.
///
/// # Errors
/// It cannot be reached, refuses the key, or has no such model.
pub fn connect(app: &App, url: &str, model: &str) -> Result<RemoteBackend> {
    Ok(RemoteBackend::connect(options(app, url, model))?)
}

/// Connects to a server as [`connect`] does, for others who ask again by themselves: nothing is tried twice.
///
/// # Errors
/// As [`connect`].
pub fn connect_once(app: &App, url: &str, model: &str) -> Result<RemoteBackend> {
    Ok(RemoteBackend::connect(RemoteOptions { n_retries: 0, ..options(app, url, model) })?)
}

fn options(app: &App, url: &str, model: &str) -> RemoteOptions {
    let (model, key) = ((model != DEFAULT_MODEL).then(|| model.to_owned()), app.settings.remote_key.clone());
    RemoteOptions { model, key, key_name: Some(KEY_VARIABLE.to_owned()), ..RemoteOptions::new(url) }
}

/// Checks that no option is given that another server cannot keep.
///
/// # Errors
/// A usage error that names the first one.
pub fn refuse_local(options: &[(&str, bool)]) -> Result<()> {
    match options.iter().find(|(_, is_given)| *is_given) {
        Some((name, _)) => {
            Err(Error::usage(format_args!("{name} needs --backend native: another server gives no tokens")))
        }
        None => Ok(()),
    }
}

/// Returns the options of loading a model that are given, for [`refuse_local`].
pub fn of_loading(load: &LoadArgs, context: &ContextArgs) -> [(&'static str, bool); 4] {
    [
        ("--threads", load.threads.is_some()),
        ("--kv", load.kv != KvPolicy::F16),
        ("--no-head-shortlist", load.no_head_shortlist),
        ("--ctx", context.n_ctx.is_some()),
    ]
}

/// Returns the options of samplers that another server takes beside those of OpenAI's API, as far as they differ from the defaults.
///
/// # Errors
/// A usage error if an option is given that it does not take.
pub fn samplers(params: &SamplingParams) -> Result<Map<String, Value>> {
    let defaults = SamplingParams { seed: params.seed, ..SamplingParams::default() };
    let others = SamplingParams {
        temperature: defaults.temperature,
        top_p: defaults.top_p,
        top_k: defaults.top_k,
        min_p: defaults.min_p,
        frequency_penalty: defaults.frequency_penalty,
        presence_penalty: defaults.presence_penalty,
        ..params.clone()
    };
    if others != defaults {
        let line = "--backend remote takes --temp, --top-p, --top-k, --min-p, --frequency-penalty, --presence-penalty and --seed of the samplers' options";
        return Err(Error::usage(line));
    }
    let more = [
        ("top_k", json!(params.top_k), params.top_k != defaults.top_k),
        ("min_p", json!(params.min_p), params.min_p != defaults.min_p),
        ("frequency_penalty", json!(params.frequency_penalty), params.frequency_penalty != defaults.frequency_penalty),
        ("presence_penalty", json!(params.presence_penalty), params.presence_penalty != defaults.presence_penalty),
    ];
    let given = more.into_iter().filter(|(.., is_given)| *is_given);
    Ok(given.map(|(name, value, _)| (name.to_owned(), value)).collect())
}

/// Answers a request and prints the answer as it comes, or as an object at its end. Ctrl-C gives it up.
///
/// # Errors
/// The server's; [`Error::Interrupted`] if it was given up.
pub fn answer(app: &App, backend: &dyn Completions, request: &CompletionRequest, json: bool) -> Result<()> {
    let told = tell(app.ui, backend, request, json, &mut |text| print(text))?;
    if json {
        print_json(&told.json())?;
    } else {
        if !told.text.ends_with('\n') {
            print("\n")?;
        }
        app.ui.note(&told.speed());
    }
    match told.is_given_up() {
        true => Err(Error::Interrupted),
        false => Ok(()),
    }
}

/// Answers a request, and hands the text of the answer to `write` as it comes unless `is_silent`. Ctrl-C gives it up.
///
/// # Errors
/// The server's, or what `write` returns.
pub fn tell(
    ui: Ui,
    backend: &dyn Completions,
    request: &CompletionRequest,
    is_silent: bool,
    write: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<ServerAnswer> {
    let start = Instant::now();
    let _guard = interrupt::ends(&request.interrupt);
    let work = ui.spinner("waiting for the server").of(backend.info().1.name.clone());
    let (mut told, mut written) = (ServerAnswer::default(), Ok(()));
    let end = backend.generate(request, &mut |event| {
        told.first_s.get_or_insert_with(|| start.elapsed().as_secs_f64());
        if !is_silent {
            work.finish_and_clear();
        }
        if let (CompletionEvent::Text(text), false, true) = (&event, is_silent, written.is_ok()) {
            written = write(text);
        }
        told.take(event);
        match request.interrupt.is_set() || written.is_err() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    work.finish_and_clear();
    told.end = end?;
    written?;
    told.total_s = start.elapsed().as_secs_f64();
    Ok(told)
}

/// An answer of another server.
#[derive(Debug, Default)]
pub struct ServerAnswer {
    /// Its text.
    pub text: String,
    thought: String,
    logprobs: Vec<Value>,
    calls: Calls,
    /// Pieces of the calls.
    pieces: Vec<AnswerEvent>,
    end: CompletionEnd,
    first_s: Option<f64>,
    total_s: f64,
}

impl ServerAnswer {
    fn take(&mut self, event: CompletionEvent) {
        match event {
            CompletionEvent::Text(text) => self.text += &text,
            CompletionEvent::Thought(text) => self.thought += &text,
            CompletionEvent::Logprobs(each) => self.logprobs.extend(each),
            CompletionEvent::Call(piece) => self.pieces.extend(self.calls.take(piece)),
        }
    }

    /// Returns whether it was given up.
    pub fn is_given_up(&self) -> bool {
        self.end.finish_reason.is_none()
    }

    /// Returns whether it ended by itself, not by the most tokens of an answer.
    pub fn is_whole(&self) -> bool {
        self.end.finish_reason.as_deref().is_some_and(|reason| reason != "length")
    }

    /// Takes the calls of tools out of it.
    pub fn take_calls(&mut self) -> Vec<ToolCall> {
        Whole::of_events(std::mem::take(&mut self.pieces)).calls
    }

    fn ttft_ms(&self) -> f64 {
        self.first_s.unwrap_or_default() * 1e3
    }

    /// Returns the line about it that follows it.
    pub fn speed(&self) -> String {
        let usage = self.end.usage.unwrap_or_default();
        let (n_prompt, n_answer, ttft_ms) = (usage.prompt_tokens, usage.completion_tokens, self.ttft_ms());
        format!("{n_prompt} prompt tokens, {n_answer} answer tokens of {}, first after {ttft_ms:.0} ms", self.end.model)
    }

    /// Returns the object that `--json` answers with.
    pub fn json(&self) -> Value {
        let usage = self.end.usage.unwrap_or_default();
        let mut object = json!({
            "text": self.text,
            "model": self.end.model,
            "finish_reason": self.end.finish_reason.as_deref().unwrap_or("cancelled"),
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": usage.cached_tokens,
                "completion_tokens": usage.completion_tokens,
            },
            "timings": { "ttft_ms": self.ttft_ms(), "total_ms": self.total_s * 1e3 },
        });
        if !self.thought.is_empty() {
            object["reasoning"] = self.thought.clone().into();
        }
        if !self.logprobs.is_empty() {
            object["logprobs"] = self.logprobs.clone().into();
        }
        object
    }
}
