//! What does attention cost at the shapes of real models, and what does each instruction set gain?
//!
//! `decode` is one new token after as many positions as a model's `contexts` say: memory- and latency-bound, so throughput
//! counts the bytes of K and V. `layers` is the same step over all layers of a model after 2,048 positions, each with a cache of its own, on all
//! cores, of one sequence after another until these have more bytes than any cache holds: they come from memory as they do in a
//! real step, whose weights drive them out, so the bytes per second are what a long context gets.
//! `prefill` is 512 tokens of a prompt, alone and as the last of each of the `contexts`: compute-bound, so throughput counts
//! multiply-adds (of visible positions, `k_dim + v_dim` per head). `store` writes keys and values of 512 tokens. f16 cache; one
//! thread but for `layers`.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ruvllm_benches::{criterion, runs_as_test, values};
use ruvllm_cpu::ThreadPool;
use ruvllm_cpu::arena::PageRange;
use ruvllm_kernels::attention::{
    self, AttentionKernels, Inputs, KvBlock, KvFormat, KvLayer, KvShape, KvUnits, KvUnitsMut, Limits, Options, Scratch,
    Segment,
};

/// Heads of a model.
struct Model {
    name: &'static str,
    n_layers: usize,
    n_heads: usize,
    n_kv_heads: usize,
    /// Length of a head.
    dim: usize,
    /// Positions that a row looks back at.
    contexts: [usize; 2],
}

const MODELS: [Model; 4] = [
    Model { name: "smollm2-135m", n_layers: 30, n_heads: 9, n_kv_heads: 3, dim: 64, contexts: [256, 2048] },
    Model { name: "qwen2.5-0.5b", n_layers: 24, n_heads: 14, n_kv_heads: 2, dim: 64, contexts: [256, 2048] },
    Model { name: "gemma3-270m", n_layers: 18, n_heads: 4, n_kv_heads: 1, dim: 256, contexts: [256, 2048] },
    Model { name: "llama8b", n_layers: 32, n_heads: 32, n_kv_heads: 8, dim: 128, contexts: [4096, 32_768] },
];

/// Rows of a pass of prefill that is measured.
const PREFILL: usize = 512;

impl Model {
    /// Returns the `contexts`, in a test run none longer than a prefill.
    fn contexts(&self) -> [usize; 2] {
        self.contexts.map(|n_kv| if runs_as_test() { n_kv.min(PREFILL) } else { n_kv })
    }

    /// Returns the bytes of keys and values of a layer after `n_kv` positions.
    fn layer_bytes(&self, n_kv: usize) -> usize {
        2 * 2 * n_kv * self.n_kv_heads * self.dim
    }
}

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
    fn new(model: &Model, n_layers: usize, n_kv: usize) -> Layers {
        let &Model { n_heads, n_kv_heads, dim, .. } = model;
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
    for model in &MODELS {
        for (n_kv, n_stored) in model.contexts.into_iter().zip(model.contexts()) {
            let layer = Layers::new(model, 1, n_stored);
            let mut group = c.benchmark_group(format!("attention/decode/{}/{n_kv}", model.name));
            group.throughput(Throughput::Bytes(model.layer_bytes(n_kv) as u64));
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
    for model in &MODELS {
        let n_bytes = model.n_layers * model.layer_bytes(N);
        let of_sequence = |_| Layers::new(model, model.n_layers, N);
        let sequences: Vec<_> = (0..COLD_BYTES.div_ceil(n_bytes)).map(of_sequence).collect();
        let mut group = c.benchmark_group(format!("attention/layers/{}/{N}", model.name));
        group.throughput(Throughput::Bytes((sequences.len() * n_bytes) as u64));
        let mut rows = Rows::new(&sequences[0], &threads, 1);
        for table in attention::available() {
            let mut all = || {
                for sequence in &sequences {
                    (0..model.n_layers).for_each(|layer| sequence.step(layer, table, &threads, &mut rows));
                }
            };
            group.bench_function(table.isa().name(), |b| b.iter(&mut all));
        }
    }
}

fn prefill(c: &mut Criterion) {
    let threads = ThreadPool::new(1);
    for model in &MODELS {
        let [short, long] = model.contexts();
        let mut contexts = vec![PREFILL, short, long];
        contexts.retain(|&n_kv| n_kv >= PREFILL);
        contexts.dedup();
        for n_kv in contexts {
            let layer = Layers::new(model, 1, n_kv);
            let mut group = c.benchmark_group(format!("attention/prefill/{}/{n_kv}", model.name));
            let n_seen = PREFILL * (n_kv - PREFILL) + PREFILL * (PREFILL + 1) / 2;
            group.throughput(Throughput::Elements((n_seen * model.n_heads * 2 * model.dim) as u64));
            let mut rows = Rows::new(&layer, &threads, PREFILL);
            for table in attention::available() {
                group.bench_function(table.isa().name(), |b| b.iter(|| layer.step(0, table, &threads, &mut rows)));
            }
        }
    }
}

fn store(c: &mut Criterion) {
    let threads = ThreadPool::new(1);
    let model = &MODELS[0];
    let mut layer = Layers::new(model, 1, PREFILL);
    let n_values = PREFILL * model.n_kv_heads * model.dim;
    let (k, v) = (values(n_values, 4), values(n_values, 5));
    let mut group = c.benchmark_group("attention/store");
    group.throughput(Throughput::Elements(2 * k.len() as u64));
    group.bench_function(model.name, |b| b.iter(|| layer.store(0, &threads, &k, &v)));
}

criterion_group!(name = benches; config = criterion(); targets = decode, layers, prefill, store);
criterion_main!(benches);
