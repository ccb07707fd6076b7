//! Blocks for the tests of the store, whose contents follow from their keys, so that any block can be checked.

mod behaviour;
mod crash_recovery;
mod damage;
mod faults;
mod limit;

use std::path::Path;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::{BlockKey, BlockRef, DiskStore, FsyncPolicy, Prefix, Put, StoreOptions};
use crate::key::Namespace;
use crate::{DiskFault, KvError, KvErrorKind};

const IDENTITY: [u8; 32] = [7; 32];

/// Seeded numbers.
struct Rng(ChaCha8Rng);

impl Rng {
    fn new(seed: u64) -> Rng {
        Rng(ChaCha8Rng::seed_from_u64(seed))
    }

    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// A prefix of blocks that can be made again from its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chain {
    namespace: Namespace,
    seed: u64,
}

impl Chain {
    fn new(seed: u64) -> Chain {
        Chain { namespace: namespace_of((seed % 3) as u128), seed }
    }

    /// Returns the tokens of its first `n_blocks` blocks.
    fn tokens(&self, n_blocks: usize) -> Vec<u32> {
        (0..n_blocks).flat_map(|block_idx| self.block_tokens(block_idx)).collect()
    }

    fn block_tokens(&self, block_idx: usize) -> [u32; 16] {
        let mut rng = Rng::new(self.seed << 32 | block_idx as u64);
        [(); 16].map(|()| rng.next() as u32)
    }

    /// Puts a block; the blocks before it must have been put.
    fn put(&self, store: &DiskStore, block_idx: usize) -> Put {
        let before = self.tokens(block_idx);
        let parent = before.chunks(16).fold(store.root(self.namespace), |parent, tokens| parent.child(tokens));
        self.put_after(store, block_idx, parent).0
    }

    /// Puts the block after `parent`, and returns its key too.
    fn put_after(&self, store: &DiskStore, block_idx: usize, parent: BlockKey) -> (Put, BlockKey) {
        let tokens = &self.block_tokens(block_idx);
        let block = BlockRef {
            namespace: self.namespace,
            parent,
            block_idx: block_idx as u32,
            format: block_idx as u32 % 3,
            tokens,
        };
        let payload = payload(&block.key());
        let (head, tail) = payload.split_at(payload.len() / 3);
        (store.put_block(&block, &[head, tail]), block.key())
    }

    fn put_all(&self, store: &DiskStore, n_blocks: usize) {
        for block_idx in 0..n_blocks {
            assert_eq!(self.put(store, block_idx), Put::Queued, "block {block_idx}");
        }
    }

    fn find(&self, store: &DiskStore, n_blocks: usize) -> Prefix {
        store.find_prefix(self.namespace, &self.tokens(n_blocks))
    }

    /// Returns how many of the first `n_blocks` blocks are stored and intact, checking the contents of each.
    fn n_intact(&self, store: &DiskStore, n_blocks: usize) -> usize {
        let mut buffer = Vec::new();
        let keys = self.find(store, n_blocks).keys;
        keys.iter()
            .zip(0..)
            .take_while(|&(key, block_idx)| {
                let Some(format) = store.read_block(key, &mut buffer).expect("files can be read") else { return false };
                assert!(buffer == payload(key) && format == block_idx % 3, "wrong contents for {key:?}");
                true
            })
            .count()
    }
}

/// Returns the contents of a block: up to 4 KiB that follow from its key.
fn payload(key: &BlockKey) -> Vec<u8> {
    let mut rng = Rng::new(u64::from_le_bytes(*key.0.first_chunk().expect("a key has 16 bytes")));
    let n = rng.below(4096);
    (0..n).map(|_| rng.next() as u8).collect()
}

/// Small segments, so that there are many.
fn options(max_bytes: u64) -> StoreOptions {
    let fsync = FsyncPolicy::Interval(Duration::from_millis(5));
    StoreOptions { max_bytes, segment_bytes: 32 << 10, fsync, ..StoreOptions::new(IDENTITY) }
}

fn open(folder: &Path) -> DiskStore {
    DiskStore::open(folder, options(16 << 20)).expect("the folder can be used")
}

fn fault<T>(result: Result<T, KvError>) -> (DiskFault, String) {
    let error = result.err().expect("it is refused");
    match error.kind() {
        KvErrorKind::Disk(fault) => (fault, error.to_string()),
        kind => panic!("unexpected {kind:?}"),
    }
}

/// Returns the bytes of all files in a folder.
fn bytes_in(folder: &Path) -> u64 {
    let length =
        |entry: std::io::Result<std::fs::DirEntry>| entry.and_then(|entry| entry.metadata()).map_or(0, |m| m.len());
    std::fs::read_dir(folder).expect("a folder").map(length).sum()
}

/// A namespace with a number for a name.
fn namespace_of(number: u128) -> Namespace {
    Namespace::from_bytes(number.to_le_bytes())
}
