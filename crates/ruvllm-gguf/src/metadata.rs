//! The key-value pairs of a file, in file order, with typed access.

use std::path::{Path, PathBuf};

use crate::cursor::Cursor;
use crate::error::{GgufError, GgufErrorKind};
use crate::index;
use crate::limits;
use crate::strings::StringArray;
use crate::value::{Array, Value};

/// Metadata of a file: keys in the order of the file, each once.
///
/// The typed accessors return `Ok(None)` when the key is absent and an error naming the key, what was expected and
/// what was found when its value is of another type or does not fit.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    /// Positions in `entries`, sorted by key.
    order: Vec<u32>,
    path: Option<PathBuf>,
}

impl PartialEq for Metadata {
    /// Compares keys and values in order, not where they came from.
    fn eq(&self, other: &Metadata) -> bool {
        self.entries == other.entries
    }
}

impl Metadata {
    /// Returns metadata without entries.
    pub fn new() -> Metadata {
        Metadata::default()
    }

    pub(crate) fn read(cursor: &mut Cursor<'_>, n: u64) -> Result<Metadata, GgufError> {
        // The least entry: a key of one byte, a type and a value of one byte.
        let len = cursor.check_fits(n, cursor.len_bytes() + 1 + 4 + 1)?;
        if n > limits::N_METADATA_MAX {
            let message = format!("{n} metadata entries, at most {} are read", limits::N_METADATA_MAX);
            return Err(GgufError::new(GgufErrorKind::Limit, message));
        }
        let mut entries = Vec::with_capacity(len);
        for i in 0..len {
            let at = cursor.pos();
            let key = cursor.str().map_err(|e| e.within(format_args!("metadata entry {i} of {len}")))?;
            check_key(key).map_err(|e| e.within(format_args!("metadata entry {i} of {len} (at byte {at})")))?;
            let value = Value::read(cursor).map_err(|e| e.within(format_args!("metadata key '{}'", shown(key))))?;
            entries.push((key.to_owned(), value));
        }
        let order = index::by_name(len, |i| entries[i].0.as_str()).map_err(|(a, b)| {
            let message = format!("metadata key '{}' occurs twice (entries {a} and {b})", shown(&entries[a].0));
            GgufError::new(GgufErrorKind::Duplicate, message)
        })?;
        Ok(Metadata { entries, order, path: None })
    }

    pub(crate) fn set_path(&mut self, path: &Path) {
        self.path = Some(path.to_owned());
    }

    /// Returns how many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Iterates over keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    fn find(&self, key: &str) -> Result<usize, usize> {
        index::search(&self.order, key, |i| self.entries[i].0.as_str())
    }

    /// Returns whether the key is present.
    pub fn contains(&self, key: &str) -> bool {
        self.find(key).is_ok()
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let place = self.find(key).ok()?;
        Some(&self.entries[self.order[place] as usize].1)
    }

    /// Sets a key: replaces its value in place, or appends it.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        let (key, value) = (key.into(), value.into());
        match self.find(&key) {
            Ok(place) => self.entries[self.order[place] as usize].1 = value,
            Err(place) => {
                self.order.insert(place, self.entries.len() as u32);
                self.entries.push((key, value));
            }
        }
    }

    /// Removes a key and returns its value.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let i = self.order.remove(self.find(key).ok()?);
        self.order.iter_mut().filter(|other| **other > i).for_each(|other| *other -= 1);
        Some(self.entries.remove(i as usize).1)
    }

    fn wrong(&self, key: &str, found: &str, expected: &str) -> GgufError {
        let message = format!("metadata key '{}' is {found}, expected {expected}", shown(key));
        let error = GgufError::new(GgufErrorKind::WrongType, message);
        match &self.path {
            Some(path) => error.at(path),
            None => error,
        }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match convert(value) {
            Some(out) => Ok(Some(out)),
            None => {
                let ty = value.type_name();
                let article = if ty.starts_with(['a', 'f']) { "an" } else { "a" };
                let found = value.as_integer().map_or_else(|| format!("{article} {ty}"), |v| v.to_string());
                Err(self.wrong(key, &found, expected))
            }
        }
    }

    /// Returns an integer of any integer type that fits a `u32`.
    ///
    /// # Errors
    /// If the value is no integer or does not fit.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.typed(key, "an integer from 0 to 4294967295", |value| value.as_integer()?.try_into().ok())
    }

    /// Returns an integer of any integer type that fits an `i32`.
    ///
    /// # Errors
    /// If the value is no integer or does not fit.
    pub fn i32(&self, key: &str) -> Result<Option<i32>, GgufError> {
        self.typed(key, "an integer from -2147483648 to 2147483647", |value| value.as_integer()?.try_into().ok())
    }

    /// Returns an integer of any integer type that fits a `u64`.
    ///
    /// # Errors
    /// If the value is no integer or is negative.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.typed(key, "an integer that is not negative", |value| value.as_integer()?.try_into().ok())
    }

    /// Returns a float (an `f64` is rounded to `f32`).
    ///
    /// # Errors
    /// If the value is no float.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.typed(key, "a float", |value| match *value {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        })
    }

    /// Returns a truth value.
    ///
    /// # Errors
    /// If the value is no bool.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "a bool", |value| if let Value::Bool(v) = *value { Some(v) } else { None })
    }

    /// Returns a text.
    ///
    /// # Errors
    /// If the value is no string.
    pub fn str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.typed(key, "a string", |value| if let Value::String(v) = value { Some(v.as_str()) } else { None })
    }

    /// Returns an array of texts, which shares the file's memory.
    ///
    /// # Errors
    /// If the value is no array of strings (an empty array of any type will do).
    pub fn strings(&self, key: &str) -> Result<Option<StringArray>, GgufError> {
        self.typed(key, "an array of strings", |value| match value {
            Value::Array(Array::String(items)) => Some(items.clone()),
            Value::Array(array) if array.is_empty() => Some(StringArray::default()),
            _ => None,
        })
    }

    /// Returns an array of floats.
    ///
    /// # Errors
    /// If the value is no array of floats (an empty array of any type will do).
    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        self.typed(key, "an array of floats", |value| match value {
            Value::Array(Array::F32(items)) => Some(items.clone()),
            Value::Array(Array::F64(items)) => Some(items.iter().map(|&v| v as f32).collect()),
            Value::Array(array) if array.is_empty() => Some(Vec::new()),
            _ => None,
        })
    }

    /// Returns an array of integers of any type that fit `i32`.
    ///
    /// # Errors
    /// If the value is no array of integers (an empty array of any type will do) or an element does not fit.
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, GgufError> {
        self.integers(key, "an array of integers that fit i32")
    }

    /// Returns an array of integers of any type that fit `u32`.
    ///
    /// # Errors
    /// If the value is no array of integers (an empty array of any type will do) or an element does not fit.
    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>, GgufError> {
        self.integers(key, "an array of integers that fit u32")
    }

    fn integers<T: TryFrom<i128>>(&self, key: &str, expected: &str) -> Result<Option<Vec<T>>, GgufError> {
        self.typed(key, expected, |value| match value {
            Value::Array(array) if array.is_empty() => Some(Vec::new()),
            Value::Array(array) => array.integers()?.map(|v| T::try_from(v).ok()).collect(),
            _ => None,
        })
    }

    /// Returns an array of truth values.
    ///
    /// # Errors
    /// If the value is no array of bools (an empty array of any type will do).
    pub fn bools(&self, key: &str) -> Result<Option<Vec<bool>>, GgufError> {
        self.typed(key, "an array of bools", |value| match value {
            Value::Array(Array::Bool(items)) => Some(items.clone()),
            Value::Array(array) if array.is_empty() => Some(Vec::new()),
            _ => None,
        })
    }

    /// Returns one `u32` for each of `n` layers: a single integer counts for every layer, an array must have `n`
    /// items or more (the rest is left out). Many hyper-parameters, such as `*.attention.head_count_kv`, come in both
    /// shapes.
    ///
    /// # Errors
    /// If the value is neither, does not fit, or the array is shorter than `n`.
    pub fn u32_per_layer(&self, key: &str, n: usize) -> Result<Option<Vec<u32>>, GgufError> {
        if !self.get(key).is_some_and(Value::is_array) {
            return Ok(self.u32(key)?.map(|value| vec![value; n]));
        }
        let Some(mut items) = self.u32s(key)? else { return Ok(None) };
        if items.len() < n {
            return Err(self.wrong(
                key,
                &format!("an array of {}", items.len()),
                &format!("one integer, or {n} of them"),
            ));
        }
        items.truncate(n);
        Ok(Some(items))
    }
}

pub(crate) fn check_key(key: &str) -> Result<(), GgufError> {
    if key.is_empty() {
        return Err(GgufError::invalid("the key is empty"));
    }
    if key.len() > limits::KEY_BYTES_MAX {
        let message = format!("the key has {} bytes, at most {} are read", key.len(), limits::KEY_BYTES_MAX);
        return Err(GgufError::new(GgufErrorKind::Limit, message));
    }
    Ok(())
}

/// A name from a file as it may stand in an error message: control characters escaped, cut after 80 characters.
pub(crate) fn shown(name: &str) -> String {
    let cut = name.chars().take(80).flat_map(char::escape_debug).collect::<String>();
    if name.chars().nth(80).is_some() { cut + "…" } else { cut }
}
