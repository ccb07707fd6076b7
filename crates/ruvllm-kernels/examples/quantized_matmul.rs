//! A product with a quantised matrix, on every instruction set of this machine.
//!
//! `cargo run --release -p ruvllm-kernels --example quantized_matmul`

use ruvllm_cpu::ThreadPool;
use ruvllm_kernels::matmul::{self, Acts, Matrix};
use ruvllm_kernels::{GgmlType, dequant};

const N_ROWS: usize = 64;
const N_COLS: usize = 256;

fn main() {
    // Blocks of Q8_0: a scale of 1/128, then 32 quants.
    let block = |i: usize| {
        let quants = (0..32).map(move |j| ((i * 32 + j) * 37 % 255) as u8);
        0x2000u16.to_le_bytes().into_iter().chain(quants)
    };
    let bytes: Vec<u8> = (0..N_ROWS * N_COLS / 32).flat_map(block).collect();
    let x: Vec<f32> = (0..N_COLS).map(|i| (i as f32 * 0.1).sin()).collect();

    // The truth: every weight as f32.
    let mut weights = vec![0.0; N_ROWS * N_COLS];
    dequant::pick(ruvllm_kernels::Isa::Scalar).dequantize(GgmlType::Q8_0, &bytes, &mut weights);
    let dot = |row: &[f32]| row.iter().zip(&x).map(|(w, x)| w * x).sum::<f32>();
    let expected: Vec<f32> = weights.chunks(N_COLS).map(dot).collect();

    let threads = ThreadPool::new(2);
    for kernels in matmul::available() {
        // Repacked into panels once; the activations are quantised once for every matrix that reads them.
        let w = Matrix::new(kernels, &threads, GgmlType::Q8_0, N_ROWS, N_COLS, bytes.clone().into());
        let (mut acts, mut y) = (Acts::new(N_COLS, 1), vec![0.0; N_ROWS]);
        acts.set(kernels, &threads, &x, 1, N_COLS, w.act_format());
        matmul::matmul(&threads, &w, &acts, &mut y);
        let largest = y.iter().zip(&expected).map(|(y, e)| (y - e).abs()).fold(0.0, f32::max);
        println!("{:12} largest difference {largest:.4} of values up to {:.1}", kernels.name(), expected[1].abs());
        assert!(largest < 0.1, "activations have 8 bits");
    }
}
