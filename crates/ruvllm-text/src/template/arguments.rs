//! Arguments of filters, functions and methods, by place or by name.

use minijinja::Error;
use minijinja::value::Value;

use super::compare::whole;
use super::sequence::{invalid, type_name};

/// Divides arguments into those by place and those by name.
pub(super) fn divide(given: &[Value]) -> (&[Value], Option<&Value>) {
    match given.split_last() {
        Some((named, places)) if named.is_kwargs() => (places, Some(named)),
        _ => (given, None),
    }
}

/// Returns the arguments in the order of their names.
///
/// # Errors
/// There are too many, or one of another name.
pub(super) fn bind<const N: usize>(what: &str, names: [&str; N], given: &[Value]) -> Result<[Option<Value>; N], Error> {
    let (places, named) = divide(given);
    let mut bound = [const { None }; N];
    if places.len() > N {
        return Err(invalid(format!("{what} takes {N} arguments, not {}", places.len())));
    }
    for (slot, value) in bound.iter_mut().zip(places) {
        *slot = Some(value.clone());
    }
    for name in named.map(Value::try_iter).transpose()?.into_iter().flatten() {
        let text = name.as_str().unwrap_or_default();
        match names.iter().position(|known| *known == text) {
            Some(i) if bound[i].is_none() => bound[i] = named.map(|named| named.get_item(&name)).transpose()?,
            Some(_) => return Err(invalid(format!("{what} has its argument '{text}' twice"))),
            None => return Err(invalid(format!("{what} has no argument '{text}'"))),
        }
    }
    Ok(bound)
}

/// Returns a whole number, or nothing where there is none.
pub(super) fn number(what: &str, value: Option<&Value>) -> Result<Option<i64>, Error> {
    let Some(value) = value else { return Ok(None) };
    match whole(value) {
        Some(n) => Ok(Some(i64::try_from(n).unwrap_or(if n < 0 { i64::MIN } else { i64::MAX }))),
        None => Err(invalid(format!("{what} takes a whole number here, not a value of type {}", type_name(value)))),
    }
}

/// Returns a text, or nothing where there is none.
pub(super) fn text<'v>(what: &str, value: Option<&'v Value>) -> Result<Option<&'v str>, Error> {
    let Some(value) = value else { return Ok(None) };
    match value.as_str() {
        Some(text) => Ok(Some(text)),
        None => Err(invalid(format!("{what} takes a text here, not a value of type {}", type_name(value)))),
    }
}

/// Returns an argument that must be there.
pub(super) fn needed(what: &str, value: Option<Value>) -> Result<Value, Error> {
    value.ok_or_else(|| invalid(format!("{what} needs an argument more")))
}
