//! JSON whose objects say each key once: of two values for one key, servers and what stands in front of them may take
//! different ones.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// A value that was read so.
#[derive(Debug)]
pub struct Strict(pub Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Strict, D::Error> {
        deserializer.deserialize_any(ValueVisitor).map(Strict)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Strict(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.contains_key(&key) {
                let key: String = key.chars().take(40).collect();
                return Err(A::Error::custom(format_args!("the key '{key}' stands twice in one object; send it once")));
            }
            let Strict(value) = entries.next_value()?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_text_and_a_key_stands_once() {
        let text =
            r#"{"a": [1, -2, 0.5, 1e300, 18446744073709551615], "b": {"a": null, "é\u00e9": "x\n"}, "c": [true, {}]}"#;
        let Strict(value) = serde_json::from_str(text).expect("JSON");
        assert_eq!(value, serde_json::from_str::<Value>(text).expect("JSON"));
        assert_eq!(value.to_string(), serde_json::from_str::<Value>(text).expect("JSON").to_string());
        for text in [r#"{"a": 1, "a": 1}"#, r#"[{"b": {"a": 1, "\u0061": 2}}]"#] {
            let error = serde_json::from_str::<Strict>(text).expect_err("it stands twice").to_string();
            assert!(error.starts_with("the key 'a' stands twice in one object; send it once at line 1"), "{error}");
        }
        assert!(serde_json::from_str::<Strict>(&"[".repeat(200)).is_err());
    }
}
