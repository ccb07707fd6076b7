//! What does a long context cost in each format of the cache, and what does it cost to move a unit to a smaller one?
//!
//! `decode` is one new token after 4,096 positions, over all layers of a model and on all cores: the caches come from memory
//! as they do in a real step. `tiered` is a sequence of all three: the first block and the last 256 positions f16, those
//! up to 512 before the end q8, the others q4. Throughput counts the elements of K and V, so that formats compare.
//! `migrate` makes one unit over all layers on one core: 16 positions for q8, 64 for q4 and q2; throughput counts the
//! elements that are read.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ruvllm_benches::{criterion, values};
use ruvllm_cpu::ThreadPool;
use ruvllm_cpu::arena::{AlignedVec, LargePages};
use ruvllm_kernels::attention::{
    self, AttentionKernels, BLOCK_TOKENS, Inputs, KvBlock, KvFormat, KvLayer, KvShape, KvUnits, KvUnitsMut, Limits,
    Options, Scratch, Segment,
};

/// Shape of a model's attention.
struct Shape {
    name: &'static str,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    n_layers: usize,
}

const MODELS: [Shape; 3] = [
    Shape { name: "smollm2-135m", n_heads: 9, n_kv_heads: 3, head_dim: 64, n_layers: 30 },
    Shape { name: "qwen2.5-0.5b", n_heads: 14, n_kv_heads: 2, head_dim: 64, n_layers: 24 },
    Shape { name: "gemma3-270m", n_heads: 4, n_kv_heads: 1, head_dim: 256, n_layers: 18 },
];
/// Positions of the context.
const N_KV: usize = 4096;

/// All layers of a model, whose units of a format lie as in the pool: `[unit][layer][k | v]`.
struct Model {
    n_heads: usize,
    shape: KvShape,
    n_layers: usize,
    n_kv: usize,
    bytes: [AlignedVec<u8>; KvFormat::COUNT],
}

impl Model {
    /// A model with `n_kv` f16 positions.
    fn new(shape: &Shape, n_kv: usize) -> Model {
        let Shape { n_heads, n_kv_heads, head_dim, n_layers, .. } = *shape;
        let shape = KvShape { n_kv_heads, k_dim: head_dim, v_dim: head_dim };
        let mut model = Model { n_heads, shape, n_layers, n_kv, bytes: KvFormat::ALL.map(|_| AlignedVec::new(0)) };
        model.make_room(KvFormat::F16);
        let stride = model.stride(KvFormat::F16);
        let (blocks, threads) = (model.blocks(|_| KvFormat::F16), ThreadPool::new(1));
        let (k, v) = (values(n_kv * n_kv_heads * head_dim, 1), values(n_kv * n_kv_heads * head_dim, 2));
        for layer in 0..n_layers {
            let (k_at, v_at) = model.places(KvFormat::F16, layer);
            let bytes = &mut model.bytes[KvFormat::F16 as usize];
            let units = KvUnitsMut { format: KvFormat::F16, bytes, stride, k_at, v_at };
            let segment = Segment { first_row: 0, n_rows: n_kv, pos: 0, n_kv, blocks: &blocks };
            attention::store(&threads, shape, units, &[segment], &k, &v);
        }
        model
    }

    fn make_room(&mut self, format: KvFormat) {
        let n_units = self.n_kv / BLOCK_TOKENS / format.blocks_per_unit();
        self.bytes[format as usize] = LargePages::default().take(n_units * self.stride(format));
    }

    /// Bytes of a unit.
    fn stride(&self, format: KvFormat) -> usize {
        self.n_layers * (format.k_bytes(self.shape) + format.v_bytes(self.shape))
    }

    /// Where a layer's keys and values begin in a unit.
    fn places(&self, format: KvFormat, layer: usize) -> (usize, usize) {
        let k_at = self.stride(format) / self.n_layers * layer;
        (k_at, k_at + format.k_bytes(self.shape))
    }

    /// A page table whose blocks are of the formats that `format_of` says.
    fn blocks(&self, format_of: impl Fn(usize) -> KvFormat) -> Vec<KvBlock> {
        (0..self.n_kv / BLOCK_TOKENS).map(|i| KvBlock::new(format_of(i), i)).collect()
    }

    fn layer(&self, layer: usize) -> KvLayer<'_> {
        KvFormat::ALL.into_iter().fold(KvLayer::default(), |all, format| {
            let (k_at, v_at) = self.places(format, layer);
            all.with(format, KvUnits { bytes: &self.bytes[format as usize], stride: self.stride(format), k_at, v_at })
        })
    }

    /// Makes unit `unit` of format `to` of the f16 blocks of its positions.
    fn migrate(&mut self, table: &AttentionKernels, unit: usize, to: KvFormat) {
        let (n, stride) = (to.blocks_per_unit(), self.stride(to));
        let mut made = std::mem::take(&mut self.bytes[to as usize]);
        for layer in 0..self.n_layers {
            let from = self.layer(layer);
            let part = |i| from.part(self.shape, KvBlock::new(KvFormat::F16, unit * n + i % n));
            let parts: [_; attention::UNIT_BLOCKS] = std::array::from_fn(part);
            let (k_at, v_at) = self.places(to, layer);
            let (k, v) = made[unit * stride..][k_at..v_at + to.v_bytes(self.shape)].split_at_mut(v_at - k_at);
            table.quantize(self.shape, &parts[..n], to, k, v);
        }
        self.bytes[to as usize] = made;
    }

    /// Makes all positions in format `to` as well.
    fn migrate_all(&mut self, table: &AttentionKernels, to: KvFormat) {
        self.make_room(to);
        (0..self.n_kv / BLOCK_TOKENS / to.blocks_per_unit()).for_each(|unit| self.migrate(table, unit, to));
    }

    /// Returns one new token through all layers as a closure.
    fn step<'a>(
        &'a self,
        table: &'a AttentionKernels,
        threads: &'a ThreadPool,
        blocks: &'a [KvBlock],
    ) -> impl FnMut() + 'a {
        let KvShape { k_dim, v_dim, .. } = self.shape;
        let limits = Limits { n_heads: self.n_heads, k_dim, v_dim, n_ctx: self.n_kv };
        let mut scratch = Scratch::new(threads.n_threads(), limits);
        let (q, mut out) = (values(self.n_heads * k_dim, 3), vec![0.0; self.n_heads * v_dim]);
        let options = Options::causal(self.n_heads, self.shape);
        move || {
            let segments = [Segment { first_row: 0, n_rows: 1, pos: self.n_kv - 1, n_kv: self.n_kv, blocks }];
            for layer in 0..self.n_layers {
                let inputs = Inputs { options: &options, kv: self.layer(layer), segments: &segments, q: &q };
                attention::attend(table, threads, &mut scratch, &inputs, &mut out);
            }
        }
    }
}

/// The format of a block of the `tiered` case.
fn tier(block: usize) -> KvFormat {
    match N_KV / BLOCK_TOKENS - block {
        0..=16 => KvFormat::F16,
        17..=32 => KvFormat::Q8,
        // A unit of q4 stands in the table whole.
        _ if block < attention::UNIT_BLOCKS => KvFormat::F16,
        _ => KvFormat::Q4,
    }
}

fn decode(c: &mut Criterion) {
    let threads = ThreadPool::new(std::thread::available_parallelism().map_or(1, usize::from));
    for shape in &MODELS {
        let name = shape.name;
        let mut model = Model::new(shape, N_KV);
        let best = attention::available().next().expect("every table ends with a scalar row");
        [KvFormat::Q8, KvFormat::Q4, KvFormat::Q2].into_iter().for_each(|to| model.migrate_all(best, to));
        let tables = [KvFormat::F16, KvFormat::Q8, KvFormat::Q4, KvFormat::Q2];
        let cases = tables.map(|format| (format.name(), model.blocks(|_| format)));
        for (case, blocks) in cases.iter().chain([&("tiered", model.blocks(tier))]) {
            let mut group = c.benchmark_group(format!("kv_tiers/decode/{name}/{N_KV}/{case}"));
            let n = model.n_layers * N_KV * model.shape.n_kv_heads * (model.shape.k_dim + model.shape.v_dim);
            group.throughput(Throughput::Elements(n as u64));
            for table in attention::available().filter(|table| table.isa() != ruvllm_kernels::Isa::Scalar) {
                group.bench_function(table.isa().name(), |b| b.iter(model.step(table, &threads, blocks)));
            }
        }
    }
}

fn migrate(c: &mut Criterion) {
    for shape in &MODELS {
        let name = shape.name;
        for to in [KvFormat::Q8, KvFormat::Q4, KvFormat::Q2] {
            let n_kv = to.blocks_per_unit() * BLOCK_TOKENS;
            let mut model = Model::new(shape, n_kv);
            model.make_room(to);
            let mut group = c.benchmark_group(format!("kv_tiers/migrate/{name}/{to}"));
            let n = model.n_layers * n_kv * model.shape.n_kv_heads * (model.shape.k_dim + model.shape.v_dim);
            group.throughput(Throughput::Elements(n as u64));
            for table in attention::available().filter(|table| table.isa() != ruvllm_kernels::Isa::Scalar) {
                group.bench_function(table.isa().name(), |b| b.iter(|| model.migrate(table, 0, to)));
            }
        }
    }
}

criterion_group!(name = benches; config = criterion(); targets = decode, migrate);
criterion_main!(benches);
