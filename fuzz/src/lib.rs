//! What each fuzz target does with its bytes. A function returns for what is refused as well; it panics for what must not
//! be.

mod answers;
mod files;
mod server;
mod texts;

pub use answers::{records, tool_calls};
pub use files::{folder, gguf, gguf_adapter, imatrix, peft, safetensors};
pub use server::{PATHS, fields};
pub use texts::{grammar, schema, template};

/// Panics if an error is no short line.
fn check_line(error: &dyn std::fmt::Display) {
    let text = error.to_string();
    assert!(!text.is_empty() && text.len() <= 4096 && !text.contains('\n'), "no short line: {text:?}");
}

/// Splits an input of two parts: two bytes say how long the first is.
pub fn two_parts(bytes: &[u8]) -> (&[u8], &[u8]) {
    let Some((n, rest)) = bytes.split_first_chunk::<2>() else { return (&[], &[]) };
    rest.split_at(usize::from(u16::from_le_bytes(*n)).min(rest.len()))
}

/// Joins two parts to an input that [`two_parts`] splits.
///
/// # Panics
/// If the first is longer than 65,535 bytes.
pub fn join(first: &[u8], second: &[u8]) -> Vec<u8> {
    let n = u16::try_from(first.len()).expect("a short first part");
    [&n.to_le_bytes(), first, second].concat()
}
