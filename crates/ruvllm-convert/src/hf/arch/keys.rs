//! Keys of a file that are settings of a checkpoint.

use ruvllm_gguf::{Metadata, Value};

use super::Config;
use crate::error::ConvertError;

/// Rule for a key: the settings that may say it, the first of which holds.
pub(crate) struct KeyRule {
    pub(crate) to: &'static str,
    pub(crate) from: &'static [&'static str],
    pub(crate) kind: KeyKind,
}

/// Kind of a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyKind {
    /// A count, if it is there.
    Count,
    /// A count.
    NeedCount,
    /// A number, if it is there.
    Float,
    /// A number.
    NeedFloat,
    /// A flag, if it is there.
    Flag,
}

/// Makes rules of rows `"key" <- Kind ["setting", …];`.
macro_rules! keys {
    ($($to:literal <- $kind:ident [$($from:literal),*];)*) => {
        &[$($crate::hf::arch::KeyRule { to: $to, from: &[$($from),*], kind: $crate::hf::arch::keys::KeyKind::$kind },)*]
    };
}
pub(super) use keys;

/// The keys of an architecture in a file's metadata.
pub(crate) struct Keys<'a> {
    arch: &'static str,
    metadata: &'a mut Metadata,
}

impl<'a> Keys<'a> {
    /// Starts with the metadata of a file.
    pub(crate) fn new(arch: &'static str, metadata: &'a mut Metadata) -> Keys<'a> {
        Keys { arch, metadata }
    }

    /// Sets `{arch}.{key}`.
    pub(crate) fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.metadata.set(format!("{}.{key}", self.arch), value);
    }

    /// Returns whether `{arch}.{key}` is set.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.metadata.contains(&format!("{}.{key}", self.arch))
    }

    /// Sets a count.
    pub(crate) fn count(&mut self, key: &str, n: usize) {
        self.set(key, n as u32);
    }

    /// Sets a number.
    pub(crate) fn float(&mut self, key: &str, x: f64) {
        self.set(key, x as f32);
    }

    /// Sets a key that stands outside of those of the architecture.
    pub(crate) fn set_global(&mut self, key: &str, value: impl Into<Value>) {
        self.metadata.set(key, value);
    }

    /// Sets keys by their rules.
    ///
    /// # Errors
    /// A setting is absent that must be there, or cannot be.
    pub(crate) fn apply(&mut self, rules: &[KeyRule], config: &Config) -> Result<(), ConvertError> {
        for rule in rules {
            match rule.kind {
                KeyKind::Count => {
                    if let Some(n) = config.count_if_any(rule.from)? {
                        self.count(rule.to, n);
                    }
                }
                KeyKind::NeedCount => self.count(rule.to, config.count(rule.from)?),
                KeyKind::Float => {
                    if let Some(x) = config.float_if_any(rule.from)? {
                        self.float(rule.to, x);
                    }
                }
                KeyKind::NeedFloat => self.float(rule.to, config.float(rule.from)?),
                KeyKind::Flag => {
                    if let Some(flag) = config.get(rule.from).and_then(serde_json::Value::as_bool) {
                        self.set(rule.to, flag);
                    }
                }
            }
        }
        Ok(())
    }
}
