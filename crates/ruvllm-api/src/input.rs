//! Texts that requests give as they are: each a text, its tokens, or both one after the other; one or several of them.

use ruvllm_engine::tokenizer::{EncodeOptions, Tokenizer};
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Field, Kind, optional, required};

/// The most texts of a request.
const N_MAX: usize = 2048;
const N_PARTS_MAX: usize = 1 << 24;

const TEXT_PART: &[Field] =
    &[required("type", Kind::Word(&["text"]), "the model reads text only"), required("text", Kind::Text, "the text")];

/// A text in an object, as llama.cpp takes it.
const OBJECT: &[Field] = &[
    optional("prompt_string", Kind::Text, "the text"),
    optional("content", Kind::List(&Kind::Object(TEXT_PART), 1, 4096), "or its parts"),
];

const TOKEN: Kind = Kind::Int(0, u32::MAX as i64);
const MIXED: Kind = Kind::List(&Kind::Either(&[TOKEN, Kind::Text]), 1, N_PARTS_MAX);

/// One text or several, or their tokens. A list with a token in it is one text, of tokens and texts.
pub const INPUT: Kind = Kind::Either(&[
    Kind::Text,
    Kind::Object(OBJECT),
    Kind::List(&Kind::Either(&[TOKEN, Kind::Text, MIXED, Kind::Object(OBJECT)]), 1, N_PARTS_MAX),
]);

/// A text or a part of one, for whoever encodes it.
#[derive(Clone, Copy, Debug)]
pub struct Part<'t> {
    /// The text.
    pub text: &'t str,
    /// It is a text of its own, and not between tokens.
    pub is_whole: bool,
}

/// Returns the tokens of an [`INPUT`], which is the field `name`.
///
/// # Errors
/// 400: lists within a text, too many texts, or what `encode` says.
pub fn read_input(
    input: &Value,
    name: &str,
    encode: impl Fn(Part<'_>) -> Result<Vec<u32>, ApiError>,
) -> Result<Vec<Vec<u32>>, ApiError> {
    match input {
        Value::Array(items) if !is_one(items) => {
            check_number(items.len(), name)?;
            items.iter().map(|item| read_one(item, name, &encode)).collect()
        }
        input => Ok(vec![read_one(input, name, &encode)?]),
    }
}

/// Returns the tokens of a prompt, or of a part of one.
///
/// # Errors
/// The tokenizer cannot read it.
pub fn encode_part(tokenizer: &Tokenizer, part: Part<'_>, parse_special: bool) -> Result<Vec<u32>, ApiError> {
    Ok(match part.is_whole {
        true => tokenizer.encode_prompt(part.text, parse_special)?,
        false => tokenizer.encode(part.text, EncodeOptions { add_special: false, parse_special })?,
    })
}

/// Returns whether a list is one text: a token is in it.
fn is_one(items: &[Value]) -> bool {
    items.iter().any(Value::is_number)
}

/// Returns the text of an [`INPUT`] as it was given; none if it is, or has, tokens.
pub fn text_of(input: &Value, i: usize) -> Option<String> {
    match input {
        Value::Array(items) if is_one(items) => None,
        Value::Array(items) => whole_text(items.get(i)?),
        input => whole_text(input),
    }
}

/// Returns the texts of an [`INPUT`], which is the field `name`; none if tokens are among them.
///
/// # Errors
/// 400: too many texts.
pub fn texts(input: &Value, name: &str) -> Result<Option<Vec<String>>, ApiError> {
    let n = match input {
        Value::Array(items) if !is_one(items) => items.len(),
        _ => 1,
    };
    check_number(n, name)?;
    Ok((0..n).map(|i| text_of(input, i)).collect())
}

fn check_number(n: usize, name: &str) -> Result<(), ApiError> {
    if n <= N_MAX {
        return Ok(());
    }
    let line = format!("'{name}' has {n} texts; {N_MAX} are the most");
    Err(ApiError::bad(name, line).code("invalid_value"))
}

fn whole_text(item: &Value) -> Option<String> {
    match item {
        Value::String(text) => Some(text.clone()),
        Value::Object(_) => match (item["prompt_string"].as_str(), item["content"].as_array()) {
            (Some(text), _) => Some(text.to_owned()),
            (None, Some(parts)) => Some(parts.iter().filter_map(|part| part["text"].as_str()).collect()),
            (None, None) => None,
        },
        _ => None,
    }
}

fn read_one(
    item: &Value,
    name: &str,
    encode: &impl Fn(Part<'_>) -> Result<Vec<u32>, ApiError>,
) -> Result<Vec<u32>, ApiError> {
    let Value::Array(parts) = item else {
        let text = whole_text(item).ok_or_else(|| {
            let line = format!("'{name}' is an object without 'prompt_string' and 'content'; send one of them");
            ApiError::bad(name, line).code("missing_field")
        })?;
        return encode(Part { text: &text, is_whole: true });
    };
    let mut tokens = Vec::with_capacity(parts.len());
    for part in parts {
        match part {
            Value::String(text) => tokens.extend(encode(Part { text, is_whole: parts.len() == 1 })?),
            Value::Number(id) => tokens.extend(id.as_f64().map(|id| id as u32)),
            _ => {
                let line =
                    format!("'{name}' has a list within a text of tokens; send texts and tokens beside each other");
                return Err(ApiError::bad(name, line).code("invalid_value"));
            }
        }
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fields::ValidBody;

    /// Stands for a tokenizer: bytes, and 1 in front of what is whole.
    fn read(input: Value) -> Result<Vec<Vec<u32>>, String> {
        let given = ValidBody::check(json!({ "input": input }), &[required("input", INPUT, "texts")], &[]);
        let encode = |part: Part<'_>| {
            Ok(part.is_whole.then_some(1).into_iter().chain(part.text.bytes().map(u32::from)).collect())
        };
        let input = given.map_err(|error| error.message)?.take("input").unwrap_or_default();
        read_input(&input, "input", encode).map_err(|error| error.message)
    }

    #[test]
    fn texts_and_tokens_stand_beside_each_other() {
        for (input, expected) in [
            (json!("a"), vec![vec![1, 97]]),
            (json!([7, 8]), vec![vec![7, 8]]),
            (json!(["a", "b"]), vec![vec![1, 97], vec![1, 98]]),
            (json!([[7], [8, 9]]), vec![vec![7], vec![8, 9]]),
            (json!(["a", [7, "b", 8]]), vec![vec![1, 97], vec![7, 98, 8]]),
            (json!([7, "a", 8]), vec![vec![7, 97, 8]]),
            (json!({ "prompt_string": "a" }), vec![vec![1, 97]]),
            (
                json!([{ "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] }]),
                vec![vec![1, 97, 98]],
            ),
        ] {
            assert_eq!(read(input.clone()), Ok(expected), "{input}");
        }
        for (input, expected) in [
            (json!([]), "'input' is a list; it must be a list of 1 to 16777216, not of 0"),
            (json!([7, [8]]), "'input' has a list within a text of tokens; send texts and tokens beside each other"),
            (json!({}), "'input' is an object without 'prompt_string' and 'content'; send one of them"),
            (json!({ "content": "a" }), "'input.content' is \"a\"; it must be a list, each an object of type, text"),
            (json!([[7, true]]), "'input[0][1]' is true; it must be a whole number from 0 to 4294967295, or a text"),
        ] {
            assert_eq!(read(input), Err(expected.to_owned()));
        }
        assert_eq!(texts(&json!(["a", { "prompt_string": "b" }]), "input"), Ok(Some(vec!["a".into(), "b".into()])));
        assert_eq!((texts(&json!(["a", [7]]), "input"), texts(&json!([7]), "input")), (Ok(None), Ok(None)));
        assert_eq!(read(json!(vec!["a"; 2049])), Err("'input' has 2049 texts; 2048 are the most".to_owned()));
    }
}
