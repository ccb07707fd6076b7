//! Generations that are published, and gone back to.

use super::generation::{self, Generation};
use super::item::{Item, Record};
use super::rebuild::Reading;
use super::state::{HEAD, Head};
use super::watched::Watched;
use super::{HEADS, History, ITEMS};
use crate::clock::now_ms;
use crate::error::{SonaError, SonaErrorKind};
use crate::publish::Judgement;
use crate::store::Transaction as _;

impl History {
    /// Publishes what is known now as a generation, and returns its number; lets the oldest go if there are too many.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn publish(&mut self, why: &str, figures: &[(String, f64)]) -> Result<u64, SonaError> {
        let number = self.add_generation(why, figures)?;
        // It is published; what could not go now goes with a later one.
        let _ = self.let_go();
        Ok(number)
    }

    /// Publishes what is known now, and lets nothing go.
    fn add_generation(&mut self, why: &str, figures: &[(String, f64)]) -> Result<u64, SonaError> {
        self.check_sound()?;
        let number = self.generations.last().map_or(0, |last| last.number) + 1;
        let generation = Generation {
            number,
            parent: self.head.parent,
            unix_ms: now_ms(),
            why: why.to_owned(),
            figures: figures.to_vec(),
            first: self.head.first,
            end: self.next_item,
            adopted: self.state.adopted,
            is_oldest: false,
            has_state: true,
        };
        let head = Head { parent: number, first: self.next_item, ..self.head.clone() };
        let mut change = Watched::begin(&*self.store)?;
        generation.put(&mut change, &self.tenant)?;
        generation::put_state(&mut change, &self.tenant, number, &self.state())?;
        change.put(HEADS, &self.tenant, HEAD, &head.to_bytes())?;
        change.commit_watched(&mut self.sound)?;
        self.head = head;
        self.generations.push(generation);
        Ok(number)
    }

    /// Goes back to a generation, or to the model alone with 0; what is known then is what was known there, to the byte. What
    /// came since the last generation is published first, so that nothing is lost by going back.
    ///
    /// # Errors
    /// The generation is not kept, the model cannot read again what it needs, or it cannot be written.
    pub fn rollback(&mut self, number: u64, reading: &mut dyn Reading) -> Result<(), SonaError> {
        self.check_sound()?;
        if number > 0 {
            self.generation_of(number)?;
        } else if let Some(oldest) = self.generations.iter().find(|generation| generation.is_oldest) {
            let line = format!("the log before generation {} was let go; forget the tenant instead", oldest.number);
            return Err(SonaError::new(SonaErrorKind::Limit, line));
        }
        if self.has_news()? {
            self.add_generation(&format!("before going back to {number}"), &[])?;
        }
        let served = self.served()?;
        let state = self.state_of(number, None, None, reading)?;
        let id = self.next_item;
        let head = Head { parent: number, first: id, ..self.head.clone() };
        let mut write = || {
            let mut change = Watched::begin(&*self.store)?;
            let record = Record::new(now_ms(), Item::RolledBack { generation: number });
            change.put(ITEMS, &self.tenant, &id.to_be_bytes(), &record.to_bytes())?;
            change.put(HEADS, &self.tenant, HEAD, &head.to_bytes())?;
            self.drop_kept(&mut change)?;
            change.commit_watched(&mut self.sound)
        };
        if let Err(error) = write() {
            // The model serves what the history says.
            reading.adopt(served.as_deref())?;
            return Err(error);
        }
        let last = self.generations.iter().find(|generation| generation.number == number);
        self.gone.push(last.map_or(1, |generation| generation.end)..id);
        (self.head, self.state, self.next_item) = (head, state, id + 1);
        self.state.learned_mut().set_version(id);
        // Only now: what it went back to stays. What could not go now goes with a later generation.
        let _ = self.let_go();
        Ok(())
    }

    /// Publishes what was learned since the last generation if the gate says so, and returns the generation's number. Otherwise
    /// what was read since then is taken back, corrections and options stay, and the log says why.
    ///
    /// # Errors
    /// As [`History::publish`] and [`History::undo`].
    pub fn decide(&mut self, judgement: &Judgement, reading: &mut dyn Reading) -> Result<Option<u64>, SonaError> {
        if judgement.is_published {
            return self.publish(&judgement.why, &judgement.figures()).map(Some);
        }
        let records = self.records(&*self.store.snapshot()?, self.head.first..self.next_item)?;
        let goes = |item: &Item| !matches!(item, Item::Corrected { .. } | Item::Configured(_)) && item.has_effect();
        let items: Vec<u64> = records.iter().filter(|(_, record)| goes(&record.item)).map(|(id, _)| *id).collect();
        let event = Item::Discarded { why: judgement.why.clone(), figures: judgement.figures() };
        self.take_back(&items, vec![event], reading, &mut |_| Ok(()))?;
        Ok(None)
    }
}
