//! The prefix cache: blocks of what was computed before, found by their tokens.

use crate::block::Allocator;
use crate::error::{KvError, KvErrorKind};
use crate::key::Namespace;
use crate::pool::{BlockPool, Quantizer};
use crate::radix::{Path, Place, Tree};
use crate::stats::{CacheStats, Usage};
use crate::table::Sequence;
use ruvllm_kernels::attention::{BLOCK_TOKENS, KvBlock, KvFormat};
use std::sync::Arc;

/// Prefixes that are looked at to bring them into fewer bits.
const OLDEST: usize = 64;

/// A radix tree over token ids whose nodes own blocks of a [`BlockPool`].
///
/// A request [looks up](PrefixCache::lookup) its prompt and gets a sequence that starts with everything known of it, to
/// the token; it computes the rest, and when it is done its blocks are [inserted](PrefixCache::insert). What a sequence
/// uses is locked by its reference: eviction takes only blocks nobody else owns, from the ends of the prefixes that were
/// not used for longest. A partly filled last block is shared too and copied when it is written.
///
/// ```
/// use ruvllm_kvcache::{BlockPool, KvLayout, KvFormat, LayerKv, NamespaceBuilder, PrefixCache};
///
/// let layout = KvLayout { layers: vec![LayerKv { n_kv_heads: 1, k_dim: 8, v_dim: 8 }] };
/// let mut pool = BlockPool::new(&layout, KvFormat::F16, 64);
/// let mut cache = PrefixCache::new(&pool, pool.n_bytes());
/// let namespace = NamespaceBuilder::new("doc").finish();
///
/// let prompt: Vec<u32> = (0..40).collect();
/// let mut sequence = cache.lookup(namespace, &prompt, 1024);
/// assert_eq!(sequence.len(), 0);
/// cache.reserve(&mut pool, &mut sequence, 40)?;
/// // … the KV cache of 40 positions is computed and written …
/// sequence.advance(40);
/// cache.insert(namespace, &prompt, &sequence);
/// drop(sequence);
///
/// let question = [&prompt[..35], &[7, 8, 9]].concat();
/// assert_eq!(cache.lookup(namespace, &question, 1024).len(), 35);
/// // One token is left to compute even if all are known.
/// assert_eq!(cache.lookup(namespace, &prompt, 1024).len(), 39);
/// # Ok::<(), ruvllm_kvcache::KvError>(())
/// ```
#[derive(Debug)]
pub struct PrefixCache {
    allocator: Arc<Allocator>,
    tree: Tree,
    /// Bytes of a block, by format.
    block_bytes: [usize; KvFormat::COUNT],
    bytes_max: usize,
    /// What rows are written in.
    exact: KvFormat,
    /// All but what the tree and the limits tell.
    counts: CacheStats,
    /// Reused between lookups.
    found: Vec<KvBlock>,
}

/// The cached prefix of some tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedPrefix {
    /// Leading tokens that a sequence would start with.
    pub n_tokens: usize,
    /// Bytes of their whole blocks that open sequences hold: sharing them takes no room.
    pub in_use_bytes: usize,
}

/// A prefix in the cache that is not the beginning of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixEntry {
    /// Namespace that it is valid in.
    pub namespace: Namespace,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Their blocks, 16 tokens each, the last one perhaps fewer.
    pub blocks: Vec<KvBlock>,
}

impl PrefixCache {
    /// Makes an empty cache over a pool that holds up to `bytes_max` bytes of blocks.
    pub fn new(pool: &BlockPool, bytes_max: usize) -> PrefixCache {
        PrefixCache {
            allocator: pool.allocator(),
            tree: Tree::default(),
            block_bytes: KvFormat::ALL.map(|format| pool.block_bytes(format)),
            bytes_max,
            exact: pool.exact_format(),
            counts: CacheStats::default(),
            found: Vec::new(),
        }
    }

    /// Returns a sequence for up to `capacity` positions that starts with the longest known prefix of `tokens`, at least
    /// one token less than all. It counts as used now.
    pub fn lookup(&mut self, namespace: Namespace, tokens: &[u32], capacity: usize) -> Sequence {
        let wanted = &tokens[..tokens.len().saturating_sub(1).min(capacity)];
        let path = self.tree.find(namespace, wanted);
        self.tree.touch(&path);
        let mut found = std::mem::take(&mut self.found);
        let n_known = self.usable(&path, &mut found);
        let counts = &mut self.counts;
        counts.lookups += 1;
        counts.tokens_asked += tokens.len() as u64;
        counts.tokens_saved += n_known as u64;
        match n_known {
            0 => counts.misses += 1,
            n if n == wanted.len() => counts.full += 1,
            _ => counts.partial += 1,
        }
        let sequence = Sequence::of_blocks(Arc::clone(&self.allocator), capacity, &found, n_known);
        self.found = found;
        sequence
    }

    /// Sets `blocks` to the path's and returns how many tokens can be used of them: a block in few bits is used as a whole
    /// or not at all, because what follows would have to be written into it.
    fn usable(&self, path: &Path, blocks: &mut Vec<KvBlock>) -> usize {
        blocks.clear();
        self.tree.blocks(path, blocks);
        match (path.n_tokens % BLOCK_TOKENS, blocks.last()) {
            (n_partial @ 1.., Some(last)) if last.format() != self.exact => {
                blocks.pop();
                path.n_tokens - n_partial
            }
            _ => path.n_tokens,
        }
    }

    /// Returns how many leading tokens a [`PrefixCache::lookup`] would find; counts and changes nothing.
    pub fn n_cached(&self, namespace: Namespace, tokens: &[u32]) -> usize {
        let path = self.tree.find(namespace, &tokens[..tokens.len().saturating_sub(1)]);
        self.usable(&path, &mut Vec::new())
    }

    /// Returns the prefix that a [`PrefixCache::lookup`] would find; counts and changes nothing.
    pub fn match_prefix(&self, namespace: Namespace, tokens: &[u32]) -> CachedPrefix {
        let path = self.tree.find(namespace, &tokens[..tokens.len().saturating_sub(1)]);
        let mut blocks = Vec::new();
        let n_tokens = self.usable(&path, &mut blocks);
        blocks.truncate(n_tokens / BLOCK_TOKENS);
        let in_use = blocks.into_iter().filter(|&block| self.allocator.count(block) > 1);
        let in_use_bytes = in_use.map(|block| self.block_bytes[block.format() as usize]).sum();
        CachedPrefix { n_tokens, in_use_bytes }
    }

    /// Keeps the blocks of `tokens`, which `sequence` begins with, as they are, as far as they are not known yet; known ones
    /// that the sequence has in fewer bits are kept in these. Returns the
    /// positions (in blocks) of those that were taken over: the ones a store behind the cache does not have.
    ///
    /// The sequence may go on: between [`Sequence::advance`] and the next reserve, or at any time if `tokens` end with a
    /// whole block.
    ///
    /// # Panics
    /// If the sequence is shorter than `tokens`, or belongs to another pool.
    pub fn insert(&mut self, namespace: Namespace, tokens: &[u32], sequence: &Sequence) -> std::ops::Range<usize> {
        assert!(Arc::ptr_eq(&self.allocator, &sequence.allocator), "the sequence belongs to another pool");
        let n = tokens.len();
        assert!(n <= sequence.len(), "{n} tokens to keep of a sequence of {}", sequence.len());
        let blocks = &sequence.blocks[..n.div_ceil(BLOCK_TOKENS)];
        if blocks.iter().any(|block| block.format() != self.exact) {
            let (path, allocator) = (self.tree.find(namespace, tokens), &self.allocator);
            self.tree.adopt(&path, blocks, &mut |old, new| {
                allocator.retain(&[new]);
                allocator.release(&[old]);
            });
        }
        let inserted = self.tree.insert(namespace, tokens, blocks);
        self.allocator.retain(&blocks[inserted.from..]);
        if let Some(dropped) = inserted.dropped {
            self.allocator.release(&[dropped]);
        }
        inserted.from..blocks.len()
    }

    /// Gives up blocks until the cache is within its limit, as far as sequences let it. To be called after sequences
    /// that were inserted have ended.
    pub fn trim(&mut self) {
        let exact = self.block_bytes[self.exact as usize].max(1);
        // Blocks in fewer bits bring less than reckoned.
        while self.bytes() > self.bytes_max && self.evict((self.bytes() - self.bytes_max).div_ceil(exact)) > 0 {}
    }

    /// Returns the bytes of its blocks.
    fn bytes(&self) -> usize {
        self.tree.n_blocks().iter().zip(&self.block_bytes).map(|(n, bytes)| n * bytes).sum()
    }

    /// Gives up blocks that nobody else owns, the longest unused first, until `n` are free that were not. Returns how
    /// many it were.
    pub fn evict(&mut self, n: usize) -> usize {
        let allocator = &self.allocator;
        let n_freed = self.tree.evict(n, &mut |block| allocator.release_last(block));
        self.counts.evictions += n_freed as u64;
        n_freed
    }

    /// Brings up to `n` blocks that nobody else owns into fewer bits, the longest unused first: into 8 bits, and if all are,
    /// whole units into 4 bits. Returns how many it were; none if nothing is left, or the pool has no room.
    pub fn quantize(&mut self, pool: &mut BlockPool, quantizer: Quantizer<'_>, n: usize) -> usize {
        let mut n_done = 0;
        for to in [KvFormat::Q8, KvFormat::Q4] {
            if !pool.has(to) {
                continue;
            }
            let per_unit = to.blocks_per_unit();
            for prefix in 0..OLDEST {
                let Some(places) = self.tree.places(prefix).filter(|_| n_done < n) else { break };
                for unit in places.chunks_exact(per_unit).skip(1) {
                    if n_done < n && self.quantize_unit(pool, quantizer, unit, to) {
                        n_done += per_unit;
                    }
                }
            }
        }
        n_done
    }

    /// Replaces blocks of a prefix by a unit of fewer bits, if they are the cache's alone and in more.
    fn quantize_unit(&mut self, pool: &mut BlockPool, quantizer: Quantizer<'_>, unit: &[Place], to: KvFormat) -> bool {
        self.found.clear();
        self.found.extend(unit.iter().map(|&place| self.tree.at(place)));
        let can = |&block: &KvBlock| block.format() < to && self.allocator.count(block) == 1;
        let mut made = Vec::with_capacity(unit.len());
        if !self.found.iter().all(can) || pool.quantize(quantizer, &self.found, to, &mut made).is_err() {
            return false;
        }
        for (&place, block) in unit.iter().zip(made) {
            let old = self.tree.replace(place, block);
            self.allocator.release(&[old]);
        }
        true
    }

    /// [`BlockPool::reserve`], for which cached blocks are evicted.
    ///
    /// # Errors
    /// As there; the pool is full only if sequences hold what is missing.
    ///
    /// # Panics
    /// If the sequence belongs to another pool.
    pub fn reserve(&mut self, pool: &mut BlockPool, sequence: &mut Sequence, n: usize) -> Result<(), KvError> {
        let mut result = pool.reserve(sequence, n);
        while let Err(KvErrorKind::PoolFull { needed, free, .. }) = result.as_ref().map_err(KvError::kind) {
            // What is in fewer bits brings less than a block to write to.
            if self.evict(needed.saturating_sub(free).max(1)) == 0 {
                break;
            }
            result = pool.reserve(sequence, n);
        }
        let partial = sequence.blocks.get(sequence.len() / BLOCK_TOKENS).copied();
        let is_full = |error: &KvError| matches!(error.kind(), KvErrorKind::PoolFull { .. });
        let Some(partial) = partial.filter(|_| result.as_ref().is_err_and(is_full)) else { return result };
        // One block short of a copy: the cache's own share of the partial block is the last thing it can give.
        if self.allocator.count(partial) == 2 && self.tree.forget(partial) {
            self.allocator.release(&[partial]);
            self.counts.evictions += 1;
            return pool.reserve(sequence, n);
        }
        result
    }

    /// Forgets everything of a namespace.
    pub fn remove(&mut self, namespace: Namespace) {
        let blocks = self.tree.remove(namespace);
        self.allocator.release(&blocks);
    }

    /// Forgets everything; the counts stay.
    pub fn clear(&mut self) {
        let namespaces: Vec<Namespace> = self.tree.namespaces().collect();
        namespaces.into_iter().for_each(|namespace| self.remove(namespace));
    }

    /// Returns the counts, and what it holds.
    pub fn stats(&self) -> CacheStats {
        CacheStats { bytes: self.bytes(), bytes_max: self.bytes_max, entries: self.tree.n_leaves(), ..self.counts }
    }

    /// Returns who holds the pool's blocks. Costs a look at each.
    pub fn usage(&self, pool: &BlockPool) -> Usage {
        let mut cached_only = [0; KvFormat::COUNT];
        let alone = self.tree.all_blocks().filter(|&block| self.allocator.count(block) == 1);
        alone.for_each(|block| cached_only[block.format() as usize] += 1);
        pool.usage_with(cached_only)
    }

    /// Iterates over the cached prefixes, the least recently used first: what a store would keep.
    pub fn prefixes(&self) -> impl Iterator<Item = PrefixEntry> {
        self.tree.prefixes().map(|(namespace, tokens, blocks)| PrefixEntry { namespace, tokens, blocks })
    }
}

impl Drop for PrefixCache {
    fn drop(&mut self) {
        self.clear();
    }
}

mod import;
#[cfg(test)]
mod tests;

pub use import::StoredBlock;
