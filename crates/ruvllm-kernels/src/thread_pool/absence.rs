//! Who of a team has no core for itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

/// What absences count time from.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Until when a worker's core is taken for one that others compute on: as the worker found out, for the caller to see.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Absence {
    /// Microseconds after [`EPOCH`]; 0 for not at all.
    until: AtomicU64,
}

impl Absence {
    /// Takes the core for shared until `end`.
    pub(super) fn set(&self, end: Instant) {
        self.until.store(end.duration_since(*EPOCH).as_micros() as u64, Ordering::Relaxed);
    }

    /// Returns whether the core is taken for shared. Costs a load for one that is not.
    pub(super) fn is_on(&self) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        if until == 0 {
            return false;
        }
        let is_on = (EPOCH.elapsed().as_micros() as u64) < until;
        if !is_on {
            // So that the clock is not asked again; an error is a new absence.
            let _ = self.until.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        is_on
    }
}

/// Returns whether each of these workers is absent.
pub(super) fn all_on(absences: &[Arc<Absence>]) -> bool {
    absences.iter().all(|absence| absence.is_on())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ends_by_itself() {
        let absence = Absence::default();
        assert!(!absence.is_on());
        absence.set(Instant::now() + Duration::from_secs(600));
        assert!(absence.is_on());
        absence.set(Instant::now());
        assert!(!absence.is_on());
        assert_eq!(absence.until.load(Ordering::Relaxed), 0);
        absence.set(Instant::now() + Duration::from_secs(600));
        assert!(absence.is_on());
    }

    #[test]
    fn one_who_is_there_is_enough() {
        let absences = [Arc::default(), Arc::<Absence>::default()];
        assert!(!all_on(&absences));
        absences[0].set(Instant::now() + Duration::from_secs(600));
        assert!(!all_on(&absences));
        absences[1].set(Instant::now() + Duration::from_secs(600));
        assert!(all_on(&absences));
        absences[0].set(Instant::now());
        assert!(!all_on(&absences));
        assert!(all_on(&[]));
    }
}
