//! Values as Python prints them: `True`, `None`, `{'a': 1}`.

use std::borrow::Cow;
use std::sync::LazyLock;

use minijinja::Error;
use minijinja::value::{Value, ValueKind};
use regex::Regex;

use super::sequence::{Kind, Range, Sequence, invalid};
use super::{marks, meter};

/// Returns `str(value)`; an undefined value is the empty text, as Jinja prints it.
///
/// # Errors
/// It takes too much work or memory, or Python would print an address of its memory.
pub(super) fn to_str(value: &Value) -> Result<Cow<'_, str>, Error> {
    Ok(match value.kind() {
        ValueKind::Undefined => Cow::Borrowed(""),
        ValueKind::String => value.as_str().map_or_else(|| Cow::Owned(value.to_string()), Cow::Borrowed),
        _ => Cow::Owned(to_repr(value)?),
    })
}

/// Returns `repr(value)`.
///
/// # Errors
/// As [`to_str`].
pub(super) fn to_repr(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    repr(value, 0, &mut out)?;
    Ok(out)
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
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String if value.is_safe() => {
            out.push_str("Markup(");
            text(value.as_str().unwrap_or_default(), out);
            out.push(')');
        }
        ValueKind::String => text(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => sequence(value, depth, out)?,
        ValueKind::Map => {
            // A namespace prints its name too; functions and the like would print where they are.
            let is_namespace = value.as_object().is_some_and(|object| object.type_name().ends_with("Namespace"));
            out.push_str(if is_namespace { "<Namespace {" } else { "{" });
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&key, depth + 1, out)?;
                out.push_str(": ");
                repr(&value.get_item(&key).unwrap_or_default(), depth + 1, out)?;
            }
            out.push_str(if is_namespace { "}>" } else { "}" });
        }
        _ => return Err(invalid("functions, methods and loops cannot be printed")),
    }
    Ok(())
}

fn sequence(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    let (open, close) = match Sequence::of(value).map(|sequence| sequence.kind) {
        None => ("[", "]"),
        Some(Kind::Tuple | Kind::Group) if value.len() == Some(1) => ("(", ",)"),
        Some(Kind::Tuple | Kind::Group) => ("(", ")"),
        Some(Kind::Items) => ("dict_items([", "])"),
        Some(Kind::Keys) => ("dict_keys([", "])"),
        Some(Kind::Values) => ("dict_values([", "])"),
        Some(Kind::Range(Range { start, stop, step: 1 })) => {
            out.push_str(&format!("range({start}, {stop})"));
            return Ok(());
        }
        Some(Kind::Range(Range { start, stop, step })) => {
            out.push_str(&format!("range({start}, {stop}, {step})"));
            return Ok(());
        }
        Some(Kind::Lazy) => return Err(invalid("a generator cannot be printed; make a list of it (| list)")),
    };
    out.push_str(open);
    for (i, item) in value.try_iter()?.enumerate() {
        out.push_str(if i > 0 { ", " } else { "" });
        repr(&item, depth + 1, out)?;
    }
    out.push_str(close);
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
            c if is_printable(c) => out.push(c),
            c if (c as u32) < 0x100 => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if (c as u32) < 0x1_0000 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push_str(&format!("\\U{:08x}", c as u32)),
        }
    }
    out.push(quote);
}

/// Returns whether Python prints a character as it is.
pub(super) fn is_printable(c: char) -> bool {
    let c = marks::original(c);
    static HIDDEN: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"[\p{C}\p{Z}]").expect("the pattern is a constant that a test compiles"));
    match c.is_ascii() {
        true => !c.is_ascii_control(),
        false => !HIDDEN.is_match(c.encode_utf8(&mut [0; 4])),
    }
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

/// Returns whether a character is white space to `str.strip`.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// A set of characters by their Unicode category.
fn is_in(set: &LazyLock<Regex>, c: char) -> bool {
    set.is_match(c.encode_utf8(&mut [0; 4]))
}

/// Returns whether a character is a letter to Python.
pub(super) fn is_alphabetic(c: char) -> bool {
    static LETTERS: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\p{L}").expect("the pattern is a constant that a test compiles"));
    if c.is_ascii() { c.is_ascii_alphabetic() } else { is_in(&LETTERS, c) }
}

/// Returns whether a character is a decimal digit.
pub(super) fn is_decimal(c: char) -> bool {
    static DIGITS: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\p{Nd}").expect("the pattern is a constant that a test compiles"));
    if c.is_ascii() { c.is_ascii_digit() } else { is_in(&DIGITS, c) }
}

/// Returns whether a character is a number of any kind.
pub(super) fn is_numeric(c: char) -> bool {
    static NUMBERS: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\p{N}").expect("the pattern is a constant that a test compiles"));
    if c.is_ascii() { c.is_ascii_digit() } else { is_in(&NUMBERS, c) }
}

/// Returns whether a character is a letter or a number.
pub(super) fn is_alphanumeric(c: char) -> bool {
    is_alphabetic(c) || is_numeric(c)
}

/// Returns `str.isupper` or `str.islower`: letters of this case, and none of the other.
pub(super) fn is_cased(text: &str, is_upper: bool) -> bool {
    let has = |c: char| if is_upper { c.is_uppercase() } else { c.is_lowercase() };
    let has_other = |c: char| if is_upper { c.is_lowercase() } else { c.is_uppercase() };
    text.chars().any(has) && !text.chars().any(has_other)
}
