//! The remote backend: whole requests, answered by any server that speaks OpenAI's chat API (vLLM, SGLang, llama.cpp,
//! another RuvLLM).
//!
//! [`RemoteBackend`] is a [`Completions`]. It streams, so that the first piece comes early; a caller that stops listening
//! ends the request on the other side too, because the connection is closed; an [`Interrupt`](ruvllm_backend::Interrupt) does
//! so while nothing comes. What fails before the first piece is tried
//! again; nothing is asked twice once a piece came.
//!
//! Numeric contract: none. The other side chooses the tokens.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use ruvllm_backend::{CompletionEvent, CompletionRequest, Completions};
//! use ruvllm_remote::{RemoteBackend, RemoteOptions};
//!
//! let backend = RemoteBackend::connect(RemoteOptions::new("http://127.0.0.1:8080/v1"))?;
//! let messages = vec![serde_json::json!({ "role": "user", "content": "Why is the sky blue?" })];
//! let request = CompletionRequest { messages, max_tokens: Some(64), ..Default::default() };
//! backend.generate(&request, &mut |event| {
//!     if let CompletionEvent::Text(text) = event {
//!         print!("{text}");
//!     }
//!     ControlFlow::Continue(())
//! })?;
//! # Ok::<(), ruvllm_backend::BackendError>(())
//! ```

#![forbid(unsafe_code)]

mod answer;
mod body;
mod events;
mod http;
mod options;

use std::ops::ControlFlow;

use ruvllm_backend::{
    BackendError, BackendErrorKind, CompletionEnd, CompletionEvent, CompletionRequest, Completions, DeviceInfo,
};
use serde_json::{Value, json};

use http::Http;
pub use options::RemoteOptions;

/// A model on another server.
#[derive(Debug)]
pub struct RemoteBackend {
    http: Http,
    model: String,
    device: DeviceInfo,
}

impl RemoteBackend {
    /// Asks the server which models it has, and takes the one of the options, or the first of its list.
    ///
    /// # Errors
    /// The options are out of range, the server cannot be reached or refuses the key, or it has no such model.
    pub fn connect(options: RemoteOptions) -> Result<RemoteBackend, BackendError> {
        let (http, wanted) = (Http::new(&options)?, options.model);
        let list = http.get("models")?;
        let ids = list["data"].as_array().into_iter().flatten().filter_map(|model| model["id"].as_str());
        let ids: Vec<&str> = ids.collect();
        let model = match (&wanted, ids.first()) {
            (Some(wanted), _) if ids.contains(&wanted.as_str()) => wanted.clone(),
            (None, Some(first)) => (*first).to_owned(),
            (wanted, _) => {
                let wanted = wanted.as_deref().unwrap_or("any");
                let line = format!("{} does not serve '{wanted}'; it has {}", options.url, ids.join(", "));
                return Err(BackendError::new(BackendErrorKind::Options, line));
            }
        };
        let device = DeviceInfo { backend: "remote", name: options.url, n_threads: 0 };
        Ok(RemoteBackend { http, model, device })
    }
}

impl Completions for RemoteBackend {
    fn info(&self) -> (&str, &DeviceInfo) {
        (&self.model, &self.device)
    }

    fn generate(
        &self,
        request: &CompletionRequest,
        each: &mut dyn FnMut(CompletionEvent) -> ControlFlow<()>,
    ) -> Result<CompletionEnd, BackendError> {
        let mut answer = answer::Answer::new(&self.model);
        let told = self.stream(request, &mut answer, each);
        request.interrupt.clear_hook();
        match told {
            // What broke off did so because it was to.
            _ if request.interrupt.is_set() => Ok(answer.given_up()),
            Ok(()) => answer.end(),
            Err(error) => Err(error),
        }
    }

    fn embed(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, BackendError> {
        let answer = self.http.post_json("embeddings", &json!({ "model": self.model, "input": texts }))?;
        let vectors: Option<Vec<Vec<f32>>> =
            answer["data"].as_array().and_then(|data| data.iter().map(vector).collect());
        vectors.filter(|vectors| vectors.len() == texts.len()).ok_or_else(|| {
            let line = format!("{} answered without a vector for each text", self.device.name);
            BackendError::new(BackendErrorKind::Remote, line)
        })
    }

    fn check(&self) -> Result<(), BackendError> {
        self.http.check("models")
    }
}

impl RemoteBackend {
    /// Asks, and tells the pieces of the answer.
    fn stream(
        &self,
        request: &CompletionRequest,
        answer: &mut answer::Answer,
        each: &mut dyn FnMut(CompletionEvent) -> ControlFlow<()>,
    ) -> Result<(), BackendError> {
        let path = if request.prompt.is_some() { "completions" } else { "chat/completions" };
        let reader = self.http.post(path, &body::of(request, &self.model), &request.interrupt)?;
        for event in events::Events::new(reader) {
            let event = event.map_err(|error| self.http.broken(error))?;
            if answer.take(&event, each)?.is_break() {
                break;
            }
        }
        Ok(())
    }
}

fn vector(item: &Value) -> Option<Vec<f32>> {
    let values = item["embedding"].as_array()?;
    values.iter().map(|value| value.as_f64().map(|value| value as f32)).collect()
}
