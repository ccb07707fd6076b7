//! What does attention cost at the shapes of real models, and what does each instruction set gain?
//!
//! `decode` is one new token after 256 and 2,048 positions: memory- and latency-bound, so throughput counts the bytes of
//! K and V. `layers` is the same step over all layers of a model after 2,048 positions, each with a cache of its own, on all
//! cores, of one sequence after another until these have more bytes than any cache holds: they come from memory as they do in a
//! real step, whose weights drive them out, so the bytes per second are what a long context gets.
//! `prefill` is a causal prompt of 512 tokens: compute-bound, so throughput counts multiply-adds (of visible
//! positions, `k_dim + v_dim` per head). `store` writes the keys and values of that prompt. f16 cache; one thread but for `layers`.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ruvllm_benches::{criterion, values};
use ruvllm_kernels::attention::{
    self, AttentionKernels, Inputs, KvBlock, KvFormat, KvLayer, KvShape, KvUnits, KvUnitsMut, Limits, Options, Scratch,
    Segment,
};
use ruvllm_threads::ThreadPool;
use ruvllm_threads::arena::PageRange;

/// Name, query heads, KV heads, length of a head.
const MODELS: [(&str, usize, usize, usize); 3] =
    [("smollm2-135m", 9, 3, 64), ("qwen2.5-0.5b", 14, 2, 64), ("gemma3-270m", 4, 1, 256)];
/// Layers of each.
const N_LAYERS: [usize; 3] = [30, 24, 18];
/// Bytes of keys and values that come from memory.
const COLD_BYTES: usize = 256 << 20;

/// The layers of a model with a filled cache of `n_kv` positions, as the engine keeps it: every layer's part of a block
/// side by side, in large pages.
struct Layers {
    n_heads: usize,
    shape: KvShape,
    n_kv: usize,
    n_layers: usize,
    blocks: Vec<KvBlock>,
    pages: PageRange,
}

impl Layers {
    fn new(n_layers: usize, n_heads: usize, n_kv_heads: usize, dim: usize, n_kv: usize) -> Layers {
        let shape = KvShape { n_kv_heads, k_dim: dim, v_dim: dim };
        let n_blocks = n_kv.div_ceil(attention::BLOCK_TOKENS);
        let blocks = (0..n_blocks).map(|i| KvBlock::new(KvFormat::F16, i)).collect();
        let n_bytes = n_blocks * n_layers * layer_bytes(shape);
        let pages = PageRange::reserve(n_bytes).expect("addresses are there");
        let mut layers = Layers { n_heads, shape, n_kv, n_layers, blocks, pages };
        let (k, v) = (values(n_kv * n_kv_heads * dim, 1), values(n_kv * n_kv_heads * dim, 2));
        (0..n_layers).for_each(|layer| layers.store(layer, &ThreadPool::new(1), &k, &v));
        layers
    }

    /// Bytes of a block, and where a layer's keys and values begin in it.
    fn places(&self, layer: usize) -> (usize, usize, usize) {
        let k_at = layer * layer_bytes(self.shape);
        (self.n_layers * layer_bytes(self.shape), k_at, k_at + KvFormat::F16.k_bytes(self.shape))
    }

    /// Writes all positions of a layer.
    fn store(&mut self, layer: usize, threads: &ThreadPool, k: &[f32], v: &[f32]) {
        let (stride, k_at, v_at) = self.places(layer);
        let segment = Segment { first_row: 0, n_rows: self.n_kv, pos: 0, n_kv: self.n_kv, blocks: &self.blocks };
        let units = KvUnitsMut { format: KvFormat::F16, bytes: &mut self.pages, stride, k_at, v_at };
        attention::store(threads, self.shape, units, &[segment], k, v);
    }

    /// Attends with the last positions of a layer, as many as `rows` are.
    fn step(&self, layer: usize, table: &AttentionKernels, threads: &ThreadPool, rows: &mut Rows) {
        let Layers { n_heads, shape, n_kv, ref blocks, .. } = *self;
        let (stride, k_at, v_at) = self.places(layer);
        let kv = KvLayer::default().with(KvFormat::F16, KvUnits { bytes: &self.pages, stride, k_at, v_at });
        let n_rows = rows.n;
        let segments = [Segment { first_row: 0, n_rows, pos: n_kv - n_rows, n_kv, blocks }];
        let inputs = Inputs { options: &Options::causal(n_heads, shape), kv, segments: &segments, q: &rows.q };
        attention::attend(table, threads, &mut rows.scratch, &inputs, &mut rows.out);
    }
}

/// What all layers' steps share, as in the engine.
struct Rows {
    n: usize,
    q: Vec<f32>,
    out: Vec<f32>,
    scratch: Scratch,
}

impl Rows {
    /// Makes `n` rows for steps of `layers` on `threads`.
    fn new(layers: &Layers, threads: &ThreadPool, n: usize) -> Rows {
        let Layers { n_heads, shape, n_kv, .. } = *layers;
        let limits = Limits { n_heads, k_dim: shape.k_dim, v_dim: shape.v_dim, n_ctx: n_kv };
        let scratch = Scratch::new(threads.n_threads(), limits);
        Rows { n, q: values(n * n_heads * shape.k_dim, 3), out: vec![0.0; n * n_heads * shape.v_dim], scratch }
    }
}

/// Returns the bytes of a layer's part of a block.
fn layer_bytes(shape: KvShape) -> usize {
    KvFormat::F16.k_bytes(shape) + KvFormat::F16.v_bytes(shape)
}

fn decode(c: &mut Criterion) {
    let threads = ThreadPool::new(1);
    for (name, n_heads, n_kv_heads, dim) in MODELS {
        for n_kv in [256, 2048] {
            let layer = Layers::new(1, n_heads, n_kv_heads, dim, n_kv);
            let mut group = c.benchmark_group(format!("attention/decode/{name}/{n_kv}"));
            group.throughput(Throughput::Bytes((2 * 2 * n_kv * n_kv_heads * dim) as u64));
            let mut rows = Rows::new(&layer, &threads, 1);
            for table in attention::available() {
                group.bench_function(table.isa().name(), |b| b.iter(|| layer.step(0, table, &threads, &mut rows)));
            }
        }
    }
}

fn layers(c: &mut Criterion) {
    const N: usize = 2048;
    let threads = ThreadPool::new(std::thread::available_parallelism().map_or(1, usize::from));
    for ((name, n_heads, n_kv_heads, dim), n_layers) in MODELS.into_iter().zip(N_LAYERS) {
        let n_bytes = n_layers * 2 * 2 * N * n_kv_heads * dim;
        let of_sequence = |_| Layers::new(n_layers, n_heads, n_kv_heads, dim, N);
        let sequences: Vec<_> = (0..COLD_BYTES.div_ceil(n_bytes)).map(of_sequence).collect();
        let mut group = c.benchmark_group(format!("attention/layers/{name}/{N}"));
        group.throughput(Throughput::Bytes((sequences.len() * n_bytes) as u64));
        let mut rows = Rows::new(&sequences[0], &threads, 1);
        for table in attention::available() {
            let mut all = || {
                for sequence in &sequences {
                    (0..n_layers).for_each(|layer| sequence.step(layer, table, &threads, &mut rows));
                }
            };
            group.bench_function(table.isa().name(), |b| b.iter(&mut all));
        }
    }
}

fn prefill(c: &mut Criterion) {
    const N: usize = 512;
    let threads = ThreadPool::new(1);
    for (name, n_heads, n_kv_heads, dim) in MODELS {
        let layer = Layers::new(1, n_heads, n_kv_heads, dim, N);
        let mut group = c.benchmark_group(format!("attention/prefill/{name}/{N}"));
        group.throughput(Throughput::Elements((N * (N + 1) / 2 * n_heads * 2 * dim) as u64));
        let mut rows = Rows::new(&layer, &threads, N);
        for table in attention::available() {
            group.bench_function(table.isa().name(), |b| b.iter(|| layer.step(0, table, &threads, &mut rows)));
        }
    }
}

fn store(c: &mut Criterion) {
    const N: usize = 512;
    let threads = ThreadPool::new(1);
    let (_, n_heads, n_kv_heads, dim) = MODELS[0];
    let mut layer = Layers::new(1, n_heads, n_kv_heads, dim, N);
    let (k, v) = (values(N * n_kv_heads * dim, 4), values(N * n_kv_heads * dim, 5));
    let mut group = c.benchmark_group("attention/store");
    group.throughput(Throughput::Elements(2 * k.len() as u64));
    group.bench_function("smollm2-135m", |b| b.iter(|| layer.store(0, &threads, &k, &v)));
}

criterion_group!(name = benches; config = criterion(); targets = decode, layers, prefill, store);
criterion_main!(benches);
