//! The prefix cache's blocks on disk: written behind the work, read back before a prompt is computed.

use std::path::{Path, PathBuf};

use ruvllm_gguf::GgufFile;
use ruvllm_kvcache::disk::{self, BlockRef, DiskStore, Put, StoreOptions};
use ruvllm_kvcache::{BLOCK_TOKENS, BlockId, BlockPool, Namespace, PrefixCache};

use super::content;
use super::load::LoadOptions;
use crate::EngineError;

/// A store on disk behind a prefix cache.
pub(crate) struct Persist {
    pub(crate) store: DiskStore,
    /// The hash of the model's file.
    pub(crate) identity: [u8; 32],
    /// The folder that the store is in, with those of other models.
    pub(crate) folder: PathBuf,
    /// Contents of the block being read.
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
    pub(super) fn open(folder: &Path, file: &GgufFile, options: &LoadOptions) -> Result<Persist, EngineError> {
        let identity = content::identity(file, folder, options.n_threads);
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
        blocks: impl Iterator<Item = BlockId>,
    ) {
        let mut parent = self.store.root(namespace);
        let (whole, _) = tokens.as_chunks::<BLOCK_TOKENS>();
        for (block_idx, (tokens, block)) in whole.iter().zip(blocks).enumerate() {
            let format = disk::format_of(pool.kv_type());
            let about = BlockRef { namespace, parent, block_idx: block_idx as u32, format, tokens };
            let fill = |bytes: &mut [u8]| pool.read_block(block, bytes);
            match self.store.put_block_with(&about, pool.block_bytes(), fill) {
                Put::Queued | Put::Present => parent = about.key(),
                put => {
                    self.is_behind |= put == Put::QueueFull;
                    return;
                }
            }
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
        let (store, payload, format) = (&self.store, &mut self.payload, disk::format_of(pool.kv_type()));
        let mut read = |i: usize, bytes: &mut [u8]| {
            let is_read = store.read_block(&found.keys[i], payload).is_ok_and(|found| found == Some(format));
            let fits = is_read && payload.len() == bytes.len();
            if fits {
                bytes.copy_from_slice(payload);
            }
            fits
        };
        // Where the memory ends, the rest is computed and fails or not as if nothing were stored.
        let _ = prefixes.import(pool, namespace, &tokens[..n_found], &mut read);
        let n_now = prefixes.n_cached(namespace, tokens);
        self.n_tokens_read += n_now.saturating_sub(n_cached) as u64;
    }
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
    use ruvllm_kvcache::{KvLayout, KvType, LayerKv, NamespaceBuilder};

    /// Computes `n` tokens that begin with `first`; every block holds its own number.
    fn compute(pool: &mut BlockPool, cache: &mut PrefixCache, namespace: Namespace, first: u32, n: usize) -> Vec<u32> {
        let tokens: Vec<u32> = (first..first + n as u32).collect();
        let mut sequence = cache.lookup(namespace, &tokens, n);
        assert!(sequence.is_empty());
        cache.reserve(pool, &mut sequence, n).expect("there is room");
        sequence.advance(n);
        let blocks: Vec<BlockId> = sequence.blocks().collect();
        for (i, &block) in blocks.iter().enumerate() {
            pool.write_block(block, &vec![first as u8 + i as u8; pool.block_bytes()]);
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
        let pool = || BlockPool::new(&layout, KvType::F16, 64);
        let (folder, namespace) = (tempfile::tempdir().expect("a folder"), NamespaceBuilder::new("test").finish());
        let (mut first, mut texts) = (pool(), Vec::new());
        let mut cache = PrefixCache::new(&first, first.n_bytes());
        // Room for two blocks at a time.
        let mut persist = open(folder.path(), 2 * first.block_bytes());
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
            let mut bytes = vec![0; second.block_bytes()];
            for (i, block) in sequence.blocks().enumerate() {
                second.read_block(block, &mut bytes);
                assert!(bytes.iter().all(|&byte| byte == 100 * text as u8 + i as u8), "text {text}, block {i}");
            }
        }
        assert_eq!(persist.n_tokens_read, 480);
        // A pool with no room takes what fits, and the rest is computed.
        let (mut small, mut found) = (BlockPool::new(&layout, KvType::F16, 4), Vec::new());
        let mut cache = PrefixCache::new(&small, small.n_bytes());
        persist.restore(&mut small, &mut cache, namespace, &texts[0]);
        found.push(cache.n_cached(namespace, &texts[0]));
        // Another element type reads nothing.
        let mut wide = BlockPool::new(&layout, KvType::F32, 64);
        let mut cache = PrefixCache::new(&wide, wide.n_bytes());
        persist.restore(&mut wide, &mut cache, namespace, &texts[0]);
        found.push(cache.n_cached(namespace, &texts[0]));
        assert_eq!(found, [64, 0]);
    }
}
