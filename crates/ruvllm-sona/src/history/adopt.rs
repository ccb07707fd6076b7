//! Adapters of the deep loop in a history: adopted, and gone with what they were trained on.

use super::item::{Item, Record};
use super::rebuild::Reading;
use super::watched::Watched;
use super::{ADAPTERS, History, generation};
use crate::clock::now_ms;
use crate::deep::DeepState;
use crate::error::{SonaError, invalid};
use crate::publish::Judgement;
use crate::store::{Durability, Scan};

impl History {
    /// Adopts what the deep loop learned of `sources`, ids of items, and publishes it; returns the generation's number. Where one of
    /// them is undone, the adapter goes too, and what was adopted before it is served again.
    ///
    /// # Errors
    /// If it cannot be written, or the model cannot take it.
    pub fn adopt(
        &mut self,
        deep: &DeepState,
        sources: &[u64],
        judgement: &Judgement,
        reading: &mut dyn Reading,
    ) -> Result<u64, SonaError> {
        self.check_sound()?;
        let bytes = deep.snapshot();
        let digest = *blake3::hash(&bytes).as_bytes();
        let mut sources = sources.to_vec();
        // It comes from what is adopted now, and from all that that came from.
        for (id, record) in self.adoptions()? {
            if let Item::Adopted { digest: before, sources: own } = record.item
                && Some(before) == self.state.adopted
            {
                sources.extend(own);
                sources.push(id);
            }
        }
        sources.sort_unstable();
        sources.dedup();
        let served = self.served()?;
        let mut change = Watched::begin(&*self.store)?;
        generation::put_pieces(&mut change, ADAPTERS, &self.tenant, &digest, &bytes)?;
        change.commit_watched(&mut self.sound)?;
        reading.adopt(Some(&bytes))?;
        if let Err(error) = self.log_and(Record::new(now_ms(), Item::Adopted { digest, sources }), |_| Ok(())) {
            // What is not in the log is not served.
            reading.adopt(served.as_deref())?;
            return Err(error);
        }
        self.state.adopted = Some(digest);
        self.publish(&judgement.why, &judgement.figures())
    }

    /// Returns what the deep loop knows, if an adapter of it was adopted.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn adopted(&self) -> Result<Option<DeepState>, SonaError> {
        self.state.adopted.map(|digest| DeepState::restore(&self.deep_of(&digest)?)).transpose()
    }

    /// Returns the adapter that the model serves now, if one was adopted.
    pub(super) fn served(&self) -> Result<Option<Vec<u8>>, SonaError> {
        self.state.adopted.map(|digest| self.deep_of(&digest)).transpose()
    }

    pub(super) fn deep_of(&self, digest: &[u8; 32]) -> Result<Vec<u8>, SonaError> {
        let bytes = generation::pieces(&*self.store.snapshot()?, ADAPTERS, &self.tenant, digest)?;
        match blake3::hash(&bytes).as_bytes() == digest {
            true => Ok(bytes),
            false => Err(invalid("an adopted adapter is not what was written; go back to a generation before it")),
        }
    }

    /// The adoptions in the log.
    pub(super) fn adoptions(&self) -> Result<Vec<(u64, Record)>, SonaError> {
        let mut records = self.records(&*self.store.snapshot()?, 0..self.next_item)?;
        records.retain(|(_, record)| matches!(record.item, Item::Adopted { .. }));
        Ok(records)
    }

    /// Removes adapters that nothing in the log or in the oldest generation speaks of.
    pub(super) fn drop_adapters(&self) -> Result<(), SonaError> {
        let mut used: Vec<[u8; 32]> = self.generations.iter().filter_map(|g| g.adopted).collect();
        used.extend(self.state.adopted);
        used.extend(self.adoptions()?.iter().filter_map(|(_, record)| match record.item {
            Item::Adopted { digest, .. } => Some(digest),
            _ => None,
        }));
        let mut unused: Vec<Vec<u8>> = Vec::new();
        self.store.snapshot()?.scan(ADAPTERS, &Scan::all(&self.tenant), &mut |key, _| {
            if !used.iter().any(|digest| key.starts_with(digest)) {
                unused.push(key.to_vec());
            }
            Ok(true)
        })?;
        if unused.is_empty() {
            return Ok(());
        }
        let mut change = self.store.begin(Durability::Durable)?;
        for key in &unused {
            change.remove(ADAPTERS, &self.tenant, key)?;
        }
        Ok(change.commit()?)
    }
}
