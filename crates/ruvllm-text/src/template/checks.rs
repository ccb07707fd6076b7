//! Tests (`x is …`) as Jinja has them.

use minijinja::value::{Rest, Value, ValueKind};
use minijinja::{Environment, Error, State};

use super::arguments::{bind, needed};
use super::compare::{Number, comparable, contains, equal, order};
use super::meter::{self, STEP};
use super::operators::{arithmetic, name};
use super::python;
use super::sequence::invalid;

type Check = fn(&State, &[Value]) -> Result<bool, Error>;

const CHECKS: &[(&str, Check)] = &[
    ("defined", |_, values| alone(values).map(|value| !value.is_undefined())),
    ("undefined", |_, values| alone(values).map(Value::is_undefined)),
    ("none", |_, values| alone(values).map(Value::is_none)),
    ("boolean", |_, values| alone(values).map(|value| value.kind() == ValueKind::Bool)),
    ("true", |_, values| alone(values).map(|value| value.kind() == ValueKind::Bool && value.is_true())),
    ("false", |_, values| alone(values).map(|value| value.kind() == ValueKind::Bool && !value.is_true())),
    ("integer", |_, values| alone(values).map(Value::is_integer)),
    ("float", |_, values| alone(values).map(|value| value.kind() == ValueKind::Number && !value.is_integer())),
    ("number", |_, values| alone(values).map(|value| Number::of(value).is_some())),
    ("string", |_, values| alone(values).map(|value| value.kind() == ValueKind::String)),
    ("mapping", |_, values| alone(values).map(|value| value.kind() == ValueKind::Map && !is_namespace(value))),
    ("sequence", |_, values| alone(values).map(is_sequence)),
    ("iterable", |_, values| alone(values).map(is_iterable)),
    ("callable", |_, values| alone(values).map(is_callable)),
    ("escaped", |_, values| alone(values).map(Value::is_safe)),
    ("safe", |_, values| alone(values).map(Value::is_safe)),
    ("lower", |_, values| cased(values, false)),
    ("upper", |_, values| cased(values, true)),
    ("odd", |_, values| remainder(alone(values)?, &Value::from(2), 1)),
    ("even", |_, values| remainder(alone(values)?, &Value::from(2), 0)),
    ("divisibleby", |_, values| remainder(&values[0], &other("divisibleby", "num", values)?, 0)),
    ("sameas", |_, values| same(&values[0], &other("sameas", "other", values)?)),
    ("in", |_, values| contains(&other("in", "seq", values)?, &values[0])),
    ("filter", |state, values| Ok(minijinja::tests::is_filter(state, named(values)?))),
    ("test", |state, values| Ok(minijinja::tests::is_test(state, named(values)?))),
];

const COMPARISONS: [(&str, &[&str]); 6] = [
    (name::EQ, &["==", "eq", "equalto"]),
    (name::NE, &["!=", "ne"]),
    (name::LT, &["<", "lt", "lessthan"]),
    (name::LE, &["<=", "le"]),
    (name::GT, &[">", "gt", "greaterthan"]),
    (name::GE, &[">=", "ge"]),
];

/// Adds them all to an environment that has none.
pub(super) fn add_to(environment: &mut Environment<'_>) {
    for (name, check) in CHECKS {
        add(environment, name, *check);
    }
    for (operator, names) in COMPARISONS {
        for name in names {
            environment.add_test(*name, move |values: Rest<Value>| {
                begin(&values)?;
                let [other] = bind(name, ["other"], &values[1..])?;
                compared(operator, &values[0], &needed(name, other)?)
            });
        }
    }
}

fn add(environment: &mut Environment<'_>, name: &'static str, check: Check) {
    environment.add_test(name, move |state: &State, values: Rest<Value>| {
        begin(&values)?;
        check(state, &values)
    });
}

fn begin(values: &[Value]) -> Result<(), Error> {
    meter::work(STEP)?;
    values.iter().skip(1).try_for_each(|value| meter::work(meter::unfolded(value)?))?;
    if values.is_empty() { Err(invalid("a test needs a value")) } else { Ok(()) }
}

fn alone(values: &[Value]) -> Result<&Value, Error> {
    match values {
        [value] => Ok(value),
        _ => Err(invalid("this test takes no arguments")),
    }
}

fn other(what: &str, argument: &str, values: &[Value]) -> Result<Value, Error> {
    let [other] = bind(what, [argument], &values[1..])?;
    needed(what, other)
}

fn named(values: &[Value]) -> Result<&str, Error> {
    // Names of operators are ours, not the template's.
    let name = alone(values)?.as_str().unwrap_or_default();
    Ok(if name.starts_with(|c: char| c.is_ascii_alphabetic()) && !name.contains('(') { name } else { "" })
}

fn compared(operator: &str, a: &Value, b: &Value) -> Result<bool, Error> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    comparable(a, b)?;
    let is_any =
        |wanted: &[std::cmp::Ordering]| Ok(order(operator, a, b)?.is_some_and(|order| wanted.contains(&order)));
    match operator {
        name::EQ => Ok(equal(a, b)),
        name::NE => Ok(!equal(a, b)),
        name::LT => is_any(&[Less]),
        name::LE => is_any(&[Less, Equal]),
        name::GT => is_any(&[Greater]),
        _ => is_any(&[Greater, Equal]),
    }
}

fn remainder(value: &Value, divisor: &Value, wanted: i64) -> Result<bool, Error> {
    match value.as_str() {
        Some(_) => Err(invalid("this test takes a number")),
        None => Ok(equal(&arithmetic(name::REM, value, divisor)?, &Value::from(wanted))),
    }
}

/// Identity, as far as it means something: texts and numbers are the same where they are equal.
fn same(a: &Value, b: &Value) -> Result<bool, Error> {
    comparable(a, b)?;
    let is_small = |value: &Value| value.as_object().is_none();
    Ok(match (is_small(a), is_small(b)) {
        (true, true) => a.kind() == b.kind() && a.is_integer() == b.is_integer() && equal(a, b),
        (false, false) => minijinja::tests::is_sameas(a, b),
        _ => false,
    })
}

fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("Namespace"))
}

/// Python's idea of a sequence: anything with a length and items.
fn is_sequence(value: &Value) -> bool {
    use super::sequence::{Kind, Sequence};
    match Sequence::of(value).map(|sequence| sequence.kind) {
        Some(kind) => matches!(kind, Kind::Tuple | Kind::Group | Kind::Range(_)),
        None => is_iterable(value),
    }
}

/// Python's idea of what can be walked; unlike in the template engine, null cannot.
fn is_iterable(value: &Value) -> bool {
    let is_walked = matches!(
        value.kind(),
        ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable | ValueKind::Undefined
    );
    is_walked && !is_namespace(value)
}

/// Functions, macros and methods; an undefined value has a method to be called, which fails.
fn is_callable(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Undefined => true,
        ValueKind::Plain => value.as_object().is_some_and(|object| !object.type_name().ends_with("::Cycler")),
        _ => false,
    }
}

fn cased(values: &[Value], is_upper: bool) -> Result<bool, Error> {
    let text = python::to_str(alone(values)?)?;
    meter::work(8 * text.len())?;
    Ok(python::is_cased(&text, is_upper))
}
