//! A call on its way through a handler: the endpoint, the caller, the checked request and its model; and what handlers have in common.

pub(crate) mod adapters;
pub(crate) mod answer;
pub(crate) mod body;
pub(crate) mod embed;
pub(crate) mod generate;
pub(crate) mod grammar;
pub(crate) mod learning;
pub(crate) mod patterns;
pub(crate) mod prompt;
pub(crate) mod record;
pub(crate) mod response;
pub(crate) mod routing;
pub(crate) mod settings;
pub(crate) mod slot;
pub(crate) mod stream;
pub(crate) mod tools;
pub(crate) mod turn;
pub(crate) mod verbose;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::body::Body;
use axum::http::{HeaderMap, Method, Response, StatusCode, Uri};
use ruvllm_api::adapters::ADAPTER;
use ruvllm_api::error::{ApiError, Shape};
use ruvllm_api::fields::{Field, Unsupported, ValidBody, unescaped};
use ruvllm_api::logprobs::AnswerTokens;
use ruvllm_api::routing::query_of;
use ruvllm_engine::{AdapterSet, ModelText};
use ruvllm_learning::Task;
use ruvllm_server_state::keys::Tenant;
use ruvllm_server_state::models::ServedModel;
use ruvllm_server_state::server::Server;
use ruvllm_server_state::shared::Share;

/// What a handler gives, some time.
pub(crate) type HandlerFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, ApiError>> + Send>>;

/// An endpoint: the router, `/openapi.json` and `/v1/capabilities` are made of these.
pub(crate) struct Endpoint {
    pub method: Method,
    pub path: &'static str,
    /// Other paths where clients of other servers look for it.
    pub also: &'static [&'static str],
    /// Summary in a line.
    pub summary: &'static str,
    pub shape: Shape,
    /// Whether it takes a key, where the server has keys.
    pub needs_key: bool,
    /// The fields of the body, in groups; none for GET.
    pub fields: &'static [&'static [Field]],
    /// The fields of the query, for GET; where there are none it is not looked at.
    pub query: &'static [Field],
    /// Fields that the API has and this server does not, with the reason.
    pub unsupported: &'static Unsupported,
    /// Fields that an answer has.
    pub answers: &'static [&'static str],
    /// Statuses of its errors in addition to those that every endpoint of its form has.
    pub statuses: &'static [u16],
    /// Whether it is a list of objects with these fields.
    pub lists: Lists,
    /// The field that a body is which is a list.
    pub list_field: Option<&'static str>,
    pub run: Handler,
}

/// When an answer is a list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lists {
    Never,
    /// Where a request asks for several.
    Several,
    Always,
}

/// A handler.
#[derive(Clone, Copy)]
pub(crate) enum Handler {
    /// Of the server as a whole.
    Server(fn(ServerCall) -> HandlerFuture),
    /// Of the server, with a form for its body that the handler reads.
    Form(fn(RawCall) -> HandlerFuture),
    /// Of the model that the field `model` names.
    Model(fn(Call) -> HandlerFuture),
}

impl Endpoint {
    /// An endpoint of OpenAI's shape that takes a POST and a key, as those of the tables begin.
    pub(crate) const POST: Endpoint = Endpoint {
        method: Method::POST,
        path: "",
        also: &[],
        summary: "",
        shape: Shape::OpenAi,
        needs_key: true,
        fields: &[],
        query: &[],
        unsupported: &[],
        answers: &[],
        statuses: &[],
        lists: Lists::Never,
        list_field: None,
        run: Handler::Server(no_handler),
    };

    /// Returns whether its requests may name adapters.
    pub(crate) fn takes_adapters(&self) -> bool {
        self.fields.iter().any(|group| group.iter().any(|field| field.name == ADAPTER.name))
    }

    /// Returns all fields of the body.
    pub(crate) fn all_fields(&self) -> Vec<Field> {
        self.fields.iter().flat_map(|group| group.iter().copied()).collect()
    }
}

/// A request whose body the handler reads.
pub(crate) struct RawCall {
    pub server: Arc<Server>,
    pub tenant: Tenant,
    pub headers: HeaderMap,
    pub body: Body,
}

/// A request on its way through a handler that needs no model.
pub(crate) struct ServerCall {
    pub server: Arc<Server>,
    pub tenant: Tenant,
    pub body: ValidBody,
    /// The path as it was asked for.
    pub uri: Uri,
    /// When its time is over.
    pub deadline: Option<Instant>,
}

impl ServerCall {
    /// Returns what stands behind `prefix` in the path.
    pub(crate) fn path_behind(&self, prefix: &str) -> String {
        let path = self.uri.path();
        unescaped(path.strip_prefix(prefix).unwrap_or(path))
    }

    /// Returns the part of the path that stands behind the part `name`; empty if none does.
    pub(crate) fn part_behind(&self, name: &str) -> String {
        unescaped(self.uri.path().split('/').skip_while(|part| *part != name).nth(1).unwrap_or_default())
    }
}

/// A request on its way through a handler.
pub(crate) struct Call {
    pub server: Arc<Server>,
    pub model: Arc<ServedModel>,
    /// The clients that ask at its path.
    pub shape: Shape,
    /// Name of the model in the request, with the adapter that it names there.
    pub model_name: Arc<str>,
    /// Its own word for that, if it may have another.
    pub asked_name: Option<Arc<str>>,
    /// The adapters that change the model for this request.
    pub adapters: AdapterSet,
    pub tenant: Tenant,
    pub body: ValidBody,
    /// Its task, for those who learn from it.
    pub task: Task,
    /// Routing: the chosen model with the reason, if the server chose.
    pub routing: Option<String>,
    /// Names the request in the log and in the header `x-request-id`.
    pub id: String,
    /// Answers of the model that are over, of a request that has several one after the other.
    pub round: usize,
    /// Memory that is kept for it until its answers are over.
    pub held: Arc<Mutex<Vec<Share>>>,
    /// When it asked for its model, and when that was there.
    pub asked_at: Instant,
    pub loaded_at: Instant,
    /// When its time is over.
    pub deadline: Option<Instant>,
    /// The request in the log, to which its handler adds what it comes to know.
    pub span: tracing::Span,
}

/// A checked request of which the model is not known yet.
pub(crate) struct NewCall<'a> {
    pub tenant: Tenant,
    pub body: ValidBody,
    /// When its time is over.
    pub deadline: Option<Instant>,
    /// Names the request in the log.
    pub id: &'a str,
    pub span: &'a tracing::Span,
}

impl Call {
    /// Finds the model that a request names.
    ///
    /// # Errors
    /// As [`Server::model`]; 404 for an adapter that the model does not have.
    pub(crate) async fn new(server: &Arc<Server>, new: NewCall<'_>) -> Result<Call, ApiError> {
        let NewCall { tenant, body: given, deadline, id, span } = new;
        let asked_at = Instant::now();
        let decision = match routing::is_routed(server, given.text("model")) {
            true => Some(routing::decide(server, &tenant, &given, deadline).await?),
            false => None,
        };
        let (name, adapter) = match &decision {
            Some(decision) => (Some(decision.model.as_str()), None),
            None => server.models.split(given.text("model")),
        };
        let model = server.model(name, deadline).await?;
        let loaded_at = Instant::now();
        let model_name = match adapter {
            None => Arc::clone(&model.name),
            Some(adapter) => {
                model.adapters.check(adapter, &tenant)?;
                format!("{}:{adapter}", model.name).into()
            }
        };
        span.record("model", &*model_name);
        learning::open(&model, &tenant).await;
        // Of several prompts none is what all answers are about.
        let is_one = given.list("prompt").is_none_or(|prompts| prompts.len() == 1);
        let task = Task { question: query_of(&given).filter(|_| is_one), ..Task::default() };
        Ok(Call {
            server: Arc::clone(server),
            model,
            shape: Shape::OpenAi,
            model_name,
            asked_name: None,
            adapters: AdapterSet::default(),
            tenant,
            body: given,
            task,
            routing: decision.map(|decision| decision.choice.reason),
            id: id.to_owned(),
            round: 0,
            held: Arc::default(),
            asked_at,
            loaded_at,
            deadline,
            span: span.clone(),
        })
    }

    /// Returns the tokenizer and the template of its model.
    ///
    /// # Errors
    /// 501: another server answers for the model, and gives no tokens.
    pub(crate) fn text(&self) -> Result<&ModelText, ApiError> {
        Ok(self.model.service()?.text())
    }

    /// Returns how tokens of its answer are told with their log-probabilities; none if another server tells them.
    pub(crate) fn answer_tokens(&self) -> Option<AnswerTokens<'_>> {
        let tokenizer = self.model.engine()?.text().tokenizer();
        Some(AnswerTokens { tokenizer, ignores_eos: self.body.is_set("ignore_eos") })
    }

    /// Brings the adapters that the request names.
    ///
    /// # Errors
    /// One is not there, cannot be used, or finds no room in time.
    pub(crate) async fn with_adapters(self) -> Result<Call, ApiError> {
        let adapters = adapters::of_request(&self).await?;
        Ok(Call { adapters, ..self })
    }
}

/// Returns the span of a request: what is written to the log within it is known to belong to it, and what it came to is
/// exported with it.
pub(crate) fn span(id: &str, path: &str) -> tracing::Span {
    use tracing::field::Empty;
    tracing::info_span!(
        "request",
        id,
        path,
        tenant = Empty,
        model = Empty,
        prompt_tokens = Empty,
        cached_tokens = Empty,
        answer_tokens = Empty,
        queue_ms = Empty,
        ttft_ms = Empty,
        finish = Empty,
    )
}

/// Stands where an endpoint of the tables names no handler.
fn no_handler(_: ServerCall) -> HandlerFuture {
    Box::pin(async { Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "this endpoint has no handler")) })
}
