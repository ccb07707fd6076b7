//! The version of what a store holds, and the way from older ones.

use crate::error::{StoreError, StoreErrorKind};
use crate::{Durability, META, Store, Transaction};

/// One step: what makes version `n + 1` of version `n`, within the transaction that also writes the new version.
pub type MigrationStep = fn(&mut dyn Transaction) -> Result<(), StoreError>;

/// A version, and the steps that lead to it from the first.
#[derive(Clone, Copy, Debug)]
pub struct Schema {
    /// `steps[i]` leads from version `i + 1` to `i + 2`; so this is version `steps.len() + 1`.
    pub steps: &'static [MigrationStep],
}

/// The version that this program writes.
pub const SCHEMA: Schema = Schema { steps: &[] };

const VERSION: &[u8] = b"version";

impl Schema {
    /// The version's number.
    pub fn version(&self) -> u32 {
        self.steps.len() as u32 + 1
    }

    /// Brings `store` to this version, all steps in one durable transaction.
    ///
    /// # Errors
    /// With kind `Version` if the store is of a newer one.
    pub fn apply(&self, store: &dyn Store) -> Result<(), StoreError> {
        let version = self.version();
        let found =
            match store.snapshot()?.get(META, b"", VERSION)? {
                Some(bytes) => Some(u32::from_le_bytes(bytes.as_slice().try_into().map_err(|_| {
                    crate::error::invalid(format!("the version has {} bytes instead of 4", bytes.len()))
                })?)),
                None => None,
            };
        match found {
            Some(found) if found == version => return Ok(()),
            Some(found) if found > version => {
                let message = format!("the store has version {found}, this program knows {version}: use a newer one");
                return Err(StoreError::new(StoreErrorKind::Version, message));
            }
            Some(0) => return Err(crate::error::invalid("the store has version 0, which never was")),
            _ => {}
        }
        let mut change = store.begin(Durability::Durable)?;
        let n_done = found.map_or(self.steps.len(), |found| found as usize - 1);
        for step in &self.steps[n_done..] {
            step(change.as_mut())?;
        }
        change.put(META, b"", VERSION, &version.to_le_bytes())?;
        change.commit()
    }
}
