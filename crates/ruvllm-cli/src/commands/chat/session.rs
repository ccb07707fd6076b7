//! A conversation: its messages, its settings, and answering.

use std::path::Path;
use std::sync::Arc;

use ruvllm_engine::template::ChatInput;
use ruvllm_engine::{
    ChatOptions, Engine, FinishReason, GenerateRequest, GenerationSummary, Mirostat, SamplingParams, Speculation,
};
use ruvllm_learning::{Correctness, Learning, Question, Task, Tenant};
use serde_json::{Value, json};

use crate::tools::answer::{answer_shown, speed_line, summary_json};
use crate::tools::args::sampling::MIROSTATS;
use crate::tools::error::{Error, Result};
use crate::tools::output::{Ui, bytes, print, print_json, print_line};
use crate::tools::resume::Resume;
use crate::tools::values::{MaxTokens, Seed};

/// A conversation with a loaded model.
pub struct Session {
    engine: Engine,
    ui: Ui,
    sampling: SamplingParams,
    speculation: Speculation,
    max_tokens: Option<usize>,
    json: bool,
    /// Whether control tokens in messages are read as such.
    parse_special: bool,
    system: Option<String>,
    messages: Vec<Value>,
    last: Option<GenerationSummary>,
    /// Where the conversation is saved.
    resume: Option<Resume>,
    /// Who learns of it, and how many answers there were.
    learning: Option<(Learning, Arc<Tenant>)>,
    n_answers: usize,
}

impl Session {
    /// Begins an empty conversation.
    pub fn new(engine: Engine, ui: Ui, sampling: SamplingParams, max_tokens: Option<usize>, json: bool) -> Session {
        let speculation = Speculation::default();
        let (system, messages, last, resume, learning) = (None, Vec::new(), None, None, None);
        let n_answers = 0;
        Session {
            engine,
            ui,
            sampling,
            speculation,
            max_tokens,
            json,
            parse_special: false,
            system,
            messages,
            last,
            resume,
            learning,
            n_answers,
        }
    }

    /// Sets whether control tokens in messages are read as such.
    pub fn set_parse_special(&mut self, parse_special: bool) {
        self.parse_special = parse_special;
    }

    /// Sets who learns of the conversation.
    pub fn set_learning(&mut self, learning: Option<(Learning, Arc<Tenant>)>) {
        self.learning = learning;
    }

    /// Keeps what was learned.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save_learned(&self) -> Result<()> {
        self.learning.as_ref().map_or(Ok(()), |(learning, _)| Ok(learning.save()?))
    }

    /// Hears what the last answer was worth, 0 to 1.
    ///
    /// # Errors
    /// A usage error if nothing learns, or the answer was judged already.
    pub fn judge(&mut self, quality: f32) -> Result<()> {
        self.tenant()?.judge(&self.answer_id(), quality).map_err(|_| judged())?;
        self.ui.note(if quality > 0.0 { "(learned)" } else { "(not to be said again)" });
        Ok(())
    }

    /// Remembers what the last answer should have been, and goes on as if it had been said.
    ///
    /// # Errors
    /// As [`Session::judge`]; the engine's.
    pub fn correct(&mut self, text: String) -> Result<()> {
        let tenant = Arc::clone(self.tenant()?);
        let (prompt, task) = tenant.correct(&self.answer_id()).map_err(|_| judged())?;
        let question = task.question.unwrap_or_default();
        let answer = self.engine.text()?.encode_answer(&text)?;
        ruvllm_learning::add_correction(
            &mut self.engine,
            &tenant,
            Question { prompt: &prompt, text: Some(&question) },
            &answer,
            Correctness::Right,
        )?;
        self.messages.pop();
        self.messages.push(json!({ "role": "assistant", "content": text }));
        self.ui.note("(remembered)");
        self.keep()
    }

    fn tenant(&self) -> Result<&Arc<Tenant>> {
        let line = "nothing is learned here; start with --learn";
        self.learning.as_ref().map(|(_, tenant)| tenant).ok_or_else(|| Error::usage(line))
    }

    fn answer_id(&self) -> String {
        format!("answer-{}", self.n_answers)
    }

    /// Sets whether tokens are drafted.
    pub fn set_speculation(&mut self, speculation: Speculation) {
        self.speculation = speculation;
    }

    /// Goes on with a saved session, if one is given; else, or if it is new, begins with these instructions.
    ///
    /// # Errors
    /// A usage error if the session holds no conversation, or one with other instructions.
    pub fn begin(&mut self, system: Option<String>, resume: Option<Resume>) -> Result<()> {
        self.system = system;
        let Some(resume) = resume else { return Ok(()) };
        let (first, rest) = match resume.messages()?.split_first() {
            Some((first, rest)) if first["role"] == "system" => (first["content"].as_str(), rest.to_vec()),
            _ => (None, resume.session.messages.clone()),
        };
        if !resume.session.messages.is_empty() {
            if self.system.as_deref().is_some_and(|system| Some(system) != first) {
                let line = "the session has other instructions; leave --system out, or begin a session of another name";
                return Err(Error::usage(line));
            }
            self.system = first.map(str::to_owned);
        }
        self.messages = rest;
        self.sampling.seed = self.sampling.seed.or(resume.session.seed);
        self.ui.note(&resume.note());
        self.resume = Some(resume);
        Ok(())
    }

    /// Saves the conversation, if it is a session.
    fn keep(&mut self) -> Result<()> {
        let Some(resume) = &mut self.resume else { return Ok(()) };
        let system = self.system.iter().map(|text| json!({ "role": "system", "content": text }));
        let messages = system.chain(self.messages.iter().cloned()).collect();
        let tokens = self.last.iter().flat_map(|last| [&last.prompt_tokens[..], &last.tokens]).flatten();
        let tokens = tokens.copied().collect();
        resume.session = ruvllm_engine::Session { tokens, messages, seed: self.sampling.seed };
        resume.save(&self.engine)
    }

    /// Returns the instructions.
    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Sets the instructions and starts again.
    ///
    /// # Errors
    /// The session cannot be saved.
    pub fn set_system(&mut self, text: Option<String>) -> Result<()> {
        self.system = text;
        self.clear()
    }

    /// Forgets what was said.
    ///
    /// # Errors
    /// The session cannot be saved.
    pub fn clear(&mut self) -> Result<()> {
        self.messages.clear();
        self.last = None;
        self.keep()
    }

    /// Answers `text`; on an error it counts as not said.
    ///
    /// # Errors
    /// A failure if the conversation no longer fits the context, or the engine's.
    pub fn say(&mut self, text: String) -> Result<()> {
        self.messages.push(json!({ "role": "user", "content": text }));
        let answered = self.answer();
        if answered.is_err() {
            self.messages.pop();
        }
        answered.and_then(|()| self.keep())
    }

    /// Answers the last question again; on an error the old answer stays.
    ///
    /// # Errors
    /// A usage error if nothing was asked yet; as [`Session::say`].
    pub fn regenerate(&mut self) -> Result<()> {
        let is_answered = self.messages.last().is_some_and(|message| message["role"] == "assistant");
        if !is_answered {
            return Err(Error::usage("there is no answer to write again; ask something first"));
        }
        let old = self.messages.pop();
        let answered = self.answer();
        if answered.is_err() {
            self.messages.extend(old);
        }
        answered.and_then(|()| self.keep())
    }

    fn answer(&mut self) -> Result<()> {
        let (prompt, stop) = self.prompt()?;
        let n_ctx = self.engine.info().n_ctx;
        if prompt.len() >= n_ctx {
            return Err(self.full(prompt.len()));
        }
        let n_prompt = prompt.len();
        self.n_answers += 1;
        let question = self.messages.last().and_then(|message| message["content"].as_str());
        let task = question.map(Task::of).unwrap_or_default();
        let logits_processor =
            self.learning.as_ref().map(|(_, tenant)| tenant.logits_processor(task, Some(&self.answer_id())));
        let request = GenerateRequest {
            prompt,
            logits_processor,
            max_tokens: self.max_tokens,
            sampling: self.sampling.clone(),
            speculation: self.speculation,
            stop,
            ..GenerateRequest::default()
        };
        let (json, ui) = (self.json, self.ui);
        let mut write = |text: &str| if json { Ok(()) } else { print(&ui.answer(text)) };
        let summary = answer_shown(&ui, &mut self.engine, &request, json, &mut write)?;
        if json {
            print_json(&summary_json(&summary, None))?;
        } else {
            print("\n")?;
        }
        self.messages.push(json!({ "role": "assistant", "content": summary.text.trim_end() }));
        match summary.finish_reason {
            FinishReason::Cancelled => self.ui.note("(stopped)"),
            FinishReason::Length if n_prompt + summary.tokens.len() >= n_ctx => {
                self.ui.note(&format!(
                    "(the context of {n_ctx} tokens is full; /clear starts again, --ctx N makes it longer)"
                ));
            }
            _ => {}
        }
        self.last = Some(summary);
        Ok(())
    }

    /// Returns the conversation as tokens, and the texts that end an answer.
    fn prompt(&self) -> Result<(Vec<u32>, Vec<String>)> {
        if self.engine.chat_template()?.is_some() {
            let system = self.system.iter().map(|text| json!({ "role": "system", "content": text }));
            let messages: Vec<_> = system.chain(self.messages.iter().cloned()).collect();
            let input = ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() };
            let options = ChatOptions { parse_special: self.parse_special, ..ChatOptions::default() };
            return Ok((self.engine.text()?.encode_chat_as(&input, options)?, Vec::new()));
        }
        let text = transcript(self.system(), &self.messages);
        let tokens = self.engine.tokenizer()?.encode_prompt(&text, self.parse_special)?;
        Ok((tokens, vec!["\nUser:".to_owned()]))
    }

    fn full(&self, n_tokens: usize) -> Error {
        let n_ctx = self.engine.info().n_ctx;
        Error::failure(format_args!(
            "the conversation has {n_tokens} tokens and the context holds {n_ctx}; /clear starts again, --ctx N makes it longer"
        ))
    }

    /// Writes the conversation to a JSON file.
    ///
    /// # Errors
    /// A failure that names the file.
    pub fn save(&self, file: &Path) -> Result<()> {
        let conversation = json!({
            "model": self.engine.info().name,
            "system": self.system,
            "messages": self.messages,
        });
        let text = format!("{conversation:#}\n");
        std::fs::write(file, text).map_err(|error| Error::io("write", file, &error))?;
        self.ui.note(&format!("saved {} messages to {}", self.messages.len(), file.display()));
        Ok(())
    }

    /// Goes on with the conversation of a JSON file that [`Session::save`] wrote.
    ///
    /// # Errors
    /// A failure that names the file and says what is wrong with it.
    pub fn load(&mut self, file: &Path) -> Result<()> {
        let text = crate::tools::text_files::read_text(file)?;
        let (system, messages) = read_conversation(&text)
            .ok_or_else(|| Error::failure(format_args!("{} is no conversation that /save wrote", file.display())))?;
        (self.system, self.messages, self.last) = (system, messages, None);
        self.keep()?;
        self.ui.note(&format!("loaded {} messages from {}", self.messages.len(), file.display()));
        Ok(())
    }

    /// Prints what a command asked for: as it is, or as an object among those of the answers.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn tell(&self, text: &str) -> Result<()> {
        if self.json { print_json(&json!({ "note": text })) } else { print_line(text) }
    }

    /// Returns the settings, one a line.
    pub fn settings(&self) -> String {
        let mut sampling = self.sampling.clone();
        let numbers = setting_names().map(|name| {
            let value = setting(&mut sampling, name).expect("it is one of the names");
            format!("{name} {}", value.text())
        });
        let or = |value: Option<String>, none: &str| value.unwrap_or_else(|| none.to_owned());
        let seed = or(self.sampling.seed.map(|seed| seed.to_string()), "another every time");
        let max_tokens = or(self.max_tokens.map(|n| n.to_string()), "to the end of the context");
        let rest = [format!("seed {seed}"), format!("max-tokens {max_tokens}")];
        numbers.chain(rest).collect::<Vec<_>>().join("\n")
    }

    /// Changes a setting.
    ///
    /// # Errors
    /// A usage error if there is no such setting or the value does not fit it.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let mut sampling = self.sampling.clone();
        if key.replace('_', "-") == "max-tokens" {
            self.max_tokens = number::<MaxTokens>(key, value)?.0;
            return Ok(());
        }
        set(&mut sampling, key, value)?;
        sampling.validate()?;
        self.sampling = sampling;
        Ok(())
    }

    /// Returns the speed of the last answer and how full the context is.
    pub fn stats(&self) -> String {
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

fn read_conversation(text: &str) -> Option<(Option<String>, Vec<Value>)> {
    let conversation: Value = serde_json::from_str(text).ok()?;
    let messages = conversation.get("messages")?.as_array()?;
    let is_message = |message: &Value| message["role"].is_string() && message["content"].is_string();
    let system = conversation.get("system").and_then(Value::as_str).map(str::to_owned);
    messages.iter().all(is_message).then(|| (system, messages.clone()))
}

fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T> {
    value.parse().map_err(|_| Error::usage(format_args!("'{value}' does not fit {key}; give a number")))
}

/// A number among the settings.
enum Setting<'a> {
    Real(&'a mut f32),
    Count(&'a mut usize),
    /// A place in [`MIROSTATS`].
    Mirostat(&'a mut Mirostat),
}

impl Setting<'_> {
    fn text(&self) -> String {
        match self {
            Setting::Real(value) => value.to_string(),
            Setting::Count(value) => value.to_string(),
            Setting::Mirostat(value) => MIROSTATS.iter().position(|version| version == *value).unwrap_or(0).to_string(),
        }
    }
}

/// Returns the names of the settings that are numbers: those of the command line.
fn setting_names() -> impl Iterator<Item = &'static str> {
    let names = "temp dynatemp-range dynatemp-exponent top-k top-p min-p typical top-n-sigma xtc-probability xtc-threshold \
                 repeat-penalty frequency-penalty presence-penalty repeat-last-n dry-multiplier dry-base \
                 dry-allowed-length dry-penalty-last-n mirostat mirostat-tau mirostat-eta";
    names.split_whitespace()
}

/// Returns the setting of a name; `None` if there is none.
fn setting<'a>(sampling: &'a mut SamplingParams, name: &str) -> Option<Setting<'a>> {
    Some(match name {
        "temp" | "temperature" => Setting::Real(&mut sampling.temperature),
        "dynatemp-range" => Setting::Real(&mut sampling.dynatemp_range),
        "dynatemp-exponent" => Setting::Real(&mut sampling.dynatemp_exponent),
        "top-k" => Setting::Count(&mut sampling.top_k),
        "top-p" => Setting::Real(&mut sampling.top_p),
        "min-p" => Setting::Real(&mut sampling.min_p),
        "typical" => Setting::Real(&mut sampling.typical_p),
        "top-n-sigma" => Setting::Real(&mut sampling.top_n_sigma),
        "xtc-probability" => Setting::Real(&mut sampling.xtc_probability),
        "xtc-threshold" => Setting::Real(&mut sampling.xtc_threshold),
        "repeat-penalty" => Setting::Real(&mut sampling.repeat_penalty),
        "frequency-penalty" => Setting::Real(&mut sampling.frequency_penalty),
        "presence-penalty" => Setting::Real(&mut sampling.presence_penalty),
        "repeat-last-n" => Setting::Count(&mut sampling.repeat_last_n),
        "dry-multiplier" => Setting::Real(&mut sampling.dry_multiplier),
        "dry-base" => Setting::Real(&mut sampling.dry_base),
        "dry-allowed-length" => Setting::Count(&mut sampling.dry_allowed_length),
        "dry-penalty-last-n" | "dry-last-n" => Setting::Count(&mut sampling.dry_penalty_last_n),
        "mirostat" => Setting::Mirostat(&mut sampling.mirostat),
        "mirostat-tau" => Setting::Real(&mut sampling.mirostat_tau),
        "mirostat-eta" => Setting::Real(&mut sampling.mirostat_eta),
        _ => return None,
    })
}

fn set(sampling: &mut SamplingParams, key: &str, value: &str) -> Result<()> {
    let name = key.replace('_', "-");
    if let Some(line) = crate::tools::renamed::notice(&format!("--{name}")) {
        eprintln!("{line}");
    }
    match setting(sampling, &name) {
        Some(Setting::Real(place)) => *place = number(key, value)?,
        Some(Setting::Count(place)) => *place = number(key, value)?,
        Some(Setting::Mirostat(place)) => {
            let version = MIROSTATS.get(number::<usize>(key, value)?);
            *place = *version.ok_or_else(|| Error::usage("mirostat is 0, 1 or 2"))?;
        }
        None if name == "seed" => sampling.seed = number::<Seed>(key, value)?.0,
        None => return Err(Error::usage(format_args!("unknown setting '{key}'; /set alone shows them"))),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked() {
        let mut sampling = SamplingParams::default();
        set(&mut sampling, "temp", "0.25").expect("a setting");
        set(&mut sampling, "top_k", "3").expect("a setting");
        set(&mut sampling, "seed", "7").expect("a setting");
        set(&mut sampling, "mirostat", "2").expect("a setting");
        assert_eq!(sampling.mirostat, MIROSTATS[2]);
        assert_eq!((sampling.temperature, sampling.top_k, sampling.seed), (0.25, 3, Some(7)));
        for (key, value) in [("temp", "hot"), ("top-k", "-1"), ("mirostat", "3"), ("colour", "red")] {
            assert_eq!(set(&mut sampling, key, value).expect_err(key).exit_code(), 2);
        }
    }

    #[test]
    fn conversations_are_read_back() {
        let saved = json!({ "system": "s", "messages": [{ "role": "user", "content": "hi" }] });
        let (system, messages) = read_conversation(&saved.to_string()).expect("a conversation");
        assert_eq!((system.as_deref(), messages.len()), (Some("s"), 1));
        for wrong in ["", "{}", "[]", "{\"messages\": [1]}", "{\"messages\": [{\"role\": \"user\"}]}"] {
            assert!(read_conversation(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn base_models_get_a_transcript() {
        let messages = [json!({ "role": "user", "content": "Hi" }), json!({ "role": "assistant", "content": "Hello" })];
        assert_eq!(transcript(Some("S"), &messages), "S\n\nUser: Hi\nAssistant: Hello\nAssistant:");
    }
}
