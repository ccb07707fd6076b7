//! What does attention cost at the shapes of real models, and what does each instruction set gain?
//!
//! `decode` is one new token after 256 and 2,048 positions: memory- and latency-bound, so throughput counts the bytes of
//! K and V. `layers` is the same step over all layers of a model after 2,048 positions, each with a cache of its own, on all
//! cores: the caches come from memory as they do in a real step, so its bytes per second are what a long context gets.
//! `prefill` is a causal prompt of 512 tokens: compute-bound, so throughput counts multiply-adds (of visible
//! positions, `k_dim + v_dim` per head). `store` writes the keys and values of that prompt. f16 cache; one thread but for `layers`.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use half::f16;
use ruvllm_benches::{criterion, values};
use ruvllm_kernels::attention::{self, Inputs, KvShape, KvSlab, KvSlabMut, Limits, Options, Scratch, Segment, Table};
use ruvllm_kernels::team::Team;

/// Name, query heads, KV heads, length of a head.
const MODELS: [(&str, usize, usize, usize); 3] =
    [("smollm2-135m", 9, 3, 64), ("qwen2.5-0.5b", 14, 2, 64), ("gemma3-270m", 4, 1, 256)];
/// Layers of each.
const N_LAYERS: [usize; 3] = [30, 24, 18];

/// A layer of a model with a filled cache of `n_kv` positions.
struct Layer {
    n_heads: usize,
    shape: KvShape,
    n_kv: usize,
    blocks: Vec<u32>,
    k: Vec<f16>,
    v: Vec<f16>,
}

impl Layer {
    fn new(n_heads: usize, n_kv_heads: usize, dim: usize, n_kv: usize) -> Layer {
        let shape = KvShape { n_kv_heads, k_dim: dim, v_dim: dim };
        let blocks: Vec<u32> = (0..n_kv.div_ceil(attention::BLOCK_TOKENS) as u32).collect();
        let half = |n, seed| values(n, seed).into_iter().map(f16::from_f32).collect();
        let (k, v) = (half(blocks.len() * shape.k_block_len(), 1), half(blocks.len() * shape.v_block_len(), 2));
        Layer { n_heads, shape, n_kv, blocks, k, v }
    }

    /// The last `n_rows` positions as one step.
    fn segment(&self, n_rows: usize) -> Segment<'_> {
        Segment { first_row: 0, n_rows, pos: self.n_kv - n_rows, n_kv: self.n_kv, blocks: &self.blocks }
    }

    /// Returns the step as a closure.
    fn step<'a>(&'a self, table: &'a Table, team: &'a Team, n_rows: usize) -> impl FnMut() + 'a {
        let KvShape { k_dim, v_dim, .. } = self.shape;
        let limits = Limits { n_heads: self.n_heads, k_dim, v_dim, n_ctx: self.n_kv };
        let mut scratch = Scratch::new(team.n_threads(), limits);
        let q = values(n_rows * self.n_heads * k_dim, 3);
        let mut out = vec![0.0; n_rows * self.n_heads * v_dim];
        let options = Options::causal(self.n_heads, self.shape);
        move || {
            let (kv, segments) = (KvSlab::F16 { k: &self.k, v: &self.v }, [self.segment(n_rows)]);
            let inputs = Inputs { options: &options, kv, segments: &segments, q: &q };
            attention::attend(table, team, &mut scratch, &inputs, &mut out);
        }
    }
}

fn decode(c: &mut Criterion) {
    let team = Team::new(1);
    for (name, n_heads, n_kv_heads, dim) in MODELS {
        for n_kv in [256, 2048] {
            let layer = Layer::new(n_heads, n_kv_heads, dim, n_kv);
            let mut group = c.benchmark_group(format!("attention/decode/{name}/{n_kv}"));
            group.throughput(Throughput::Bytes((2 * 2 * n_kv * n_kv_heads * dim) as u64));
            for table in attention::available() {
                group.bench_function(table.isa().name(), |b| b.iter(layer.step(table, &team, 1)));
            }
        }
    }
}

fn layers(c: &mut Criterion) {
    const N: usize = 2048;
    let team = Team::new(std::thread::available_parallelism().map_or(1, usize::from));
    for ((name, n_heads, n_kv_heads, dim), n_layers) in MODELS.into_iter().zip(N_LAYERS) {
        let layers: Vec<Layer> = (0..n_layers).map(|_| Layer::new(n_heads, n_kv_heads, dim, N)).collect();
        let mut group = c.benchmark_group(format!("attention/layers/{name}/{N}"));
        group.throughput(Throughput::Bytes((n_layers * 2 * 2 * N * n_kv_heads * dim) as u64));
        for table in attention::available() {
            let mut steps: Vec<_> = layers.iter().map(|layer| layer.step(table, &team, 1)).collect();
            group.bench_function(table.isa().name(), |b| b.iter(|| steps.iter_mut().for_each(|step| step())));
        }
    }
}

fn prefill(c: &mut Criterion) {
    const N: usize = 512;
    let team = Team::new(1);
    for (name, n_heads, n_kv_heads, dim) in MODELS {
        let layer = Layer::new(n_heads, n_kv_heads, dim, N);
        let mut group = c.benchmark_group(format!("attention/prefill/{name}/{N}"));
        group.throughput(Throughput::Elements((N * (N + 1) / 2 * n_heads * 2 * dim) as u64));
        for table in attention::available() {
            group.bench_function(table.isa().name(), |b| b.iter(layer.step(table, &team, N)));
        }
    }
}

fn store(c: &mut Criterion) {
    const N: usize = 512;
    let team = Team::new(1);
    let (_, n_heads, n_kv_heads, dim) = MODELS[0];
    let mut layer = Layer::new(n_heads, n_kv_heads, dim, N);
    let (k, v) = (values(N * n_kv_heads * dim, 4), values(N * n_kv_heads * dim, 5));
    let mut group = c.benchmark_group("attention/store");
    group.throughput(Throughput::Elements(2 * k.len() as u64));
    let blocks = layer.blocks.clone();
    group.bench_function("smollm2-135m", |b| {
        b.iter(|| {
            let segment = Segment { first_row: 0, n_rows: N, pos: 0, n_kv: N, blocks: &blocks };
            let slab = KvSlabMut::F16 { k: &mut layer.k, v: &mut layer.v };
            attention::store(&team, layer.shape, slab, &[segment], &k, &v);
        });
    });
}

criterion_group!(name = benches; config = criterion(); targets = decode, layers, prefill, store);
criterion_main!(benches);
