//! Chat templates: from messages to the text a model was trained on.
//!
//! A GGUF file carries its template as Jinja source. [`ChatTemplate`] renders it as the transformers library does: block
//! lines leave no white space (`trim_blocks`, `lstrip_blocks`), `tojson` is Python's `json.dumps` without ASCII escapes,
//! values print as Python prints them, Python's string and dict methods work, and `raise_exception` and `strftime_now`
//! are there.
//!
//! Templates come from strangers: the number of steps, the depth of recursion and the length of the text are bounded.

mod json;
mod nesting;
mod python;
mod time;

#[cfg(test)]
mod tests;

use std::io;
use std::time::SystemTime;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind as JinjaErrorKind, UndefinedBehavior, context};
use regex::Regex;

use crate::error::{EngineError, ErrorKind};

/// Steps of the template engine before it gives up: some hundred thousand messages' worth.
const MAX_STEPS: u64 = 20_000_000;
/// Bytes of rendered text before it gives up.
const MAX_OUTPUT_BYTES: usize = 64 << 20;
const MAX_DEPTH: usize = 128;
/// Characters of what a template says when it refuses.
const EXCEPTION_CHARS_MAX: usize = 500;

/// What a template is rendered with.
#[derive(Clone, Debug, Default)]
pub struct ChatInput {
    /// The conversation: objects with `role` and `content`, and whatever else the template reads.
    pub messages: Vec<serde_json::Value>,
    /// Function definitions, an array. `None` is null in the template.
    pub tools: Option<serde_json::Value>,
    /// Ask for the text that opens the assistant's next answer.
    pub add_generation_prompt: bool,
    /// More variables, such as `enable_thinking`. They win over `documents`, `bos_token` and `eos_token`.
    pub extra: serde_json::Map<String, serde_json::Value>,
    /// What `strftime_now` takes for now, in UTC; `None` asks the clock.
    pub now: Option<SystemTime>,
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the texts of those tokens.
    ///
    /// # Errors
    /// [`ErrorKind::Prompt`] if the source is no valid template.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<ChatTemplate, EngineError> {
        nesting::check(source).map_err(|reason| {
            EngineError::new(ErrorKind::Prompt, format!("the chat template does not compile: {reason}"))
        })?;
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_fuel(Some(MAX_STEPS));
        environment.set_recursion_limit(MAX_DEPTH);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(|out, _, value| out.write_str(&python::to_str(value)).map_err(Error::from));
        environment.add_filter("tojson", json::tojson);
        environment.add_filter("string", |value: &Value| python::to_str(value).into_owned());
        environment.add_test("sequence", is_sequence);
        environment.add_test("iterable", is_iterable);
        environment.add_function("raise_exception", raise_exception);
        environment
            .add_template_owned("chat", without_generation_tags(source))
            .map_err(|error| failed("compile", &error))?;
        let (source, bos, eos) = (source.to_owned(), bos.to_owned(), eos.to_owned());
        Ok(ChatTemplate { environment, source, bos, eos })
    }

    /// Returns the source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns whether the template reads a variable of this name, such as `tools`.
    pub fn reads(&self, variable: &str) -> bool {
        let template = self.environment.get_template("chat");
        template.is_ok_and(|template| template.undeclared_variables(false).contains(variable))
    }

    /// Returns the text of a conversation.
    ///
    /// # Errors
    /// [`ErrorKind::Prompt`] if the template raises an exception, uses a value that is not there, or exceeds its bounds.
    pub fn render(&self, input: &ChatInput) -> Result<String, EngineError> {
        let now = input.now.unwrap_or_else(SystemTime::now);
        let strftime = Value::from_function(move |format: &str| time::strftime(now, format));
        let given = context! {
            messages => input.messages,
            tools => input.tools,
            add_generation_prompt => input.add_generation_prompt,
            strftime_now => strftime,
        };
        let extra = Value::from_serialize(&input.extra);
        let defaults = context! { documents => (), bos_token => self.bos, eos_token => self.eos };
        let values = context! { ..given, ..extra, ..defaults };
        let template = self.environment.get_template("chat").map_err(|error| failed("compile", &error))?;
        let mut out = Bounded(Vec::new());
        template.render_captured_to(values, &mut out).map_err(|error| failed("render", &error))?;
        Ok(String::from_utf8(out.0).expect("the template engine writes text"))
    }
}

/// Collects text up to [`MAX_OUTPUT_BYTES`].
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT_BYTES {
            return Err(io::Error::other(format!("the text is longer than {MAX_OUTPUT_BYTES} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Marks the errors a template raises itself.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = one_line(&python::to_str(message));
    Err(Error::new(JinjaErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// Returns a text of a template as it may stand in an error: one line, and not a long one.
fn one_line(text: &str) -> String {
    let line: String = text.chars().take(EXCEPTION_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.len() < text.len() && text.chars().nth(EXCEPTION_CHARS_MAX).is_some() { line + "…" } else { line }
}

fn failed(what: &str, error: &Error) -> EngineError {
    let mut detail =
        error.detail().map_or_else(|| error.kind().to_string(), |detail| format!("{}: {detail}", error.kind()));
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = cause {
        if let Some(Raised(message)) = inner.downcast_ref() {
            return EngineError::new(ErrorKind::Prompt, format!("the chat template refuses the messages: {message}"));
        }
        if let Some(bound) = inner.downcast_ref::<io::Error>() {
            detail = bound.to_string();
        }
        cause = inner.source();
    }
    let line = error.line().map(|line| format!(" at line {line}")).unwrap_or_default();
    EngineError::new(ErrorKind::Prompt, format!("the chat template does not {what}{line}: {detail}"))
}

/// Python's idea of a sequence: anything with a length and items, so texts and dicts too.
fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map)
}

/// Python's idea of what can be walked; unlike in minijinja, null cannot.
fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || matches!(value.kind(), ValueKind::Iterable | ValueKind::Undefined)
}

/// Turns `{% generation %}` … `{% endgeneration %}`, which mark the assistant's words for training, into a block without
/// effect.
fn without_generation_tags(source: &str) -> String {
    let tag = |name: &str| {
        Regex::new(&format!(r"\{{%([-+]?)\s*{name}\s*([-+]?)%\}}"))
            .expect("the pattern is a constant that a test compiles")
    };
    let opened = tag("generation").replace_all(source, "{%${1} if true ${2}%}");
    tag("endgeneration").replace_all(&opened, "{%${1} endif ${2}%}").into_owned()
}

/// Refuses keyword arguments that nothing read.
fn all_used(kwargs: &Kwargs) -> Result<(), Error> {
    kwargs.assert_all_used()
}
