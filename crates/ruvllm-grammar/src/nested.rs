//! Schemas inside a grammar in Lark's syntax (`%json`): they are kept as whole ones are.

use serde_json::Value;

use crate::error::{NO_TEXT, refused};
use crate::{GrammarError, schema, size};

/// Returns a grammar with the rules of each schema in place of it. A schema that tells `llguidance` what to do
/// (`x-guidance`) is left to it.
///
/// # Errors
/// A schema is malformed, allows nothing, or cannot be kept by a grammar alone: what would look at the rest sees whole
/// answers.
pub(crate) fn with_own_schemas(text: &str) -> Result<String, GrammarError> {
    let (mut own, mut rest) = (String::new(), text);
    while let Some(at) = next_schema(rest) {
        let behind = &rest[at + MARK.len()..];
        let mut values = serde_json::Deserializer::from_str(behind).into_iter::<Value>();
        // What is no JSON is refused by the compiler, which says where it is.
        let Some(Ok(schema)) = values.next() else { break };
        own.push_str(&rest[..at]);
        match schema.get("x-guidance").is_some() {
            true => own.push_str(&format!("{MARK} {schema}")),
            false => own.push_str(&nested(&schema)?),
        }
        rest = &behind[values.byte_offset()..];
    }
    Ok(own + rest)
}

const MARK: &str = "%json";

/// Returns where the next schema is: not in a text, an expression or a comment.
fn next_schema(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'#' => at += text[at..].find('\n')?,
            b'/' if bytes.get(at + 1) == Some(&b'/') => at += text[at..].find('\n')?,
            mark @ (b'"' | b'/') => {
                at += 1;
                while at < bytes.len() && bytes[at] != mark && bytes[at] != b'\n' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'%' if text[at..].starts_with(MARK) => return Some(at),
            _ => at += 1,
        }
    }
    None
}

fn nested(schema: &Value) -> Result<String, GrammarError> {
    size::check_schema(schema)?;
    let compiled = schema::compile(schema)?.ok_or_else(|| refused(NO_TEXT))?;
    match compiled.looked_at.first() {
        Some(keyword) => Err(refused(&format!(
            "the schema uses '{keyword}', which is not supported there: a grammar alone has to keep it"
        ))),
        None => Ok(format!("%lark {{\n{}}}", compiled.lark)),
    }
}
