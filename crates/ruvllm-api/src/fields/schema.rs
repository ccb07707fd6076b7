//! The tables as JSON Schema, for `/openapi.json` and `/v1/capabilities`.

use serde_json::{Map, Value, json};

use crate::fields::{Field, Kind};

/// Returns the schema of an object of these fields and no others.
pub fn of_object(fields: &[Field]) -> Value {
    let properties: Map<String, Value> = (fields.iter())
        .flat_map(|field| field.other_names().chain([field.name]).map(|name| (name.to_owned(), of_field(field, name))))
        .collect();
    let mut schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    let (named, plain): (Vec<&Field>, Vec<&Field>) =
        fields.iter().filter(|field| field.is_required).partition(|field| field.other_names().next().is_some());
    if !plain.is_empty() {
        schema["required"] = plain.iter().map(|field| field.name).collect();
    }
    // One of its names is enough.
    let one_of = |field: &&Field| -> Value {
        let names = [field.name].into_iter().chain(field.other_names());
        json!({ "anyOf": names.map(|name| json!({ "required": [name] })).collect::<Vec<_>>() })
    };
    if !named.is_empty() {
        schema["allOf"] = named.iter().map(one_of).collect();
    }
    schema
}

/// Returns the schema of a field under one of its names.
fn of_field(field: &Field, name: &str) -> Value {
    let schema = of_kind(&field.kind);
    let mut schema = if field.is_required { schema } else { json!({ "anyOf": [schema, { "type": "null" }] }) };
    schema["description"] = json!(field.doc);
    if field.old.contains(&name) {
        schema["deprecated"] = json!(true);
        schema["description"] = json!(format!("is now {}: {}", field.name, field.doc));
    }
    schema
}

/// Returns the schema of a kind of value.
pub fn of_kind(kind: &Kind) -> Value {
    match kind {
        Kind::Any => json!({}),
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::Int(low, high) if *high == i64::MAX => json!({ "type": "integer", "minimum": low }),
        Kind::Int(low, high) => json!({ "type": "integer", "minimum": low, "maximum": high }),
        Kind::Number(low, high) => json!({ "type": "number", "minimum": low, "maximum": high }),
        Kind::Text => json!({ "type": "string" }),
        Kind::Word(words) => json!({ "type": "string", "enum": words }),
        Kind::Only(only, why) => {
            let value: Value = serde_json::from_str(only).expect("the tables hold JSON, a test reads them all");
            json!({ "const": value, "description": why })
        }
        Kind::List(of, low, high) => {
            let mut schema = json!({ "type": "array", "items": of_kind(of) });
            if *low > 0 {
                schema["minItems"] = json!(low);
            }
            if *high < usize::MAX {
                schema["maxItems"] = json!(high);
            }
            schema
        }
        Kind::Object(fields) => of_object(fields),
        Kind::Known(objects) => {
            let known = objects.iter().map(|(_, fields)| of_object(fields));
            json!({ "anyOf": known.chain([json!({ "type": "object", "required": ["type"] })]).collect::<Vec<_>>() })
        }
        Kind::Tagged(objects) => {
            json!({ "anyOf": objects.iter().map(|(_, fields)| of_object(fields)).collect::<Vec<_>>() })
        }
        Kind::Map(of) => json!({ "type": "object", "additionalProperties": of_kind(of) }),
        Kind::Either(kinds) => json!({ "anyOf": kinds.iter().map(of_kind).collect::<Vec<_>>() }),
    }
}
