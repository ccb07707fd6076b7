//! Depth to which the compiler may have to descend. `llguidance` follows a reference as soon as it meets it, on its own stack, so
//! that a long chain of rules is as deep as brackets that nest. Both are counted beforehand, and never too low.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::GrammarError;
use crate::error::refused;

/// The most rules.
const RULES_MAX: usize = 8_192;
/// The most rules and groups inside one another. One takes up to 3 KB of the stack ([`crate::compiler::STACK_BYTES`]).
const GROUPS_MAX: usize = 32_768;
/// The most parts of a schema inside one another. One takes up to 5 KB of the stack.
const PARTS_MAX: usize = 16_384;
/// The most properties of one object: for twice as many `llguidance` takes four times as long, for these 0.5 s.
const PROPERTIES_MAX: usize = 2_048;
/// The most alternatives of all rules together: those of a rule that leads back to itself cost each other time, a second for
/// a thousand.
const ALTERNATIVES_MAX: usize = 512;
/// The most parts that may be left out or repeated: each may double the states that a text is in.
const REPEATS_MAX: usize = 1_024;
/// The most bytes of texts that are asked for literally, and of patterns: each may become a state, of some 400 bytes and 10 µs.
const LITERAL_BYTES_MAX: usize = 64 << 10;
/// The deepest nesting of groups that `llguidance` reads in a rule.
const DEPTH_MAX: usize = 30;

/// Checks the rules of a grammar in Lark's syntax, each with its groups: whether a bracket is one, and which one closes it, is
/// not looked into, so that none is missed.
///
/// # Errors
/// They are too many.
pub(crate) fn check_lark(text: &str) -> Result<(), GrammarError> {
    let (mut n_rules, mut n_groups, mut n_open) = (0, 0, 0);
    let (own, n_literal_bytes) = without_schemas(text);
    let n_literal_bytes = n_literal_bytes + texts_bytes(&own);
    if n_literal_bytes > LITERAL_BYTES_MAX {
        let line = format!(
            "it has {n_literal_bytes} bytes of texts and patterns, and {LITERAL_BYTES_MAX} are the most; make them shorter"
        );
        return Err(refused(&line));
    }
    check_repeats(&own)?;
    check_alternatives(&own)?;
    for line in text.lines() {
        // A rule ends with its line, or with the name or condition behind an alternative.
        for (i, piece) in line.split("->").flat_map(|piece| piece.split("%if")).enumerate() {
            let goes_on = i == 0 && piece.trim_start().starts_with('|');
            if piece.contains(':') && !goes_on {
                n_rules += 1;
                n_groups += n_open.min(DEPTH_MAX);
                n_open = 0;
            }
            n_open += piece.matches(['(', '[', '{']).count();
        }
    }
    if n_rules > RULES_MAX {
        let line =
            format!("it has {n_rules} rules, and {RULES_MAX} are the most; write short ones where they are used");
        return Err(refused(&line));
    }
    let n_schemas = match text.contains("%json") {
        true if text.contains("\\u") => 1 + text.matches('{').count(),
        true => 1 + text.matches("$ref").count(),
        false => 0,
    };
    let n_groups = n_rules + n_groups + n_open.min(DEPTH_MAX) + n_schemas * crate::source::DEPTH_MAX;
    if n_groups > GROUPS_MAX {
        let line = format!(
            "it has {n_rules} rules, {n_groups} with their groups and schemas, and {GROUPS_MAX} are the most; make them fewer"
        );
        return Err(refused(&line));
    }
    Ok(())
}

/// Returns a grammar without the schemas in it, and the bytes of the texts that those ask for.
fn without_schemas(text: &str) -> (String, usize) {
    let (mut own, mut n_literal_bytes, mut rest) = (String::new(), 0, text);
    while let Some((before, behind)) = rest.split_once("%json") {
        own.push_str(before);
        let mut values = serde_json::Deserializer::from_str(behind).into_iter::<Value>();
        // What is no JSON is refused later; until then it counts as it is.
        let Some(Ok(schema)) = values.next() else {
            rest = behind;
            continue;
        };
        let mut shape = Shape::default();
        shape.look(&schema, 1);
        n_literal_bytes += shape.n_literal_bytes;
        rest = &behind[values.byte_offset()..];
    }
    own.push_str(rest);
    (own, n_literal_bytes)
}

/// Returns the bytes of the texts and regular expressions of a grammar in Lark's syntax.
fn texts_bytes(text: &str) -> usize {
    let (mut n, mut rest) = (0, text);
    while let Some(at) = rest.find(['"', '/']) {
        let (mark, behind) = (rest.as_bytes()[at], &rest[at + 1..]);
        if mark == b'/' && behind.starts_with('/') {
            // A comment.
            rest = behind.find('\n').map_or("", |end| &behind[end..]);
            continue;
        }
        let mut is_escaped = false;
        let end = behind.bytes().position(|byte| {
            let ends = !is_escaped && (byte == mark || byte == b'\n');
            is_escaped = !is_escaped && byte == b'\\';
            ends
        });
        let end = end.unwrap_or(behind.len());
        n += end;
        rest = behind.get(end + 1..).unwrap_or("");
    }
    n
}

/// Checks a regular expression.
///
/// # Errors
/// It is too large, as it is written or with what it repeats.
pub(crate) fn check_regex(text: &str) -> Result<(), GrammarError> {
    check_repeats(text)
}

/// Counts what may be left out or repeated; whether it stands in a literal is not looked into, so that none is missed.
fn check_repeats(text: &str) -> Result<(), GrammarError> {
    let n = text.matches(['?', '*', '+']).count() + text.matches('{').count();
    match n > REPEATS_MAX {
        true => Err(refused(&format!("{n} parts of it may be left out or repeated, and {REPEATS_MAX} are the most"))),
        false => Ok(()),
    }
}

/// Counts the alternatives of rules; those of terminals are one expression, which has other limits.
fn check_alternatives(text: &str) -> Result<(), GrammarError> {
    let (mut n, mut is_rule) = (0, true);
    for line in text.lines() {
        let start = line.trim_start();
        if !start.starts_with('|') && start.contains(':') {
            let name = start.trim_start_matches(['?', '!', '_']);
            is_rule = !name.starts_with(|c: char| c.is_ascii_uppercase());
        }
        n += if is_rule { line.matches('|').count() } else { 0 };
    }
    match n > ALTERNATIVES_MAX {
        true => {
            let line = format!(
                "its rules have {n} alternatives, and {ALTERNATIVES_MAX} are the most; terminals may have more"
            );
            Err(refused(&line))
        }
        false => Ok(()),
    }
}

/// Checks the references of a schema, each with the depth of the whole, and the width of its objects.
///
/// # Errors
/// They are too many.
pub(crate) fn check_schema(schema: &Value) -> Result<(), GrammarError> {
    let mut shape = Shape::default();
    shape.look(schema, 1);
    let Shape { depth, n_properties, references, n_literal_bytes } = shape;
    if n_literal_bytes > LITERAL_BYTES_MAX {
        let line = format!(
            "the schema has {n_literal_bytes} bytes of texts and patterns, and {LITERAL_BYTES_MAX} are the most; make them shorter"
        );
        return Err(refused(&line));
    }
    if n_properties > PROPERTIES_MAX {
        let line = format!(
            "an object of the schema has {n_properties} entries, and {PROPERTIES_MAX} are the most; divide it into smaller ones"
        );
        return Err(refused(&line));
    }
    let n_parts = (1 + references.len()) * depth;
    if n_parts > PARTS_MAX {
        let line = format!(
            "the schema refers to {} parts and is {depth} deep, {n_parts} together, and {PARTS_MAX} are the most; write \
             small parts where they are used",
            references.len()
        );
        return Err(refused(&line));
    }
    Ok(())
}

/// What a schema is like, as far as it costs.
#[derive(Default)]
struct Shape<'s> {
    depth: usize,
    n_properties: usize,
    references: BTreeSet<&'s str>,
    /// Texts that an answer may have to hold: of `enum`, `const` and `pattern`.
    n_literal_bytes: usize,
}

/// Returns the bytes of all texts in a value.
fn literal_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(literal_bytes).sum(),
        Value::Object(entries) => entries.iter().map(|(name, value)| name.len() + literal_bytes(value)).sum(),
        _ => 8,
    }
}

impl<'s> Shape<'s> {
    fn look(&mut self, value: &'s Value, depth: usize) {
        match value {
            Value::Array(values) => {
                self.depth = self.depth.max(depth);
                values.iter().for_each(|value| self.look(value, depth + 1));
            }
            Value::Object(entries) => {
                self.depth = self.depth.max(depth);
                self.references.extend(entries.get("$ref").and_then(Value::as_str));
                for (name, value) in entries {
                    if matches!(name.as_str(), "enum" | "const" | "pattern") {
                        self.n_literal_bytes += literal_bytes(value);
                    }
                    let is_wide = matches!(name.as_str(), "properties" | "patternProperties" | "required");
                    let n = value.as_object().map_or(0, serde_json::Map::len).max(value.as_array().map_or(0, Vec::len));
                    self.n_properties = self.n_properties.max(if is_wide { n } else { 0 });
                    self.look(value, depth + 1);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_patterns_are_counted_and_comments_are_not() {
        let text = "start: \"ab\" /c\"d/ // \"no\"\nB: \"e\\\"f\" | /g\\/h/\n";
        assert_eq!(texts_bytes(text), 2 + 3 + 4 + 4);
        assert_eq!(texts_bytes("a: \"open\nb: \"x\""), 4 + 1);
        let (own, n) = without_schemas("start: %json {\"const\": \"abc\"} \"x\" %json {\"enum\": [\"de\"]}\n");
        assert_eq!((own.as_str(), n), ("start:  \"x\" \n", 3 + 2));
    }
}
