//! Calls of functions: how a model is told which there are, what it writes to call one, and how that is read again.
//!
//! Every family of models has a form of its own ([`ToolFormat`], one file each): which one, its chat template tells. A
//! [`ToolUse`] has the functions of a request; it writes the grammar that holds a model to them (`ruvllm-grammar` compiles
//! it) and gives a [`CallReader`] that takes calls out of the answer's text as it comes. A template that knows no functions gets them by a prompt of our own
//! (`prompt`); [`crate::ModelText::render_chat`] does that by itself.
//!
//! What looks like a call and is none stays text: nothing of an answer is lost.

mod bare;
mod cursor;
mod gemma;
mod generic;
mod grammar;
mod hermes;
mod json;
mod llama3;
mod mistral;
pub(crate) mod prompt;
mod reader;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::{Value, json};

use crate::template::ChatTemplate;
use crate::text::ModelText;
use crate::{GrammarSource, TextError, TextErrorKind};

pub use reader::{CallEvent, CallReader};

/// A function that a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name: letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// Description for the model.
    pub description: Option<String>,
    /// A JSON Schema of the object of its arguments; `None` allows any object.
    pub parameters: Option<Value>,
    /// Refuse a schema that arguments cannot be held to. One that is not strict and cannot be held to gets any object
    /// where the model is free to call.
    pub is_strict: bool,
}

impl Tool {
    /// Returns the definition as chat templates expect it, which is as OpenAI writes it.
    pub fn definition(&self) -> Value {
        let mut function = json!({ "name": self.name });
        if let Some(description) = &self.description {
            function["description"] = json!(description);
        }
        let none = || json!({ "type": "object", "properties": {} });
        function["parameters"] = self.parameters.clone().unwrap_or_else(none);
        json!({ "type": "function", "function": function })
    }

    /// Checks the name and the schema.
    fn check(&self) -> Result<(), TextError> {
        let refused = |line: String| Err(TextError::new(TextErrorKind::Options, line));
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if self.name.is_empty() || self.name.len() > 128 || !self.name.chars().all(is_name) {
            let name = self.name.chars().take(40).collect::<String>();
            return refused(format!(
                "'{name}' is no name of a function; use 1 to 128 letters, digits, underscores, dashes and dots"
            ));
        }
        match self.parameters.as_ref().map(|schema| schema.get("type").unwrap_or(&Value::Null)) {
            None | Some(Value::Null) => Ok(()),
            Some(kind) if kind == "object" => Ok(()),
            Some(kind) => {
                refused(format!("the parameters of '{}' are of type {kind}; arguments are an object", self.name))
            }
        }
    }
}

/// Whether functions are called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// As the model likes.
    #[default]
    Auto,
    /// At least one is.
    Required,
    /// This one is.
    Named(String),
}

/// Format in which a model calls a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Qwen, Hermes, Granite and others.
    Hermes,
    /// `{"name": …, "parameters": {…}}` and nothing else, or behind `<|python_tag|>`: Llama 3.
    Llama3,
    /// `[TOOL_CALLS][{"name": …, "arguments": {…}}]`: Mistral up to its tokenizer 7.
    Mistral,
    /// `[TOOL_CALLS]NAME[ARGS]{…}`: Mistral from its tokenizer 11 on.
    MistralArgs,
    /// `<start_function_call>call:NAME{…}<end_function_call>`, texts between `<escape>`: FunctionGemma.
    FunctionGemma,
    /// `<|tool_call>call:NAME{…}<tool_call|>`, texts between `<|"|>`: Gemma 4.
    Gemma4,
    /// `{"name": …, "arguments": {…}}`, a line each, as a prompt of ours asks for: all others.
    Generic,
}

impl ToolFormat {
    /// Every form.
    pub const ALL: [ToolFormat; 7] = [
        ToolFormat::Hermes,
        ToolFormat::Llama3,
        ToolFormat::Mistral,
        ToolFormat::MistralArgs,
        ToolFormat::FunctionGemma,
        ToolFormat::Gemma4,
        ToolFormat::Generic,
    ];

    /// Returns the form that a chat template shows its model.
    pub fn of(template: &ChatTemplate) -> ToolFormat {
        let source = template.source();
        let has = |text: &str| source.contains(text);
        if !has("tools") {
            return ToolFormat::Generic;
        }
        match () {
            () if has("<start_function_call>") => ToolFormat::FunctionGemma,
            () if has("<|tool_call>call:") => ToolFormat::Gemma4,
            () if has("[TOOL_CALLS]") && has("[ARGS]") => ToolFormat::MistralArgs,
            () if has("[TOOL_CALLS]") => ToolFormat::Mistral,
            // Others have calls in XML or keys and values between the same marks.
            () if has("<tool_call>") && !has("<function=") && !has("<arg_key>") => ToolFormat::Hermes,
            () if has("<|python_tag|>") || (has("ipython") && has("\"parameters\"")) => ToolFormat::Llama3,
            () => ToolFormat::Generic,
        }
    }

    /// Returns the name used in JSON output.
    pub fn as_str(self) -> &'static str {
        match self {
            ToolFormat::Hermes => "hermes",
            ToolFormat::Llama3 => "llama3",
            ToolFormat::Mistral => "mistral",
            ToolFormat::MistralArgs => "mistral-args",
            ToolFormat::FunctionGemma => "functiongemma",
            ToolFormat::Gemma4 => "gemma4",
            ToolFormat::Generic => "generic",
        }
    }

    /// Returns calls as a model of this format writes them; `calls`: `{"name", "arguments"}` each.
    pub fn write_calls(self, calls: &[Value]) -> String {
        self.syntax().written(calls)
    }

    /// Returns whether a call may follow another in one answer.
    pub fn allows_several(self) -> bool {
        self.syntax().allows_several()
    }

    /// Returns the texts of calls in this format that a vocabulary may have as control tokens.
    pub fn marks(self) -> &'static [&'static str] {
        self.syntax().marks()
    }

    fn syntax(self) -> &'static dyn Syntax {
        match self {
            ToolFormat::Hermes => &hermes::Hermes,
            ToolFormat::Llama3 => &llama3::Llama3,
            ToolFormat::Mistral => &mistral::Mistral { has_args_mark: false },
            ToolFormat::MistralArgs => &mistral::Mistral { has_args_mark: true },
            ToolFormat::FunctionGemma => &gemma::FUNCTION_GEMMA,
            ToolFormat::Gemma4 => &gemma::GEMMA_4,
            ToolFormat::Generic => &generic::Generic,
        }
    }
}

/// A form of calls: how it is read, written and held to.
trait Syntax: Sync {
    /// Texts that a vocabulary may have as control tokens; they are part of the answer's text.
    fn marks(&self) -> &'static [&'static str];

    /// Reads the beginning of a call, up to its arguments.
    fn open(&self, cursor: &mut cursor::Cursor<'_>, place: &reader::Place<'_>) -> Result<reader::Opened, cursor::Miss>;

    /// Reads what follows arguments, as far as it is there.
    fn close(&self, cursor: &mut cursor::Cursor<'_>, is_object_closed: bool) -> Result<(), cursor::Miss>;

    /// Returns what takes arguments as they come.
    fn arguments(&self) -> Box<dyn reader::Arguments> {
        Box::new(json::Object::default())
    }

    /// Writes the rules of a grammar: `start` and what it needs.
    ///
    /// # Errors
    /// A schema that this form cannot be held to.
    fn rules(&self, rules: &mut grammar::Rules<'_>) -> Result<(), TextError>;

    /// Returns calls as the model would have written them; `calls`: `{"name", "arguments"}` each.
    fn written(&self, calls: &[Value]) -> String;

    /// Returns whether a call may follow another in one answer.
    fn allows_several(&self) -> bool {
        true
    }
}

/// The functions of a request.
#[derive(Clone, Debug)]
pub struct ToolUse {
    text: ModelText,
    format: ToolFormat,
    tools: Arc<[Tool]>,
    choice: ToolChoice,
    is_parallel: bool,
    /// What an answer is that calls nothing; any text if this is none.
    form: Option<GrammarSource>,
}

impl ToolUse {
    /// Takes the functions of a request; `is_parallel` allows several calls in one answer, where the model's form does.
    ///
    /// # Errors
    /// [`TextErrorKind::Options`]: none, a name that cannot be one or stands twice, parameters that are no object, or the
    /// choice of one that is not there.
    pub fn new(
        text: &ModelText,
        tools: Vec<Tool>,
        choice: ToolChoice,
        is_parallel: bool,
    ) -> Result<ToolUse, TextError> {
        let refused = |line: String| Err(TextError::new(TextErrorKind::Options, line));
        if tools.is_empty() {
            return refused("there is no function to be called; name some or choose none".to_owned());
        }
        for (i, tool) in tools.iter().enumerate() {
            tool.check()?;
            if tools[..i].iter().any(|other| other.name == tool.name) {
                return refused(format!("two functions are named '{}'; give each its own name", tool.name));
            }
        }
        if let ToolChoice::Named(name) = &choice
            && tools.iter().all(|tool| tool.name != *name)
        {
            let known: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
            return refused(format!("the function '{name}' is chosen and not there; there is {}", known.join(", ")));
        }
        let format = text.tool_format();
        Ok(ToolUse { text: text.clone(), format, tools: tools.into(), choice, is_parallel, form: None })
    }

    /// Gives a form to an answer that calls nothing. Where a call is asked for there is no such answer.
    ///
    /// # Errors
    /// [`TextErrorKind::Grammar`]: the form is a grammar of rules, which does not go together with calls.
    pub fn with_form(mut self, form: GrammarSource) -> Result<ToolUse, TextError> {
        if matches!(form, GrammarSource::Lark(_) | GrammarSource::Gbnf(_)) && !self.is_forced() {
            let line =
                "a grammar of rules does not go with functions that may be called; give a schema, a regex or a choice";
            return Err(TextError::new(TextErrorKind::Grammar, line));
        }
        self.form = Some(form).filter(|_| !self.is_forced());
        Ok(self)
    }

    /// Returns the form of calls that the model speaks.
    pub fn format(&self) -> ToolFormat {
        self.format
    }

    /// Returns the definitions, for [`crate::template::ChatInput::tools`].
    pub fn definitions(&self) -> Value {
        self.tools.iter().map(Tool::definition).collect()
    }

    /// Returns whether an answer is a call in any case.
    pub fn is_forced(&self) -> bool {
        self.choice != ToolChoice::Auto
    }

    /// Returns whether the arguments of every call are valid by their schema, or the request is refused.
    pub fn is_strict(&self) -> bool {
        self.is_forced() || self.tools.iter().any(|tool| tool.is_strict)
    }

    /// Returns the control tokens that are part of the text in this form, for whoever decodes it.
    pub fn visible(&self) -> Vec<u32> {
        let marks = self.format.syntax().marks().iter();
        marks.filter_map(|mark| grammar::control_token(self.text.tokenizer(), mark)).collect()
    }

    /// Returns the functions.
    pub fn tools(&self) -> &[Tool] {
        &self.tools
    }

    /// Returns the same request with one of its functions alone, by its index.
    pub fn with_only(&self, i: usize) -> ToolUse {
        ToolUse { tools: [self.tools[i].clone()].into(), ..self.clone() }
    }

    /// Returns the same request, where the arguments of a function, by its index, are any object.
    pub fn with_any_arguments(&self, i: usize) -> ToolUse {
        let mut tools = self.tools.to_vec();
        tools[i].parameters = None;
        ToolUse { tools: tools.into(), ..self.clone() }
    }

    /// Returns whether an answer ends where its grammar is complete; one that may be any text ends by stop strings as well.
    pub fn ends_by_grammar(&self) -> bool {
        self.is_forced() || self.form.is_some()
    }

    /// Returns the grammar of the answer, in Lark's syntax: calls whose arguments are valid by their schemas, or before and
    /// instead of them any text where the model is free to call.
    ///
    /// # Errors
    /// [`TextErrorKind::Grammar`]: a schema that this format cannot be held to, named.
    pub fn source(&self) -> Result<GrammarSource, TextError> {
        grammar::source(self)
    }

    /// Returns what reads the calls out of an answer to this request.
    pub fn reader(&self) -> CallReader {
        CallReader::new(self.format, self.tools.iter().map(|tool| tool.name.clone()).collect())
    }
}
