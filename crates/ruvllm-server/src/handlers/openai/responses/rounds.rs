//! Rounds of a response: the model answers, the tools of MCP servers that it called are run, and it goes on.

use ruvllm_api::error::ApiError;
use ruvllm_api::openai::now_s;
use ruvllm_api::reading::ToolCall;
use ruvllm_engine::tools::ToolUse;
use ruvllm_engine::{FinishReason, SamplingParams};
use ruvllm_server_state::keys::TenantSlot;
use ruvllm_witness::decimal;
use serde_json::{Value, json};

use crate::call::Call;
use crate::call::answer::{Reading, Summary};
use crate::call::generate::{Choices, ParsedRequest};
use crate::call::prompt::{Conversation, Prompt, prompt};
use crate::call::tools::read_tools;
use crate::handlers::openai::responses::items::messages;
use crate::handlers::openai::responses::mcp::Offered;
use crate::handlers::openai::responses::output::{Output, Stop};
use crate::handlers::openai::stored::Keeping;

/// Field that bounds what the model writes in all rounds.
const N_MAX: &str = "max_output_tokens";

/// A round that is to be answered.
pub(super) struct Round {
    asked: ParsedRequest,
    tool_use: Option<ToolUse>,
    pub prompt: Prompt,
}

/// A round that the model answers.
pub(super) struct Started {
    round: Round,
    pub choices: Choices,
}

/// Beginning of a response.
pub(super) enum First {
    /// The model answers.
    Round(Box<Started>),
    /// Calls that were approved are run first, in the tenant's place.
    Approved(TenantSlot),
}

/// An answer of the model that is over.
pub(super) struct Ended<'a> {
    pub summary: &'a Summary,
    /// The calls of tools of MCP servers.
    pub calls: Vec<ToolCall>,
    /// Whether it calls functions, which the client runs.
    pub has_functions: bool,
    pub choices: Choices,
}

/// Tokens of all rounds.
#[derive(Default)]
struct Tokens {
    input: usize,
    cached: usize,
    output: usize,
    thought: u32,
}

/// A response on its way.
pub(super) struct Responding {
    pub keeping: Keeping,
    mcp: Option<Offered>,
    is_stream: bool,
    is_truncated: bool,
    /// Sampling of the request; none where another server answers, which has defaults of its own.
    sampling: Option<SamplingParams>,
    used: Tokens,
    /// Items that the conversation has already.
    n_told: usize,
    is_cut: bool,
}

impl Round {
    /// Makes the prompt of a round.
    ///
    /// # Errors
    /// Values that do not go together, or messages that the template refuses.
    pub(super) async fn prepare(call: &mut Call, mut asked: ParsedRequest) -> Result<Round, ApiError> {
        let tool_use = read_tools(call, &mut asked.request).await?;
        let conversation = Conversation { messages: messages(call), begun: None, opens_answer: true };
        let prompt = prompt(call, Some(&asked), tool_use.as_ref(), conversation).await?;
        Ok(Round { asked, tool_use, prompt })
    }

    /// Has the model answer, in the tenant's place if it has one.
    fn start(mut self, call: &Call, place: Option<TenantSlot>) -> Result<Started, ApiError> {
        call.begin_thinking(&mut self.asked.request, &self.prompt)?;
        let choices = Choices::start_at(call, &self.asked, vec![self.prompt.clone()], place)?;
        Ok(Started { round: self, choices })
    }
}

impl Started {
    /// Returns what reads the answer.
    pub(super) fn reading(&self) -> Reading {
        Reading::new(self.round.tool_use.as_ref(), self.round.asked.request.thinking)
    }
}

impl Responding {
    /// Reads a request, and starts the first round, unless calls that were approved are run before it.
    ///
    /// # Errors
    /// Values that do not go together, an earlier answer that is not kept, or what the engine refuses.
    pub(super) async fn new(call: &mut Call) -> Result<(Responding, First), ApiError> {
        let keeping = Keeping::begin(call).await?;
        let mcp = Offered::of(call).await?;
        let asked = ParsedRequest::read(call, call.body.count(N_MAX))?;
        let (is_stream, is_truncated) = (asked.is_stream, asked.is_truncated);
        let sampling = call.model.engine().map(|_| asked.request.sampling.clone());
        let first = match mcp.as_ref().is_some_and(Offered::has_approved) {
            true => First::Approved(call.tenant.enter()?),
            false => First::Round(Box::new(Round::prepare(call, asked).await?.start(call, None)?)),
        };
        let used = Tokens::default();
        Ok((Responding { keeping, mcp, is_stream, is_truncated, sampling, used, n_told: 0, is_cut: false }, first))
    }

    /// Returns whether the response is sent in pieces.
    pub(super) fn is_stream(&self) -> bool {
        self.is_stream
    }

    /// Adds what comes before the model's answer, and returns the first round.
    pub(super) async fn begin(&mut self, call: &mut Call, first: First, output: &mut Output) -> Result<Started, Stop> {
        if let Some(mcp) = &self.mcp {
            mcp.list(call, output).await?;
        }
        let place = match first {
            First::Round(started) => return Ok(*started),
            First::Approved(place) => place,
        };
        if let Some(mcp) = &self.mcp {
            mcp.run_approved(call, &place, output).await?;
        }
        self.tell(call, output);
        let asked = ParsedRequest::read(call, call.body.count(N_MAX))?;
        Ok(Round::prepare(call, asked).await?.start(call, Some(place))?)
    }

    /// Returns whether a name that the model called is that of a tool that is run here.
    pub(super) fn runs(&self, name: &str) -> bool {
        self.mcp.as_ref().is_some_and(|mcp| mcp.has(name))
    }

    /// Runs the calls of an answer, and starts the next round; `None` if the response is over.
    pub(super) async fn next(
        &mut self,
        call: &mut Call,
        ended: Ended<'_>,
        output: &mut Output,
    ) -> Result<Option<Started>, Stop> {
        let Ended { summary, calls, has_functions, choices } = ended;
        self.used.add(summary);
        self.is_cut = summary.finish_reason == FinishReason::Length;
        let Some(mcp) = self.mcp.as_ref().filter(|_| !calls.is_empty()) else { return Ok(None) };
        let place = choices.into_place();
        let is_waiting = mcp.answer(call, &calls, self.is_cut, &place, output).await?;
        if is_waiting || has_functions || self.is_cut {
            return Ok(None);
        }
        let n_left = call.body.count(N_MAX).map(|n_max| n_max.saturating_sub(self.used.output));
        if n_left == Some(0) {
            self.is_cut = true;
            return Ok(None);
        }
        call.round += 1;
        mcp.offer(call);
        self.tell(call, output);
        let asked = ParsedRequest::read(call, n_left)?;
        Ok(Some(Round::prepare(call, asked).await?.start(call, Some(place))?))
    }

    /// Adds the items that are new to the conversation.
    fn tell(&mut self, call: &mut Call, output: &Output) {
        let Some(Value::Array(mut items)) = call.body.take("input") else { return };
        items.extend(output.done[self.n_told..].iter().cloned());
        self.n_told = output.done.len();
        call.body.set("input", Value::Array(items));
    }

    /// Returns the response as it is before it is over.
    pub(super) fn begun(&self, call: &Call) -> Value {
        self.object(call, "in_progress", Vec::new())
    }

    /// Returns the name of the last event, and the response with its items.
    pub(super) fn end(&self, call: &Call, output: &mut Output) -> (&'static str, Value) {
        let (name, status) = match self.is_cut {
            true => ("response.incomplete", "incomplete"),
            false => ("response.completed", "completed"),
        };
        let mut response = self.object(call, status, std::mem::take(&mut output.done));
        response["usage"] = self.used.usage();
        (name, response)
    }

    fn object(&self, call: &Call, status: &str, output: Vec<Value>) -> Value {
        let (given, sampling) = (&call.body, self.sampling.as_ref());
        let chosen = |name: &str, own: Option<f32>| own.or_else(|| given.number(name)).map(decimal);
        let or = |name: &str, other: Value| {
            let own = self.mcp.as_ref().and_then(|mcp| mcp.given(name));
            own.or_else(|| given.get(name)).cloned().unwrap_or(other)
        };
        json!({
            "id": format!("resp_{}", call.id),
            "object": "response",
            "created_at": now_s(),
            "status": status,
            "error": null,
            "incomplete_details": self.is_cut.then(|| json!({ "reason": "max_output_tokens" })),
            "instructions": given.get("instructions"),
            "max_output_tokens": given.get(N_MAX),
            "model": &*call.model_name,
            "output": output,
            "parallel_tool_calls": or("parallel_tool_calls", json!(true)),
            "previous_response_id": given.get("previous_response_id"),
            "conversation": given.get("conversation"),
            "store": given.flag("store", true),
            "temperature": chosen("temperature", sampling.map(|sampling| sampling.temperature)),
            "text": or("text", json!({ "format": { "type": "text" } })),
            "tool_choice": or("tool_choice", json!("auto")),
            "tools": or("tools", json!([])),
            "top_p": chosen("top_p", sampling.map(|sampling| sampling.top_p)),
            "truncation": json!(if self.is_truncated { "auto" } else { "disabled" }),
            "usage": null,
            "user": given.get("user"),
            "metadata": or("metadata", json!({})),
        })
    }
}

impl Tokens {
    fn add(&mut self, summary: &Summary) {
        self.input = self.input.saturating_add(summary.n_prompt());
        self.cached = self.cached.saturating_add(summary.timings.cached_tokens);
        self.output = self.output.saturating_add(summary.n_answer());
        self.thought = self.thought.saturating_add(summary.n_thought);
    }

    fn usage(&self) -> Value {
        json!({
            "input_tokens": self.input,
            "input_tokens_details": { "cached_tokens": self.cached, "cache_write_tokens": 0 },
            "output_tokens": self.output,
            "output_tokens_details": { "reasoning_tokens": self.thought },
            "total_tokens": self.input.saturating_add(self.output),
        })
    }
}
