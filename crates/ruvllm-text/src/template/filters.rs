//! Filters and functions as Jinja has them, each behind a look at what it would cost ([`super::meter`]).

mod lists;
mod texts;

use std::sync::atomic::AtomicUsize;

use minijinja::value::{Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, functions};

use super::arguments::{bind, divide, number};
use super::compare::{Number, can_be_key, whole};
use super::meter::{self, ITEM_BYTES, STEP};
use super::sequence::{Cycler, Joiner, Kind, Range, Sequence, invalid, type_name, walk};
use super::{json, marks, python};

/// The most columns, slices and batches that a template asks for by number.
pub(super) const COUNT_MAX: usize = 10_000;
/// The longest range, as in Jinja's sandbox.
const RANGE_MAX: usize = 100_000;

/// A filter: its value first, then its arguments.
type Filter = fn(&State, &[Value]) -> Result<Value, Error>;

/// A function of its arguments.
type Function = fn(&[Value]) -> Result<Value, Error>;

/// Filters that look at a list, not into what is in it.
const SHALLOW: [&str; 14] = [
    "length",
    "count",
    "first",
    "last",
    "list",
    "select",
    "reject",
    "selectattr",
    "rejectattr",
    "map",
    "reverse",
    "attr",
    "bool",
    "items",
];

/// Adds them all to an environment that has none.
pub(super) fn add_to(environment: &mut Environment<'_>) {
    for (name, filter) in texts::FILTERS.iter().chain(lists::FILTERS).chain(FILTERS) {
        environment.add_filter(*name, move |state: &State, arguments: Rest<Value>| {
            before(name, &arguments)?;
            filter(state, &arguments)
        });
    }
    let functions: [(&str, Function); 5] =
        [("range", range), ("dict", dict), ("namespace", namespace), ("joiner", joiner), ("cycler", cycler)];
    for (name, function) in functions {
        environment.add_function(name, move |arguments: Rest<Value>| {
            meter::work(STEP)?;
            function(&arguments)
        });
    }
}

const FILTERS: &[(&str, Filter)] = &[
    ("default", default),
    ("d", default),
    ("bool", |_, arguments| Ok(Value::from(arguments[0].is_true()))),
    ("abs", abs),
    ("round", round),
    ("int", int),
    ("float", float),
    ("tojson", |_, arguments| json::tojson(arguments)),
];

/// Asks for what a filter takes before it begins, beside what it asks for itself.
fn before(name: &str, arguments: &[Value]) -> Result<(), Error> {
    meter::work(STEP)?;
    if arguments.is_empty() {
        return Err(invalid(format!("{name} needs a value")));
    }
    let mut n_bytes = 0;
    for (i, argument) in arguments.iter().enumerate() {
        let is_shallow = i == 0 && SHALLOW.contains(&name) && argument.as_object().is_some();
        n_bytes += match is_shallow {
            true => argument.as_object().and_then(|object| object.enumerator_len()).unwrap_or(0) * ITEM_BYTES,
            false => meter::unfolded(argument)?,
        };
    }
    match name {
        "default" | "d" | "length" | "count" | "first" | "last" | "attr" | "bool" | "tojson" => {
            return meter::work(n_bytes);
        }
        "title" | "capitalize" | "upper" | "lower" => meter::work(n_bytes.saturating_mul(48))?,
        _ => meter::work(n_bytes.saturating_mul(16))?,
    }
    meter::room(n_bytes.saturating_mul(if name == "escape" || name == "e" { 8 } else { 4 }))
}

/// Returns a text as a value, marked as safe if the one that it was made of is.
pub(super) fn like(original: &Value, text: String) -> Result<Value, Error> {
    if original.is_safe() { safe_text(text) } else { meter::text(text) }
}

/// Returns a text that is marked as safe (Python's `Markup`).
pub(super) fn safe_text(text: String) -> Result<Value, Error> {
    meter::room(2 * text.len())?;
    meter::safe(text)
}

/// Returns a text with the characters of HTML escaped, unless it is marked as safe.
pub(super) fn escaped(value: &Value) -> String {
    let text = value.as_str().unwrap_or_default();
    if value.is_safe() { text.to_owned() } else { escape(text) }
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match marks::original(c) {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
    out
}

/// Makes sure that a safe text would escape nothing of these arguments.
///
/// # Errors
/// It would: that is not supported.
pub(super) fn unescaped(what: &str, receiver: &Value, arguments: &[Value]) -> Result<(), Error> {
    if !receiver.is_safe() {
        return Ok(());
    }
    for argument in arguments {
        let text = python::to_str(argument)?;
        if !argument.is_safe() && text.contains(['&', '<', '>', '"', '\'']) {
            return Err(invalid(format!("{what} of a text that is marked as safe would escape its argument")));
        }
    }
    Ok(())
}

/// Returns a value as Jinja's `soft_str` does: texts as they are, others as they print.
fn soft_str(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.clone()),
        _ => meter::text(python::to_str(value)?.into_owned()),
    }
}

fn default(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let [other, boolean] = bind("default", ["default_value", "boolean"], &arguments[1..])?;
    let is_missing = arguments[0].is_undefined() || (boolean.is_some_and(|on| on.is_true()) && !arguments[0].is_true());
    Ok(if is_missing { other.unwrap_or_else(|| Value::from("")) } else { arguments[0].clone() })
}

fn abs(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let [] = bind("abs", [], &arguments[1..])?;
    match Number::of(&arguments[0]) {
        Some(Number::Whole(n)) => Ok(whole_value(n.abs())),
        Some(Number::Real(x)) => Ok(Value::from(x.abs())),
        None => Err(invalid(format!("bad operand type for abs(): '{}'", type_name(&arguments[0])))),
    }
}

fn whole_value(n: i128) -> Value {
    i64::try_from(n).map_or_else(|_| Value::from(n), Value::from)
}

fn round(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let [precision, method] = bind("round", ["precision", "method"], &arguments[1..])?;
    let precision = number("round", precision.as_ref())?.unwrap_or(0);
    let method = method.unwrap_or_else(|| Value::from("common"));
    let value = Number::of(&arguments[0])
        .ok_or_else(|| invalid(format!("round takes a number, not a value of type {}", type_name(&arguments[0]))))?;
    if !(-30..=300).contains(&precision) {
        return Err(invalid("round: the precision is too large"));
    }
    match (method.as_str(), value) {
        (Some("common"), Number::Whole(n)) if precision >= 0 => Ok(whole_value(n)),
        (Some("common"), Number::Whole(n)) => {
            let unit = 10i128.pow(precision.unsigned_abs() as u32);
            let (quotient, rest) = (n.div_euclid(unit), n.rem_euclid(unit));
            let is_up = rest * 2 > unit || (rest * 2 == unit && quotient % 2 != 0);
            Ok(whole_value((quotient + i128::from(is_up)) * unit))
        }
        (Some("common"), Number::Real(x)) if precision >= 0 && x.is_finite() => {
            // Correct to the last digit, as Python's: through the decimal form.
            let rounded = format!("{x:.*}", precision as usize).parse::<f64>();
            rounded.map(Value::from).map_err(|_| invalid("round: the number is too large"))
        }
        (Some("common"), Number::Real(_)) => Err(invalid("round of a float to tens is not supported")),
        (Some(method @ ("ceil" | "floor")), value) => {
            let scale = 10f64.powi(precision as i32);
            let scaled = value.real() * scale;
            let scaled = if method == "ceil" { scaled.ceil() } else { scaled.floor() };
            match scaled.is_finite() {
                true => Ok(Value::from(if scaled == 0.0 { 0.0 } else { scaled } / scale)),
                false => Err(invalid("cannot convert float infinity or NaN to integer")),
            }
        }
        _ => Err(invalid("method must be common, ceil or floor")),
    }
}

fn int(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let [default, base] = bind("int", ["default", "base"], &arguments[1..])?;
    let base = number("int", base.as_ref())?.unwrap_or(10);
    let default = || default.clone().unwrap_or_else(|| Value::from(0));
    if arguments[0].is_undefined() {
        return Err(invalid("int of an undefined value"));
    }
    let real = match (arguments[0].as_str(), Number::of(&arguments[0])) {
        (Some(text), _) => match parse_int(text, base)? {
            Some(n) => return Ok(whole_value(n)),
            None => match parse_float(text) {
                Some(x) if x.is_finite() => x,
                _ => return Ok(default()),
            },
        },
        (_, Some(Number::Whole(n))) => return Ok(whole_value(n)),
        (_, Some(Number::Real(x))) if x.is_infinite() => {
            return Err(invalid("cannot convert float infinity to integer"));
        }
        (_, Some(Number::Real(x))) if x.is_nan() => return Ok(default()),
        (_, Some(Number::Real(x))) => x,
        _ => return Ok(default()),
    };
    match real.abs() < 1e38 {
        true => Ok(whole_value(real as i128)),
        false => Err(invalid("the number is too large")),
    }
}

/// Reads a whole number as Python's `int` does; `None` if it is none.
fn parse_int(text: &str, base: i64) -> Result<Option<i128>, Error> {
    let Some(base) = u32::try_from(base).ok().filter(|base| (2..=36).contains(base)) else {
        return Err(invalid("int: the base must be 2 to 36"));
    };
    let text = text.trim_matches(python::is_space);
    let (is_negative, digits) = match text.strip_prefix(['+', '-']) {
        Some(digits) => (text.starts_with('-'), digits),
        None => (false, text),
    };
    let prefix = match base {
        2 => "0b",
        8 => "0o",
        16 => "0x",
        _ => "",
    };
    let is_prefixed = !prefix.is_empty() && digits.get(..2).is_some_and(|head| head.eq_ignore_ascii_case(prefix));
    let digits = if is_prefixed { digits[2..].strip_prefix('_').unwrap_or(&digits[2..]) } else { digits };
    let has_digits = !digits.is_empty() && digits.split('_').all(|part| !part.is_empty());
    if !has_digits {
        return Ok(None);
    }
    if !digits.is_ascii() {
        return Err(invalid("int of digits that are not ASCII is not supported"));
    }
    if !digits.chars().all(|c| c == '_' || c.is_digit(base)) {
        return Ok(None);
    }
    match i128::from_str_radix(&digits.replace('_', ""), base) {
        Ok(n) => Ok(Some(if is_negative { -n } else { n })),
        Err(_) => Err(invalid("the number is too large")),
    }
}

/// Reads a float as Python's `float` does.
fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(python::is_space);
    let bytes = text.as_bytes();
    let is_between = |i: usize| {
        let digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
        digit(i.checked_sub(1)) && digit(Some(i + 1))
    };
    let underscores_stand_right = bytes.iter().enumerate().all(|(i, byte)| *byte != b'_' || is_between(i));
    text.replace('_', "").parse().ok().filter(|_: &f64| underscores_stand_right)
}

fn float(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let [default] = bind("float", ["default"], &arguments[1..])?;
    if arguments[0].is_undefined() {
        return Err(invalid("float of an undefined value"));
    }
    let real = match arguments[0].as_str() {
        Some(text) => parse_float(text),
        None => Number::of(&arguments[0]).map(Number::real),
    };
    Ok(real.map_or_else(|| default.unwrap_or_else(|| Value::from(0.0)), Value::from))
}

fn range(arguments: &[Value]) -> Result<Value, Error> {
    let (places, named) = divide(arguments);
    let at = |i: usize| number("range", places.get(i));
    let (start, stop) = match places.len() {
        1 => (0, at(0)?),
        2 | 3 => (at(0)?.unwrap_or(0), at(1)?),
        n => return Err(invalid(format!("range takes 1 to 3 arguments, not {n}"))),
    };
    let (stop, step) = (stop.unwrap_or(0), at(2)?.unwrap_or(1));
    if step == 0 || named.is_some() {
        return Err(invalid("range() arg 3 must not be zero"));
    }
    let span = if step > 0 { i128::from(stop) - i128::from(start) } else { i128::from(start) - i128::from(stop) };
    let n = span.max(0).div_euclid(i128::from(step.unsigned_abs()))
        + i128::from(span.max(0) % i128::from(step.unsigned_abs()) != 0);
    let n = usize::try_from(n).unwrap_or(usize::MAX);
    if n > RANGE_MAX {
        return Err(invalid(format!("Range too big: more than {RANGE_MAX}")));
    }
    meter::room(2 * n * ITEM_BYTES)?;
    let items = (0..n as i64).map(|i| Value::from(start + i * step)).collect();
    Sequence::value(Kind::Range(Range { start, stop, step }), items, 0)
}

/// Returns a dict of entries.
///
/// # Errors
/// A key cannot be one.
pub(super) fn dict_of(entries: Vec<(Value, Value)>) -> Result<Value, Error> {
    for (key, _) in &entries {
        meter::work(STEP + meter::unfolded(key)?)?;
        let is_plain = matches!(key.kind(), ValueKind::String | ValueKind::None) || key.is_integer();
        if !is_plain || !can_be_key(key) {
            return Err(invalid(format!("a dict's keys are texts or whole numbers, not of type {}", type_name(key))));
        }
    }
    meter::dict(entries)
}

fn entries_of(value: &Value) -> Result<Vec<(Value, Value)>, Error> {
    if value.kind() == ValueKind::Map {
        return meter::items(value)?.into_iter().map(|key| Ok((key.clone(), value.get_item(&key)?))).collect();
    }
    let pair = |item: Value| match &walk(&item)?[..] {
        [key, value] => Ok((key.clone(), value.clone())),
        items => Err(invalid(format!("a dict is made of pairs, not of {} values", items.len()))),
    };
    walk(value)?.into_iter().map(pair).collect()
}

fn dict_entries(what: &str, arguments: &[Value]) -> Result<Vec<(Value, Value)>, Error> {
    let (places, named) = divide(arguments);
    let mut entries = match places {
        [] => Vec::new(),
        [first] => {
            meter::unfolded(first)?;
            entries_of(first)?
        }
        _ => return Err(invalid(format!("{what} takes one argument, not {}", places.len()))),
    };
    entries.extend(named.map(entries_of).transpose()?.unwrap_or_default());
    Ok(entries)
}

fn dict(arguments: &[Value]) -> Result<Value, Error> {
    dict_of(dict_entries("dict", arguments)?)
}

fn namespace(arguments: &[Value]) -> Result<Value, Error> {
    arguments.iter().try_for_each(meter::plain)?;
    meter::hold(STEP * 4)?;
    let given = dict_of(dict_entries("namespace", arguments)?)?;
    functions::namespace(Some(given))
}

fn joiner(arguments: &[Value]) -> Result<Value, Error> {
    let [separator] = bind("joiner", ["sep"], arguments)?;
    meter::hold(STEP)?;
    let separator = separator.unwrap_or_else(|| Value::from(", "));
    Ok(Value::from_object(Joiner { separator, n_calls: AtomicUsize::new(0) }))
}

fn cycler(arguments: &[Value]) -> Result<Value, Error> {
    if arguments.is_empty() || arguments.iter().any(Value::is_kwargs) {
        return Err(invalid("cycler needs values, and takes no names"));
    }
    meter::hold(STEP + arguments.len() * ITEM_BYTES)?;
    Ok(Value::from_object(Cycler { items: arguments.to_vec(), at: AtomicUsize::new(0) }))
}

/// Returns the entries of a dict as tuples.
pub(super) fn pairs(dict: &Value) -> Result<Vec<Value>, Error> {
    lists::pairs(dict)
}

/// Returns a filter's or a method's error for what it does not know.
pub(super) fn unknown(what: &str) -> Error {
    Error::new(ErrorKind::UnknownMethod, format!("{what} is not supported"))
}

/// Returns a count that a template gives by number.
fn count(what: &str, value: Option<&Value>) -> Result<Option<usize>, Error> {
    let Some(n) = value.map(|value| whole(value).ok_or_else(|| invalid(format!("{what} takes a whole number")))) else {
        return Ok(None);
    };
    let n = n?;
    match n > COUNT_MAX as i128 {
        true => Err(invalid(format!("{what}: more than {COUNT_MAX}"))),
        false => Ok(Some(usize::try_from(n).unwrap_or(0))),
    }
}
