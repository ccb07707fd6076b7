//! What work beside the passes of a model computes with.

use std::sync::{Arc, Mutex, PoisonError};

use crate::{Isa, ThreadPool};

/// An instruction set, and the threads that a token's work is shared among; clones share those. Results do not depend on how many they are.
///
/// An engine gives the pool that its passes run on, which waits between them: a borrower works between passes only, as a
/// token is learned. Work for between requests stays with the thread that does it.
#[derive(Clone, Debug)]
pub struct Compute {
    /// The instruction set.
    pub isa: Isa,
    /// The threads.
    pub threads: Arc<ThreadPool>,
}

impl Compute {
    /// Runs `f` once on each of some parts, one after another on a thread.
    ///
    /// # Panics
    /// As [`ThreadPool::for_each_short`] does.
    pub fn each<T: Send>(&self, parts: impl Iterator<Item = T>, f: impl Fn(&mut T) + Sync) {
        let parts: Vec<Mutex<T>> = parts.map(Mutex::new).collect();
        self.threads.for_each_short(parts.len(), 1, &|range, _| {
            parts[range].iter().for_each(|part| f(&mut part.lock().unwrap_or_else(PoisonError::into_inner)));
        });
    }
}

impl From<Isa> for Compute {
    /// The thread that calls, and no other.
    fn from(isa: Isa) -> Compute {
        Compute { isa, threads: Arc::new(ThreadPool::new(1)) }
    }
}
