//! The KV cache as the engine plans with it.

use std::sync::Weak;

use ruvllm_backend::{BackendError, CacheSalt, CachedPrefix, KvFolder, KvRoom, PagedKv, SeqId, TokenModel};
use ruvllm_kvcache::{CacheStats, KvPolicy, PageLender, Pressure, Usage};
use ruvllm_lora::manager::AdapterManager;

use super::{NativeBackend, quantizer};

impl PagedKv for NativeBackend {
    fn room(&self) -> KvRoom {
        self.kv.room()
    }

    fn bytes_for(&self, n_tokens: usize) -> usize {
        self.kv.bytes_for(n_tokens)
    }

    fn sequence_bytes(&self, seq: SeqId) -> usize {
        self.kv.get(seq).map_or(0, |open| self.kv.sequence_bytes(open))
    }

    fn reserve(&mut self, seq: SeqId, n: usize) -> Result<(), BackendError> {
        if self.kv.get(seq).is_none() {
            return Err(BackendError::not_open(seq));
        }
        Ok(self.kv.reserve(quantizer(&self.compute), std::iter::once((seq, n)))?)
    }

    fn match_prefix(&self, tokens: &[u32], salt: &CacheSalt) -> Option<CachedPrefix> {
        self.kv.match_prefix(tokens, salt)
    }

    fn restore_prefix(&mut self, tokens: &[u32], salt: &CacheSalt) -> usize {
        self.kv.restore(tokens, salt)
    }

    fn share(&mut self, seq: SeqId) {
        if self.check_files().is_ok() {
            self.kv.share(seq);
        }
    }

    fn discard(&mut self, seq: SeqId) {
        self.kv.stay_out(seq);
        self.close(seq);
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
        self.kv.pool.held_bytes_by_format().map(|(format, bytes)| (format.name(), bytes)).collect()
    }

    fn pressure(&mut self) -> Pressure {
        self.kv.pressure()
    }

    fn policies(&self) -> Vec<KvPolicy> {
        self.kv.policies().collect()
    }

    fn aged_bytes(&self, policy: KvPolicy, n_tokens: usize) -> usize {
        self.kv.bytes_aged(policy, n_tokens)
    }

    fn reusable_bytes(&self) -> usize {
        self.kv.reusable_bytes()
    }

    fn folder(&self) -> Option<KvFolder<'_>> {
        let persist = self.kv.persist.as_ref()?;
        Some(KvFolder { store: &persist.store, folder: &persist.folder, identity: &persist.identity })
    }

    fn share_with(&mut self, adapters: Weak<AdapterManager>) -> Option<(PageLender, usize)> {
        Some(self.kv.share_with(adapters))
    }

    fn lend(&mut self, n_pages: usize, keep_bytes: usize) -> bool {
        self.kv.lend(n_pages, keep_bytes)
    }
}
