//! What does a cache that ages cost beside attention? Appending one token to all layers, and bringing blocks of all
//! layers into fewer bits: a block to 8 bits, a unit of four to 4 and 2 bits.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ruvllm_benches::criterion;
use ruvllm_cpu::ThreadPool;
use ruvllm_kernels::Isa;
use ruvllm_kernels::attention;
use ruvllm_kvcache::{BlockPool, KvFormat, KvLayout, KvPolicy, LayerKv, Quantizer, Sequence};

/// Attention layers and their shape.
const MODELS: [(&str, usize, LayerKv); 3] = [
    ("smollm2-135m", 30, LayerKv { n_kv_heads: 3, k_dim: 64, v_dim: 64 }),
    ("gemma3-270m", 18, LayerKv { n_kv_heads: 1, k_dim: 256, v_dim: 256 }),
    ("qwen2.5-coder-0.5b", 24, LayerKv { n_kv_heads: 2, k_dim: 64, v_dim: 64 }),
];

const N_TOKENS: usize = 4096;

/// Appends `n` rows to every layer.
fn append(threads: &ThreadPool, pool: &mut BlockPool, sequence: &mut Sequence, shape: LayerKv, n: usize) {
    let (k, v) = (vec![0.25; n * shape.n_kv_heads * shape.k_dim], vec![-0.5; n * shape.n_kv_heads * shape.v_dim]);
    pool.reserve(sequence, n).expect("the pool has room");
    for layer in 0..pool.n_layers() {
        pool.write_rows(threads, layer, &[sequence.segment(0, n)], &k, &v);
    }
    sequence.advance(n);
}

fn tiers(criterion: &mut Criterion) {
    let threads = ThreadPool::new(2);
    let quantizer = Quantizer { table: attention::pick(Isa::best()), threads: &threads };
    for (name, n_layers, shape) in MODELS {
        let layout = KvLayout { layers: vec![shape; n_layers] };
        let formats = [KvFormat::F16, KvFormat::Q8, KvFormat::Q4, KvFormat::Q2];
        assert!(KvPolicy::TIERED.formats().iter().all(|format| formats.contains(format)));
        let mut pool = BlockPool::within(&layout, &formats, 512 << 20).expect("there are addresses");
        let mut sequence = pool.sequence(1 << 24);
        append(&threads, &mut pool, &mut sequence, shape, N_TOKENS);
        let blocks: Vec<_> = sequence.blocks().collect();

        let mut group = criterion.benchmark_group(format!("kv_ageing/{name}"));
        group.throughput(Throughput::Elements(1));
        group.bench_function("append_token", |bencher| {
            let mut other = pool.sequence(1 << 24);
            bencher.iter(|| {
                append(&threads, &mut pool, &mut other, shape, 1);
                if other.len() == 1024 {
                    other.truncate(0);
                }
            });
        });
        for to in [KvFormat::Q8, KvFormat::Q4, KvFormat::Q2] {
            let n = to.blocks_per_unit();
            group.throughput(Throughput::Bytes((n * pool.block_bytes(KvFormat::F16)) as u64));
            let (mut next, mut made) = (0, Vec::with_capacity(n));
            group.bench_function(format!("migrate_{n}_to_{to}"), |bencher| {
                bencher.iter(|| {
                    next = (next + n) % blocks.len();
                    pool.quantize(quantizer, &blocks[next..next + n], to, &mut made).expect("the pool has room");
                    pool.discard(&mut made);
                });
            });
        }
        group.finish();
    }
}

criterion_group! { name = benches; config = criterion(); targets = tiers }
criterion_main!(benches);
