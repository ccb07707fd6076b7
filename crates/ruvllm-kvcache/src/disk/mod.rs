//! A store of blocks and sessions on disk, which survives the end of its process at any point.
//!
//! The store knows no models: a block's contents are bytes with a number that says their format, and an identity that the caller derives from model and
//! settings keeps what belongs to different ones apart. Each identity has a subfolder of its own, so several models
//! can share one cache folder; a changed model or setting finds a store that is empty. One process at a time has the
//! store of an identity open.
//!
//! # How it is written
//! Segment files are only appended to. [`DiskStore::put_block`] copies the bytes into a bounded queue and returns; a
//! thread writes them. Each record carries a checksum of its description and one of its contents. Opening reads the
//! descriptions and rebuilds the index in memory; contents are checked each time they are read. What is not exactly as
//! it was written is dropped and counted ([`DiskStats::n_corrupt`]), never served.
//!
//! A block can be found only by way of the blocks before it, so one whose predecessor is missing is not stored, and is
//! dropped when its predecessor is.
//!
//! # How it stays small
//! When a record would exceed [`StoreOptions::max_bytes`], the oldest segment is given up. Its sessions, and those of its
//! blocks that were wanted since they were written, are appended again first (of blocks at most three quarters of a segment). So
//! segments age, and what is in use does not. What was wanted is not remembered when the store is opened again.
//!
//! ```
//! use ruvllm_kvcache::NamespaceBuilder;
//! use ruvllm_kvcache::disk::{BlockKey, BlockRef, DiskStore, Put, StoreOptions};
//!
//! let folder = tempfile::tempdir()?;
//! let (identity, namespace, tokens) = ([7; 32], NamespaceBuilder::new("model").finish(), [5; 20]);
//! let store = DiskStore::open(folder.path(), StoreOptions::new(identity))?;
//! let block = BlockRef { namespace, parent: BlockKey::root(&identity, namespace), block_idx: 0, format: 1, tokens: &tokens[..16] };
//! assert_eq!(store.put_block(&block, &[b"keys", b"values"]), Put::Queued);
//! store.flush()?;
//!
//! let prefix = store.find_prefix(namespace, &tokens);
//! assert_eq!(prefix.n_tokens, 16);
//! let mut payload = Vec::new();
//! assert_eq!(store.read_block(&prefix.keys[0], &mut payload)?, Some(1));
//! assert_eq!(payload, b"keysvalues");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::error::{DiskFault, KvError};

mod evict;
mod faults;
mod folder;
mod format;
mod index;
mod inspect;
mod key;
mod queue;
mod record;
mod recover;
mod segment;
mod session;
mod store;
#[cfg(test)]
mod tests;
mod writer;

pub use crate::BLOCK_TOKENS;
use crate::key::Namespace;
pub use folder::{StoreInfo, remove, stores, trim};
pub use format::{StoredFormat, fingerprint};
pub use inspect::{Contents, StoredPrefix, contents};
pub use key::BlockKey;
pub use session::{Session, SessionInfo, check_name};
pub use store::DiskStore;

/// The version of the format that this program writes and reads.
pub const FORMAT_VERSION: u32 = 2;
/// The longest name of a session, in bytes.
pub const NAME_MAX: usize = 200;

/// Options of opening a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// A hash of everything that contents depend on: model file, cache format, settings.
    pub identity: [u8; 32],
    /// Name of the store in lists, e.g. the model's name. Control characters and what follows 100 bytes are left out.
    pub label: String,
    /// The most bytes that the segments of this store may have. At least 64 KiB.
    pub max_bytes: u64,
    /// Bytes at which a segment is full. At most an eighth of `max_bytes` is used, whatever is asked for.
    pub segment_bytes: u64,
    /// Bytes of blocks that may wait to be written. More are dropped.
    pub queue_bytes: usize,
    /// The largest contents of a block or a session, in bytes. A quarter of `max_bytes` is a limit too.
    pub payload_bytes_max: usize,
    /// When what was written is made durable.
    pub fsync: FsyncPolicy,
}

impl StoreOptions {
    /// Returns 4 GiB in segments of 64 MiB, with 64 MiB that may wait, contents of up to 64 MiB, durable each second.
    pub fn new(identity: [u8; 32]) -> StoreOptions {
        StoreOptions {
            identity,
            label: String::new(),
            max_bytes: 4 << 30,
            segment_bytes: 64 << 20,
            queue_bytes: 64 << 20,
            payload_bytes_max: 64 << 20,
            fsync: FsyncPolicy::Interval(Duration::from_secs(1)),
        }
    }
}

/// When records are made durable, so that they survive not only the process but the machine.
///
/// Nothing wrong is served after a power failure under any policy; the policy bounds what is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsyncPolicy {
    /// When the system likes to, but for what is copied when a segment is given up.
    Never,
    /// At the latest this long after a record was written.
    Interval(Duration),
    /// When the queue has been written, or 16 MiB of it; a session before its `save_session` returns.
    EachBatch,
}

/// Identity of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRef<'a> {
    /// Whom it belongs to.
    pub namespace: Namespace,
    /// The key of the block before it, or the namespace's root.
    pub parent: BlockKey,
    /// Blocks before it in its prefix.
    pub block_idx: u32,
    /// Format of its contents, for their reader: [`StoredFormat`] for blocks of a pool. The store does not look
    /// inside.
    pub format: u32,
    /// Its tokens, 1 to 16. Only a prefix's last block has fewer than 16.
    pub tokens: &'a [u32],
}

impl BlockRef<'_> {
    /// Returns the block's key, which is the parent of the next block.
    ///
    /// # Panics
    /// It has no tokens, or more than 16.
    pub fn key(&self) -> BlockKey {
        self.parent.child(self.tokens)
    }
}

/// Result of [`DiskStore::put_block`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It will be written.
    Queued,
    /// It is stored or waits to be written already.
    Present,
    /// The block before it is neither stored nor waiting, so it could never be found.
    NoParent,
    /// Too many bytes wait to be written.
    QueueFull,
    /// It is larger than the store takes.
    TooLarge,
    /// The store's thread has ended.
    Closed,
}

/// Stored prefix of a sequence of tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    /// The keys of its blocks, in order. All but the last hold 16 tokens.
    pub keys: Vec<BlockKey>,
    /// Number of tokens they hold together.
    pub n_tokens: usize,
}

/// Size of a store, and its counters since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Blocks that can be found.
    pub n_blocks: usize,
    /// Sessions.
    pub n_sessions: usize,
    /// Segment files.
    pub n_segments: usize,
    /// Bytes of the segment files.
    pub bytes: u64,
    /// Bytes of them that are in use.
    pub live_bytes: u64,
    /// Bytes of blocks that wait to be written.
    pub queued_bytes: usize,
    /// Blocks and sessions written since the store was opened.
    pub n_written: u64,
    /// Blocks and sessions read and found intact.
    pub n_read: u64,
    /// Blocks not written: no room in the queue, no predecessor, too large, or the write failed.
    pub n_dropped: u64,
    /// Places where bytes were not as they were written: torn ends at opening, records that failed their checksum.
    pub n_corrupt: u64,
    /// Blocks and sessions given up to stay below `max_bytes`, and blocks that no prefix led to any more.
    pub n_evicted: u64,
    /// Blocks and sessions not written because the disk failed.
    pub n_failed: u64,
    /// Whether the last that was to be written could not be.
    pub is_failing: bool,
    /// The last write that failed, for people.
    pub last_failure: Option<String>,
}

/// Makes the error of a failed operation on a file.
fn io_error(what: &str, path: &Path, error: &io::Error) -> KvError {
    KvError::disk(DiskFault::Io, format!("cannot {what} {}: {error}", path.display()))
}
