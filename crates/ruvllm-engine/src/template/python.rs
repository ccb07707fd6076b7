//! Values as Python prints them: `True`, `None`, `{'a': 1}`.

use std::borrow::Cow;

use minijinja::Error;
use minijinja::value::{Value, ValueKind};

use super::meter;

/// Returns `str(value)`; an undefined value is the empty text, as Jinja prints it.
///
/// # Errors
/// It takes too much work or memory.
pub(super) fn to_str(value: &Value) -> Result<Cow<'_, str>, Error> {
    Ok(match value.kind() {
        ValueKind::Undefined => Cow::Borrowed(""),
        ValueKind::String => value.as_str().map_or_else(|| Cow::Owned(value.to_string()), Cow::Borrowed),
        _ => {
            let mut out = String::new();
            repr(value, 0, &mut out)?;
            Cow::Owned(out)
        }
    })
}

/// Counts a part of a text that grows.
///
/// # Errors
/// It takes too much work or memory.
pub(super) fn grow(out: &str, n_bytes: usize) -> Result<(), Error> {
    meter::work(meter::STEP / 2 + n_bytes)?;
    if out.len() > 1 << 16 { meter::room(2 * out.len()) } else { Ok(()) }
}

fn repr(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    grow(out, value.as_str().map_or(0, str::len))?;
    if depth > super::MAX_DEPTH {
        out.push_str("...");
        return Ok(());
    }
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => text(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (i, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&item, depth + 1, out)?;
            }
            out.push(']');
        }
        ValueKind::Map if value.as_object().is_none_or(|object| object.repr() == minijinja::value::ObjectRepr::Map) => {
            out.push('{');
            for (i, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&key, depth + 1, out)?;
                out.push_str(": ");
                repr(&value.get_item(&key).unwrap_or_default(), depth + 1, out)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// Returns the quoted text: single quotes unless only double ones spare an escape.
fn text(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// Returns a number: integers as they are, floats in the shortest form that reads back, with an exponent outside
/// 1e-4 … 1e16.
pub(super) fn number(value: &Value) -> String {
    let float = match value.is_integer() {
        true => None,
        false => f64::try_from(value.clone()).ok(),
    };
    let Some(x) = float else { return value.to_string() };
    if !x.is_finite() {
        return (if x.is_nan() {
            "nan"
        } else if x > 0.0 {
            "inf"
        } else {
            "-inf"
        })
        .to_owned();
    }
    if x == 0.0 || (1e-4..1e16).contains(&x.abs()) {
        return format!("{x:?}");
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}
