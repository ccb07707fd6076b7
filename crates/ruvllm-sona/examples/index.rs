//! What the vector index finds and how long it takes: recall@10 and times of searches, with filters, after deletions; of
//! insertions, of making, saving and loading the graph.
//!
//! `cargo run --release -p ruvllm-sona --example index -- [N] [DIM] [FILE]`: `N` vectors (100,000) of `DIM` values (384), from
//! a file of little-endian f32 or drawn around middles; the last thousand of them are the queries. Times are the clock's:
//! measure on a quiet machine.

use std::collections::HashMap;
use std::time::Instant;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};
use ruvllm_sona::index::{IdFilter, IndexConfig, VectorIndex};

const N_QUERIES: usize = 1000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: usize| arguments.get(i).map_or(default, |text| text.parse().expect("a number"));
    let (n, dim) = (number(0, 100_000), number(1, 384));
    let mut rows = match arguments.get(2) {
        Some(path) => read(path, dim),
        None => drawn(n + N_QUERIES, dim),
    };
    let n = n.min(rows.len() / dim - N_QUERIES);
    let queries: Vec<f32> = rows.split_off(rows.len() - N_QUERIES * dim);
    rows.truncate(n * dim);
    normalise(&mut rows, dim);
    let config = IndexConfig::default();
    println!("{n} vectors of {dim}, {config:?}");

    let vectors = (0u64..).zip(rows.chunks_exact(dim));
    let start = Instant::now();
    let mut index = VectorIndex::build(dim, config, vectors.clone(), &mut |_, _| {}).expect("sound vectors");
    println!("graph made in {:.1} s", start.elapsed().as_secs_f64());
    measure("all", &index, &rows, &queries, &|_| true, None);
    for percent in [50, 20, 10, 5, 1] {
        let passes = |id: u64| id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 < (percent << 32) / 100;
        measure(&format!("{percent} % pass"), &index, &rows, &queries, &passes, Some(&passes));
    }

    let start = Instant::now();
    let bytes = index.to_bytes().expect("there is a graph");
    println!("saved: {:.1} MB in {:.2} s", bytes.len() as f64 / 1e6, start.elapsed().as_secs_f64());
    let by_id: HashMap<u64, &[f32]> = vectors.collect();
    let start = Instant::now();
    assert!(VectorIndex::from_bytes(config, &bytes, &by_id).expect("sound vectors").is_some());
    println!("loaded in {:.2} s", start.elapsed().as_secs_f64());

    let mut times = vec![];
    for (i, query) in queries.chunks_exact(dim).enumerate() {
        let start = Instant::now();
        index.insert((n + i) as u64, query).expect("a sound vector");
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    report("insert", &mut times, "");
    for i in 0..N_QUERIES {
        index.remove((n + i) as u64);
    }
    let is_left = |id: u64| !id.is_multiple_of(5);
    for id in (0..n as u64).filter(|id| !is_left(*id)) {
        index.remove(id);
    }
    measure("a fifth deleted", &index, &rows, &queries, &is_left, None);
}

fn measure(
    name: &str,
    index: &VectorIndex,
    rows: &[f32],
    queries: &[f32],
    passes: &dyn Fn(u64) -> bool,
    filter: Option<IdFilter<'_>>,
) {
    let dim = index.dim();
    let (mut times, mut n_found, mut n_true) = (vec![], 0, 0);
    // Comparing all is slow; a part of the queries tells recall to a tenth of a percent.
    for (i, query) in queries.chunks_exact(dim).enumerate() {
        let start = Instant::now();
        let hits = index.search(query, 10, filter).expect("a sound query");
        times.push(start.elapsed().as_secs_f64() * 1e3);
        if i % 5 == 0 {
            let product = |row: &[f32]| row.iter().zip(query).map(|(a, b)| a * b).sum::<f32>();
            let rows = (0u64..).zip(rows.chunks_exact(dim)).filter(|(id, _)| passes(*id));
            let mut all: Vec<(f32, u64)> = rows.map(|(id, row)| (product(row), id)).collect();
            all.sort_by(|a, b| b.0.total_cmp(&a.0));
            let nearest = &all[..all.len().min(10)];
            n_true += nearest.len();
            n_found += nearest.iter().filter(|(_, id)| hits.iter().any(|hit| hit.id == *id)).count();
        }
    }
    report(name, &mut times, &format!(", recall@10 {:.4}", n_found as f64 / n_true as f64));
}

fn report(name: &str, times: &mut [f64], more: &str) {
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[(share * (times.len() - 1) as f64) as usize];
    println!("{name:16} p50 {:.3} ms, p99 {:.3} ms{more}", at(0.5), at(0.99));
}

fn read(path: &str, dim: usize) -> Vec<f32> {
    let bytes = std::fs::read(path).expect("a file");
    let values: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    assert!(values.len().is_multiple_of(dim), "the file holds rows of {dim}");
    values
}

/// Vectors around middles, twenty to each; within a group of forty directions, since embeddings do not fill their space.
fn drawn(n: usize, dim: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut normal = || (0..4).map(|_| rng.next_u32() as f32 / u32::MAX as f32 - 0.5).sum::<f32>();
    let directions: Vec<f32> = (0..40 * dim).map(|_| normal()).collect();
    let middles: Vec<f32> = (0..(n / 20 + 1) * dim).map(|_| normal()).collect();
    let mut rows = Vec::with_capacity(n * dim);
    for i in 0..n {
        let middle = i * 7919 % (middles.len() / dim);
        rows.extend_from_slice(&middles[middle * dim..][..dim]);
        let row = &mut rows[i * dim..];
        for direction in directions.chunks_exact(dim) {
            let along = 0.2 * normal();
            row.iter_mut().zip(direction).for_each(|(value, part)| *value += along * part);
        }
    }
    rows
}

fn normalise(rows: &mut [f32], dim: usize) {
    for row in rows.chunks_exact_mut(dim) {
        let length = row.iter().map(|value| value * value).sum::<f32>().sqrt();
        row.iter_mut().for_each(|value| *value /= length);
    }
}
