//! Read bandwidth of a thread pool, which decode is measured against.

use std::hint::black_box;

use ruvllm_cpu::ThreadPool;
use ruvllm_cpu::arena::LargePages;
use web_time::Instant;

/// Passes over the buffer; the fastest counts.
const PASSES: usize = 8;

/// Returns the read bandwidth of a number of threads over a buffer of `n_bytes`, in GB/s (1e9 bytes a second).
pub fn read_bandwidth(n_threads: usize, n_bytes: usize) -> f64 {
    read_gbps(&ThreadPool::new(n_threads), n_bytes)
}

/// Returns GB/s (1e9 bytes a second) of the threads reading `n_bytes`, each thread a contiguous share, best of 8 passes: four from
/// end to end, and four through both halves at once, which some cores' prefetchers do better.
pub(crate) fn read_gbps(threads: &ThreadPool, n_bytes: usize) -> f64 {
    let n = (n_bytes / 8).max(1 << 17);
    // In the pages that weights lie in, else the share would flatter.
    let mut buffer = LargePages::default().take::<u64>(n);
    // Written once, so that every page is there.
    buffer.iter_mut().enumerate().for_each(|(i, x)| *x = i as u64);
    let share = n.div_ceil(threads.n_threads());
    let mut best = f64::INFINITY;
    for pass in 0..PASSES {
        let start = Instant::now();
        threads.run(&|worker| {
            let part = &buffer[(worker * share).min(n)..((worker + 1) * share).min(n)];
            black_box(if pass % 2 == 0 { sum([part]) } else { sum(halves(part)) });
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    (n * 8) as f64 / best / 1e9
}

fn halves(part: &[u64]) -> [&[u64]; 2] {
    let (first, second) = part.split_at(part.len() / 2);
    [first, second]
}

/// Reads streams beside each other. Eight sums of vectors at once, so that loads and not additions are the limit.
fn sum<const N: usize>(streams: [&[u64]; N]) -> u64 {
    let streams = streams.map(|stream| stream.as_chunks::<32>().0);
    let mut sums = [0u64; 32];
    for i in 0..streams[0].len() {
        for chunk in streams.iter().filter_map(|stream| stream.get(i)) {
            sums.iter_mut().zip(chunk).for_each(|(sum, x)| *sum = sum.wrapping_add(*x));
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}
