//! `"model": "auto"`: the model that a router chooses by the query, and `/v1/route`, which only says so.

use std::time::Instant;

use axum::http::StatusCode;
use ruvllm_api::fields::{Field, Kind, optional};
use ruvllm_api::messages;
use ruvllm_api::routing::decision_json;
use serde_json::json;

use crate::call::response::json_response;
use crate::call::routing::decide;
use crate::call::{Endpoint, Handler, HandlerFuture, ServerCall};

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
    run: Handler::Server(route),
    ..Endpoint::POST
}];

fn route(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        let start = Instant::now();
        let decision = decide(&call.server, &call.tenant, &call.body, call.deadline).await?;
        let took_us = start.elapsed().as_micros() as u64;
        let router = call.server.router.as_ref().expect("it has just decided");
        let mut answer = decision_json(router, &decision);
        answer["took_us"] = json!(took_us);
        Ok(json_response(StatusCode::OK, &answer))
    })
}
