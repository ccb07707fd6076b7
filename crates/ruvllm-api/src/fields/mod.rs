//! What requests may say: a table of fields for every endpoint, and the check of a request against it.
//!
//! A field that is not in the table is refused, and so is a value that the table does not allow: nothing is read over.
//! `/openapi.json` and `/v1/capabilities` are written from the same tables.

mod check;
mod query;
pub mod schema;
#[cfg(test)]
mod tests;
use serde_json::{Map, Value};

pub use check::Unsupported;
pub use query::unescaped;

/// Kind of a field's value.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// A whole number between two others.
    Int(i64, i64),
    /// A number between two others.
    Number(f64, f64),
    /// Any text.
    Text,
    /// One of these texts.
    Word(&'static [&'static str]),
    /// Only this value, written as JSON: what it asks for is what happens anyway. The second text says why no other.
    Only(&'static str, &'static str),
    /// A list of so many, at least and at most.
    List(&'static Kind, usize, usize),
    /// An object of these fields.
    Object(&'static [Field]),
    /// An object of any keys.
    Map(&'static Kind),
    /// An object of the fields that its `type` names; the first of these where it names none.
    Tagged(&'static [(&'static str, &'static [Field])]),
    /// As [`Kind::Tagged`], but an object of another `type` is left out, and named in the answer's header.
    Known(&'static [(&'static str, &'static [Field])]),
    /// The first of these that has the value's JSON type.
    Either(&'static [Kind]),
    /// Any JSON.
    Any,
}

/// A field of a request.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name of the field.
    pub name: &'static str,
    /// Values that it may have.
    pub kind: Kind,
    /// Whether it must be there.
    pub is_required: bool,
    /// Summary in a line.
    pub doc: &'static str,
    /// Names that other servers have for it.
    pub also: &'static [&'static str],
    /// Names that it had here before and answers to for one more release; one that is used is named in the answer's header.
    pub old: &'static [&'static str],
    /// Whether it changes anything. One that does not is named in the answer's header.
    pub has_effect: bool,
}

impl Field {
    /// The field answers to these names as well.
    pub const fn also(self, names: &'static [&'static str]) -> Field {
        Field { also: names, ..self }
    }

    /// The field had these names before and answers to them for one more release.
    pub const fn renamed(self, old: &'static [&'static str]) -> Field {
        Field { old, ..self }
    }

    /// Returns every other name that it answers to.
    pub fn other_names(&self) -> impl Iterator<Item = &'static str> {
        self.also.iter().chain(self.old).copied()
    }
}

/// A field that may be left out; null is the same as leaving it out.
pub const fn optional(name: &'static str, kind: Kind, doc: &'static str) -> Field {
    Field { name, kind, is_required: false, doc, also: &[], old: &[], has_effect: true }
}

/// A field that clients send and that changes nothing: it asks for what happens anyway, or about what an answer of this
/// server does not have.
pub const fn unheeded(name: &'static str, kind: Kind, doc: &'static str) -> Field {
    Field { has_effect: false, ..optional(name, kind, doc) }
}

/// Joins two tables of `N` entries together: fields for an object of both, or kinds of objects.
pub const fn joined<T: Copy, const N: usize>(first: &[T], second: &[T]) -> [T; N] {
    assert!(first.len() + second.len() == N, "N is the number of both");
    let mut all = [first[0]; N];
    let mut i = 0;
    while i < N {
        all[i] = if i < first.len() { first[i] } else { second[i - first.len()] };
        i += 1;
    }
    all
}

/// A field that must be there.
pub const fn required(name: &'static str, kind: Kind, doc: &'static str) -> Field {
    Field { is_required: true, ..optional(name, kind, doc) }
}

/// A request that was checked against its table: nothing is in it that the table does not have.
#[derive(Clone, Debug, Default)]
pub struct ValidBody {
    fields: Map<String, Value>,
    /// Fields that were given and change nothing, by their paths.
    pub unheeded: Vec<String>,
    /// Old names that were used, by their paths, each with the new one.
    pub renamed: Vec<String>,
}

impl From<Map<String, Value>> for ValidBody {
    fn from(fields: Map<String, Value>) -> ValidBody {
        ValidBody { fields, ..ValidBody::default() }
    }
}

impl ValidBody {
    /// Returns a field's value; null counts as none.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    /// Sets a field to what the request says elsewhere, or in other words.
    pub fn set(&mut self, name: &str, value: Value) {
        self.fields.insert(name.to_owned(), value);
    }

    /// Takes a field out.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.fields.remove(name).filter(|value| !value.is_null())
    }

    /// Returns a text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_str()
    }

    /// Returns whether a flag is there and true.
    pub fn is_set(&self, name: &str) -> bool {
        self.flag(name, false)
    }

    /// Returns a flag that is `default` where the request does not say.
    pub fn flag(&self, name: &str, default: bool) -> bool {
        self.get(name).and_then(Value::as_bool).unwrap_or(default)
    }

    /// Returns a number.
    pub fn number(&self, name: &str) -> Option<f32> {
        Some(self.get(name)?.as_f64()? as f32)
    }

    /// Returns a whole number.
    pub fn int(&self, name: &str) -> Option<i64> {
        as_int(self.get(name)?)
    }

    /// Returns a whole number that is not negative.
    pub fn count(&self, name: &str) -> Option<usize> {
        usize::try_from(self.int(name)?).ok()
    }

    /// Returns a list.
    pub fn list(&self, name: &str) -> Option<&Vec<Value>> {
        self.get(name)?.as_array()
    }

    /// Returns a field that is one text or several.
    pub fn texts(&self, name: &str) -> Vec<String> {
        match self.get(name) {
            Some(Value::String(text)) => vec![text.clone()],
            Some(Value::Array(texts)) => texts.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        }
    }
}

/// Returns a whole number, also one that is written as 3.0.
fn as_int(value: &Value) -> Option<i64> {
    let whole = |x: f64| (x.fract() == 0.0 && x.abs() < 9e15).then_some(x as i64);
    value.as_i64().or_else(|| value.as_f64().and_then(whole))
}
