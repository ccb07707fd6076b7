//! The grammar of an answer that may hold calls, in Lark's syntax.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{Tool, ToolChoice, ToolUse};
use crate::tokenizer::{EncodeOptions, Tokenizer};
use crate::{GrammarSource, TextError};

/// Returns the control token that is written so, if there is one: a grammar names it by its id, and ordinary text never
/// has it.
pub(super) fn control_token(tokenizer: &Tokenizer, mark: &str) -> Option<u32> {
    let options = EncodeOptions { add_special: false, parse_special: true };
    match tokenizer.encode(mark, options).ok()?[..] {
        [id] if tokenizer.is_control(id) => Some(id),
        _ => None,
    }
}

/// Writes the grammar for the functions of a request.
///
/// # Errors
/// A schema that the form of the calls cannot be held to.
pub(super) fn source(tool_use: &ToolUse) -> Result<GrammarSource, TextError> {
    let syntax = tool_use.format.syntax();
    let chosen = |tool: &&Tool| match &tool_use.choice {
        ToolChoice::Named(name) => tool.name == *name,
        _ => true,
    };
    let mut rules = Rules {
        tools: tool_use.tools.iter().filter(chosen).collect(),
        tokenizer: tool_use.text.tokenizer(),
        is_forced: tool_use.is_forced(),
        form: tool_use.form.as_ref(),
        // Who names a function wants one call of it.
        is_several: tool_use.is_parallel && syntax.allows_several() && !matches!(tool_use.choice, ToolChoice::Named(_)),
        lark: String::new(),
    };
    // What is refused or let be depends on it, so sources that differ in it differ.
    let strict = rules.tools.iter().filter(|tool| tool.is_strict).map(|tool| tool.name.as_str());
    let strict = strict.collect::<Vec<_>>().join(", ");
    rules.line(&format!("// strict: {strict}"));
    syntax.rules(&mut rules)?;
    if let Some(form) = rules.form {
        let rule = form_rule(form);
        rules.line(&rule);
    }
    Ok(GrammarSource::Lark(rules.lark))
}

/// The rules of a grammar while they are written.
pub(super) struct Rules<'u> {
    tools: Vec<&'u Tool>,
    tokenizer: &'u Tokenizer,
    is_forced: bool,
    /// What an answer without calls is.
    form: Option<&'u GrammarSource>,
    is_several: bool,
    lark: String,
}

impl<'u> Rules<'u> {
    /// Returns the functions that may be called.
    pub(super) fn tools(&self) -> &[&'u Tool] {
        &self.tools
    }

    /// Returns whether several calls may come.
    pub(super) fn allows_several(&self) -> bool {
        self.is_several
    }

    /// Adds rules, one a line.
    pub(super) fn line(&mut self, line: &str) {
        self.lark.push_str(line.trim_end());
        self.lark.push('\n');
    }

    /// Returns a text as Lark writes it.
    pub(super) fn text(text: &str) -> String {
        json!(text).to_string()
    }

    /// Returns the control token that is written so, if there is one.
    pub(super) fn token(&self, mark: &str) -> Option<String> {
        control_token(self.tokenizer, mark).map(|id| format!("<[{id}]>"))
    }

    /// Returns a mark: the control token, or else its text.
    pub(super) fn mark(&self, mark: &str) -> String {
        self.token(mark).unwrap_or_else(|| Rules::text(mark))
    }

    /// Writes `start` for calls that a mark opens: any text, then the mark and `body`, as often as may be with `between` in
    /// front; or nothing but calls, if they are forced.
    pub(super) fn start_behind(&mut self, open: &str, body: &str, between: &str) {
        let mark = self.mark(open);
        let more = if self.is_several { format!(" ({between} {mark} {body})*") } else { String::new() };
        self.start(open, &format!("{body}{more}"));
    }

    /// The same for one mark in front of all calls.
    pub(super) fn start_behind_once(&mut self, open: &str, body: &str) {
        self.start(open, body);
    }

    /// Returns what may come instead of calls: nothing, or an answer in the form; `None` if that is any text.
    fn instead(&self) -> Option<&'static str> {
        match (self.is_forced, self.form) {
            (true, _) => Some(""),
            (false, Some(_)) => Some("form | "),
            (false, None) => None,
        }
    }

    fn start(&mut self, open: &str, behind: &str) {
        if let Some(instead) = self.instead() {
            let mark = self.mark(open);
            return self.line(&format!("start: {instead}{mark} {behind}"));
        }
        self.line(&format!("start: FREE? | opened {behind}"));
        match self.token(open) {
            // No text has a control token in it.
            Some(token) => self.line(&format!("opened: FREE? {token}\nFREE: /(?s:.+)/")),
            None => {
                let (text, regex) = (Rules::text(open), escaped(open));
                self.line(&format!("opened[suffix={text}]: /(?s:.*)/"));
                self.line(&format!("FREE: /(?s:.+)/ & ~/(?s:.*){regex}(?s:.*)/"));
            }
        }
    }

    /// Writes `start` for calls that are the whole answer: they begin like `{"name": "`, and any other text does not.
    pub(super) fn start_bare(&mut self, call: &str, between: Option<&str>) {
        let more = between.filter(|_| self.is_several).map(|between| format!(" ({between} call)*")).unwrap_or_default();
        if let Some(instead) = self.instead() {
            return self.line(&format!("start: {instead}{call}{more}"));
        }
        self.line(&format!("start: FREE? | {call}{more}"));
        self.line(&format!("FREE: /(?s:.+)/ & ~/{}(?s:.*)/", escaped("{\"name\": \"")));
    }

    /// Returns the rules of `call`, an object of JSON whose arguments are named `key`.
    ///
    /// # Errors
    /// A schema that uses what is not supported.
    pub(super) fn json_calls(&self, key: &str) -> Result<String, TextError> {
        let open = |name: &str| Rules::text(&format!("{{\"name\": \"{name}\", \"{key}\": "));
        self.calls(&open, " \"}\"")
    }

    /// Returns the rules of `call`, what `open` gives for a name and then the arguments.
    ///
    /// # Errors
    /// A schema that uses what is not supported.
    pub(super) fn named_calls(&self, open: &dyn Fn(&str) -> String) -> Result<String, TextError> {
        self.calls(open, "")
    }

    fn calls(&self, open: &dyn Fn(&str) -> String, close: &str) -> Result<String, TextError> {
        let (mut calls, mut arguments) = (Vec::new(), String::new());
        for (i, tool) in self.tools.iter().enumerate() {
            calls.push(format!("{} args_{i}{close}", open(&tool.name)));
            let schema = object_schema(tool.parameters.as_ref());
            let _ = writeln!(arguments, "args_{i}: %json {schema}");
        }
        Ok(format!("call: {}\n{arguments}", calls.join(" | ")))
    }
}

/// Returns the rule of an answer without calls.
fn form_rule(form: &GrammarSource) -> String {
    match form {
        GrammarSource::JsonObject => "form: %json {\"type\": \"object\"}".to_owned(),
        GrammarSource::JsonSchema(schema) => format!("form: %json {schema}"),
        GrammarSource::Regex(regex) => format!("form: FORM\nFORM: /{}/", regex.replace('/', "\\/")),
        GrammarSource::Choice(texts) => {
            format!("form: {}", texts.iter().map(|text| Rules::text(text)).collect::<Vec<_>>().join(" | "))
        }
        // `ToolUse::with_form` refuses them.
        GrammarSource::Lark(_) | GrammarSource::Gbnf(_) => String::new(),
    }
}

/// Returns the schema of arguments: an object, and of the properties that are listed where some are and nothing says that
/// others may come.
pub(super) fn object_schema(parameters: Option<&Value>) -> Value {
    let Some(Value::Object(given)) = parameters else { return json!({ "type": "object" }) };
    let mut schema = given.clone();
    schema.entry("type").or_insert(json!("object"));
    let open =
        ["additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "$ref"];
    if schema.contains_key("properties") && !open.iter().any(|key| schema.contains_key(*key)) {
        schema.insert("additionalProperties".to_owned(), json!(false));
    }
    Value::Object(schema)
}

/// Returns a regular expression, as it stands between slashes, of this text.
fn escaped(text: &str) -> String {
    regex::escape(text).replace('/', "\\/")
}
