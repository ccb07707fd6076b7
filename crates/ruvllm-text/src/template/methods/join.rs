//! Texts of many.

use minijinja::Error;
use minijinja::value::Value;

use crate::template::meter::{self, ITEM_BYTES};
use crate::template::sequence::{invalid, type_name, walk};

pub(super) fn joined(items: &Value, separator: &str) -> Result<String, Error> {
    let mut out = String::new();
    for (i, item) in walk(items)?.iter().enumerate() {
        let item = item
            .as_str()
            .ok_or_else(|| invalid(format!("sequence item {i}: expected str instance, {} found", type_name(item))))?;
        push_joined(&mut out, if i > 0 { separator } else { "" }, item)?;
    }
    Ok(out)
}

/// Adds a separator and an item to a text that grows.
pub(in crate::template) fn push_joined(out: &mut String, separator: &str, item: &str) -> Result<(), Error> {
    let n_bytes = separator.len() + item.len();
    meter::work(ITEM_BYTES + n_bytes)?;
    if out.len() + n_bytes > out.capacity() {
        meter::room(3 * (out.len() + n_bytes))?;
    }
    out.push_str(separator);
    out.push_str(item);
    Ok(())
}
