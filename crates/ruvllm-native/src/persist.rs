//! The prefix cache's blocks on disk: written behind the work, read back before a prompt is computed.

use std::path::{Path, PathBuf};

use ruvllm_gguf::GgufFile;
use ruvllm_kvcache::disk::{self, BlockKey, BlockRef, DiskStore, Put, StoreOptions, StoredFormat};
use ruvllm_kvcache::{BLOCK_TOKENS, BlockPool, KvBlock, KvFormat, Namespace, PrefixCache, StoredBlock};

use crate::load::LoadOptions;
use ruvllm_backend::BackendError;

/// A store on disk behind a prefix cache.
pub(crate) struct Persist {
    pub(crate) store: DiskStore,
    /// The hash of the model's file.
    pub(crate) identity: [u8; 32],
    /// The folder that the store is in, with those of other models.
    pub(crate) folder: PathBuf,
    /// Reused between reads.
    payload: Vec<u8>,
    /// Tokens whose blocks were read so far.
    pub(super) n_tokens_read: u64,
    /// Blocks were dropped because too many waited to be written.
    is_behind: bool,
}

impl Persist {
    /// Opens the store of a model's file in `folder`, and makes room in it by what other models left there.
    ///
    /// # Errors
    /// Another process has it open, or the folder cannot be used.
    pub(super) fn open(folder: &Path, file: &GgufFile, options: &LoadOptions) -> Result<Persist, BackendError> {
        let identity = ruvllm_backend::identity::remembered_hash(file, folder, options.n_threads);
        let mut store = StoreOptions { label: label(file), fsync: options.cache_fsync, ..StoreOptions::new(identity) };
        store.max_bytes = options.cache_bytes.unwrap_or(store.max_bytes);
        let max_bytes = store.max_bytes;
        let store = DiskStore::open(folder, store)?;
        // Room is made as far as it can be: what another process holds or a person may not remove stays.
        let _ = disk::trim(folder, max_bytes);
        Ok(Persist {
            store,
            identity,
            folder: folder.to_owned(),
            payload: Vec::new(),
            n_tokens_read: 0,
            is_behind: false,
        })
    }

    /// Offers the whole blocks of `tokens` to the store, which takes those it does not have. Waits for nothing.
    pub(super) fn offer(
        &mut self,
        pool: &BlockPool,
        namespace: Namespace,
        tokens: &[u32],
        blocks: impl Iterator<Item = KvBlock>,
    ) {
        let mut parent = self.store.root(namespace);
        // The unit whose bytes went with a block just before, and their fingerprint.
        let mut last: Option<(KvFormat, usize, [u8; 16])> = None;
        let (whole, _) = tokens.as_chunks::<BLOCK_TOKENS>();
        for (block_idx, (tokens, block)) in whole.iter().zip(blocks).enumerate() {
            let (format, unit) = (block.format(), block.unit());
            let known = last.filter(|&(last_format, last_unit, _)| (last_format, last_unit) == (format, unit));
            let stored = StoredFormat { format, sub: block.sub(), has_unit: known.is_none() };
            let about = BlockRef { namespace, parent, block_idx: block_idx as u32, format: stored.to_u32(), tokens };
            let put = match known {
                Some((_, _, print)) => self.store.put_block(&about, &[&print]),
                None => self.store.put_block_with(&about, pool.unit_bytes(format), |bytes| {
                    pool.read_block(block, bytes);
                    last = (format.blocks_per_unit() > 1).then(|| (format, unit, disk::fingerprint(bytes)));
                }),
            };
            match put {
                Put::Queued => {}
                // What it is stored as may be of another unit.
                Put::Present => last = None,
                put => {
                    self.is_behind |= put == Put::QueueFull;
                    return;
                }
            }
            parent = about.key();
        }
    }

    /// Offers everything cached once more if something was dropped before, waiting for room where `waits`.
    pub(super) fn catch_up(&mut self, pool: &BlockPool, prefixes: &PrefixCache, waits: bool) {
        if !std::mem::take(&mut self.is_behind) {
            return;
        }
        for prefix in prefixes.prefixes() {
            loop {
                self.offer(pool, prefix.namespace, &prefix.tokens, prefix.blocks.iter().copied());
                if !(waits && std::mem::take(&mut self.is_behind)) {
                    break;
                }
                self.store.wait_idle();
            }
        }
    }

    /// Reads what is stored of `tokens` and not cached into the cache, in whole blocks. What is damaged, of another
    /// format or does not fit the memory is left to be computed.
    pub(super) fn restore(
        &mut self,
        pool: &mut BlockPool,
        prefixes: &mut PrefixCache,
        namespace: Namespace,
        tokens: &[u32],
    ) {
        let n_whole = tokens.len().saturating_sub(1) / BLOCK_TOKENS * BLOCK_TOKENS;
        let n_cached = prefixes.n_cached(namespace, tokens);
        if n_cached >= n_whole {
            return;
        }
        let found = self.store.find_prefix(namespace, &tokens[..n_whole]);
        let n_found = found.keys.len().min(n_whole / BLOCK_TOKENS) * BLOCK_TOKENS;
        if n_found <= n_cached {
            return;
        }
        let (store, prints) = (&self.store, &mut self.payload);
        let mut last = None;
        let mut read = |i: usize, bytes: &mut Vec<u8>| read_piece(store, &found.keys, i, &mut last, prints, bytes);
        // Where the memory ends, the rest is computed and fails or not as if nothing were stored.
        let _ = prefixes.import(pool, namespace, &tokens[..n_found], &mut read);
        let n_now = prefixes.n_cached(namespace, tokens);
        self.n_tokens_read += n_now.saturating_sub(n_cached) as u64;
    }
}

/// Reads block `i` of a prefix. `last` is the unit whose bytes were read before it, by their fingerprint; `print` is a
/// buffer. `None` where nothing is stored that can be used.
fn read_piece(
    store: &DiskStore,
    keys: &[BlockKey],
    i: usize,
    last: &mut Option<(KvFormat, [u8; 16])>,
    print: &mut Vec<u8>,
    bytes: &mut Vec<u8>,
) -> Option<StoredBlock> {
    let read = |i: usize, bytes: &mut Vec<u8>| StoredFormat::from_u32(store.read_block(&keys[i], bytes).ok()??);
    let StoredFormat { format, sub, has_unit } = read(i, print)?;
    if has_unit {
        std::mem::swap(print, bytes);
        *last = (format.blocks_per_unit() > 1).then(|| (format, disk::fingerprint(bytes)));
        return Some(StoredBlock { format, sub, is_new_unit: true });
    }
    let unit = Some((format, *print.first_chunk()?));
    if *last == unit {
        return Some(StoredBlock { format, sub, is_new_unit: false });
    }
    // The block with the unit's bytes is in memory, so it was not asked for.
    let first = i.saturating_sub(format.blocks_per_unit() - 1);
    let stored = (first..i).rev().find_map(|j| read(j, bytes).filter(|stored| stored.has_unit))?;
    *last = Some((stored.format, disk::fingerprint(bytes)));
    (*last == unit).then_some(StoredBlock { format, sub, is_new_unit: true })
}

/// Returns what lists call the store of a file: the model's name and the file's.
fn label(file: &GgufFile) -> String {
    let name = file.metadata().str("general.name").ok().flatten();
    let path = file.paths().next().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    match (name, path) {
        (Some(name), Some(path)) => format!("{name} ({path})"),
        (name, path) => name.map(str::to_owned).or(path).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruvllm_kvcache::{KvLayout, LayerKv, NamespaceBuilder, Sequence};

    /// Computes `n` tokens that begin with `first`; every block holds its own number.
    fn compute(pool: &mut BlockPool, cache: &mut PrefixCache, namespace: Namespace, first: u32, n: usize) -> Vec<u32> {
        let tokens: Vec<u32> = (first..first + n as u32).collect();
        let mut sequence = cache.lookup(namespace, &tokens, n);
        assert!(sequence.is_empty());
        cache.reserve(pool, &mut sequence, n).expect("there is room");
        sequence.advance(n);
        let blocks: Vec<KvBlock> = sequence.blocks().collect();
        for (i, &block) in blocks.iter().enumerate() {
            pool.write_block(block, &vec![first as u8 + i as u8; pool.unit_bytes(KvFormat::F16)]);
        }
        cache.insert(namespace, &tokens, &sequence);
        tokens
    }

    fn open(folder: &Path, queue_bytes: usize) -> Persist {
        let options = StoreOptions { queue_bytes, ..StoreOptions::new([3; 32]) };
        let store = DiskStore::open(folder, options).expect("a folder");
        let folder = folder.to_owned();
        Persist { store, identity: [3; 32], folder, payload: Vec::new(), n_tokens_read: 0, is_behind: false }
    }

    #[test]
    fn what_found_no_room_in_the_queue_is_written_at_the_end() {
        let layout = KvLayout { layers: vec![LayerKv { n_kv_heads: 1, k_dim: 8, v_dim: 8 }] };
        let pool = || BlockPool::new(&layout, KvFormat::F16, 64);
        let (folder, namespace) = (tempfile::tempdir().expect("a folder"), NamespaceBuilder::new("test").finish());
        let (mut first, mut texts) = (pool(), Vec::new());
        let mut cache = PrefixCache::new(&first, first.n_bytes());
        // Room for two blocks at a time.
        let mut persist = open(folder.path(), 2 * first.unit_bytes(KvFormat::F16));
        for text in 0..3 {
            texts.push(compute(&mut first, &mut cache, namespace, 100 * text, 160));
        }
        for prefix in cache.prefixes() {
            persist.offer(&first, namespace, &prefix.tokens, prefix.blocks.iter().copied());
        }
        persist.is_behind = true;
        persist.catch_up(&first, &cache, true);
        drop((cache, persist));

        let (mut second, mut persist) = (pool(), open(folder.path(), 1 << 20));
        let mut cache = PrefixCache::new(&second, second.n_bytes());
        for (text, tokens) in texts.iter().enumerate() {
            let prompt = [tokens, &[7][..]].concat();
            persist.restore(&mut second, &mut cache, namespace, &prompt);
            let sequence = cache.lookup(namespace, &prompt, 200);
            assert_eq!(sequence.len(), 160);
            let mut bytes = vec![0; second.unit_bytes(KvFormat::F16)];
            for (i, block) in sequence.blocks().enumerate() {
                second.read_block(block, &mut bytes);
                assert!(bytes.iter().all(|&byte| byte == 100 * text as u8 + i as u8), "text {text}, block {i}");
            }
        }
        assert_eq!(persist.n_tokens_read, 480);
        // A pool with no room takes what fits, and the rest is computed.
        let (mut small, mut found) = (BlockPool::new(&layout, KvFormat::F16, 4), Vec::new());
        let mut cache = PrefixCache::new(&small, small.n_bytes());
        persist.restore(&mut small, &mut cache, namespace, &texts[0]);
        found.push(cache.n_cached(namespace, &texts[0]));
        // Another element type reads nothing.
        let mut wide = BlockPool::new(&layout, KvFormat::F32, 64);
        let mut cache = PrefixCache::new(&wide, wide.n_bytes());
        persist.restore(&mut wide, &mut cache, namespace, &texts[0]);
        found.push(cache.n_cached(namespace, &texts[0]));
        assert_eq!(found, [64, 0]);
    }

    /// Returns a sequence of what a store has of `tokens`.
    fn restored(persist: &mut Persist, pool: &mut BlockPool, namespace: Namespace, tokens: &[u32]) -> Sequence {
        let mut cache = PrefixCache::new(pool, pool.n_bytes());
        let prompt = [tokens, &[7][..]].concat();
        persist.restore(pool, &mut cache, namespace, &prompt);
        cache.lookup(namespace, &prompt, prompt.len())
    }

    /// Units of four blocks: whole, cut by another ending, and behind blocks that were stored before they were packed.
    #[test]
    fn units_of_four_blocks_come_back_as_they_were() {
        use KvFormat::{F16, Q4};
        let layout = KvLayout { layers: vec![LayerKv { n_kv_heads: 1, k_dim: 8, v_dim: 8 }] };
        let pool = || BlockPool::within(&layout, &[F16, Q4], 8 << 20).expect("a small pool");
        let (folder, namespace) = (tempfile::tempdir().expect("a folder"), NamespaceBuilder::new("test").finish());
        let mut first = pool();
        let mut cache = PrefixCache::new(&first, first.n_bytes());
        let mut persist = open(folder.path(), 1 << 20);
        // What memory holds: an exact block, a unit of four, and half of another.
        let tokens: Vec<u32> = (0..112).collect();
        let bytes = |pool: &BlockPool, format, seed: u8| vec![seed; pool.unit_bytes(format)];
        let subs = [(F16, 0), (Q4, 0), (Q4, 1), (Q4, 2), (Q4, 3), (Q4, 0), (Q4, 1)];
        let (mut i, mut last) = (0, 0);
        let mut read = |_: usize, buffer: &mut Vec<u8>| {
            let (format, sub) = subs[i];
            i += 1;
            let is_new_unit = format == F16 || sub == 0;
            last += u8::from(is_new_unit);
            buffer.clear();
            buffer.resize(layout.unit_bytes(format), last);
            Some(StoredBlock { format, sub, is_new_unit })
        };
        assert_eq!(cache.import(&mut first, namespace, &tokens, &mut read), Ok(112));
        let prefix = cache.prefixes().next().expect("it was imported");
        // Two blocks were stored when nothing was packed yet.
        let mut exact = pool();
        let mut early = PrefixCache::new(&exact, exact.n_bytes());
        compute(&mut exact, &mut early, namespace, 0, 32);
        let before = early.prefixes().next().expect("it was computed");
        persist.offer(&exact, namespace, &before.tokens, before.blocks.iter().copied());
        persist.offer(&first, namespace, &tokens, prefix.blocks.iter().copied());
        // Another ending behind the second block of the first unit.
        let other: Vec<u32> = tokens[..48].iter().copied().chain(900..948).collect();
        let mixed = prefix.blocks[..3].iter().chain(&prefix.blocks[..1]).chain(&prefix.blocks[..2]).copied();
        persist.offer(&first, namespace, &other, mixed);
        persist.store.wait_idle();

        let mut second = pool();
        let sequence = restored(&mut persist, &mut second, namespace, &tokens);
        let blocks: Vec<KvBlock> = sequence.blocks().collect();
        let found: Vec<_> = blocks.iter().map(|block| (block.format(), block.sub())).collect();
        assert_eq!(found, [(F16, 0), (F16, 0), (Q4, 1), (Q4, 2), (Q4, 3), (Q4, 0), (Q4, 1)]);
        for (i, seed) in [(2, 2), (4, 2), (5, 3)] {
            let mut read = vec![0; second.unit_bytes(Q4)];
            second.read_block(blocks[i], &mut read);
            assert_eq!(read, bytes(&second, Q4, seed), "block {i}");
        }
        assert!(blocks[2].unit() == blocks[4].unit() && blocks[5].unit() != blocks[4].unit());
        drop(sequence);
        assert_eq!(second.stats().in_use, 0, "the cache is gone, and what a unit had too much of with it");
        let sequence = restored(&mut persist, &mut pool(), namespace, &other);
        let blocks: Vec<KvBlock> = sequence.blocks().collect();
        assert_eq!(blocks[..3].iter().map(|block| block.sub()).collect::<Vec<_>>(), [0, 0, 1]);
        assert_eq!(blocks.len(), 6);
        // What is in memory up to the middle of a unit goes on from there.
        let mut third = pool();
        let mut cache = PrefixCache::new(&third, third.n_bytes());
        persist.restore(&mut third, &mut cache, namespace, &tokens[..49]);
        assert_eq!(cache.n_cached(namespace, &tokens), 48);
        persist.restore(&mut third, &mut cache, namespace, &[&tokens[..], &[7]].concat());
        assert_eq!(cache.n_cached(namespace, &[&tokens[..], &[7]].concat()), 112);
    }
}
