//! Numbers and comparisons as Python has them.

use std::cmp::Ordering;

use minijinja::Error;
use minijinja::value::{Value, ValueKind};

use super::meter::{self, ITEM_BYTES, STEP};
use super::sequence::{self, Kind, Sequence, invalid, is_list, tuple_items, type_name};

/// A number; truth values are 0 and 1.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Whole(i128),
    Real(f64),
}

impl Number {
    /// Returns the number that a value is.
    pub(super) fn of(value: &Value) -> Option<Number> {
        match whole(value) {
            Some(n) => Some(Number::Whole(n)),
            None if value.kind() == ValueKind::Number => f64::try_from(value.clone()).ok().map(Number::Real),
            None => None,
        }
    }

    /// Returns it as a float.
    pub(super) fn real(self) -> f64 {
        match self {
            Number::Whole(n) => n as f64,
            Number::Real(x) => x,
        }
    }

    fn order(self, other: Number) -> Option<Ordering> {
        match (self, other) {
            (Number::Whole(a), Number::Whole(b)) => Some(a.cmp(&b)),
            (Number::Real(a), Number::Real(b)) => a.partial_cmp(&b),
            (Number::Whole(a), Number::Real(b)) => order_mixed(a, b),
            (Number::Real(a), Number::Whole(b)) => order_mixed(b, a).map(Ordering::reverse),
        }
    }
}

/// Compares exactly, not after rounding.
fn order_mixed(a: i128, b: f64) -> Option<Ordering> {
    if b.is_nan() || b.abs() >= 1e38 {
        return 0f64.partial_cmp(&b);
    }
    Some(a.cmp(&(b.floor() as i128)).then(if b > b.floor() { Ordering::Less } else { Ordering::Equal }))
}

/// Returns a whole number or a truth value.
pub(super) fn whole(value: &Value) -> Option<i128> {
    match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        _ if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    }
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

/// Returns `a == b`; [`comparable`] was asked.
pub(super) fn equal(a: &Value, b: &Value) -> bool {
    if let (Some(a), Some(b)) = (Number::of(a), Number::of(b)) {
        return a.order(b) == Some(Ordering::Equal);
    }
    match (a.as_str(), b.as_str()) {
        (Some(a), Some(b)) => return a == b,
        (None, None) => {}
        _ => return false,
    }
    let all = |a: &[Value], b: &[Value]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b));
    match (Sequence::of(a), Sequence::of(b)) {
        (Some(a), Some(b)) => {
            let same = std::ptr::eq(a, b);
            return same
                || match (a.kind, b.kind) {
                    (Kind::Tuple | Kind::Group, Kind::Tuple | Kind::Group) => all(&a.items, &b.items),
                    (Kind::Range(_), Kind::Range(_)) => all(&a.items, &b.items),
                    (Kind::Keys, Kind::Keys) | (Kind::Items, Kind::Items) => {
                        a.items.len() == b.items.len() && a.items.iter().all(|x| b.items.iter().any(|y| equal(x, y)))
                    }
                    _ => false,
                };
        }
        (None, None) => {}
        _ => return false,
    }
    match (a.kind(), b.kind()) {
        (ValueKind::Seq | ValueKind::Iterable, ValueKind::Seq | ValueKind::Iterable) => {
            let pairs = |(a, b): (Value, Value)| equal(&a, &b);
            let (Ok(a_items), Ok(b_items)) = (a.try_iter(), b.try_iter()) else { return false };
            a.len() == b.len() && a_items.zip(b_items).all(pairs)
        }
        (ValueKind::Map, ValueKind::Map) => {
            let n = |value: &Value| value.len().unwrap_or(0);
            let holds = |key: &Value| {
                let (x, y) = (a.get_item(key).unwrap_or_default(), b.get_item(key).unwrap_or_default());
                !y.is_undefined() && equal(&x, &y)
            };
            n(a) == n(b) && a.try_iter().is_ok_and(|mut keys| keys.all(|key| holds(&key)))
        }
        (a_kind, b_kind) => a_kind == b_kind && a == b,
    }
}

/// Returns how two values stand to each other; `None` where one is not a number.
///
/// # Errors
/// Python has no order of them.
pub(super) fn order(operator: &str, a: &Value, b: &Value) -> Result<Option<Ordering>, Error> {
    if let (Some(a), Some(b)) = (Number::of(a), Number::of(b)) {
        return Ok(a.order(b));
    }
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        return Ok(Some(a.cmp(b)));
    }
    let (a_items, b_items) = match (tuple_items(a), tuple_items(b)) {
        (Some(a), Some(b)) => (a.to_vec(), b.to_vec()),
        (None, None) if is_list(a) && is_list(b) => (meter::items(a)?, meter::items(b)?),
        _ => {
            let (a, b) = (type_name(a), type_name(b));
            return Err(invalid(format!("'{operator}' not supported between instances of '{a}' and '{b}'")));
        }
    };
    for (a, b) in a_items.iter().zip(&b_items) {
        if !equal(a, b) {
            return order(operator, a, b);
        }
    }
    Ok(Some(a_items.len().cmp(&b_items.len())))
}

/// Returns `value in container`.
///
/// # Errors
/// Nothing can be in the container.
pub(super) fn contains(container: &Value, value: &Value) -> Result<bool, Error> {
    meter::work(STEP)?;
    if let Some(text) = container.as_str() {
        let part = value.as_str().ok_or_else(|| {
            invalid(format!("'in <string>' requires string as left operand, not {}", type_name(value)))
        })?;
        meter::work(4 * (text.len() + part.len()))?;
        return Ok(text.contains(part));
    }
    let n_bytes = meter::unfolded(value)?;
    meter::work(STEP + n_bytes)?;
    match container.kind() {
        ValueKind::Undefined => Ok(false),
        ValueKind::Map => Ok(lookup(container, value)?.is_some()),
        ValueKind::Seq | ValueKind::Iterable => {
            if value.as_object().is_some() {
                meter::unfolded(container)?;
            }
            let n_value = value.as_str().map_or(0, |text| text.len().min(64));
            for (i, item) in container.try_iter()?.enumerate() {
                meter::work(ITEM_BYTES + n_value)?;
                if equal(&item, value) {
                    Sequence::of(container).inspect(|sequence| sequence.take(i + 1));
                    return Ok(true);
                }
            }
            Sequence::of(container).inspect(|sequence| sequence.take(usize::MAX));
            Ok(false)
        }
        _ => Err(invalid(format!("argument of type '{}' is not iterable", type_name(container)))),
    }
}

/// Returns the value of a dict's key, if it has one.
///
/// # Errors
/// The key cannot be one.
pub(super) fn lookup(dict: &Value, key: &Value) -> Result<Option<Value>, Error> {
    let key = match Number::of(key) {
        Some(Number::Whole(n)) => i64::try_from(n).map_or_else(|_| Value::from(n), Value::from),
        Some(Number::Real(x)) if x.fract() == 0.0 && x.abs() < 9e15 => Value::from(x as i64),
        _ => key.clone(),
    };
    if !can_be_key(&key) {
        return Err(invalid(format!("unhashable type: '{}'", type_name(&key))));
    }
    let object = dict.as_object().filter(|_| dict.kind() == ValueKind::Map);
    Ok(object.and_then(|object| object.get_value(&key)))
}

/// Returns whether a value may be looked up in a dict.
pub(super) fn can_be_key(key: &Value) -> bool {
    match key.kind() {
        ValueKind::Map => false,
        ValueKind::Seq | ValueKind::Iterable => {
            tuple_items(key).is_some_and(|items| items.iter().all(can_be_key))
                || Sequence::of(key).is_some_and(|sequence| matches!(sequence.kind, Kind::Lazy | Kind::Range(_)))
        }
        _ => true,
    }
}

/// Sorts as Python does: what is equal stays in order.
///
/// # Errors
/// Two values have no order.
pub(super) fn sort<T>(items: &mut [(Value, T)], is_reverse: bool) -> Result<(), Error> {
    let mut failed = Ok(());
    for (key, _) in items.iter() {
        // Each is looked at some times.
        meter::work(16 * (STEP + meter::unfolded(key)?))?;
    }
    items.sort_by(|(a, _), (b, _)| match order("<", a, b) {
        Ok(order) => if is_reverse { order.map(Ordering::reverse) } else { order }.unwrap_or(Ordering::Equal),
        Err(error) => {
            failed = Err(error);
            Ordering::Equal
        }
    });
    failed
}

/// Returns a key of `sort`, `unique` and their like: texts in lower case unless case counts.
pub(super) fn sort_key(value: &Value, is_case_sensitive: bool) -> Result<Value, Error> {
    match value.as_str().filter(|_| !is_case_sensitive) {
        Some(text) => meter::text(text.to_lowercase()),
        None => Ok(value.clone()),
    }
}

/// Returns the items of a value with their keys.
pub(super) fn keyed(value: &Value, key: impl Fn(&Value) -> Result<Value, Error>) -> Result<Vec<(Value, Value)>, Error> {
    let items = sequence::walk(value)?;
    meter::room(4 * items.len() * ITEM_BYTES)?;
    items.into_iter().map(|item| Ok((key(&item)?, item))).collect()
}
