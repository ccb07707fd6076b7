//! What does rotating the queries and keys of one position cost, and what do its angles (once for all layers)?
//! Rows of 576, 896, 2048 and 4096 values with heads of 64 and 128; throughput counts values.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ruvllm_benches::{criterion, values};
use ruvllm_kernels::rope::{self, Rope, RopeConfig, RopeScaling, RopeStyle};

fn rope_of(head_dim: usize) -> Rope {
    Rope::new(&RopeConfig {
        style: RopeStyle::Neox,
        n_rot: head_dim,
        base: 10_000.0,
        scaling: RopeScaling::None,
        attn_factor: 1.0,
        freq_factors: None,
    })
}

fn rotate(c: &mut Criterion) {
    for (n, head_dim) in [(576, 64), (896, 64), (2048, 64), (4096, 128)] {
        let (mut cos, mut sin) = (vec![0.0; head_dim / 2], vec![0.0; head_dim / 2]);
        rope_of(head_dim).angles(1000, &mut cos, &mut sin);
        let mut heads = values(n, 1);
        let mut group = c.benchmark_group("rope");
        group.throughput(Throughput::Elements(n as u64));
        for (name, style) in [("norm", RopeStyle::Norm), ("neox", RopeStyle::Neox)] {
            for table in rope::available() {
                group.bench_function(format!("{name}/{n}/{}", table.isa()), |b| {
                    b.iter(|| table.rotate(style, black_box(&mut heads), head_dim, &cos, &sin));
                });
            }
        }
    }
}

fn angles(c: &mut Criterion) {
    let mut group = c.benchmark_group("rope_angles");
    for head_dim in [64, 128] {
        let rope = rope_of(head_dim);
        let (mut cos, mut sin) = (vec![0.0; head_dim / 2], vec![0.0; head_dim / 2]);
        group.bench_function(format!("{head_dim}/scalar"), |b| {
            b.iter(|| rope.angles(black_box(1000), &mut cos, &mut sin));
        });
    }
}

criterion_group! { name = benches; config = criterion(); targets = rotate, angles }
criterion_main!(benches);
