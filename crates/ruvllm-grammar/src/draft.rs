//! The draft of JSON Schema that a schema is written in.

use jsonschema::Draft;
use serde_json::Value;

/// Returns the draft that a schema names. Where it names none that is 2020-12, or 2019-09 if it has a list for `items`, which
/// drafts before 2020-12 had.
pub(crate) fn of(schema: &Value) -> Draft {
    let is_older = schema.get("$schema").is_none() && has_list_of_items(schema);
    if is_older { Draft::Draft201909 } else { Draft::default() }.detect(schema)
}

fn has_list_of_items(schema: &Value) -> bool {
    let is_schema = |key: &str| !["const", "enum", "default", "examples"].contains(&key);
    match schema {
        Value::Array(schemas) => schemas.iter().any(has_list_of_items),
        Value::Object(keys) => {
            keys.get("items").is_some_and(Value::is_array)
                || keys.iter().any(|(key, value)| is_schema(key) && has_list_of_items(value))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_of_items_is_of_an_older_draft() {
        assert_eq!(of(&json!({ "properties": { "a": { "items": [{ "type": "integer" }] } } })), Draft::Draft201909);
        assert_eq!(of(&json!({ "items": { "type": "integer" }, "enum": [{ "items": [] }] })), Draft::Draft202012);
        let named = json!({ "$schema": "http://json-schema.org/draft-07/schema#", "items": [true] });
        assert_eq!(of(&named), Draft::Draft7);
    }
}
