//! Python's sequences that are no lists: tuples, ranges, views of dicts, and generators, which are walked once; and what can be
//! called: methods that are not called yet, `joiner`, `cycler`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::{Enumerator, Object, ObjectRepr, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::{meter, methods};

/// A Python type of sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Tuple,
    /// A tuple of `groupby`, whose parts have names too.
    Group,
    /// A generator or an iterator: true, without a length, and empty once it is walked.
    Lazy,
    Items,
    Keys,
    Values,
    Range(Range),
}

/// The bounds of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: i64,
    pub(super) stop: i64,
    pub(super) step: i64,
}

/// A sequence of this kind.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) kind: Kind,
    pub(super) items: Arc<Vec<Value>>,
    /// Items of a generator that are taken.
    n_taken: AtomicUsize,
}

impl Sequence {
    /// Returns a sequence that is held.
    ///
    /// # Errors
    /// It takes too much memory.
    pub(super) fn value(kind: Kind, items: Vec<Value>, own_bytes: usize) -> Result<Value, Error> {
        meter::hold(meter::STEP / 4)?;
        let items = meter::shared(items, own_bytes)?;
        let value = Value::from_object(Sequence { kind, items, n_taken: AtomicUsize::new(0) });
        meter::unfolded(&value)?;
        Ok(value)
    }

    /// Returns this kind of sequence, if a value is one.
    pub(super) fn of(value: &Value) -> Option<&Sequence> {
        value.downcast_object_ref::<Sequence>()
    }

    /// Returns the items that a walk would find now.
    pub(super) fn rest(&self) -> &[Value] {
        match self.kind {
            Kind::Lazy => self.items.get(self.n_taken.load(Ordering::Relaxed)..).unwrap_or_default(),
            _ => &self.items,
        }
    }

    /// Takes items of a generator; other sequences keep theirs.
    pub(super) fn take(&self, n: usize) {
        let n_taken = self.n_taken.load(Ordering::Relaxed);
        self.n_taken.store(n_taken.saturating_add(n).min(self.items.len()), Ordering::Relaxed);
    }
}

impl Object for Sequence {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        if self.kind == Kind::Lazy { ObjectRepr::Iterable } else { ObjectRepr::Seq }
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match (self.kind, key.as_str()) {
            (Kind::Group, Some("grouper")) => self.items.first().cloned(),
            (Kind::Group, Some("list")) => self.items.get(1).cloned(),
            (_, Some(_)) => None,
            (_, None) => self.rest().get(key.as_usize()?).cloned(),
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.rest().len())
    }

    fn is_true(self: &Arc<Self>) -> bool {
        self.kind == Kind::Lazy || !self.items.is_empty()
    }
}

/// Returns whether a value is a list of Python's.
pub(super) fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) && Sequence::of(value).is_none()
}

/// Returns the items of a tuple.
pub(super) fn tuple_items(value: &Value) -> Option<&[Value]> {
    Sequence::of(value)
        .filter(|sequence| matches!(sequence.kind, Kind::Tuple | Kind::Group))
        .map(|sequence| &sequence.items[..])
}

/// Returns what a walk through a value finds; a generator is empty afterwards.
///
/// # Errors
/// It cannot be walked, or there is too much in it.
pub(super) fn walk(value: &Value) -> Result<Vec<Value>, Error> {
    meter::work(meter::STEP)?;
    match value.kind() {
        ValueKind::Undefined => return Ok(Vec::new()),
        ValueKind::String | ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {}
        _ => return Err(invalid(format!("'{}' object is not iterable", type_name(value)))),
    }
    let items = meter::items(value)?;
    if let Some(sequence) = Sequence::of(value) {
        sequence.take(items.len());
    }
    Ok(items)
}

/// Returns an error of an operation.
pub(super) fn invalid(line: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, line.into())
}

/// Returns the name of a value's type in Python.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::Undefined => "Undefined",
        ValueKind::None => "NoneType",
        ValueKind::Bool => "bool",
        ValueKind::Number if value.is_integer() => "int",
        ValueKind::Number => "float",
        ValueKind::String => "str",
        ValueKind::Map => "dict",
        ValueKind::Seq | ValueKind::Iterable => match Sequence::of(value).map(|sequence| sequence.kind) {
            Some(Kind::Tuple | Kind::Group) => "tuple",
            Some(Kind::Lazy) => "generator",
            Some(Kind::Items) => "dict_items",
            Some(Kind::Keys) => "dict_keys",
            Some(Kind::Values) => "dict_values",
            Some(Kind::Range(_)) => "range",
            None => "list",
        },
        _ => "object",
    }
}

/// A method that is not called yet, such as `x.items` without brackets: true and callable.
#[derive(Debug)]
pub(super) struct Method {
    receiver: Value,
    name: &'static str,
}

impl Method {
    /// Returns the method that a value of this type has under a name.
    pub(super) fn of(receiver: &Value, name: &str) -> Option<Value> {
        let name = methods::names(receiver).iter().find(|known| **known == name)?;
        Some(Value::from_object(Method { receiver: receiver.clone(), name }))
    }
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
        methods::call(state, &self.receiver, self.name, arguments)
    }
}

/// Jinja's `joiner`: nothing the first time, then a text.
#[derive(Debug)]
pub(super) struct Joiner {
    pub(super) separator: Value,
    pub(super) n_calls: AtomicUsize,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
        match (arguments.is_empty(), self.n_calls.fetch_add(1, Ordering::Relaxed)) {
            (false, _) => Err(invalid("a joiner takes no arguments")),
            (true, 0) => Ok(Value::from("")),
            (true, _) => Ok(self.separator.clone()),
        }
    }
}

/// Jinja's `cycler`: its values in turn.
#[derive(Debug)]
pub(super) struct Cycler {
    pub(super) items: Vec<Value>,
    pub(super) at: AtomicUsize,
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("current"))
            .then(|| self.items[self.at.load(Ordering::Relaxed) % self.items.len()].clone())
    }

    fn call_method(self: &Arc<Self>, _: &State<'_, '_>, method: &str, arguments: &[Value]) -> Result<Value, Error> {
        match (method, arguments.is_empty()) {
            ("next", true) => {
                let at = self.at.fetch_add(1, Ordering::Relaxed);
                Ok(self.items[at % self.items.len()].clone())
            }
            ("reset", true) => {
                self.at.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}
