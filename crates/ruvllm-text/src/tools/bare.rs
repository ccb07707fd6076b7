//! Calls that a model writes without the marks of its form: JSON alone, in a fence, between other marks, in a list.
//!
//! Small models do so nearly always. Only what names a function that was offered is a call; all else stays text.

use super::cursor::{Cursor, Miss};
use super::json;
use super::reader::{Opened, Place};

/// Marks that stand around a call and are none of the model's own: what opens, and what closes.
const AROUND: [(&str, &str); 8] = [
    ("```json", "```"),
    ("```tool_call", "```"),
    ("```", "```"),
    ("<tools>", "</tools>"),
    ("<tool_call>", "</tool_call>"),
    ("<function_call>", "</function_call>"),
    ("<function>", "</function>"),
    ("<|tool_call|>", "<|/tool_call|>"),
];

/// Reads a call up to its arguments: behind one of the marks anywhere, or without any where an answer begins.
pub(super) fn open(cursor: &mut Cursor<'_>, place: &Place<'_>) -> Result<Opened, Miss> {
    let start = *cursor;
    let mut miss = Miss::No;
    for (mark, _) in AROUND {
        *cursor = start;
        match behind(cursor, mark, place) {
            Ok(opened) => return Ok(opened),
            Err(Miss::More) => miss = Miss::More,
            Err(Miss::No) => {}
        }
    }
    *cursor = start;
    if place.is_start {
        match listed(cursor, place) {
            Ok(opened) => return Ok(opened),
            Err(Miss::More) => miss = Miss::More,
            Err(Miss::No) => {}
        }
    }
    Err(miss)
}

fn behind(cursor: &mut Cursor<'_>, mark: &str, place: &Place<'_>) -> Result<Opened, Miss> {
    cursor.spaces();
    cursor.eat(mark)?;
    listed(cursor, place)
}

/// Reads a call that may be one of a list.
fn listed(cursor: &mut Cursor<'_>, place: &Place<'_>) -> Result<Opened, Miss> {
    if !cursor.eat_optional("[")? && place.n_calls > 0 {
        cursor.eat_optional(",")?;
    }
    cursor.spaces();
    json::open(cursor, place)
}

/// Reads what closes a call: its object, a list, a mark.
pub(super) fn close(cursor: &mut Cursor<'_>, is_object_closed: bool) -> Result<(), Miss> {
    if !is_object_closed {
        json::close(cursor)?;
    }
    cursor.eat_optional("]")?;
    for (_, mark) in AROUND {
        if cursor.eat_optional(mark)? {
            break;
        }
    }
    Ok(())
}
