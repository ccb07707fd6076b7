//! What does a norm cost a row? Between two matrix products it is serial, so it should vanish beside them: RMSNorm of
//! 4096 values in less than 10 µs on any instruction set.
//!
//! Rows are as wide as the models we serve; throughput counts values.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ruvllm_benches::{criterion, values};
use ruvllm_kernels::norm;

fn norms(c: &mut Criterion) {
    for n in [576, 896, 2048, 4096] {
        let (x, w, bias) = (values(n, 1), values(n, 2), values(n, 3));
        let (mut residual, mut out) = (values(n, 4), vec![0.0; n]);
        let mut group = c.benchmark_group("norm");
        group.throughput(Throughput::Elements(n as u64));
        for table in norm::available() {
            let isa = table.isa();
            group.bench_function(format!("rms/{n}/{isa}"), |b| {
                b.iter(|| table.rms_norm(black_box(&x), &w, 1e-5, &mut out));
            });
            group.bench_function(format!("add_rms/{n}/{isa}"), |b| {
                b.iter(|| table.add_rms_norm(&mut residual, black_box(&x), &w, 1e-5, &mut out));
            });
            group.bench_function(format!("layer/{n}/{isa}"), |b| {
                b.iter(|| table.layer_norm(black_box(&x), &w, Some(&bias), 1e-5, &mut out));
            });
        }
    }
}

criterion_group! { name = benches; config = criterion(); targets = norms }
criterion_main!(benches);
