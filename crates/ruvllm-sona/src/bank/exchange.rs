//! Patterns from node to node: a file that its sender has signed.
//!
//! `RUVBANK1`, the space of the embeddings, their width, a count and the patterns, the sender's public key, and an Ed25519
//! signature (RFC 8032) of everything before it. Nothing behind the key is looked at before the signature has been
//! checked, and no file is that no trusted key has signed.

use std::collections::HashSet;

use super::{Pattern, ReasoningBank, Select, check_dim, sorted_ids};
use crate::codec::{Reader, Writer};
use crate::error::{SonaError, SonaErrorKind, limit};
use ruvllm_store::signed::{self, FileKind, PublicKey, SigningKey};

const MAGIC: &[u8; 8] = b"RUVBANK1";

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

/// Result of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Patterns that are new here.
    pub n_added: usize,
    /// Patterns that say what one here says already; they were left.
    pub n_known: usize,
    /// Who signed the file.
    pub signed_by: PublicKey,
}

/// Returns which trusted node has signed a file of patterns, before there is a bank to put it in.
///
/// # Errors
/// As [`ReasoningBank::import`] for a file that is too large, was changed, or is no such file.
pub fn signed_by(file: &[u8], trust: &Trust<'_>) -> Result<PublicKey, SonaError> {
    opened(file, trust).map(|(_, signed_by)| signed_by)
}

fn opened<'a>(file: &'a [u8], trust: &Trust<'_>) -> Result<(&'a [u8], PublicKey), SonaError> {
    if file.len() > trust.file_bytes_max {
        let message = format!("a file of {} bytes of patterns; at most {}", file.len(), trust.file_bytes_max);
        return Err(limit(message));
    }
    Ok(signed::open(file, FileKind { magic: MAGIC, what: "patterns" }, trust.keys)?)
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
            // Items are of this node's log.
            patterns.extend(self.get(id)?.map(|pattern| Pattern { items: Vec::new(), ..pattern }));
        }
        let mut to = Writer::new();
        to.raw(MAGIC).text(&self.config.space).count(self.config.dim).count(patterns.len());
        for pattern in &patterns {
            to.bytes(&pattern.to_bytes());
        }
        Ok(signed::seal(to.take(), key))
    }

    /// Takes over the patterns of a file that a trusted node has signed, all or none.
    ///
    /// # Errors
    /// With kind `Limit` if the file is too large, `Key` if nobody trusted has signed it or it was changed since, `Shape`
    /// if its embeddings are not comparable with the bank's, and `Invalid` if it is no such file.
    pub fn import(&self, file: &[u8], trust: &Trust<'_>) -> Result<Imported, SonaError> {
        let (body, signed_by) = opened(file, trust)?;
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
            let pattern = Pattern { items: Vec::new(), ..Pattern::from_bytes(from.bytes()?)? };
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
