//! A model of this process that answers a conversation: with sessions, learning, and a context that fills up.

use std::sync::Arc;

use ruvllm_api::reading::{AnswerEvent, AnswerReader, Whole};
use ruvllm_api::tools::Offer;
use ruvllm_cli_tools::answer::{answer_shown, speed_line, summary_json};
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::output::{Ui, bytes};
use ruvllm_cli_tools::resume::Resume;
use ruvllm_engine::template::ChatInput;
use ruvllm_engine::tools::{CallEvent, ToolUse};
use ruvllm_engine::{ChatOptions, Engine, FinishReason, GenerateRequest, GenerationSummary, Grammar, Speculation};
use ruvllm_learning::{Correctness, Learning, Question, Task, TenantLearning};
use serde_json::Value;

use crate::commands::chat::session::{Answers, Said, Talk};

/// A loaded model.
pub struct LocalModel {
    engine: Engine,
    ui: Ui,
    speculation: Speculation,
    /// Whether control tokens in messages are read as such.
    parse_special: bool,
    last: Option<GenerationSummary>,
    /// Session in which the conversation is saved.
    resume: Option<Resume>,
    /// Learning from it, and the tenant that learns.
    learning: Option<(Learning, Arc<TenantLearning>)>,
    /// Number of answers so far.
    n_answers: usize,
    /// Tools that were offered last, with the grammar of their calls: at most two offers, as an answer may begin with another
    /// one than it goes on with.
    offered: Vec<Offered>,
}

/// Tools as the model is told of them.
#[derive(Clone)]
struct Offered {
    offer: Offer,
    tool_use: ToolUse,
    grammar: Grammar,
}

/// A conversation that is gone on with.
#[derive(Debug, Default)]
pub struct Begun {
    /// The instructions.
    pub system: Option<String>,
    /// The messages.
    pub messages: Vec<Value>,
    /// Seed of its answers.
    pub seed: Option<u64>,
}

impl LocalModel {
    /// Makes a model of an engine.
    pub fn new(engine: Engine, ui: Ui, speculation: Speculation, parse_special: bool) -> LocalModel {
        let (last, resume, learning, n_answers) = (None, None, None, 0);
        let offered = Vec::new();
        LocalModel { engine, ui, speculation, parse_special, last, resume, learning, n_answers, offered }
    }

    /// Sets who learns of the conversation.
    pub fn set_learning(&mut self, learning: Option<(Learning, Arc<TenantLearning>)>) {
        self.learning = learning;
    }

    /// Goes on with a saved session, if one is given; else, or if it is new, begins with these instructions.
    ///
    /// # Errors
    /// A usage error if the session holds no conversation, or one with other instructions.
    pub fn begin(&mut self, system: Option<String>, resume: Option<Resume>) -> Result<Begun> {
        let mut begun = Begun { system, ..Begun::default() };
        let Some(resume) = resume else { return Ok(begun) };
        let (first, rest) = match resume.messages()?.split_first() {
            Some((first, rest)) if first["role"] == "system" => (first["content"].as_str(), rest.to_vec()),
            _ => (None, resume.session.messages.clone()),
        };
        if !resume.session.messages.is_empty() {
            if begun.system.as_deref().is_some_and(|system| Some(system) != first) {
                let line = "the session has other instructions; leave --system out, or begin a session of another name";
                return Err(Error::usage(line));
            }
            begun.system = first.map(str::to_owned);
        }
        (begun.messages, begun.seed) = (rest, resume.session.seed);
        self.ui.note(&resume.note());
        self.resume = Some(resume);
        Ok(begun)
    }

    fn tenant(&self) -> Result<&Arc<TenantLearning>> {
        let line = "nothing is learned here; start with --learn";
        self.learning.as_ref().map(|(_, tenant)| tenant).ok_or_else(|| Error::usage(line))
    }

    fn answer_id(&self) -> String {
        format!("answer-{}", self.n_answers)
    }

    /// Returns tools as the model is told of them.
    fn offered(&mut self, offer: &Offer) -> Result<Offered> {
        if let Some(offered) = self.offered.iter().find(|offered| offered.offer == *offer) {
            return Ok(offered.clone());
        }
        let Offer { tools, choice, is_parallel } = offer.clone();
        let tool_use = ToolUse::new(&self.engine.text()?, tools, choice, is_parallel)?;
        let grammar = self.engine.grammar_compiler()?.compile_calls(&tool_use)?;
        self.offered.truncate(1);
        self.offered.insert(0, Offered { offer: offer.clone(), tool_use, grammar });
        Ok(self.offered[0].clone())
    }

    /// Returns the conversation as tokens, and the texts that end an answer.
    fn prompt(&self, talk: &Talk<'_>, tool_use: Option<&ToolUse>) -> Result<(Vec<u32>, Vec<String>)> {
        if self.engine.chat_template()?.is_some() {
            let tools = tool_use.map(ToolUse::definitions);
            let input = ChatInput { messages: talk.all(), tools, add_generation_prompt: true, ..ChatInput::default() };
            let options = ChatOptions { parse_special: self.parse_special, ..ChatOptions::default() };
            return Ok((self.engine.text()?.encode_chat_as(&input, options)?, Vec::new()));
        }
        let text = transcript(talk.system, talk.messages);
        let tokens = self.engine.tokenizer()?.encode_prompt(&text, self.parse_special)?;
        Ok((tokens, vec!["\nUser:".to_owned()]))
    }

    fn full(&self, n_tokens: usize) -> Error {
        let n_ctx = self.engine.info().n_ctx;
        Error::failure(format_args!(
            "the conversation has {n_tokens} tokens and the context holds {n_ctx}; /clear starts again, --ctx N makes it longer"
        ))
    }
}

impl Answers for LocalModel {
    fn name(&self) -> &str {
        &self.engine.info().name
    }

    fn answer(&mut self, talk: &Talk<'_>, is_silent: bool, write: &mut dyn FnMut(&str) -> Result<()>) -> Result<Said> {
        let offered = talk.offer.map(|offer| self.offered(offer)).transpose()?;
        let tool_use = offered.as_ref().map(|offered| &offered.tool_use);
        let (prompt, stop) = self.prompt(talk, tool_use)?;
        let n_ctx = self.engine.info().n_ctx;
        if prompt.len() >= n_ctx {
            return Err(self.full(prompt.len()));
        }
        let n_prompt = prompt.len();
        self.n_answers += 1;
        let question = talk.messages.iter().rfind(|message| message["role"] == "user");
        let question = question.and_then(|message| message["content"].as_str());
        let task = question.map(Task::of).unwrap_or_default();
        let logits_processor =
            self.learning.as_ref().map(|(_, tenant)| tenant.logits_processor(task, Some(&self.answer_id())));
        let request = GenerateRequest {
            prompt,
            logits_processor,
            max_tokens: talk.max_tokens,
            sampling: talk.sampling.clone(),
            speculation: self.speculation,
            stop,
            visible: tool_use.map(ToolUse::visible).unwrap_or_default(),
            grammar: offered.as_ref().map(|offered| offered.grammar.clone()),
            ..GenerateRequest::default()
        };
        let mut reading = Reading { reader: AnswerReader::new(tool_use, None), events: Vec::new() };
        let mut take = |text: &str| reading.take(text, write);
        let summary = answer_shown(&self.ui, &mut self.engine, &request, is_silent, &mut take)?;
        let whole = reading.finish(&summary, write)?;
        let mut json = summary_json(&summary, None);
        json["text"] = whole.said.clone().into();
        let note = match summary.finish_reason {
            FinishReason::Cancelled => Some("(stopped)".to_owned()),
            FinishReason::Length if n_prompt + summary.tokens.len() >= n_ctx => {
                Some(format!("(the context of {n_ctx} tokens is full; /clear starts again, --ctx N makes it longer)"))
            }
            _ => None,
        };
        let is_whole = summary.finish_reason == FinishReason::Stop;
        self.last = Some(summary);
        Ok(Said { text: whole.said, calls: whole.calls, is_whole, note, json })
    }

    fn judge(&mut self, quality: f32) -> Result<()> {
        self.tenant()?.judge(&self.answer_id(), quality).map(drop).map_err(|_| judged())
    }

    fn correct(&mut self, text: &str) -> Result<()> {
        let tenant = Arc::clone(self.tenant()?);
        let (prompt, task) = tenant.correct(&self.answer_id()).map_err(|_| judged())?;
        let question = task.question.unwrap_or_default();
        let answer = self.engine.text()?.encode_answer(text)?;
        ruvllm_learning::add_correction(
            &mut self.engine,
            &tenant,
            Question { prompt: &prompt, text: Some(&question) },
            &answer,
            Correctness::Right,
        )?;
        Ok(())
    }

    fn forget(&mut self) {
        self.last = None;
    }

    fn keep(&mut self, talk: &Talk<'_>) -> Result<()> {
        let Some(resume) = &mut self.resume else { return Ok(()) };
        let tokens = self.last.iter().flat_map(|last| [&last.prompt_tokens[..], &last.tokens]).flatten();
        let tokens = tokens.copied().collect();
        resume.session = ruvllm_engine::Session { tokens, messages: talk.all(), seed: talk.sampling.seed };
        resume.save(&self.engine)
    }

    fn save_learned(&self) -> Result<()> {
        self.learning.as_ref().map_or(Ok(()), |(learning, _)| Ok(learning.save()?))
    }

    fn stats(&self) -> String {
        let n_ctx = self.engine.info().n_ctx;
        let Some(last) = &self.last else {
            return format!("nothing was answered yet; the context holds {n_ctx} tokens");
        };
        let (n_prompt, n_answer) = (last.prompt_tokens.len(), last.tokens.len());
        let n_used = n_prompt + n_answer;
        let speed = speed_line(&last.timings, n_prompt, n_answer);
        let context = format!("context: {n_used} of {n_ctx} tokens ({:.0} %)", 100.0 * n_used as f64 / n_ctx as f64);
        let Some(cache) = self.engine.cache_stats() else { return format!("{speed}\n{context}") };
        let (asked, saved, held) = (cache.tokens_asked, cache.tokens_saved, bytes(cache.bytes as u64));
        let share = 100.0 * cache.hit_rate();
        format!("{speed}\n{context}\ncache: {saved} of {asked} prompt tokens were known ({share:.0} %), {held} held")
    }
}

/// An answer that is read as it comes.
struct Reading {
    reader: AnswerReader,
    events: Vec<AnswerEvent>,
}

impl Reading {
    /// Takes more text, and hands on what is no call.
    fn take(&mut self, text: &str, write: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        let events = self.reader.push(text);
        self.tell(events, write)
    }

    /// Takes the end, and returns the whole.
    fn finish(mut self, summary: &GenerationSummary, write: &mut dyn FnMut(&str) -> Result<()>) -> Result<Whole> {
        let events = self.reader.finish("", summary);
        self.tell(events, write)?;
        Ok(Whole::of_events(self.events))
    }

    fn tell(&mut self, events: Vec<AnswerEvent>, write: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        for event in events {
            if let AnswerEvent::Said(CallEvent::Text(text)) = &event {
                write(text)?;
            }
            self.events.push(event);
        }
        Ok(())
    }
}

/// The error of an answer that does not wait to be judged.
fn judged() -> Error {
    Error::usage("there is no answer to judge, or it was judged already; ask something first")
}

/// Writes a conversation for a model without a template as a dialogue it can continue.
fn transcript(system: Option<&str>, messages: &[Value]) -> String {
    let mut text = system.map_or_else(String::new, |system| format!("{system}\n\n"));
    for message in messages {
        let who = if message["role"] == "assistant" { "Assistant" } else { "User" };
        text.push_str(&format!("{who}: {}\n", message["content"].as_str().unwrap_or_default()));
    }
    text + "Assistant:"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn base_models_get_a_transcript() {
        let messages = [json!({ "role": "user", "content": "Hi" }), json!({ "role": "assistant", "content": "Hello" })];
        assert_eq!(transcript(Some("S"), &messages), "S\n\nUser: Hi\nAssistant: Hello\nAssistant:");
    }
}
