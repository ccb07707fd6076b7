//! A request against its table.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::{Field, Kind, ValidBody, as_int};

/// Fields without effect that are named, at most.
const UNHEEDED_MAX: usize = 24;
/// How alike a field is to one that is meant: 1 is the same.
const LIKE_MIN: f64 = 0.6;

/// Fields that are known and refused, with the reason.
pub type Unsupported = [(&'static str, &'static str)];

impl ValidBody {
    /// Checks an object against a table.
    ///
    /// # Errors
    /// 400 that names the first field that is unknown, refused, missing or of a value that cannot be.
    pub fn check(value: Value, fields: &[Field], unsupported: &Unsupported) -> Result<ValidBody, ApiError> {
        let Value::Object(mut object) = value else {
            return Err(ApiError::bad("", format!("the body is {}; send a JSON object", name_of(&value))));
        };
        let (mut unheeded, mut renamed) = (Vec::new(), Vec::new());
        rename(&mut object, fields, "", &mut renamed)?;
        check_object(&object, fields, unsupported, "", &mut unheeded)?;
        Ok(ValidBody { fields: object, unheeded, renamed })
    }
}

/// Gives fields the names that they have here, those of objects in fields too; `renamed` gets the old names that were used.
fn rename(
    object: &mut Map<String, Value>,
    fields: &[Field],
    path: &str,
    renamed: &mut Vec<String>,
) -> Result<(), ApiError> {
    for field in fields {
        for other in field.other_names() {
            let Some(value) = object.remove(other).filter(|value| !value.is_null()) else { continue };
            if field.old.contains(&other) {
                renamed.push(format!("{path}{other} is now {path}{}", field.name));
            }
            match object.get(field.name).filter(|own| !own.is_null()) {
                Some(own) if *own != value => {
                    let line =
                        format!("'{path}{other}' and '{path}{}' say different things; send one of them", field.name);
                    return Err(ApiError::bad(format!("{path}{other}"), line).code("invalid_value"));
                }
                _ => drop(object.insert(field.name.to_owned(), value)),
            }
        }
        if let (Kind::Object(inner), Some(Value::Object(value))) = (field.kind, object.get_mut(field.name)) {
            rename(value, inner, &format!("{path}{}.", field.name), renamed)?;
        }
    }
    Ok(())
}

fn check_object(
    object: &Map<String, Value>,
    fields: &[Field],
    unsupported: &Unsupported,
    path: &str,
    unheeded: &mut Vec<String>,
) -> Result<(), ApiError> {
    let at = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    // A null asks for nothing, whatever its name.
    for (name, value) in object.iter().filter(|(_, value)| !value.is_null()) {
        if let Some((_, why)) = unsupported.iter().find(|(unsupported, _)| unsupported == name) {
            return Err(ApiError::bad(at(name), format!("'{}' is not supported: {why}", at(name))).code("unsupported"));
        }
        let Some(field) = fields.iter().find(|field| field.name == name) else {
            return Err(unknown(name, &at(name), fields));
        };
        check_value(value, &field.kind, &at(name), unheeded)?;
        if !field.has_effect {
            note(unheeded, at(name));
        }
    }
    for field in fields.iter().filter(|field| field.is_required) {
        if object.get(field.name).is_none_or(Value::is_null) {
            let name = at(field.name);
            return Err(
                ApiError::bad(name.clone(), format!("'{name}' is missing: {}", field.doc)).code("missing_field")
            );
        }
    }
    Ok(())
}

/// Adds what changes nothing, up to a number that a header has room for.
fn note(unheeded: &mut Vec<String>, path: String) {
    // Items of a list are one: which of them it was does not matter.
    let (mut name, mut is_index) = (String::new(), false);
    for c in path.chars() {
        match c {
            '[' => is_index = true,
            ']' => is_index = false,
            _ if !is_index => name.push(c),
            _ => {}
        }
    }
    if unheeded.len() < UNHEEDED_MAX && !unheeded.contains(&name) {
        unheeded.push(name);
    }
}

/// Returns the error of a field that is not in the table, with the one that was probably meant.
fn unknown(name: &str, path: &str, fields: &[Field]) -> ApiError {
    let names = fields.iter().flat_map(|field| field.other_names().chain([field.name]));
    let near = |known: &&str| strsim::normalized_damerau_levenshtein(known, name);
    let meant = names.max_by(|a, b| near(a).total_cmp(&near(b))).filter(|known| near(known) >= LIKE_MIN);
    let advice = match meant {
        Some(meant) => format!("is '{meant}' meant?"),
        None => "/v1/capabilities lists the fields that are".to_owned(),
    };
    ApiError::bad(path, format!("'{path}' is no field of this request; {advice}")).code("unknown_field")
}

fn check_value(value: &Value, kind: &Kind, path: &str, unheeded: &mut Vec<String>) -> Result<(), ApiError> {
    let wrong = |expected: String| {
        let line = format!("'{path}' is {}; it must be {expected}", shown(value));
        Err(ApiError::bad(path, line).code("invalid_value"))
    };
    match kind {
        Kind::Any => Ok(()),
        Kind::Bool if value.is_boolean() => Ok(()),
        Kind::Text if value.is_string() => Ok(()),
        Kind::Int(low, high) if as_int(value).is_some_and(|x| (*low..=*high).contains(&x)) => Ok(()),
        Kind::Number(low, high) if value.as_f64().is_some_and(|x| (*low..=*high).contains(&x)) => Ok(()),
        Kind::Word(words) if value.as_str().is_some_and(|word| words.contains(&word)) => Ok(()),
        Kind::Only(only, why) => match is_json(value, only) {
            true => Ok(()),
            false => {
                let line = format!("'{path}' is {}; only {only} is supported: {why}", shown(value));
                Err(ApiError::bad(path, line).code("unsupported"))
            }
        },
        Kind::List(of, low, high) => match value {
            Value::Array(items) if (*low..=*high).contains(&items.len()) => items
                .iter()
                .enumerate()
                .try_for_each(|(i, item)| check_value(item, of, &format!("{path}[{i}]"), unheeded)),
            Value::Array(items) => wrong(format!("a list of {low} to {high}, not of {}", items.len())),
            _ => wrong(kind.words()),
        },
        Kind::Object(fields) => match value {
            Value::Object(object) => check_object(object, fields, &[], path, unheeded),
            _ => wrong(kind.words()),
        },
        Kind::Map(of) => match value {
            Value::Object(object) => {
                object.iter().try_for_each(|(key, value)| check_value(value, of, &format!("{path}.{key}"), unheeded))
            }
            _ => wrong(kind.words()),
        },
        Kind::Tagged(objects) | Kind::Known(objects) => match value {
            Value::Object(object) => {
                let tag = object.get("type").and_then(Value::as_str).unwrap_or(objects[0].0);
                match objects.iter().find(|(name, _)| *name == tag) {
                    Some((_, fields)) => check_object(object, fields, &[], path, unheeded),
                    None if matches!(kind, Kind::Known(_)) => {
                        note(unheeded, format!("{path}.{}", header_word(tag)));
                        Ok(())
                    }
                    None => {
                        let names: Vec<&str> = objects.iter().map(|(name, _)| *name).collect();
                        let path = format!("{path}.type");
                        let media = (["image", "input_image", "image_url"].contains(&tag))
                            .then_some("image input is not supported, models read text only; ");
                        let (media, names) = (media.unwrap_or_default(), names.join(", "));
                        let line = format!("'{path}' is \"{tag}\"; {media}it must be one of {names}");
                        Err(ApiError::bad(path, line).code("invalid_value"))
                    }
                }
            }
            _ => wrong(kind.words()),
        },
        Kind::Either(kinds) => {
            let fitting = kinds.iter().filter(|kind| kind.fits_type(value));
            let mut results = fitting.map(|kind| check_value(value, kind, path, unheeded));
            let Some(first) = results.next() else { return wrong(kind.words()) };
            match first {
                Ok(()) => Ok(()),
                Err(error) => {
                    if results.any(|result| result.is_ok()) {
                        Ok(())
                    } else {
                        Err(error)
                    }
                }
            }
        }
        _ => wrong(kind.words()),
    }
}

/// Returns the part of a client's word that a header can hold.
fn header_word(word: &str) -> String {
    word.chars().filter(|c| c.is_ascii_alphanumeric() || "_-.".contains(*c)).take(40).collect()
}

/// Returns whether a value is what is written, numbers by their value.
fn is_json(value: &Value, written: &str) -> bool {
    let expected: Value = serde_json::from_str(written).expect("the tables hold JSON, a test reads them all");
    *value == expected || value.as_f64().is_some_and(|x| Some(x) == expected.as_f64())
}

impl Kind {
    /// Returns whether a value has the JSON type of this kind, whatever its value.
    fn fits_type(&self, value: &Value) -> bool {
        match self {
            Kind::Any => true,
            Kind::Bool => value.is_boolean(),
            Kind::Int(..) | Kind::Number(..) => value.is_number(),
            Kind::Text | Kind::Word(_) => value.is_string(),
            Kind::Only(written, _) => {
                serde_json::from_str::<Value>(written).is_ok_and(|only| name_of(&only) == name_of(value))
            }
            Kind::List(of, ..) => match value {
                // The first item tells lists of texts from lists of numbers.
                Value::Array(items) => items.first().is_none_or(|item| of.fits_type(item)),
                _ => false,
            },
            Kind::Object(_) | Kind::Tagged(_) | Kind::Known(_) | Kind::Map(_) => value.is_object(),
            Kind::Either(kinds) => kinds.iter().any(|kind| kind.fits_type(value)),
        }
    }

    /// Returns what a value must be, for messages.
    pub fn words(&self) -> String {
        match self {
            Kind::Any => "any JSON value".to_owned(),
            Kind::Bool => "true or false".to_owned(),
            Kind::Int(i64::MIN, i64::MAX) => "a whole number of 64 bits with a sign".to_owned(),
            Kind::Int(low, high) if *high == i64::MAX => format!("a whole number from {low} up"),
            Kind::Int(low, high) => format!("a whole number from {low} to {high}"),
            Kind::Number(low, high) => format!("a number from {low} to {high}"),
            Kind::Text => "a text".to_owned(),
            Kind::Word(words) => format!("one of {}", words.join(", ")),
            Kind::Only(only, _) => (*only).to_owned(),
            Kind::List(of, ..) => format!("a list, each {}", of.words()),
            Kind::Object(fields) => {
                let names: Vec<&str> = fields.iter().map(|field| field.name).collect();
                format!("an object of {}", names.join(", "))
            }
            Kind::Tagged(objects) | Kind::Known(objects) => {
                let names: Vec<&str> = objects.iter().map(|(name, _)| *name).collect();
                format!("an object of the type {}", names.join(" or "))
            }
            Kind::Map(of) => format!("an object whose values are {}", of.words()),
            Kind::Either(kinds) => kinds.iter().map(Kind::words).collect::<Vec<_>>().join(", or "),
        }
    }
}

fn name_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Returns a short value as it is, and what a long one is.
fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) | Value::Object(_) => name_of(value).to_owned(),
        _ => {
            let text = value.to_string();
            if text.len() <= 60 { text } else { format!("{} of {} bytes", name_of(value), text.len()) }
        }
    }
}
