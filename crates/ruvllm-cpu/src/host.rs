//! Threads where the system starts none: in a page, JavaScript starts workers over the module's memory, each of which calls
//! [`work`] and stays in it. Pools take them from here and give them back.
//!
//! In a module without shared memory there are never any, and pools have the caller alone.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Work of a pool, and what is told when it is over.
type Job = (Box<dyn FnOnce() + Send>, Arc<Over>);

/// The host's threads.
struct Host {
    state: Mutex<State>,
    came: Condvar,
}

struct State {
    /// Threads that no pool has.
    n_free: usize,
    jobs: VecDeque<Job>,
}

static HOST: Host = Host { state: Mutex::new(State { n_free: 0, jobs: VecDeque::new() }), came: Condvar::new() };

/// Whether a job is over.
#[derive(Debug, Default)]
struct Over {
    is_over: Mutex<bool>,
    told: Condvar,
}

/// A thread that works until its pool ends.
#[derive(Debug)]
pub(crate) struct Worker(Arc<Over>);

impl Worker {
    /// Has one of the host's threads work; there is one for each that [`at_most`] counted.
    pub(crate) fn start(_number: usize, work: impl FnOnce() + Send + 'static) -> Worker {
        let over = Arc::new(Over::default());
        lock(&HOST.state).jobs.push_back((Box::new(work), Arc::clone(&over)));
        HOST.came.notify_one();
        Worker(over)
    }

    /// Returns once its work is over.
    pub(crate) fn join(self) {
        let mut is_over = lock(&self.0.is_over);
        while !*is_over {
            is_over = self.0.told.wait(is_over).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Takes as many of the workers that are wished for a pool as there are, and returns their number and how many cores there are for
/// them and the caller: one each, as the host says by starting them.
pub(crate) fn at_most(n_wished: usize) -> (usize, usize) {
    let mut state = lock(&HOST.state);
    let n = n_wished.min(state.n_free);
    state.n_free -= n;
    (n, n + 1)
}

/// Returns how many threads of the host no pool has.
pub fn n_free() -> usize {
    lock(&HOST.state).n_free
}

/// Works for pools, as one of the host's threads. It never returns: the host ends the thread.
pub fn work() -> ! {
    let mut state = lock(&HOST.state);
    state.n_free += 1;
    loop {
        let Some((job, over)) = state.jobs.pop_front() else {
            state = HOST.came.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        drop(state);
        job();
        state = lock(&HOST.state);
        state.n_free += 1;
        *lock(&over.is_over) = true;
        over.told.notify_all();
    }
}

/// Locks a mutex that guards no invariant, so a panic of an earlier holder does not matter.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn threads_of_the_host_are_taken_and_come_back() {
        assert_eq!(at_most(3), (0, 1), "the host started none");
        for _ in 0..2 {
            std::thread::spawn(|| work());
        }
        let wait_for = |n: usize| {
            while n_free() != n {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        wait_for(2);
        let sum = Arc::new(AtomicUsize::new(0));
        for round in 1..=50 {
            let (n, n_cores) = at_most(3);
            assert_eq!((n, n_cores, n_free(), at_most(1)), (2, 3, 0, (0, 1)), "round {round}");
            let start = |number: usize| {
                let sum = Arc::clone(&sum);
                Worker::start(number, move || {
                    sum.fetch_add(number, Ordering::Relaxed);
                })
            };
            let workers = [start(1), start(2)];
            workers.into_iter().for_each(Worker::join);
            assert_eq!((sum.load(Ordering::Relaxed), n_free()), (3 * round, 2), "round {round}");
        }
    }
}
