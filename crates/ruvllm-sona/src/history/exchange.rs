//! What is known, from node to node: all of a tenant's state in a signed file.
//!
//! `RUVKNOW1`, a digest of the calibration, the state and a digest of it; see [`signed`](crate::signed) for the rest.

use std::sync::Arc;

use super::{History, State};
use crate::codec::{Reader, Writer};
use crate::error::{SonaError, SonaErrorKind, invalid, limit};
use ruvllm_store::signed::{self, FileKind, PublicKey, SigningKey};

const MAGIC: &[u8; 8] = b"RUVKNOW1";

/// Bytes of a file, at most.
const FILE_BYTES_MAX: usize = 1 << 30;

/// Returns who of `trusted` has signed a file of what was learned, before there is anything to put it in.
///
/// # Errors
/// As [`History::import`] for a file that is too large, was changed, or is no such file.
pub fn signed_by(file: &[u8], trusted: &[PublicKey]) -> Result<PublicKey, SonaError> {
    opened(file, trusted).map(|(_, signed_by)| signed_by)
}

fn opened<'a>(file: &'a [u8], trusted: &[PublicKey]) -> Result<(&'a [u8], PublicKey), SonaError> {
    if file.len() > FILE_BYTES_MAX {
        return Err(limit(format!("a file of {} bytes; at most {FILE_BYTES_MAX}", file.len())));
    }
    Ok(signed::open(file, FileKind { magic: MAGIC, what: "what was learned" }, trusted)?)
}

impl History {
    /// Returns all that is known as a signed file: datastore, λ, MicroLoRA and corrections; nothing of the log.
    ///
    /// # Errors
    /// An adapter of the deep loop is part of it, which is not in the file.
    pub fn export(&self, key: &SigningKey) -> Result<Vec<u8>, SonaError> {
        if self.state.adopted.is_some() {
            let line = "an adapter of the deep loop is part of what was learned; go back to a generation before it";
            return Err(SonaError::new(SonaErrorKind::Shape, line));
        }
        let state = self.state();
        let mut to = Writer::of(*MAGIC);
        to.raw(&self.head.calibration).part(&state).raw(blake3::hash(&state).as_bytes());
        Ok(signed::seal(to.take(), key))
    }

    /// Puts what a file says in the place of all that is known, as a generation of its own before which there is nothing; returns the
    /// generation's number and who signed the file.
    ///
    /// # Errors
    /// With kind `Limit` if the file is too large, `Key` if nobody of `trusted` has signed it or it was changed since, `Shape` if it is of
    /// another model or of other options, and `Invalid` if it is no such file.
    pub fn import(&mut self, file: &[u8], trusted: &[PublicKey]) -> Result<(u64, PublicKey), SonaError> {
        let (body, signed_by) = opened(file, trusted)?;
        let mut from = Reader::of(body, *MAGIC, "file of what was learned")?;
        let calibration: [u8; 32] = from.array()?;
        if calibration != self.head.calibration {
            let line = "the file is of another model, or of another calibration of this one";
            return Err(SonaError::new(SonaErrorKind::Shape, line));
        }
        let (state, digest) = (from.part()?, from.array::<32>()?);
        from.end()?;
        if *blake3::hash(state).as_bytes() != digest {
            return Err(invalid("the file's digest is not that of what it says"));
        }
        let State { learned, .. } = State::from_bytes(state, &self.setup)?;
        let number = self.replace(Arc::unwrap_or_clone(learned), &format!("from {signed_by}"))?;
        Ok((number, signed_by))
    }
}
