//! State of a history, and its head, as bytes.

use std::sync::Arc;

use super::Setup;
use super::item::{read_options, write_options};
use crate::codec::{Reader, Writer};
use crate::error::SonaError;
use crate::instant::{LearnOptions, Learned};

/// The only key of a tenant's head.
pub(super) const HEAD: &[u8] = b"head";

/// What a state begins with.
const MAGIC: [u8; 8] = *b"ruvstat1";

/// All that is known.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// Shared with readers; a change works on a copy of its own.
    pub(super) learned: Arc<Learned>,
    /// Digest of what the deep loop knows, if an adapter of it was adopted.
    pub(super) adopted: Option<[u8; 32]>,
}

impl State {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut to = Writer::of(MAGIC);
        write_options(&mut to, self.learned.options());
        to.u8(u8::from(self.adopted.is_some())).raw(&self.adopted.unwrap_or_default());
        to.part(&self.learned.snapshot());
        to.take()
    }

    /// What is known before anything was taught.
    pub(super) fn empty(options: LearnOptions, setup: &Setup) -> Result<State, SonaError> {
        let learned = Learned::new(Arc::clone(&setup.calibration), options, setup.compute.clone())?;
        Ok(State { learned: Arc::new(learned), adopted: None })
    }

    /// What is known, to be changed.
    pub(super) fn learned_mut(&mut self) -> &mut Learned {
        Arc::make_mut(&mut self.learned)
    }

    pub(super) fn from_bytes(bytes: &[u8], setup: &Setup) -> Result<State, SonaError> {
        let mut from = Reader::of(bytes, MAGIC, "state of a tenant")?;
        let options = read_options(&mut from)?;
        let (has_adopted, digest) = (from.u8()? == 1, from.array()?);
        let learned = Learned::restore(from.part()?, Arc::clone(&setup.calibration), options, setup.compute.clone())?;
        from.end()?;
        Ok(State { learned: Arc::new(learned), adopted: has_adopted.then_some(digest) })
    }
}

/// Where a tenant stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Head {
    /// The generation that the state now came from.
    pub(super) parent: u64,
    /// The items since then have ids from here.
    pub(super) first: u64,
    /// What was learned with at first.
    pub(super) options: LearnOptions,
    /// Digest of the calibration.
    pub(super) calibration: [u8; 32],
}

impl Head {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut to = Writer::new();
        write_options(to.u8(1).u64(self.parent).u64(self.first).raw(&self.calibration), &self.options);
        to.take()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Head, SonaError> {
        let mut from = Reader::new(bytes, "learning head");
        from.format(1..=1)?;
        let (parent, first, calibration) = (from.u64()?, from.u64()?, from.array()?);
        let options = read_options(&mut from)?;
        from.end()?;
        Ok(Head { parent, first, options, calibration })
    }
}
