//! A table of figures for the model card, made of the JSON that measuring commands answer.

use serde_json::{Map, Value};

use crate::error::{HubError, shown};

/// The most rows of a table.
const N_ROWS_MAX: usize = 64;
/// The most columns of a table.
const N_COLUMNS_MAX: usize = 16;
/// The most characters of a cell.
const CELL_CHARS_MAX: usize = 80;

/// Returns a Markdown table: of an array of objects, of the array of objects that an object holds, or of an object's values.
pub(super) fn markdown(value: &Value) -> Result<String, HubError> {
    let rows: Vec<&Map<String, Value>> = match value {
        Value::Array(items) => items.iter().filter_map(Value::as_object).collect(),
        Value::Object(object) => {
            let inner = object.values().filter_map(Value::as_array).find(|items| items.iter().any(Value::is_object));
            inner.map_or_else(|| vec![object], |items| items.iter().filter_map(Value::as_object).collect())
        }
        _ => Vec::new(),
    };
    let mut columns: Vec<&str> = Vec::new();
    for key in rows.iter().flat_map(|row| row.iter()).filter(|(_, value)| is_cell(value)).map(|(key, _)| key.as_str()) {
        if !columns.contains(&key) {
            columns.push(key);
        }
    }
    if columns.is_empty() {
        return Err(HubError::usage(
            "the table holds no figures; give the output of 'ruvllm perplexity --json' or 'compare --json'",
        ));
    }
    if rows.len() > N_ROWS_MAX || columns.len() > N_COLUMNS_MAX {
        let (n, m) = (rows.len(), columns.len());
        return Err(HubError::usage(format_args!(
            "the table has {n} rows and {m} columns; {N_ROWS_MAX} and {N_COLUMNS_MAX} are the most"
        )));
    }
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(columns.iter().map(|name| escaped(name)).collect());
    text += &line(columns.iter().map(|_| "---".to_owned()).collect());
    for row in rows {
        text += &line(
            columns.iter().map(|name| row.get(*name).filter(|v| is_cell(v)).map_or_else(String::new, cell)).collect(),
        );
    }
    Ok(text)
}

fn is_cell(value: &Value) -> bool {
    value.is_string() || value.is_number() || value.is_boolean()
}

fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => escaped(text),
        Value::Number(number) if number.is_f64() => number.as_f64().map_or_else(String::new, figure),
        other => other.to_string(),
    }
}

/// Returns a number with four digits behind the point, or in powers of ten where that would show nothing.
fn figure(value: f64) -> String {
    match value.abs() {
        size if (0.001..1e9).contains(&size) => {
            let text = format!("{value:.4}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        0.0 => "0".to_owned(),
        _ => format!("{value:.3e}"),
    }
}

/// Returns a text from outside as it may stand in a table of Markdown.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in shown(text, CELL_CHARS_MAX).chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '&' => out.push_str("&amp;"),
            '|' | '`' | '*' | '[' | ']' | '\\' | '!' => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figures_become_a_table() {
        let models = json!({ "file": "t", "models": [{ "name": "a|b", "ppl": 12.5, "kl": 0.00012, "x": [1] }, { "name": "c" }] });
        let table = "| name | ppl | kl |\n| --- | --- | --- |\n| a\\|b | 12.5 | 1.200e-4 |\n| c |  |  |\n";
        assert_eq!(markdown(&models).expect("a table"), table);
        let one = json!({ "ppl": 22.5107, "n_tokens": 4096 });
        assert_eq!(
            markdown(&one).expect("a table"),
            "| ppl | n\\_tokens |\n| --- | --- |\n| 22.5107 | 4096 |\n".replace("\\_", "_")
        );
        for wrong in [json!(1), json!([]), json!({ "a": [] }), json!([[1]])] {
            assert!(markdown(&wrong).is_err(), "{wrong}");
        }
        assert!(markdown(&json!(vec![json!({ "a": 1 }); 65])).is_err());
    }

    #[test]
    fn texts_bring_no_markup() {
        assert_eq!(escaped("<img>![x](y)\n|"), "&lt;img>\\!\\[x\\](y) \\|");
    }
}
