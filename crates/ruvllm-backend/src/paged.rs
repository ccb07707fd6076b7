//! A KV cache in blocks, which the engine plans with.

use std::path::Path;
use std::sync::Weak;

use ruvllm_kvcache::disk::DiskStore;
use ruvllm_kvcache::{CacheStats, KvPolicy, PageLender, Pressure, Usage};
use ruvllm_lora::manager::AdapterManager;

use crate::{BackendError, CacheSalt, SeqId};

pub use ruvllm_kvcache::CachedPrefix;

/// Room for new and growing sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvRoom {
    /// Bytes of blocks that nobody holds, or that cached prefixes and idle adapters give up.
    pub free_bytes: usize,
    /// Bytes taken from the system for blocks, in whole pages.
    pub committed_bytes: usize,
}

/// The folder of a KV cache that outlives the process.
#[derive(Clone, Copy)]
pub struct KvFolder<'a> {
    /// The store of this model's blocks and sessions.
    pub store: &'a DiskStore,
    /// The folder that it lies in, with the stores of other models.
    pub folder: &'a Path,
    /// Hash of the model's files.
    pub identity: &'a [u8; 32],
}

/// A KV cache in blocks: capacity, sharing of prefixes, and bounds by tenant.
pub trait PagedKv {
    /// Returns the room that is left. Costs a look at every cached block.
    fn room(&self) -> KvRoom;

    /// Returns the bytes that a sequence of `n_tokens` holds.
    fn bytes_for(&self, n_tokens: usize) -> usize;

    /// Returns the bytes that a sequence holds.
    fn sequence_bytes(&self, seq: SeqId) -> usize;

    /// Makes room for `n` more tokens of a sequence ahead of [`TokenModel::forward`](crate::TokenModel::forward), which
    /// then finds it; cached prefixes are evicted for it.
    ///
    /// # Errors
    /// The sequence is not open, its context, the cache or its tenant's quota is full; nothing has changed then.
    fn reserve(&mut self, seq: SeqId, n: usize) -> Result<(), BackendError>;

    /// Returns the cached prefix of a prompt without opening a sequence; `None` if there is no prefix cache.
    fn match_prefix(&self, tokens: &[u32], salt: &CacheSalt) -> Option<CachedPrefix>;

    /// Reads blocks of a prompt from the cache folder into memory, and returns how many leading tokens are cached then.
    fn restore_prefix(&mut self, tokens: &[u32], salt: &CacheSalt) -> usize;

    /// Puts the whole blocks of a running sequence into the prefix cache, for others that start alike.
    fn share(&mut self, seq: SeqId);

    /// Closes a sequence without putting more of it into the prefix cache.
    fn discard(&mut self, seq: SeqId);

    /// Limits the bytes that the open sequences of a tenant hold together; `None` lifts the limit.
    fn set_quota(&mut self, tenant: u64, bytes: Option<usize>);

    /// Returns the prefix cache's counters; `None` if there is none.
    fn cache_stats(&self) -> Option<CacheStats>;

    /// Forgets all cached prefixes in memory.
    fn clear_cache(&mut self);

    /// Returns the owners of blocks: free + cached only + in use = total.
    fn usage(&self) -> Usage;

    /// Returns the bytes of held blocks by the name of their format.
    fn bytes_by_format(&self) -> Vec<(&'static str, usize)>;

    /// Returns how full the memory is, and what to do about it.
    fn pressure(&mut self) -> Pressure;

    /// Returns the policies that sequences may have, the default first.
    fn policies(&self) -> Vec<KvPolicy>;

    /// Returns the bytes of a sequence's blocks once they have aged by a policy.
    fn aged_bytes(&self, policy: KvPolicy, n_tokens: usize) -> usize;

    /// Returns the bytes that cached prefixes can have at present, if an evicted one has to be computed again; 0 without
    /// a prefix cache, or with a folder that it is read from.
    fn reusable_bytes(&self) -> usize;

    /// Returns the folder of the cache, if it has one.
    fn folder(&self) -> Option<KvFolder<'_>> {
        None
    }

    /// Shares the memory with adapters: idle ones give theirs back when it runs short. Returns what lends pages to them,
    /// and how many pages at most; `None` if adapters have memory of their own.
    fn share_with(&mut self, adapters: Weak<AdapterManager>) -> Option<(PageLender, usize)> {
        drop(adapters);
        None
    }

    /// Lends pages of the memory if `keep_bytes` are left for sequences; cached prefixes are evicted for it. Returns
    /// whether they were lent.
    fn lend(&mut self, n_pages: usize, keep_bytes: usize) -> bool {
        let _ = (n_pages, keep_bytes);
        false
    }
}
