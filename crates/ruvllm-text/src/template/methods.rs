//! Methods as Python's texts, lists, tuples and dicts have them.

mod case;
mod fill;
mod find;
mod join;
mod split;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, State};

use super::arguments::{bind, needed, number, text};
use super::compare::{equal, lookup};
use super::filters::{self, like, unknown};
use super::meter::{self, STEP};
use super::sequence::{Kind, Sequence, invalid, is_list, type_name};
use super::{checks_of_texts, format};

pub(super) use find::replaced;
pub(super) use join::push_joined;
pub(super) use split::lines;

const TEXT: [&str; 47] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
/// Methods that change their list or dict are none: templates may not.
const LIST: [&str; 3] = ["copy", "count", "index"];
const TUPLE: [&str; 2] = ["count", "index"];
const DICT: [&str; 6] = ["copy", "fromkeys", "get", "items", "keys", "values"];
const INT: [&str; 9] = [
    "as_integer_ratio",
    "bit_count",
    "bit_length",
    "conjugate",
    "denominator",
    "imag",
    "numerator",
    "real",
    "to_bytes",
];
const FLOAT: [&str; 6] = ["as_integer_ratio", "conjugate", "hex", "imag", "is_integer", "real"];

/// Returns the methods that a value has.
pub(super) fn names(value: &Value) -> &'static [&'static str] {
    match type_name(value) {
        "str" => &TEXT,
        "list" => &LIST,
        "tuple" | "range" => &TUPLE,
        "dict" if value.as_object().is_some_and(|object| object.type_name().ends_with("Namespace")) => &[],
        "dict" => &DICT,
        "int" | "bool" => &INT,
        "float" => &FLOAT,
        _ => &[],
    }
}

/// Returns whether any type has a method of this name.
pub(super) fn is_known(name: &str) -> bool {
    let all: [&[&str]; 6] = [&TEXT, &LIST, &TUPLE, &DICT, &INT, &FLOAT];
    all.iter().any(|names| names.contains(&name))
}

/// Calls a method.
///
/// # Errors
/// The value has none of this name, or the arguments are wrong.
pub(super) fn call(_: &State, value: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    meter::work(STEP)?;
    if !names(value).contains(&method) {
        return Err(unknown(&format!("the method '{}' of {}", super::one_line(method), type_name(value))));
    }
    match value.kind() {
        ValueKind::String => of_text(method, value, arguments),
        ValueKind::Map => of_dict(method, value, arguments),
        ValueKind::Seq | ValueKind::Iterable => of_list(method, value, arguments),
        _ if method == "is_integer" && arguments.is_empty() => {
            Ok(Value::from(f64::try_from(value.clone()).is_ok_and(|x| x.is_finite() && x.fract() == 0.0)))
        }
        _ => Err(unknown(&format!("the method '{method}' of numbers"))),
    }
}

fn of_dict(method: &str, dict: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let keys = || meter::items(dict);
    match method {
        "get" => {
            let [key, default] = bind("get", ["key", "default"], arguments)?;
            let key = needed("get", key)?;
            meter::work(meter::unfolded(&key)?)?;
            Ok(lookup(dict, &key)?.unwrap_or_else(|| default.unwrap_or_else(|| Value::from(()))))
        }
        "fromkeys" => Err(unknown("the method 'fromkeys'")),
        _ if !arguments.is_empty() => Err(invalid(format!("{method} takes no arguments"))),
        "copy" => meter::dict(
            keys()?.into_iter().map(|key| Ok((key.clone(), dict.get_item(&key)?))).collect::<Result<_, Error>>()?,
        ),
        "keys" => Sequence::value(Kind::Keys, keys()?, 0),
        "values" => {
            let values = keys()?.iter().map(|key| dict.get_item(key)).collect::<Result<_, _>>()?;
            Sequence::value(Kind::Values, values, 0)
        }
        _ => Sequence::value(Kind::Items, filters::pairs(dict)?, 0),
    }
}

fn of_list(method: &str, list: &Value, arguments: &[Value]) -> Result<Value, Error> {
    if method == "copy" && is_list(list) {
        let [] = bind("copy", [], arguments)?;
        return meter::list(meter::items(list)?, 0);
    }
    let [value, start, stop] = bind(method, ["value", "start", "stop"], arguments)?;
    let value = needed(method, value)?;
    meter::unfolded(list)?;
    let items = meter::items(list)?;
    if method == "count" {
        meter::work(items.len() * meter::unfolded(&value)?)?;
        return Ok(Value::from(items.iter().filter(|item| equal(item, &value)).count()));
    }
    let (start, end) = find::between(items.len(), number(method, start.as_ref())?, number(method, stop.as_ref())?);
    let found = items.get(start..end).unwrap_or_default().iter().position(|item| equal(item, &value));
    found.map(|at| Value::from(start + at)).ok_or_else(|| invalid("the value is not in list"))
}

/// Calls a method of a text.
///
/// # Errors
/// The arguments are wrong, or the method is not supported.
pub(super) fn of_text(method: &str, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let source = value.as_str().unwrap_or_default();
    let mut n_bytes = source.len();
    for argument in arguments {
        n_bytes += meter::unfolded(argument)?;
    }
    let factor =
        if ["title", "capitalize", "upper", "lower", "swapcase", "casefold"].contains(&method) { 48 } else { 16 };
    meter::work(STEP + factor * n_bytes)?;
    meter::room(4 * n_bytes)?;
    if ["replace", "join", "format", "center", "ljust", "rjust"].contains(&method) {
        filters::unescaped(method, value, arguments)?;
    }
    if let Some(check) = checks_of_texts::of(method) {
        let [] = bind(method, [], arguments)?;
        return check(source).map(Value::from);
    }
    match method {
        "upper" | "lower" | "capitalize" | "title" | "swapcase" | "casefold" => {
            let [] = bind(method, [], arguments)?;
            like(value, case::recased(method, source)?)
        }
        "strip" | "lstrip" | "rstrip" => fill::strip(method, value, arguments),
        "removeprefix" | "removesuffix" => {
            let [part] = bind(method, ["part"], arguments)?;
            let part = needed(method, part)?;
            let part = text(method, Some(&part))?.unwrap_or_default();
            let rest = if method == "removeprefix" { source.strip_prefix(part) } else { source.strip_suffix(part) };
            like(value, rest.unwrap_or(source).to_owned())
        }
        "center" | "ljust" | "rjust" | "zfill" => fill::padded(method, value, arguments),
        "expandtabs" => fill::expanded(value, arguments),
        "replace" => {
            let [old, new, n] = bind("replace", ["old", "new", "count"], arguments)?;
            let (old, new) = (needed(method, old)?, needed(method, new)?);
            let (old, new) = (text(method, Some(&old))?, text(method, Some(&new))?);
            let n = number(method, n.as_ref())?.unwrap_or(-1);
            like(value, replaced(source, old.unwrap_or_default(), new.unwrap_or_default(), n)?)
        }
        "split" | "rsplit" => split::split(method, value, arguments),
        "splitlines" => {
            let [keeps] = bind(method, ["keepends"], arguments)?;
            split::list_like(value, lines(source, keeps.is_some_and(|keeps| keeps.is_true()))?.into_iter())
        }
        "partition" | "rpartition" => split::partition(method, value, arguments),
        "find" | "rfind" | "index" | "rindex" | "count" => find::found(method, source, arguments),
        "startswith" | "endswith" => find::affixed(method, source, arguments),
        "join" => {
            let [items] = bind("join", ["iterable"], arguments)?;
            like(value, join::joined(&needed("join", items)?, source)?)
        }
        "format" => like(value, format::format(source, arguments)?),
        _ => Err(unknown(&format!("the method '{}' of texts", super::one_line(method)))),
    }
}
