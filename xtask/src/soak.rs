//! `cargo xtask soak`: a server under everything that clients do wrong, for as long as is wanted.
//!
//! Clients ask, leave in the middle of prompts and answers, read slowly or not at all, send too much, and what is no
//! request; the key of some is revoked while they are answered. Told are the requests by what came of them, and the
//! server's memory over time. It fails if the server ends, answers with an internal error or not at all, keeps memory,
//! requests or connections when all have gone, or does not stop in its time. `--hostile` is another one: see `hostile.rs`.

mod client;
mod hostile;
mod server;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use client::{Client, Outcome};
use server::{DRAIN, Server};

/// How often is told what happened.
const TELL_INTERVAL: Duration = Duration::from_secs(10);
/// How often the key of the guests is another one.
const REVOKE_INTERVAL: Duration = Duration::from_secs(3);
/// What memory may grow by after the first third of the time, in all.
const GROWTH_BYTES_MAX: u64 = 24 << 20;

/// What is asked for.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// Clients at once
    #[arg(long, default_value_t = 24)]
    clients: u64,
    /// The model to serve: a name or a path
    #[arg(long, default_value = "smollm2:135m")]
    model: String,
    /// One tenant attacks in every way, another one is served: under limits of memory and descriptors
    #[arg(long, conflicts_with = "clients")]
    hostile: bool,
    /// One kind of attack only
    #[arg(long, requires = "hostile", value_name = "KIND")]
    only: Option<String>,
    /// The program [default: built from this checkout]
    #[arg(long)]
    ruvllm: Option<PathBuf>,
}

/// What came of all requests so far, by what they were.
#[derive(Default)]
pub(crate) struct Tally(Mutex<BTreeMap<String, u64>>);

impl Tally {
    fn add(&self, outcome: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(outcome).or_default() += 1;
    }

    /// Returns all counts, and their sum.
    fn read(&self) -> (BTreeMap<String, u64>, u64) {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let n = counts.values().sum();
        (counts, n)
    }
}

/// Runs it.
///
/// # Errors
/// What was found.
pub(crate) fn run(args: &Args) -> Result<()> {
    let ruvllm = crate::models::given_or_built(args.ruvllm.as_ref())?;
    let time = Duration::from_secs_f64(60.0 * args.minutes);
    if args.hostile {
        return hostile::run(&ruvllm, &args.model, time, args.only.as_deref());
    }
    let server = Server::start(&ruvllm, &args.model)?;
    let (tally, is_over, faults) = (Tally::default(), AtomicBool::new(false), Mutex::new(Vec::new()));
    let mut memory = Vec::new();
    std::thread::scope(|scope| -> Result<()> {
        for i in 0..args.clients {
            let (server, tally, is_over, faults) = (&server, &tally, &is_over, &faults);
            scope.spawn(move || {
                let mut client = Client::new(server, i);
                while !is_over.load(Ordering::Relaxed) {
                    let Outcome { what, fault } = client.act();
                    tally.add(what);
                    faults.lock().unwrap_or_else(PoisonError::into_inner).extend(fault);
                }
            });
        }
        let result = watch(&server, time, &tally, &mut memory);
        is_over.store(true, Ordering::Relaxed);
        result
    })?;
    let (counts, n) = tally.read();
    println!("\n{n} requests");
    counts.iter().for_each(|(what, n)| println!("{n:>8}  {what}"));
    let faults = faults.into_inner().unwrap_or_else(PoisonError::into_inner);
    faults.iter().take(20).for_each(|fault| println!("FAULT: {fault}"));
    let left = server.left_behind()?;
    println!("left behind: {left}; resident {} MiB", server.resident_bytes()? >> 20);
    let (drained, growth) = (server.stop()?, growth(&memory));
    println!(
        "memory grew by {:.1} MiB after the first third; stopped in {:.1} s",
        growth as f64 / 1048576.0,
        drained.as_secs_f64()
    );
    if !faults.is_empty() {
        bail!("{} requests were answered as they must not be", faults.len());
    }
    if left != "nothing" {
        bail!("left behind: {left}");
    }
    if growth > GROWTH_BYTES_MAX {
        bail!("memory grew by {growth} bytes, more than {GROWTH_BYTES_MAX}");
    }
    if drained > DRAIN + Duration::from_secs(4) {
        bail!("it stopped in {:.1} s; its limit is {} s", drained.as_secs_f64(), DRAIN.as_secs());
    }
    Ok(())
}

/// Tells how the server is until the time is over, and changes the guests' key meanwhile.
fn watch(server: &Server, time: Duration, tally: &Tally, memory: &mut Vec<u64>) -> Result<()> {
    let (start, mut told_at, mut n_told) = (Instant::now(), Instant::now(), 0);
    while start.elapsed() < time {
        std::thread::sleep(REVOKE_INTERVAL);
        server.change_guest_key()?;
        memory.push(server.resident_bytes()?);
        if told_at.elapsed() >= TELL_INTERVAL {
            let (counts, n) = tally.read();
            let refused = counts.iter().filter(|(what, _)| what.contains(": 4")).map(|(_, n)| n).sum::<u64>();
            let rate = (n - n_told) as f64 / told_at.elapsed().as_secs_f64();
            let mib = memory.last().copied().unwrap_or_default() >> 20;
            println!(
                "{:>6.0} s  {n:>8} requests  {rate:>6.1} a second  {refused:>7} refused  {mib:>5} MiB resident",
                start.elapsed().as_secs_f64()
            );
            (told_at, n_told) = (Instant::now(), n);
        }
    }
    Ok(())
}

/// Returns by how much the median of the last third lies above that of the second.
fn growth(memory: &[u64]) -> u64 {
    let third = memory.len() / 3;
    let median = |samples: &[u64]| {
        let mut samples = samples.to_vec();
        samples.sort_unstable();
        samples.get(samples.len() / 2).copied().unwrap_or_default()
    };
    median(&memory[2 * third..]).saturating_sub(median(&memory[third..2 * third]))
}

#[cfg(test)]
mod tests {
    #[test]
    fn growth_is_between_thirds() {
        assert_eq!(super::growth(&[1, 1, 1, 10, 10, 11, 10, 10, 12]), 0);
        assert_eq!(super::growth(&[1, 1, 1, 10, 10, 11, 15, 15, 16]), 5);
        assert_eq!(super::growth(&[5]), 5);
        assert_eq!(super::growth(&[]), 0);
    }
}
