//! Waiting for other threads.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::preemption::PreemptionDetector;
use crate::clock::Instant;

/// Pause instructions before a waiter starts to yield: about 2 µs, at the 30 ns that a pause costs on recent CPUs. When
/// the system has put two workers on one core, each spins in the other's way (17 µs a region with 300 pauses), while
/// on a free core a yield costs no more than ten pauses: hence few.
pub(super) const N_SPINS: usize = 64;
/// Time that a waiter yields before it sleeps: longer than sampling a token, shorter than a person notices.
const YIELD_FOR: Duration = Duration::from_micros(1000);
/// A yield that takes this long has let another thread compute.
const LONG_YIELD: Duration = Duration::from_micros(200);
/// Time for which a core counts as shared after a long yield: at first, and at most. Each further long yield makes it
/// [`SHARED_GROWTH`] times longer: a single interruption (of the system, of the hypervisor) costs little, a neighbour that
/// stays is checked for seldom.
const SHARED_FOR: [Duration; 2] = [Duration::from_millis(2), Duration::from_secs(1)];
const SHARED_GROWTH: u32 = 4;
/// A long yield this long after the core last counted as shared starts again at the shortest time.
const FORGOTTEN_AFTER: Duration = Duration::from_millis(50);

/// Event that threads wait for. Notifying costs one load when no thread sleeps.
#[derive(Debug, Default)]
pub(super) struct Event {
    n_sleeping: AtomicUsize,
    lock: Mutex<()>,
    notified: Condvar,
}

impl Event {
    /// Returns once `ready` is true: spins, then yields if no other thread wants the core, then sleeps until
    /// [`Event::notify`].
    pub(super) fn wait_until(&self, policy: &SpinPolicy, ready: impl Fn() -> bool) {
        for _ in 0..policy.n_spins {
            if ready() {
                return;
            }
            std::hint::spin_loop();
        }
        if policy.yield_until(&ready) {
            return;
        }
        let mut guard = lock(&self.lock);
        // Sleeper: announce, then look. Notifier: change, then look for sleepers. With a fence between the two, at least one
        // of them sees the other, so no wake-up is lost.
        self.n_sleeping.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        while !ready() {
            guard = self.notified.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.n_sleeping.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes every thread that sleeps here, or is about to: what they wait for was stored before.
    pub(super) fn notify(&self) {
        fence(Ordering::SeqCst);
        self.notify_sleepers();
    }

    /// Returns whether a thread is seen to sleep here.
    pub(super) fn has_sleepers(&self) -> bool {
        self.n_sleeping.load(Ordering::Relaxed) > 0
    }

    /// Wakes the threads that are seen to sleep here, and returns whether there were any. A thread that falls asleep right
    /// now may be missed, so nothing may depend on it. In return it does not wait until others have seen what was stored before.
    pub(super) fn notify_sleepers(&self) -> bool {
        let any = self.has_sleepers();
        if any {
            let _guard = lock(&self.lock);
            self.notified.notify_all();
        }
        any
    }
}

/// Spin policy of one thread: how long it spins and yields. It finds out by itself whether other programs use its core.
#[derive(Debug)]
pub(super) struct SpinPolicy {
    n_spins: usize,
    /// Time until which the core counts as shared, and how long that was in all.
    shared: Cell<Option<(Instant, Duration)>>,
    /// The same, for other threads to see.
    detector: Arc<PreemptionDetector>,
}

impl SpinPolicy {
    pub(super) fn new(n_spins: usize, detector: Arc<PreemptionDetector>) -> SpinPolicy {
        SpinPolicy { n_spins, shared: Cell::new(None), detector }
    }

    /// Yields until `ready` is true, for [`YIELD_FOR`] at most, and returns whether it is. On a shared core
    /// a yield costs a whole time slice (3 ms with Linux 6.6 and later), in every parallel region: there it stops at
    /// once, because a sleeping thread runs soon after it is woken.
    fn yield_until(&self, ready: &impl Fn() -> bool) -> bool {
        let start = Instant::now();
        if self.shared.get().is_some_and(|(end, _)| start < end) {
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
                self.set_shared(now);
                return ready();
            }
            if now - start > YIELD_FOR {
                return ready();
            }
            before = now;
        }
    }

    /// Counts the core as shared from `now` on.
    fn set_shared(&self, now: Instant) {
        let [first, most] = SHARED_FOR;
        let lasting = match self.shared.get() {
            Some((end, lasting)) if now < end + FORGOTTEN_AFTER => (lasting * SHARED_GROWTH).min(most),
            _ => first,
        };
        self.shared.set(Some((now + lasting, lasting)));
        self.detector.set(now + lasting);
    }
}

/// Locks a mutex that guards no invariant, so a panic of an earlier holder does not matter.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
