//! `call:f{key:<escape>text<escape>,n:3}` between marks of its own, one after the other: FunctionGemma and, with other
//! marks, Gemma 4. Source: "FunctionGemma formatting and best practices", ai.google.dev.

use serde_json::{Value, json};

use super::cursor::{Cursor, Miss};
use super::grammar::{Rules, object_schema};
use super::reader::{Arguments, Opened, Place, Taken};
use super::{Syntax, Tool};
use crate::{TextError, TextErrorKind};

pub(super) struct Gemma {
    marks: [&'static str; 3],
    /// The model writes this behind its calls and waits; its only effect here is that the answer is over.
    response: Option<&'static str>,
}

pub(super) const FUNCTION_GEMMA: Gemma = Gemma {
    marks: ["<start_function_call>", "<end_function_call>", "<escape>"],
    response: Some("<start_function_response>"),
};

pub(super) const GEMMA_4: Gemma =
    Gemma { marks: ["<|tool_call>", "<tool_call|>", "<|\"|>"], response: Some("<|tool_response>") };

impl Gemma {
    fn opening(&self) -> &'static str {
        self.marks[0]
    }

    fn closing(&self) -> &'static str {
        self.marks[1]
    }

    fn quote(&self) -> &'static str {
        self.marks[2]
    }
}

impl Syntax for Gemma {
    fn marks(&self) -> &'static [&'static str] {
        match self.opening() == FUNCTION_GEMMA.marks[0] {
            true => &FUNCTION_GEMMA.marks,
            false => &GEMMA_4.marks,
        }
    }

    fn open(&self, cursor: &mut Cursor<'_>, place: &Place<'_>) -> Result<Opened, Miss> {
        cursor.spaces();
        cursor.eat(self.opening())?;
        cursor.spaces();
        cursor.eat("call:")?;
        let name = cursor.word(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))?.to_owned();
        cursor.expect("{")?;
        if place.names.contains(&name) { Ok(Opened { name, arguments: None }) } else { Err(Miss::No) }
    }

    fn close(&self, cursor: &mut Cursor<'_>, _: bool) -> Result<(), Miss> {
        cursor.eat_optional(self.closing()).map(drop)
    }

    fn arguments(&self) -> Box<dyn Arguments> {
        Box::new(Translator { quote: self.quote(), ..Translator::default() })
    }

    fn rules(&self, rules: &mut Rules<'_>) -> Result<(), TextError> {
        let end = self.response.and_then(|mark| rules.token(mark)).map(|token| format!(" {token}?"));
        rules.start_behind(self.opening(), "call", "");
        let (close, quote) = (rules.mark(self.closing()), rules.token(self.quote()));
        let last = end.unwrap_or_default();
        let calls: Vec<String> =
            (0..rules.tools().len()).map(|i| format!("\"call:{}\" args_{i}", rules.tools()[i].name)).collect();
        rules.line(&format!("call: ({}) {close}{last}", calls.join(" | ")));
        let mut schema = Schema { quote: self.quote(), quote_token: quote, lark: String::new(), n_rules: 0 };
        for (i, tool) in rules.tools().iter().enumerate() {
            let object = schema.arguments(tool)?;
            schema.lark.push_str(&format!("args_{i}: {object}\n"));
        }
        schema.common();
        let lark = schema.lark;
        rules.line(&lark);
        Ok(())
    }

    fn written(&self, calls: &[Value]) -> String {
        let call = |call: &Value| {
            let name = call["name"].as_str().unwrap_or_default();
            format!("{}call:{name}{}{}", self.opening(), self.value(&call["arguments"]), self.closing())
        };
        calls.iter().map(call).collect()
    }
}

impl Gemma {
    fn value(&self, value: &Value) -> String {
        match value {
            Value::String(text) => format!("{0}{text}{0}", self.quote()),
            Value::Array(items) => {
                format!("[{}]", items.iter().map(|item| self.value(item)).collect::<Vec<_>>().join(","))
            }
            Value::Object(object) => {
                let property = |(key, value): (&String, &Value)| format!("{key}:{}", self.value(value));
                format!("{{{}}}", object.iter().map(property).collect::<Vec<_>>().join(","))
            }
            _ => value.to_string(),
        }
    }
}

/// Turns arguments into JSON as they come.
#[derive(Debug, Default)]
struct Translator {
    quote: &'static str,
    /// The brackets that are open.
    open: Vec<char>,
    is_text: bool,
    /// A property's name comes next.
    is_key: bool,
    /// A name, a number or a word, as far as it is there.
    bare: String,
}

impl Translator {
    fn bare(&mut self, json: &mut String) {
        let bare = std::mem::take(&mut self.bare);
        let word = bare.trim();
        if word.is_empty() {
            return;
        }
        match serde_json::from_str::<Value>(word) {
            Ok(value) if !self.is_key || value.is_string() => json.push_str(word),
            _ => json.push_str(&json!(word).to_string()),
        }
    }

    fn character(&mut self, c: char, json: &mut String) {
        match c {
            '{' | '[' => {
                self.open.push(c);
                self.is_key = c == '{';
                json.push(c);
            }
            '}' | ']' => {
                self.bare(json);
                // As it was opened, whatever the model writes.
                json.push(if self.open.pop() == Some('{') { '}' } else { ']' });
                self.is_key = false;
            }
            ':' if self.is_key => {
                self.bare(json);
                self.is_key = false;
                json.push(c);
            }
            ',' => {
                self.bare(json);
                self.is_key = self.open.last() == Some(&'{');
                json.push(c);
            }
            _ => self.bare.push(c),
        }
    }
}

impl Arguments for Translator {
    fn take(&mut self, text: &str, is_end: bool, json: &mut String) -> Taken {
        let mut at = 0;
        while let Some(c) = text[at..].chars().next() {
            let rest = &text[at..];
            if rest.starts_with(self.quote) {
                json.push('"');
                self.is_text = !self.is_text;
                at += self.quote.len();
            } else if !is_end && self.quote.starts_with(rest) {
                // The rest of the mark may still come.
                break;
            } else if self.is_text {
                let quoted = json!(c.to_string()).to_string();
                json.push_str(&quoted[1..quoted.len() - 1]);
                at += c.len_utf8();
            } else {
                self.character(c, json);
                at += c.len_utf8();
                if self.open.is_empty() {
                    return Taken { n_bytes: at, is_done: true };
                }
            }
        }
        Taken { n_bytes: at, is_done: false }
    }
}

/// Writes rules for values of JSON Schemas.
struct Schema {
    quote: &'static str,
    quote_token: Option<String>,
    lark: String,
    n_rules: usize,
}

/// Keywords that say nothing about what is valid.
const NOTES: [&str; 9] =
    ["title", "description", "default", "examples", "$schema", "$id", "$comment", "format", "deprecated"];

impl Schema {
    /// Returns the rule of a function's arguments.
    fn arguments(&mut self, tool: &Tool) -> Result<String, TextError> {
        let schema = object_schema(tool.parameters.as_ref());
        self.value(&schema, 0).map_err(|keyword| {
            let line = format!(
                "the schema of '{}' uses '{keyword}', which is not supported in this model's form of calls",
                tool.name
            );
            TextError::new(TextErrorKind::Grammar, line)
        })
    }

    /// Returns an expression for a value, or the keyword that cannot be.
    fn value(&mut self, schema: &Value, depth: usize) -> Result<String, String> {
        let Some(object) = schema.as_object() else {
            return if schema == &json!(true) { Ok("value".to_owned()) } else { Err("false".to_owned()) };
        };
        if depth > 16 {
            return Err("properties nested deeper than 16".to_owned());
        }
        let mut known = vec!["type", "enum", "const", "anyOf", "nullable"];
        known.extend(["properties", "required", "additionalProperties", "items"]);
        if let Some(key) = object.keys().find(|key| !known.contains(&key.as_str()) && !NOTES.contains(&key.as_str())) {
            return Err(key.clone());
        }
        let constant = || object.get("const").map(|value| vec![value.clone()]);
        if let Some(values) = schema["enum"].as_array().cloned().or_else(constant) {
            let values: Result<Vec<String>, String> = values.iter().map(|value| self.constant(value)).collect();
            return Ok(format!("({})", values?.join(" | ")));
        }
        let mut choices = Vec::new();
        if let Some(schemas) = schema["anyOf"].as_array() {
            for schema in schemas {
                choices.push(self.value(schema, depth + 1)?);
            }
            return Ok(format!("({})", choices.join(" | ")));
        }
        let types: Vec<&str> = match &schema["type"] {
            Value::String(one) => vec![one],
            Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
            _ if schema["properties"].is_object() => vec!["object"],
            _ if object.contains_key("items") => vec!["array"],
            _ => return Ok("value".to_owned()),
        };
        for kind in types {
            choices.push(self.of_type(kind, schema, depth)?);
        }
        if schema["nullable"] == true {
            choices.push("\"null\"".to_owned());
        }
        Ok(format!("({})", choices.join(" | ")))
    }

    fn of_type(&mut self, kind: &str, schema: &Value, depth: usize) -> Result<String, String> {
        Ok(match kind {
            "string" => "text".to_owned(),
            "integer" => "INTEGER".to_owned(),
            "number" => "NUMBER".to_owned(),
            "boolean" => "(\"true\" | \"false\")".to_owned(),
            "null" => "\"null\"".to_owned(),
            "array" => {
                let item = match schema.get("items") {
                    Some(items) => self.value(items, depth + 1)?,
                    None => "value".to_owned(),
                };
                format!("(\"[\" ({item} (\",\" {item})*)? \"]\")")
            }
            "object" => self.object(schema, depth)?,
            other => return Err(format!("type {other}")),
        })
    }

    /// Returns an object: its properties in order, those that are not required or not there; then others, if they may come.
    fn object(&mut self, schema: &Value, depth: usize) -> Result<String, String> {
        let empty = serde_json::Map::new();
        let properties = schema["properties"].as_object().unwrap_or(&empty);
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if required.iter().any(|name| !properties.contains_key(*name)) {
            return Err("required".to_owned());
        }
        let others = match schema.get("additionalProperties") {
            Some(Value::Bool(false)) => None,
            None | Some(Value::Bool(true)) => Some("value".to_owned()),
            Some(schema) => Some(self.value(schema, depth + 1)?),
        };
        // A rule for what may follow the first `i` properties, with and without one in front.
        let n = properties.len();
        let name = |base: usize, i: usize, is_first: bool| format!("o{}_{}", base + i, usize::from(is_first));
        let base = self.n_rules;
        self.n_rules += n + 1;
        let mut lines = String::new();
        for (i, (key, schema)) in properties.iter().enumerate() {
            if key.is_empty() || !key.chars().all(|c| c.is_ascii_alphanumeric() || "_-.$".contains(c)) {
                return Err(key.clone());
            }
            let value = self.value(schema, depth + 1)?;
            for is_first in [true, false] {
                let comma = if is_first { "" } else { "," };
                let with = format!("\"{comma}{key}:\" {value} {}", name(base, i + 1, false));
                let without = match required.contains(&key.as_str()) {
                    true => String::new(),
                    false => format!(" | {}", name(base, i + 1, is_first)),
                };
                lines.push_str(&format!("{}: {with}{without}\n", name(base, i, is_first)));
            }
        }
        for is_first in [true, false] {
            // Others come only where none are listed: a grammar could not tell them from the listed ones.
            let more = match (&others, is_first, n) {
                (Some(value), true, 0) => format!("(KEY \":\" {value} (\",\" KEY \":\" {value})*)? "),
                _ => String::new(),
            };
            lines.push_str(&format!("{}: {more}\"}}\"\n", name(base, n, is_first)));
        }
        self.lark.push_str(&lines);
        Ok(format!("(\"{{\" {})", name(base, 0, true)))
    }

    fn constant(&self, value: &Value) -> Result<String, String> {
        match value {
            Value::String(text) => {
                let (quote, text) = (self.quote(), if text.is_empty() { String::new() } else { Rules::text(text) });
                Ok(format!("({quote} {text} {quote})"))
            }
            Value::Bool(_) | Value::Null | Value::Number(_) => Ok(Rules::text(&value.to_string())),
            _ => Err("enum".to_owned()),
        }
    }

    fn quote(&self) -> String {
        self.quote_token.clone().unwrap_or_else(|| Rules::text(self.quote))
    }

    /// Writes the rules that values need.
    fn common(&mut self) {
        let quote = self.quote();
        match &self.quote_token {
            Some(_) => self.lark.push_str(&format!("text: {quote} TEXT? {quote}\nTEXT: /(?s:.+)/\n")),
            None => self.lark.push_str(&format!("text: {quote} text_end\ntext_end[suffix={quote}]: /(?s:.*)/\n")),
        }
        self.lark.push_str("value: text | NUMBER | \"true\" | \"false\" | \"null\" | list | object\n");
        self.lark.push_str("list: \"[\" (value (\",\" value)*)? \"]\"\n");
        self.lark.push_str("object: \"{\" (KEY \":\" value (\",\" KEY \":\" value)*)? \"}\"\n");
        self.lark.push_str("KEY: /[A-Za-z_][A-Za-z0-9_]*/\nINTEGER: /-?(0|[1-9][0-9]{0,15})/\n");
        self.lark.push_str("NUMBER: /-?(0|[1-9][0-9]{0,15})(\\.[0-9]{1,12})?/\n");
    }
}
