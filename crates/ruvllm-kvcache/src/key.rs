//! Namespaces: what two computations must have in common before one may use the other's blocks.

#[cfg(not(feature = "disk"))]
use crate::process_names::NameHash;
#[cfg(feature = "disk")]
use sha2::{Digest, Sha256 as NameHash};
use std::fmt;

/// A 128-bit name for everything beside the tokens that decides what the KV cache holds: model file, formats, RoPE
/// settings, adapter, tenant. Entries of one namespace are never found from another.
///
/// It is half of a SHA-256, so two settings share a namespace only if they are equal. Without the feature `disk` it is a keyed
/// hash of the standard library, and means nothing to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace([u8; 16]);

impl Namespace {
    /// Returns its bytes, for records on disk.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Returns the namespace of these bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Namespace {
        Namespace(bytes)
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Gathers named parts into a [`Namespace`].
///
/// ```
/// use ruvllm_kvcache::NamespaceBuilder;
/// let model = || NamespaceBuilder::new("model").part("file", b"abc").part("kv", b"f16");
/// assert_eq!(model().finish(), model().finish());
/// assert_ne!(model().finish(), model().part("tenant", b"1").finish());
/// ```
#[derive(Clone)]
pub struct NamespaceBuilder(NameHash);

impl NamespaceBuilder {
    /// Begins a namespace of this kind.
    pub fn new(kind: &str) -> NamespaceBuilder {
        NamespaceBuilder(NameHash::new()).part("kind", kind.as_bytes())
    }

    /// Adds a part. Name and value are framed by their lengths, so no two lists of parts run together.
    #[must_use]
    pub fn part(mut self, name: &str, value: &[u8]) -> NamespaceBuilder {
        for field in [name.as_bytes(), value] {
            self.0.update((field.len() as u64).to_le_bytes());
            self.0.update(field);
        }
        self
    }

    /// Returns all 32 bytes of the hash, for files that are told apart by it.
    pub fn identity(&self) -> [u8; 32] {
        *self.0.clone().finalize().first_chunk().expect("a name has 32 bytes")
    }

    /// Returns the namespace.
    pub fn finish(&self) -> Namespace {
        let hash = self.identity();
        Namespace(*hash.first_chunk().expect("32 bytes have a first half"))
    }
}

impl fmt::Debug for NamespaceBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NamespaceBuilder({})", self.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_together() {
        let of = |parts: &[(&str, &str)]| {
            let builder = NamespaceBuilder::new("test");
            parts.iter().fold(builder, |builder, (name, value)| builder.part(name, value.as_bytes())).finish()
        };
        let all = [
            of(&[("a", "bc")]),
            of(&[("ab", "c")]),
            of(&[("a", "b"), ("c", "")]),
            of(&[("a", "b"), ("", "c")]),
            of(&[]),
            NamespaceBuilder::new("other").finish(),
        ];
        assert!(all.iter().enumerate().all(|(i, a)| all[..i].iter().all(|b| a != b)));
        assert_eq!(Namespace::from_bytes(all[0].to_bytes()), all[0]);
        assert_eq!(all[0].to_string().len(), 32);
        // Recorded: files on disk have such names.
        assert_eq!(all[0].to_string(), "31e7456f94d26ea35faa3f9d8aa569e6");
    }
}
