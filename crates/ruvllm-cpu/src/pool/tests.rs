//! Regions: everything once, whichever workers join.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn assert_send_sync<T: Send + Sync>() {}

#[test]
fn every_worker_runs_once_per_run() {
    assert_send_sync::<ThreadPool>();
    for n_threads in 1..=8 {
        let pool = ThreadPool::new(n_threads);
        assert_eq!(pool.n_threads(), n_threads);
        let counts: Vec<AtomicUsize> = (0..n_threads).map(|_| AtomicUsize::new(0)).collect();
        for _ in 0..100 {
            pool.run(&|worker| {
                counts[worker].fetch_add(1, Ordering::Relaxed);
            });
        }
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 100), "{n_threads} threads: {counts:?}");
    }
}

#[test]
fn ten_thousand_hot_runs() {
    let pool = ThreadPool::new(2);
    let mut values = vec![0u32; 64];
    for _ in 0..10_000 {
        let shared = SharedSlice::new(&mut values);
        // SAFETY: worker 0 takes the first half, worker 1 the second.
        pool.run(&|worker| unsafe { shared.slice(32 * worker..32 * worker + 32) }.iter_mut().for_each(|v| *v += 1));
    }
    assert!(values.iter().all(|&v| v == 10_000), "{values:?}");
}

#[test]
fn for_each_hands_out_every_index_once() {
    for n_threads in [1, 2, 3, 8] {
        let pool = ThreadPool::new(n_threads);
        for (n, grain) in [(0, 1), (1, 1), (1, 100), (7, 3), (100, 7), (1000, 1), (64, 64), (65, 64)] {
            let mut counts = vec![0u8; n];
            let shared = SharedSlice::new(&mut counts);
            assert_eq!((shared.len(), shared.is_empty()), (n, n == 0));
            pool.for_each(n, grain, &|range, worker| {
                assert!(worker < n_threads && range.start % grain == 0 && !range.is_empty());
                assert!(range.end == n || range.end % grain == 0);
                // SAFETY: each range comes once.
                unsafe { shared.slice(range) }.iter_mut().for_each(|count| *count += 1);
            });
            assert!(counts.iter().all(|&count| count == 1), "n {n}, grain {grain}: {counts:?}");
        }
    }
}

#[test]
fn a_short_region_is_left_to_the_caller_while_all_others_are_preempted() {
    let pool = ThreadPool::new(3);
    let count = || {
        let n = AtomicUsize::new(0);
        pool.for_each_short(100, 7, &|range, _| _ = n.fetch_add(range.len(), Ordering::Relaxed));
        n.load(Ordering::Relaxed)
    };
    assert_eq!(count(), 100);
    let until = std::time::Instant::now() + Duration::from_secs(600);
    pool.state.detectors.iter().for_each(|detector| detector.set(until));
    assert_eq!((pool.n_present(), count()), (1, 100));
    pool.for_each_short(100, 7, &|range, worker| assert_eq!((range, worker), (0..100, 0)));
    pool.for_each_short(0, 7, &|_, _| panic!("nothing to do"));
}

#[test]
fn runs_again_after_all_slept() {
    let pool = ThreadPool::new(4);
    let count = AtomicUsize::new(0);
    for pause_ms in [0, 30, 0, 60] {
        std::thread::sleep(Duration::from_millis(pause_ms));
        pool.run(&|_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
    }
    assert_eq!(count.into_inner(), 16);
}

#[test]
fn the_caller_sleeps_through_a_slow_worker() {
    let pool = ThreadPool::new(3);
    let done = AtomicUsize::new(0);
    pool.run(&|worker| {
        std::thread::sleep(Duration::from_millis(20 * worker as u64));
        done.fetch_add(1, Ordering::SeqCst);
    });
    assert_eq!(done.into_inner(), 3);
}

fn message(f: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).expect_err("it must panic");
    match panic.downcast::<&str>() {
        Ok(text) => text.to_string(),
        Err(panic) => *panic.downcast::<String>().expect("assert! throws text"),
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
    for n_threads in [1, 2, 4] {
        let pool = ThreadPool::new(n_threads);
        for bad in 0..n_threads {
            let text = message(|| pool.run(&|worker| assert!(worker != bad, "worker {worker} fell")));
            assert_eq!(text, format!("worker {bad} fell"));
        }
        let text = message(|| pool.for_each(10, 1, &|range, _| assert!(!range.contains(&7), "chunk 7 fell")));
        assert_eq!(text, "chunk 7 fell");
        let count = AtomicUsize::new(0);
        pool.for_each(10, 3, &|range, _| {
            count.fetch_add(range.len(), Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 10);
    }
}

#[test]
fn nested_runs_are_refused() {
    for n_threads in [1, 2] {
        let pool = ThreadPool::new(n_threads);
        let text = message(|| pool.run(&|_| pool.run(&|_| ())));
        assert_eq!(text, "a pool's worker may not enter a pool again");
        let text = message(|| pool.for_each(1, 1, &|_, _| pool.run(&|_| ())));
        assert_eq!(text, "a pool's worker may not enter a pool again");
        pool.run(&|_| ());
    }
}

#[test]
fn callers_on_several_threads_take_turns() {
    let pool = ThreadPool::new(2);
    let (inside, total) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..200 {
                    pool.run(&|_| {
                        assert!(inside.fetch_add(1, Ordering::SeqCst) < 2);
                        total.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    });
                }
            });
        }
    });
    assert_eq!(total.into_inner(), 3 * 200 * 2);
}

#[test]
#[should_panic(expected = "range 3..9 of a shared slice of 8")]
fn shared_checks_its_ranges() {
    let mut values = [0u8; 8];
    // SAFETY: only one range is taken.
    unsafe { SharedSlice::new(&mut values).slice(3..9) };
}

#[test]
fn a_share_is_done_whichever_workers_join() {
    let pool = ThreadPool::new(4);
    for pause_ms in [0, 20, 0, 20] {
        std::thread::sleep(Duration::from_millis(pause_ms));
        let (cursor, sum, n_runs) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        pool.share(&|_| {
            n_runs.fetch_add(1, Ordering::Relaxed);
            while let Some(i) = Some(cursor.fetch_add(1, Ordering::Relaxed)).filter(|&i| i < 1000) {
                sum.fetch_add(i, Ordering::Relaxed);
            }
        });
        assert_eq!(sum.into_inner(), 499_500);
        assert!((1..=4).contains(&n_runs.into_inner()));
    }
}

#[test]
fn regions_follow_each_other_while_workers_come_late() {
    // Far more threads than cores: most workers see regions only after they are closed.
    let pool = ThreadPool::new(16);
    let mut values = vec![0u32; 64];
    for _ in 0..2000 {
        let shared = SharedSlice::new(&mut values);
        // SAFETY: each range comes once.
        pool.for_each(64, 4, &|range, _| unsafe { shared.slice(range) }.iter_mut().for_each(|value| *value += 1));
    }
    assert!(values.iter().all(|&value| value == 2000), "{values:?}");
}

#[test]
fn the_next_share_changes_no_work_and_may_lie_anywhere() {
    let pool = ThreadPool::new(3);
    let sum = AtomicUsize::new(0);
    let nowhere: NextShares = [usize::MAX - 4096..usize::MAX, 64..1 << 20].into_iter().collect();
    for next in [nowhere, NextShares::default()] {
        pool.set_next(&next);
        for _ in 0..100 {
            pool.for_each(100, 1, &|range, _| {
                sum.fetch_add(range.sum(), Ordering::Relaxed);
            });
        }
    }
    assert_eq!(sum.load(Ordering::Relaxed), 2 * 100 * 4950);
    assert_eq!((pool.next_start(0), pool.next_start(2)), (None, None));
}

/// Workers are anywhere between two of their steps when a pool is dropped; none may miss it. (One that looked whether it is
/// to stop before it read the region's number did, once in some ten thousand pools.)
#[test]
fn pools_end_whatever_their_workers_do() {
    // An emulator keeps a third of a megabyte of every thread that ended.
    let rounds = if cfg!(target_arch = "x86_64") { 10_000 } else { 2_000 };
    for round in 0..rounds {
        let pool = ThreadPool::new(2 + round % 7);
        for _ in 0..round % 3 {
            pool.share(&|_| {});
        }
    }
}
