//! `[TOOL_CALLS][{"name": "f", "arguments": {…}}, …]` (Mistral 7B v0.3, Nemo, Small 3.0) and
//! `[TOOL_CALLS]f[ARGS]{…}` (Small 3.2, Devstral, Magistral).

use serde_json::Value;

use super::Syntax;
use super::cursor::{Cursor, Miss};
use super::grammar::Rules;
use super::json;
use super::reader::{Opened, Place};
use crate::TextError;

const OPEN: &str = "[TOOL_CALLS]";
const ID: &str = "[CALL_ID]";
const ARGS: &str = "[ARGS]";

pub(super) struct Mistral {
    /// Calls have a name and `[ARGS]` instead of being a list of JSON. Both are read.
    pub(super) has_args_mark: bool,
}

impl Syntax for Mistral {
    fn marks(&self) -> &'static [&'static str] {
        &[OPEN, ID, ARGS]
    }

    fn open(&self, cursor: &mut Cursor<'_>, place: &Place<'_>) -> Result<Opened, Miss> {
        let before = *cursor;
        if place.n_calls > 0 && place.is_start && cursor.eat_optional(",")? {
            cursor.spaces();
            return json::open(cursor, place);
        }
        *cursor = before;
        cursor.spaces();
        cursor.eat(OPEN)?;
        cursor.spaces();
        if cursor.eat_optional("[")? {
            cursor.spaces();
            return json::open(cursor, place);
        }
        match cursor.expect("{") {
            Err(Miss::No) => {}
            Ok(()) => return json::open(cursor, place),
            Err(Miss::More) => return Err(Miss::More),
        }
        let name = cursor.word(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))?.to_owned();
        if !place.names.contains(&name) {
            return Err(Miss::No);
        }
        if cursor.eat_optional(ID)? {
            cursor.word(|c| c.is_ascii_alphanumeric())?;
        }
        cursor.eat_optional(ARGS)?;
        cursor.spaces();
        cursor.expect("{")?;
        Ok(Opened { name, arguments: None })
    }

    fn close(&self, cursor: &mut Cursor<'_>, is_object_closed: bool) -> Result<(), Miss> {
        if !self.has_args_mark && !is_object_closed {
            json::close(cursor)?;
        }
        cursor.eat_optional("]").map(drop)
    }

    fn rules(&self, rules: &mut Rules<'_>) -> Result<(), TextError> {
        if self.has_args_mark {
            rules.start_behind(OPEN, "call", "");
            let args = rules.mark(ARGS);
            let calls = rules.named_calls(&|name| format!("{} {args}", Rules::text(name)))?;
            rules.line(&calls);
            return Ok(());
        }
        rules.start_behind_once(OPEN, "body");
        let more = if rules.allows_several() { " (\", \" call)*" } else { "" };
        let calls = rules.json_calls("arguments")?;
        rules.line(&format!("body: \"[\" call{more} \"]\"\n{calls}"));
        Ok(())
    }

    fn written(&self, calls: &[Value]) -> String {
        if self.has_args_mark {
            let call = |call: &Value| {
                let name = call["name"].as_str().unwrap_or_default();
                format!("{OPEN}{name}{ARGS}{}", call["arguments"])
            };
            return calls.iter().map(call).collect();
        }
        let calls: Vec<String> = calls.iter().map(|call| json::written(call, "arguments")).collect();
        format!("{OPEN}[{}]", calls.join(", "))
    }
}
