//! The KV cache as the engine plans with it. Its memory is taken when the model is loaded.

use ruvllm_backend::{BackendError, CacheSalt, CachedPrefix, KvRoom, PagedKv, SeqId};
use ruvllm_kvcache::{CacheStats, KvLayout, KvPolicy, Pressure, Usage};

use super::WgpuBackend;

impl PagedKv for WgpuBackend {
    fn room(&self) -> KvRoom {
        self.kv.room()
    }

    fn bytes_for(&self, n_tokens: usize) -> usize {
        KvLayout::blocks_for(n_tokens) * self.kv.block_bytes()
    }

    fn sequence_bytes(&self, seq: SeqId) -> usize {
        self.kv.sequence_bytes(seq)
    }

    fn reserve(&mut self, seq: SeqId, n: usize) -> Result<(), BackendError> {
        match self.kv.get(seq) {
            None => Err(BackendError::not_open(seq)),
            Some(_) => self.make_room(&[(seq, n)]),
        }
    }

    fn match_prefix(&self, tokens: &[u32], salt: &CacheSalt) -> Option<CachedPrefix> {
        self.kv.match_prefix(tokens, salt)
    }

    fn restore_prefix(&mut self, tokens: &[u32], salt: &CacheSalt) -> usize {
        // Nothing is on disk.
        self.kv.match_prefix(tokens, salt).map_or(0, |cached| cached.n_tokens)
    }

    fn share(&mut self, seq: SeqId) {
        self.kv.share(seq);
    }

    fn discard(&mut self, seq: SeqId) {
        self.remove(seq, false);
    }

    fn set_quota(&mut self, tenant: u64, bytes: Option<usize>) {
        self.kv.set_quota(tenant, bytes);
    }

    fn cache_stats(&self) -> Option<CacheStats> {
        self.kv.cache_stats()
    }

    fn clear_cache(&mut self) {
        self.kv.clear_cache();
    }

    fn usage(&self) -> Usage {
        self.kv.usage()
    }

    fn bytes_by_format(&self) -> Vec<(&'static str, usize)> {
        self.kv.held_by_format()
    }

    fn pressure(&mut self) -> Pressure {
        self.kv.pressure()
    }

    fn policies(&self) -> Vec<KvPolicy> {
        vec![self.kv.policy()]
    }

    fn aged_bytes(&self, _: KvPolicy, n_tokens: usize) -> usize {
        self.bytes_for(n_tokens)
    }

    fn reusable_bytes(&self) -> usize {
        self.kv.reusable_bytes()
    }
}
