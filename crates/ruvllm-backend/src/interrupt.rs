//! Ends a request from another thread, also while it waits for the other side.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Work that ends what a request waits for.
type Hook = Box<dyn FnOnce() + Send>;

/// A switch that ends a request from another thread; clones share it.
///
/// A flag would be seen with the next piece of an answer only. This one also runs what ends the wait for it.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    is_set: bool,
    hook: Option<Hook>,
}

impl Interrupt {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the request to end. Asking again changes nothing.
    pub fn set(&self) {
        let mut state = self.lock();
        state.is_set = true;
        let hook = state.hook.take();
        // A hook may ask whether the switch is set.
        drop(state);
        hook.into_iter().for_each(|hook| hook());
    }

    /// Returns whether somebody asked.
    pub fn is_set(&self) -> bool {
        self.lock().is_set
    }

    /// Runs `hook` when somebody asks, or now if somebody did. It takes the place of an earlier hook.
    pub fn on_set(&self, hook: impl FnOnce() + Send + 'static) {
        let mut state = self.lock();
        if !state.is_set {
            state.hook = Some(Box::new(hook));
            return;
        }
        drop(state);
        hook();
    }

    /// Forgets the hook: what it ends is over.
    pub fn clear_hook(&self) {
        self.lock().hook = None;
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Interrupt").field(&self.is_set()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn hooks_run_once_and_not_after_they_are_cleared() {
        let (interrupt, n) = (Interrupt::default(), Arc::new(AtomicUsize::new(0)));
        let count = |n: &Arc<AtomicUsize>| {
            let n = Arc::clone(n);
            move || {
                n.fetch_add(1, Ordering::Relaxed);
            }
        };
        interrupt.on_set(count(&n));
        interrupt.clear_hook();
        interrupt.on_set(count(&n));
        assert!(!interrupt.is_set());
        interrupt.clone().set();
        interrupt.set();
        assert_eq!((interrupt.is_set(), n.load(Ordering::Relaxed)), (true, 1));
        interrupt.on_set(count(&n));
        assert_eq!(n.load(Ordering::Relaxed), 2);
    }
}
