//! `"model": "auto"`: the model that a router chooses by the query, and `/v1/route`, which only says so.

use std::sync::Arc;
use std::time::Instant;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use ruvllm_learning::{Decision, ModelRouter, ServiceEmbedder};
use ruvllm_router::roles::Role;
use ruvllm_router::{Embedder, Weighing};
use ruvllm_sona::policy::PolicyKind;
use serde_json::{Value, json};

use crate::app::{Answer, Endpoint, Plain, Run, Server};
use crate::auth::Tenant;
use crate::error::{ApiError, json_response};
use crate::fields::{Field, Given, Kind, optional};
use crate::generate::offload;
use crate::openai::messages;
use crate::witness::tenant_name;

/// The name by which a request leaves the choice of its model to the router.
pub(crate) const AUTO: &str = "auto";
/// The model that was chosen, in an answer's headers.
pub(crate) const CHOSEN: HeaderName = HeaderName::from_static("x-ruvllm-model");
/// And why.
pub(crate) const REASON: HeaderName = HeaderName::from_static("x-ruvllm-routing");

const ROUTE: &[Field] = &[
    optional("input", Kind::Text, "the query"),
    optional("messages", messages::MESSAGES, "or a conversation, of which the last message of the user is the query"),
];

/// The endpoint.
pub(crate) static ENDPOINTS: &[Endpoint] = &[Endpoint {
    path: "/v1/route",
    summary: "Says which model the router would choose for a query, and why",
    fields: &[ROUTE],
    answers: &["model", "reason", "quality", "cost", "saved", "qualities", "confidence", "role", "route", "took_us"],
    run: Run::Server(route),
    ..Endpoint::POST
}];

/// Returns a decision as clients and `ruvllm route` see it.
pub fn decision_json(router: &ModelRouter, decision: &Decision) -> Value {
    let Decision { model, choice, prediction, role, route } = decision;
    let expected = router.models.iter().zip(&prediction.qualities);
    let qualities: serde_json::Map<String, Value> =
        expected.map(|(model, quality)| (model.name.clone(), json!(quality))).collect();
    let role = role.as_ref().map(|verdict| {
        let ranked = verdict.ranked.iter().take(3).map(|(role, share)| json!({ "role": role.name(), "share": share }));
        json!({ "role": verdict.role.map(Role::name), "likeliest": ranked.collect::<Vec<_>>() })
    });
    let route = route.as_ref().map(|found| json!({ "name": found.name, "similarity": found.similarity }));
    json!({
        "model": model,
        "reason": choice.reason,
        "quality": choice.quality,
        "cost": choice.cost,
        "saved": choice.saved,
        "qualities": qualities,
        "confidence": prediction.confidence,
        "role": role,
        "route": route,
    })
}

/// Returns the text that a request is about: the last of the user, or the prompt.
pub(crate) fn query_of(given: &Given) -> Option<String> {
    let of_content = |content: &Value| match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            (!texts.is_empty()).then(|| texts.join("\n"))
        }
        _ => None,
    };
    let of_messages = |messages: &Vec<Value>| {
        let mut of_user = messages.iter().rev().filter(|message| message["role"] == "user");
        of_user.find_map(|message| of_content(&message["content"]))
    };
    let listed = |name: &str| given.list(name).and_then(of_messages);
    let text = |name: &str| match given.get(name)? {
        Value::String(text) => Some(text.clone()),
        Value::Array(texts) => texts.first()?.as_str().map(str::to_owned),
        _ => None,
    };
    listed("messages").or_else(|| listed("input")).or_else(|| text("input")).or_else(|| text("prompt"))
}

impl Server {
    /// Returns whether a request of this model's name leaves the choice to the router.
    pub(crate) fn is_routed(&self, name: Option<&str>) -> bool {
        self.router.is_some() && name == Some(AUTO) && !self.models.is_served(AUTO)
    }

    /// Decides which model answers a request.
    ///
    /// # Errors
    /// There is no text to decide by, or the model that makes embeddings cannot.
    pub(crate) async fn decide(
        self: &Arc<Server>,
        (tenant, given): (&Tenant, &Given),
        deadline: Option<Instant>,
    ) -> Result<Decision, ApiError> {
        let Some(router) = self.router.clone() else {
            let line = "this server has no router; start it with --router DIR";
            return Err(ApiError::new(StatusCode::NOT_FOUND, line).code("no_router"));
        };
        let query = query_of(given).ok_or_else(|| {
            let line = "there is no text to choose a model by; name one";
            ApiError::bad("model", line)
        })?;
        let weighing = self.weighing(&router, tenant);
        if let Some(embedding) = router.embedder.embed(&query) {
            return Ok(router.decide_by(&query, &embedding, weighing)?);
        }
        let ruvllm_learning::EmbedderName::Model(name, _) = &router.embedder else {
            return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the router has no way to embed"));
        };
        let model = self.model(Some(name), deadline).await?;
        offload(move || {
            let embedding = ServiceEmbedder::new(model.service.clone()).embed(&query);
            let failed = |error: ruvllm_router::RouterError| {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, format!("the query cannot be embedded: {error}"))
            };
            Ok(router.decide_by(&query, &embedding.map_err(failed)?, weighing)?)
        })
        .await
    }

    /// Returns how quality and cost are weighed for a tenant: as a policy says, or the router.
    fn weighing(&self, router: &ModelRouter, tenant: &Tenant) -> Weighing {
        let policy = self.witness.as_ref().and_then(|witness| witness.policy(PolicyKind::Router, tenant_name(tenant)));
        let said = policy.and_then(|policy| policy.read::<Weighing>().ok()).filter(|weighing| weighing.is_sound());
        said.unwrap_or(router.weighing)
    }
}

/// Says in an answer's headers which model was chosen, and why.
pub(crate) fn tell(headers: &mut HeaderMap, model: &str, reason: &str) {
    for (name, text) in [(CHOSEN, model), (REASON, reason)] {
        // A name that is no header's text is left out; /v1/route has it.
        if let Ok(value) = HeaderValue::from_str(text) {
            headers.insert(name, value);
        }
    }
}

fn route(call: Plain) -> Answer {
    Box::pin(async move {
        let start = Instant::now();
        let decision = call.server.decide((&call.tenant, &call.given), call.deadline).await?;
        let took_us = start.elapsed().as_micros() as u64;
        let router = call.server.router.as_ref().expect("it has just decided");
        let mut answer = decision_json(router, &decision);
        answer["took_us"] = json!(took_us);
        Ok(json_response(StatusCode::OK, &answer))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_is_what_the_user_said_last() {
        let query = |body: Value| query_of(&Given::from(body.as_object().cloned().unwrap_or_default()));
        let user = |text: &str| json!({ "role": "user", "content": text });
        let assistant = json!({ "role": "assistant", "content": "hm" });
        assert_eq!(query(json!({ "messages": [user("a"), assistant, user("b")] })).as_deref(), Some("b"));
        let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
        assert_eq!(query(json!({ "messages": [{ "role": "user", "content": parts }] })).as_deref(), Some("a\nb"));
        assert_eq!(query(json!({ "prompt": "a" })).as_deref(), Some("a"));
        assert_eq!(query(json!({ "prompt": ["a", "b"] })).as_deref(), Some("a"));
        assert_eq!(query(json!({ "input": "a" })).as_deref(), Some("a"));
        assert_eq!(query(json!({ "input": [user("a")] })).as_deref(), Some("a"));
        assert_eq!(query(json!({ "prompt": [1, 2] })), None);
        assert_eq!(query(json!({ "messages": [assistant] })), None);
    }
}
