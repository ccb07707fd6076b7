//! Operators whose result may be larger than what they take, or that may look at all of it: each asks [`super::meter`] first.

use minijinja::value::{Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};

use super::meter::{self, ITEM_BYTES, STEP};
use super::python;

/// Names of the filters that stand for operators; no template can write them.
pub(super) mod name {
    pub(in crate::template) const ADD: &str = "+";
    pub(in crate::template) const MUL: &str = "*";
    pub(in crate::template) const CONCAT: &str = "~";
    pub(in crate::template) const EQ: &str = "==";
    pub(in crate::template) const NE: &str = "!=";
    pub(in crate::template) const LT: &str = "<";
    pub(in crate::template) const LE: &str = "<=";
    pub(in crate::template) const GT: &str = ">";
    pub(in crate::template) const GE: &str = ">=";
    pub(in crate::template) const IN: &str = "in()";
    pub(in crate::template) const ITEM: &str = "[]";
    pub(in crate::template) const SLICE: &str = "[:]";
    pub(in crate::template) const LIST: &str = "[,]";
    pub(in crate::template) const DICT: &str = "{,}";
    /// What a loop goes through.
    pub(in crate::template) const WALK: &str = "for()";
    /// What a namespace or a loop keeps.
    pub(in crate::template) const PLAIN: &str = "set()";
    /// A macro is declared.
    pub(in crate::template) const MACRO: &str = "macro()";
}

/// Bytes that a macro takes each time that it is declared.
const MACRO_BYTES: usize = 1 << 10;

/// Adds the filters to an environment.
pub(super) fn add_to(environment: &mut Environment<'_>) {
    environment.add_filter(name::ADD, |a: &Value, b: &Value| add(a, b));
    environment.add_filter(name::MUL, |a: &Value, b: &Value| mul(a, b));
    environment.add_filter(name::CONCAT, |a: &Value, b: &Value| concat(a, b));
    environment.add_filter(name::EQ, |a: &Value, b: &Value| comparable(a, b).map(|()| a == b));
    environment.add_filter(name::NE, |a: &Value, b: &Value| comparable(a, b).map(|()| a != b));
    environment.add_filter(name::LT, |a: &Value, b: &Value| comparable(a, b).map(|()| a < b));
    environment.add_filter(name::LE, |a: &Value, b: &Value| comparable(a, b).map(|()| a <= b));
    environment.add_filter(name::GT, |a: &Value, b: &Value| comparable(a, b).map(|()| a > b));
    environment.add_filter(name::GE, |a: &Value, b: &Value| comparable(a, b).map(|()| a >= b));
    environment.add_filter(name::IN, |a: &Value, b: &Value| contains(b, a));
    environment.add_filter(name::ITEM, |value: &Value, key: &Value| item(value, key));
    environment.add_filter(name::SLICE, slice);
    environment.add_filter(name::LIST, |items: Rest<Value>| {
        let list = meter::list(items.0, 0)?;
        meter::unfolded(&list)?;
        Ok::<_, Error>(list)
    });
    environment.add_filter(name::DICT, |items: Rest<Value>| {
        let entries = items.as_chunks::<2>().0.iter().map(|[key, value]| (key.clone(), value.clone()));
        let entries: Vec<_> = entries.collect();
        entries.iter().try_for_each(|(key, _)| usable_as_key(key))?;
        meter::dict(entries)
    });
    environment.add_filter(name::WALK, |value: &Value| {
        let n = value.as_object().map_or(0, |object| object.enumerator_len().unwrap_or(0) * ITEM_BYTES);
        meter::work(STEP + n + value.as_str().map_or(0, str::len))?;
        Ok::<_, Error>(value.clone())
    });
    environment.add_filter(name::PLAIN, |value: &Value| {
        meter::plain(value)?;
        Ok::<_, Error>(value.clone())
    });
    environment.add_filter(name::MACRO, |value: &Value| {
        meter::hold(MACRO_BYTES)?;
        Ok::<_, Error>(value.clone())
    });
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

fn invalid(line: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, line)
}

/// Two numbers, as Python makes them alike.
enum Pair {
    Whole(i128, i128),
    Real(f64, f64),
}

fn pair(operator: &str, a: &Value, b: &Value) -> Result<Pair, Error> {
    let whole = |value: &Value| match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        _ if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    };
    let real = |value: &Value| match whole(value) {
        Some(whole) => Some(whole as f64),
        None if value.kind() == ValueKind::Number => f64::try_from(value.clone()).ok(),
        None => None,
    };
    if let (Some(a), Some(b)) = (whole(a), whole(b)) {
        return Ok(Pair::Whole(a, b));
    }
    match (real(a), real(b)) {
        (Some(a), Some(b)) => Ok(Pair::Real(a, b)),
        _ => {
            Err(invalid(format!("tried to use {operator} operator on unsupported types {} and {}", a.kind(), b.kind())))
        }
    }
}

fn whole(n: Option<i128>) -> Result<Value, Error> {
    let n = n.ok_or_else(|| invalid("the number is too large".to_owned()))?;
    Ok(i64::try_from(n).map_or_else(|_| Value::from(n), Value::from))
}

fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    meter::work(STEP)?;
    if is_list(a) && is_list(b) {
        let mut list = meter::items(a)?;
        let more = meter::items(b)?;
        meter::room((list.len() + more.len()) * 2 * ITEM_BYTES)?;
        list.reserve_exact(more.len());
        list.extend(more);
        return meter::list(list, 0);
    }
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        meter::room(2 * (a.len() + b.len()))?;
        return meter::text([a, b].concat());
    }
    match pair("+", a, b)? {
        Pair::Whole(a, b) => whole(a.checked_add(b)),
        Pair::Real(a, b) => Ok(Value::from(a + b)),
    }
}

fn mul(a: &Value, b: &Value) -> Result<Value, Error> {
    meter::work(STEP)?;
    let (many, n) = if a.as_str().is_some() || is_list(a) { (a, b) } else { (b, a) };
    // As in Python, a number below 1 leaves nothing.
    let times = || match pair("*", n, n)? {
        Pair::Whole(n, _) => Ok(usize::try_from(n.max(0)).unwrap_or(usize::MAX)),
        Pair::Real(..) => Err(invalid("texts and lists can only be multiplied with integers".to_owned())),
    };
    if let Some(text) = many.as_str() {
        let n = times()?;
        meter::room(text.len().saturating_mul(n).saturating_mul(2))?;
        return meter::text(text.repeat(n));
    }
    if is_list(many) {
        let (items, n) = (meter::items(many)?, times()?);
        meter::room(items.len().saturating_mul(n).saturating_mul(ITEM_BYTES))?;
        let n_items = items.len() * n;
        return meter::list(items.into_iter().cycle().take(n_items).collect(), 0);
    }
    match pair("*", a, b)? {
        Pair::Whole(a, b) => whole(a.checked_mul(b)),
        Pair::Real(a, b) => Ok(Value::from(a * b)),
    }
}

fn concat(a: &Value, b: &Value) -> Result<Value, Error> {
    let (a, b) = (python::to_str(a)?, python::to_str(b)?);
    meter::room(2 * (a.len() + b.len()))?;
    meter::text([&*a, &*b].concat())
}

/// Counts what a comparison may look at.
pub(super) fn comparable(a: &Value, b: &Value) -> Result<(), Error> {
    meter::work(STEP)?;
    match (a.as_str(), b.as_str()) {
        (Some(a), Some(b)) => meter::work(a.len().min(b.len())),
        _ if a.as_object().is_some() && b.as_object().is_some() => {
            meter::unfolded(a)?;
            meter::unfolded(b).map(drop)
        }
        _ => Ok(()),
    }
}

fn usable_as_key(key: &Value) -> Result<(), Error> {
    let n_bytes = meter::unfolded(key)?;
    meter::work(STEP + n_bytes)
}

pub(super) fn contains(container: &Value, value: &Value) -> Result<bool, Error> {
    meter::work(STEP)?;
    if container.is_undefined() {
        return Ok(false);
    }
    if let Some(text) = container.as_str() {
        let part = python::to_str(value)?;
        meter::work(4 * (text.len() + part.len()))?;
        return Ok(text.contains(&*part));
    }
    let object = container
        .as_object()
        .ok_or_else(|| invalid(format!("nothing can be in a value of type {}", container.kind())))?;
    usable_as_key(value)?;
    match container.kind() {
        ValueKind::Map => Ok(object.get_value(value).is_some()),
        ValueKind::Seq | ValueKind::Iterable => {
            // Each comparison looks at no more than the item has.
            match value.as_object() {
                Some(_) => meter::unfolded(container)?,
                None => 0,
            };
            for item in container.try_iter()? {
                meter::work(ITEM_BYTES + value.as_str().map_or(0, |text| text.len().min(64)))?;
                if item == *value {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        _ => Ok(false),
    }
}

fn item(value: &Value, key: &Value) -> Result<Value, Error> {
    usable_as_key(key)?;
    if let Some(text) = value.as_str() {
        meter::work(4 * text.len())?;
    }
    value.get_item(key)
}

/// Returns `value[start:stop:step]` as Python does.
fn slice(value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    meter::work(STEP)?;
    let number = |value: &Value| match value.is_none() {
        true => Ok(None),
        false => i64::try_from(value.clone()).map(Some),
    };
    let (start, stop, step) = (number(start)?, number(stop)?, number(step)?.unwrap_or(1));
    if step == 0 {
        return Err(invalid("cannot slice by step size of 0".to_owned()));
    }
    if let Some(text) = value.as_str() {
        meter::work(16 * text.len())?;
        if step == 1 && text.is_ascii() {
            let bounds = bounds(text.len(), start, stop, step);
            let part = text.get(bounds.first..bounds.first + bounds.n).unwrap_or_default();
            meter::room(2 * part.len())?;
            return meter::text(part.to_owned());
        }
        meter::room(6 * text.len())?;
        let chars: Vec<char> = text.chars().collect();
        return meter::text(bounds(chars.len(), start, stop, step).pick(&chars).collect());
    }
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => meter::list(Vec::new(), 0),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = meter::items(value)?;
            let picked: Vec<Value> = bounds(items.len(), start, stop, step).pick(&items).collect();
            meter::list(picked, 0)
        }
        kind => Err(invalid(format!("value of type {kind} cannot be sliced"))),
    }
}

/// The places that a slice takes.
struct Bounds {
    first: usize,
    n: usize,
    step: i64,
}

fn bounds(len: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> Bounds {
    let len = len as i64;
    let (least, most) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let place = |at: i64| if at < 0 { at.saturating_add(len).max(least) } else { at.min(most) };
    let first = start.map_or(if step > 0 { least } else { most }, place);
    let last = stop.map_or(if step > 0 { most } else { least }, place);
    let span = if step > 0 { last - first } else { first - last };
    let n = if span <= 0 { 0 } else { (span as u64).div_ceil(step.unsigned_abs()) };
    Bounds { first: first.max(0) as usize, n: n as usize, step }
}

impl Bounds {
    fn pick<'a, T: Clone>(&self, from: &'a [T]) -> impl Iterator<Item = T> + use<'a, T> {
        let (first, step) = (self.first as i64, self.step);
        (0..self.n as i64).filter_map(move |i| {
            let at = i.checked_mul(step).and_then(|offset| first.checked_add(offset))?;
            from.get(usize::try_from(at).ok()?).cloned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_pythons() {
        let check = |start, stop, step, expected: &str| {
            let chars: Vec<char> = "abcde".chars().collect();
            let got: String = bounds(chars.len(), start, stop, step).pick(&chars).collect();
            assert_eq!(got, expected, "{start:?}:{stop:?}:{step}");
        };
        check(None, None, 1, "abcde");
        check(Some(1), Some(-1), 1, "bcd");
        check(Some(-2), None, 1, "de");
        check(Some(4), Some(2), 1, "");
        check(None, Some(99), 2, "ace");
        check(None, None, -1, "edcba");
        check(Some(3), Some(0), -2, "db");
        check(Some(-99), Some(i64::MAX), 1, "abcde");
        check(Some(i64::MAX), Some(i64::MIN), -1, "edcba");
        check(Some(1), None, i64::MAX, "b");
        check(Some(3), None, i64::MIN, "d");
    }
}
