//! The query of a request's address against its table.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::{Field, Kind, ValidBody};

impl ValidBody {
    /// Checks a query against a table. A name may be followed by brackets, and be there several times where it is a list.
    ///
    /// # Errors
    /// As [`ValidBody::check`].
    pub fn of_query(query: &str, fields: &[Field]) -> Result<ValidBody, ApiError> {
        if fields.is_empty() {
            return Ok(ValidBody::default());
        }
        let mut object = Map::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, text) = (decoded(name), decoded(value));
            let name = name.split_once('[').map_or(name.as_str(), |(name, _)| name);
            let kind = fields.iter().find(|field| field.name == name).map(|field| field.kind);
            let value = match kind {
                Some(Kind::List(..)) => {
                    let list = object.entry(name).or_insert_with(|| Value::Array(Vec::new()));
                    list.as_array_mut().into_iter().for_each(|list| list.push(Value::String(text.clone())));
                    continue;
                }
                // What is no number or flag is left a text, and refused as one.
                Some(Kind::Int(..) | Kind::Bool | Kind::Only(..)) => {
                    serde_json::from_str(&text).ok().filter(|value: &Value| !value.is_null())
                }
                _ => None,
            };
            if object.insert(name.to_owned(), value.unwrap_or(Value::String(text))).is_some() {
                return Err(ApiError::bad(name, format!("'{name}' is there twice; send it once")).code("invalid_value"));
            }
        }
        ValidBody::check(Value::Object(object), fields, &[])
    }
}

/// Returns a name or value of a query as it was meant.
fn decoded(text: &str) -> String {
    unescaped(&text.replace('+', " "))
}

/// Returns a text with its percent escapes resolved (RFC 3986, 2.1); what is no escape stays.
pub fn unescaped(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((&first, behind)) = rest.split_first() {
        let digits = behind.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.filter(|_| first == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &behind[2..] } else { behind };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fields::{optional, unheeded};

    const TABLE: &[Field] = &[
        optional("limit", Kind::Int(1, 100), "a number"),
        optional("after", Kind::Text, "a text"),
        unheeded("include", Kind::List(&Kind::Text, 0, 4), "a list"),
    ];

    #[test]
    fn a_query_is_checked_as_a_body_is() {
        let given =
            ValidBody::of_query("limit=5&after=a+b%26c&include[]=x&include%5B%5D=y", TABLE).expect("it is sound");
        assert_eq!((given.count("limit"), given.text("after")), (Some(5), Some("a b&c")));
        assert_eq!(
            (given.get("include"), &given.unheeded[..]),
            (Some(&json!(["x", "y"])), &["include".to_owned()][..])
        );
        assert_eq!(ValidBody::of_query("after=7", TABLE).expect("it is sound").text("after"), Some("7"));
        for (query, name) in [
            ("limit=0", "limit"),
            ("limit=null", "limit"),
            ("limit", "limit"),
            ("limt=1", "limt"),
            ("after=&after=", "after"),
        ] {
            assert_eq!(ValidBody::of_query(query, TABLE).expect_err(query).param.as_deref(), Some(name));
        }
        assert!(ValidBody::of_query("anything=1", &[]).is_ok());
    }
}
