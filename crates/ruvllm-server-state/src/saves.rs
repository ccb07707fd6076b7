//! What became of things that were to be saved.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Counters of things that were to be saved.
#[derive(Debug)]
pub struct Saves {
    /// Their name, for people.
    what: &'static str,
    /// Those that are not on the disk.
    n_lost: AtomicU64,
    /// Why the last one is not; none as soon as one is saved.
    failing: Mutex<Option<String>>,
}

impl Saves {
    /// Returns saves of which none has failed; `what` names them in the log.
    pub fn new(what: &'static str) -> Saves {
        Saves { what, n_lost: AtomicU64::new(0), failing: Mutex::default() }
    }

    /// Takes note of one, with the reason if it was not saved.
    pub fn note(&self, failed: Option<String>) {
        self.n_lost.fetch_add(u64::from(failed.is_some()), Ordering::Relaxed);
        *self.failing.lock().unwrap_or_else(PoisonError::into_inner) = failed;
    }

    /// Returns how many were not saved.
    pub fn n_lost(&self) -> u64 {
        self.n_lost.load(Ordering::Relaxed)
    }

    /// Returns how many were not saved, and why, while they cannot be.
    pub fn failing(&self) -> Option<String> {
        let why = self.failing.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        Some(format!("{} {} were not saved: {why}", self.n_lost(), self.what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_that_were_not_saved_are_counted() {
        let saves = Saves::new("turns of sessions");
        assert_eq!((saves.n_lost(), saves.failing()), (0, None));
        saves.note(Some("no space left on device".to_owned()));
        saves.note(Some("no space left on device".to_owned()));
        let line = saves.failing().expect("the disk is full");
        assert_eq!(line, "2 turns of sessions were not saved: no space left on device");
        saves.note(None);
        assert_eq!((saves.n_lost(), saves.failing()), (2, None));
    }
}
