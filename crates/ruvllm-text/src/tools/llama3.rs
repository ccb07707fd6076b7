//! `{"name": "f", "parameters": {…}}` as the whole answer: Llama 3.1 to 3.3. With functions of its own the model puts
//! `<|python_tag|>` in front, which is read as well.

use serde_json::Value;

use super::Syntax;
use super::cursor::{Cursor, Miss};
use super::grammar::Rules;
use super::json;
use super::reader::{Opened, Place};
use crate::TextError;

const TAG: &str = "<|python_tag|>";

pub(super) struct Llama3;

impl Syntax for Llama3 {
    fn marks(&self) -> &'static [&'static str] {
        &[TAG]
    }

    fn open(&self, cursor: &mut Cursor<'_>, place: &Place<'_>) -> Result<Opened, Miss> {
        let is_tagged = cursor.eat_optional(TAG)?;
        if !is_tagged && !place.is_start {
            return Err(Miss::No);
        }
        if place.n_calls > 0 {
            cursor.eat_optional(";")?;
        }
        cursor.spaces();
        json::open(cursor, place)
    }

    fn close(&self, cursor: &mut Cursor<'_>, is_object_closed: bool) -> Result<(), Miss> {
        if is_object_closed { Ok(()) } else { json::close(cursor) }
    }

    fn rules(&self, rules: &mut Rules<'_>) -> Result<(), TextError> {
        let tag = rules.token(TAG).map(|tag| format!("{tag}? ")).unwrap_or_default();
        rules.start_bare(&format!("{tag}call"), None);
        let calls = rules.json_calls("parameters")?;
        rules.line(&calls);
        Ok(())
    }

    fn written(&self, calls: &[Value]) -> String {
        calls.iter().map(|call| json::written(call, "parameters")).collect::<Vec<_>>().join("; ")
    }

    /// Its template refuses a conversation with two calls in a message.
    fn allows_several(&self) -> bool {
        false
    }
}
