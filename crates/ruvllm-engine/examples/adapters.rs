//! What adapters cost: steps of sixteen answers, each with an adapter of its own, against those of the base alone.
//!
//! `cargo run --release -p ruvllm-engine --example adapters -- model.gguf [qv|qkvo|all] [rank] [f16|q8|f32] [rows]`

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use ruvllm_engine::{AdapterSet, Engine, FactorFormat, LoadOptions, LogitRows, Segment, SeqId};
use ruvllm_lora::{Adapter, Delta, FactorPair, RowOrder, Target, Values};

/// Tokens before the steps that are measured, steps of a turn, and turns.
const DEPTH: usize = 64;
const N_STEPS: usize = 8;
const N_TURNS: usize = 9;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |i: usize, default: &str| args.get(i).cloned().unwrap_or_else(|| default.to_owned());
    let path = args.first().ok_or("no model; pass the path of a GGUF file")?;
    let (which, rank, rows) = (arg(1, "all"), arg(2, "8").parse::<usize>()?, arg(4, "16").parse::<usize>()?);
    let format = match &*arg(3, "f16") {
        "f32" => FactorFormat::F32,
        "q8" => FactorFormat::Q8,
        _ => FactorFormat::F16,
    };
    let options = LoadOptions { n_seq_max: 2 * rows, n_ctx: Some(512), ..LoadOptions::default() };
    let mut engine = Engine::load(Path::new(path), &options, &mut |_| {})?;
    let loader = engine.adapter_loader()?;
    let mut sets = vec![AdapterSet::default(); rows];
    let mut n_bytes = 0;
    for (i, set) in sets.iter_mut().enumerate() {
        let targets = loader.targets().all().iter().filter(|target| is_wanted(target, &which));
        let deltas = targets.map(|target| random(target, rank, i)).collect::<Result<Vec<_>, _>>()?;
        let bound = loader.bind(&Adapter::new(format!("a{i}"), deltas)?, format)?;
        n_bytes = bound.n_bytes();
        *set = AdapterSet::new(vec![(Arc::clone(&bound), 1.0)])?;
    }
    let base = open(&mut engine, &vec![AdapterSet::default(); rows])?;
    let adapted = open(&mut engine, &sets)?;
    let mut ratios = Vec::new();
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..N_TURNS {
        let each = [step(&mut engine, &base)?, step(&mut engine, &adapted)?];
        ratios.push(each[0] / each[1]);
        times.iter_mut().zip(each).for_each(|(all, ms)| all.push(ms));
    }
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let [base, adapted] = times.each_mut().map(median);
    let mib = n_bytes as f64 / f64::from(1 << 20);
    println!(
        "{which}, rank {rank}, {format:?}, {mib:.2} MiB each, {rows} rows: base {base:.2} ms a step, adapters {adapted:.2} ms, throughput {:.3} of the base",
        median(&mut ratios)
    );
    Ok(())
}

fn is_wanted(target: &Target, which: &str) -> bool {
    let name = target.alias.as_deref().unwrap_or(&target.tensor);
    let ends = |names: &[&str]| names.iter().any(|end| name.ends_with(end));
    match which {
        "qv" => ends(&["attn_q", "attn_v"]),
        "qkvo" => ends(&["attn_q", "attn_k", "attn_v", "attn_output"]),
        _ => name != "output",
    }
}

/// Small random factors for a layer.
fn random(target: &Target, rank: usize, seed: usize) -> Result<Delta, ruvllm_lora::LoraError> {
    let noise = |n: usize| (0..n).map(|i| ((i * 31 + seed * 977) as f32 * 0.37).sin() * 1e-3).collect::<Vec<f32>>();
    let n_out = target.rows.len();
    let pair = FactorPair {
        a: Values::from_f32(rank, target.n_in, &noise(rank * target.n_in)),
        b: Values::from_f32(n_out, rank, &noise(n_out * rank)),
    };
    Delta::new(target.alias.as_ref().unwrap_or(&target.tensor), 1.0, pair, None, RowOrder::Same)
}

fn open(engine: &mut Engine, sets: &[AdapterSet]) -> Result<Vec<SeqId>, Box<dyn Error>> {
    let mut seqs = Vec::new();
    for set in sets {
        let seq = engine.new_adapted_sequence(set)?;
        let tokens: Vec<u32> = (0..DEPTH as u32).map(|i| 300 + i * 7 % 100).collect();
        engine.forward(&[Segment { seq, tokens: &tokens, logits: LogitRows::None }])?;
        seqs.push(seq);
    }
    Ok(seqs)
}

/// Returns the milliseconds of a step, of the mean of a few.
fn step(engine: &mut Engine, seqs: &[SeqId]) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    for i in 0..N_STEPS as u32 {
        let token = [400 + i];
        let segment = |&seq: &SeqId| Segment { seq, tokens: &token, logits: LogitRows::Last };
        engine.forward(&seqs.iter().map(segment).collect::<Vec<_>>())?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e3 / N_STEPS as f64)
}
