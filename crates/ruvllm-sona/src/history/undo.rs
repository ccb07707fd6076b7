//! Items taken back, as if they had never been.

use super::generation::{self, Generation};
use super::item::{Item, Record};
use super::rebuild::Reading;
use super::watched::Watched;
use super::{History, ITEMS};
use crate::clock::now_ms;
use crate::error::{SonaError, SonaErrorKind};
use crate::store::Transaction;

/// Callback in the transaction that takes items back.
pub type Also<'a> = &'a mut dyn FnMut(&mut dyn Transaction) -> Result<(), SonaError>;

impl History {
    /// Takes one item back: what is known then, now and in every generation that had it, is what would be known if it had
    /// never been.
    ///
    /// # Errors
    /// There is no such item, it was let go or taught nothing, the model cannot read the others again, or it cannot be written.
    pub fn undo(&mut self, item: u64, reading: &mut dyn Reading) -> Result<(), SonaError> {
        self.undo_with(&[item], reading, &mut |_| Ok(()))
    }

    /// Returns whether an item is in the log and can be undone.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn is_in_effect(&self, item: u64) -> Result<bool, SonaError> {
        let record = self.store.snapshot()?.get(ITEMS, &self.tenant, &item.to_be_bytes())?;
        Ok(record.map(|bytes| Record::from_bytes(&bytes)).transpose()?.is_some_and(|record| record.item.has_effect()))
    }

    /// Takes items back as [`History::undo`] does, all of them or none, and what `also` does in the same transaction.
    ///
    /// # Errors
    /// As [`History::undo`], and those of `also`.
    pub fn undo_with(&mut self, items: &[u64], reading: &mut dyn Reading, also: Also<'_>) -> Result<(), SonaError> {
        for &item in items {
            let record = self.store.snapshot()?.get(ITEMS, &self.tenant, &item.to_be_bytes())?;
            match record.map(|bytes| Record::from_bytes(&bytes)).transpose()? {
                Some(record) if record.item.has_effect() => {}
                Some(_) => {
                    return Err(SonaError::new(
                        SonaErrorKind::Value,
                        format!("item {item} taught nothing that is left"),
                    ));
                }
                None => return Err(self.missing(item)),
            }
        }
        match items.is_empty() {
            true => Ok(()),
            false => {
                let events = items.iter().map(|&item| Item::TookBack { item }).collect();
                self.take_back(items, events, reading, also)
            }
        }
    }

    /// Takes back all that was read since an item, that one too, and says why in the log; corrections and options stay.
    ///
    /// # Errors
    /// As [`History::undo`].
    pub fn discard_since(&mut self, first: u64, why: &str, reading: &mut dyn Reading) -> Result<(), SonaError> {
        let records = self.records(&*self.store.snapshot()?, first..self.next_item)?;
        let goes = |item: &Item| matches!(item, Item::Read { .. } | Item::Rehearsed { .. });
        let items: Vec<u64> = records.iter().filter(|(_, record)| goes(&record.item)).map(|(id, _)| *id).collect();
        let events = vec![Item::Discarded { why: why.to_owned(), figures: Vec::new() }];
        self.take_back(&items, events, reading, &mut |_| Ok(()))
    }

    /// Takes items back, with what was adopted of them and what `also` does, and says so in the log.
    pub(super) fn take_back(
        &mut self,
        items: &[u64],
        events: Vec<Item>,
        reading: &mut dyn Reading,
        also: Also<'_>,
    ) -> Result<(), SonaError> {
        self.check_sound()?;
        let mut items = items.to_vec();
        for (id, record) in self.adoptions()? {
            if let Item::Adopted { sources, .. } = &record.item
                && sources.iter().any(|source| items.contains(source))
                && !items.contains(&id)
            {
                items.push(id);
            }
        }
        let holds = |g: &Generation| items.iter().any(|item| (g.first..g.end).contains(item));
        let affected: Vec<u64> =
            self.generations.iter().map(|g| g.number).filter(|&n| self.chain(n).any(holds)).collect();
        let is_known = items.iter().any(|&item| item >= self.head.first) || affected.contains(&self.head.parent);
        let served = self.served()?;
        let state = match is_known {
            true => Some(self.state_of(self.head.parent, Some(self.next_item), Some((&items, &affected)), reading)?),
            false => None,
        };
        let id = self.next_item + events.len() as u64 - 1;
        let undone = Record::new(now_ms(), Item::Undone).to_bytes();
        let write = || {
            let mut change = Watched::begin(&*self.store)?;
            for item in &items {
                change.put(ITEMS, &self.tenant, &item.to_be_bytes(), &undone)?;
            }
            for (id, event) in (self.next_item..).zip(events) {
                change.put(ITEMS, &self.tenant, &id.to_be_bytes(), &Record::new(now_ms(), event).to_bytes())?;
            }
            for &number in &affected {
                generation::remove_state(&mut change, &self.tenant, number)?;
                let generation = Generation { has_state: false, adopted: None, ..self.generation_of(number)?.clone() };
                generation.put(&mut change, &self.tenant)?;
            }
            self.drop_kept(&mut change)?;
            also(&mut change)?;
            change.commit_watched(&mut self.sound)
        };
        if let Err(error) = write() {
            // The model serves what the history says.
            reading.adopt(served.as_deref())?;
            return Err(error);
        }
        let is_affected = |g: &&mut Generation| affected.contains(&g.number);
        self.generations.iter_mut().filter(is_affected).for_each(|g| (g.has_state, g.adopted) = (false, None));
        self.gone.extend(items.iter().min().map(|&item| item..id));
        self.next_item = id + 1;
        if let Some(state) = state {
            self.state = state;
        }
        self.state.learned_mut().set_version(id);
        self.tidy();
        Ok(())
    }

    fn missing(&self, item: u64) -> SonaError {
        let oldest = self.generations.iter().find(|generation| generation.is_oldest);
        match oldest.filter(|oldest| item < oldest.end && item > 0) {
            Some(oldest) => {
                let line = format!(
                    "item {item} was let go with the log up to {}, so it cannot be undone; go back to an older \
                     generation, or forget the tenant",
                    oldest.end - 1
                );
                SonaError::new(SonaErrorKind::Limit, line)
            }
            None => SonaError::new(SonaErrorKind::Value, format!("there is no item {item}")),
        }
    }
}
