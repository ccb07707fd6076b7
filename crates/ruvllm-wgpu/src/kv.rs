//! Open sequences and the prefix cache: who holds which block of the device's cache. Bytes are the device's.

use std::sync::Arc;

use ruvllm_backend::{BackendError, CacheSalt, CachedPrefix, KvRoom, SeqId};
use ruvllm_kvcache::{
    BlockPool, CacheStats, KvError, KvFormat, KvLayout, KvPolicy, Level, MemoryBudget, Namespace, NamespaceBuilder,
    Owner, PAGE_BYTES, PrefixCache, Pressure, Relief, Sequence, Usage,
};
use ruvllm_lora::AdapterSet;
use ruvllm_lora::micro::MicroLora;

/// An open sequence.
pub(crate) struct Open {
    pub sequence: Sequence,
    /// The tokens of its positions.
    pub tokens: Vec<u32>,
    /// Where its prefix came from and its blocks go when it ends; `None` for those that stay out of the prefix cache.
    namespace: Option<Namespace>,
    tenant: u64,
    pub adapters: AdapterSet,
    /// MicroLoRA that changes its final hidden states.
    pub micro: Option<Arc<MicroLora>>,
}

/// Sizes of the store of sequences.
pub(crate) struct KvSizes {
    pub n_blocks: usize,
    pub n_ctx: usize,
    pub n_seq_max: usize,
    pub policy: KvPolicy,
    /// Bytes of recurrent state of each sequence.
    pub state_bytes: usize,
}

/// Who holds which blocks.
pub(crate) struct KvStore {
    /// Hands out block numbers. Its own memory is never written.
    pool: BlockPool,
    sequences: Vec<Option<Open>>,
    prefixes: Option<PrefixCache>,
    /// What prefixes are valid for, but for the tenant.
    namespace: Option<NamespaceBuilder>,
    budget: MemoryBudget,
    n_ctx: usize,
    policy: KvPolicy,
    state_bytes: usize,
    /// Blocks that the device has yet to copy.
    copies: Vec<[usize; 2]>,
}

/// Returns the one format of a policy.
pub(crate) fn format_of(policy: KvPolicy) -> Option<KvFormat> {
    match policy {
        KvPolicy::F16 => Some(KvFormat::F16),
        KvPolicy::F32 => Some(KvFormat::F32),
        _ => None,
    }
}

impl KvStore {
    /// Makes a store; with a namespace it keeps prefixes.
    pub(crate) fn new(
        layout: &KvLayout,
        format: KvFormat,
        sizes: KvSizes,
        namespace: Option<NamespaceBuilder>,
    ) -> KvStore {
        let KvSizes { n_blocks, n_ctx, n_seq_max, policy, state_bytes } = sizes;
        let pool = BlockPool::new(layout, format, n_blocks);
        let prefixes = namespace.is_some().then(|| PrefixCache::new(&pool, pool.n_bytes()));
        // A budget has whole pages, and all blocks may be held.
        let budget_bytes = pool.n_bytes().next_multiple_of(PAGE_BYTES);
        let budget = MemoryBudget::new(budget_bytes, &[Relief::Evict, Relief::Reject]);
        let sequences = (0..n_seq_max).map(|_| None).collect();
        KvStore { pool, sequences, prefixes, namespace, budget, n_ctx, policy, state_bytes, copies: Vec::new() }
    }

    pub(crate) fn get(&self, seq: SeqId) -> Option<&Open> {
        self.sequences.get(seq.0).and_then(Option::as_ref)
    }

    fn open_mut(&mut self, seq: SeqId) -> &mut Open {
        self.sequences[seq.0].as_mut().expect("checked to be open")
    }

    pub(crate) fn n_free(&self) -> usize {
        self.sequences.iter().filter(|open| open.is_none()).count()
    }

    fn free_slot(&self) -> Result<usize, BackendError> {
        let free = self.sequences.iter().position(Option::is_none);
        free.ok_or_else(|| BackendError::no_sequence(self.sequences.len()))
    }

    /// Opens an empty sequence that stays out of the prefix cache.
    pub(crate) fn add(&mut self, salt: &CacheSalt) -> Result<SeqId, BackendError> {
        let slot = self.free_slot()?;
        let sequence = self.pool.sequence(self.n_ctx);
        let (tokens, tenant, adapters) = (Vec::new(), salt.tenant, salt.adapters.clone());
        self.sequences[slot] = Some(Open { sequence, tokens, namespace: None, tenant, adapters, micro: None });
        Ok(SeqId(slot))
    }

    /// Opens a sequence that starts with what is known of `tokens`.
    pub(crate) fn add_known(&mut self, tokens: &[u32], salt: &CacheSalt) -> Result<SeqId, BackendError> {
        let seq = self.add(salt)?;
        let namespace = self.salted(salt);
        let open = self.sequences[seq.0].as_mut().expect("it was opened just now");
        if let (Some(prefixes), Some(namespace)) = (&mut self.prefixes, namespace) {
            open.sequence = prefixes.lookup(namespace, tokens, self.n_ctx);
            open.tokens.extend_from_slice(&tokens[..open.sequence.len()]);
            open.namespace = Some(namespace);
        }
        Ok(seq)
    }

    /// Returns the namespace of a salt's prefixes, if prefixes are kept. Adapters are known by what they do.
    fn salted(&self, salt: &CacheSalt) -> Option<Namespace> {
        let namespace = self.namespace.clone()?.part("tenant", &salt.tenant.to_le_bytes());
        let adapters = salt.adapters.identity();
        Some(adapters.iter().fold(namespace, |namespace, identity| namespace.part("adapters", identity)).finish())
    }

    pub(crate) fn match_prefix(&self, tokens: &[u32], salt: &CacheSalt) -> Option<CachedPrefix> {
        let (prefixes, namespace) = (self.prefixes.as_ref()?, self.salted(salt)?);
        Some(prefixes.match_prefix(namespace, tokens))
    }

    /// Opens a sequence that shares the first `len` positions of another.
    pub(crate) fn fork(&mut self, seq: SeqId, len: usize) -> Result<SeqId, BackendError> {
        let slot = self.free_slot()?;
        let parent = self.sequences[seq.0].as_ref().expect("checked to be open");
        let child = Open {
            sequence: self.pool.fork(&parent.sequence, len),
            tokens: parent.tokens[..len].to_vec(),
            namespace: parent.namespace,
            tenant: parent.tenant,
            adapters: parent.adapters.clone(),
            micro: parent.micro.clone(),
        };
        self.sequences[slot] = Some(child);
        Ok(SeqId(slot))
    }

    /// Closes a sequence; what it computed goes to the prefix cache, if it `is_kept`.
    pub(crate) fn remove(&mut self, seq: SeqId, is_kept: bool) {
        let Some(Open { sequence, tokens, namespace, .. }) = self.sequences.get_mut(seq.0).and_then(Option::take)
        else {
            return;
        };
        if let (Some(prefixes), Some(namespace), true) = (&mut self.prefixes, namespace, is_kept) {
            prefixes.insert(namespace, &tokens, &sequence);
            drop(sequence);
            prefixes.trim();
        }
    }

    /// Puts the whole blocks of a running sequence into the prefix cache.
    pub(crate) fn share(&mut self, seq: SeqId) {
        let Some(open) = self.sequences.get(seq.0).and_then(Option::as_ref) else { return };
        if let (Some(prefixes), Some(namespace)) = (&mut self.prefixes, open.namespace) {
            let n_whole = open.tokens.len() / ruvllm_kvcache::BLOCK_TOKENS * ruvllm_kvcache::BLOCK_TOKENS;
            prefixes.insert(namespace, &open.tokens[..n_whole], &open.sequence);
        }
    }

    /// Makes room for more tokens of sequences, or of none. The device has to make the [`KvStore::take_copies`] then,
    /// before it writes.
    pub(crate) fn reserve(&mut self, wanted: &[(SeqId, usize)]) -> Result<(), KvError> {
        let result = wanted.iter().try_for_each(|(seq, n)| self.reserve_one(*seq, *n));
        if result.is_err() {
            self.forget_reserved(wanted.iter().map(|(seq, _)| *seq));
        }
        result
    }

    /// Gives back what was reserved beyond the tokens of sequences.
    pub(crate) fn forget_reserved(&mut self, seqs: impl Iterator<Item = SeqId>) {
        for seq in seqs {
            let open = self.open_mut(seq);
            open.sequence.truncate(open.tokens.len());
        }
    }

    fn reserve_one(&mut self, seq: SeqId, n: usize) -> Result<(), KvError> {
        if self.budget.has_quotas() {
            self.check_quota(seq, n)?;
        }
        let sequence = &mut self.sequences[seq.0].as_mut().expect("checked to be open").sequence;
        // A last block that is partly filled and shared is replaced by a copy.
        let partial = sequence.len() / ruvllm_kvcache::BLOCK_TOKENS;
        let number = |sequence: &Sequence| sequence.blocks().nth(partial).map(|block| block.index());
        let before = number(sequence);
        match &mut self.prefixes {
            Some(prefixes) => prefixes.reserve(&mut self.pool, sequence, n)?,
            None => self.pool.reserve(sequence, n)?,
        }
        if let (Some(before), Some(after)) = (before, number(sequence))
            && before != after
        {
            self.copies.push([before, after]);
        }
        Ok(())
    }

    /// Returns which blocks the device has to copy where, and forgets them.
    pub(crate) fn take_copies(&mut self) -> Vec<[usize; 2]> {
        std::mem::take(&mut self.copies)
    }

    fn check_quota(&self, seq: SeqId, n: usize) -> Result<(), KvError> {
        let Some(open) = self.get(seq) else { return Ok(()) };
        let own = self.sequences.iter().flatten().filter(|other| other.tenant == open.tenant);
        let n_bytes: usize = own.map(|open| self.pool.sequence_bytes(&open.sequence)).sum();
        let n_new = open.sequence.len().saturating_add(n).saturating_sub(open.sequence.n_reserved());
        let n_more = n_new.div_ceil(ruvllm_kvcache::BLOCK_TOKENS);
        self.budget.check_quota(open.tenant, n_bytes.saturating_add(n_more.saturating_mul(self.block_bytes())))
    }

    /// Sets what changes an open sequence's final hidden states.
    pub(crate) fn set_micro(&mut self, seq: SeqId, micro: Option<Arc<MicroLora>>) {
        self.open_mut(seq).micro = micro;
    }

    /// Counts tokens of a sequence as computed.
    pub(crate) fn advance(&mut self, seq: SeqId, tokens: &[u32]) {
        let open = self.open_mut(seq);
        open.sequence.advance(tokens.len());
        open.tokens.extend_from_slice(tokens);
    }

    /// Forgets all but the first `len` tokens of a sequence.
    pub(crate) fn truncate(&mut self, seq: SeqId, len: usize) {
        if let Some(open) = self.sequences.get_mut(seq.0).and_then(Option::as_mut) {
            open.sequence.truncate(len);
            open.tokens.truncate(len);
        }
    }

    pub(crate) fn block_bytes(&self) -> usize {
        self.pool.block_bytes(self.pool.exact_format())
    }

    pub(crate) fn sequence_bytes(&self, seq: SeqId) -> usize {
        self.get(seq).map_or(0, |open| self.pool.sequence_bytes(&open.sequence) + self.state_bytes)
    }

    pub(crate) fn room(&self) -> KvRoom {
        let usage = self.usage();
        KvRoom {
            free_bytes: usage.free * self.block_bytes() + usage.cached_only_bytes,
            committed_bytes: self.pool.n_bytes(),
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        let usage = match &self.prefixes {
            Some(prefixes) => prefixes.usage(&self.pool),
            None => self.pool.usage(),
        };
        // The device's memory is taken when the model is loaded.
        Usage { committed_bytes: self.pool.n_bytes(), ..usage }
    }

    pub(crate) fn held_by_format(&self) -> Vec<(&'static str, usize)> {
        self.pool.held_bytes_by_format().map(|(format, bytes)| (format.name(), bytes)).collect()
    }

    pub(crate) fn cache_stats(&self) -> Option<CacheStats> {
        self.prefixes.as_ref().map(PrefixCache::stats)
    }

    pub(crate) fn clear_cache(&mut self) {
        if let Some(prefixes) = &mut self.prefixes {
            prefixes.clear();
        }
    }

    pub(crate) fn set_quota(&mut self, tenant: u64, bytes: Option<usize>) {
        self.budget.set_quota(tenant, bytes);
    }

    pub(crate) fn policy(&self) -> KvPolicy {
        self.policy
    }

    /// Returns how full the cache is.
    pub(crate) fn pressure(&mut self) -> Pressure {
        self.budget.set_held(&[(Owner::Sequences, self.pool.held_bytes()), (Owner::Cache, 0)]);
        if self.budget.pressure().level > Level::Low {
            let usage = self.usage();
            self.budget.set_held(&[(Owner::Sequences, usage.in_use_bytes), (Owner::Cache, usage.cached_only_bytes)]);
        }
        self.budget.pressure()
    }

    /// Returns the bytes that cached prefixes can have at present.
    pub(crate) fn reusable_bytes(&self) -> usize {
        if self.prefixes.is_some() { self.room().free_bytes } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use ruvllm_kvcache::LayerKv;

    use super::*;

    /// A cache that is no whole number of pages, with every block held.
    #[test]
    fn a_full_cache_says_so() {
        let layout = KvLayout { layers: vec![LayerKv { n_kv_heads: 2, k_dim: 64, v_dim: 64 }] };
        let sizes = KvSizes { n_blocks: 190, n_ctx: 3040, n_seq_max: 1, policy: KvPolicy::F32, state_bytes: 5 };
        let mut store = KvStore::new(&layout, KvFormat::F32, sizes, None);
        let seq = store.add(&CacheSalt::default()).expect("it is free");
        assert_eq!((store.pressure().level, store.sequence_bytes(seq)), (Level::Low, 5));
        store.reserve(&[(seq, 3040)]).expect("there is room");
        assert_eq!(store.sequence_bytes(seq), 190 * 16 * 1024 + 5);
        assert!(store.pressure().level >= Level::Elevated);
    }
}
