//! How fast memory is read: what a decode step is held against.

use std::hint::black_box;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Throughput};
use ruvllm_cpu::ThreadPool;
use ruvllm_cpu::arena::AlignedVec;

use crate::runs_as_test;

/// Measures the threads of a pool that each add up a contiguous share of `n_bytes`, again and again: cases
/// `<name>/t1` and `<name>/t2`.
pub fn bench(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, n_bytes: usize) {
    let n = if runs_as_test() { 1 << 10 } else { n_bytes / 8 };
    let mut buffer = AlignedVec::<u64>::new(n);
    // Written once, so that every page is there.
    buffer.iter_mut().enumerate().for_each(|(i, x)| *x = i as u64);
    group.throughput(Throughput::Bytes(8 * n as u64));
    for n_threads in [1, 2] {
        let threads = ThreadPool::new(n_threads);
        // Whole lines, so that no two threads meet in one.
        let share = n.div_ceil(n_threads).next_multiple_of(8);
        group.bench_function(format!("{name}/t{n_threads}"), |b| {
            b.iter(|| {
                threads.run(&|worker| {
                    let part = &buffer[(worker * share).min(n)..((worker + 1) * share).min(n)];
                    black_box(sum(black_box(part)));
                });
            });
        });
    }
}

/// Adds up with the widest loads there are.
fn sum(part: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f")]
        fn avx512(part: &[u64]) -> u64 {
            lanes(part)
        }
        #[target_feature(enable = "avx2")]
        fn avx2(part: &[u64]) -> u64 {
            lanes(part)
        }
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the CPU has it.
            return unsafe { avx512(part) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU has it.
            return unsafe { avx2(part) };
        }
    }
    lanes(part)
}

/// Many sums at once, so that loads and not additions are the limit.
#[inline(always)]
fn lanes(part: &[u64]) -> u64 {
    let (chunks, rest) = part.as_chunks::<64>();
    let mut sums = [0u64; 64];
    for chunk in chunks {
        prefetch(chunk);
        sums.iter_mut().zip(chunk).for_each(|(sum, x)| *sum = sum.wrapping_add(*x));
    }
    sums.iter().chain(rest).fold(0, |all, x| all.wrapping_add(*x))
}

/// How far ahead lines are asked for, in bytes, as the kernels do it.
#[cfg(target_arch = "x86_64")]
const PREFETCH_BYTES: usize = 8192;

/// Asks for the lines of a later chunk.
#[inline(always)]
fn prefetch(chunk: &[u64; 64]) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..8 {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let at = chunk.as_ptr().cast::<i8>().wrapping_add(PREFETCH_BYTES + 64 * line);
        // SAFETY: a prefetch never faults, so the address may lie past the end.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = chunk;
}
