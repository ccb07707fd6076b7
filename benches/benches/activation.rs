//! What does a gated activation cost beside the products around it? Rows are as wide as the hidden layers of the models
//! we serve (SmolLM2 135M, Qwen2.5 0.5B, Llama 3 8B); throughput counts values.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ruvllm_benches::{criterion, values};
use ruvllm_kernels::activation::{self, Activation};

fn gated(c: &mut Criterion) {
    for n in [1536, 4864, 14336] {
        let (gate, up) = (values(n, 1), values(n, 2));
        let mut x = gate.clone();
        let mut group = c.benchmark_group("activation");
        group.throughput(Throughput::Elements(n as u64));
        for (name, act) in [("silu", Activation::Silu), ("tanh", Activation::GeluTanh), ("erf", Activation::GeluErf)] {
            for table in activation::available() {
                group.bench_function(format!("{name}/{n}/{}", table.isa()), |b| {
                    b.iter(|| {
                        // The copy keeps the input the same from round to round; it is a small part of the time.
                        x.copy_from_slice(black_box(&gate));
                        table.gated(act, &mut x, &up);
                    });
                });
            }
        }
    }
}

fn softcap(c: &mut Criterion) {
    const N_VOCAB: usize = 32_000;
    let logits: Vec<f32> = values(N_VOCAB, 1).iter().map(|v| v * 40.0).collect();
    let mut x = logits.clone();
    let mut group = c.benchmark_group("softcap");
    group.throughput(Throughput::Elements(N_VOCAB as u64));
    for table in activation::available() {
        group.bench_function(format!("{N_VOCAB}/{}", table.isa()), |b| {
            b.iter(|| {
                x.copy_from_slice(black_box(&logits));
                table.softcap(&mut x, 30.0);
            });
        });
    }
}

criterion_group! { name = benches; config = criterion(); targets = gated, softcap }
criterion_main!(benches);
