//! Saved states: named tables of numbers in the safetensors format, and what they are in its metadata.
//!
//! Bytes are untrusted: their number is bounded, every table is looked up by name and checked for its size and for
//! finite values before it is used.

use std::collections::HashMap;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::error::{RouterError, RouterErrorKind, invalid};

/// The most bytes that are read: a million vectors of a small embedding model.
pub const N_STATE_BYTES_MAX: usize = 2 << 30;

/// The key of the metadata.
const ABOUT: &str = "ruvllm-router";

/// A state being written.
#[derive(Default)]
pub(crate) struct Writer {
    tables: Vec<(String, Vec<usize>, Vec<u8>)>,
}

impl Writer {
    /// Adds a table.
    pub(crate) fn table(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "a table has as many values as its shape says");
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.tables.push((name.into(), shape.to_vec(), bytes));
    }

    /// Returns the bytes, with `about` as metadata.
    pub(crate) fn finish(self, about: &Value) -> Vec<u8> {
        let views = self.tables.iter().map(|(name, shape, bytes)| {
            let view = TensorView::new(Dtype::F32, shape.clone(), bytes);
            (name, view.expect("a table has as many values as its shape says"))
        });
        let about = HashMap::from([(ABOUT.to_owned(), about.to_string())]);
        safetensors::serialize(views, Some(about)).expect("tables in memory have sound names and sizes")
    }
}

/// A state being read.
pub(crate) struct Reader<'a> {
    tensors: SafeTensors<'a>,
    about: Value,
}

impl<'a> Reader<'a> {
    /// Reads the header; the metadata must say that the state is of this `kind`.
    pub(crate) fn new(bytes: &'a [u8], kind: &str) -> Result<Reader<'a>, RouterError> {
        if bytes.len() > N_STATE_BYTES_MAX {
            let message = format!("a saved state of {} bytes; at most {N_STATE_BYTES_MAX} are read", bytes.len());
            return Err(RouterError::new(RouterErrorKind::Limit, message));
        }
        let not_sound = |error| invalid(format!("{} bytes are no saved {kind}", bytes.len())).with_source(error);
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(not_sound)?;
        let about = header.metadata().as_ref().and_then(|metadata| metadata.get(ABOUT));
        let about: Value = about.and_then(|about| serde_json::from_str(about).ok()).unwrap_or_default();
        if about["kind"] != kind || about["version"] != 1 {
            return Err(invalid(format!("these bytes are not a saved {kind} of version 1; train it anew")));
        }
        let tensors = SafeTensors::deserialize(bytes).map_err(not_sound)?;
        Ok(Reader { tensors, about })
    }

    /// Returns the metadata.
    pub(crate) fn about(&self) -> &Value {
        &self.about
    }

    /// Returns a number of the metadata from `low` to `high`.
    pub(crate) fn number(&self, key: &str, low: usize, high: usize) -> Result<usize, RouterError> {
        let number = self.about[key].as_u64().and_then(|n| usize::try_from(n).ok());
        number.filter(|n| (low..=high).contains(n)).ok_or_else(|| {
            invalid(format!("a saved state says {key} = {}; it must be {low} to {high}", self.about[key]))
        })
    }

    /// Returns a list of names of the metadata.
    pub(crate) fn names(&self, key: &str) -> Result<Vec<String>, RouterError> {
        let names = self.about[key].as_array().map(|names| names.iter().map(|name| name.as_str().map(str::to_owned)));
        names.and_then(Iterator::collect).ok_or_else(|| invalid(format!("a saved state has no list of {key}")))
    }

    /// Returns a table of this shape, all values finite.
    pub(crate) fn table(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, RouterError> {
        let view = self.view(name)?;
        if view.dtype() != Dtype::F32 || view.shape() != shape {
            let (dtype, found) = (view.dtype(), view.shape());
            return Err(invalid(format!("the table {name} is {dtype:?} {found:?}; F32 {shape:?} is needed")));
        }
        finite(name, &view)
    }

    /// Returns a table of any number of rows of `width` values, all finite.
    pub(crate) fn rows(&self, name: &str, width: usize) -> Result<Vec<f32>, RouterError> {
        let view = self.view(name)?;
        match view.shape() {
            [_, n] if *n == width && view.dtype() == Dtype::F32 => finite(name, &view),
            shape => {
                let dtype = view.dtype();
                Err(invalid(format!("the table {name} is {dtype:?} {shape:?}; F32 [n, {width}] is needed")))
            }
        }
    }

    fn view(&self, name: &str) -> Result<TensorView<'_>, RouterError> {
        let missing = |error| invalid(format!("a saved state lacks the table {name}")).with_source(error);
        self.tensors.tensor(name).map_err(missing)
    }
}

/// Returns the values of a table, all finite.
fn finite(name: &str, view: &TensorView) -> Result<Vec<f32>, RouterError> {
    let (numbers, _) = view.data().as_chunks::<4>();
    let values: Vec<f32> = numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    match values.iter().position(|x| !x.is_finite()) {
        Some(at) => Err(invalid(format!("value {at} of the table {name} is not finite"))),
        None => Ok(values),
    }
}
