//! `--backend remote`: another server answers.

use std::ops::ControlFlow;
use std::time::Instant;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use ruvllm_backend::{CompletionEvent, CompletionRequest, Completions};
use ruvllm_remote::{RemoteBackend, RemoteOptions};
use serde_json::{Value, json};

use crate::tools::app::App;
use crate::tools::args::LoadArgs;
use crate::tools::backend::LocalBackend;
use crate::tools::error::{Error, Result};
use crate::tools::interrupt;
use crate::tools::output::{print, print_json};
use crate::tools::registry::DEFAULT_MODEL;

/// Names of backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendName {
    /// One that runs the model in this process.
    Local(LocalBackend),
    /// Another server.
    Remote,
}

impl ValueEnum for BackendName {
    fn value_variants<'a>() -> &'a [BackendName] {
        &[BackendName::Local(LocalBackend::Native), BackendName::Local(LocalBackend::Candle), BackendName::Remote]
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
    /// An address without `--backend remote`, or the other way round; as [`LocalBackend::check`].
    pub fn chosen(&self, load: &LoadArgs) -> Result<Chosen<'_>> {
        match (self.backend, &self.url) {
            (BackendName::Local(local), None) => local.check(load).map(|()| Chosen::Local(local)),
            (BackendName::Local(_), Some(_)) => {
                Err(Error::usage("--url is for --backend remote; add that, or leave it out"))
            }
            (BackendName::Remote, Some(url)) => Ok(Chosen::Remote(url)),
            (BackendName::Remote, None) => Err(Error::usage("--backend remote needs the address of a server: --url")),
        }
    }
}

/// Connects to a server. The default model stands for the first one that the server has.
///
/// # Errors
/// It cannot be reached, refuses the key, or has no such model.
pub fn connect(app: &App, url: &str, model: &str) -> Result<RemoteBackend> {
    let model = (model != DEFAULT_MODEL).then(|| model.to_owned());
    let key = app.settings.remote_key.clone();
    Ok(RemoteBackend::connect(RemoteOptions { model, key, ..RemoteOptions::new(url) })?)
}

/// Answers a request and prints the answer as it comes, or as an object at its end. Ctrl-C gives it up.
///
/// # Errors
/// The server's; [`Error::Interrupted`] if it was given up.
pub fn answer(app: &App, backend: &dyn Completions, request: &CompletionRequest, json: bool) -> Result<()> {
    let (start, cancel) = (Instant::now(), ruvllm_engine::CancelToken::default());
    let _guard = interrupt::cancels(&cancel);
    let work = app.ui.spinner("waiting for the server").of(backend.info().1.name.clone());
    let (mut told, mut written, mut first_s) = (Told::default(), Ok(()), None);
    let end = backend.generate(request, &mut |event| {
        first_s.get_or_insert_with(|| start.elapsed().as_secs_f64());
        if !json {
            work.finish_and_clear();
        }
        if let (CompletionEvent::Text(text), false, true) = (&event, json, written.is_ok()) {
            written = print(text);
        }
        told.take(event);
        match cancel.is_cancelled() || written.is_err() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    work.finish_and_clear();
    let end = end?;
    written?;
    let usage = end.usage.unwrap_or_default();
    let ttft_ms = first_s.unwrap_or_default() * 1e3;
    if json {
        let mut object = json!({
            "text": told.text,
            "model": end.model,
            "finish_reason": end.finish_reason.as_deref().unwrap_or("cancelled"),
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": usage.cached_tokens,
                "completion_tokens": usage.completion_tokens,
            },
            "timings": { "ttft_ms": ttft_ms, "total_ms": start.elapsed().as_secs_f64() * 1e3 },
        });
        if !told.thought.is_empty() {
            object["reasoning"] = told.thought.into();
        }
        if !told.logprobs.is_empty() {
            object["logprobs"] = told.logprobs.into();
        }
        print_json(&object)?;
    } else {
        if !told.text.ends_with('\n') {
            print("\n")?;
        }
        let (n_prompt, n_answer) = (usage.prompt_tokens, usage.completion_tokens);
        app.ui.note(&format!(
            "{n_prompt} prompt tokens, {n_answer} answer tokens of {}, first after {ttft_ms:.0} ms",
            end.model
        ));
    }
    match cancel.is_cancelled() {
        true => Err(Error::Interrupted),
        false => Ok(()),
    }
}

/// An answer so far.
#[derive(Default)]
struct Told {
    text: String,
    thought: String,
    logprobs: Vec<Value>,
}

impl Told {
    fn take(&mut self, event: CompletionEvent) {
        match event {
            CompletionEvent::Text(text) => self.text += &text,
            CompletionEvent::Thought(text) => self.thought += &text,
            CompletionEvent::Logprobs(each) => self.logprobs.extend(each),
            // No functions are offered.
            CompletionEvent::Call(_) => {}
        }
    }
}
