//! What models write, and what stores hold.

use ruvllm_engine::tools::{CallEvent, CallReader, ToolFormat};
use ruvllm_router::roles::RoleClassifier;
use ruvllm_router::{AnswerCosts, Selector};
use ruvllm_sona::Trajectory;
use ruvllm_sona::bank::Pattern;
use ruvllm_sona::witness::{Anchor, Event};

use crate::check_line;

/// Reads an answer whole and in pieces: the same comes of it. The first byte says in which form, the second in what
/// pieces.
pub fn tool_calls(bytes: &[u8]) {
    let Some((&[form, size], text)) = bytes.split_first_chunk::<2>() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let format = ToolFormat::ALL[usize::from(form) % ToolFormat::ALL.len()];
    let size = usize::from(size).max(1);
    let chars: Vec<char> = text.chars().collect();
    let pieces = chars.chunks(size).map(|piece| piece.iter().collect::<String>());
    assert_eq!(read(format, [text.to_owned()].into_iter()), read(format, pieces), "{format:?} in pieces of {size}");
}

/// Returns the plain text of an answer, and its calls with their arguments.
fn read(format: ToolFormat, pieces: impl Iterator<Item = String>) -> (String, Vec<(String, String)>) {
    let mut reader = CallReader::new(format, vec!["get".to_owned(), "put".to_owned()]);
    let (mut text, mut calls) = (String::new(), Vec::<(String, String)>::new());
    let mut take = |events: Vec<CallEvent>| {
        for event in events {
            match event {
                CallEvent::Text(more) => text.push_str(&more),
                CallEvent::Begin { name, .. } => calls.push((name, String::new())),
                CallEvent::Arguments { json, .. } => {
                    calls.last_mut().expect("a call has begun").1.push_str(&json);
                }
                CallEvent::End { .. } => {}
            }
        }
    };
    for piece in pieces {
        take(reader.push(&piece));
    }
    take(reader.finish());
    (text, calls)
}

/// Reads a record; what is read is written and read to the same. The first byte says which kind.
pub fn records(bytes: &[u8]) {
    let Some((&kind, bytes)) = bytes.split_first() else { return };
    match kind % 7 {
        0 => again(Event::from_bytes(bytes), Event::to_bytes, Event::from_bytes),
        1 => again(Pattern::from_bytes(bytes), Pattern::to_bytes, Pattern::from_bytes),
        2 => again(Trajectory::from_bytes(bytes), Trajectory::to_bytes, Trajectory::from_bytes),
        3 => again(Selector::from_bytes(bytes), Selector::to_bytes, Selector::from_bytes),
        4 => again(RoleClassifier::from_bytes(bytes), RoleClassifier::to_bytes, RoleClassifier::from_bytes),
        5 => again(AnswerCosts::from_bytes(bytes), AnswerCosts::to_bytes, AnswerCosts::from_bytes),
        _ => {
            if let Some(Err(error)) = std::str::from_utf8(bytes).ok().map(Anchor::parse) {
                check_line(&error);
            }
        }
    }
}

fn again<T, E: std::fmt::Display>(
    read: Result<T, E>,
    write: impl Fn(&T) -> Vec<u8>,
    reader: impl Fn(&[u8]) -> Result<T, E>,
) {
    let value = match read {
        Ok(value) => value,
        Err(error) => return check_line(&error),
    };
    let bytes = write(&value);
    let second = reader(&bytes).unwrap_or_else(|error| panic!("what was written cannot be read: {error}"));
    assert_eq!(write(&second), bytes, "what was written is read to the same");
}
