//! Texts within texts: found, counted, replaced, at the beginning or the end.

use minijinja::Error;
use minijinja::value::Value;

use crate::template::arguments::{bind, needed, number, text};
use crate::template::meter;
use crate::template::sequence::{invalid, tuple_items, type_name};

/// Returns a part's bounds as slices have them.
pub(super) fn between(n: usize, start: Option<i64>, end: Option<i64>) -> (usize, usize) {
    let place = |at: i64| if at < 0 { (at.saturating_add(n as i64)).max(0) as usize } else { (at as usize).min(n) };
    (start.map_or(0, |at| if at > n as i64 { n + 1 } else { place(at) }), end.map_or(n, place))
}

/// Returns a text with at most `n` of its parts replaced; a negative `n` is no limit.
///
/// # Errors
/// It takes too much memory.
pub(in crate::template) fn replaced(source: &str, old: &str, new: &str, n: i64) -> Result<String, Error> {
    let n_found = if old.is_empty() { source.chars().count() + 1 } else { source.matches(old).count() };
    let n = usize::try_from(n).unwrap_or(usize::MAX).min(n_found);
    meter::room(n.saturating_mul(new.len()).saturating_add(source.len()).saturating_mul(3))?;
    Ok(source.replacen(old, new, n))
}

/// Returns a part of a text by its characters, and how many are before it.
fn part<'t>(method: &str, source: &'t str, bounds: &[Option<Value>]) -> Result<(Option<&'t str>, usize), Error> {
    let given = |i: usize| bounds.get(i).and_then(Option::as_ref).filter(|bound| !bound.is_none());
    let (start, end) = (number(method, given(0))?, number(method, given(1))?);
    if start.is_none() && end.is_none() {
        return Ok((Some(source), 0));
    }
    let (start, end) = between(source.chars().count(), start, end);
    if start > end {
        return Ok((None, start));
    }
    let at = |n: usize| source.char_indices().nth(n).map_or(source.len(), |(at, _)| at);
    Ok((Some(&source[at(start)..at(end)]), start))
}

pub(super) fn found(method: &str, source: &str, arguments: &[Value]) -> Result<Value, Error> {
    let [wanted, start, end] = bind(method, ["sub", "start", "end"], arguments)?;
    let wanted = needed(method, wanted)?;
    let wanted = text(method, Some(&wanted))?.unwrap_or_default();
    let (part, n_before) = part(method, source, &[start, end])?;
    if method == "count" {
        let n = part
            .map_or(0, |part| if wanted.is_empty() { part.chars().count() + 1 } else { part.matches(wanted).count() });
        return Ok(Value::from(n));
    }
    let at = part.and_then(|part| {
        let at = if method.starts_with('r') { part.rfind(wanted) } else { part.find(wanted) }?;
        Some(n_before + part[..at].chars().count())
    });
    match at {
        Some(at) => Ok(Value::from(at)),
        None if method.ends_with("find") => Ok(Value::from(-1)),
        None => Err(invalid("substring not found")),
    }
}

pub(super) fn affixed(method: &str, source: &str, arguments: &[Value]) -> Result<Value, Error> {
    let [wanted, start, end] = bind(method, ["affix", "start", "end"], arguments)?;
    let wanted = needed(method, wanted)?;
    let (part, _) = part(method, source, &[start, end])?;
    let one = |wanted: &str| {
        part.is_some_and(|part| if method == "startswith" { part.starts_with(wanted) } else { part.ends_with(wanted) })
    };
    let holds = match (wanted.as_str(), tuple_items(&wanted)) {
        (Some(wanted), _) => one(wanted),
        (None, Some(all)) => {
            let mut holds = false;
            for wanted in all {
                holds |= one(text(method, Some(wanted))?.unwrap_or_default());
            }
            holds
        }
        _ => return Err(invalid(format!("{method} takes a text or a tuple of texts, not {}", type_name(&wanted)))),
    };
    Ok(Value::from(holds))
}
