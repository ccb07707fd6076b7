//! What does attention cost at the shapes of real models, and what does each instruction set gain?
//!
//! `decode` is one new token after 256 and 2,048 positions: memory- and latency-bound, so throughput counts the bytes of
//! K and V. `layers` is the same step over all layers of a model after 2,048 positions, each with a cache of its own, on all
//! cores: the caches come from memory as they do in a real step, so its bytes per second are what a long context gets.
//! `prefill` is a causal prompt of 512 tokens: compute-bound, so throughput counts multiply-adds (of visible
//! positions, `k_dim + v_dim` per head). `store` writes the keys and values of that prompt. f16 cache; one thread but for `layers`.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ruvllm_benches::{criterion, values};
use ruvllm_kernels::arena::AlignedVec;
use ruvllm_kernels::attention::{
    self, Inputs, KvBlock, KvFormat, KvLayer, KvShape, KvUnits, KvUnitsMut, Limits, Options, Scratch, Segment, Table,
};
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
    blocks: Vec<KvBlock>,
    bytes: AlignedVec<u8>,
}

impl Layer {
    fn new(n_heads: usize, n_kv_heads: usize, dim: usize, n_kv: usize) -> Layer {
        let shape = KvShape { n_kv_heads, k_dim: dim, v_dim: dim };
        let n_blocks = n_kv.div_ceil(attention::BLOCK_TOKENS);
        let blocks = (0..n_blocks).map(|i| KvBlock::new(KvFormat::F16, i)).collect();
        let n_bytes = KvFormat::F16.k_bytes(shape) + KvFormat::F16.v_bytes(shape);
        let mut layer = Layer { n_heads, shape, n_kv, blocks, bytes: AlignedVec::new(n_blocks * n_bytes) };
        let (k, v) = (values(n_kv * n_kv_heads * dim, 1), values(n_kv * n_kv_heads * dim, 2));
        layer.store(&Team::new(1), &k, &v);
        layer
    }

    /// Writes all positions.
    fn store(&mut self, team: &Team, k: &[f32], v: &[f32]) {
        let (format, shape) = (KvFormat::F16, self.shape);
        let v_at = format.k_bytes(shape);
        let stride = v_at + format.v_bytes(shape);
        let segment = Segment { first_row: 0, n_rows: self.n_kv, pos: 0, n_kv: self.n_kv, blocks: &self.blocks };
        let units = KvUnitsMut { format, bytes: &mut self.bytes, stride, k_at: 0, v_at };
        attention::store(team, shape, units, &[segment], k, v);
    }

    fn kv(&self) -> KvLayer<'_> {
        let v_at = KvFormat::F16.k_bytes(self.shape);
        let stride = v_at + KvFormat::F16.v_bytes(self.shape);
        KvLayer::default().with(KvFormat::F16, KvUnits { bytes: &self.bytes, stride, k_at: 0, v_at })
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
            let (kv, segments) = (self.kv(), [self.segment(n_rows)]);
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
    group.bench_function("smollm2-135m", |b| b.iter(|| layer.store(&team, &k, &v)));
}

criterion_group!(name = benches; config = criterion(); targets = decode, layers, prefill, store);
criterion_main!(benches);
