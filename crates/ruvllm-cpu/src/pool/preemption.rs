//! Workers whose cores other programs use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use crate::clock::Instant;

/// The time that detectors count from.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Time until which a worker's core counts as shared with other programs. The worker's [`SpinPolicy`](super::wait::SpinPolicy) sets
/// it, the caller reads it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct PreemptionDetector {
    /// Microseconds after [`EPOCH`]; 0 for not at all.
    until: AtomicU64,
}

impl PreemptionDetector {
    /// Counts the core as shared until `end`.
    pub(super) fn set(&self, end: Instant) {
        self.until.store(end.duration_since(*EPOCH).as_micros() as u64, Ordering::Relaxed);
    }

    /// Returns whether the core counts as shared. Costs one load when it does not.
    pub(super) fn is_preempted(&self) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        if until == 0 {
            return false;
        }
        let is_preempted = (EPOCH.elapsed().as_micros() as u64) < until;
        if !is_preempted {
            // The clock is not read again after this. An error means that the worker has just set another time.
            let _ = self.until.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        is_preempted
    }
}

/// Returns whether all of these workers are preempted.
pub(super) fn all_preempted(detectors: &[Arc<PreemptionDetector>]) -> bool {
    detectors.iter().all(|detector| detector.is_preempted())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ends_by_itself() {
        let detector = PreemptionDetector::default();
        assert!(!detector.is_preempted());
        detector.set(Instant::now() + Duration::from_secs(600));
        assert!(detector.is_preempted());
        detector.set(Instant::now());
        assert!(!detector.is_preempted());
        assert_eq!(detector.until.load(Ordering::Relaxed), 0);
        detector.set(Instant::now() + Duration::from_secs(600));
        assert!(detector.is_preempted());
    }

    #[test]
    fn one_running_worker_is_enough() {
        let detectors = [Arc::default(), Arc::<PreemptionDetector>::default()];
        assert!(!all_preempted(&detectors));
        detectors[0].set(Instant::now() + Duration::from_secs(600));
        assert!(!all_preempted(&detectors));
        detectors[1].set(Instant::now() + Duration::from_secs(600));
        assert!(all_preempted(&detectors));
        detectors[0].set(Instant::now());
        assert!(!all_preempted(&detectors));
        assert!(all_preempted(&[]));
    }
}
