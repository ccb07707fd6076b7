//! Chat templates: from messages to the text a model was trained on.
//!
//! A GGUF file carries its template as Jinja source. [`ChatTemplate`] renders it as the transformers library does: block
//! lines leave no white space (`trim_blocks`, `lstrip_blocks`), `tojson` is Python's `json.dumps` without ASCII escapes,
//! values print as Python prints them, Python's string and dict methods work, and `raise_exception` and `strftime_now`
//! are there.
//!
//! Templates come from strangers: the number of steps, the depth of recursion, the memory and the work of a rendering are
//! bounded (ADR 15).

mod arguments;
mod checks;
mod checks_of_texts;
mod compare;
mod filters;
mod format;
mod json;
mod marks;
mod meter;
mod methods;
mod nesting;
mod operators;
mod python;
mod rewrite;
mod sequence;
mod source;
mod spec;
mod time;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use minijinja::machinery::{CodeGenerator, Instructions, Vm, WhitespaceConfig, make_string_output, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error, ErrorKind as JinjaErrorKind, UndefinedBehavior, context};
use web_time::SystemTime;

pub(crate) use marks::Marks;

use crate::error::{TextError, TextErrorKind};

pub use time::strftime;

/// Steps of the template engine before it gives up: some hundred thousand messages' worth.
const MAX_STEPS: u64 = 20_000_000;
const MAX_DEPTH: usize = 128;
/// The longest format of a time.
const FORMAT_BYTES_MAX: usize = 1 << 10;
/// Characters of what a template says when it refuses.
const EXCEPTION_CHARS_MAX: usize = 500;

/// Input of a template.
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
    /// Time that `strftime_now` takes for now, in UTC; `None` asks the clock.
    pub now: Option<SystemTime>,
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    /// The source as it is compiled.
    compiled: String,
    /// Variables that it reads before it sets them.
    undeclared: BTreeSet<String>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the texts of those tokens.
    ///
    /// # Errors
    /// [`TextErrorKind::Prompt`] if the source is no valid template.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<ChatTemplate, TextError> {
        nesting::check(source).map_err(|reason| {
            TextError::new(TextErrorKind::Prompt, format!("the chat template does not compile: {reason}"))
        })?;
        let environment = environment();
        let compiled = source::prepared(source);
        let Compiled { undeclared, .. } = compile(&compiled).map_err(|error| failed("compile", &error))?;
        let (source, bos, eos) = (source.to_owned(), bos.to_owned(), eos.to_owned());
        Ok(ChatTemplate { environment, source, compiled, undeclared, bos, eos })
    }

    /// Returns the source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns whether the template reads a variable of this name, such as `tools`.
    pub fn reads(&self, variable: &str) -> bool {
        self.undeclared.contains(variable)
    }

    /// Returns the text of a conversation.
    ///
    /// # Errors
    /// [`TextErrorKind::Prompt`] if the template raises an exception, uses a value that is not there, or exceeds its bounds.
    pub fn render(&self, input: &ChatInput) -> Result<String, TextError> {
        let now = input.now.unwrap_or_else(SystemTime::now);
        let strftime = Value::from_function(move |format: &str| strftime_now(now, format));
        let given = context! {
            messages => input.messages,
            tools => input.tools,
            add_generation_prompt => input.add_generation_prompt,
            strftime_now => strftime,
        };
        let extra = Value::from_serialize(&input.extra);
        let defaults = context! { documents => (), bos_token => self.bos, eos_token => self.eos };
        let values = context! { ..given, ..extra, ..defaults };
        let _rendering = meter::begin();
        // Values of a hostile template may be such as the template engine does not expect.
        let rendered = catch_unwind(AssertUnwindSafe(|| self.run(values)));
        rendered.unwrap_or_else(|_| {
            Err(TextError::new(TextErrorKind::Prompt, "the chat template does not render: the template engine failed"))
        })
    }

    fn run(&self, values: Value) -> Result<String, TextError> {
        let Compiled { instructions, blocks, .. } =
            compile(&self.compiled).map_err(|error| failed("compile", &error))?;
        let mut text = String::new();
        let mut out = make_string_output(&mut text);
        let rendered = Vm::new(&self.environment).eval(&instructions, values, &blocks, &mut out, AutoEscape::None);
        rendered.map_err(|error| failed("render", &error))?;
        drop(out);
        Ok(text)
    }
}

/// Returns the environment of all templates; it has no template, since none may refer to another one.
fn environment() -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_debug(false);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_fuel(Some(MAX_STEPS));
    environment.set_recursion_limit(MAX_DEPTH);
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, _, value| {
        let text = python::to_str(value)?;
        meter::write(text.len())?;
        out.write_str(&text).map_err(Error::from)
    });
    operators::add_to(&mut environment);
    filters::add_to(&mut environment);
    checks::add_to(&mut environment);
    environment.add_function("raise_exception", raise_exception);
    environment
}

/// A template as the template engine runs it.
struct Compiled<'s> {
    instructions: Instructions<'s>,
    blocks: BTreeMap<&'s str, Instructions<'s>>,
    undeclared: BTreeSet<String>,
}

fn compile(source: &str) -> Result<Compiled<'_>, Error> {
    let space = WhitespaceConfig { trim_blocks: true, lstrip_blocks: true, ..WhitespaceConfig::default() };
    let (template, undeclared) = rewrite::rewrite(source, &parse(source, "chat", SyntaxConfig, space)?)?;
    let mut generator = CodeGenerator::new("chat", source);
    generator.compile_stmt(&template);
    let (instructions, blocks) = generator.finish();
    Ok(Compiled { instructions, blocks, undeclared })
}

/// Returns the time in a format that is as short as one is.
fn strftime_now(now: SystemTime, format: &str) -> Result<String, Error> {
    match format.len() > FORMAT_BYTES_MAX {
        true => Err(Error::new(JinjaErrorKind::InvalidOperation, "strftime_now: the format is too long")),
        false => Ok(time::strftime(now, format)),
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
    let message = one_line(&python::to_str(message)?);
    Err(Error::new(JinjaErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// Returns a text of a template as it may stand in an error: one line, and not a long one.
fn one_line(text: &str) -> String {
    let line: String = text.chars().take(EXCEPTION_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.len() < text.len() && text.chars().nth(EXCEPTION_CHARS_MAX).is_some() { line + "…" } else { line }
}

fn failed(what: &str, error: &Error) -> TextError {
    let detail =
        error.detail().map_or_else(|| error.kind().to_string(), |detail| format!("{}: {detail}", error.kind()));
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = cause {
        if let Some(Raised(message)) = inner.downcast_ref() {
            return TextError::new(TextErrorKind::Prompt, format!("the chat template refuses the messages: {message}"));
        }
        if let Some(exceeded) = inner.downcast_ref::<meter::Exceeded>() {
            return TextError::new(TextErrorKind::Prompt, format!("the chat template {exceeded}"));
        }
        cause = inner.source();
    }
    let line = error.line().map(|line| format!(" at line {line}")).unwrap_or_default();
    TextError::new(TextErrorKind::Prompt, format!("the chat template does not {what}{line}: {}", one_line(&detail)))
}
