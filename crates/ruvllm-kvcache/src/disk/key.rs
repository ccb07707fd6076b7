//! Names of blocks: a hash over everything that a block's contents depend on.

use std::fmt;

use sha2::{Digest, Sha256};

use super::BLOCK_TOKENS;
use crate::key::Namespace;

/// The name of a block: a hash of the store's identity, the namespace and every token up to the block's last.
///
/// A key names one prefix. It is SHA-256 cut to 128 bits, so that nobody can make two prefixes with one name.
///
/// ```
/// use ruvllm_kvcache::{NamespaceBuilder, disk::BlockKey};
///
/// let root = BlockKey::root(&[7; 32], NamespaceBuilder::new("model").finish());
/// let (first, other) = (root.child(&[1, 2, 3]), root.child(&[1, 2, 4]));
/// assert_ne!(first.child(&[5]), other.child(&[5]));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockKey(pub(super) [u8; 16]);

impl BlockKey {
    /// Returns the name of the empty prefix.
    pub fn root(identity: &[u8; 32], namespace: Namespace) -> BlockKey {
        BlockKey::cut(Sha256::new().chain_update(b"root").chain_update(identity).chain_update(namespace.to_bytes()))
    }

    /// Returns the name of the block that holds `tokens` after the prefix `self`.
    ///
    /// # Panics
    /// `tokens` are none, or more than a block holds.
    pub fn child(&self, tokens: &[u32]) -> BlockKey {
        assert!((1..=BLOCK_TOKENS).contains(&tokens.len()), "a block holds 1 to 16 tokens, not {}", tokens.len());
        let mut bytes = [0; 20 + 4 * BLOCK_TOKENS];
        bytes[..4].copy_from_slice(b"node");
        bytes[4..20].copy_from_slice(&self.0);
        for (bytes, token) in bytes[20..].chunks_exact_mut(4).zip(tokens) {
            bytes.copy_from_slice(&token.to_le_bytes());
        }
        // The length of what is hashed tells how many tokens there are.
        BlockKey::cut(Sha256::new().chain_update(&bytes[..20 + 4 * tokens.len()]))
    }

    fn cut(hash: Sha256) -> BlockKey {
        let hash = hash.finalize();
        BlockKey(*hash.first_chunk().expect("a SHA-256 has 32 bytes"))
    }
}

impl fmt::Debug for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}
