//! From a checked request to requests of an engine or of another server, and what comes of them.

use std::sync::{Arc, Mutex};

use axum::http::StatusCode;
use ruvllm_api::error::ApiError;
use ruvllm_api::generation::{self, Chooser, Parsed, check_finished};
use ruvllm_api::limits::AnswerLimits;
use ruvllm_api::{progress, remote};
use ruvllm_backend::{CompletionRequest, Interrupt};
use ruvllm_engine::{ErrorKind, GenerateRequest, ProgressSink, PromptProgress, Service, ServiceEvent, Ticket, Unread};
use ruvllm_server_state::keys::TenantSlot;
use ruvllm_server_state::models::{RemoteEvent, RemoteJob, RemoteModel, RemoteTicket, Responder, ServedModel};
use ruvllm_server_state::shared::Share;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::learning;
use super::slot::{self, NamedSlot};
use crate::call::Call;
use crate::call::answer::{Chunk, Hearing, Piece, Summary};
use crate::call::prompt::Prompt;
use crate::call::record::Pending;
use crate::call::turn::Turn;

/// What is asked for, but for the prompt.
#[derive(Clone, Debug)]
pub(crate) struct ParsedRequest {
    pub n_choices: usize,
    pub is_stream: bool,
    pub include_usage: bool,
    pub is_truncated: bool,
    /// Without a prompt.
    pub request: GenerateRequest,
}

impl ParsedRequest {
    /// Reads the fields of [`SAMPLING`] and [`GENERATION`].
    ///
    /// # Errors
    /// 400 for values that do not go together.
    pub(crate) fn read(call: &Call, max_tokens: Option<usize>) -> Result<ParsedRequest, ApiError> {
        let (given, options) = (&call.body, call.server.options());
        let engine = call.model.engine();
        if engine.is_none() {
            remote::check(given, &call.model_name)?;
        }
        let chooser = engine.map(|service| Chooser {
            tokenizer: service.text().tokenizer(),
            n_vocab: service.info().n_vocab,
            sampling: &options.sampling,
        });
        let Parsed { n_choices, is_stream, include_usage, is_truncated, request } =
            Parsed::read(given, max_tokens, chooser)?;
        let priority = call.tenant.priority.saturating_add(given.int("priority").unwrap_or(0) as i8);
        Ok(ParsedRequest {
            n_choices,
            is_stream,
            include_usage,
            is_truncated: is_truncated.unwrap_or(options.truncates),
            request: GenerateRequest {
                ignore_cache: request.ignore_cache || slot::is_erased(call),
                tenant: call.tenant.id,
                adapters: call.adapters.clone(),
                speculation: options.speculation,
                priority,
                deadline: call.deadline,
                ..request
            },
        })
    }

    /// Returns the requests to an engine for `n_choices` answers to each prompt.
    fn requests(&self, prompts: Vec<Vec<u32>>) -> Vec<GenerateRequest> {
        let choice = |prompt: &Vec<u32>, i: usize| {
            let mut request = GenerateRequest { prompt: prompt.clone(), ..self.request.clone() };
            (request.cancel, request.unread) = Default::default();
            request.sampling.seed = request.sampling.seed.map(|seed| seed.wrapping_add(i as u64));
            request
        };
        prompts.iter().flat_map(|prompt| (0..self.n_choices).map(move |i| choice(prompt, i))).collect()
    }

    /// Returns the requests to another server for `n_choices` answers to each prompt.
    fn remote_requests(&self, prompts: Vec<CompletionRequest>) -> Vec<CompletionRequest> {
        let choice = |prompt: &CompletionRequest, i: usize| CompletionRequest {
            max_tokens: self.request.max_tokens,
            stop: self.request.stop.clone(),
            top_logprobs: self.request.logprobs,
            seed: prompt.seed.map(|seed| seed.wrapping_add(i as u64)),
            interrupt: Interrupt::default(),
            ..prompt.clone()
        };
        prompts.iter().flat_map(|prompt| (0..self.n_choices).map(move |i| choice(prompt, i))).collect()
    }
}

/// Event of a request, from the engine or the other server.
enum AnyEvent {
    Progress(PromptProgress),
    Engine(ServiceEvent),
    Remote(RemoteEvent),
}

/// Ends a request when it is dropped.
#[expect(dead_code, reason = "they are kept to be dropped")]
enum AnyTicket {
    Engine(Ticket),
    Remote(RemoteTicket),
}

/// Answers on their way; when this is dropped they are cancelled.
pub(crate) struct Choices {
    events: UnboundedReceiver<(usize, AnyEvent)>,
    /// Bytes of text told of each.
    n_told: Vec<usize>,
    /// Pieces heard of each answer that another server writes.
    hearings: Vec<Hearing>,
    /// Counts the tokens of each that nobody has asked for yet.
    unread: Vec<Unread>,
    /// What ends each before the model does.
    limits: Vec<Option<AnswerLimits>>,
    n_open: usize,
    /// Tokens of those that are over.
    n_written: usize,
    _tickets: Vec<AnyTicket>,
    /// Memory that is kept for them.
    _held: Arc<Mutex<Vec<Share>>>,
    place: TenantSlot,
    /// The slot that the request names, of which it is the last.
    named_slot: Option<NamedSlot>,
    span: tracing::Span,
    /// The conversation that it is a turn of.
    turn: Option<Turn>,
}

impl Choices {
    /// Hands requests for `n_choices` answers to each prompt to the engine, or to the other server.
    ///
    /// # Errors
    /// A request that cannot be, a full queue, or a tenant that has enough of them.
    pub(crate) fn start(call: &Call, asked: &ParsedRequest, prompts: Vec<Prompt>) -> Result<Choices, ApiError> {
        Choices::start_at(call, asked, prompts, None)
    }

    /// Does as [`Choices::start`], in the tenant's place of earlier answers to the same request, if there are some.
    ///
    /// # Errors
    /// As [`Choices::start`].
    pub(crate) fn start_at(
        call: &Call,
        asked: &ParsedRequest,
        prompts: Vec<Prompt>,
        place: Option<TenantSlot>,
    ) -> Result<Choices, ApiError> {
        let (n, n_max) = (prompts.len() * asked.n_choices, call.model.n_inside_max());
        if n > n_max {
            let line =
                format!("{n} answers in one request are more than the {n_max} that the server holds; ask for fewer");
            return Err(ApiError::new(StatusCode::BAD_REQUEST, line));
        }
        let place = place.map_or_else(|| call.tenant.enter(), Ok)?;
        // A request is one turn of its session.
        let turn = if call.round == 0 { Turn::of(call)? } else { None };
        let (sender, events) = unbounded_channel();
        let Submitted { tickets, unread, limits } = match &call.model.answers {
            Responder::Engine(service) => {
                let prompts = prompts.into_iter().map(|prompt| prompt.into_tokens(call)).collect::<Result<_, _>>()?;
                Submitted::to_engine(call, service, asked.requests(prompts), &sender)?
            }
            Responder::Remote(remote) => {
                let prompts = prompts.into_iter().map(|prompt| prompt.into_request(call)).collect::<Result<_, _>>()?;
                Submitted::to_remote(call, remote, asked.remote_requests(prompts), &sender)?
            }
        };
        Ok(Choices {
            events,
            n_told: vec![0; n],
            hearings: (0..n).map(|_| Hearing::default()).collect(),
            unread,
            limits,
            n_open: n,
            n_written: 0,
            _tickets: tickets,
            _held: Arc::clone(&call.held),
            place,
            named_slot: NamedSlot::of(call),
            span: call.span.clone(),
            turn,
        })
    }

    /// Returns the next piece, and of which answer it is; none when all are over.
    ///
    /// # Errors
    /// One of them failed; the others are worth nothing then.
    pub(crate) async fn next(&mut self) -> Result<Option<(usize, Chunk)>, ApiError> {
        if self.n_open == 0 {
            return Ok(None);
        }
        let event = tokio::select! {
            biased;
            event = self.events.recv() => event,
            error = self.place.revoked() => return Err(error),
        };
        let Some((i, event)) = event else {
            let line = "the engine has ended by an internal error; the server's log tells more";
            return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, line));
        };
        match event {
            AnyEvent::Progress(progress) => Ok(Some((i, Chunk::Progress(progress)))),
            AnyEvent::Engine(ServiceEvent::Token(mut token)) => {
                self.limits[i].iter_mut().for_each(|cut| cut.take(&mut token.text));
                Ok(Some((i, self.told(i, Piece::of_token(token)))))
            }
            AnyEvent::Remote(RemoteEvent::Piece(piece)) => {
                let piece = self.hearings[i].take(piece);
                Ok(Some((i, self.told(i, piece))))
            }
            AnyEvent::Engine(ServiceEvent::Done(result)) => {
                let mut generation = result?;
                self.limits[i].iter().for_each(|cut| cut.end(&mut generation));
                self.ended(i, Summary::of_engine(generation))
            }
            AnyEvent::Remote(RemoteEvent::Done(result)) => {
                let summary = self.hearings[i].end(result?);
                self.ended(i, summary)
            }
        }
    }

    /// Counts a piece that is handed on.
    fn told(&mut self, i: usize, piece: Piece) -> Chunk {
        self.n_told[i] += piece.text.len();
        self.unread[i].take();
        Chunk::Token(piece)
    }

    /// Counts an answer that is over.
    fn ended(&mut self, i: usize, summary: Summary) -> Result<Option<(usize, Chunk)>, ApiError> {
        self.n_open -= 1;
        self.record(&summary);
        check_finished(summary.finish_reason, summary.n_answer())?;
        let rest = summary.text.get(self.n_told[i]..).unwrap_or_default().to_owned();
        Ok(Some((i, Chunk::End(rest, Box::new(summary)))))
    }

    /// Adds what an answer came to to the request's span, when the last one is over; its times stand for all.
    fn record(&mut self, summary: &Summary) {
        let timings = &summary.timings;
        self.n_written = self.n_written.saturating_add(summary.n_answer());
        if self.n_open > 0 {
            return;
        }
        if let Some((slot, generation)) = self.named_slot.take().zip(summary.generation()) {
            slot.remember(generation);
        }
        if let Some(turn) = self.turn.take() {
            turn.end(summary);
        }
        self.span.record("prompt_tokens", summary.n_prompt());
        self.span.record("cached_tokens", timings.cached_tokens);
        self.span.record("answer_tokens", self.n_written);
        self.span.record("queue_ms", timings.queue_ms);
        self.span.record("ttft_ms", timings.ttft_ms);
        self.span.record("finish", summary.finish_reason.as_str());
        self.span.in_scope(|| tracing::info!(decode_ms = timings.decode_ms, "written"));
    }

    /// Waits for all answers, and returns them in order.
    ///
    /// # Errors
    /// One of them failed.
    pub(crate) async fn collect(mut self) -> Result<Vec<Summary>, ApiError> {
        self.collect_all().await
    }

    /// Does as [`Choices::collect`], and leaves the tenant its place.
    ///
    /// # Errors
    /// As [`Choices::collect`].
    pub(crate) async fn collect_all(&mut self) -> Result<Vec<Summary>, ApiError> {
        let mut summaries: Vec<Option<Summary>> = vec![None; self.n_told.len()];
        while let Some((i, piece)) = self.next().await? {
            if let Chunk::End(_, summary) = piece {
                summaries[i] = Some(*summary);
            }
        }
        Ok(summaries.into_iter().flatten().collect())
    }

    /// Returns the tenant's place, for more answers to the same request.
    pub(crate) fn into_place(self) -> TenantSlot {
        self.place
    }
}

/// Requests that were taken.
struct Submitted {
    tickets: Vec<AnyTicket>,
    unread: Vec<Unread>,
    limits: Vec<Option<AnswerLimits>>,
}

impl Submitted {
    fn to_engine(
        call: &Call,
        service: &Service,
        requests: Vec<GenerateRequest>,
        sender: &UnboundedSender<(usize, AnyEvent)>,
    ) -> Result<Submitted, ApiError> {
        let n_prompt_max = requests.iter().map(|request| request.prompt.len()).max().unwrap_or(0);
        let unread = requests.iter().map(|request| request.unread.clone()).collect();
        let limits = requests.iter().map(|request| AnswerLimits::of(&call.body, &request.cancel)).collect();
        let submit = |(i, request): (usize, GenerateRequest)| {
            let logits_processor = learning::logits_processor(call, i);
            let mut request = GenerateRequest { logits_processor, ..request };
            let (sender, record) = (sender.clone(), Pending::begin(call, i, &mut request));
            if progress::is_asked(&call.body) {
                let sender = sender.clone();
                let hear = move |progress| drop(sender.send((i, AnyEvent::Progress(progress))));
                request.progress = Some(ProgressSink::new(hear));
            }
            let (of_engine, unread) = (record.clone(), request.unread.clone());
            let sink = move |event| {
                of_engine.see(&event);
                if matches!(event, ServiceEvent::Token(_)) {
                    unread.add();
                }
                sender.send((i, AnyEvent::Engine(event))).is_ok()
            };
            service.submit(request, Box::new(sink)).map(AnyTicket::Engine).map_err(|error| record.refused(error))
        };
        let tickets: Result<Vec<AnyTicket>, _> = requests.into_iter().enumerate().map(submit).collect();
        let tickets = tickets.map_err(|error| match error.kind() {
            ErrorKind::ContextLength => check_fits(&call.model, n_prompt_max, 1).err().unwrap_or_else(|| error.into()),
            _ => with_retry(&call.model, error.into()),
        })?;
        Ok(Submitted { tickets, unread, limits })
    }

    fn to_remote(
        call: &Call,
        remote: &Arc<RemoteModel>,
        requests: Vec<CompletionRequest>,
        sender: &UnboundedSender<(usize, AnyEvent)>,
    ) -> Result<Submitted, ApiError> {
        let (mut unread, limits) = (Vec::new(), requests.iter().map(|_| None).collect());
        let mut tickets = Vec::new();
        for (i, request) in requests.into_iter().enumerate() {
            let (sender, record) = (sender.clone(), Pending::begin_remote(call, i, &request));
            let of_remote = record.clone();
            let sink = move |event| {
                of_remote.see_remote(&event);
                sender.send((i, AnyEvent::Remote(event))).is_ok()
            };
            unread.push(Unread::default());
            let job = RemoteJob { request, tenant: call.tenant.id, deadline: call.deadline, unread: unread[i].clone() };
            let ticket = remote.submit(job, Box::new(sink)).inspect_err(|error| record.refused_remote(error))?;
            tickets.push(AnyTicket::Remote(ticket));
        }
        Ok(Submitted { tickets, unread, limits })
    }
}

/// Checks that a prompt and so many tokens behind it fit the context.
///
/// # Errors
/// 400, with both numbers.
pub(crate) fn check_fits(model: &ServedModel, n_prompt: usize, n_more: usize) -> Result<(), ApiError> {
    generation::check_fits(model.service()?.info(), n_prompt, n_more)
}

/// Adds when to come again to the refusal of a full queue.
pub(crate) fn with_retry(model: &ServedModel, error: ApiError) -> ApiError {
    let is_full = error.status == StatusCode::TOO_MANY_REQUESTS;
    ApiError { retry_after_s: is_full.then(|| model.retry_after_s()), ..error }
}
