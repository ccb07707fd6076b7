//! Patterns from node to node: a file that its sender has signed.
//!
//! `RUVBANK1`, the space of the embeddings, their width, a count and the patterns, the sender's public key, and an Ed25519
//! signature (RFC 8032) of everything before it. Nothing behind the key is looked at before the signature has been
//! checked, and no file is that no trusted key has signed.

use std::collections::HashSet;

use super::{Pattern, ReasoningBank, Select, check_dim, sorted_ids};
use crate::codec::{Reader, Writer};
use crate::error::{SonaError, SonaErrorKind, invalid, limit};

const MAGIC: &[u8; 8] = b"RUVBANK1";
const KEY_BYTES: usize = 32;
const SIGNATURE_BYTES: usize = 64;

/// A node's secret to sign with.
pub struct SigningKey(ed25519_compact::KeyPair);

/// What others know a node by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicKey([u8; KEY_BYTES]);

impl SigningKey {
    /// A new key of random bytes.
    ///
    /// # Errors
    /// If the system gives none.
    pub fn generate() -> Result<SigningKey, SonaError> {
        Ok(SigningKey::from_seed(crate::store::random()?))
    }

    /// The key of 32 secret bytes.
    pub fn from_seed(seed: [u8; 32]) -> SigningKey {
        SigningKey(ed25519_compact::KeyPair::from_seed(ed25519_compact::Seed::new(seed)))
    }

    /// The secret bytes, to be kept.
    pub fn seed(&self) -> [u8; 32] {
        *self.0.sk.seed()
    }

    /// What others need to trust it.
    pub fn public(&self) -> PublicKey {
        PublicKey(*self.0.pk)
    }
}

impl PublicKey {
    /// The key of 32 bytes.
    pub fn new(bytes: [u8; 32]) -> PublicKey {
        PublicKey(bytes)
    }

    /// The bytes.
    pub fn bytes(&self) -> [u8; 32] {
        self.0
    }
}

/// Whose files are taken, and how large they may be.
#[derive(Clone, Copy, Debug)]
pub struct Trust<'a> {
    /// Keys of nodes that are trusted.
    pub keys: &'a [PublicKey],
    /// Bytes of a file, at most.
    pub file_bytes_max: usize,
    /// Patterns of a file, at most.
    pub n_patterns_max: usize,
}

impl<'a> Trust<'a> {
    /// These keys, files of up to 256 MiB and 100,000 patterns.
    pub fn new(keys: &'a [PublicKey]) -> Trust<'a> {
        Trust { keys, file_bytes_max: 256 << 20, n_patterns_max: 100_000 }
    }
}

/// What an import brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Patterns that are new here.
    pub n_added: usize,
    /// Patterns that say what one here says already; they were left.
    pub n_known: usize,
    /// Who signed the file.
    pub signed_by: PublicKey,
}

impl ReasoningBank {
    /// Returns the patterns that `select` means as a signed file, in the order of their ids.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn export(&self, select: &Select, key: &SigningKey) -> Result<Vec<u8>, SonaError> {
        let ids: Vec<u64> = {
            let state = self.read();
            sorted_ids(&state.facts).into_iter().filter(|id| select.takes(&state.facts[id])).collect()
        };
        let mut patterns = vec![];
        for id in ids {
            patterns.extend(self.get(id)?);
        }
        let mut to = Writer::new();
        to.raw(MAGIC).text(&self.config.space).count(self.config.dim).count(patterns.len());
        for pattern in &patterns {
            to.bytes(&pattern.to_bytes());
        }
        to.raw(&key.public().0);
        let mut file = to.take();
        let signature = key.0.sk.sign(&file, None);
        file.extend_from_slice(&*signature);
        Ok(file)
    }

    /// Takes over the patterns of a file that a trusted node has signed, all or none.
    ///
    /// # Errors
    /// With kind `Limit` if the file is too large, `Key` if nobody trusted has signed it or it was changed since, `Shape`
    /// if its embeddings are not comparable with the bank's, and `Invalid` if it is no such file.
    pub fn import(&self, file: &[u8], trust: &Trust<'_>) -> Result<Imported, SonaError> {
        if file.len() > trust.file_bytes_max {
            let message = format!("a file of {} bytes of patterns; at most {}", file.len(), trust.file_bytes_max);
            return Err(limit(message));
        }
        let (body, signed_by) = verified(file, trust.keys)?;
        let mut from = Reader::new(body, "patterns");
        from.raw(MAGIC.len())?;
        let (space, dim, n) = (from.text()?, from.u32()? as usize, from.count(4)?);
        let config = &self.config;
        if (space.as_str(), dim) != (config.space.as_str(), config.dim) {
            let theirs: String = space.chars().take(80).flat_map(char::escape_debug).collect();
            let (ours, width) = (&config.space, config.dim);
            let message =
                format!("its embeddings are of {theirs}, {dim} wide; this bank's are of {ours}, {width} wide");
            return Err(SonaError::new(SonaErrorKind::Shape, message));
        }
        if n > trust.n_patterns_max {
            return Err(limit(format!("a file of {n} patterns; at most {}", trust.n_patterns_max)));
        }
        let _writing = self.writing();
        let mut known: HashSet<[u8; 16]> = self.read().facts.values().map(|facts| facts.content).collect();
        let mut added = vec![];
        for _ in 0..n {
            let pattern = Pattern::from_bytes(from.bytes()?)?;
            check_dim(config, &pattern)?;
            if known.insert(pattern.content_digest()) {
                added.push(pattern);
            }
        }
        from.end()?;
        if added.len() > config.n_patterns_max {
            return Err(limit(format!("{} new patterns for a bank of {}", added.len(), config.n_patterns_max)));
        }
        self.replace(&[], &added)?;
        Ok(Imported { n_added: added.len(), n_known: n - added.len(), signed_by })
    }
}

/// Returns what was signed, without the key, and the key.
fn verified<'a>(file: &'a [u8], trusted: &[PublicKey]) -> Result<(&'a [u8], PublicKey), SonaError> {
    let refused = |why: &str| SonaError::new(SonaErrorKind::Key, why);
    let parts = file.split_last_chunk::<SIGNATURE_BYTES>().filter(|_| file.starts_with(MAGIC));
    let (signed, signature) = parts.ok_or_else(|| invalid("this is no file of patterns"))?;
    let (body, key) = signed.split_last_chunk::<KEY_BYTES>().ok_or_else(|| invalid("this is no file of patterns"))?;
    let key = PublicKey(*key);
    if !trusted.contains(&key) {
        let name: String = key.0.iter().map(|byte| format!("{byte:02x}")).collect();
        return Err(refused(&format!("the key {name} that signed the file is not trusted here")));
    }
    let signature = ed25519_compact::Signature::new(*signature);
    ed25519_compact::PublicKey::new(key.0)
        .verify(signed, &signature)
        .map_err(|_| refused("the signature does not fit the file: it was changed, or not signed with this key"))?;
    Ok((body, key))
}
