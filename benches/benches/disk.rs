//! What does the cache on disk cost, at the block size of a real model?
//!
//! A block is 16 tokens of SmolLM2-135M in f16: 30 layers × 2 × 192 × 2 bytes × 16 = 368,640 bytes. `put` is what the
//! caller of a generation pays for a block; `append` is a block written by the store's thread, durability apart;
//! `find` and `read` are a prefix of 2,000 tokens (125 blocks) from the system's page cache, checked; `restore` is the
//! same into the prefix cache, as a session does it that is gone on with; `open` reads the descriptions of 10,000 records (of 512 bytes: contents are not read). One thread calls.

use std::cell::Cell;
use std::path::Path;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use ruvllm_benches::{bytes, criterion};
use ruvllm_kvcache::disk::{BlockRef, DiskStore, FsyncPolicy, Put, StoreOptions};
use ruvllm_kvcache::{BlockPool, KvFormat, KvLayout, LayerKv, Namespace, PrefixCache, StoredBlock};

const BLOCK_BYTES: usize = 30 * 2 * 192 * 2 * 16;
const N_BLOCKS: usize = 125;

fn open(folder: &Path) -> DiskStore {
    let options = StoreOptions { fsync: FsyncPolicy::Never, max_bytes: 1 << 30, ..StoreOptions::new([1; 32]) };
    DiskStore::open(folder, options).expect("the folder can be used")
}

/// Puts the blocks of `tokens` in a namespace.
fn put(store: &DiskStore, namespace: Namespace, tokens: &[u32], payload: &[u8]) {
    let mut parent = store.root(namespace);
    for (block_idx, tokens) in tokens.chunks(16).enumerate() {
        let block = BlockRef { namespace, parent, block_idx: block_idx as u32, format: 1, tokens };
        parent = block.key();
        assert_eq!(store.put_block(&block, &[payload]), Put::Queued);
    }
}

fn write(c: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, payload, next) = (open(folder.path()), bytes(BLOCK_BYTES, 1), Cell::new(0));
    let fresh = || {
        store.flush().expect("blocks can be written");
        next.set(next.get() + 1);
        namespace_of(next.get())
    };
    let mut group = c.benchmark_group("disk");
    group.throughput(Throughput::Bytes(BLOCK_BYTES as u64));
    group.bench_function("put", |b| {
        b.iter_batched(fresh, |namespace| put(&store, namespace, &[7; 16], &payload), BatchSize::PerIteration);
    });
    group.bench_function("append", |b| {
        let append = |namespace| {
            put(&store, namespace, &[7; 16], &payload);
            store.flush().expect("the block can be written");
        };
        b.iter_batched(fresh, append, BatchSize::PerIteration);
    });
    group.finish();
}

fn read(c: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let tokens: Vec<u32> = (0..16 * N_BLOCKS as u32).collect();
    put(&store, namespace_of(0), &tokens, &bytes(BLOCK_BYTES, 1));
    store.flush().expect("blocks can be written");
    let prefix = store.find_prefix(namespace_of(0), &tokens);
    assert_eq!(prefix.n_tokens, tokens.len());
    let mut group = c.benchmark_group("disk");
    group.bench_function("find/2000-tokens", |b| b.iter(|| store.find_prefix(namespace_of(0), &tokens)));
    group.throughput(Throughput::Bytes((N_BLOCKS * BLOCK_BYTES) as u64));
    group.bench_function("read/2000-tokens", |b| {
        let mut payload = Vec::new();
        b.iter(|| {
            prefix.keys.iter().all(|key| store.read_block(key, &mut payload).expect("files can be read").is_some())
        });
    });
    let shape = LayerKv { n_kv_heads: 3, k_dim: 64, v_dim: 64 };
    let mut pool = BlockPool::new(&KvLayout { layers: vec![shape; 30] }, KvFormat::F16, N_BLOCKS);
    assert_eq!(pool.unit_bytes(KvFormat::F16), BLOCK_BYTES);
    let mut cache = PrefixCache::new(&pool, pool.n_bytes());
    group.bench_function("restore/2000-tokens", |b| {
        b.iter(|| {
            cache.clear();
            let prefix = store.find_prefix(namespace_of(0), &tokens);
            let mut read = |i: usize, bytes: &mut Vec<u8>| {
                store.read_block(&prefix.keys[i], bytes).expect("files can be read")?;
                Some(StoredBlock { format: KvFormat::F16, sub: 0, is_new_unit: true })
            };
            let n_cached = cache.import(&mut pool, namespace_of(0), &tokens, &mut read).expect("there is room");
            assert_eq!(n_cached, tokens.len());
        });
    });
    group.finish();
}

fn reopen(c: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a folder");
    let (tokens, payload) = ((0..16 * 100).collect::<Vec<u32>>(), bytes(512, 1));
    let store = open(folder.path());
    (0..100).for_each(|i| put(&store, namespace_of(i), &tokens, &payload));
    drop(store);
    let mut group = c.benchmark_group("disk");
    group.throughput(Throughput::Elements(10_000));
    group.bench_function("open/10000-records", |b| {
        b.iter(|| assert_eq!(open(folder.path()).stats().n_blocks, 10_000));
    });
    group.finish();
}

criterion_group! { name = benches; config = criterion(); targets = write, read, reopen }
criterion_main!(benches);

fn namespace_of(number: u128) -> Namespace {
    Namespace::from_bytes(number.to_le_bytes())
}
