//! The threads that compile grammars: a few, whatever is asked, with stacks that a deep grammar needs.

use std::io::ErrorKind;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::error::refused;
use crate::{GrammarError, GrammarErrorKind};

/// Grammars that are compiled at once.
const N_THREADS: usize = 2;
/// Grammars that wait to be.
const N_QUEUED: usize = 64;
/// How long one waits for its turn.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// How long a compilation may take. What may be compiled is bounded beforehand; this is for what that missed.
const COMPILE_MAX: Duration = Duration::from_secs(4);

/// Niceness of its threads: they get a tenth of what those that answer have of a core.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

type Job = Box<dyn FnOnce() + Send>;

/// What a caller hears of its job.
enum Told<T> {
    Begun,
    Done(T),
}

/// The threads; they end with the last handle. Where the platform starts none, as in a page, the caller compiles.
pub(crate) struct Pool(Option<SyncSender<Job>>);

impl Pool {
    /// Starts the threads, with stacks of so many bytes each.
    ///
    /// # Errors
    /// The system starts no thread.
    pub(crate) fn start(stack_bytes: usize) -> Result<Pool, GrammarError> {
        let (jobs, inbox) = mpsc::sync_channel::<Job>(N_QUEUED);
        let inbox = Arc::new(Mutex::new(inbox));
        for _ in 0..N_THREADS {
            let inbox = Arc::clone(&inbox);
            let thread = std::thread::Builder::new().name("ruvllm-grammar".to_owned()).stack_size(stack_bytes);
            let run = move || {
                evict();
                work(&inbox);
            };
            match thread.spawn(run) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(Pool(None)),
                Err(error) => {
                    let line = format!("no thread to compile grammars on: {error}");
                    return Err(GrammarError::new(GrammarErrorKind::Stopped, line).with_source(error));
                }
            }
        }
        Ok(Pool(Some(jobs)))
    }

    /// Has a thread compile, and waits for what comes of it; without threads the caller does. Who gives up before it has begun leaves nothing to do.
    ///
    /// # Errors
    /// What `compile` returns; [`GrammarErrorKind::QueueFull`]: too many wait; [`GrammarErrorKind::Invalid`]: it takes too long.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        compile: impl FnOnce() -> Result<T, GrammarError> + Send + 'static,
    ) -> Result<T, GrammarError> {
        let Some(jobs) = &self.0 else { return compile() };
        let (sender, receiver) = mpsc::sync_channel(2);
        let job = move || {
            if sender.send(Told::Begun).is_ok() {
                // Who waited may have gone.
                let _ = sender.send(Told::Done(compile()));
            }
        };
        match jobs.try_send(Box::new(job)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Err(busy()),
            Err(TrySendError::Disconnected(_)) => return Err(refused("its compiler failed")),
        }
        match receiver.recv_timeout(WAIT_MAX) {
            Ok(Told::Begun) => {}
            Ok(Told::Done(result)) => return result,
            Err(_) => return Err(busy()),
        }
        match receiver.recv_timeout(COMPILE_MAX) {
            Ok(Told::Done(result)) => result,
            Err(RecvTimeoutError::Timeout) => {
                let seconds = COMPILE_MAX.as_secs();
                Err(refused(&format!("it takes more than {seconds} s to compile; make it smaller")))
            }
            Ok(Told::Begun) | Err(RecvTimeoutError::Disconnected) => Err(refused("its compiler failed")),
        }
    }
}

/// Lets the threads that answer have the cores first.
fn evict() {
    // Linux has a priority for each thread; elsewhere it is one for the whole process. Without it grammars are compiled at
    // the cost of answers. A system that refuses leaves it as it was.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, NICENESS);
}

/// Compiles what comes, until nobody can send any more.
fn work(inbox: &Mutex<Receiver<Job>>) {
    loop {
        // The lock is held while it waits: the others wait for the lock.
        let job = inbox.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        // Who waits hears of a panic by the end of its channel; the thread goes on.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
    }
}

fn busy() -> GrammarError {
    let line = "too many grammars are being compiled; try again";
    GrammarError::new(GrammarErrorKind::QueueFull, line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_are_compiled_at_once_and_a_panic_ends_its_own() {
        let pool = Pool::start(1 << 20).expect("threads");
        assert_eq!(pool.run(|| Ok(1)).expect("it is computed"), 1);
        for _ in 0..2 * N_THREADS {
            let error = pool.run(|| -> Result<(), GrammarError> { panic!("on purpose") }).expect_err("it broke");
            assert_eq!(error.kind(), GrammarErrorKind::Invalid);
        }
        let n_at_once = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                let (pool, n) = (&pool, Arc::clone(&n_at_once));
                scope.spawn(move || {
                    let ordering = std::sync::atomic::Ordering::SeqCst;
                    let compile = move || {
                        assert!(n.fetch_add(1, ordering) < N_THREADS);
                        std::thread::sleep(Duration::from_millis(5));
                        n.fetch_sub(1, ordering);
                        Ok(())
                    };
                    pool.run(compile).expect("it is computed");
                });
            }
        });
    }

    #[test]
    fn beyond_the_queue_is_refused_as_a_fault_of_the_server() {
        let pool = Pool::start(1 << 20).expect("threads");
        let jobs = pool.0.as_ref().expect("the platform starts threads");
        let (release, held) = mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let block = || {
            let held = Arc::clone(&held);
            jobs.try_send(Box::new(move || drop(held.lock().map(|held| held.recv()))))
        };
        while block().is_ok() {}
        let error = pool.run(|| Ok(())).expect_err("the queue is full");
        assert_eq!(error.kind(), GrammarErrorKind::QueueFull);
        drop(release);
    }
}
