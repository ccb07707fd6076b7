//! The cache over a real pool: every block is checked against the tokens that must have written it.

use super::*;
use crate::key::NamespaceBuilder;
use crate::pool::KvLayout;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use ruvllm_kernels::attention::KvShape;
use ruvllm_kernels::team::Team;
use std::collections::HashSet;

const SHAPE: KvShape = KvShape { n_kv_heads: 1, k_dim: 1, v_dim: 1 };

fn namespace(salt: u32) -> Namespace {
    NamespaceBuilder::new("test").part("salt", &salt.to_le_bytes()).finish()
}

/// A hash over everything that a position's keys and values depend on: the namespace and all tokens up to it.
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
    team: Team,
    pool: BlockPool,
    cache: PrefixCache,
    running: Vec<Running>,
}

struct Running {
    sequence: Sequence,
    tokens: Vec<u32>,
    salt: u32,
}

impl World {
    fn new(n_blocks: usize, n_cached_max: usize) -> World {
        let pool = BlockPool::new(&KvLayout { layers: vec![SHAPE] }, KvFormat::F32, n_blocks);
        let cache = PrefixCache::new(&pool, n_cached_max * pool.block_bytes(KvFormat::F32));
        World { team: Team::new(1), pool, cache, running: Vec::new() }
    }

    /// Opens a sequence for `tokens` and computes what is not known. Returns whether the pool had room.
    fn open(&mut self, salt: u32, tokens: Vec<u32>, capacity: usize) -> Result<bool, String> {
        let expected = self.cache.n_cached(namespace(salt), &tokens);
        let sequence = self.cache.lookup(namespace(salt), &tokens, capacity);
        if sequence.len() >= tokens.len() || sequence.len() != expected {
            return Err(format!("{} of {} tokens found, {expected} told", sequence.len(), tokens.len()));
        }
        let mut running = Running { sequence, tokens: Vec::new(), salt };
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
        let rows: Vec<[f32; 2]> = tokens.iter().map(|&token| chain.push(token)).collect();
        let [k, v] = [0, 1].map(|i| rows.iter().map(|row| row[i]).collect::<Vec<_>>());
        self.pool.write_rows(&self.team, 0, &[running.sequence.segment(0, tokens.len())], &k, &v);
        running.sequence.advance(tokens.len());
        running.tokens.extend_from_slice(tokens);
        true
    }

    /// Fails where a position does not hold what its tokens write.
    fn check_contents(&self, running: &Running) -> Result<(), String> {
        let layer = self.pool.layer(0);
        let units = layer.units(KvFormat::F32);
        let at = |unit: usize, i: usize| {
            bytemuck::pod_read_unaligned::<f32>(&units.bytes[unit * units.stride + 4 * i..][..4])
        };
        let mut chain = Chain::new(running.salt);
        for (pos, &token) in running.tokens.iter().enumerate() {
            let unit = running.sequence.blocks[pos / BLOCK_TOKENS].unit();
            let slot = pos % BLOCK_TOKENS;
            let held = [at(unit, units.k_at / 4 + slot), at(unit, units.v_at / 4 + slot * SHAPE.v_stride())];
            if held != chain.push(token) {
                return Err(format!("position {pos} of {} is stale", running.tokens.len()));
            }
        }
        Ok(())
    }

    /// Free + cached only + in use = total, where the parts are counted from their owners.
    fn check_law(&self) -> Result<(), String> {
        let usage = self.cache.usage();
        let used: HashSet<KvBlock> = self.running.iter().flat_map(|r| r.sequence.blocks.iter().copied()).collect();
        let cached: HashSet<KvBlock> = self.cache.tree.all_blocks().collect();
        let cached_only = cached.difference(&used).count();
        let expected = Usage { total: usage.total, free: self.pool.stats().free, cached_only, in_use: used.len() };
        let holds = usage.free + usage.cached_only + usage.in_use == usage.total;
        if usage != expected || !holds || cached.len() != self.cache.tree.n_blocks().iter().sum::<usize>() {
            return Err(format!("{usage:?}, counted {expected:?}"));
        }
        let owners = self.running.iter().map(|r| r.sequence.blocks.len()).sum::<usize>() + cached.len();
        if owners != self.pool.stats().references {
            return Err(format!("{owners} owners of {} references", self.pool.stats().references));
        }
        Ok(())
    }

    fn end(&mut self, index: usize, keep: bool) {
        let Running { sequence, tokens, salt } = self.running.swap_remove(index);
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
            let len = 1 + prompts.below(70);
            let tokens = prompts.tokens(len);
            world.open(salt, tokens, 100)?;
        }
        6..11 if n > 0 => {
            // Goes on by a few tokens, up to its capacity.
            let i = prompts.below(n);
            let mut running = world.running.swap_remove(i);
            let len = (1 + prompts.below(12)).min(100 - running.tokens.len());
            let more: Vec<u32> = (0..len).map(|_| prompts.below(3) as u32).collect();
            world.compute(&mut running, &more);
            world.check_contents(&running)?;
            world.running.push(running);
        }
        11 if n > 0 => {
            let running = &world.running[prompts.below(n)];
            let len = prompts.below(running.tokens.len() + 1);
            let sequence = world.pool.fork(&running.sequence, len);
            let fork = Running { sequence, tokens: running.tokens[..len].to_vec(), salt: running.salt };
            world.running.push(fork);
        }
        12 if n > 0 => {
            let i = prompts.below(n);
            let Running { sequence, tokens, salt } = &world.running[i];
            let whole = tokens.len() / BLOCK_TOKENS * BLOCK_TOKENS;
            world.cache.insert(namespace(*salt), &tokens[..whole], sequence);
        }
        13 => drop(world.cache.evict(prompts.below(8))),
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
    assert_eq!(world.cache.usage(), Usage { total: 4, free: 2, cached_only: 2, in_use: 0 });
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
    let stored: Vec<(CachedPrefix, Vec<Vec<u8>>)> = world
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
            Some(Piece { format: KvFormat::F32, sub: 0, is_new_unit: true })
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
        Some(Piece { format: KvFormat::F32, sub: 0, is_new_unit: true })
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
