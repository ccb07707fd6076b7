//! How workers wait for each other.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::absence::Absence;

/// Pause instructions before a waiter starts to yield: about 2 µs, at the 30 ns that a pause costs on recent CPUs. When
/// the system has put two workers on one core, each spins in the other's way (17 µs a region with 300 pauses), while
/// on a free core a yield costs no more than ten pauses: hence few.
pub(super) const N_SPINS: usize = 64;
/// How long a waiter yields before it sleeps: longer than sampling a token, shorter than a person notices.
const YIELD_FOR: Duration = Duration::from_micros(1000);
/// A yield that takes this long has let somebody else compute.
const LONG_YIELD: Duration = Duration::from_micros(200);
/// How long a core is taken for shared after a long yield: at first, and at most. Each further long yield makes it
/// [`SHARED_GROWTH`] times longer: a single interruption (of the system, of the hypervisor) costs little, a neighbour that
/// stays is asked seldom.
const SHARED_FOR: [Duration; 2] = [Duration::from_millis(2), Duration::from_secs(1)];
const SHARED_GROWTH: u32 = 4;
/// A long yield this long after the core was last taken for shared is a new story.
const FORGOTTEN_AFTER: Duration = Duration::from_millis(50);

/// Wakes sleepers; costs one load when nobody sleeps.
#[derive(Debug, Default)]
pub(super) struct Bell {
    n_sleeping: AtomicUsize,
    lock: Mutex<()>,
    rung: Condvar,
}

impl Bell {
    /// Returns once `ready` is true: spins, then yields if nobody wants the core, then sleeps until [`Bell::ring`].
    pub(super) fn wait_until(&self, patience: &Patience, ready: impl Fn() -> bool) {
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
        // Sleeper: announce, then look. Ringer: change, then look for sleepers. With a fence between the two, at least one
        // of them sees the other, so no wake-up is lost.
        self.n_sleeping.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        while !ready() {
            guard = self.rung.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.n_sleeping.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes everybody who sleeps here, or is about to: what they wait for was stored before.
    pub(super) fn ring(&self) {
        fence(Ordering::SeqCst);
        self.nudge();
    }

    /// Returns whether somebody is seen to sleep here.
    pub(super) fn has_sleepers(&self) -> bool {
        self.n_sleeping.load(Ordering::Relaxed) > 0
    }

    /// Wakes those who are seen to sleep here, and returns whether anybody was. Who falls asleep right now may be missed, so
    /// nobody may depend on them. In return it does not wait until others have seen what was stored before.
    pub(super) fn nudge(&self) -> bool {
        let any = self.has_sleepers();
        if any {
            let _guard = lock(&self.lock);
            self.rung.notify_all();
        }
        any
    }
}

/// How one thread waits. It finds out by itself whether it has its core for itself.
#[derive(Debug)]
pub(super) struct Patience {
    n_spins: usize,
    /// Until when the core is taken for one that others compute on, and for how long that was.
    shared: Cell<Option<(Instant, Duration)>>,
    /// The same, for others to see.
    absence: Arc<Absence>,
}

impl Patience {
    pub(super) fn new(n_spins: usize, absence: Arc<Absence>) -> Patience {
        Patience { n_spins, shared: Cell::new(None), absence }
    }

    /// Yields until `ready` is true, for [`YIELD_FOR`] at most, and returns whether it is. On a core that others compute
    /// on a yield costs a whole time slice (3 ms with Linux 6.6 and later), in every parallel region: there it stops at
    /// once, because who sleeps is run soon after it is woken.
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
                self.take_for_shared(now);
                return ready();
            }
            if now - start > YIELD_FOR {
                return ready();
            }
            before = now;
        }
    }

    /// Takes the core for shared from `now` on.
    fn take_for_shared(&self, now: Instant) {
        let [first, most] = SHARED_FOR;
        let lasting = match self.shared.get() {
            Some((end, lasting)) if now < end + FORGOTTEN_AFTER => (lasting * SHARED_GROWTH).min(most),
            _ => first,
        };
        self.shared.set(Some((now + lasting, lasting)));
        self.absence.set(now + lasting);
    }
}

/// Locks a mutex that guards no invariant, so a panic of an earlier holder does not matter.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
