//! Generations: states that were published, as numbers and snapshots.

use super::item::{read_figures, write_figures};
use crate::codec::{Reader, Writer};
use crate::error::SonaError;
use crate::store::{Scan, Snapshot, Table, Transaction};

/// Generations of each tenant, by number.
pub(super) const GENERATIONS: Table = Table::new("learning generations");

/// Their states, in pieces, by number and place.
pub(super) const STATES: Table = Table::new("learning states");

/// Bytes of a piece.
const PIECE_BYTES: usize = 1 << 20;

/// First byte of a generation's record.
const FORMAT: u8 = 1;

/// A state that was published.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// Its number, from 1; 0 is the model alone.
    pub number: u64,
    /// The generation that it came from.
    pub parent: u64,
    /// When, in Unix milliseconds.
    pub unix_ms: u64,
    /// Why it was published.
    pub why: String,
    /// Measured figures: names and values.
    pub figures: Vec<(String, f64)>,
    /// The items between its parent and it have ids from here.
    pub first: u64,
    /// To here, this one not among them.
    pub end: u64,
    /// Digest of what the deep loop knew, if an adapter of it is part of the state.
    pub adopted: Option<[u8; 32]>,
    /// Whether items and generations before it were let go: nothing before it can be undone or gone back to.
    pub is_oldest: bool,
    /// Whether its state lies in the store; after an undo it is made anew when somebody asks for it.
    pub has_state: bool,
}

impl Generation {
    /// The last version that it is made of.
    pub(super) fn last(&self) -> u64 {
        self.end - 1
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut to = Writer::new();
        to.u8(FORMAT).u64(self.number).u64(self.parent).u64(self.unix_ms).text(&self.why).u64(self.first).u64(self.end);
        to.u8(u8::from(self.is_oldest)).u8(u8::from(self.has_state));
        to.u8(u8::from(self.adopted.is_some())).raw(&self.adopted.unwrap_or_default());
        write_figures(&mut to, &self.figures);
        to.take()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Generation, SonaError> {
        let mut from = Reader::new(bytes, "generation");
        from.format(FORMAT..=FORMAT)?;
        let (number, parent, unix_ms, why) = (from.u64()?, from.u64()?, from.u64()?, from.text()?);
        let (first, end) = (from.u64()?, from.u64()?);
        let (is_oldest, has_state) = (from.u8()? == 1, from.u8()? == 1);
        let (has_adopted, digest) = (from.u8()? == 1, from.array()?);
        let adopted = has_adopted.then_some(digest);
        let figures = read_figures(&mut from)?;
        if number <= parent || first > end || end == 0 {
            return Err(from.invalid(format_args!("number {number} of {parent}, items {first} to {end}")));
        }
        from.end()?;
        Ok(Generation { number, parent, unix_ms, why, figures, first, end, adopted, is_oldest, has_state })
    }

    pub(super) fn put(&self, change: &mut dyn Transaction, tenant: &[u8]) -> Result<(), SonaError> {
        Ok(change.put(GENERATIONS, tenant, &self.number.to_be_bytes(), &self.to_bytes())?)
    }

    /// Removes it with its state.
    pub(super) fn remove(&self, change: &mut dyn Transaction, tenant: &[u8]) -> Result<(), SonaError> {
        change.remove(GENERATIONS, tenant, &self.number.to_be_bytes())?;
        remove_state(change, tenant, self.number)
    }
}

pub(super) fn put_state(
    change: &mut dyn Transaction,
    tenant: &[u8],
    number: u64,
    state: &[u8],
) -> Result<(), SonaError> {
    put_pieces(change, STATES, tenant, &number.to_be_bytes(), state)
}

pub(super) fn remove_state(change: &mut dyn Transaction, tenant: &[u8], number: u64) -> Result<(), SonaError> {
    let mut i = 0;
    while change.remove(STATES, tenant, &place(&number.to_be_bytes(), i))? {
        i += 1;
    }
    Ok(())
}

/// Returns a generation's state.
pub(super) fn state(snapshot: &dyn Snapshot, tenant: &[u8], number: u64) -> Result<Vec<u8>, SonaError> {
    pieces(snapshot, STATES, tenant, &number.to_be_bytes())
}

/// The key of a piece.
fn place(prefix: &[u8], piece: u32) -> Vec<u8> {
    [prefix, &piece.to_be_bytes()].concat()
}

/// Puts bytes of any length under keys that begin with `prefix`.
pub(super) fn put_pieces(
    change: &mut dyn Transaction,
    table: Table,
    tenant: &[u8],
    prefix: &[u8],
    bytes: &[u8],
) -> Result<(), SonaError> {
    for (i, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
        change.put(table, tenant, &place(prefix, i as u32), piece)?;
    }
    Ok(())
}

/// Returns what [`put_pieces`] put.
pub(super) fn pieces(
    snapshot: &dyn Snapshot,
    table: Table,
    tenant: &[u8],
    prefix: &[u8],
) -> Result<Vec<u8>, SonaError> {
    let from = place(prefix, 0);
    let mut bytes = Vec::new();
    snapshot.scan(table, &Scan::all(tenant).between(&from, None), &mut |key, piece| {
        let is_mine = key.starts_with(prefix);
        if is_mine {
            bytes.extend_from_slice(piece);
        }
        Ok(is_mine)
    })?;
    Ok(bytes)
}
