//! The last requests of a model's slots, by which they can be saved and brought back.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The last request of a slot.
pub enum Last {
    /// The tokens of a request and its answer.
    Tokens(Vec<u32>),
    /// It was erased: the next request is computed whole.
    Erased,
}

/// A tenant, and the slot that it names.
type SlotOf = (u64, usize);

/// The last requests of a model's slots, each tenant's for itself.
#[derive(Default)]
pub struct LastRequests(Mutex<HashMap<SlotOf, Last>>);

impl LastRequests {
    /// Returns them, for as long as nobody else needs them.
    pub fn lock(&self) -> MutexGuard<'_, HashMap<SlotOf, Last>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
