//! What does a head cost of which only the likeliest tokens are wanted?
//!
//! `whole` is the product with all rows, as a sampler needs it that looks at every token; `top1` (greedy) and `top40` (the
//! default) read the coarse copy, and of the head what that leaves. All count as the bytes of the whole head, so rates compare.
//! The rows' lengths differ as those of a real head's products do: one panel in some hundred is read for `top1`. `make` is what the
//! copy costs, once.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::f16;
use ruvllm_benches::shapes::{MODELS, Model};
use ruvllm_benches::{blocks, criterion, runs_as_test, values};
use ruvllm_cpu::ThreadPool;
use ruvllm_kernels::matmul::{self, Acts, HeadShortlist, MatmulKernels, Matrix, ShortlistOut, TopK};
use ruvllm_kernels::{GgmlType::Q8_0, Isa};

/// Rows of a head where times do not count.
const TEST_ROWS: usize = 1024;

/// Returns the head of a model, with rows of all lengths.
fn head(model: &Model, table: &'static MatmulKernels, threads: &ThreadPool) -> Matrix {
    let product = model.products.iter().find(|product| product.role == "head").expect("every model has a head");
    let (n_rows, n_cols) = (product.parts[0].1, product.n_cols);
    let n_rows = if runs_as_test() { TEST_ROWS } else { n_rows };
    let row_bytes = Q8_0.row_bytes(n_cols).expect("rows are whole blocks");
    let mut bytes = blocks(n_rows * row_bytes);
    for (row, length) in bytes.chunks_exact_mut(row_bytes).zip(values(n_rows, 3)) {
        for block in row.chunks_exact_mut(Q8_0.block_bytes()) {
            block[..2].copy_from_slice(&f16::from_f32(0.001 * 2f32.powf(4.0 * length)).to_le_bytes());
        }
    }
    Matrix::new(table, threads, Q8_0, n_rows, n_cols, Bytes::from(bytes))
}

fn bench_head_shortlist(c: &mut Criterion) {
    let (mut group, threads) = (c.benchmark_group("head_shortlist"), ThreadPool::new(2));
    for model in &MODELS {
        for table in matmul::available().filter(|table| table.isa() != Isa::Scalar) {
            let w = head(model, table, &threads);
            let mut acts = Acts::new(w.n_cols(), 1);
            acts.set(table, &threads, &values(w.n_cols(), 2), 1, w.n_cols(), w.act_format());
            let (mut out, mut top_k) = (vec![0.0; w.n_rows()], TopK::default());
            let nowhere = vec![0.0; w.n_cols()];
            let make = || HeadShortlist::new(table, &threads, &w, &nowhere).expect("a head in Q8_0 has a shortlist");
            let shortlist = make();
            group.throughput(Throughput::Bytes(w.weight_bytes() as u64));
            let id = |what: &str| BenchmarkId::new(format!("{}/{what}", model.name), table.name());
            group.bench_function(id("whole"), |b| b.iter(|| matmul::matmul(&threads, &w, black_box(&acts), &mut out)));
            for k in [1, 40] {
                group.bench_function(id(&format!("top{k}")), |b| {
                    b.iter(|| {
                        let out = ShortlistOut { k, logits: &mut out, approx: None };
                        shortlist.multiply(&threads, &w, black_box(&acts), &mut top_k, out)
                    });
                });
            }
            group.bench_function(id("make"), |b| b.iter(make));
        }
    }
    group.finish();
}

criterion_group! { name = benches; config = criterion(); targets = bench_head_shortlist }
criterion_main!(benches);
