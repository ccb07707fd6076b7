//! `{"name": "f", "arguments": {…}}`, a line for each call and nothing else: what `prompt` asks of models whose template
//! knows no functions. A list of such objects is read as well.

use serde_json::Value;

use super::Syntax;
use super::cursor::{Cursor, Miss};
use super::grammar::Rules;
use super::json;
use super::reader::{Opened, Place};
use crate::TextError;

pub(super) struct Generic;

impl Syntax for Generic {
    fn marks(&self) -> &'static [&'static str] {
        &[]
    }

    fn open(&self, cursor: &mut Cursor<'_>, place: &Place<'_>) -> Result<Opened, Miss> {
        if !place.is_start {
            return Err(Miss::No);
        }
        cursor.eat_optional(if place.n_calls == 0 { "[" } else { "," })?;
        cursor.spaces();
        json::open(cursor, place)
    }

    fn close(&self, cursor: &mut Cursor<'_>, is_object_closed: bool) -> Result<(), Miss> {
        if !is_object_closed {
            json::close(cursor)?;
        }
        cursor.eat_optional("]").map(drop)
    }

    fn rules(&self, rules: &mut Rules<'_>) -> Result<(), TextError> {
        rules.start_bare("call", Some("\"\\n\""));
        let calls = rules.json_calls("arguments")?;
        rules.line(&calls);
        Ok(())
    }

    fn written(&self, calls: &[Value]) -> String {
        calls.iter().map(|call| json::written(call, "arguments")).collect::<Vec<_>>().join("\n")
    }
}
