//! Parts that all chats share: prompts from messages and texts, and how many log-probabilities are told.

use ruvllm_api::error::ApiError;
use ruvllm_api::remote::missing;
use ruvllm_api::{generation, input, messages, remote, thinking};
use ruvllm_backend::CompletionRequest;
use ruvllm_engine::GenerateRequest;
use ruvllm_engine::template::ChatInput;
use ruvllm_engine::tools::ToolUse;
use ruvllm_server_state::gate::offload;
use serde_json::{Value, json};

use super::Call;
use super::generate::ParsedRequest;
use super::patterns::attend;

/// Prompt of an answer.
#[derive(Clone, Debug)]
pub(crate) enum Prompt {
    /// Tokens, for an engine.
    Tokens(Vec<u32>),
    /// A conversation or a text in the words of another server, with what the request says of the answer.
    Remote(Box<CompletionRequest>),
}

impl Prompt {
    /// Returns the tokens; none if another server reads it.
    pub(crate) fn tokens(&self) -> &[u32] {
        match self {
            Prompt::Tokens(tokens) => tokens,
            Prompt::Remote(_) => &[],
        }
    }

    /// Returns the tokens.
    ///
    /// # Errors
    /// 501: another server answers for the model, and gives no tokens.
    pub(crate) fn into_tokens(self, call: &Call) -> Result<Vec<u32>, ApiError> {
        match self {
            Prompt::Tokens(tokens) => Ok(tokens),
            Prompt::Remote(_) => Err(missing(&call.model_name, "tokens")),
        }
    }

    /// Returns the request to another server.
    ///
    /// # Errors
    /// 501: it is tokens, which another server does not read.
    pub(crate) fn into_request(self, call: &Call) -> Result<CompletionRequest, ApiError> {
        match self {
            Prompt::Tokens(_) => Err(missing(&call.model_name, "tokens")),
            Prompt::Remote(request) => Ok(*request),
        }
    }
}

/// A conversation that is to be answered.
#[derive(Debug)]
pub(crate) struct Conversation {
    /// The messages, as chat templates read them.
    pub messages: Vec<Value>,
    /// Text that the assistant has begun to answer with.
    pub begun: Option<String>,
    /// Whether the prompt ends with what opens an answer.
    pub opens_answer: bool,
}

impl Call {
    /// Returns messages in OpenAI's words as chat templates read them.
    ///
    /// # Errors
    /// As [`messages::for_template`].
    pub(crate) fn for_template(&self, given: &[Value]) -> Result<Vec<Value>, ApiError> {
        match self.model.engine() {
            Some(service) => messages::for_template(given, service.text()),
            None => messages::for_any_template(given),
        }
    }

    /// Has an answer to a prompt begin with what the model thinks, told apart from what it says. Another server tells it apart
    /// by itself.
    ///
    /// # Errors
    /// None where the prompt is of the call's model.
    pub(crate) fn begin_thinking(&self, request: &mut GenerateRequest, prompt: &Prompt) -> Result<(), ApiError> {
        if let Prompt::Tokens(tokens) = prompt {
            thinking::begin(&self.body, self.text()?, request, tokens);
        }
        Ok(())
    }
}

/// Returns the prompt of a conversation. One that is too long is shortened if `asked` says so.
///
/// # Errors
/// The template refuses the messages, or fields do not go together.
pub(crate) async fn prompt(
    call: &mut Call,
    asked: Option<&ParsedRequest>,
    tool_use: Option<&ToolUse>,
    conversation: Conversation,
) -> Result<Prompt, ApiError> {
    let Conversation { messages, begun, opens_answer } = conversation;
    let add_generation_prompt = begun.is_some() || opens_answer;
    let Some(service) = call.model.engine() else {
        return remote_prompt(call, Conversation { messages, begun, opens_answer });
    };
    let text = service.text().clone();
    let input = ChatInput {
        messages,
        tools: tool_use.map(ToolUse::definitions),
        add_generation_prompt,
        extra: thinking::variables(&call.body, &text, &call.model_name)?,
        ..ChatInput::default()
    };
    let input = attend(call, input).await?;
    let shortened = asked.filter(|asked| asked.is_truncated);
    let n_max = shortened.map(|asked| prompt_max(call, &asked.request)).transpose()?;
    let (parse_special, thinks_not) = (call.body.is_set("parse_special"), thinking::is_off(&call.body));
    let encode = move || {
        let begun = begun.as_deref().unwrap_or_default();
        let encoding = messages::Encoding { n_max, parse_special, thinks_not, begun };
        Ok(Prompt::Tokens(messages::encode(&text, input, encoding)?))
    };
    offload(encode).await
}

/// Returns a conversation in the words of another server.
fn remote_prompt(call: &Call, conversation: Conversation) -> Result<Prompt, ApiError> {
    let Conversation { mut messages, begun, opens_answer } = conversation;
    let mut request = remote::request(&call.body, &call.model_name)?;
    if let Some(begun) = &begun {
        messages.push(json!({ "role": "assistant", "content": begun }));
        request.extra.insert("continue_final_message".to_owned(), json!(true));
    }
    if begun.is_some() || !opens_answer {
        request.extra.insert("add_generation_prompt".to_owned(), json!(false));
    }
    request.messages = remote::conversation(messages);
    Ok(Prompt::Remote(Box::new(request)))
}

/// Returns the prompts of texts that another server continues.
///
/// # Errors
/// 501: tokens are among them; too many texts.
pub(crate) fn remote_texts(call: &Call, field: &'static str) -> Result<Vec<Prompt>, ApiError> {
    let request = remote::request(&call.body, &call.model_name)?;
    let prompt = |text| Prompt::Remote(Box::new(CompletionRequest { prompt: Some(text), ..request.clone() }));
    Ok(texts(call, field)?.into_iter().map(prompt).collect())
}

/// Returns the texts of a field, for a model that another server answers for.
///
/// # Errors
/// 501: tokens are among them; too many texts.
pub(crate) fn texts(call: &Call, field: &'static str) -> Result<Vec<String>, ApiError> {
    let given = call.body.get(field).cloned().unwrap_or_default();
    input::texts(&given, field)?.ok_or_else(|| {
        let error = missing(&call.model_name, "tokens, and takes none");
        ApiError { param: Some(field.to_owned()), ..error }
    })
}

/// Drops the beginnings of prompts that leave no room for an answer, if the request asks for that; returns which it did.
pub(crate) fn shorten(call: &Call, asked: &ParsedRequest, prompts: &mut [Vec<u32>]) -> Result<Vec<bool>, ApiError> {
    let n_max = if asked.is_truncated { prompt_max(call, &asked.request)? } else { usize::MAX };
    let shorten = |prompt: &mut Vec<u32>| prompt.drain(..prompt.len().saturating_sub(n_max)).count() > 0;
    Ok(prompts.iter_mut().map(shorten).collect())
}

/// Returns how many tokens a prompt may have that leaves room for its answer: up to half of the context is kept for it.
///
/// # Errors
/// 501: another server answers for the model.
pub(crate) fn prompt_max(call: &Call, request: &GenerateRequest) -> Result<usize, ApiError> {
    Ok(generation::prompt_max(call.model.service()?.info().n_ctx, request))
}
