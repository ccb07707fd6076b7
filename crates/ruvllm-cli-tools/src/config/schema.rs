//! The JSON Schema of a settings file, for editors.

use serde_json::{Map, Value, json};

use super::reload::is_reloaded;
use super::setting::{Setting, SettingKind};

/// Returns the schema of a file. `x-reload` tells of a setting of `serve` whether a running server takes a new value.
pub fn schema(settings: &[Setting]) -> Value {
    let mut tables = Map::new();
    for setting in settings {
        let table = tables
            .entry(setting.table)
            .or_insert_with(|| json!({ "type": "object", "additionalProperties": false, "properties": {} }));
        table["properties"][&setting.key] = property(setting);
    }
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Settings of ruvllm",
        "type": "object",
        "additionalProperties": false,
        "properties": tables,
    })
}

fn property(setting: &Setting) -> Value {
    let one = match &setting.kind {
        SettingKind::Switch => json!({ "type": "boolean" }),
        SettingKind::Integer => json!({ "type": "integer" }),
        SettingKind::Number => json!({ "type": "number" }),
        SettingKind::Text => json!({ "type": "string" }),
        SettingKind::Choice(words) => json!({ "type": "string", "enum": words }),
        SettingKind::Any => json!({ "type": ["string", "number"] }),
    };
    let mut property = match setting.is_list {
        true => json!({ "anyOf": [one, { "type": "array", "items": one }] }),
        false => one,
    };
    property["description"] = setting.help.clone().into();
    if let Some(default) = &setting.default {
        property["default"] = typed(setting, default);
    }
    if setting.table == "serve" || setting.table == "common" {
        property["x-reload"] = is_reloaded(setting.table, &setting.key).into();
    }
    property
}

/// Returns a default in its type.
pub(super) fn typed(setting: &Setting, text: &str) -> Value {
    let one = |text: &str| match setting.kind {
        SettingKind::Switch => Value::Bool(text == "true"),
        SettingKind::Integer | SettingKind::Number | SettingKind::Any => {
            serde_json::from_str(text).ok().filter(Value::is_number).unwrap_or_else(|| text.into())
        }
        SettingKind::Text | SettingKind::Choice(_) => text.into(),
    };
    match setting.is_list && text.contains(',') {
        true => text.split(',').map(one).collect(),
        false => one(text),
    }
}
