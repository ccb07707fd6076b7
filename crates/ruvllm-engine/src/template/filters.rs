//! The filters, tests, functions and methods of templates: the template engine's own, each behind a look at what it would cost
//! ([`super::meter`]).

use minijinja::value::{Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, filters, functions, tests};

use super::meter::{self, ITEM_BYTES, STEP};
use super::python;

/// The most columns, slices and batches that a template asks for by number.
const COUNT_MAX: usize = 10_000;

/// Returns the work of a filter or a method that compares or rewrites what it is given, for a byte of it.
fn work_per_byte(name: &str) -> usize {
    match name {
        "default" | "d" => 0,
        "title" | "capitalize" | "upper" | "lower" => 48,
        _ => 16,
    }
}

/// Filters that look at a list, not into what is in it.
const SHALLOW: [&str; 13] = [
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
];
/// Filters that return what they were given, or a part of it.
const PASSING: [&str; 7] = ["default", "d", "first", "last", "attr", "min", "max"];

/// Adds them all to an environment that has none.
pub(super) fn add_to(environment: &mut Environment<'_>) {
    macro_rules! wrap {
        ($add:ident, $module:ident: $($name:literal $function:ident),* $(,)?) => {
            $({
                let inner = Value::from_function($module::$function);
                environment.$add($name, move |state: &State, arguments: Rest<Value>| {
                    before($name, &arguments)?;
                    after($name, inner.call(state, &arguments)?)
                });
            })*
        };
    }
    wrap!(add_filter, filters: "safe" safe, "escape" escape, "e" escape, "lower" lower, "upper" upper, "title" title,
        "capitalize" capitalize, "replace" replace, "length" length, "count" length, "dictsort" dictsort, "items" items,
        "reverse" reverse, "trim" trim, "split" split, "lines" lines, "round" round, "abs" abs, "int" int, "float" float,
        "attr" attr, "first" first, "last" last, "min" min, "max" max, "sort" sort, "list" list, "bool" bool, "batch" batch,
        "slice" slice, "sum" sum, "indent" indent, "select" select, "reject" reject, "selectattr" selectattr,
        "rejectattr" rejectattr, "map" map, "groupby" groupby, "unique" unique, "chain" chain, "zip" zip, "format" format,
        "default" default, "d" default);
    wrap!(add_function, functions: "range" range, "dict" dict);
    environment.add_function("namespace", |arguments: Rest<Value>| {
        arguments.iter().try_for_each(meter::plain)?;
        meter::hold(STEP * 4)?;
        functions::namespace(arguments.first().cloned())
    });
    environment.add_filter("join", |value: &Value, joiner: Option<Value>| join(value, joiner.as_ref()));
    environment.add_filter("string", string);
    environment.add_filter("pprint", |value: &Value| string(value));
    macro_rules! wrap_tests {
        ($($name:literal $function:ident),* $(,)?) => {
            $({
                let inner = Value::from_function(tests::$function);
                environment.add_test($name, move |state: &State, arguments: Rest<Value>| {
                    arguments.iter().skip(1).try_for_each(|argument| meter::unfolded(argument).map(drop))?;
                    inner.call(state, &arguments).map(|value| value.is_true())
                });
            })*
        };
    }
    wrap_tests!("undefined" is_undefined, "defined" is_defined, "none" is_none, "safe" is_safe, "escaped" is_safe,
        "boolean" is_boolean, "odd" is_odd, "even" is_even, "number" is_number, "integer" is_integer, "int" is_integer,
        "float" is_float, "string" is_string, "mapping" is_mapping, "true" is_true, "false" is_false, "filter" is_filter,
        "test" is_test);
    wrap_comparing_tests(environment);
}

/// Tests that look into both of what they compare.
fn wrap_comparing_tests(environment: &mut Environment<'_>) {
    macro_rules! wrap {
        ($($($name:literal)* $function:ident),* $(,)?) => {
            $($({
                let inner = Value::from_function(tests::$function);
                environment.add_test($name, move |state: &State, arguments: Rest<Value>| {
                    for argument in arguments.iter() {
                        meter::work(STEP + meter::unfolded(argument)?)?;
                    }
                    inner.call(state, &arguments).map(|value| value.is_true())
                });
            })*)*
        };
    }
    wrap!("divisibleby" is_divisibleby, "startingwith" is_startingwith, "endingwith" is_endingwith, "lower" is_lower,
        "upper" is_upper, "sameas" is_sameas, "eq" "equalto" "==" is_eq, "ne" "!=" is_ne, "lt" "lessthan" "<" is_lt,
        "le" "<=" is_le, "gt" "greaterthan" ">" is_gt, "ge" ">=" is_ge, "in" is_in);
}

fn too_large(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{what}: more than {COUNT_MAX}"))
}

/// Asks for what a filter or a function takes before it begins.
fn before(name: &str, arguments: &[Value]) -> Result<(), Error> {
    meter::work(STEP)?;
    let mut n_bytes = 0;
    for (i, argument) in arguments.iter().enumerate() {
        let is_shallow = i == 0 && SHALLOW.contains(&name) && argument.as_object().is_some();
        n_bytes += match is_shallow {
            true => argument.as_object().and_then(|object| object.enumerator_len()).unwrap_or(0) * ITEM_BYTES,
            false => meter::unfolded(argument)?,
        };
    }
    meter::work(work_per_byte(name).saturating_mul(n_bytes))?;
    let text = |i: usize| arguments.get(i).and_then(Value::as_str);
    let count = |i: usize, option: &str| {
        let option = || arguments.last().filter(|last| last.is_kwargs())?.get_attr(option).ok();
        arguments.get(i).filter(|value| !value.is_kwargs()).cloned().or_else(option).and_then(|value| value.as_usize())
    };
    match name {
        "default" | "d" | "length" | "count" | "first" | "last" | "attr" | "bool" => Ok(()),
        "replace" => match (text(0), text(1), text(2)) {
            (Some(text), Some(old), Some(new)) => replace_room(text, old, new),
            _ => meter::room(n_bytes.saturating_mul(n_bytes)),
        },
        "split" => text(0).map_or(Ok(()), |text| split_room(text, arguments.get(1).and_then(Value::as_str))),
        "lines" => text(0).map_or(Ok(()), |text| split_room(text, Some("\n"))),
        "list" | "reverse" | "sort" | "unique" | "map" | "select" | "reject" if text(0).is_some() => {
            meter::room(n_bytes.saturating_mul(2 * ITEM_BYTES))
        }
        "indent" => {
            let width = count(1, "width").unwrap_or(4);
            let n_lines = text(0).map_or(1, |text| 1 + text.matches('\n').count());
            meter::room(n_lines.saturating_mul(width).saturating_add(n_bytes).saturating_mul(3))
        }
        "batch" | "slice" => match count(1, "count").is_some_and(|count| count > COUNT_MAX) {
            true => Err(too_large(name)),
            false => meter::work(COUNT_MAX * ITEM_BYTES),
        },
        "format" => format_room(text(0).unwrap_or_default(), n_bytes),
        "escape" | "e" => meter::room(n_bytes.saturating_mul(8)),
        _ => meter::room(n_bytes.saturating_mul(4)),
    }
}

/// Holds what a filter or a function made.
fn after(name: &str, value: Value) -> Result<Value, Error> {
    match PASSING.contains(&name) {
        true => Ok(value),
        false => meter::keep(value),
    }
}

fn replace_room(text: &str, old: &str, new: &str) -> Result<(), Error> {
    let n = if old.is_empty() { text.chars().count() + 1 } else { text.matches(old).count() };
    let n_bytes = n.saturating_mul(new.len()).saturating_add(text.len());
    meter::room(n_bytes.saturating_mul(3))
}

fn split_room(text: &str, separator: Option<&str>) -> Result<(), Error> {
    let n = match separator {
        Some("") => text.len(),
        Some(separator) => text.matches(separator).count(),
        None => text.split_whitespace().count(),
    };
    meter::room(2 * text.len() + (n + 1) * (2 * ITEM_BYTES + STEP))
}

/// Asks for what a format may become: each of its fields as wide as it says, with all of the values.
fn format_room(format: &str, n_bytes: usize) -> Result<(), Error> {
    let n_fields = format.matches(['%', '{', '*']).count();
    let mut n_columns = 0usize;
    for number in format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty()) {
        let number = number.trim_start_matches('0');
        match number.parse::<usize>() {
            Ok(columns) if columns <= COUNT_MAX => n_columns += columns,
            Err(_) if number.is_empty() => {}
            _ => return Err(too_large("format")),
        }
    }
    let n_bytes = n_fields.saturating_mul(n_bytes + STEP).saturating_add(n_columns.saturating_mul(4));
    meter::room(n_bytes.saturating_mul(3))?;
    meter::work(n_bytes)
}

fn string(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.clone()),
        _ => meter::text(python::to_str(value)?.into_owned()),
    }
}

fn join(value: &Value, joiner: Option<&Value>) -> Result<Value, Error> {
    let joiner = joiner.map_or(Ok(std::borrow::Cow::Borrowed("")), python::to_str)?;
    let items = value.try_iter().map_err(|error| {
        Error::new(ErrorKind::InvalidOperation, format!("cannot join value of type {}", value.kind()))
            .with_source(error)
    })?;
    let mut out = String::new();
    for (i, item) in items.enumerate() {
        let item = python::to_str(&item)?;
        let n_bytes = item.len() + if i > 0 { joiner.len() } else { 0 };
        meter::work(ITEM_BYTES + n_bytes)?;
        if out.len() + n_bytes > out.capacity() {
            meter::room(3 * (out.len() + n_bytes))?;
        }
        out.push_str(if i > 0 { &joiner } else { "" });
        out.push_str(&item);
    }
    meter::text(out)
}

/// Calls a method as Python's texts, dicts and lists have it.
pub(super) fn method(state: &State, value: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    meter::work(STEP)?;
    let mut n_bytes = value.as_str().map_or(0, str::len);
    for argument in arguments {
        n_bytes += meter::unfolded(argument)?;
    }
    let call = || minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments);
    let Some(text) = value.as_str() else {
        return match method {
            "get" => {
                meter::work(n_bytes)?;
                call()
            }
            "count" => {
                meter::unfolded(value)?;
                call()
            }
            _ => meter::keep(call()?),
        };
    };
    meter::work(work_per_byte(method).saturating_mul(n_bytes))?;
    let argument = |i: usize| arguments.get(i).and_then(Value::as_str);
    match method {
        "join" if arguments.len() == 1 => return join(&arguments[0], Some(value)),
        // Between all characters, and before and behind them.
        "count" if argument(0) == Some("") => return Ok(Value::from(text.chars().count() + 1)),
        "replace" => replace_room(text, argument(0).unwrap_or_default(), argument(1).unwrap_or_default())?,
        "split" => split_room(text, argument(0))?,
        "splitlines" => split_room(text, Some("\n"))?,
        "format" => format_room(text, n_bytes)?,
        _ => meter::room(4 * n_bytes)?,
    }
    meter::keep(call()?)
}
