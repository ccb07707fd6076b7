//! Texts in parts: at separators, white space and the ends of lines.

use minijinja::Error;
use minijinja::value::Value;

use crate::template::arguments::{bind, needed, number, text};
use crate::template::filters;
use crate::template::meter::{self, ITEM_BYTES};
use crate::template::python;
use crate::template::sequence::{Kind, Sequence, invalid};

/// Returns a list of parts of a text.
pub(super) fn list_like<'t>(original: &Value, parts: impl Iterator<Item = &'t str>) -> Result<Value, Error> {
    match original.is_safe() {
        true => meter::list(parts.map(|part| filters::safe_text(part.to_owned())).collect::<Result<_, _>>()?, 0),
        false => meter::texts(parts),
    }
}

pub(super) fn split(method: &str, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let [separator, n] = bind(method, ["sep", "maxsplit"], arguments)?;
    let separator = separator.filter(|separator| !separator.is_none());
    let n = usize::try_from(number(method, n.as_ref())?.unwrap_or(-1)).unwrap_or(usize::MAX);
    let (source, is_right) = (value.as_str().unwrap_or_default(), method == "rsplit");
    let mut parts: Vec<&str> = match text(method, separator.as_ref())? {
        Some("") => return Err(invalid("empty separator")),
        Some(separator) => {
            meter::room((source.matches(separator).count() + 1) * 2 * ITEM_BYTES)?;
            let n = n.saturating_add(1);
            if is_right { source.rsplitn(n, separator).collect() } else { source.splitn(n, separator).collect() }
        }
        None => {
            let n_words = source.split(python::is_space).filter(|word| !word.is_empty()).count();
            meter::room((n_words + 1) * 2 * ITEM_BYTES)?;
            words(source, n, is_right)
        }
    };
    if is_right {
        parts.reverse();
    }
    list_like(value, parts.into_iter())
}

/// Splits at white space, at most `n` times, from the left or the right.
fn words(source: &str, n: usize, is_right: bool) -> Vec<&str> {
    let mut words = Vec::new();
    let trimmed = |text: &str| {
        let kept =
            if is_right { text.trim_end_matches(python::is_space) } else { text.trim_start_matches(python::is_space) };
        kept.len()
    };
    let mut rest = source;
    loop {
        let n_kept = trimmed(rest);
        rest = if is_right { &rest[..n_kept] } else { &rest[rest.len() - n_kept..] };
        if rest.is_empty() {
            return words;
        }
        let at = if is_right { rest.rfind(python::is_space) } else { rest.find(python::is_space) };
        // What is left over keeps its white space at the far end.
        let Some(at) = at.filter(|_| words.len() < n) else {
            words.push(rest);
            return words;
        };
        if is_right {
            let n_space = rest[at..].chars().next().map_or(1, char::len_utf8);
            words.push(&rest[at + n_space..]);
            rest = &rest[..at];
        } else {
            words.push(&rest[..at]);
            rest = &rest[at..];
        }
    }
}

/// Splits a text at the ends of its lines, as Python does.
///
/// # Errors
/// They take too much memory.
pub(in crate::template) fn lines(source: &str, keeps_ends: bool) -> Result<Vec<&str>, Error> {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}' | '\u{1d}' | '\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    meter::room((source.matches(is_end).count() + 1) * 2 * ITEM_BYTES)?;
    let (mut lines, mut rest) = (Vec::new(), source);
    while let Some(at) = rest.find(is_end) {
        let end = match rest[at..].starts_with("\r\n") {
            true => at + 2,
            false => at + rest[at..].chars().next().map_or(1, char::len_utf8),
        };
        lines.push(&rest[..if keeps_ends { end } else { at }]);
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    Ok(lines)
}

pub(super) fn partition(method: &str, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let [separator] = bind(method, ["sep"], arguments)?;
    let separator = needed(method, separator)?;
    let separator =
        text(method, Some(&separator))?.filter(|text| !text.is_empty()).ok_or_else(|| invalid("empty separator"))?;
    let source = value.as_str().unwrap_or_default();
    let is_right = method == "rpartition";
    let found = if is_right { source.rsplit_once(separator) } else { source.split_once(separator) };
    let parts = match found {
        Some((before, behind)) => [before, separator, behind],
        None if is_right => ["", "", source],
        None => [source, "", ""],
    };
    match value.is_safe() {
        true => {
            let parts = parts.map(|part| filters::safe_text(part.to_owned()));
            Sequence::value(Kind::Tuple, parts.into_iter().collect::<Result<_, _>>()?, 0)
        }
        false => {
            let (parts, own_bytes) = meter::parts(parts.into_iter())?;
            Sequence::value(Kind::Tuple, parts, own_bytes)
        }
    }
}
