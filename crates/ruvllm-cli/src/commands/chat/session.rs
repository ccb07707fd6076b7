//! A conversation: its messages, its settings, and having it answered.

use std::path::Path;

use ruvllm_api::reading::ToolCall;
use ruvllm_api::tools::Offer;
use ruvllm_cli_tools::args::sampling::MIROSTATS;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::output::{Ui, print, print_json, print_line};
use ruvllm_cli_tools::values::{MaxTokens, Seed};
use ruvllm_engine::{Mirostat, SamplingParams};
use serde_json::{Value, json};

use crate::commands::chat::local::Begun;
use crate::commands::chat::toolbox::Toolbox;

/// The most calls of one answer that are run.
const N_CALLS_MAX: usize = 16;

/// A conversation that is to be answered, and how.
#[derive(Clone, Copy, Debug)]
pub struct Talk<'s> {
    /// The instructions.
    pub system: Option<&'s str>,
    /// The messages behind them.
    pub messages: &'s [Value],
    /// Parameters of the samplers.
    pub sampling: &'s SamplingParams,
    /// The most tokens of an answer.
    pub max_tokens: Option<usize>,
    /// Tools that the model may call.
    pub offer: Option<&'s Offer>,
}

impl Talk<'_> {
    /// Returns the instructions and the messages.
    pub fn all(&self) -> Vec<Value> {
        let system = self.system.iter().map(|text| json!({ "role": "system", "content": text }));
        system.chain(self.messages.iter().cloned()).collect()
    }
}

/// An answer that was written.
#[derive(Debug)]
pub struct Said {
    /// Its text.
    pub text: String,
    /// The calls of tools that it has.
    pub calls: Vec<ToolCall>,
    /// Whether it ended by itself: calls of an answer that was cut are not run.
    pub is_whole: bool,
    /// A line about its end.
    pub note: Option<String>,
    /// The answer for programs.
    pub json: Value,
}

/// A model that answers a conversation: one of this process, or of another server.
pub trait Answers {
    /// Returns the model's name.
    fn name(&self) -> &str;

    /// Answers a conversation, and hands the text to `write` as it comes. With `is_silent` nobody sees that text.
    ///
    /// # Errors
    /// The conversation does not fit, the answer failed, or what `write` returns.
    fn answer(&mut self, talk: &Talk<'_>, is_silent: bool, write: &mut dyn FnMut(&str) -> Result<()>) -> Result<Said>;

    /// Checks that answers can be chosen so.
    ///
    /// # Errors
    /// A usage error if they cannot.
    fn check(&self, _: &SamplingParams) -> Result<()> {
        Ok(())
    }

    /// Hears what the last answer was worth, 0 to 1.
    ///
    /// # Errors
    /// A usage error if nothing learns, or the answer was judged already.
    fn judge(&mut self, quality: f32) -> Result<()>;

    /// Learns what the last answer should have been.
    ///
    /// # Errors
    /// As [`Answers::judge`]; the engine's.
    fn correct(&mut self, text: &str) -> Result<()>;

    /// Forgets the last answer.
    fn forget(&mut self);

    /// Saves the conversation, if it is a session.
    ///
    /// # Errors
    /// It cannot be saved.
    fn keep(&mut self, _: &Talk<'_>) -> Result<()> {
        Ok(())
    }

    /// Keeps what was learned.
    ///
    /// # Errors
    /// It cannot be written.
    fn save_learned(&self) -> Result<()> {
        Ok(())
    }

    /// Returns lines about the last answer.
    fn stats(&self) -> String;
}

/// A conversation with a model.
pub struct Session {
    model: Box<dyn Answers>,
    ui: Ui,
    sampling: SamplingParams,
    max_tokens: Option<usize>,
    json: bool,
    system: Option<String>,
    messages: Vec<Value>,
    toolbox: Option<Toolbox>,
}

/// Settings of the answers in a conversation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Parameters of the samplers.
    pub sampling: SamplingParams,
    /// The most tokens of an answer.
    pub max_tokens: Option<usize>,
    /// Whether answers are objects.
    pub json: bool,
}

impl Session {
    /// Begins a conversation, or goes on with one.
    pub fn new(model: Box<dyn Answers>, ui: Ui, settings: Settings, begun: Begun) -> Session {
        let (Settings { mut sampling, max_tokens, json }, Begun { system, messages, seed }) = (settings, begun);
        sampling.seed = sampling.seed.or(seed);
        Session { model, ui, sampling, max_tokens, json, system, messages, toolbox: None }
    }

    /// Sets the tools that the model may call.
    pub fn set_toolbox(&mut self, toolbox: Option<Toolbox>) {
        self.toolbox = toolbox;
    }

    /// Returns the conversation, and what answers it.
    fn parts<'s>(&'s mut self, offer: Option<&'s Offer>) -> (Talk<'s>, &'s mut dyn Answers) {
        let Session { model, sampling, max_tokens, system, messages, .. } = self;
        (Talk { system: system.as_deref(), messages, sampling, max_tokens: *max_tokens, offer }, model.as_mut())
    }

    /// Keeps what was learned.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save_learned(&self) -> Result<()> {
        self.model.save_learned()
    }

    /// Hears what the last answer was worth, 0 to 1.
    ///
    /// # Errors
    /// As [`Answers::judge`].
    pub fn judge(&mut self, quality: f32) -> Result<()> {
        self.model.judge(quality)?;
        self.ui.note(if quality > 0.0 { "(learned)" } else { "(not to be said again)" });
        Ok(())
    }

    /// Remembers what the last answer should have been, and goes on as if it had been said.
    ///
    /// # Errors
    /// As [`Answers::correct`].
    pub fn correct(&mut self, text: String) -> Result<()> {
        self.model.correct(&text)?;
        self.messages.pop();
        self.messages.push(json!({ "role": "assistant", "content": text }));
        self.ui.note("(remembered)");
        self.keep()
    }

    /// Saves the conversation, if it is a session.
    fn keep(&mut self) -> Result<()> {
        let (talk, model) = self.parts(None);
        model.keep(&talk)
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
        self.model.forget();
        self.keep()
    }

    /// Answers `text`; on an error it counts as not said.
    ///
    /// # Errors
    /// A failure if the conversation no longer fits the context, or the engine's.
    pub fn say(&mut self, text: String) -> Result<()> {
        let n_before = self.messages.len();
        self.messages.push(json!({ "role": "user", "content": text }));
        let answered = self.answer();
        if answered.is_err() {
            self.messages.truncate(n_before);
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
        // Calls and their results belong to the answer.
        let question = self.messages.iter().rposition(|message| message["role"] == "user");
        let n_before = question.map_or(self.messages.len() - 1, |question| question + 1);
        let old = self.messages.split_off(n_before);
        let answered = self.answer();
        if answered.is_err() {
            self.messages.truncate(n_before);
            self.messages.extend(old);
        }
        answered.and_then(|()| self.keep())
    }

    /// Answers the conversation: calls of tools are run and told to the model until it answers without one.
    fn answer(&mut self) -> Result<()> {
        self.toolbox.iter_mut().for_each(Toolbox::refresh);
        let mut called = Vec::new();
        for round in 0.. {
            let mut said = self.answer_once(round)?;
            let content = said.text.trim_end();
            if said.calls.is_empty() || !said.is_whole {
                self.messages.push(json!({ "role": "assistant", "content": content }));
                let over = self.toolbox.as_ref().and_then(|toolbox| toolbox.rounds_over(round));
                let cut = (!said.calls.is_empty()).then(|| "(cut within a call, which is not run)".to_owned());
                [over, cut, said.note].into_iter().flatten().for_each(|note| self.ui.note(&note));
                if self.json {
                    if self.toolbox.is_some() {
                        said.json["calls"] = called.into();
                    }
                    print_json(&said.json)?;
                }
                return Ok(());
            }
            self.run(&said.calls, content, &mut called)?;
        }
        Ok(())
    }

    /// Has the model answer once, and prints the text of it as it comes.
    fn answer_once(&mut self, round: usize) -> Result<Said> {
        let (json, ui) = (self.json, self.ui);
        let mut has_text = false;
        let mut write = |text: &str| {
            has_text |= !text.is_empty();
            if json { Ok(()) } else { print(&ui.answer(text)) }
        };
        let offer = self.toolbox.as_ref().and_then(|toolbox| toolbox.offer(round));
        let (talk, model) = self.parts(offer.as_ref());
        let mut said = model.answer(&talk, json, &mut write)?;
        if offer.is_none() {
            // Another server's model may call what it was not offered.
            said.calls.clear();
        }
        if !json && (has_text || said.calls.is_empty()) {
            print("\n")?;
        }
        Ok(said)
    }

    /// Runs the calls of an answer, and adds them and their results to the conversation.
    fn run(&mut self, calls: &[ToolCall], content: &str, called: &mut Vec<Value>) -> Result<()> {
        let Some(toolbox) = &mut self.toolbox else {
            return Err(Error::failure("the model called a tool, and none was offered"));
        };
        let n_messages = self.messages.len();
        let (mut asked, mut results) = (Vec::new(), Vec::new());
        if calls.len() > N_CALLS_MAX {
            self.ui.note(&format!("(of {} calls the first {N_CALLS_MAX} are run)", calls.len()));
        }
        for (i, call) in calls.iter().take(N_CALLS_MAX).enumerate() {
            let id = format!("call_{n_messages}_{i}");
            let done = toolbox.call(&id, call)?;
            let function = json!({ "name": call.name, "arguments": done.json["arguments"] });
            asked.push(json!({ "id": id, "type": "function", "function": function }));
            results.push(json!({ "role": "tool", "tool_call_id": id, "content": done.text }));
            called.push(done.json);
        }
        self.messages.push(json!({ "role": "assistant", "content": content, "tool_calls": asked }));
        self.messages.extend(results);
        Ok(())
    }

    /// Returns the tools that the model may call, one a line.
    pub fn tools(&self) -> String {
        let none = || "there are no tools; start with --mcp CONFIG".to_owned();
        self.toolbox.as_ref().map_or_else(none, Toolbox::list)
    }

    /// Writes the conversation to a JSON file.
    ///
    /// # Errors
    /// A failure that names the file.
    pub fn save(&self, file: &Path) -> Result<()> {
        let conversation = json!({
            "model": self.model.name(),
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
        let text = ruvllm_cli_tools::text_files::read_text(file)?;
        let (system, messages) = read_conversation(&text)
            .ok_or_else(|| Error::failure(format_args!("{} is no conversation that /save wrote", file.display())))?;
        (self.system, self.messages) = (system, messages);
        self.model.forget();
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
        self.model.check(&sampling)?;
        self.sampling = sampling;
        Ok(())
    }

    /// Returns lines about the last answer.
    pub fn stats(&self) -> String {
        self.model.stats()
    }
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
    if let Some(line) = ruvllm_cli_tools::renamed::notice(&format!("--{name}")) {
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
}
