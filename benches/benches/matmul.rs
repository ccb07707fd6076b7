//! How fast is a matrix product, per instruction set, on the shapes of the three reference models?
//!
//! One row (decode) reads every weight once: its throughput is weight bytes per second, to be held against the
//! machine's read bandwidth. Eight and 128 rows (small batches, prefill) are counted in multiply-adds per second.
//! One thread, so that figures are per core.

use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime,
};
use ruvllm_kernels::matmul::{self, Acts, Matrix, Table};
use ruvllm_kernels::{GgmlType, Isa, team::Team};
use std::hint::black_box;
use std::time::Duration;

/// Rows, columns and type of a weight matrix, and where it occurs.
const SHAPES: [(&str, GgmlType, usize, usize); 11] = [
    ("smollm2_attn", GgmlType::Q4_1, 576, 576),
    ("smollm2_up", GgmlType::Q4_1, 1536, 576),
    ("smollm2_down", GgmlType::Q4_1, 576, 1536),
    ("smollm2_head", GgmlType::Q8_0, 49152, 576),
    ("gemma3_up", GgmlType::Q5_0, 2048, 640),
    ("gemma3_down", GgmlType::Q4_K, 640, 2048),
    ("qwen_up", GgmlType::Q5_0, 4864, 896),
    ("qwen_down", GgmlType::Q6_K, 896, 4864),
    ("qwen_head", GgmlType::Q8_0, 151936, 896),
    ("float_f16", GgmlType::F16, 2048, 576),
    ("float_iq4_xs", GgmlType::IQ4_XS, 2048, 1024),
];

/// Returns plausible blocks: any bytes, with the sign and exponent of every second byte kept small, so that no field
/// that is an f16 is an infinity or a NaN.
fn weights(ty: GgmlType, n_rows: usize, n_cols: usize) -> Vec<u8> {
    let row = ty.row_bytes(n_cols).expect("rows are whole blocks");
    let mix = |i: usize| (i as u32).wrapping_mul(2_654_435_761).to_le_bytes()[2];
    (0..n_rows * row).map(|i| if i % 2 == 1 { mix(i) & 0x3b } else { mix(i) }).collect()
}

struct Case<'a> {
    name: &'a str,
    table: &'static Table,
    team: &'a Team,
    w: &'a Matrix,
    n: usize,
}

fn bench_case(group: &mut BenchmarkGroup<'_, WallTime>, case: &Case<'_>) {
    let (w, n, k) = (case.w, case.n, case.w.n_cols());
    let x: Vec<f32> = (0..n * k).map(|i| ((i * 7919) % 1000) as f32 / 500.0 - 1.0).collect();
    let (mut acts, mut out) = (Acts::new(k, n), vec![0.0; n * w.n_rows()]);
    acts.set(case.table, case.team, &x, n, k, w.act_format());
    group.throughput(match n {
        1 => Throughput::Bytes(w.weight_bytes() as u64),
        _ => Throughput::Elements((n * k * w.n_rows()) as u64),
    });
    let id = BenchmarkId::new(format!("{}/{}/n{n}", case.name, w.ty()), case.table.name());
    group.bench_function(id, |b| b.iter(|| matmul::matmul(case.team, w, black_box(&acts), &mut out)));
}

fn bench_matmul(c: &mut Criterion) {
    let team = Team::new(1);
    let mut group = c.benchmark_group("matmul");
    group.sample_size(10).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(800));
    for (name, ty, n_rows, n_cols) in SHAPES {
        let bytes = bytes::Bytes::from(weights(ty, n_rows, n_cols));
        for table in matmul::available() {
            // The scalar row takes seconds for a batch of a large matrix and says nothing there.
            let limit = if table.isa() == Isa::Scalar { 64 << 20 } else { usize::MAX };
            let w = Matrix::new(table, &team, ty, n_rows, n_cols, bytes.clone());
            for n in [1, 8, 128].into_iter().filter(|n| n * n_rows * n_cols <= limit) {
                bench_case(&mut group, &Case { name, table, team: &team, w: &w, n });
            }
        }
    }
    group.finish();
}

fn bench_quantize(c: &mut Criterion) {
    let mut group = c.benchmark_group("quantize_activations");
    let x: Vec<f32> = (0..4864).map(|i| ((i * 7919) % 1000) as f32 / 500.0 - 1.0).collect();
    group.throughput(Throughput::Bytes((x.len() * size_of::<f32>()) as u64));
    let team = Team::new(1);
    for table in matmul::available() {
        let mut acts = Acts::new(x.len(), 1);
        group.bench_function(BenchmarkId::new("k4864", table.name()), |b| {
            b.iter(|| acts.set(table, &team, black_box(&x), 1, x.len(), matmul::ActFormat::Q16));
        });
    }
    group.finish();
}

fn bench_pack(c: &mut Criterion) {
    let mut group = c.benchmark_group("pack");
    let (team, table) = (Team::new(1), matmul::pick(Isa::best()));
    for ty in [GgmlType::Q4_1, GgmlType::Q5_0, GgmlType::Q8_0, GgmlType::Q4_K, GgmlType::Q6_K] {
        let bytes = bytes::Bytes::from(weights(ty, 2048, 1024));
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function(ty.name(), |b| b.iter(|| Matrix::new(table, &team, ty, 2048, 1024, bytes.clone())));
    }
    group.finish();
}

criterion_group!(benches, bench_matmul, bench_quantize, bench_pack);
criterion_main!(benches);
