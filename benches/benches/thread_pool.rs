//! What does it cost to enter and leave a parallel region? A decode step does it some hundred times, so it should be a
//! microsecond or two when the workers are awake. Compare only on a machine with a free core for each worker.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use ruvllm_benches::criterion;
use ruvllm_cpu::ThreadPool;

fn regions(c: &mut Criterion) {
    let mut group = c.benchmark_group("threads");
    for n_threads in [1, 2, 4, 8] {
        if std::thread::available_parallelism().is_ok_and(|n_cores| n_threads > n_cores.get()) {
            continue;
        }
        let threads = ThreadPool::new(n_threads);
        group.bench_function(format!("run/{n_threads}"), |b| {
            b.iter(|| {
                threads.run(&|worker| {
                    black_box(worker);
                });
            });
        });
        group.bench_function(format!("for_each_64/{n_threads}"), |b| {
            b.iter(|| {
                threads.for_each(64, 1, &|range, _| {
                    black_box(range);
                });
            });
        });
    }
}

criterion_group! { name = benches; config = criterion(); targets = regions }
criterion_main!(benches);
