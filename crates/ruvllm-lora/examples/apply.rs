//! An adapter applied to a matrix: `y = W x + scale * B (A x)`, for some rows of a batch.
//!
//! `cargo run -p ruvllm-lora --example apply`

use std::sync::Arc;

use ruvllm_cpu::ThreadPool;
use ruvllm_kernels::matmul::{self, Acts, Matrix};
use ruvllm_kernels::{GgmlType, Isa, lowrank};
use ruvllm_lora::format::ModelFacts;
use ruvllm_lora::{
    AdaptedRows, Adapter, AdapterSet, Delta, FactorFormat, FactorPair, InputRows, LoraError, LowRank, NoBase, RowOrder,
    Target, Targets, Values,
};

fn main() -> Result<(), LoraError> {
    let (n_in, n_out, rank) = (32, 16, 2);
    let threads = ThreadPool::new(1);
    // The base: a matrix of f32, W[i][j] = 0.01 * i.
    let weights: Vec<u8> = (0..n_out * n_in).flat_map(|i| (0.01 * (i / n_in) as f32).to_le_bytes()).collect();
    let kernels = matmul::pick(Isa::best());
    let base = Matrix::new(kernels, &threads, GgmlType::F32, n_out, n_in, weights.into());
    // The adapter of its layer, as a file would have it.
    let facts = ModelFacts { arch: "llama".into(), n_heads: vec![1], n_kv_heads: vec![1], n_experts: 0 };
    let layer = Target { tensor: "blk.0.attn_v".into(), rows: 0..n_out, alias: None, n_in };
    let targets = Arc::new(Targets::new(facts, vec![layer]));
    let (a, b) = (vec![0.5; rank * n_in], (0..n_out * rank).map(|i| i as f32 * 0.1).collect::<Vec<f32>>());
    let factors = FactorPair { a: Values::from_f32(rank, n_in, &a), b: Values::from_f32(n_out, rank, &b) };
    let adapter = Adapter::new("example", vec![Delta::new("blk.0.attn_v", 1.0, factors, None, RowOrder::Same)?])?;
    let bound = Arc::new(targets.bind(&adapter, FactorFormat::F16, &NoBase)?);

    // Two rows of ones; the second has the adapter.
    let (x, mut y) = (vec![1.0; 2 * n_in], vec![0.0; 2 * n_out]);
    let mut acts = Acts::new(n_in, 2);
    acts.set(kernels, &threads, &x, 2, n_in, base.act_format());
    matmul::matmul(&threads, &base, &acts, &mut y);
    let mut rows = AdaptedRows::new(2, 2);
    rows.push(1, &AdapterSet::default());
    rows.push(1, &AdapterSet::new(vec![(bound, 1.0)])?);
    rows.apply(
        LowRank { table: lowrank::pick(Isa::best()), threads: &threads },
        InputRows { x: &x, n: 2 },
        None,
        [(0, &mut y[..])],
    );

    let (plain, adapted) = y.split_at(n_out);
    println!("without: {plain:.2?}\nwith:    {adapted:.2?}");
    // A x = 16 in each of two ranks; B's row i sums to 0.4 i + 0.1.
    let expected = (0..n_out).map(|i| plain[i] + 16.0 * (0.4 * i as f32 + 0.1));
    assert!(adapted.iter().zip(expected).all(|(y, e)| (y - e).abs() < 0.05 * e.abs().max(1.0)));
    Ok(())
}
