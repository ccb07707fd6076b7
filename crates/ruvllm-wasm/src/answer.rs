//! Answers to chats and completions on their way: events of the engine become chunks as the server streams them, and at the end
//! the whole answer.

use std::sync::{Arc, Mutex, PoisonError};

use ruvllm_api::error::ApiError;
use ruvllm_api::fields::ValidBody;
use ruvllm_api::generation::{Parsed, check_finished, check_fits};
use ruvllm_api::limits::AnswerLimits;
use ruvllm_api::logprobs::{self, AnswerTokens};
use ruvllm_api::openai::{self, Head, Usage, chat, finish_json};
use ruvllm_api::progress::{self, with_progress};
use ruvllm_api::reading::{AnswerReader, Whole};
use ruvllm_api::timings::{Clocks, timed, timings};
use ruvllm_engine::thoughts::Thinking;
use ruvllm_engine::tools::ToolUse;
use ruvllm_engine::{
    ErrorKind, GenerateRequest, GenerationSummary, LogitsProcessor, ProgressSink, PromptProgress, Service,
    ServiceEvent, Ticket, TokenEvent,
};
use serde_json::{Value, json};

/// A request that was read, but for its prompts.
pub(crate) struct Question {
    /// Its fields.
    pub given: ValidBody,
    /// Wishes about its answers.
    pub parsed: Parsed,
    /// Its prompts.
    pub prompts: Vec<Vec<u32>>,
    /// Kind of its answers.
    pub kind: Kind,
}

/// Kind of an answer.
pub(crate) enum Kind {
    /// To a conversation, with the functions that may be called.
    Chat(Option<ToolUse>),
    /// To texts, each of which an answer may begin with.
    Completion(Vec<String>),
}

/// Makes what answer `i` learns by.
pub(crate) type Learner<'a> = &'a dyn Fn(usize) -> Option<Arc<dyn LogitsProcessor>>;

/// Events that wait, and which answer each is of.
type Events = Arc<Mutex<Vec<(usize, Event)>>>;

/// Event of an answer.
#[expect(clippy::large_enum_variant, reason = "few wait at a time; a box would only add a hop")]
enum Event {
    /// More of its prompt is computed.
    Progress(PromptProgress),
    Service(ServiceEvent),
}

/// Adds an event of answer `i`.
fn push(events: &Events, i: usize, event: Event) {
    events.lock().unwrap_or_else(PoisonError::into_inner).push((i, event));
}

/// Answers to one request.
pub(crate) struct Answer {
    given: ValidBody,
    kind: Kind,
    service: Service,
    /// Number of the request.
    id: String,
    /// Beginning of each chunk.
    head: Value,
    include_usage: bool,
    n_choices: usize,
    thinking: Option<Thinking>,
    choices: Vec<Choice>,
    clocks: Clocks,
    events: Events,
    /// Chunks that wait to be taken.
    chunks: Vec<Value>,
    is_over: bool,
    _tickets: Vec<Ticket>,
}

/// One of the answers.
struct Choice {
    reader: AnswerReader,
    limits: Option<AnswerLimits>,
    /// Bytes of its text that were told.
    n_told: usize,
    /// Characters of its text with log-probabilities.
    offset: usize,
    summary: Option<GenerationSummary>,
}

/// What came of a request since somebody looked.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// Chunks, as the server streams them.
    pub chunks: Vec<Value>,
    /// The whole answer, or why there is none; nothing follows.
    pub end: Option<Result<Value, ApiError>>,
}

impl Answer {
    /// Hands the requests to the engine: so many answers to each prompt as are asked for.
    ///
    /// # Errors
    /// A prompt that does not fit, an option out of range, a full queue.
    pub(crate) fn start(
        service: &Service,
        model: &str,
        id: String,
        question: Question,
        learner: Learner<'_>,
    ) -> Result<Answer, ApiError> {
        let Question { given, parsed, prompts, kind } = question;
        let Parsed { n_choices, include_usage, request, .. } = parsed;
        let n = prompts.len() * n_choices;
        if n > service.n_inside_max() {
            let most = service.n_inside_max();
            let line = format!("{n} answers in one request are more than the {most} that there is room for");
            return Err(ApiError::bad("n", format!("{line}; ask for fewer")));
        }
        let (prefix, object) = match kind {
            Kind::Chat(_) => ("chatcmpl", "chat.completion.chunk"),
            Kind::Completion(_) => ("cmpl", "text_completion"),
        };
        let (events, full_id) = (Events::default(), format!("{prefix}-{id}"));
        let head = openai::head(Head { id: &full_id, object, model, device: &service.info().device.name });
        let (mut choices, mut tickets) = (Vec::with_capacity(n), Vec::with_capacity(n));
        for i in 0..n {
            let mut request = GenerateRequest { prompt: prompts[i / n_choices].clone(), ..request.clone() };
            (request.cancel, request.unread) = Default::default();
            request.sampling.seed = request.sampling.seed.map(|seed| seed.wrapping_add((i % n_choices) as u64));
            request.logits_processor = learner(i);
            let limits = AnswerLimits::of(&given, &request.cancel);
            let reader = AnswerReader::new(kind.tool_use(), request.thinking);
            choices.push(Choice { reader, limits, n_told: 0, offset: 0, summary: None });
            if progress::is_asked(&given) {
                let events = Arc::clone(&events);
                request.progress = Some(ProgressSink::new(move |progress| push(&events, i, Event::Progress(progress))));
            }
            let (sink_events, n_prompt) = (Arc::clone(&events), request.prompt.len());
            let sink = move |event| {
                push(&sink_events, i, Event::Service(event));
                true
            };
            let ticket = service.submit(request, Box::new(sink)).map_err(|error| match error.kind() {
                ErrorKind::ContextLength => {
                    check_fits(service.info(), n_prompt, 1).err().unwrap_or_else(|| error.into())
                }
                _ => error.into(),
            })?;
            tickets.push(ticket);
        }
        let clocks = Clocks::new(&given, n);
        let mut answer = Answer {
            given,
            kind,
            service: service.clone(),
            id,
            head,
            include_usage,
            n_choices,
            thinking: request.thinking,
            choices,
            clocks,
            events,
            chunks: Vec::new(),
            is_over: false,
            _tickets: tickets,
        };
        answer.begin();
        Ok(answer)
    }

    /// Writes the chunks that begin each answer.
    fn begin(&mut self) {
        for i in 0..self.choices.len() {
            let first = match &self.kind {
                Kind::Chat(tool_use) => {
                    let has_none = tool_use.as_ref().is_some_and(ToolUse::is_forced);
                    chat::begin(if has_none { Value::Null } else { json!("") })
                }
                Kind::Completion(echoes) if echoes.is_empty() => return,
                Kind::Completion(echoes) => json!(echoes[i / self.n_choices]),
            };
            let chunk = self.chunk(i, first, Value::Null, None);
            self.chunks.push(chunk);
        }
    }

    /// Takes what came since the last call. Nothing follows an end.
    pub(crate) fn take(&mut self) -> Taken {
        if self.is_over {
            return Taken::default();
        }
        let events = std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner));
        for (i, event) in events {
            let ended = match event {
                Event::Progress(progress) => {
                    let nothing = if matches!(self.kind, Kind::Chat(_)) { json!({}) } else { json!("") };
                    self.chunks.push(with_progress(self.chunk(i, nothing, Value::Null, None), &progress));
                    Ok(())
                }
                Event::Service(ServiceEvent::Token(token)) => {
                    self.token(i, token);
                    Ok(())
                }
                Event::Service(ServiceEvent::Done(result)) => {
                    result.map_err(ApiError::from).and_then(|summary| self.end(i, summary))
                }
            };
            if let Err(error) = ended {
                self.is_over = true;
                return Taken { chunks: std::mem::take(&mut self.chunks), end: Some(Err(error)) };
            }
        }
        self.is_over = self.choices.iter().all(|choice| choice.summary.is_some());
        let end = self.is_over.then(|| Ok(self.whole()));
        Taken { chunks: std::mem::take(&mut self.chunks), end }
    }

    /// Returns a chunk of answer `i`.
    fn chunk(&self, i: usize, piece: Value, logprobs: Value, finish: Option<&str>) -> Value {
        let field = match self.kind {
            Kind::Chat(_) => "delta",
            Kind::Completion(_) => "text",
        };
        let choice = json!({ "index": i, field: piece, "logprobs": logprobs, "finish_reason": finish });
        openai::chunk(&self.head, self.include_usage, json!([choice]))
    }

    fn token(&mut self, i: usize, mut token: TokenEvent) {
        let times = self.clocks.tick(i);
        let choice = &mut self.choices[i];
        choice.limits.iter_mut().for_each(|cut| cut.take(&mut token.text));
        choice.n_told += token.text.len();
        let told = token.logprobs.as_ref().map(|logprobs| (token.id, logprobs));
        let of =
            AnswerTokens { tokenizer: self.service.text().tokenizer(), ignores_eos: self.given.is_set("ignore_eos") };
        match &self.kind {
            Kind::Chat(_) => {
                let mut logprobs = logprobs::of_chat(of, told.into_iter());
                let of_choice = chat::ChatChoice { given: &self.given, id: &self.id, index: i };
                let events = choice.reader.push(&token.text);
                let pieces: Vec<Value> = events.into_iter().filter_map(|event| of_choice.delta(event)).collect();
                for piece in pieces {
                    let chunk = timed(self.chunk(i, piece, logprobs.take(), None), &times);
                    self.chunks.push(chunk);
                }
                if !logprobs.is_null() {
                    let chunk = timed(self.chunk(i, json!({ "content": "" }), logprobs, None), &times);
                    self.chunks.push(chunk);
                }
            }
            Kind::Completion(_) => {
                let offset = &mut choice.offset;
                let told = told.map(|told| logprobs::of_completion(of, [told].into_iter(), offset));
                if !token.text.is_empty() || told.is_some() {
                    let chunk = self.chunk(i, json!(token.text), told.unwrap_or_default(), None);
                    self.chunks.push(timed(chunk, &times));
                }
            }
        }
    }

    /// Ends answer `i`.
    ///
    /// # Errors
    /// It did not come to its end.
    fn end(&mut self, i: usize, mut summary: GenerationSummary) -> Result<(), ApiError> {
        let choice = &mut self.choices[i];
        choice.limits.iter().for_each(|cut| cut.end(&mut summary));
        check_finished(summary.finish_reason, summary.tokens.len())?;
        let (times, rest) = (timings(&summary), summary.text.get(choice.n_told..).unwrap_or_default().to_owned());
        let last = match &self.kind {
            Kind::Chat(_) => {
                let of_choice = chat::ChatChoice { given: &self.given, id: &self.id, index: i };
                let events = choice.reader.finish(&rest, &summary);
                let pieces: Vec<Value> = events.into_iter().filter_map(|event| of_choice.delta(event)).collect();
                let reason = chat::finish(summary.finish_reason, choice.reader.has_calls());
                for piece in pieces {
                    let chunk = self.chunk(i, piece, Value::Null, None);
                    self.chunks.push(chunk);
                }
                self.chunk(i, json!({}), Value::Null, Some(reason))
            }
            Kind::Completion(_) => self.chunk(i, json!(rest), Value::Null, Some(finish_json(summary.finish_reason))),
        };
        self.chunks.push(timed(last, &times));
        self.choices[i].summary = Some(summary);
        if self.include_usage && self.choices.iter().all(|choice| choice.summary.is_some()) {
            let mut last = openai::chunk(&self.head, true, json!([]));
            last["usage"] = self.usage().json();
            self.chunks.push(timed(last, &times));
        }
        Ok(())
    }

    fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for (i, summary) in self.choices.iter().filter_map(|choice| choice.summary.as_ref()).enumerate() {
            usage.add(Usage::of(summary), i % self.n_choices == 0);
        }
        usage
    }

    /// Returns the answer in one piece.
    fn whole(&self) -> Value {
        let of =
            AnswerTokens { tokenizer: self.service.text().tokenizer(), ignores_eos: self.given.is_set("ignore_eos") };
        let summaries: Vec<&GenerationSummary> =
            self.choices.iter().filter_map(|choice| choice.summary.as_ref()).collect();
        let choice = |(i, summary): (usize, &&GenerationSummary)| {
            let told = || summary.tokens.iter().copied().zip(&summary.logprobs);
            match &self.kind {
                Kind::Chat(tool_use) => {
                    let reader = AnswerReader::new(tool_use.as_ref(), self.thinking);
                    let whole = Whole::read(reader, summary);
                    let of_choice = chat::ChatChoice { given: &self.given, id: &self.id, index: i };
                    json!({
                        "index": i,
                        "message": of_choice.message(&whole, tool_use.is_some()),
                        "logprobs": logprobs::of_chat(of, told()),
                        "finish_reason": chat::finish(summary.finish_reason, !whole.calls.is_empty()),
                    })
                }
                Kind::Completion(echoes) => {
                    let echo = echoes.get(i / self.n_choices).map_or("", String::as_str);
                    let is_told = self.given.get("logprobs").is_some();
                    json!({
                        "index": i,
                        "text": format!("{echo}{}", summary.text),
                        "logprobs": is_told.then(|| logprobs::of_completion(of, told(), &mut 0)),
                        "finish_reason": finish_json(summary.finish_reason),
                    })
                }
            }
        };
        let mut answer = self.head.clone();
        if matches!(self.kind, Kind::Chat(_)) {
            answer["object"] = json!("chat.completion");
        }
        answer["choices"] = summaries.iter().enumerate().map(choice).collect();
        answer["usage"] = self.usage().json();
        answer["timings"] = summaries.first().map_or(Value::Null, |first| timings(first));
        answer
    }
}

impl Kind {
    fn tool_use(&self) -> Option<&ToolUse> {
        match self {
            Kind::Chat(tool_use) => tool_use.as_ref(),
            Kind::Completion(_) => None,
        }
    }
}
