//! The thread team: a fixed set of workers that run one closure at a time, all together.
//!
//! A decode step is some hundred short parallel regions of 10 to 500 µs, so entering one must cost about a
//! microsecond. Workers that wait first spin (the next region usually starts at once), then yield the core
//! for a bounded time, then sleep. A worker that notices a busy neighbour on its core sleeps at once: the system runs
//! it again as soon as it is woken, while a yield would cost a time slice. With more threads than cores nobody spins.
//!
//! Nobody waits for a worker that does not come: a region that is cut in pieces is closed once the caller finds none
//! left, and whoever wakes up later goes back to sleep. But who came is waited for, and on a core that somebody else
//! computes on a worker may be stopped for milliseconds in the middle of its piece. A short region is therefore left to
//! the caller while every other core is taken for shared ([`ThreadPool::n_present`]).
//!
//! Nothing here decides *what* a worker computes: kernels cut their work into pieces whose results do not depend
//! on which worker computes them, so results are the same for every team size.

mod absence;
mod ahead;
mod desk;
mod shared;
mod wait;

pub use ahead::Upcoming;
pub use shared::Shared;

use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use absence::Absence;
use ahead::{Ahead, Cursor};
use desk::{Desk, Job, News};
use wait::{Bell, N_SPINS, Patience, lock};

thread_local! {
    /// True while this thread runs a team's closure: entering a team again from there would deadlock.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A fixed set of `n_threads` workers; worker 0 is the thread that calls.
///
/// ```
/// use ruvllm_kernels::thread_pool::{Shared, ThreadPool};
/// let team = ThreadPool::new(2);
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
pub struct ThreadPool {
    state: Arc<State>,
    threads: Vec<JoinHandle<()>>,
    /// Held for the length of a run, so that callers on several threads take turns; how worker 0 waits.
    turn: Mutex<Waiter>,
}

#[derive(Debug)]
struct State {
    /// One for each worker. The caller's has nothing but its share and what it brings near.
    desks: Box<[Desk]>,
    /// One for each worker but the caller.
    absences: Box<[Arc<Absence>]>,
    start: Bell,
    done: Bell,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Threads of a team at most.
const MAX_THREADS: usize = 1 << 15;

impl ThreadPool {
    /// Starts a team of `n_threads` workers: the caller and `n_threads - 1` threads of its own.
    ///
    /// # Panics
    /// If `n_threads` is 0 or 2^15 or more, or the system refuses a thread.
    pub fn new(n_threads: usize) -> ThreadPool {
        assert!(
            (1..MAX_THREADS).contains(&n_threads),
            "a team of {n_threads} threads; it takes 1 to {}",
            MAX_THREADS - 1
        );
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let state = Arc::new(State {
            desks: (0..n_threads).map(|_| Desk::default()).collect(),
            absences: (1..n_threads).map(|_| Arc::default()).collect(),
            start: Bell::default(),
            done: Bell::default(),
            panic: Mutex::new(None),
        });
        let n_spins = if n_threads > n_cores { 0 } else { N_SPINS };
        let spawn = |worker: usize| {
            let (state, absence) = (Arc::clone(&state), Arc::clone(&state.absences[worker - 1]));
            let builder = std::thread::Builder::new().name(format!("ruvllm-{worker}"));
            let work = move || state.work(worker, &Waiter::new(n_spins, absence));
            builder.spawn(work).expect("the system starts a worker thread")
        };
        let threads = (1..n_threads).map(spawn).collect();
        ThreadPool { threads, state, turn: Mutex::new(Waiter::new(n_spins, Arc::default())) }
    }

    /// Returns the number of workers, the caller among them.
    pub fn n_threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Returns how many workers a region of less than a millisecond should be cut for: one while all but the caller are on
    /// cores that others compute on, else all.
    pub fn n_present(&self) -> usize {
        if absence::all_on(&self.state.absences) { 1 } else { self.n_threads() }
    }

    /// Says what each worker reads once the region is over that begins next: whoever is early asks for the first of it
    /// while it waits. It changes nothing but the time that reading takes, and holds until the next call.
    pub fn expect(&self, upcoming: &Upcoming) {
        let none = 0..0;
        for (worker, desk) in self.state.desks.iter().enumerate() {
            desk.ahead.set(upcoming.shares.get(worker).unwrap_or(&none));
        }
    }

    /// Returns the address from which on `worker` is expected to read after this region.
    pub(crate) fn expected(&self, worker: usize) -> Option<usize> {
        self.state.desks[worker].ahead.start()
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
                    self.state.start.ring();
                }
                f(worker);
            })
        });
    }

    /// Runs `f(worker)` on the calling thread (worker 0) and, once each, on the workers that come before that returns:
    /// `f` shares out work and does all of it whoever comes. Returns when all who came are done.
    ///
    /// # Panics
    /// As [`ThreadPool::run`] does.
    pub fn share(&self, f: &(dyn Fn(usize) + Sync)) {
        self.enter(|turn| {
            self.region(turn, false, &|worker| {
                if worker == 0 {
                    self.state.start.nudge();
                }
                f(worker);
            })
        });
    }

    /// Cuts `0..n` into pieces of `grain` (the last may be shorter) and runs `f(range, worker)` on some at a time until
    /// all are done, each once. A worker takes the pieces of a contiguous share in order, so that it reads memory as a
    /// straight stream, half of what is left at a time; who is done early takes the others' last pieces, one at a time.
    /// A single piece runs on the caller without waking anybody.
    ///
    /// # Panics
    /// If `grain` is 0 or there are 2^32 pieces, and as [`ThreadPool::run`] does.
    pub fn for_each(&self, n: usize, grain: usize, f: &(dyn Fn(Range<usize>, usize) + Sync)) {
        assert!(grain > 0, "pieces need at least one item");
        let n_pieces = n.div_ceil(grain);
        assert!(u32::try_from(n_pieces).is_ok(), "{n_pieces} pieces; make them larger");
        let (state, n_threads) = (&*self.state, self.n_threads());
        let claim = |worker: usize| {
            // Sleepers are woken when there is something left after the first piece, which is the time it takes anyway:
            // who has to wake them begins with one piece.
            let mut asleep = worker == 0 && state.start.has_sleepers();
            let mut next = next_pieces(&state.desks, worker, asleep);
            while let Some(pieces) = next {
                f(pieces.start * grain..n.min(pieces.end * grain), worker);
                next = next_pieces(&state.desks, worker, false);
                asleep = asleep && !(next.is_some() && state.start.nudge());
            }
        };
        self.enter(|turn| {
            // Workers see the shares: the region opens after this. A single piece is in the last share.
            for (worker, desk) in state.desks.iter().enumerate() {
                desk.share.set(share(worker, n_threads, n_pieces));
            }
            match n_pieces {
                0 => Ok(()),
                1 => run_marked(&claim, 0),
                _ => self.region(turn, false, &claim),
            }
        });
    }

    /// As [`ThreadPool::for_each`], for a region of less than a millisecond: it is left to the caller while all others are on cores
    /// that others compute on.
    ///
    /// # Panics
    /// As [`ThreadPool::for_each`] does.
    pub fn for_each_short(&self, n: usize, grain: usize, f: &(dyn Fn(Range<usize>, usize) + Sync)) {
        let grain = if self.n_present() == 1 { grain.max(n) } else { grain };
        self.for_each(n, grain, f);
    }

    /// Takes the turn, runs `f` in it, and throws on what it caught.
    fn enter(&self, f: impl FnOnce(&Waiter) -> std::thread::Result<()>) {
        assert!(!INSIDE.get(), "a team's worker may not enter a team again");
        let turn = lock(&self.turn);
        let outcome = f(&turn);
        drop(turn);
        if let Err(panic) = outcome {
            resume_unwind(panic);
        }
    }

    /// Opens a region that runs `f`, on all workers or on those that come, takes part in it and closes it. Whoever sleeps
    /// comes only if `f` rings.
    fn region(&self, waiter: &Waiter, all: bool, f: &(dyn Fn(usize) + Sync)) -> std::thread::Result<()> {
        let state = &*self.state;
        if self.threads.is_empty() {
            return run_marked(f, 0);
        }
        // SAFETY: only the lifetime changes. A worker uses the pointer only between joining the region and leaving it, and
        // this function closes the region and waits for all who joined before it returns (a panic of `f` on this thread
        // is caught), so `f` outlives it.
        let job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(f) };
        let (own, desks) = state.desks.split_first().expect("the caller has a desk");
        for desk in desks {
            // SAFETY: the last region was left by all who joined it, and `f` outlives this one.
            unsafe { desk.open(job) };
        }
        let mine = run_marked(f, 0);
        let wait = |ready: &dyn Fn(&Desk) -> bool| {
            waiter.wait_until(&state.done, &own.ahead, || desks.iter().all(ready));
        };
        if all {
            wait(&Desk::is_over);
        }
        desks.iter().for_each(Desk::close);
        wait(&|desk| !desk.is_in());
        match lock(&state.panic).take() {
            Some(theirs) => mine.and(Err(theirs)),
            None => mine,
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.state.desks.iter().for_each(Desk::stop);
        self.state.start.ring();
        for thread in self.threads.drain(..) {
            // A worker catches what its closures throw, so it can only have ended well.
            let _ = thread.join();
        }
    }
}

/// Returns the pieces of `n` that are `worker`'s share among `n_workers`.
pub(crate) fn share(worker: usize, n_workers: usize, n: usize) -> Range<usize> {
    n * worker / n_workers..n * (worker + 1) / n_workers
}

/// How one thread waits, and what it does meanwhile.
#[derive(Debug)]
struct Waiter {
    patience: Patience,
    cursor: Cursor,
}

impl Waiter {
    fn new(n_spins: usize, absence: Arc<Absence>) -> Waiter {
        Waiter { patience: Patience::new(n_spins, absence), cursor: Cursor::default() }
    }

    /// Returns once `ready` is true. Meanwhile it brings near what is ahead.
    fn wait_until(&self, bell: &Bell, ahead: &Ahead, ready: impl Fn() -> bool) {
        while !ready() {
            if !ahead.fetch(&self.cursor) {
                return bell.wait_until(&self.patience, ready);
            }
        }
    }
}

/// Takes the next pieces of a worker's own share, else one of another's.
fn next_pieces(desks: &[Desk], worker: usize, single: bool) -> Option<Range<usize>> {
    let others = || (1..desks.len()).map(|i| (worker + i) % desks.len());
    desks[worker].share.take_first(single).or_else(|| others().find_map(|other| desks[other].share.take_last()))
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
    fn work(&self, worker: usize, waiter: &Waiter) {
        let desk = &self.desks[worker];
        let mut seen = 0;
        loop {
            waiter.wait_until(&self.start, &desk.ahead, || desk.has_news(seen));
            let (number, news) = desk.join();
            seen = number;
            let job = match news {
                News::Stopped => return,
                News::Missed => continue,
                News::Region(job) => job,
            };
            // SAFETY: `ThreadPool::region` keeps the closure alive until all who joined have left.
            let outcome = run_marked(unsafe { &*job }, worker);
            if let Err(panic) = outcome {
                lock(&self.panic).get_or_insert(panic);
            }
            desk.leave(number);
            self.done.ring();
        }
    }
}

#[cfg(test)]
mod tests;
