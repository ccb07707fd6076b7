//! Another server that answers a conversation.

use ruvllm_api::remote::{conversation, offered};
use ruvllm_backend::{CompletionRequest, Completions};
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::output::Ui;
use ruvllm_cli_tools::remote;
use ruvllm_engine::SamplingParams;
use ruvllm_remote::RemoteBackend;

use crate::commands::chat::session::{Answers, Said, Talk};

/// A model of another server.
pub struct RemoteModel {
    backend: RemoteBackend,
    ui: Ui,
    /// The line about the last answer.
    last: Option<String>,
}

impl RemoteModel {
    /// Makes a model of a server that is connected.
    pub fn new(backend: RemoteBackend, ui: Ui) -> RemoteModel {
        RemoteModel { backend, ui, last: None }
    }
}

impl Answers for RemoteModel {
    fn name(&self) -> &str {
        self.backend.info().0
    }

    fn answer(&mut self, talk: &Talk<'_>, is_silent: bool, write: &mut dyn FnMut(&str) -> Result<()>) -> Result<Said> {
        let mut request = CompletionRequest {
            messages: conversation(talk.all()),
            max_tokens: talk.max_tokens,
            temperature: Some(talk.sampling.temperature),
            top_p: Some(talk.sampling.top_p),
            seed: talk.sampling.seed,
            extra: remote::samplers(talk.sampling)?,
            ..CompletionRequest::default()
        };
        if let Some(offer) = talk.offer {
            offered(offer.clone(), &mut request);
        }
        let mut told = remote::tell(self.ui, &self.backend, &request, is_silent, write)?;
        self.last = Some(told.speed());
        let note = told.is_given_up().then(|| "(stopped)".to_owned());
        let (is_whole, calls, json) = (told.is_whole(), told.take_calls(), told.json());
        Ok(Said { text: told.text, calls, is_whole, note, json })
    }

    fn check(&self, sampling: &SamplingParams) -> Result<()> {
        remote::samplers(sampling).map(drop)
    }

    fn judge(&mut self, _: f32) -> Result<()> {
        Err(nothing_is_learned())
    }

    fn correct(&mut self, _: &str) -> Result<()> {
        Err(nothing_is_learned())
    }

    fn forget(&mut self) {
        self.last = None;
    }

    fn stats(&self) -> String {
        self.last.clone().unwrap_or_else(|| "nothing was answered yet".to_owned())
    }
}

fn nothing_is_learned() -> Error {
    Error::usage("another server answers, and nothing is learned of it; chat with a model of this machine and --learn")
}
