//! Time of a weight in products of 256 rows, against one in Q4_K: all types in turn, so that a slow moment of the machine meets all.
//! `ruvllm-convert` has these numbers, for recipes of a size (`budget/pace.rs`).

use std::time::Instant;

use bytes::Bytes;
use ruvllm_benches::{blocks, values};
use ruvllm_cpu::ThreadPool;
use ruvllm_kernels::matmul::{self, Acts, Matrix};
use ruvllm_kernels::{GgmlType, Isa};

const TYPES: [GgmlType; 12] = [
    GgmlType::Q4_K,
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::IQ4_XS,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::IQ4_NL,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
];
const N_ROUNDS: usize = 200;
/// Rows of activations.
const N: usize = 256;
/// Rows and columns of the matrix.
const N_ROWS: usize = 1024;
const N_COLS: usize = 1024;

fn main() {
    let threads = ThreadPool::new(1);
    for table in matmul::available().filter(|table| table.isa() != Isa::Scalar) {
        let matrix = |ty: GgmlType| {
            let n_bytes = N_ROWS * ty.row_bytes(N_COLS).expect("rows are whole blocks");
            Matrix::new(table, &threads, ty, N_ROWS, N_COLS, Bytes::from(blocks(n_bytes)))
        };
        let matrices = TYPES.map(matrix);
        let (x, mut out) = (values(N * N_COLS, 2), vec![0.0; N * N_ROWS]);
        let mut acts = Acts::new(N_COLS, N);
        let mut ratios = vec![Vec::new(); TYPES.len()];
        for _ in 0..N_ROUNDS {
            let seconds: Vec<f64> = matrices
                .iter()
                .map(|matrix| {
                    acts.set(table, &threads, &x, N, N_COLS, matrix.act_format());
                    let start = Instant::now();
                    matmul::matmul(&threads, matrix, &acts, &mut out);
                    start.elapsed().as_secs_f64()
                })
                .collect();
            ratios.iter_mut().zip(&seconds).for_each(|(ratios, time)| ratios.push(time / seconds[0]));
        }
        print!("{:<8}", table.isa().name());
        for (ty, ratios) in TYPES.iter().zip(&mut ratios) {
            ratios.sort_by(f64::total_cmp);
            print!(" {ty} {:.2}", ratios[N_ROUNDS / 2]);
        }
        println!();
    }
}
