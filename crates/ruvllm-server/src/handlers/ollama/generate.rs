//! `/api/generate`.

use ruvllm_api::error::ApiError;
use ruvllm_api::fields::{Field, Kind, optional};
use ruvllm_server_state::gate::offload;
use serde_json::json;

use crate::call::generate::ParsedRequest;
use crate::call::prompt::{Prompt, remote_texts, shorten};
use crate::call::tools::use_tools;
use crate::call::{Call, HandlerFuture};
use crate::handlers::ollama::answer::{self, Form};
use crate::handlers::ollama::{chat, messages, options};

/// What a request may say beside how the answer is written.
pub(super) const FIELDS: &[Field] = &[
    optional("prompt", Kind::Text, "what the user says, or with raw the text that is gone on with"),
    optional(
        "suffix",
        Kind::Text,
        "what stands behind the answer: the model fills in the middle, if it was trained to",
    ),
    optional("system", Kind::Text, "what the model is told before the prompt"),
    optional("raw", Kind::Bool, "read the prompt as it is, without the chat template"),
    optional(
        "template",
        Kind::Only("\"\"", "the model's own template is used; send raw with the whole prompt"),
        "none",
    ),
    optional("context", Kind::Only("[]", "send the conversation to /api/chat"), "none"),
    messages::IMAGES,
];

/// Answers a prompt.
pub(super) fn answer(mut call: Call) -> HandlerFuture {
    Box::pin(async move {
        options::lift(&mut call.body);
        check(&call)?;
        let has = |name: &str| call.body.text(name).is_some_and(|text| !text.is_empty());
        if !has("prompt") && !has("suffix") {
            return Ok(answer::loaded(&call, Form::Generate));
        }
        let mut asked = answer::asked(&call)?;
        use_tools(&call, None, &mut asked.request).await?;
        let prompt = prompt(&mut call, &asked).await?;
        answer::respond(call, asked, None, prompt, Form::Generate).await
    })
}

/// Checks that there is a place for all that is said.
fn check(call: &Call) -> Result<(), ApiError> {
    let given = &call.body;
    let has = |name: &str| given.text(name).is_some_and(|text| !text.is_empty());
    let has_template = has_template(call)?;
    let clash = |field: &str, with: &str| {
        Err(ApiError::bad(field, format!("'{field}' does not go with {with}: there is no place for it in the prompt")))
    };
    match (given.is_set("raw"), has("suffix"), has("system")) {
        (true, true, _) => clash("suffix", "'raw'"),
        (true, _, true) => clash("system", "'raw'"),
        (_, true, true) => clash("system", "'suffix'"),
        (.., true) if !has_template => clash("system", "a model without a chat template"),
        _ => Ok(()),
    }
}

/// Returns the prompt: that of a text as it is, of a text with a gap, or of a conversation.
async fn prompt(call: &mut Call, asked: &ParsedRequest) -> Result<Prompt, ApiError> {
    let (is_raw, has_template) = (call.body.is_set("raw"), has_template(call)?);
    let given = |name: &str| call.body.text(name).filter(|text| !text.is_empty()).map(str::to_owned);
    let (prompt, suffix, system) = (given("prompt").unwrap_or_default(), given("suffix"), given("system"));
    if let Some(suffix) = suffix {
        let text = call.text()?.clone();
        return offload(move || Ok(Prompt::Tokens(text.tokenizer().encode_infill(&prompt, &suffix)?))).await;
    }
    if is_raw && call.model.remote().is_some() {
        let mut prompts = remote_texts(call, "prompt")?;
        return prompts.pop().ok_or_else(|| ApiError::bad("prompt", "'prompt' is missing"));
    }
    if is_raw || !has_template {
        let text = call.text()?.clone();
        let parse_special = call.body.flag("parse_special", is_raw);
        let mut tokens = offload(move || Ok(text.tokenizer().encode_prompt(&prompt, parse_special)?)).await?;
        shorten(call, asked, std::slice::from_mut(&mut tokens))?;
        return Ok(Prompt::Tokens(tokens));
    }
    let system = system.map(|system| json!({ "role": "system", "content": system }));
    let messages = system.into_iter().chain([json!({ "role": "user", "content": prompt })]).collect();
    chat::prompt(call, asked, None, messages).await
}

/// Returns whether the model has a chat template. Another server is taken to have one.
fn has_template(call: &Call) -> Result<bool, ApiError> {
    Ok(match call.model.engine() {
        Some(service) => service.text().template()?.is_some(),
        None => true,
    })
}
