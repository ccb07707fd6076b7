//! Counters of the prefix cache, and the owners of blocks.

/// Counts of a [`PrefixCache`](crate::PrefixCache) since it was made, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Lookups: `full + partial + misses`.
    pub lookups: u64,
    /// Lookups that found all tokens but the one that must be computed.
    pub full: u64,
    /// Lookups that found some tokens.
    pub partial: u64,
    /// Lookups that found none.
    pub misses: u64,
    /// Tokens that were looked up.
    pub tokens_asked: u64,
    /// Tokens that were found and need no computing.
    pub tokens_saved: u64,
    /// Tokens whose KV cache was read from a store on disk, so that they could be found.
    pub tokens_from_disk: u64,
    /// Blocks that were given up for others.
    pub evictions: u64,
    /// Bytes of the blocks it holds now, those included that sequences use at the same time.
    pub bytes: usize,
    /// Bytes it may hold.
    pub bytes_max: usize,
    /// Prefixes it holds now that are not the beginning of another.
    pub entries: usize,
}

impl CacheStats {
    /// Returns the share of the tokens asked for that were found, 0 to 1.
    pub fn hit_rate(&self) -> f64 {
        if self.tokens_asked == 0 { 0.0 } else { self.tokens_saved as f64 / self.tokens_asked as f64 }
    }
}

/// Who holds the blocks of a pool, whatever their formats: `free + cached_only + in_use == total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All blocks.
    pub total: usize,
    /// Blocks that can be taken to write to.
    pub free: usize,
    /// Blocks that only the prefix cache holds; it gives them up when they are needed.
    pub cached_only: usize,
    /// Blocks that sequences hold, whether the cache does too or not.
    pub in_use: usize,
    /// Bytes of the blocks that only the prefix cache holds.
    pub cached_only_bytes: usize,
    /// Bytes of the blocks that sequences hold.
    pub in_use_bytes: usize,
    /// Bytes that may be memory: whole pages, never more than the budget.
    pub committed_bytes: usize,
}
