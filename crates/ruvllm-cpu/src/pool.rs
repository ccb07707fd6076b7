//! Thread pool: a fixed set of workers that run one closure at a time, all together.
//!
//! A decode step is some hundred short parallel regions of 10 to 500 µs, so entering one must cost about a
//! microsecond. Workers that wait first spin (the next region usually starts at once), then yield the core
//! for a bounded time, then sleep. A worker that detects that another program uses its core sleeps at once: the system runs
//! it again as soon as it is woken, while a yield would cost a time slice. With more threads than cores no worker spins.
//!
//! The caller does not wait for a worker that does not come: a region that is cut in chunks is closed once the caller finds
//! none left, and a worker that wakes up later goes back to sleep. Workers that joined are waited for, and on a shared core
//! a worker may be stopped for milliseconds in the middle of its chunk. A short region is therefore left to
//! the caller while every other core counts as shared ([`ThreadPool::n_present`]).
//!
//! The pool does not decide *what* a worker computes: kernels cut their work into chunks whose results do not depend
//! on the worker that computes them, so results are the same for every number of threads.

mod next;
mod preemption;
mod rows;
mod shared_slice;
mod slot;
mod spawn;
mod wait;

pub use next::NextShares;
pub use rows::{ByColumn, ColumnsMut};
pub use shared_slice::SharedSlice;

use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};

use next::{Cursor, NextShare};
use preemption::PreemptionDetector;
use slot::{Job, Signal, WorkerSlot};
use spawn::Worker;
use wait::{Event, N_SPINS, SpinPolicy, lock};

thread_local! {
    /// True while this thread runs a pool's closure: entering a pool again from there would deadlock.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A fixed set of `n_threads` workers; worker 0 is the thread that calls.
///
/// ```
/// use ruvllm_cpu::{SharedSlice, ThreadPool};
/// let threads = ThreadPool::new(2);
/// let mut squares = vec![0; 100];
/// let shared = SharedSlice::new(&mut squares);
/// threads.for_each(100, 8, &|range, _worker| {
///     // SAFETY: the pool hands out every index once.
///     let part = unsafe { shared.slice(range.clone()) };
///     for (square, i) in part.iter_mut().zip(range) {
///         *square = i * i;
///     }
/// });
/// assert_eq!(squares[9], 81);
/// ```
#[derive(Debug)]
pub struct ThreadPool {
    state: Arc<State>,
    threads: Vec<Worker>,
    /// Held for the length of a run, so that callers on several threads take turns; how worker 0 waits.
    turn: Mutex<Waiter>,
}

#[derive(Debug)]
struct State {
    /// One for each worker. Of the caller's only the chunks and the next share are used.
    slots: Box<[WorkerSlot]>,
    /// One for each worker but the caller.
    detectors: Box<[Arc<PreemptionDetector>]>,
    start: Event,
    done: Event,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Threads of a pool, less than this.
const MAX_THREADS: usize = 1 << 15;

impl ThreadPool {
    /// Starts a pool of `n_threads` workers: the caller and `n_threads - 1` threads of its own. On WebAssembly it has as many of
    /// them as the host started and no other pool has (`host`), or the caller alone.
    ///
    /// # Panics
    /// If `n_threads` is 0 or 2^15 or more, or the system refuses a thread.
    pub fn new(n_threads: usize) -> ThreadPool {
        assert!(
            (1..MAX_THREADS).contains(&n_threads),
            "a pool of {n_threads} threads; it takes 1 to {}",
            MAX_THREADS - 1
        );
        let (n_more, n_cores) = spawn::at_most(n_threads - 1);
        let n_threads = 1 + n_more;
        let state = Arc::new(State {
            slots: (0..n_threads).map(|_| WorkerSlot::default()).collect(),
            detectors: (1..n_threads).map(|_| Arc::default()).collect(),
            start: Event::default(),
            done: Event::default(),
            panic: Mutex::new(None),
        });
        let n_spins = if n_threads > n_cores { 0 } else { N_SPINS };
        let spawn = |worker: usize| {
            let (state, detector) = (Arc::clone(&state), Arc::clone(&state.detectors[worker - 1]));
            Worker::start(worker, move || state.work(worker, &Waiter::new(n_spins, detector)))
        };
        let threads = (1..n_threads).map(spawn).collect();
        ThreadPool { threads, state, turn: Mutex::new(Waiter::new(n_spins, Arc::default())) }
    }

    /// Returns the number of workers, the caller among them.
    pub fn n_threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Returns the number of workers that a region of less than a millisecond should be cut for: one while all but the caller
    /// are on cores that other programs use, else all.
    pub fn n_present(&self) -> usize {
        if preemption::all_preempted(&self.state.detectors) { 1 } else { self.n_threads() }
    }

    /// Sets the memory that each worker reads after the region that begins next: workers that are early prefetch the first of
    /// it while they wait. It changes nothing but the time that reading takes, and holds until the next call.
    pub fn set_next(&self, next: &NextShares) {
        let none = 0..0;
        for (worker, slot) in self.state.slots.iter().enumerate() {
            slot.next_share.set(next.shares().get(worker).unwrap_or(&none));
        }
    }

    /// Returns the address where `worker`'s next share begins: see [`ThreadPool::set_next`].
    pub fn next_start(&self, worker: usize) -> Option<usize> {
        self.state.slots[worker].next_share.start()
    }

    /// Runs `f(worker)` once on every worker (0 is the calling thread) and returns when all are done.
    ///
    /// Allocates nothing. Calls from several threads take turns.
    ///
    /// # Panics
    /// With the first panic of any worker, after all workers are done; and when called from inside a running closure.
    pub fn run(&self, f: &(dyn Fn(usize) + Sync)) {
        self.enter(|turn| {
            self.region(turn, true, &|worker| {
                if worker == 0 {
                    self.state.start.notify();
                }
                f(worker);
            })
        });
    }

    /// Runs `f(worker)` on the calling thread (worker 0) and, once each, on the workers that join before that returns:
    /// `f` shares out work and does all of it, however many join. Returns when all that joined are done.
    ///
    /// # Panics
    /// As [`ThreadPool::run`] does.
    pub fn share(&self, f: &(dyn Fn(usize) + Sync)) {
        self.enter(|turn| {
            self.region(turn, false, &|worker| {
                if worker == 0 {
                    self.state.start.notify_sleepers();
                }
                f(worker);
            })
        });
    }

    /// Cuts `0..n` into chunks of `grain` (the last may be shorter) and runs `f(range, worker)` on some at a time until
    /// all are done, each once. A worker takes the chunks of a contiguous share in order, so that it reads memory as a
    /// straight stream, half of what is left at a time; a worker that is done early takes the others' last chunks, one at a
    /// time. A single chunk runs on the caller without waking a worker.
    ///
    /// # Panics
    /// If `grain` is 0 or there are 2^32 chunks, and as [`ThreadPool::run`] does.
    pub fn for_each(&self, n: usize, grain: usize, f: &(dyn Fn(Range<usize>, usize) + Sync)) {
        assert!(grain > 0, "chunks need at least one item");
        let n_chunks = n.div_ceil(grain);
        assert!(u32::try_from(n_chunks).is_ok(), "{n_chunks} chunks; make them larger");
        let (state, n_threads) = (&*self.state, self.n_threads());
        let claim = |worker: usize| {
            // Sleepers are woken when there is something left after the first chunk, which is the time it takes anyway:
            // the caller, which has to wake them, begins with one chunk.
            let mut asleep = worker == 0 && state.start.has_sleepers();
            let mut next = next_chunks(&state.slots, worker, asleep);
            while let Some(chunks) = next {
                f(chunks.start * grain..n.min(chunks.end * grain), worker);
                next = next_chunks(&state.slots, worker, false);
                asleep = asleep && !(next.is_some() && state.start.notify_sleepers());
            }
        };
        self.enter(|turn| {
            // Workers see the shares: the region opens after this. A single chunk is in the last share.
            for (worker, slot) in state.slots.iter().enumerate() {
                slot.chunks.set(share(worker, n_threads, n_chunks));
            }
            match n_chunks {
                0 => Ok(()),
                1 => run_marked(&claim, 0),
                _ => self.region(turn, false, &claim),
            }
        });
    }

    /// As [`ThreadPool::for_each`], for a region of less than a millisecond: it is left to the caller while all other workers are
    /// on cores that other programs use.
    ///
    /// # Panics
    /// As [`ThreadPool::for_each`] does.
    pub fn for_each_short(&self, n: usize, grain: usize, f: &(dyn Fn(Range<usize>, usize) + Sync)) {
        self.for_each(n, self.short_grain(n, grain), f);
    }

    /// Returns the grain that [`ThreadPool::for_each_short`] cuts `n` items by: `grain`, or `n` where the region is left to the
    /// caller.
    pub fn short_grain(&self, n: usize, grain: usize) -> usize {
        if self.n_present() == 1 { grain.max(n) } else { grain }
    }

    /// Takes the turn, runs `f` in it, and passes on the panic it caught.
    fn enter(&self, f: impl FnOnce(&Waiter) -> std::thread::Result<()>) {
        assert!(!INSIDE.get(), "a pool's worker may not enter a pool again");
        let turn = lock(&self.turn);
        let outcome = f(&turn);
        drop(turn);
        if let Err(panic) = outcome {
            resume_unwind(panic);
        }
    }

    /// Opens a region that runs `f`, on all workers or on those that join, takes part in it and closes it. Workers that sleep
    /// join only if `f` notifies them.
    fn region(&self, waiter: &Waiter, all: bool, f: &(dyn Fn(usize) + Sync)) -> std::thread::Result<()> {
        let state = &*self.state;
        if self.threads.is_empty() {
            return run_marked(f, 0);
        }
        // SAFETY: only the lifetime changes. A worker uses the pointer only between joining the region and leaving it, and
        // this function closes the region and waits for all that joined before it returns (a panic of `f` on this thread
        // is caught), so `f` outlives it.
        let job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(f) };
        let (own, slots) = state.slots.split_first().expect("the caller has a slot");
        for slot in slots {
            // SAFETY: the last region was left by all that joined it, and `f` outlives this one.
            unsafe { slot.open(job) };
        }
        let mine = run_marked(f, 0);
        let wait = |ready: &dyn Fn(&WorkerSlot) -> bool| {
            waiter.wait_until(&state.done, &own.next_share, || slots.iter().all(ready));
        };
        if all {
            wait(&WorkerSlot::is_over);
        }
        slots.iter().for_each(WorkerSlot::close);
        wait(&|slot| !slot.is_in());
        match lock(&state.panic).take() {
            Some(theirs) => mine.and(Err(theirs)),
            None => mine,
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.state.slots.iter().for_each(WorkerSlot::stop);
        self.state.start.notify();
        self.threads.drain(..).for_each(Worker::join);
    }
}

/// Returns the items of `0..n` that are `worker`'s share among `n_workers`; [`ThreadPool::for_each`] shares out its chunks by it.
#[inline]
pub fn share(worker: usize, n_workers: usize, n: usize) -> Range<usize> {
    n * worker / n_workers..n * (worker + 1) / n_workers
}

/// State of one thread that waits: its spin policy, and its prefetches meanwhile.
#[derive(Debug)]
struct Waiter {
    policy: SpinPolicy,
    cursor: Cursor,
}

impl Waiter {
    fn new(n_spins: usize, detector: Arc<PreemptionDetector>) -> Waiter {
        Waiter { policy: SpinPolicy::new(n_spins, detector), cursor: Cursor::default() }
    }

    /// Returns once `ready` is true. Meanwhile it prefetches the next share.
    fn wait_until(&self, event: &Event, next: &NextShare, ready: impl Fn() -> bool) {
        while !ready() {
            if !next.prefetch(&self.cursor) {
                return event.wait_until(&self.policy, ready);
            }
        }
    }
}

/// Takes the next chunks of a worker's own share, else one of another's.
fn next_chunks(slots: &[WorkerSlot], worker: usize, single: bool) -> Option<Range<usize>> {
    let others = || (1..slots.len()).map(|i| (worker + i) % slots.len());
    slots[worker].chunks.take_first(single).or_else(|| others().find_map(|other| slots[other].chunks.take_last()))
}

/// Runs `f(worker)` with this thread marked as inside a pool, and catches its panic.
fn run_marked(f: &(dyn Fn(usize) + Sync), worker: usize) -> std::thread::Result<()> {
    INSIDE.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(|| f(worker)));
    INSIDE.set(false);
    outcome
}

impl State {
    /// Main loop of spawned worker `worker`.
    fn work(&self, worker: usize, waiter: &Waiter) {
        let slot = &self.slots[worker];
        let mut seen = 0;
        loop {
            waiter.wait_until(&self.start, &slot.next_share, || slot.has_signal(seen));
            let (number, signal) = slot.join();
            seen = number;
            let job = match signal {
                Signal::Stop => return,
                Signal::Missed => continue,
                Signal::Region(job) => job,
            };
            // SAFETY: `ThreadPool::region` keeps the closure alive until all that joined have left.
            let outcome = run_marked(unsafe { &*job }, worker);
            if let Err(panic) = outcome {
                lock(&self.panic).get_or_insert(panic);
            }
            slot.leave(number);
            self.done.notify();
        }
    }
}

#[cfg(test)]
mod tests;
