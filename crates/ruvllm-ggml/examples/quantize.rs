//! Quantises random rows to each type and prints how fast: `cargo run --release -p ruvllm-ggml --features quantize --example quantize`.

use std::time::Instant;

use ruvllm_ggml::{GgmlType, can_quantize, needs_importance, quantize_row};

fn main() {
    const N: usize = 4096;
    let mut state = 7u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let row: Vec<f32> = (0..N).map(|_| next() + next() + next()).collect();
    let weights: Vec<f32> = (0..N).map(|_| next().abs()).collect();
    for ty in GgmlType::ALL.iter().copied().filter(|&ty| can_quantize(ty)) {
        let mut out = vec![0; ty.row_bytes(N).expect("whole blocks")];
        let mut rate = |weights: Option<&[f32]>| {
            let (start, mut n) = (Instant::now(), 0);
            while start.elapsed().as_millis() < 200 {
                quantize_row(ty, &row, weights, &mut out);
                n += N;
            }
            n as f64 / start.elapsed().as_secs_f64() / 1e6
        };
        let plain = if needs_importance(ty) { 0.0 } else { rate(None) };
        println!("{ty:>7}: {plain:7.1} million values a second, {:7.1} with weights", rate(Some(&weights)));
    }
}
