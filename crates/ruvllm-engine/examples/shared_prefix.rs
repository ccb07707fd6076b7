//! Does a crowd fit? 64 requests of 2,000 tokens, that share their first 1,500 or nothing, in 256 MiB of keys and
//! values: all must finish, and the memory must stay within its budget.
//!
//! `cargo run --release -p ruvllm-engine --example shared_prefix -- model.gguf [shared|apart] [REQUESTS]`
//!
//! A request has 250 prompt tokens of its own (1,750 when nothing is shared) and writes 250. One JSON object on standard
//! output tells what happened.

use std::time::Instant;

use ruvllm_engine::{Engine, Event, GenerateRequest, LoadOptions, SamplingParams, SchedulerOptions};

const BUDGET_BYTES: usize = 256 << 20;
const N_SHARED: usize = 1500;
const N_OWN: usize = 250;
const N_ANSWER: usize = 250;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = args.first().ok_or("usage: shared_prefix MODEL.gguf [shared|apart] [REQUESTS]")?;
    let is_shared = args.get(1).is_none_or(|mode| mode == "shared");
    let n_requests = args.get(2).map_or(Ok(64), |n| n.parse())?;
    let options = LoadOptions {
        n_ctx: Some(N_SHARED + N_OWN + N_ANSWER),
        n_seq_max: n_requests,
        kv_bytes: Some(BUDGET_BYTES),
        ..LoadOptions::default()
    };
    let mut engine = Engine::load(path.as_ref(), &options, &mut |_| {})?;
    let n_vocab = engine.info().n_vocab;
    let loaded_bytes = resident_bytes()?;

    let mut scheduler = engine.scheduler(&SchedulerOptions::default())?;
    for i in 0..n_requests {
        let start = if is_shared { 0 } else { i + 1 };
        let word = |j: usize| ((j * 7919 + start * 104_729 + 13) % n_vocab) as u32;
        let own = |j: usize| ((j * 6007 + i * 15_485_863 + 101) % n_vocab) as u32;
        let prompt = (0..N_SHARED).map(word).chain((0..N_OWN).map(own)).collect();
        let (max_tokens, sampling) = (Some(N_ANSWER), SamplingParams::greedy());
        scheduler.submit(GenerateRequest { prompt, max_tokens, sampling, ignore_eos: true, ..Default::default() })?;
    }
    let (start, mut kv_bytes_max, mut resident_max, mut n_finished) = (Instant::now(), 0, loaded_bytes, 0);
    while !scheduler.is_idle() {
        for event in scheduler.step() {
            let Event::Done(_, result) = event else { continue };
            n_finished += usize::from(result?.tokens.len() == N_ANSWER);
        }
        kv_bytes_max =
            kv_bytes_max.max(scheduler.runner().model().paged_kv().map_or(0, |kv| kv.room().committed_bytes));
        resident_max = resident_max.max(resident_bytes()?);
    }
    let (seconds, stats) = (start.elapsed().as_secs_f64(), scheduler.stats());
    let mib = |bytes: usize| bytes as f64 / (1u64 << 20) as f64;
    let report = serde_json::json!({
        "requests": n_requests, "shared_tokens": if is_shared { N_SHARED } else { 0 }, "finished": n_finished,
        "budget_mib": mib(BUDGET_BYTES), "kv_max_mib": mib(kv_bytes_max),
        "resident_growth_mib": mib(resident_max - loaded_bytes),
        "running_max": stats.n_running_max, "preemptions": stats.n_preemptions,
        "tokens_computed": stats.n_tokens, "tokens_recomputed": stats.n_tokens_recomputed,
        "steps": stats.n_steps, "seconds": seconds,
    });
    println!("{report}");
    let is_within = n_finished == n_requests && kv_bytes_max <= BUDGET_BYTES;
    if is_within { Ok(()) } else { Err("a request did not finish, or the memory went over its budget".into()) }
}

/// Returns the resident memory of this process, but for the pages of the model file (Linux).
fn resident_bytes() -> Result<usize, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line =
        status.lines().find_map(|line| line.strip_prefix("RssAnon:")).ok_or("no RssAnon in /proc/self/status")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<usize>()? * 1024)
}
