//! What do softmax and its parts cost over a row of attention scores (512, 2048) and over a vocabulary (49,152 of
//! SmolLM2, 151,936 of Qwen2.5)? Sampling does this once a token, on one thread. Throughput counts values.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ruvllm_benches::{criterion, values};
use ruvllm_kernels::softmax;

fn rows(c: &mut Criterion) {
    for n in [512, 2048, 49_152, 151_936] {
        let logits: Vec<f32> = values(n, 1).iter().map(|v| v * 12.0).collect();
        let mut x = logits.clone();
        let mut group = c.benchmark_group("softmax");
        group.throughput(Throughput::Elements(n as u64));
        for table in softmax::available() {
            let isa = table.isa();
            group.bench_function(format!("softmax/{n}/{isa}"), |b| {
                b.iter(|| {
                    x.copy_from_slice(black_box(&logits));
                    table.softmax(&mut x);
                });
            });
            group
                .bench_function(format!("log_sum_exp/{n}/{isa}"), |b| b.iter(|| table.log_sum_exp(black_box(&logits))));
            group.bench_function(format!("argmax/{n}/{isa}"), |b| b.iter(|| table.argmax(black_box(&logits))));
        }
    }
}

criterion_group! { name = benches; config = criterion(); targets = rows }
criterion_main!(benches);
