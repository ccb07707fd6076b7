//! What does learning cost a token? A MicroLoRA changes the final hidden state of every token (< 0.1 ms, or decoding would
//! feel it) and takes a step by the 128 likeliest tokens' rows of the head (< 1 ms, at the end of 8 to 32 tokens).
//!
//! Widths are those of SmolLM2 135M, Qwen2.5 0.5B and Llama 3 8B; the head is quantised as theirs are, and its rows are
//! scattered over a vocabulary that no cache holds.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use ruvllm_benches::{criterion, values};
use ruvllm_kernels::{GgmlType, dequant};
use ruvllm_lora::micro::{HeadRows, MicroLora, Rule, StateRows, UpdateOptions};

/// Rows of the head, and how many of them a sparse gradient reads.
const N_VOCAB: u32 = 49_152;
const LIKELIEST: u32 = 128;

/// A head in 8 bits.
struct Head {
    bytes: Vec<u8>,
    row_bytes: usize,
}

impl Head {
    fn new(n_embd: usize) -> Head {
        let row_bytes = GgmlType::Q8_0.row_bytes(n_embd).expect("whole blocks");
        // A scale of 2^-7 before each 32 values.
        let block: Vec<u8> = [0x00, 0x20].into_iter().chain((0..32).map(|i| i * 37 + 11)).collect();
        Head { bytes: block.repeat(N_VOCAB as usize * row_bytes / block.len()), row_bytes }
    }
}

impl HeadRows for Head {
    fn row(&self, token: u32, out: &mut [f32]) {
        dequant::dequantize(GgmlType::Q8_0, &self.bytes[token as usize * self.row_bytes..][..self.row_bytes], out);
    }
}

fn micro(c: &mut Criterion) {
    for n_embd in [576, 896, 4096] {
        let (head, hidden) = (Head::new(n_embd), values(n_embd, 1));
        let mut group = c.benchmark_group("micro");
        for rank in [1, 2, 4] {
            let mut micro = MicroLora::new(n_embd, rank, 1.0, 7).expect("a valid shape");
            let mut gradient = micro.gradient_buffer();
            let options = UpdateOptions { rule: Rule::RmsProp { decay: 0.95 }, ..UpdateOptions::sgd(1e-3) };
            let mut changed = hidden.clone();
            let state = StateRows { hidden: &hidden, stream: &[] };
            group.bench_function(format!("forward/{n_embd}/r{rank}"), |b| {
                b.iter(|| micro.forward(black_box(state), &mut changed));
            });
            let mut step = 0u32;
            group.bench_function(format!("update/{n_embd}/r{rank}"), |b| {
                b.iter(|| {
                    step += 1;
                    let likeliest: [(u32, f32); LIKELIEST as usize] =
                        std::array::from_fn(|i| ((i as u32 * 7919 + step * 31) % N_VOCAB, 1.0 / LIKELIEST as f32));
                    micro.gradient(black_box(state), &likeliest, step % N_VOCAB, &head, &mut gradient);
                    micro.update(&mut gradient, &options);
                });
            });
        }
    }
}

criterion_group! { name = benches; config = criterion(); targets = micro }
criterion_main!(benches);
