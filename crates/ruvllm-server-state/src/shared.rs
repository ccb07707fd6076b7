//! What tenants share: a number of places or bytes, of which nobody takes so much that others find none.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How much of the whole a tenant may have, as a multiple of what stays free of it: alone three quarters.
const TENANT_FACTOR: usize = 3;

/// A number of places or bytes, and who has how many of them.
#[derive(Debug)]
pub struct Shared {
    n_max: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    n: usize,
    of_tenants: HashMap<u64, usize>,
}

/// A part of it, until this is dropped.
#[derive(Debug)]
pub struct Share {
    shared: Arc<Shared>,
    tenant: u64,
    n: usize,
}

impl Shared {
    /// Returns a whole of `n_max`, of which nothing is taken.
    pub fn new(n_max: usize) -> Arc<Shared> {
        Arc::new(Shared { n_max, taken: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives `n` to a tenant; `None` if there are not so many, or it has its share. Tenant 0 is everybody: it shares with
    /// nobody.
    pub fn take(self: &Arc<Shared>, tenant: u64, n: usize) -> Option<Share> {
        let mut part = Share { shared: Arc::clone(self), tenant, n: 0 };
        part.grow(n).then_some(part)
    }
}

impl Share {
    /// Takes `n` more, and returns whether there were so many; else nothing changes.
    pub fn grow(&mut self, n: usize) -> bool {
        let mut taken = self.shared.lock();
        let own = taken.of_tenants.get(&self.tenant).copied().unwrap_or(0);
        let free = self.shared.n_max.saturating_sub(taken.n);
        let stays_free = free.checked_sub(n);
        let fits = stays_free.is_some_and(|free| self.tenant == 0 || own + n <= TENANT_FACTOR.saturating_mul(free + 1));
        if fits {
            taken.n += n;
            taken.of_tenants.insert(self.tenant, own + n);
            self.n += n;
        }
        fits
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.shared.lock();
        taken.n -= self.n;
        if let Some(own) = taken.of_tenants.get_mut(&self.tenant) {
            *own -= self.n;
            if *own == 0 {
                taken.of_tenants.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_leaves_a_quarter_and_everybody_leaves_nothing() {
        let shared = Shared::new(100);
        let mut part = shared.take(7, 60).expect("it is free");
        assert!(part.grow(15) && !part.grow(2));
        // Another one finds three quarters of the rest, and a third one of what that left.
        let other = shared.take(8, 18).expect("25 are free");
        assert!(shared.take(8, 3).is_none() && shared.take(9, 5).is_some());
        assert!(shared.take(0, 7).is_some() && shared.take(0, 8).is_none());
        drop((part, other));
        assert!(shared.take(0, 100).is_some());
        assert_eq!(shared.lock().n, 0);
        assert!(shared.lock().of_tenants.is_empty());
    }
}
