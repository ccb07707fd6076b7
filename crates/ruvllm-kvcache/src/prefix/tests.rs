//! The cache over a real pool: every block is checked against the tokens that must have written it.

use super::*;
use crate::budget::PAGE_BYTES;
use crate::key::NamespaceBuilder;
use crate::policy::{Ageing, KvPolicy};
use crate::pool::{KvLayout, Quantizer};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use ruvllm_cpu::ThreadPool;
use ruvllm_kernels::Isa;
use ruvllm_kernels::attention::{self, KvShape};
use std::collections::HashSet;

fn namespace(salt: u32) -> Namespace {
    NamespaceBuilder::new("test").part("salt", &salt.to_le_bytes()).finish()
}

/// A hash over everything that a position's KV cache depends on: the namespace and all tokens up to it.
#[derive(Clone, Copy)]
struct Chain(u64);

impl Chain {
    fn new(salt: u32) -> Chain {
        Chain(u64::from(salt) ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// Takes a token and returns what its position holds: two halves of 24 bits, exact in f32.
    fn push(&mut self, token: u32) -> [f32; 2] {
        self.0 = (self.0 ^ u64::from(token)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        self.0 ^= self.0 >> 29;
        [(self.0 >> 40) as f32, (self.0 & 0xff_ffff) as f32]
    }
}

/// A pool and cache that "compute" by writing hashes.
struct World {
    threads: ThreadPool,
    policy: KvPolicy,
    layers: Vec<KvShape>,
    pool: BlockPool,
    cache: PrefixCache,
    running: Vec<Running>,
    bytes_max: usize,
    /// Tokens that a sequence can have.
    len_max: usize,
}

struct Running {
    sequence: Sequence,
    tokens: Vec<u32>,
    salt: u32,
    ageing: Ageing,
}

impl World {
    /// Blocks of a few bytes that are all exact.
    fn new(n_blocks: usize, n_cached_max: usize) -> World {
        let layers = vec![KvShape { n_kv_heads: 1, k_dim: 1, v_dim: 1 }];
        let pool = BlockPool::new(&KvLayout { layers: layers.clone() }, KvFormat::F32, n_blocks);
        World::over(pool, layers, KvPolicy::F32, n_cached_max, 100)
    }

    /// Blocks of 48 KiB (f16) that age, in so many pages.
    fn ageing(policy: KvPolicy, n_pages: usize, n_cached_max: usize) -> World {
        let layers = vec![KvShape { n_kv_heads: 2, k_dim: 64, v_dim: 64 }; 6];
        let layout = KvLayout { layers: layers.clone() };
        let pool = BlockPool::within(&layout, policy.formats(), n_pages * PAGE_BYTES).expect("addresses are there");
        World::over(pool, layers, policy, n_cached_max, 400)
    }

    fn over(pool: BlockPool, layers: Vec<KvShape>, policy: KvPolicy, n_cached_max: usize, len_max: usize) -> World {
        let cache = PrefixCache::new(&pool, n_cached_max * pool.block_bytes(pool.exact_format()));
        let bytes_max = pool.n_bytes().next_multiple_of(PAGE_BYTES);
        World { threads: ThreadPool::new(1), policy, layers, pool, cache, running: Vec::new(), bytes_max, len_max }
    }

    /// Returns what a position holds after `hash`: in few bits, numbers that halves hold exactly.
    fn held(&self, hash: [f32; 2]) -> [f32; 2] {
        if self.policy == KvPolicy::F32 { hash } else { hash.map(|x| (x / 8192.0).floor()) }
    }

    /// Opens a sequence for `tokens` and computes what is not known. Returns whether the pool had room.
    fn open(&mut self, salt: u32, tokens: Vec<u32>, capacity: usize) -> Result<bool, String> {
        let expected = self.cache.n_cached(namespace(salt), &tokens);
        let sequence = self.cache.lookup(namespace(salt), &tokens, capacity);
        if sequence.len() >= tokens.len() || sequence.len() != expected {
            return Err(format!("{} of {} tokens found, {expected} told", sequence.len(), tokens.len()));
        }
        let mut running = Running { sequence, tokens: Vec::new(), salt, ageing: Ageing::default() };
        let (known, new) = tokens.split_at(running.sequence.len());
        running.tokens.extend_from_slice(known);
        self.check_contents(&running)?;
        let has_room = self.compute(&mut running, new);
        self.running.push(running);
        Ok(has_room)
    }

    fn compute(&mut self, running: &mut Running, tokens: &[u32]) -> bool {
        if self.cache.reserve(&mut self.pool, &mut running.sequence, tokens.len()).is_err() {
            return false;
        }
        let mut chain = Chain::new(running.salt);
        running.tokens.iter().for_each(|&token| {
            chain.push(token);
        });
        let rows: Vec<[f32; 2]> = tokens.iter().map(|&token| self.held(chain.push(token))).collect();
        // A position's number is in the first column of the first head; the others are 0.
        let KvShape { n_kv_heads, k_dim, v_dim } = self.layers[0];
        let widths = [n_kv_heads * k_dim, n_kv_heads * v_dim];
        let mut kv = widths.map(|width| vec![0.0; rows.len() * width]);
        for (i, width) in widths.into_iter().enumerate() {
            rows.iter().zip(kv[i].chunks_exact_mut(width)).for_each(|(row, to)| to[0] = row[i]);
        }
        for layer in 0..self.layers.len() {
            let segments = [running.sequence.segment(0, tokens.len())];
            self.pool.write_rows(&self.threads, layer, &segments, &kv[0], &kv[1]);
        }
        running.sequence.advance(tokens.len());
        running.tokens.extend_from_slice(tokens);
        let quantizer = Quantizer { table: attention::pick(Isa::best()), threads: &self.threads };
        self.pool.age(quantizer, &mut running.sequence, &mut running.ageing, self.policy, 8);
        true
    }

    /// Fails where a position does not hold what its tokens write, within what its format loses.
    fn check_contents(&self, running: &Running) -> Result<(), String> {
        let (layer, shape) = (self.layers.len() - 1, self.layers[0]);
        let (view, table) = (self.pool.layer(layer), attention::pick(Isa::best()));
        let (mut k, mut v) = (vec![0.0; shape.k_block_len()], vec![0.0; shape.v_block_len()]);
        let mut chain = Chain::new(running.salt);
        for (i, tokens) in running.tokens.chunks(BLOCK_TOKENS).enumerate() {
            let block = running.sequence.blocks[i];
            table.dequantize(shape, view.part(shape, block), &mut k, &mut v);
            // Numbers up to 2047: half a step of 2047/127, and of 2047/15 beside it.
            let bound = [0.0, 0.0, 8.2, 77.0, 350.0][block.format() as usize];
            for (slot, &token) in tokens.iter().enumerate() {
                let expected = self.held(chain.push(token));
                let held = [k[slot], v[slot * shape.v_stride()]];
                if held.iter().zip(expected).any(|(held, expected)| (held - expected).abs() > bound) {
                    let pos = i * BLOCK_TOKENS + slot;
                    return Err(format!("position {pos} of {} is stale", running.tokens.len()));
                }
            }
        }
        Ok(())
    }

    /// Free + cached only + in use = total, where the parts are counted from their owners.
    fn check_law(&self) -> Result<(), String> {
        let usage = self.cache.usage(&self.pool);
        let used: HashSet<KvBlock> = self.running.iter().flat_map(|r| r.sequence.blocks.iter().copied()).collect();
        let cached: HashSet<KvBlock> = self.cache.tree.all_blocks().collect();
        let cached_only = cached.difference(&used).count();
        let bytes =
            |blocks: &mut dyn Iterator<Item = &KvBlock>| blocks.map(|b| self.pool.block_bytes(b.format())).sum();
        let expected = Usage {
            total: usage.total,
            free: self.pool.stats().free,
            cached_only,
            in_use: used.len(),
            cached_only_bytes: bytes(&mut cached.difference(&used)),
            in_use_bytes: bytes(&mut used.iter()),
            committed_bytes: self.pool.committed_bytes(),
        };
        let holds = usage.free + usage.cached_only + usage.in_use == usage.total;
        if usage != expected || !holds || cached.len() != self.cache.tree.n_blocks().iter().sum::<usize>() {
            return Err(format!("{usage:?}, counted {expected:?}"));
        }
        let owners = self.running.iter().map(|r| r.sequence.blocks.len()).sum::<usize>() + cached.len();
        if usage.committed_bytes > self.bytes_max {
            return Err(format!("{} bytes committed of {}", usage.committed_bytes, self.bytes_max));
        }
        if owners != self.pool.stats().references {
            return Err(format!("{owners} owners of {} references", self.pool.stats().references));
        }
        Ok(())
    }

    fn end(&mut self, index: usize, keep: bool) {
        let Running { sequence, tokens, salt, .. } = self.running.swap_remove(index);
        if keep {
            self.cache.insert(namespace(salt), &tokens, &sequence);
        }
        drop(sequence);
        self.cache.trim();
    }
}

/// Random prompts that meet and part at every place: walks through a few "documents" with rare typing errors.
struct Prompts(ChaCha8Rng);

impl Prompts {
    fn below(&mut self, n: usize) -> usize {
        (self.0.next_u32() as usize) % n
    }

    fn tokens(&mut self, n: usize) -> Vec<u32> {
        let mut document = self.below(3) as u32;
        (0..n as u32)
            .map(|i| {
                if self.below(40) == 0 {
                    document = self.below(6) as u32;
                }
                document * 1000 + i
            })
            .collect()
    }
}

/// One random step of everything that can happen.
fn step(world: &mut World, prompts: &mut Prompts) -> Result<(), String> {
    let salt = [0, 0, 0, 1, 2][prompts.below(5)];
    let n = world.running.len();
    match prompts.below(20) {
        0..6 if n < 6 => {
            let len = 1 + prompts.below(world.len_max * 7 / 10);
            let tokens = prompts.tokens(len);
            world.open(salt, tokens, world.len_max)?;
        }
        6..11 if n > 0 => {
            // Goes on by a few tokens, up to its capacity.
            let i = prompts.below(n);
            let mut running = world.running.swap_remove(i);
            let len = (1 + prompts.below(12)).min(world.len_max - running.tokens.len());
            let more: Vec<u32> = (0..len).map(|_| prompts.below(3) as u32).collect();
            world.compute(&mut running, &more);
            world.check_contents(&running)?;
            world.running.push(running);
        }
        11 if n > 0 => {
            let running = &world.running[prompts.below(n)];
            let mut len = prompts.below(running.tokens.len() + 1);
            if world.policy != KvPolicy::F32 {
                // Inside a block of few bits the fork would begin with what that holds.
                len -= len % BLOCK_TOKENS;
            }
            let sequence = world.pool.fork(&running.sequence, len);
            let Running { salt, ageing, .. } = *running;
            let fork = Running { sequence, tokens: running.tokens[..len].to_vec(), salt, ageing };
            world.running.push(fork);
        }
        12 if n > 0 => {
            let i = prompts.below(n);
            let Running { sequence, tokens, salt, .. } = &world.running[i];
            let whole = tokens.len() / BLOCK_TOKENS * BLOCK_TOKENS;
            world.cache.insert(namespace(*salt), &tokens[..whole], sequence);
        }
        13 if prompts.below(2) == 0 => drop(world.cache.evict(prompts.below(8))),
        13 => {
            let quantizer = Quantizer { table: attention::pick(Isa::best()), threads: &world.threads };
            world.cache.quantize(&mut world.pool, quantizer, prompts.below(12));
            world.pool.reclaim(prompts.below(2) * PAGE_BYTES);
        }
        14 if prompts.below(200) == 0 => world.cache.remove(namespace(salt)),
        14 if prompts.below(400) == 0 => world.cache.clear(),
        _ if n > 0 => {
            let keep = prompts.below(5) > 0;
            world.end(prompts.below(n), keep);
        }
        _ => {}
    }
    world.check_law()
}

/// Issue "The KV cache", 2: 200,000 steps; after each one the law, and everything found holds what its tokens wrote.
#[test]
fn random_steps_find_nothing_stale_and_lose_no_block() {
    for (seed, n_blocks, n_cached_max) in [(1, 24, 1000), (2, 24, 9), (3, 60, 40), (4, 200, 200)] {
        let mut world = World::new(n_blocks, n_cached_max);
        let mut prompts = Prompts(ChaCha8Rng::seed_from_u64(seed));
        for i in 0..50_000 {
            step(&mut world, &mut prompts).unwrap_or_else(|error| panic!("seed {seed}, step {i}: {error}"));
        }
        let stats = world.cache.stats();
        assert_eq!(stats.lookups, stats.full + stats.partial + stats.misses);
        assert!(stats.partial > 2000 && stats.hit_rate() > 0.1, "seed {seed}: {stats:?}");
        assert!(n_blocks == 200 || stats.evictions > 100, "seed {seed}: {stats:?}");
        world.running.clear();
        drop(world.cache);
        assert_eq!(world.pool.stats().free, n_blocks);
    }
}

/// The same over blocks of several formats: they age, are shared, forked inside, quantised for room and evicted.
#[test]
fn random_steps_over_several_formats_lose_no_block_and_stay_in_their_bytes() {
    let custom = KvPolicy::Tiered { hot: 16, warm: 48 };
    for (seed, policy, n_pages, n_cached_max) in [(5, custom, 2, 1000), (6, custom, 3, 40), (7, custom, 8, 200)] {
        let mut world = World::ageing(policy, n_pages, n_cached_max);
        let mut prompts = Prompts(ChaCha8Rng::seed_from_u64(seed));
        let mut n_seen = [0; KvFormat::COUNT];
        for i in 0..5_000 {
            step(&mut world, &mut prompts).unwrap_or_else(|error| panic!("{policy}, seed {seed}, step {i}: {error}"));
            world.cache.tree.n_blocks().iter().zip(&mut n_seen).for_each(|(n, seen)| *seen += n);
        }
        let stats = world.cache.stats();
        assert!(stats.partial + stats.full > 100, "{policy}: {stats:?}");
        assert!(policy.formats().iter().all(|&format| n_seen[format as usize] > 100), "{policy}: {n_seen:?}");
        assert!(n_pages == 8 || stats.evictions > 20, "{policy}: {stats:?}");
        world.running.clear();
        drop(world.cache);
        world.pool.reclaim(0);
        assert_eq!((world.pool.stats().in_use, world.pool.committed_bytes()), (0, 0));
    }
}

#[test]
fn a_planted_stale_entry_is_caught() {
    let mut world = World::new(24, 24);
    let tokens: Vec<u32> = (0..40).collect();
    assert_eq!(world.open(0, tokens.clone(), 100), Ok(true));
    // The same tokens for another model: its hash is in the namespace, so it finds nothing.
    let Running { sequence, .. } = &world.running[0];
    world.cache.insert(namespace(0), &tokens, sequence);
    assert_eq!(world.cache.n_cached(namespace(1), &tokens), 0);
    // Planted: blocks of one model under the name of the other.
    world.cache.insert(namespace(1), &tokens, sequence);
    assert_eq!(world.open(1, tokens.clone(), 100), Err("position 0 of 39 is stale".to_owned()));
    // Planted: one wrong token inside the second block.
    let mut wrong = tokens.clone();
    wrong[20] = 7;
    let Running { sequence, .. } = &world.running[0];
    world.cache.insert(namespace(0), &wrong, sequence);
    assert_eq!(world.open(0, wrong, 100), Err("position 20 of 39 is stale".to_owned()));
    assert_eq!(world.open(0, tokens, 100), Ok(true));
}

#[test]
fn one_request_may_use_the_whole_pool_and_a_shared_partial_block_gives_way() {
    let mut world = World::new(4, 4);
    assert_eq!(world.open(0, (0..20).collect(), 64), Ok(true));
    world.end(0, true);
    let usage = world.cache.usage(&world.pool);
    assert_eq!((usage.total, usage.free, usage.cached_only, usage.in_use), (4, 2, 2, 0));
    // All four blocks at once, of which the partial one is the cache's as well.
    assert_eq!(world.open(0, (0..64).collect(), 64), Ok(true));
    assert_eq!(world.running[0].sequence.len(), 64);
    assert_eq!(world.check_law(), Ok(()));
    assert_eq!(world.open(1, vec![1], 64), Ok(false));
    assert_eq!(world.check_law(), Ok(()));
}

#[test]
fn the_limit_holds_as_soon_as_sequences_end() {
    let mut world = World::new(64, 3);
    for salt in 0..10 {
        assert_eq!(world.open(salt, (0..70).collect(), 100), Ok(true));
        world.end(0, true);
        let stats = world.cache.stats();
        assert!(stats.bytes <= stats.bytes_max && stats.entries == 1, "{stats:?}");
        assert_eq!(world.cache.n_cached(namespace(salt), &(0..70).collect::<Vec<_>>()), 48);
    }
    assert_eq!(world.cache.stats().misses, 10);
}

#[test]
fn prefixes_come_back_from_a_store() {
    let mut world = World::new(32, 32);
    let prompts: [Vec<u32>; 2] = [(0..52).collect(), (0..40).chain(90..101).collect()];
    for tokens in &prompts {
        assert_eq!(world.open(0, tokens.clone(), 100), Ok(true));
        world.end(0, true);
    }
    let stored: Vec<(PrefixEntry, Vec<Vec<u8>>)> = world
        .cache
        .prefixes()
        .map(|prefix| {
            let read = |&block: &KvBlock| {
                let mut bytes = vec![0; world.pool.unit_bytes(block.format())];
                world.pool.read_block(block, &mut bytes);
                bytes
            };
            let blocks = prefix.blocks.iter().map(read).collect();
            (prefix, blocks)
        })
        .collect();
    assert_eq!(stored.iter().map(|(prefix, _)| prefix.tokens.clone()).collect::<Vec<_>>(), prompts);

    let mut world = World::new(32, 32);
    for (prefix, blocks) in &stored {
        let mut n_read = 0;
        let mut read = |i: usize, bytes: &mut Vec<u8>| {
            n_read += 1;
            bytes.clone_from(&blocks[i]);
            Some(StoredBlock { format: KvFormat::F32, sub: 0, is_new_unit: true })
        };
        let (pool, cache) = (&mut world.pool, &mut world.cache);
        let n = cache.import(pool, prefix.namespace, &prefix.tokens, &mut read).expect("there is room");
        assert_eq!((n, cache.import(pool, prefix.namespace, &prefix.tokens, &mut |_, _| None)), (n, Ok(n)));
        assert!(n == prefix.tokens.len() && n_read > 0 && n_read <= 4);
    }
    for tokens in prompts {
        assert_eq!(world.open(0, tokens, 100), Ok(true));
        assert_eq!(world.check_law(), Ok(()));
    }
    assert_eq!(world.cache.stats().full, 2);
    // A store that breaks off, and a pool that is full.
    let n_bytes = world.pool.unit_bytes(KvFormat::F32);
    let zeros = |bytes: &mut Vec<u8>| {
        bytes.resize(n_bytes, 0);
        Some(StoredBlock { format: KvFormat::F32, sub: 0, is_new_unit: true })
    };
    let long: Vec<u32> = (200..400).collect();
    let n = world
        .cache
        .import(&mut world.pool, namespace(0), &long, &mut |i, bytes| zeros(bytes).filter(|_| i < 2))
        .expect("there is room");
    assert_eq!(n, 32);
    let long: Vec<u32> = (400..2000).collect();
    assert!(world.cache.import(&mut world.pool, namespace(0), &long, &mut |_, bytes| zeros(bytes)).is_err());
    assert_eq!(world.check_law(), Ok(()));
}
