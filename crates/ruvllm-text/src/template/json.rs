//! `tojson`: Python's `json.dumps(value, ensure_ascii=False)`.

use std::fmt::Write;

use minijinja::Error;
use minijinja::value::{Value, ValueKind};

use super::arguments::{bind, number, text};
use super::filters::COUNT_MAX;
use super::sequence::{Kind, Sequence, invalid, type_name, walk};
use super::{compare, marks, meter, python};

/// How to lay out.
struct Style {
    ensure_ascii: bool,
    sort_keys: bool,
    /// Text of one level; `None` writes one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
}

/// The filter. Options as transformers has them, in this order: `ensure_ascii`, `indent` (spaces or a text), `separators`,
/// `sort_keys`.
pub(super) fn tojson(arguments: &[Value]) -> Result<Value, Error> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ensure_ascii, indent, separators, sort_keys] = bind("tojson", names, &arguments[1..])?;
    let indent = match indent.filter(|indent| !indent.is_none()) {
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => {
                let n = number("tojson", Some(&indent))?.unwrap_or(0);
                if n > COUNT_MAX as i64 {
                    return Err(invalid(format!("tojson: more than {COUNT_MAX}")));
                }
                " ".repeat(usize::try_from(n).unwrap_or(0))
            }
        }),
        None => None,
    };
    let (item_separator, key_separator) = match separators.filter(|separators| !separators.is_none()) {
        Some(separators) => match &walk(&separators)?[..] {
            [item, key] => (
                text("tojson", Some(item))?.unwrap_or_default().to_owned(),
                text("tojson", Some(key))?.unwrap_or_default().to_owned(),
            ),
            _ => return Err(invalid("tojson: separators must be two texts")),
        },
        None => ((if indent.is_some() { "," } else { ", " }).to_owned(), ": ".to_owned()),
    };
    let is_on = |option: Option<Value>| option.is_some_and(|on| on.is_true());
    let (ensure_ascii, sort_keys) = (is_on(ensure_ascii), is_on(sort_keys));
    let mut out = String::new();
    Style { ensure_ascii, sort_keys, indent, item_separator, key_separator }.write(&arguments[0], 0, &mut out)?;
    meter::text(out)
}

impl Style {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        python::grow(out, value.as_str().map_or(0, str::len))?;
        if depth > super::MAX_DEPTH {
            return Err(invalid("tojson: the value is nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&match python::number(value).as_str() {
                "inf" => "Infinity".to_owned(),
                "-inf" => "-Infinity".to_owned(),
                "nan" => "NaN".to_owned(),
                number => number.to_owned(),
            }),
            ValueKind::String => self.text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable if has_json(value) => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list(Brackets::ARRAY, items.len(), depth, out, |i, out| self.write(&items[i], depth + 1, out))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    let mut keyed: Vec<_> = keys.into_iter().map(|key| (key.clone(), key)).collect();
                    compare::sort(&mut keyed, false)?;
                    keys = keyed.into_iter().map(|(key, _)| key).collect();
                }
                self.list(Brackets::OBJECT, keys.len(), depth, out, |i, out| {
                    match keys[i].kind() {
                        ValueKind::String => self.text(keys[i].as_str().unwrap_or_default(), out),
                        ValueKind::None => out.push_str("\"null\""),
                        ValueKind::Bool => out.push_str(if keys[i].is_true() { "\"true\"" } else { "\"false\"" }),
                        _ => self.text(&python::number(&keys[i]), out),
                    }
                    out.push_str(&self.key_separator);
                    self.write(&value.get_item(&keys[i])?, depth + 1, out)
                })?;
            }
            _ => return Err(invalid(format!("tojson: a value of type {} has no JSON", type_name(value)))),
        }
        Ok(())
    }

    fn list(
        &self,
        brackets: Brackets,
        n: usize,
        depth: usize,
        out: &mut String,
        mut item: impl FnMut(usize, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let new_line = |depth: usize, out: &mut String| {
            if let Some(indent) = self.indent.as_deref().filter(|_| n > 0) {
                out.push('\n');
                (0..depth).for_each(|_| out.push_str(indent));
            }
        };
        out.push(brackets.open);
        let n_indent = self.indent.as_deref().map_or(0, |indent| indent.len().saturating_mul(depth + 1));
        let n_between = n_indent.saturating_add(self.item_separator.len() + self.key_separator.len());
        for i in 0..n {
            python::grow(out, n_between)?;
            meter::room(n_between)?;
            if i > 0 {
                out.push_str(&self.item_separator);
            }
            new_line(depth + 1, out);
            item(i, out)?;
        }
        new_line(depth, out);
        out.push(brackets.close);
        Ok(())
    }

    fn text(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && !(' '..='~').contains(&marks::original(c))) => {
                    for unit in marks::original(c).encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// Brackets around items.
#[derive(Clone, Copy)]
struct Brackets {
    open: char,
    close: char,
}

impl Brackets {
    const ARRAY: Brackets = Brackets { open: '[', close: ']' };
    const OBJECT: Brackets = Brackets { open: '{', close: '}' };
}

/// Returns whether a sequence is a list or a tuple.
fn has_json(value: &Value) -> bool {
    Sequence::of(value).is_none_or(|sequence| matches!(sequence.kind, Kind::Tuple | Kind::Group))
}
