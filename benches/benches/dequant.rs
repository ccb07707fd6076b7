//! How fast does each instruction set turn blocks into f32? It matters for embedding rows, float matmuls and models
//! whose types are repacked at load.
//!
//! A group per type, a case per row of the table; throughput counts the bytes of the blocks. The length is one row of a
//! 4096-wide matrix, so the numbers are of L1, not of memory. `narrow` is what the KV cache does to each new key and value.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ruvllm_benches::{bytes, criterion, values};
use ruvllm_kernels::{GgmlType, dequant};

const N_VALUES: usize = 4096;

fn dequantize(c: &mut Criterion) {
    let mut out = vec![0.0; N_VALUES];
    use GgmlType::{F32, F64, I8, I16, I32, I64, Q8_1, Q8_K, TQ1_0};
    // The others have no vector row of their own.
    let vectorised = |ty: &&GgmlType| !matches!(ty, F32 | F64 | I8 | I16 | I32 | I64 | Q8_1 | Q8_K | TQ1_0);
    for ty in GgmlType::ALL.iter().filter(vectorised) {
        let n_bytes = ty.row_bytes(N_VALUES).expect("4096 is a whole number of blocks of every type");
        // Any bytes are valid blocks, and no kernel branches on them.
        let bytes = bytes(n_bytes, 1);
        let mut group = c.benchmark_group(format!("dequant/{ty}"));
        group.throughput(Throughput::Bytes(n_bytes as u64));
        for table in dequant::available() {
            group.bench_function(table.isa().name(), |b| b.iter(|| table.dequantize(*ty, black_box(&bytes), &mut out)));
        }
    }
}

fn narrow(c: &mut Criterion) {
    let x = values(N_VALUES, 1);
    let mut out = vec![0; N_VALUES];
    let mut group = c.benchmark_group("narrow");
    group.throughput(Throughput::Bytes(4 * N_VALUES as u64));
    for table in dequant::available() {
        let isa = table.isa();
        group.bench_function(format!("f16/{isa}"), |b| b.iter(|| table.to_f16(black_box(&x), &mut out)));
        group.bench_function(format!("bf16/{isa}"), |b| b.iter(|| table.to_bf16(black_box(&x), &mut out)));
    }
}

criterion_group! {
    name = benches;
    config = criterion();
    targets = dequantize, narrow
}
criterion_main!(benches);
