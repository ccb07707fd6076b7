//! The model that a router chooses for a request of the model `auto`.

use std::sync::Arc;
use std::time::Instant;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use ruvllm_api::error::ApiError;
use ruvllm_api::fields::ValidBody;
use ruvllm_api::routing::{AUTO, query_of};
use ruvllm_learning::{Decision, ModelRouter, ServiceEmbedder};
use ruvllm_router::{Embedder, Weighing};
use ruvllm_server_state::gate::offload;
use ruvllm_server_state::keys::Tenant;
use ruvllm_server_state::server::Server;
use ruvllm_server_state::witness::tenant_name;
use ruvllm_sona::policy::PolicyKind;

/// The model that was chosen, in an answer's headers.
pub(crate) const CHOSEN: HeaderName = HeaderName::from_static("x-ruvllm-model");
/// And why.
pub(crate) const REASON: HeaderName = HeaderName::from_static("x-ruvllm-routing");

/// Returns whether a request of this model's name leaves the choice to the router.
pub(crate) fn is_routed(server: &Server, name: Option<&str>) -> bool {
    server.router.is_some() && name == Some(AUTO) && !server.models.is_served(AUTO)
}

/// Decides which model answers a request.
///
/// # Errors
/// There is no text to decide by, or the model that makes embeddings cannot.
pub(crate) async fn decide(
    server: &Arc<Server>,
    tenant: &Tenant,
    given: &ValidBody,
    deadline: Option<Instant>,
) -> Result<Decision, ApiError> {
    let Some(router) = server.router.clone() else {
        let line = "this server has no router; start it with --router DIR";
        return Err(ApiError::new(StatusCode::NOT_FOUND, line).code("no_router"));
    };
    let query = query_of(given).ok_or_else(|| {
        let line = "there is no text to choose a model by; name one";
        ApiError::bad("model", line)
    })?;
    let weighing = weighing(server, &router, tenant);
    if let Some(embedding) = router.embedder.embed(&query) {
        return Ok(router.decide_by(&query, &embedding, weighing)?);
    }
    let ruvllm_learning::EmbedderName::Model(name, _) = &router.embedder else {
        return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the router has no way to embed"));
    };
    let model = server.model(Some(name), deadline).await?;
    offload(move || {
        let embedding = ServiceEmbedder::new(model.service()?.clone()).embed(&query);
        let failed = |error: ruvllm_router::RouterError| {
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, format!("the query cannot be embedded: {error}"))
        };
        Ok(router.decide_by(&query, &embedding.map_err(failed)?, weighing)?)
    })
    .await
}

/// Returns how quality and cost are weighed for a tenant: as a policy says, or the router.
fn weighing(server: &Server, router: &ModelRouter, tenant: &Tenant) -> Weighing {
    let policy = server.witness.as_ref().and_then(|witness| witness.policy(PolicyKind::Router, tenant_name(tenant)));
    let said = policy.and_then(|policy| policy.read::<Weighing>().ok()).filter(|weighing| weighing.is_sound());
    said.unwrap_or(router.weighing)
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
