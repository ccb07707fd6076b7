//! Operators whose result may be larger than what they take, or that may look at all of it: each asks [`super::meter`] first.

use std::cmp::Ordering;

use minijinja::value::{Rest, Value, ValueKind};
use minijinja::{Environment, Error};

use super::compare::{self, Number, comparable, contains, whole};
use super::meter::{self, ITEM_BYTES, STEP};
use super::sequence::{Kind, Method, Range, Sequence, invalid, is_list, tuple_items, type_name, walk};
use super::{filters, python, spec};

/// Names of the filters that stand for operators; no template can write them.
pub(super) mod name {
    pub(in crate::template) const ADD: &str = "+";
    pub(in crate::template) const SUB: &str = "-";
    pub(in crate::template) const MUL: &str = "*";
    pub(in crate::template) const DIV: &str = "/";
    pub(in crate::template) const FLOOR_DIV: &str = "//";
    pub(in crate::template) const REM: &str = "%";
    pub(in crate::template) const POW: &str = "**";
    pub(in crate::template) const NEG: &str = "-x";
    pub(in crate::template) const CONCAT: &str = "~";
    pub(in crate::template) const EQ: &str = "==";
    pub(in crate::template) const NE: &str = "!=";
    pub(in crate::template) const LT: &str = "<";
    pub(in crate::template) const LE: &str = "<=";
    pub(in crate::template) const GT: &str = ">";
    pub(in crate::template) const GE: &str = ">=";
    pub(in crate::template) const IN: &str = "in()";
    /// Several comparisons in a row.
    pub(in crate::template) const CHAIN: &str = "<<";
    pub(in crate::template) const NOT_IN: &str = "!in()";
    pub(in crate::template) const ITEM: &str = "[]";
    /// An attribute that may be a method of Python's.
    pub(in crate::template) const ATTRIBUTE: &str = ".";
    pub(in crate::template) const SLICE: &str = "[:]";
    pub(in crate::template) const LIST: &str = "[,]";
    pub(in crate::template) const TUPLE: &str = "(,)";
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

/// The operators that compare.
const COMPARISONS: [&str; 7] = [name::EQ, name::NE, name::LT, name::LE, name::GT, name::GE, name::IN];

/// Adds the filters to an environment.
pub(super) fn add_to(environment: &mut Environment<'_>) {
    environment.add_filter(name::ADD, |a: &Value, b: &Value| add(a, b));
    environment.add_filter(name::SUB, |a: &Value, b: &Value| arithmetic(name::SUB, a, b));
    environment.add_filter(name::MUL, |a: &Value, b: &Value| mul(a, b));
    environment.add_filter(name::DIV, |a: &Value, b: &Value| arithmetic(name::DIV, a, b));
    environment.add_filter(name::FLOOR_DIV, |a: &Value, b: &Value| arithmetic(name::FLOOR_DIV, a, b));
    environment.add_filter(name::REM, |a: &Value, b: &Value| rem(a, b));
    environment.add_filter(name::POW, |a: &Value, b: &Value| arithmetic(name::POW, a, b));
    environment.add_filter(name::NEG, |a: &Value| neg(a));
    environment.add_filter(name::CONCAT, |a: &Value, b: &Value| concat(a, b));
    for name in COMPARISONS {
        environment.add_filter(name, move |a: &Value, b: &Value| compared(name, a, b));
    }
    environment.add_filter(name::CHAIN, |first: &Value, rest: Rest<Value>| chain(first, &rest));
    environment.add_filter(name::ITEM, |value: &Value, key: &Value| item(value, key));
    environment.add_filter(name::ATTRIBUTE, |value: &Value, key: &str| attribute(value, key));
    environment.add_filter(name::SLICE, slice);
    environment.add_filter(name::LIST, |items: Rest<Value>| {
        let list = meter::list(items.0, 0)?;
        meter::unfolded(&list)?;
        Ok::<_, Error>(list)
    });
    environment.add_filter(name::TUPLE, |items: Rest<Value>| Sequence::value(Kind::Tuple, items.0, 0));
    environment.add_filter(name::DICT, |items: Rest<Value>| {
        let entries = items.as_chunks::<2>().0.iter().map(|[key, value]| (key.clone(), value.clone()));
        filters::dict_of(entries.collect())
    });
    environment.add_filter(name::WALK, |value: &Value| {
        let n = value.as_object().map_or(0, |object| object.enumerator_len().unwrap_or(0) * ITEM_BYTES);
        meter::work(STEP + n + value.as_str().map_or(0, str::len))?;
        match value.kind() {
            ValueKind::Map | ValueKind::Undefined => Ok(value.clone()),
            ValueKind::Seq if Sequence::of(value).is_none() => Ok(value.clone()),
            _ => meter::list(walk(value)?, 0),
        }
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

fn compared(operator: &str, a: &Value, b: &Value) -> Result<bool, Error> {
    if operator == name::IN {
        return contains(b, a);
    }
    comparable(a, b)?;
    let order = || compare::order(operator, a, b);
    Ok(match operator {
        name::EQ => compare::equal(a, b),
        name::NE => !compare::equal(a, b),
        name::LT => order()? == Some(Ordering::Less),
        name::GT => order()? == Some(Ordering::Greater),
        name::LE => matches!(order()?, Some(Ordering::Less | Ordering::Equal)),
        _ => matches!(order()?, Some(Ordering::Greater | Ordering::Equal)),
    })
}

/// Compares values in a row; `rest` has an operator before each.
fn chain(first: &Value, rest: &[Value]) -> Result<bool, Error> {
    let mut left = first;
    for [operator, right] in rest.as_chunks::<2>().0 {
        let operator = operator.as_str().unwrap_or_default();
        let holds = match operator.strip_prefix('!').filter(|operator| *operator == name::IN) {
            Some(operator) => !compared(operator, left, right)?,
            None => compared(operator, left, right)?,
        };
        if !holds {
            return Ok(false);
        }
        left = right;
    }
    Ok(true)
}

fn unsupported(operator: &str, a: &Value, b: &Value) -> Error {
    invalid(format!("unsupported operand type(s) for {operator}: '{}' and '{}'", type_name(a), type_name(b)))
}

fn integer(n: Option<i128>) -> Result<Value, Error> {
    let n = n.ok_or_else(|| invalid("the number is too large"))?;
    Ok(i64::try_from(n).map_or_else(|_| Value::from(n), Value::from))
}

pub(super) fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    meter::work(STEP)?;
    let tuple = |value: &Value| tuple_items(value).map(<[Value]>::to_vec);
    let lists = match (tuple(a), tuple(b)) {
        (Some(a), Some(b)) => Some((a, b)),
        (None, None) if is_list(a) && is_list(b) => Some((meter::items(a)?, meter::items(b)?)),
        _ => None,
    };
    if let Some((mut items, more)) = lists {
        meter::room((items.len() + more.len()) * 2 * ITEM_BYTES)?;
        items.reserve_exact(more.len());
        items.extend(more);
        return if is_list(a) { meter::list(items, 0) } else { Sequence::value(Kind::Tuple, items, 0) };
    }
    if let (Some(a_text), Some(b_text)) = (a.as_str(), b.as_str()) {
        meter::room(16 * (a_text.len() + b_text.len()))?;
        return match a.is_safe() || b.is_safe() {
            true => filters::safe_text([filters::escaped(a), filters::escaped(b)].concat()),
            false => meter::text([a_text, b_text].concat()),
        };
    }
    arithmetic(name::ADD, a, b)
}

fn mul(a: &Value, b: &Value) -> Result<Value, Error> {
    meter::work(STEP)?;
    let is_many = |value: &Value| value.as_str().is_some() || is_list(value) || tuple_items(value).is_some();
    let (many, n) = if is_many(a) { (a, b) } else { (b, a) };
    if !is_many(many) {
        return arithmetic(name::MUL, a, b);
    }
    // As in Python, a number below 1 leaves nothing.
    let n =
        whole(n).ok_or_else(|| invalid(format!("can't multiply sequence by non-int of type '{}'", type_name(n))))?;
    let n = usize::try_from(n.max(0)).unwrap_or(usize::MAX);
    if let Some(text) = many.as_str() {
        meter::room(text.len().saturating_mul(n).saturating_mul(2))?;
        return filters::like(many, text.repeat(n));
    }
    let items = tuple_items(many).map_or_else(|| meter::items(many), |items| Ok(items.to_vec()))?;
    meter::room(items.len().saturating_mul(n).saturating_mul(ITEM_BYTES))?;
    let n_items = items.len() * n;
    let items = items.into_iter().cycle().take(n_items).collect();
    if is_list(many) { meter::list(items, 0) } else { Sequence::value(Kind::Tuple, items, 0) }
}

/// Returns the rest of a division, or a text with its `%` fields filled in.
fn rem(a: &Value, b: &Value) -> Result<Value, Error> {
    let Some(format) = a.as_str() else { return arithmetic(name::REM, a, b) };
    meter::work(STEP + meter::unfolded(b)? + 16 * format.len())?;
    filters::unescaped("%", a, std::slice::from_ref(b))?;
    filters::like(a, spec::percent(format, b)?)
}

fn neg(a: &Value) -> Result<Value, Error> {
    match Number::of(a) {
        Some(Number::Whole(n)) => integer(n.checked_neg()),
        Some(Number::Real(x)) => Ok(Value::from(-x)),
        None => Err(invalid(format!("bad operand type for unary -: '{}'", type_name(a)))),
    }
}

/// Returns what an operator makes of two numbers.
pub(super) fn arithmetic(operator: &str, a: &Value, b: &Value) -> Result<Value, Error> {
    let (Some(x), Some(y)) = (Number::of(a), Number::of(b)) else { return Err(unsupported(operator, a, b)) };
    let by_zero = || Err(invalid("division by zero"));
    if let (Number::Whole(x), Number::Whole(y)) = (x, y) {
        // Towards minus infinity, the rest with the sign of the divisor.
        let floor = |x: i128, y: i128| {
            let is_less = x.checked_rem(y)? != 0 && (x < 0) != (y < 0);
            x.checked_div(y)?.checked_sub(i128::from(is_less))
        };
        match operator {
            name::ADD => return integer(x.checked_add(y)),
            name::SUB => return integer(x.checked_sub(y)),
            name::MUL => return integer(x.checked_mul(y)),
            name::DIV | name::FLOOR_DIV | name::REM if y == 0 => return by_zero(),
            name::FLOOR_DIV => return integer(floor(x, y)),
            name::REM => return integer(floor(x, y).and_then(|n| x.checked_sub(n.checked_mul(y)?))),
            name::POW if y >= 0 => {
                return integer(if (-1..=1).contains(&x) {
                    x.checked_pow((2 - y % 2) as u32 * u32::from(y > 0))
                } else {
                    u32::try_from(y).ok().and_then(|y| x.checked_pow(y))
                });
            }
            _ => {}
        }
    }
    let (x, y) = (x.real(), y.real());
    let (quotient, rest) = floored(x, y);
    Ok(Value::from(match operator {
        name::ADD => x + y,
        name::SUB => x - y,
        name::MUL => x * y,
        name::DIV | name::FLOOR_DIV | name::REM if y == 0.0 => return by_zero(),
        name::DIV => x / y,
        name::FLOOR_DIV => quotient,
        name::REM => rest,
        _ if x == 0.0 && y < 0.0 => return by_zero(),
        _ if x < 0.0 && y.fract() != 0.0 => return Err(invalid("complex numbers are not supported")),
        _ => match x.powf(y) {
            power if power.is_infinite() && x.is_finite() && y.is_finite() => {
                return Err(invalid("the number is too large"));
            }
            power => power,
        },
    }))
}

/// Returns `x // y` and `x % y` of floats, as CPython computes them.
fn floored(x: f64, y: f64) -> (f64, f64) {
    let mut rest = x % y;
    let mut quotient = (x - rest) / y;
    if rest == 0.0 {
        rest = 0f64.copysign(y);
    } else if (y < 0.0) != (rest < 0.0) {
        rest += y;
        quotient -= 1.0;
    }
    if quotient == 0.0 {
        return (0f64.copysign(x / y), rest);
    }
    let floor = quotient.floor();
    (if quotient - floor > 0.5 { floor + 1.0 } else { floor }, rest)
}

fn concat(a: &Value, b: &Value) -> Result<Value, Error> {
    let (a, b) = (python::to_str(a)?, python::to_str(b)?);
    meter::room(2 * (a.len() + b.len()))?;
    meter::text([&*a, &*b].concat())
}

/// Returns `value[key]` as Jinja does: an item, else an attribute, else nothing.
pub(super) fn item(value: &Value, key: &Value) -> Result<Value, Error> {
    meter::work(STEP + meter::unfolded(key)?)?;
    if value.is_undefined() {
        return Err(invalid("an undefined value has no items"));
    }
    let found = match (value.kind(), whole(key)) {
        (ValueKind::Map, _) if compare::can_be_key(key) => compare::lookup(value, key)?,
        (ValueKind::String, Some(at)) => {
            let text = value.as_str().unwrap_or_default();
            meter::work(4 * text.len())?;
            let n = if text.is_ascii() { text.len() } else { text.chars().count() };
            let at = place(at, n);
            match (text.is_ascii(), at) {
                (true, Some(at)) => text.get(at..=at).map(Value::from),
                (false, Some(at)) => text.chars().nth(at).map(Value::from),
                (_, None) => None,
            }
            .map(|c| if value.is_safe() { Value::from_safe_string(c.to_string()) } else { c })
        }
        (ValueKind::Seq | ValueKind::Iterable, Some(at)) if is_indexed(value) => {
            let object = value.as_object();
            let at = place(at, object.and_then(|object| object.enumerator_len()).unwrap_or(0));
            at.and_then(|at| object?.get_value(&Value::from(at)))
        }
        (ValueKind::Plain, _) => Some(value.get_item(key)?),
        _ => None,
    };
    match (found, key.as_str()) {
        (Some(found), _) => Ok(found),
        (None, Some(name)) if Sequence::of(value).is_some() => attribute(value, name),
        (None, Some(name)) => Ok(Method::of(value, name).unwrap_or_default()),
        (None, None) => Ok(Value::UNDEFINED),
    }
}

fn place(at: i128, n: usize) -> Option<usize> {
    usize::try_from(if at < 0 { at + n as i128 } else { at }).ok().filter(|at| *at < n)
}

fn is_indexed(value: &Value) -> bool {
    Sequence::of(value).is_none_or(|sequence| matches!(sequence.kind, Kind::Tuple | Kind::Group | Kind::Range(_)))
}

/// Returns `value.name` as Jinja does: a method of the type, else an item, else nothing.
pub(super) fn attribute(value: &Value, name: &str) -> Result<Value, Error> {
    meter::work(STEP)?;
    match Method::of(value, name) {
        Some(method) => Ok(method),
        None => value.get_attr(name),
    }
}

/// Returns `value[start:stop:step]` as Python does.
fn slice(value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    meter::work(STEP)?;
    let number = |value: &Value| match value.is_none() {
        true => Ok(None),
        false => whole(value)
            .map(|n| Some(i64::try_from(n).unwrap_or(if n < 0 { i64::MIN } else { i64::MAX })))
            .ok_or_else(|| invalid("slice indices must be integers or None")),
    };
    if value.is_undefined() {
        return Err(invalid("an undefined value has no items"));
    }
    let (start, stop, step) = (number(start)?, number(stop)?, number(step)?.unwrap_or(1));
    if step == 0 {
        return Err(invalid("slice step cannot be zero"));
    }
    if let Some(text) = value.as_str() {
        meter::work(16 * text.len())?;
        if step == 1 && text.is_ascii() {
            let bounds = bounds(text.len(), start, stop, step);
            let part = text.get(bounds.first..bounds.first + bounds.n).unwrap_or_default();
            meter::room(2 * part.len())?;
            return filters::like(value, part.to_owned());
        }
        meter::room(6 * text.len())?;
        let chars: Vec<char> = text.chars().collect();
        return filters::like(value, bounds(chars.len(), start, stop, step).pick(&chars).collect());
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) || !is_indexed(value) {
        return Err(invalid(format!("'{}' object is not subscriptable by a slice", type_name(value))));
    }
    let items = meter::items(value)?;
    let bounds = bounds(items.len(), start, stop, step);
    let picked: Vec<Value> = bounds.pick(&items).collect();
    match Sequence::of(value).map(|sequence| sequence.kind) {
        None => meter::list(picked, 0),
        Some(Kind::Range(range)) => {
            let at = |i: i64| range.start.saturating_add(i.saturating_mul(range.step));
            let last = bounds.last.clamp(-1, items.len() as i64);
            let sliced = Range { start: at(bounds.start), stop: at(last), step: range.step.saturating_mul(step) };
            Sequence::value(Kind::Range(sliced), picked, 0)
        }
        Some(_) => Sequence::value(Kind::Tuple, picked, 0),
    }
}

/// The places that a slice takes.
struct Bounds {
    /// Where it begins and ends, before it is looked whether anything is between.
    start: i64,
    last: i64,
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
    Bounds { start: first, last, first: first.max(0) as usize, n: n as usize, step }
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
