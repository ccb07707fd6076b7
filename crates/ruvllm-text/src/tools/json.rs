//! Calls as objects of JSON, which most forms have at their heart.

use serde_json::{Map, Value, json};

use super::cursor::{Cursor, Miss};
use super::reader::{Arguments, Opened, Place, Taken};

/// Names that models give to a call's arguments.
const ARGUMENTS: [&str; 2] = ["arguments", "parameters"];
/// Names that the first property of a call has.
const FIRST: [&str; 6] = ["name", "arguments", "parameters", "type", "function", "id"];

/// Finds where the bracket that a text begins with is closed.
#[derive(Debug, Default)]
pub(super) struct Brackets {
    depth: usize,
    is_text: bool,
    is_escaped: bool,
}

impl Brackets {
    /// Goes on with more of the text; returns how much of it there is up to the closing bracket, with it.
    pub(super) fn end(&mut self, text: &str) -> Option<usize> {
        for (i, byte) in text.bytes().enumerate() {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.is_text => self.is_escaped = true,
                b'"' => self.is_text = !self.is_text,
                b'{' | b'[' if !self.is_text => self.depth += 1,
                b'}' | b']' if !self.is_text => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(i + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

/// Takes an object as it is.
#[derive(Debug, Default)]
pub(super) struct Object(Brackets);

impl Arguments for Object {
    fn take(&mut self, text: &str, _: bool, json: &mut String) -> Taken {
        let end = self.0.end(text);
        let n_bytes = end.unwrap_or(text.len());
        json.push_str(&text[..n_bytes]);
        Taken { n_bytes, is_done: end.is_some() }
    }
}

/// Reads a call up to its arguments, `{"name": …, "arguments": `, or all of one whose properties come in another order.
pub(super) fn open(cursor: &mut Cursor<'_>, place: &Place<'_>) -> Result<Opened, Miss> {
    let start = *cursor;
    match named(cursor) {
        Err(Miss::No) => {
            *cursor = start;
            whole(cursor)
        }
        result => result.map(|name| Opened { name, arguments: None }),
    }
    .and_then(|opened| if place.names.contains(&opened.name) { Ok(opened) } else { Err(Miss::No) })
}

fn named(cursor: &mut Cursor<'_>) -> Result<String, Miss> {
    let key = |cursor: &mut Cursor<'_>, names: &[&str]| {
        cursor.spaces();
        let key = cursor.string()?;
        cursor.spaces();
        cursor.eat(":")?;
        cursor.spaces();
        if names.contains(&key.as_str()) { Ok(()) } else { Err(Miss::No) }
    };
    cursor.eat("{")?;
    key(cursor, &["name"])?;
    let name = cursor.string()?;
    cursor.spaces();
    cursor.eat(",")?;
    key(cursor, &ARGUMENTS)?;
    cursor.expect("{")?;
    Ok(name)
}

/// Reads an object to its end, and the call out of it.
fn whole(cursor: &mut Cursor<'_>) -> Result<Opened, Miss> {
    let start = *cursor;
    cursor.eat("{")?;
    cursor.spaces();
    if !FIRST.contains(&cursor.string()?.as_str()) {
        return Err(Miss::No);
    }
    *cursor = start;
    let object: Value = serde_json::from_str(cursor.balanced()?).map_err(|_| Miss::No)?;
    // As OpenAI writes a call: the function inside.
    let object = object.get("function").filter(|inner| inner.is_object()).unwrap_or(&object);
    let name = object["name"].as_str().ok_or(Miss::No)?.to_owned();
    let arguments = match ARGUMENTS.iter().find_map(|key| object.get(key)) {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(Value::String(text)) => serde_json::from_str(text).map_err(|_| Miss::No)?,
        Some(arguments) => arguments.clone(),
    };
    if !arguments.is_object() {
        return Err(Miss::No);
    }
    Ok(Opened { name, arguments: Some(arguments.to_string()) })
}

/// Reads what closes the object of a call, with properties behind its arguments.
pub(super) fn close(cursor: &mut Cursor<'_>) -> Result<(), Miss> {
    let start = *cursor;
    while cursor.eat_optional(",")? {
        cursor.spaces();
        let property = |cursor: &mut Cursor<'_>| {
            cursor.string()?;
            cursor.spaces();
            cursor.eat(":")?;
            cursor.spaces();
            match cursor.expect("\"") {
                Ok(()) => cursor.string().map(drop),
                Err(Miss::More) => Err(Miss::More),
                Err(Miss::No) => cursor.word(|c| c.is_ascii_alphanumeric() || "+-.".contains(c)).map(drop),
            }
        };
        match property(cursor) {
            Ok(()) => {}
            Err(Miss::More) => return Err(Miss::More),
            Err(Miss::No) => {
                *cursor = start;
                return Ok(());
            }
        }
    }
    if !cursor.eat_optional("}")? {
        *cursor = start;
    }
    Ok(())
}

/// Returns a call as text; `key` is what its arguments are named.
pub(super) fn written(call: &Value, key: &str) -> String {
    let (name, arguments) = (&call["name"], &call["arguments"]);
    format!("{{\"name\": {name}, \"{key}\": {}}}", spaced(arguments))
}

/// Returns JSON with a space behind commas and colons, as models are shown it.
fn spaced(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(spaced).collect::<Vec<_>>().join(", ")),
        Value::Object(object) => {
            let property = |(key, value): (&String, &Value)| format!("{}: {}", json!(key), spaced(value));
            format!("{{{}}}", object.iter().map(property).collect::<Vec<_>>().join(", "))
        }
        _ => value.to_string(),
    }
}
