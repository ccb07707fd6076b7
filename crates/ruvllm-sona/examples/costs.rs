//! What learning costs: added time for a decoded token by entries of the datastore, the step at the end of a request, and how
//! many of the 32 nearest entries the coarse scan finds.
//!
//! `cargo run --release -p ruvllm-sona --example costs -- [n_embd] [n_vocab] [n_inner] [FILE of f32 states]`
//!
//! States come from the file, `[n, n_embd]`, or are drawn around a thousand places. The head is one of floats in memory, so the
//! gradient's rows are not dequantised here, and the last block has `n_inner` values inside but computes next to nothing: its products are the
//! engine's.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use ruvllm_cpu::ThreadPool;
use ruvllm_kernels::{Compute, Isa};
use ruvllm_lora::micro::toy::Squares;
use ruvllm_lora::micro::{HeadRows, StateRows};
use ruvllm_sona::datastore::{Context, Datastore, DatastoreOptions, KnnQuery, SearchScratch};
use ruvllm_sona::{Calibration, CalibrationBuilder, LearnOptions, Learned, RequestTrace};

/// Sizes of the datastore that are measured.
const SIZES: [usize; 3] = [4_096, 16_384, 100_000];
/// Threads that share a token's work.
const N_THREADS: usize = 2;
/// Tokens that are timed, and tokens of a request.
const N_TIMED: usize = 400;
const N_REQUEST: usize = 512;
/// Requests whose end is timed: those that were noted, and those that were learned, with steps of MicroLoRA and the gate.
const N_ENDS: usize = 300;
const N_LEARNED_ENDS: usize = 100;
/// States that calibration is made of.
const N_CALIBRATION: usize = 4_000;

/// A head in memory: `[n_vocab, n_embd]`.
struct Head(Vec<f32>, usize);

impl HeadRows for Head {
    fn row(&self, token: u32, out: &mut [f32]) {
        out.copy_from_slice(&self.0[token as usize * self.1..][..self.1]);
    }
}

/// Numbers that look random and are the same each time.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: usize| args.get(i).map_or(Ok(default), |arg| arg.parse());
    let (n_embd, n_vocab) = (number(0, 576)?, number(1, 49_152)?);
    let n_inner = number(2, 2 * 8 * n_embd / 3)?;
    let states = match args.get(3) {
        Some(path) => std::fs::read(path)?.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect(),
        None => drawn(SIZES[2] + N_CALIBRATION, n_embd),
    };
    let state = |i: usize| &states[i % (states.len() / n_embd) * n_embd..][..n_embd];
    let mut noise = Noise(7);
    let logits: Vec<f32> = (0..n_vocab).map(|_| 6.0 * noise.next()).collect();
    let head = Head((0..n_vocab * n_embd).map(|_| 0.1 * noise.next()).collect(), n_embd);
    let mut builder = CalibrationBuilder::new(n_embd, Isa::best())?;
    let n_places = states.len() / n_embd;
    (0..N_CALIBRATION)
        .for_each(|i| builder.push(state(i * n_places / N_CALIBRATION), &logits[..256], i as u32 % 256, i == 0));
    let calibration = builder.finish(n_embd)?;
    let basis = calibration.fit_basis(&head, Isa::best())?;
    let calibration = calibration.with_basis(Arc::new(basis))?;
    let block = Squares { n_embd, n_inner, square: 1e-3, x_size: 1.0 };
    let calibration = Arc::new(calibration.with_block(Arc::new(block))?);
    let compute = Compute { isa: Isa::best(), threads: Arc::new(ThreadPool::new(N_THREADS)) };
    knn(&calibration, &compute, &state);
    let options = LearnOptions::default();
    let mut learned = Learned::new(Arc::clone(&calibration), options, compute)?;
    let mut filled = 0;
    for size in SIZES {
        while learned.datastore().len() < size {
            let mut trace = RequestTrace::default();
            let n = N_REQUEST.min(size - learned.datastore().len());
            (0..n).for_each(|i| trace.remember(&learned, state(filled + i), (filled + i) as u32 % n_vocab as u32));
            filled += n;
            learned.ingest(trace, 1.0);
        }
        measure(&learned, &state, &logits, &head);
    }
    Ok(())
}

/// Prints the times of a token and of the end of a request.
fn measure<'a>(learned: &Learned, state: &impl Fn(usize) -> &'a [f32], logits: &[f32], head: &Head) {
    let (mut adjust, mut accept, mut end, mut learned_end) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let size = learned.datastore().len();
    let mut row = logits.to_vec();
    let ms = |start: Instant| start.elapsed().as_secs_f64() * 1e3;
    let ends = |trace: RequestTrace| {
        // As a tenant does it: on a copy, since others read what was known.
        let start = Instant::now();
        let mut copy = learned.clone();
        copy.ingest(trace, 1.0);
        ms(start)
    };
    for n in 0..N_LEARNED_ENDS {
        let mut trace = RequestTrace::default();
        for i in 0..N_TIMED {
            row.copy_from_slice(logits);
            let start = Instant::now();
            let hidden = state((n + i) * 7919);
            trace.adjust(learned, StateRows { hidden, stream: hidden }, &mut row);
            adjust.push(ms(start));
            let start = Instant::now();
            trace.accept(learned, i as u32 % 1000, head);
            accept.push(ms(start));
        }
        learned_end.push(ends(trace));
    }
    for i in 0..N_ENDS {
        let mut trace = RequestTrace::default();
        (0..N_REQUEST).for_each(|j| trace.remember(learned, state((i + j) * 31), j as u32));
        end.push(ends(trace));
    }
    let quantile = |times: &mut Vec<f64>, q: f64| {
        times.sort_by(f64::total_cmp);
        times[((times.len() - 1) as f64 * q) as usize]
    };
    println!(
        "{size} entries: before the token {:.3} ms (p99 {:.3}), behind it {:.3} ms (p99 {:.3}); end of a request of {N_REQUEST} noted tokens {:.3} ms (p99 {:.3}, longest {:.3}), of {N_TIMED} learned ones {:.3} ms (p99 {:.3}, longest {:.3})",
        quantile(&mut adjust, 0.5),
        quantile(&mut adjust, 0.99),
        quantile(&mut accept, 0.5),
        quantile(&mut accept, 0.99),
        quantile(&mut end, 0.5),
        quantile(&mut end, 0.99),
        quantile(&mut end, 1.0),
        quantile(&mut learned_end, 0.5),
        quantile(&mut learned_end, 0.99),
        quantile(&mut learned_end, 1.0),
    );
}

/// Prints how many of the nearest entries the coarse scan finds, by candidates.
fn knn<'a>(calibration: &Calibration, compute: &Compute, state: &impl Fn(usize) -> &'a [f32]) {
    let (whitener, isa) = (calibration.whitener(), compute.isa);
    for n_candidates in [128, 256, 512, 1024] {
        let options = DatastoreOptions { n_candidates, ..DatastoreOptions::default() };
        let Ok(mut datastore) = Datastore::new(whitener.n_key(), options) else { continue };
        // Every second state is an entry, some of the others are asked for.
        let n = SIZES[2] / 2;
        (0..n).for_each(|i| datastore.push(&whitener.key(state(2 * i), isa), Context::default(), 0, 1.0));
        let (mut scratch, mut coarse, mut exact) = (SearchScratch::default(), Vec::new(), Vec::new());
        let (mut n_found, mut n_all) = (0, 0);
        for i in 0..200 {
            let key = whitener.key(state(2 * (i * 211 % n) + 1), isa);
            datastore.search(KnnQuery { key: &key, context: Context::default() }, compute, &mut scratch, &mut coarse);
            datastore.search_exact(
                KnnQuery { key: &key, context: Context::default() },
                compute,
                &mut scratch,
                &mut exact,
            );
            n_found += exact.iter().filter(|hit| coarse.contains(hit)).count();
            n_all += exact.len();
        }
        println!("{n_candidates} candidates of {n}: recall@32 {:.4}", n_found as f64 / n_all as f64);
    }
}

/// States around a thousand places, with a common mean and directions of falling variance.
fn drawn(n: usize, n_embd: usize) -> Vec<f32> {
    let mut noise = Noise(3);
    let weight: Vec<f32> = (0..n_embd).map(|i| 30.0 / (1.0 + i as f32)).collect();
    let places: Vec<f32> = (0..1000 * n_embd).map(|i| 2.0 + weight[i % n_embd] * noise.next()).collect();
    let state = |i: usize| i * 7919 % 1000 * n_embd;
    (0..n)
        .flat_map(|i| state(i)..state(i) + n_embd)
        .map(|at| places[at] + 0.3 * weight[at % n_embd] * noise.next())
        .collect()
}
