//! The thread team: a fixed set of workers that run one closure at a time, all together.
//!
//! A decode step is some hundred short parallel regions of 10 to 500 µs, so entering one must cost about a
//! microsecond. Workers that wait first spin (the next region usually starts at once), then yield the core
//! for a bounded time, then sleep. A worker that notices a busy neighbour on its core sleeps at once: the system runs
//! it again as soon as it is woken, while a yield would cost a time slice. With more threads than cores nobody spins.
//!
//! Nothing here decides *what* a worker computes: kernels cut their work into pieces whose results do not depend
//! on which worker computes them, so results are the same for every team size.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Pause instructions before a waiter starts to yield: about 2 µs, at the 30 ns that a pause costs on recent CPUs. When
/// the system has put two workers on one core, each spins in the other's way (17 µs a region with 300 pauses), while
/// on a free core a yield costs no more than ten pauses: hence few.
const N_SPINS: usize = 64;
/// How long a waiter yields before it sleeps: longer than sampling a token, shorter than a person notices.
const YIELD_FOR: Duration = Duration::from_micros(1000);
/// A yield that takes this long has let somebody else compute.
const LONG_YIELD: Duration = Duration::from_micros(200);
/// How long a core is taken for shared after a long yield.
const SHARED_FOR: Duration = Duration::from_secs(1);

type Job = *const (dyn Fn(usize) + Sync);

thread_local! {
    /// True while this thread runs a team's closure: entering a team again from there would deadlock.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A fixed set of `n_threads` workers; worker 0 is the thread that calls.
///
/// ```
/// use ruvllm_kernels::team::{Shared, Team};
/// let team = Team::new(2);
/// let mut squares = vec![0; 100];
/// let shared = Shared::new(&mut squares);
/// team.for_each(100, 8, &|range, _worker| {
///     // SAFETY: the team hands out every index once.
///     let part = unsafe { shared.slice(range.clone()) };
///     for (square, i) in part.iter_mut().zip(range) {
///         *square = i * i;
///     }
/// });
/// assert_eq!(squares[9], 81);
/// ```
#[derive(Debug)]
pub struct Team {
    state: Arc<State>,
    threads: Vec<JoinHandle<()>>,
    /// Held for the length of a run, so that callers on several threads take turns; how worker 0 waits.
    turn: Mutex<Patience>,
}

/// Keeps a counter that everybody polls away from its neighbours' cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line<T>(T);

#[derive(Debug)]
struct State {
    /// Counts runs; a worker starts when it differs from the last value the worker saw.
    generation: Line<AtomicU64>,
    /// Spawned workers that have not finished the current run.
    n_pending: Line<AtomicUsize>,
    /// The pieces of `for_each` that each worker has left.
    shares: Box<[Line<Share>]>,
    /// What the current generation runs.
    job: UnsafeCell<Option<Job>>,
    stop: AtomicBool,
    start: Bell,
    done: Bell,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written only by the caller that holds `turn` while no worker runs (before `generation` rises with
// release order) and read by workers only after they saw the rise with acquire order; the closure behind it is `Sync`.
unsafe impl Sync for State {}
// SAFETY: as above; the pointer is used only while the `run` that set it has not returned.
unsafe impl Send for State {}

/// Wakes sleepers; costs one load when nobody sleeps.
#[derive(Debug, Default)]
struct Bell {
    n_sleeping: AtomicUsize,
    lock: Mutex<()>,
    rung: Condvar,
}

impl Bell {
    /// Returns once `ready` is true: spins, then yields if nobody wants the core, then sleeps until [`Bell::ring`].
    fn wait_until(&self, patience: &Patience, ready: impl Fn() -> bool) {
        for _ in 0..patience.n_spins {
            if ready() {
                return;
            }
            std::hint::spin_loop();
        }
        if patience.yield_until(&ready) {
            return;
        }
        let mut guard = lock(&self.lock);
        // Sleeper: announce, then look. Ringer: change, then look for sleepers. In one total order (SeqCst) at
        // least one of them sees the other, so no wake-up is lost.
        self.n_sleeping.fetch_add(1, Ordering::SeqCst);
        while !ready() {
            guard = self.rung.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.n_sleeping.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes everybody who sleeps here. What they wait for must have been stored with `SeqCst` before.
    fn ring(&self) {
        if self.n_sleeping.load(Ordering::SeqCst) > 0 {
            let _guard = lock(&self.lock);
            self.rung.notify_all();
        }
    }
}

/// How one thread waits. It finds out by itself whether it has its core for itself.
#[derive(Debug)]
struct Patience {
    n_spins: usize,
    /// Until when the core is taken for one that others compute on.
    shared_until: Cell<Option<Instant>>,
}

impl Patience {
    fn new(n_spins: usize) -> Patience {
        Patience { n_spins, shared_until: Cell::new(None) }
    }

    /// Yields until `ready` is true, for [`YIELD_FOR`] at most, and returns whether it is. On a core that others compute
    /// on a yield costs a whole time slice (3 ms with Linux 6.6 and later), in every parallel region: there it stops at
    /// once, because who sleeps is run soon after it is woken.
    fn yield_until(&self, ready: &impl Fn() -> bool) -> bool {
        let start = Instant::now();
        if self.shared_until.get().is_some_and(|end| start < end) {
            return false;
        }
        let mut before = start;
        loop {
            if ready() {
                return true;
            }
            std::thread::yield_now();
            let now = Instant::now();
            if now - before > LONG_YIELD {
                self.shared_until.set(Some(now + SHARED_FOR));
                return ready();
            }
            if now - start > YIELD_FOR {
                return ready();
            }
            before = now;
        }
    }
}

/// Locks a mutex that guards no invariant, so a panic of an earlier holder does not matter.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Team {
    /// Starts a team of `n_threads` workers: the caller and `n_threads - 1` threads of its own.
    ///
    /// # Panics
    /// If `n_threads` is 0 or the system refuses a thread.
    pub fn new(n_threads: usize) -> Team {
        assert!(n_threads > 0, "a team needs at least one thread");
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let state = Arc::new(State {
            generation: Line::default(),
            n_pending: Line::default(),
            shares: (0..n_threads).map(|_| Line::default()).collect(),
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            start: Bell::default(),
            done: Bell::default(),
            panic: Mutex::new(None),
        });
        let n_spins = if n_threads > n_cores { 0 } else { N_SPINS };
        let spawn = |worker| {
            let state = Arc::clone(&state);
            let builder = std::thread::Builder::new().name(format!("ruvllm-{worker}"));
            builder
                .spawn(move || state.work(worker, &Patience::new(n_spins)))
                .expect("the system starts a worker thread")
        };
        Team { threads: (1..n_threads).map(spawn).collect(), state, turn: Mutex::new(Patience::new(n_spins)) }
    }

    /// Returns the number of workers, the caller among them.
    pub fn n_threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `f(worker)` once on every worker (0 is the calling thread) and returns when all are done.
    ///
    /// Allocates nothing. Calls from several threads take turns.
    ///
    /// # Panics
    /// With the first panic of any worker, after all workers are done; and when called from inside a running closure.
    pub fn run(&self, f: &(dyn Fn(usize) + Sync)) {
        let turn = self.enter();
        let outcome = self.run_in_turn(&turn, f);
        drop(turn);
        if let Err(panic) = outcome {
            resume_unwind(panic);
        }
    }

    /// Cuts `0..n` into pieces of `grain` (the last may be shorter) and runs `f(range, worker)` on each. A worker takes
    /// the pieces of a contiguous share in order, so that it reads memory as a straight stream; who is done early takes
    /// the others' last pieces. Returns when all are done; a single piece runs on the caller without waking anybody.
    ///
    /// # Panics
    /// If `grain` is 0 or there are 2^32 pieces, and as [`Team::run`] does.
    pub fn for_each(&self, n: usize, grain: usize, f: &(dyn Fn(Range<usize>, usize) + Sync)) {
        assert!(grain > 0, "pieces need at least one item");
        let n_pieces = n.div_ceil(grain);
        assert!(u32::try_from(n_pieces).is_ok(), "{n_pieces} pieces; make them larger");
        let turn = self.enter();
        let (shares, n_threads) = (&self.state.shares, self.n_threads());
        let claim = |worker: usize| {
            while let Some(piece) = next_piece(shares, worker) {
                f(piece * grain..n.min((piece + 1) * grain), worker);
            }
        };
        // Workers see the shares: `generation` rises after this. A single piece is in the last share.
        for (worker, share) in shares.iter().enumerate() {
            share.0.set(n_pieces * worker / n_threads..n_pieces * (worker + 1) / n_threads);
        }
        let outcome = match n_pieces {
            0 => Ok(()),
            1 => run_marked(&claim, 0),
            _ => self.run_in_turn(&turn, &claim),
        };
        drop(turn);
        if let Err(panic) = outcome {
            resume_unwind(panic);
        }
    }

    /// Takes the turn to run.
    fn enter(&self) -> MutexGuard<'_, Patience> {
        assert!(!INSIDE.get(), "a team's worker may not enter a team again");
        lock(&self.turn)
    }

    fn run_in_turn(&self, patience: &Patience, f: &(dyn Fn(usize) + Sync)) -> std::thread::Result<()> {
        let state = &*self.state;
        if self.threads.is_empty() {
            return run_marked(f, 0);
        }
        // SAFETY: only the lifetime changes. Workers use the pointer only before they lower `n_pending`, and this
        // function returns only after `n_pending` is 0 (a panic of `f` on this thread is caught), so `f` outlives it.
        let job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(f) };
        // SAFETY: no worker reads `job` now: all have finished the last run, and none starts before `generation` rises.
        unsafe { *state.job.get() = Some(job) };
        state.n_pending.0.store(self.threads.len(), Ordering::Relaxed);
        state.generation.0.fetch_add(1, Ordering::SeqCst);
        state.start.ring();
        let mine = run_marked(f, 0);
        state.done.wait_until(patience, || state.n_pending.0.load(Ordering::SeqCst) == 0);
        match lock(&state.panic).take() {
            Some(theirs) => mine.and(Err(theirs)),
            None => mine,
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        self.state.generation.0.fetch_add(1, Ordering::SeqCst);
        self.state.start.ring();
        for thread in self.threads.drain(..) {
            // A worker catches what its closures throw, so it can only have ended well.
            let _ = thread.join();
        }
    }
}

/// Pieces that are left of a worker's share: the first in the low half, the end in the high half.
#[derive(Debug, Default)]
struct Share(AtomicU64);

impl Share {
    fn set(&self, pieces: Range<usize>) {
        self.0.store(pieces.start as u64 | (pieces.end as u64) << 32, Ordering::Relaxed);
    }

    /// Takes the first piece (its owner) or the last one (another worker).
    fn take(&self, first: bool) -> Option<usize> {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            let (start, end) = (old & u64::from(u32::MAX), old >> 32);
            if start >= end {
                return None;
            }
            let (piece, new) = if first { (start, old + 1) } else { (end - 1, old - (1 << 32)) };
            // Only the count is shared: what pieces write is published by `n_pending`.
            match self.0.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(piece as usize),
                Err(now) => old = now,
            }
        }
    }
}

/// Takes the next piece of a worker's own share, else one of another's.
fn next_piece(shares: &[Line<Share>], worker: usize) -> Option<usize> {
    let others = || (1..shares.len()).map(|i| (worker + i) % shares.len());
    shares[worker].0.take(true).or_else(|| others().find_map(|other| shares[other].0.take(false)))
}

/// Runs `f(worker)` with this thread marked as inside a team, and catches what it throws.
fn run_marked(f: &(dyn Fn(usize) + Sync), worker: usize) -> std::thread::Result<()> {
    INSIDE.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(|| f(worker)));
    INSIDE.set(false);
    outcome
}

impl State {
    /// The life of spawned worker `worker`.
    fn work(&self, worker: usize, patience: &Patience) {
        let mut seen = 0;
        loop {
            self.start.wait_until(patience, || self.generation.0.load(Ordering::SeqCst) != seen);
            // The next run waits for this worker, so the counter has risen by exactly one.
            seen += 1;
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            // SAFETY: the load of `generation` synchronises with the rise that came after the caller's write; the
            // caller writes again only after this worker has lowered `n_pending`.
            let job = unsafe { *self.job.get() }.expect("a run sets its job before the generation rises");
            // SAFETY: `run_in_turn` keeps the closure alive until `n_pending` is 0, and this worker lowers it below.
            let outcome = run_marked(unsafe { &*job }, worker);
            if let Err(panic) = outcome {
                lock(&self.panic).get_or_insert(panic);
            }
            if self.n_pending.0.fetch_sub(1, Ordering::SeqCst) == 1 {
                self.done.ring();
            }
        }
    }
}

/// A mutable slice that workers may write in disjoint pieces.
#[derive(Debug)]
pub struct Shared<'a, T> {
    ptr: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Shared` is a `&mut [T]` whose pieces go to other threads by the contract of `slice`; that needs `T: Send`.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above; no `&T` is ever shared between threads through it.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Wraps `slice` for the time of a parallel region.
    pub fn new(slice: &'a mut [T]) -> Self {
        Shared { ptr: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the elements of `range`.
    ///
    /// # Safety
    /// No two slices that overlap may be alive at one time, on this thread or another.
    ///
    /// # Panics
    /// If `range` reaches past the end.
    #[allow(clippy::mut_from_ref, reason = "handing out disjoint mutable pieces is what this type is for")]
    pub unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "range {range:?} of a shared slice of {}", self.len);
        // SAFETY: the range lies inside the borrowed slice, and the caller keeps pieces disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_send_sync<T: Send + Sync>() {}

    #[test]
    fn every_worker_runs_once_per_run() {
        assert_send_sync::<Team>();
        for n_threads in 1..=8 {
            let team = Team::new(n_threads);
            assert_eq!(team.n_threads(), n_threads);
            let counts: Vec<AtomicUsize> = (0..n_threads).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..100 {
                team.run(&|worker| {
                    counts[worker].fetch_add(1, Ordering::Relaxed);
                });
            }
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 100), "{n_threads} threads: {counts:?}");
        }
    }

    #[test]
    fn ten_thousand_hot_runs() {
        let team = Team::new(2);
        let mut values = vec![0u32; 64];
        for _ in 0..10_000 {
            let shared = Shared::new(&mut values);
            // SAFETY: worker 0 takes the first half, worker 1 the second.
            team.run(&|worker| unsafe { shared.slice(32 * worker..32 * worker + 32) }.iter_mut().for_each(|v| *v += 1));
        }
        assert!(values.iter().all(|&v| v == 10_000), "{values:?}");
    }

    #[test]
    fn for_each_hands_out_every_index_once() {
        for n_threads in [1, 2, 3, 8] {
            let team = Team::new(n_threads);
            for (n, grain) in [(0, 1), (1, 1), (1, 100), (7, 3), (100, 7), (1000, 1), (64, 64), (65, 64)] {
                let mut counts = vec![0u8; n];
                let shared = Shared::new(&mut counts);
                assert_eq!((shared.len(), shared.is_empty()), (n, n == 0));
                team.for_each(n, grain, &|range, worker| {
                    assert!(
                        worker < n_threads && range.start % grain == 0 && range.len() <= grain && !range.is_empty()
                    );
                    // SAFETY: each range comes once.
                    unsafe { shared.slice(range) }.iter_mut().for_each(|count| *count += 1);
                });
                assert!(counts.iter().all(|&count| count == 1), "n {n}, grain {grain}: {counts:?}");
            }
        }
    }

    #[test]
    fn runs_again_after_everybody_slept() {
        let team = Team::new(4);
        let count = AtomicUsize::new(0);
        for pause_ms in [0, 30, 0, 60] {
            std::thread::sleep(Duration::from_millis(pause_ms));
            team.run(&|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(count.into_inner(), 16);
    }

    #[test]
    fn the_caller_sleeps_through_a_slow_worker() {
        let team = Team::new(3);
        let done = AtomicUsize::new(0);
        team.run(&|worker| {
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
    fn a_panic_reaches_the_caller_and_the_team_lives_on() {
        for n_threads in [1, 2, 4] {
            let team = Team::new(n_threads);
            for bad in 0..n_threads {
                let text = message(|| team.run(&|worker| assert!(worker != bad, "worker {worker} fell")));
                assert_eq!(text, format!("worker {bad} fell"));
            }
            let text = message(|| team.for_each(10, 1, &|range, _| assert!(range.start != 7, "piece 7 fell")));
            assert_eq!(text, "piece 7 fell");
            let count = AtomicUsize::new(0);
            team.for_each(10, 3, &|range, _| {
                count.fetch_add(range.len(), Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 10);
        }
    }

    #[test]
    fn nested_runs_are_refused() {
        for n_threads in [1, 2] {
            let team = Team::new(n_threads);
            let text = message(|| team.run(&|_| team.run(&|_| ())));
            assert_eq!(text, "a team's worker may not enter a team again");
            let text = message(|| team.for_each(1, 1, &|_, _| team.run(&|_| ())));
            assert_eq!(text, "a team's worker may not enter a team again");
            team.run(&|_| ());
        }
    }

    #[test]
    fn callers_on_several_threads_take_turns() {
        let team = Team::new(2);
        let (inside, total) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        team.run(&|_| {
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
        // SAFETY: only one piece is taken.
        unsafe { Shared::new(&mut values).slice(3..9) };
    }
}
