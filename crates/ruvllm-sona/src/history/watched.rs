//! Changes that can be taken back: a commit that fails may be on the disk all the same.

use super::Sound;
use crate::error::SonaError;
use crate::store::{Durability, Scan, Snapshot, Store, Table, Transaction, Visit};
use ruvllm_store::StoreError;

/// A record as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    table: Table,
    scope: Vec<u8>,
    key: Vec<u8>,
    value: Option<Vec<u8>>,
}

/// What changes had before them, in the order of the changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Before(Vec<Record>);

impl Before {
    /// Puts everything back, and returns whether something was not as it was.
    pub(super) fn put_back(&self, change: &mut dyn Transaction) -> Result<bool, StoreError> {
        let mut has_changed = false;
        for Record { table, scope, key, value } in self.0.iter().rev() {
            if change.get(*table, scope, key)? == *value {
                continue;
            }
            has_changed = true;
            match value {
                Some(value) => change.put(*table, scope, key, value)?,
                None => drop(change.remove(*table, scope, key)?),
            }
        }
        Ok(has_changed)
    }
}

/// A transaction that keeps what it changes.
pub(super) struct Watched<'a> {
    change: Box<dyn Transaction + 'a>,
    before: Before,
}

impl<'a> Watched<'a> {
    /// Starts durable changes.
    pub(super) fn begin(store: &'a dyn Store) -> Result<Watched<'a>, StoreError> {
        Ok(Watched { change: store.begin(Durability::Durable)?, before: Before::default() })
    }

    /// Makes the changes real. Where that fails, `sound` has what to take back before anything else is done.
    ///
    /// # Errors
    /// As [`Transaction::commit`]; then nobody knows whether they are real.
    pub(super) fn commit_watched(self, sound: &mut Sound) -> Result<(), SonaError> {
        *sound = Sound::Unsure(self.before);
        self.change.commit()?;
        *sound = Sound::Yes;
        Ok(())
    }

    fn keep(&mut self, table: Table, scope: &[u8], key: &[u8]) -> Result<(), StoreError> {
        let value = self.change.get(table, scope, key)?;
        self.before.0.push(Record { table, scope: scope.to_vec(), key: key.to_vec(), value });
        Ok(())
    }
}

impl Snapshot for Watched<'_> {
    fn get(&self, table: Table, scope: &[u8], key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.change.get(table, scope, key)
    }

    fn scan(&self, table: Table, scan: &Scan<'_>, visit: &mut Visit<'_>) -> Result<(), StoreError> {
        self.change.scan(table, scan, visit)
    }

    fn scopes(&self, table: Table) -> Result<Vec<Vec<u8>>, StoreError> {
        self.change.scopes(table)
    }
}

impl Transaction for Watched<'_> {
    fn put(&mut self, table: Table, scope: &[u8], key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.keep(table, scope, key)?;
        self.change.put(table, scope, key, value)
    }

    fn remove(&mut self, table: Table, scope: &[u8], key: &[u8]) -> Result<bool, StoreError> {
        self.keep(table, scope, key)?;
        self.change.remove(table, scope, key)
    }

    fn remove_scope(&mut self, table: Table, scope: &[u8]) -> Result<usize, StoreError> {
        let mut keys = Vec::new();
        self.change.scan(table, &Scan::all(scope), &mut |key, _| {
            keys.push(key.to_vec());
            Ok(true)
        })?;
        keys.iter().try_for_each(|key| self.keep(table, scope, key))?;
        self.change.remove_scope(table, scope)
    }

    fn commit(self: Box<Self>) -> Result<(), StoreError> {
        self.change.commit()
    }
}
