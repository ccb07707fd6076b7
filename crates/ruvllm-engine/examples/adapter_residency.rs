//! What a cold adapter costs a request: a thousand on disk, asked for by Zipf's law, within 64 MiB. The time to the first
//! token is that of finding the adapter and of computing a prompt of 20 tokens with it.
//!
//! `cargo run --release -p ruvllm-engine --example adapter_residency -- model.gguf FOLDER [n_adapters] [n_requests]`
//!
//! The folder is filled with adapters of rank 8 on queries and values, which stay there for the next run.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use ruvllm_engine::{AdapterSet, Engine, FactorFormat, LoadOptions, LogitRows, Segment};
use ruvllm_kvcache::MemoryBudget;
use ruvllm_lora::format::gguf;
use ruvllm_lora::{Adapter, Delta, FactorPair, RowOrder, Values};

const RANK: usize = 8;
const N_PROMPT: u32 = 20;
const BUDGET_BYTES: usize = 64 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, folder] = args.first_chunk().ok_or("pass the path of a GGUF file and a folder")?;
    let number = |i: usize, default: usize| args.get(i).map_or(Ok(default), |n| n.parse());
    let (n_adapters, n_requests) = (number(2, 1000)?, number(3, 3000)?);
    let mut engine = Engine::load(Path::new(model), &LoadOptions::default(), &mut |_| {})?;
    let loader = engine.adapter_loader()?;
    let manager = loader.manager(FactorFormat::F16, MemoryBudget::new(BUDGET_BYTES, &[]));
    std::fs::create_dir_all(folder)?;
    for i in 0..n_adapters {
        let path = Path::new(folder).join(format!("a{i}.gguf"));
        if !path.exists() {
            gguf::write(&adapter(&loader, i)?, loader.targets().facts(), &path)?;
        }
        manager.register(&format!("a{i}"), &path, 0)?;
    }
    // Chances 1, 1/2, 1/3 …
    let sums: Vec<f64> = (1..=n_adapters)
        .scan(0.0, |sum, rank| {
            *sum += 1.0 / rank as f64;
            Some(*sum)
        })
        .collect();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let (mut loads, mut first_cold, mut first_hot, mut held_max) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for request in 0..n_requests as u32 {
        let draw = f64::from(rng.next_u32()) / f64::from(u32::MAX) * sums[n_adapters - 1];
        let name = format!("a{}", sums.partition_point(|&sum| sum < draw).min(n_adapters - 1));
        let (n_loads, start) = (manager.stats().n_loads, Instant::now());
        let adapter = manager.get(&name, 0)?;
        let load_ms = start.elapsed().as_secs_f64() * 1e3;
        let seq = engine.new_adapted_sequence(&AdapterSet::new(vec![(adapter, 1.0)])?)?;
        let tokens: Vec<u32> = (0..N_PROMPT).map(|i| 100 + (request * 31 + i * 7) % 5000).collect();
        engine.forward(&[Segment { seq, tokens: &tokens, logits: LogitRows::Last }])?;
        let first_ms = start.elapsed().as_secs_f64() * 1e3;
        engine.free_sequence(seq);
        let stats = manager.stats();
        if stats.n_loads > n_loads {
            loads.push(load_ms);
            first_cold.push(first_ms);
        } else {
            first_hot.push(first_ms);
        }
        held_max = held_max.max(stats.held_bytes);
    }
    let at = |times: &mut Vec<f64>, share: f64| {
        times.sort_by(f64::total_cmp);
        times.get(((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1))).copied().unwrap_or(0.0)
    };
    let stats = manager.stats();
    println!(
        "{n_adapters} adapters, {n_requests} requests: {} hot, {} loaded, {} gave way; at most {:.1} of {} MiB",
        first_hot.len(),
        loads.len(),
        stats.n_evictions,
        held_max as f64 / f64::from(1 << 20),
        BUDGET_BYTES >> 20
    );
    println!(
        "loading {:.2} ms (median), {:.2} ms (p99), {:.2} ms (most)",
        at(&mut loads, 0.5),
        at(&mut loads, 0.99),
        at(&mut loads, 1.0)
    );
    let (cold, hot) = ([0.5, 0.99].map(|p| at(&mut first_cold, p)), [0.5, 0.99].map(|p| at(&mut first_hot, p)));
    println!(
        "first token, median and p99: cold {:.2} and {:.2} ms, hot {:.2} and {:.2} ms; the penalty {:.2} and {:.2} ms",
        cold[0],
        cold[1],
        hot[0],
        hot[1],
        cold[0] - hot[0],
        cold[1] - hot[1]
    );
    Ok(())
}

fn adapter(loader: &ruvllm_engine::AdapterLoader, seed: usize) -> Result<Adapter, ruvllm_lora::LoraError> {
    let noise = |n: usize| (0..n).map(|i| ((i * 31 + seed * 977) as f32 * 0.37).sin() * 1e-3).collect::<Vec<f32>>();
    let mut deltas = Vec::new();
    for target in loader.targets().all().iter().filter(|t| t.tensor.ends_with("attn_q") || t.tensor.ends_with("attn_v"))
    {
        let n_out = target.rows.len();
        let a = Values::from_f32(RANK, target.n_in, &noise(RANK * target.n_in));
        let b = Values::from_f32(n_out, RANK, &noise(n_out * RANK));
        deltas.push(Delta::new(&target.tensor, 1.0, FactorPair { a, b }, None, RowOrder::Same)?);
    }
    Adapter::new(format!("a{seed}"), deltas)
}
