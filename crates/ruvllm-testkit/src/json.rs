//! JSON in another spelling.

use serde_json::Value;

/// Returns a value with all that is not ASCII escaped, and slashes too.
pub fn escaped_json(value: &Value) -> String {
    let text = value.to_string().replace('/', "\\/");
    text.chars().fold(String::new(), |mut all, c| {
        let mut units = [0; 2];
        match c.is_ascii() {
            true => all.push(c),
            false => c.encode_utf16(&mut units).iter().for_each(|unit| all.push_str(&format!("\\u{unit:04x}"))),
        }
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_is_the_same() {
        let value = serde_json::json!({ "é/": ["😀", "a"] });
        let text = escaped_json(&value);
        assert_eq!(text, r#"{"\u00e9\/":["\ud83d\ude00","a"]}"#);
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), value);
    }
}
