//! How far the compiler may have to descend. `llguidance` follows a reference as soon as it meets it, on its own stack, so
//! that a long chain of rules is as deep as brackets that nest. Both are counted beforehand, and never too low.

use std::collections::BTreeSet;

use serde_json::Value;

use super::refused;
use crate::EngineError;

/// The most rules.
const RULES_MAX: usize = 8_192;
/// The most rules and groups inside one another. One takes up to 3 KB of the stack ([`super::STACK_BYTES`]).
const GROUPS_MAX: usize = 32_768;
/// The most parts of a schema inside one another. One takes up to 5 KB of the stack.
const PARTS_MAX: usize = 16_384;
/// The most properties of one object: for twice as many `llguidance` takes four times as long, for these 0.5 s.
const PROPERTIES_MAX: usize = 2_048;
/// The deepest nesting of groups that `llguidance` reads in a rule.
const DEPTH_MAX: usize = 30;

/// Checks the rules of a grammar in Lark's syntax, each with its groups: whether a bracket is one, and which one closes it, is
/// not looked into, so that none is missed.
///
/// # Errors
/// They are too many.
pub(super) fn check_lark(text: &str) -> Result<(), EngineError> {
    let (mut n_rules, mut n_groups, mut n_open) = (0, 0, 0);
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
    let n_groups = n_rules + n_groups + n_open.min(DEPTH_MAX) + n_schemas * super::DEPTH_MAX;
    if n_groups > GROUPS_MAX {
        let line = format!(
            "it has {n_rules} rules, {n_groups} with their groups and schemas, and {GROUPS_MAX} are the most; make them fewer"
        );
        return Err(refused(&line));
    }
    Ok(())
}

/// Checks the references of a schema, each with the depth of the whole, and the width of its objects.
///
/// # Errors
/// They are too many.
pub(super) fn check_schema(schema: &Value) -> Result<(), EngineError> {
    let mut shape = Shape::default();
    shape.look(schema, 1);
    let Shape { depth, n_properties, references } = shape;
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
