//! The cache of a backend: block pool, open sequences, prefix cache and the memory they share.

use std::sync::{Arc, Weak};

use ruvllm_backend::{BackendError, CacheSalt, CachedPrefix, KvRoom, SeqId};
use ruvllm_kvcache::{
    Ageing, BlockPool, CacheStats, KvError, KvErrorKind, KvLayout, KvPolicy, Level, MemoryBudget, Namespace,
    NamespaceBuilder, Owner, PAGE_BYTES, PageLender, PrefixCache, Pressure, Quantizer, Sequence, Usage,
};
use ruvllm_lora::manager::AdapterManager;
use ruvllm_lora::micro::MicroLora;

use crate::persist::Persist;

/// Blocks brought into fewer bits at once when none is free.
const SHRUNK_AT_ONCE: usize = 64;
/// Memory without use that is kept for the next request.
pub(super) const IDLE_BYTES: usize = 16 << 20;
/// Memory that the next request finds ready: that of some hundred tokens.
const READY_BYTES: usize = 4 << 20;

/// An open sequence and what is known of it.
pub(super) struct Open {
    pub sequence: Sequence,
    /// The tokens of its positions.
    pub tokens: Vec<u32>,
    /// Where its prefix came from and its blocks go when it ends; `None` for those that stay out of the prefix cache.
    namespace: Option<Namespace>,
    /// Whose it is, and what changes the model for it.
    pub salt: CacheSalt,
    /// MicroLoRA that changes its final hidden states.
    pub micro: Option<Arc<MicroLora>>,
    /// Policy of its blocks.
    pub policy: KvPolicy,
    pub ageing: Ageing,
}

/// Who holds which blocks.
pub(super) struct KvStore {
    pub pool: BlockPool,
    /// One place a sequence; `None` is free.
    pub(super) sequences: Vec<Option<Open>>,
    pub(super) prefixes: Option<PrefixCache>,
    /// State that survives the process.
    pub persist: Option<Persist>,
    /// What prefixes are valid for, but for the tenant.
    namespace: Option<NamespaceBuilder>,
    pub(super) budget: MemoryBudget,
    n_ctx: usize,
    /// Bytes of recurrent state that each sequence has beside its blocks.
    state_bytes: usize,
    pub(super) policy: KvPolicy,
    /// Policies that sequences may have beside it.
    others: Vec<KvPolicy>,
    /// Have some of the memory, and give it back while nobody uses them.
    adapters: Weak<AdapterManager>,
    lender: PageLender,
}

/// Limits of the sequences of a [`KvStore`], and their policy.
pub(super) struct SequenceLimits {
    /// Sequences that are open at a time.
    pub n_seq_max: usize,
    /// Tokens of each.
    pub n_ctx: usize,
    pub policy: KvPolicy,
}

impl KvStore {
    /// Makes a store of sequences over a pool that lies within the budget. With a
    /// namespace it keeps prefixes, and with `persist` over restarts.
    pub(super) fn new(
        pool: BlockPool,
        budget: MemoryBudget,
        sequences: SequenceLimits,
        namespace: Option<NamespaceBuilder>,
        persist: Option<Persist>,
    ) -> KvStore {
        let SequenceLimits { n_seq_max, n_ctx, policy } = sequences;
        let prefixes = namespace.is_some().then(|| PrefixCache::new(&pool, pool.n_bytes()));
        let sequences = (0..n_seq_max).map(|_| None).collect();
        let (adapters, lender) = (Weak::new(), pool.lender());
        KvStore {
            pool,
            sequences,
            prefixes,
            persist,
            namespace,
            budget,
            n_ctx,
            state_bytes: 0,
            policy,
            others: Vec::new(),
            adapters,
            lender,
        }
    }

    /// Counts recurrent state of every sequence.
    pub(super) fn with_states(mut self, state_bytes: usize) -> KvStore {
        self.state_bytes = state_bytes;
        self
    }

    /// Returns the bytes that an open sequence holds: its blocks and its recurrent state.
    pub(super) fn sequence_bytes(&self, open: &Open) -> usize {
        self.pool.sequence_bytes(&open.sequence) + self.state_bytes
    }

    /// Lets sequences have other policies, whose formats the pool has.
    pub(super) fn with_others(mut self, others: &[KvPolicy]) -> KvStore {
        self.others = others.to_vec();
        self
    }

    /// Returns the policies that sequences may have, that of the others first.
    pub(super) fn policies(&self) -> impl Iterator<Item = KvPolicy> {
        std::iter::once(self.policy).chain(self.others.iter().copied())
    }

    /// Shares the memory with adapters, and returns the most pages that they may have: they leave room for one whole
    /// context, or half of the memory where that is less, so that one sequence can always go on.
    pub(super) fn share_with(&mut self, adapters: Weak<AdapterManager>) -> (PageLender, usize) {
        self.adapters = adapters;
        let total = self.budget.total_bytes();
        let n_blocks = KvLayout::blocks_for(self.n_ctx);
        let context = self.pool.memory_for(n_blocks);
        (self.lender.clone(), (total.saturating_sub(context)).max(total / 2) / PAGE_BYTES)
    }

    /// Lends pages beside `keep_bytes` that sequences may come to need; cached prefixes are evicted.
    pub(super) fn lend(&mut self, n_pages: usize, keep_bytes: usize) -> bool {
        let usage = self.usage();
        // Blocks of a model without attention take nothing, and adapters may have all there is.
        let room = match self.block_bytes() {
            0 => self.budget.total_bytes(),
            block_bytes => usage.free * block_bytes + usage.cached_only_bytes,
        };
        let wanted = n_pages * PAGE_BYTES;
        // What idle blocks lie in is room as well, which free ones are counted in.
        if room < keep_bytes.saturating_add(wanted) {
            return false;
        }
        loop {
            self.pool.reclaim(0);
            if self.lender.lend(n_pages) {
                return true;
            }
            let n_blocks = wanted.div_ceil(self.block_bytes().max(1));
            if self.prefixes.as_mut().is_none_or(|prefixes| prefixes.evict(n_blocks) == 0) {
                return false;
            }
        }
    }

    /// Returns the bytes that adapters would give back.
    fn idle_adapter_bytes(&self) -> usize {
        match self.lender.n_lent() {
            0 => 0,
            _ => self.adapters.upgrade().map_or(0, |adapters| adapters.idle_pages() * PAGE_BYTES),
        }
    }

    /// Has idle adapters give back memory for `n_blocks` blocks, and returns whether they gave any.
    fn take_from_adapters(&self, n_blocks: usize) -> bool {
        let n_pages = (n_blocks * self.block_bytes()).div_ceil(PAGE_BYTES) + 1;
        self.lender.n_lent() > 0 && self.adapters.upgrade().is_some_and(|adapters| adapters.evict(n_pages) > 0)
    }

    pub(super) fn get(&self, seq: SeqId) -> Option<&Open> {
        self.sequences.get(seq.0).and_then(Option::as_ref)
    }

    /// Returns a sequence that is known to be open.
    fn open(&self, seq: SeqId) -> &Open {
        self.get(seq).expect("checked to be open")
    }

    /// Returns what a forward pass needs at once: the pool to write to, and the sequences by place.
    pub(super) fn parts(&mut self) -> (&mut BlockPool, &[Option<Open>]) {
        (&mut self.pool, &self.sequences)
    }

    fn open_mut(&mut self, seq: SeqId) -> &mut Open {
        self.sequences[seq.0].as_mut().expect("checked to be open")
    }

    /// Opens an empty sequence that stays out of the prefix cache.
    pub(super) fn add(&mut self, salt: &CacheSalt) -> Result<SeqId, BackendError> {
        let slot = self.free_slot()?;
        let sequence = self.pool.sequence(self.n_ctx);
        let tokens = Vec::with_capacity(self.n_ctx);
        let (salt, policy, ageing) = (salt.clone(), salt.kv.unwrap_or(self.policy), Ageing::default());
        self.sequences[slot] = Some(Open { sequence, tokens, namespace: None, salt, micro: None, policy, ageing });
        Ok(SeqId(slot))
    }

    /// Keeps what an open sequence computed out of the prefix cache.
    pub(super) fn stay_out(&mut self, seq: SeqId) {
        if let Some(open) = self.sequences.get_mut(seq.0).and_then(Option::as_mut) {
            open.namespace = None;
        }
    }

    /// Opens a sequence that starts with what is known of `tokens`.
    pub(super) fn add_known(&mut self, tokens: &[u32], salt: &CacheSalt) -> Result<SeqId, BackendError> {
        let seq = self.add(salt)?;
        self.restore(tokens, salt);
        let namespace = self.salted_namespace(salt);
        let open = self.sequences[seq.0].as_mut().expect("it was opened just now");
        if let (Some(prefixes), Some(namespace)) = (&mut self.prefixes, namespace) {
            open.sequence = prefixes.lookup(namespace, tokens, self.n_ctx);
            open.tokens.extend_from_slice(&tokens[..open.sequence.len()]);
            open.namespace = Some(namespace);
        }
        Ok(seq)
    }

    /// Returns what is known of `tokens`; `None` if no prefixes are kept.
    pub(super) fn match_prefix(&self, tokens: &[u32], salt: &CacheSalt) -> Option<CachedPrefix> {
        let (prefixes, namespace) = (self.prefixes.as_ref()?, self.salted_namespace(salt)?);
        Some(prefixes.match_prefix(namespace, tokens))
    }

    /// Returns how many more sequences can be opened.
    pub(super) fn n_free(&self) -> usize {
        self.sequences.iter().filter(|open| open.is_none()).count()
    }

    /// Returns the room for new and growing sequences.
    pub(super) fn room(&self) -> KvRoom {
        let usage = self.usage();
        KvRoom {
            free_bytes: usage.free * self.block_bytes() + usage.cached_only_bytes + self.idle_adapter_bytes(),
            committed_bytes: usage.committed_bytes,
        }
    }

    /// Returns the bytes of a block that rows are written to.
    pub(super) fn block_bytes(&self) -> usize {
        self.pool.block_bytes(self.pool.exact_format())
    }

    /// Returns the bytes that a sequence of `n_tokens` holds.
    pub(super) fn bytes_for(&self, n_tokens: usize) -> usize {
        KvLayout::blocks_for(n_tokens) * self.block_bytes()
    }

    /// Returns the bytes that prefixes can have at present, where evicting one costs computing it again.
    pub(super) fn reusable_bytes(&self) -> usize {
        match (&self.prefixes, &self.persist) {
            (Some(_), None) => self.room().free_bytes,
            _ => 0,
        }
    }

    /// Returns the bytes of its blocks once they have aged as a policy says.
    pub(super) fn bytes_aged(&self, policy: KvPolicy, n_tokens: usize) -> usize {
        policy.aged(n_tokens).into_iter().map(|format| self.pool.block_bytes(format)).sum()
    }

    /// Returns the namespace of a salt's prefixes, if prefixes are kept. Adapters are known by what they do: one
    /// that was replaced under its name has other prefixes.
    fn salted_namespace(&self, salt: &CacheSalt) -> Option<Namespace> {
        let mut namespace = self.namespace.clone()?.part("tenant", &salt.tenant.to_le_bytes());
        // What was rounded for one is not exact for another.
        if let Some(kv) = salt.kv.filter(|kv| *kv != self.policy) {
            namespace = namespace.part("kv", kv.to_string().as_bytes());
        }
        let adapters = salt.adapters.identity();
        Some(adapters.iter().fold(namespace, |namespace, identity| namespace.part("adapters", identity)).finish())
    }

    /// Sets what changes an open sequence's final hidden states.
    pub(super) fn set_micro(&mut self, seq: SeqId, micro: Option<Arc<MicroLora>>) {
        self.open_mut(seq).micro = micro;
    }

    /// Reads what is on disk of `tokens`, and returns how many leading tokens need no computing then.
    pub(super) fn restore(&mut self, tokens: &[u32], salt: &CacheSalt) -> usize {
        let namespace = self.salted_namespace(salt);
        let (Some(prefixes), Some(namespace)) = (&mut self.prefixes, namespace) else { return 0 };
        let tokens = &tokens[..tokens.len().min(self.n_ctx)];
        if let Some(persist) = &mut self.persist {
            persist.restore(&mut self.pool, prefixes, namespace, tokens);
        }
        prefixes.n_cached(namespace, tokens)
    }

    /// Opens a sequence that shares the first `len` positions of another.
    pub(super) fn fork(&mut self, seq: SeqId, len: usize) -> Result<SeqId, BackendError> {
        let slot = self.free_slot()?;
        let parent = self.open(seq);
        let mut tokens = Vec::with_capacity(self.n_ctx);
        tokens.extend_from_slice(&parent.tokens[..len]);
        let sequence = self.pool.fork(&parent.sequence, len);
        let Open { namespace, policy, ageing, .. } = *parent;
        let (salt, micro) = (parent.salt.clone(), parent.micro.clone());
        let child = Open { sequence, tokens, namespace, salt, micro, policy, ageing };
        self.sequences[slot] = Some(child);
        Ok(SeqId(slot))
    }

    fn free_slot(&self) -> Result<usize, BackendError> {
        let n_max = self.sequences.len();
        self.sequences.iter().position(Option::is_none).ok_or_else(|| BackendError::no_sequence(n_max))
    }

    /// Closes a sequence; what it computed goes to the prefix cache.
    pub(super) fn remove(&mut self, quantizer: Quantizer<'_>, seq: SeqId) {
        let Some(Open { sequence, tokens, namespace, .. }) = self.sequences.get_mut(seq.0).and_then(Option::take)
        else {
            return;
        };
        if let (Some(prefixes), Some(namespace)) = (&mut self.prefixes, namespace) {
            prefixes.insert(namespace, &tokens, &sequence);
            if let Some(persist) = &mut self.persist {
                persist.offer(&self.pool, namespace, &tokens, sequence.blocks());
                persist.catch_up(&self.pool, prefixes, false);
            }
            drop(sequence);
            prefixes.trim();
            self.relieve(quantizer);
        } else {
            drop(sequence);
        }
        self.pool.reclaim(IDLE_BYTES);
    }

    /// Does a piece of what makes the next request quicker; returns whether it did something.
    pub(super) fn idle(&mut self) -> bool {
        self.pool.make_ready(READY_BYTES)
    }

    /// Gives the whole blocks of a running sequence to the prefix cache as well, for others that start alike.
    pub(super) fn share(&mut self, seq: SeqId) {
        let Some(Open { sequence, tokens, namespace, .. }) = self.sequences.get(seq.0).and_then(Option::as_ref) else {
            return;
        };
        if let (Some(prefixes), Some(namespace)) = (&mut self.prefixes, namespace) {
            let n_whole = tokens.len() / ruvllm_kvcache::BLOCK_TOKENS * ruvllm_kvcache::BLOCK_TOKENS;
            prefixes.insert(*namespace, &tokens[..n_whole], sequence);
            if let Some(persist) = &mut self.persist {
                persist.offer(&self.pool, *namespace, &tokens[..n_whole], sequence.blocks());
            }
        }
    }

    /// Keeps a sequence's blocks under the name of other tokens, as a broken cache would.
    #[cfg(test)]
    pub(super) fn plant(&mut self, seq: SeqId, tokens: &[u32]) {
        let open = self.sequences[seq.0].as_ref().expect("it is open");
        let (prefixes, namespace) = (self.prefixes.as_mut().expect("it has a cache"), open.namespace);
        prefixes.insert(namespace.expect("it is known by its tokens"), tokens, &open.sequence);
    }

    /// Makes room for `n` more tokens in each sequence, or for none: cached prefixes are evicted.
    pub(super) fn reserve(
        &mut self,
        quantizer: Quantizer<'_>,
        wanted: impl Iterator<Item = (SeqId, usize)> + Clone,
    ) -> Result<(), KvError> {
        let result = wanted.clone().try_for_each(|(seq, n)| self.reserve_one(quantizer, seq, n));
        if result.is_err() {
            for (seq, _) in wanted {
                let open = self.open_mut(seq);
                open.sequence.truncate(open.tokens.len());
            }
        }
        result
    }

    fn reserve_one(&mut self, quantizer: Quantizer<'_>, seq: SeqId, n: usize) -> Result<(), KvError> {
        if self.budget.has_quotas() {
            self.check_quota(seq, n)?;
        }
        loop {
            let sequence = &mut self.sequences[seq.0].as_mut().expect("checked to be open").sequence;
            let result = self.pool.reserve(sequence, n);
            let Err(KvErrorKind::PoolFull { needed, free, .. }) = result.as_ref().map_err(KvError::kind) else {
                return result;
            };
            // Who comes first when memory runs short: sequences, then cached prefixes, then adapters.
            if self.take_from_adapters(needed.saturating_sub(free).max(1)) {
                continue;
            }
            // Fewer bits first; what only the cache holds is evicted if that is not enough.
            if self.shrink(quantizer, SHRUNK_AT_ONCE) == 0 {
                break;
            }
        }
        let sequence = &mut self.sequences[seq.0].as_mut().expect("checked to be open").sequence;
        match &mut self.prefixes {
            Some(prefixes) => prefixes.reserve(&mut self.pool, sequence, n),
            None => self.pool.reserve(sequence, n),
        }
    }

    /// Checks that the sequence's tenant may hold what `n` more tokens take.
    fn check_quota(&self, seq: SeqId, n: usize) -> Result<(), KvError> {
        let (tenant, sequence) = (self.open(seq).salt.tenant, &self.open(seq).sequence);
        let own = self.sequences.iter().flatten().filter(|open| open.salt.tenant == tenant);
        let n_bytes: usize = own.map(|open| self.sequence_bytes(open)).sum();
        let n_more = (sequence.len() + n).saturating_sub(sequence.n_reserved()).div_ceil(ruvllm_kvcache::BLOCK_TOKENS);
        self.budget.check_quota(tenant, n_bytes + n_more * self.block_bytes())
    }

    /// Counts tokens of a sequence as computed.
    pub(super) fn advance(&mut self, seq: SeqId, tokens: &[u32]) {
        let open = self.open_mut(seq);
        open.sequence.advance(tokens.len());
        open.tokens.extend_from_slice(tokens);
    }

    /// Forgets all but the first `len` tokens of a sequence.
    pub(super) fn truncate(&mut self, seq: SeqId, len: usize) {
        if let Some(open) = self.sequences.get_mut(seq.0).and_then(Option::as_mut) {
            open.sequence.truncate(len);
            open.tokens.truncate(len);
        }
    }

    /// Tells the budget what is held, without telling cached blocks from those of sequences.
    pub(super) fn note_held(&mut self) {
        // Pages are lent on this thread alone: what comes back between the two looks does no harm.
        self.budget.set_lent(self.lender.n_lent() * PAGE_BYTES);
        self.budget.set_held(&[(Owner::Sequences, self.pool.held_bytes()), (Owner::Cache, 0)]);
    }

    /// Returns how full the memory is. Evicting and quantising happen by themselves.
    pub(super) fn pressure(&mut self) -> Pressure {
        self.note_held();
        // Telling who holds what takes a look at every cached block, and matters only when memory runs short.
        if let (Some(prefixes), true) = (&self.prefixes, self.budget.pressure().level > Level::Low) {
            let usage = prefixes.usage(&self.pool);
            let held = [(Owner::Sequences, usage.in_use_bytes), (Owner::Cache, usage.cached_only_bytes)];
            self.budget.set_held(&held);
        }
        self.budget.pressure()
    }

    pub(super) fn set_quota(&mut self, tenant: u64, bytes: Option<usize>) {
        self.budget.set_quota(tenant, bytes);
    }

    pub(super) fn cache_stats(&self) -> Option<CacheStats> {
        let tokens_from_disk = self.persist.as_ref().map_or(0, |persist| persist.n_tokens_read);
        self.prefixes.as_ref().map(|prefixes| CacheStats { tokens_from_disk, ..prefixes.stats() })
    }

    pub(super) fn usage(&self) -> Usage {
        match &self.prefixes {
            Some(prefixes) => prefixes.usage(&self.pool),
            None => self.pool.usage(),
        }
    }

    pub(super) fn clear_cache(&mut self) {
        if let Some(prefixes) = &mut self.prefixes {
            prefixes.clear();
        }
    }
}

impl Drop for KvStore {
    /// Writes what is still to be written.
    fn drop(&mut self) {
        if let (Some(persist), Some(prefixes)) = (&mut self.persist, &self.prefixes) {
            persist.catch_up(&self.pool, prefixes, true);
        }
    }
}
