//! What does the prefix cache cost a request? Looking up 4,000 tokens among 10,000 cached prefixes, keeping a prompt of
//! 1,000 new tokens, and making room for one: all on a tree of some 600,000 blocks.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ruvllm_benches::criterion;
use ruvllm_kvcache::{BlockPool, KvFormat, KvLayout, LayerKv, Namespace, NamespaceBuilder, PrefixCache};

const N_PREFIXES: u32 = 10_000;
const N_TOKENS: usize = 4_000;
/// Tokens that a hundred prefixes each have in common.
const N_SHARED: usize = 3_000;

/// Returns the tokens of prefix `i`; no two agree in more than the shared ones and a few.
fn tokens(i: u32) -> Vec<u32> {
    let shared = (0..N_SHARED as u32).map(|j| j * 31 + i / 100);
    shared.chain((N_SHARED as u32..N_TOKENS as u32).map(|j| j * 17 + i * (j % 7 + 1))).collect()
}

struct Filled {
    pool: BlockPool,
    cache: PrefixCache,
    namespace: Namespace,
}

impl Filled {
    /// Fills a cache to the last block of its pool. Blocks are small: what lies in them is not looked at.
    fn new() -> Filled {
        let layout = KvLayout { layers: vec![LayerKv { n_kv_heads: 1, k_dim: 1, v_dim: 1 }] };
        let n_own = (N_TOKENS - N_SHARED).div_ceil(16) + 1;
        let n_blocks = N_PREFIXES as usize * n_own + 100 * N_SHARED.div_ceil(16);
        let pool = BlockPool::new(&layout, KvFormat::F16, n_blocks);
        let cache = PrefixCache::new(&pool, pool.n_bytes());
        let mut filled = Filled { pool, cache, namespace: NamespaceBuilder::new("bench").finish() };
        (0..N_PREFIXES).for_each(|i| filled.keep(&tokens(i)));
        filled
    }

    /// What a request does around its computing.
    fn keep(&mut self, tokens: &[u32]) {
        let mut sequence = self.cache.lookup(self.namespace, tokens, tokens.len());
        let n_new = tokens.len() - sequence.len();
        self.cache.reserve(&mut self.pool, &mut sequence, n_new).expect("cached blocks give way");
        sequence.advance(n_new);
        self.cache.insert(self.namespace, tokens, &sequence);
    }
}

fn lookup(criterion: &mut Criterion) {
    let mut filled = Filled::new();
    let mut group = criterion.benchmark_group("prefix_cache");
    group.throughput(Throughput::Elements(N_TOKENS as u64));
    let queries: Vec<Vec<u32>> = (0..N_PREFIXES).step_by(97).map(tokens).collect();
    let mut next = 0;
    group.bench_function("lookup_4000_of_10000", |bencher| {
        bencher.iter(|| {
            next = (next + 1) % queries.len();
            let sequence = filled.cache.lookup(filled.namespace, &queries[next], N_TOKENS);
            assert_eq!(sequence.len(), N_TOKENS - 1);
            sequence
        });
    });
    let missing: Vec<u32> = (0..N_TOKENS as u32).map(|j| j + 5_000_000).collect();
    group.bench_function("lookup_4000_unknown", |bencher| {
        bencher.iter(|| filled.cache.lookup(filled.namespace, &missing, N_TOKENS));
    });
    // The pool is full: 63 blocks are given up for as many new ones.
    group.throughput(Throughput::Elements(1_000));
    let mut base = 10_000_000;
    group.bench_function("evict_and_insert_1000", |bencher| {
        bencher.iter(|| {
            base += 1_000;
            let fresh: Vec<u32> = (base..base + 1_000).collect();
            filled.keep(&fresh);
        });
    });
    group.finish();
    assert!(filled.cache.stats().bytes <= filled.cache.stats().bytes_max);
}

criterion_group! { name = benches; config = criterion(); targets = lookup }
criterion_main!(benches);
