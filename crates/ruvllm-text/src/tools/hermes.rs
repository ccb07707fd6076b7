//! `<tool_call>{"name": "f", "arguments": {…}}</tool_call>`, one after the other: Qwen 2.5 and 3, Hermes 2 and 3, Granite 4.

use serde_json::Value;

use super::Syntax;
use super::cursor::{Cursor, Miss};
use super::grammar::Rules;
use super::json;
use super::reader::{Opened, Place};
use crate::TextError;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

pub(super) struct Hermes;

impl Syntax for Hermes {
    fn marks(&self) -> &'static [&'static str] {
        &[OPEN, CLOSE]
    }

    fn open(&self, cursor: &mut Cursor<'_>, place: &Place<'_>) -> Result<Opened, Miss> {
        cursor.spaces();
        cursor.eat(OPEN)?;
        cursor.spaces();
        json::open(cursor, place)
    }

    fn close(&self, cursor: &mut Cursor<'_>, is_object_closed: bool) -> Result<(), Miss> {
        if !is_object_closed {
            json::close(cursor)?;
        }
        cursor.eat_optional(CLOSE).map(drop)
    }

    fn rules(&self, rules: &mut Rules<'_>) -> Result<(), TextError> {
        rules.start_behind(OPEN, "body", "\"\\n\"");
        let close = rules.mark(CLOSE);
        let calls = rules.json_calls("arguments")?;
        rules.line(&format!("body: \"\\n\" call \"\\n\" {close}\n{calls}"));
        Ok(())
    }

    fn written(&self, calls: &[Value]) -> String {
        let call = |call: &Value| format!("{OPEN}\n{}\n{CLOSE}", json::written(call, "arguments"));
        calls.iter().map(call).collect::<Vec<_>>().join("\n")
    }
}
