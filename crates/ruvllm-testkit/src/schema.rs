//! Values judged by a JSON schema, with a library that has no part in what a grammar allows.

use serde_json::Value;

/// Returns what tells whether a value is valid by `schema`, its formats included; `None` if that is no schema.
#[must_use]
pub fn schema_validator(schema: &Value) -> Option<impl Fn(&Value) -> bool> {
    let validator = jsonschema::options().should_validate_formats(true).build(schema).ok()?;
    Some(move |value: &Value| validator.is_valid(value))
}
