//! Files that cannot be mapped: their bytes lie outside of this program's memory and are read where they are wanted.

use std::io::{self, ErrorKind};

use bytes::Bytes;

use crate::error::{GgufError, GgufErrorKind};

/// Bytes of a file that are read on request: in a browser those of a `Blob`, which lie outside of a module's memory.
///
/// A source is not believed: a length that is not kept, or a read of more than there was room for, is an error of
/// [`GgufFile::read`](crate::GgufFile::read).
pub trait ByteSource: Send + Sync {
    /// Returns the length of the file, in bytes.
    fn n_bytes(&self) -> u64;

    /// Reads bytes from `offset` on into `to`, and returns how many it were: at least one, unless the file ends there. Fewer than
    /// `to` has room for are no error; the rest is asked for again.
    ///
    /// # Errors
    /// The place where the bytes lie failed. After [`ErrorKind::Interrupted`] it is asked again.
    fn read_at(&self, offset: u64, to: &mut [u8]) -> io::Result<usize>;

    /// Fills `to` with the bytes from `offset` on.
    ///
    /// # Errors
    /// They do not lie within [`ByteSource::n_bytes`]; the source fails, or ends before that.
    fn read_all_at(&self, offset: u64, to: &mut [u8]) -> Result<(), GgufError> {
        let whole = self.n_bytes();
        let left = whole.saturating_sub(offset);
        if to.len() as u64 > left {
            return Err(GgufError::truncated(to.len() as u64, left, offset));
        }
        let (mut at, mut rest) = (offset, to);
        while !rest.is_empty() {
            match self.read_at(at, rest) {
                Ok(0) => {
                    let line = format!(
                        "the file was cut short while it was in use: it ends at byte {at} of {whole}; load it again"
                    );
                    return Err(GgufError::new(GgufErrorKind::Io, line));
                }
                Ok(n) if n > rest.len() => {
                    let line = format!("{n} bytes were read where there is room for {} (at byte {at})", rest.len());
                    return Err(GgufError::new(GgufErrorKind::Io, line));
                }
                Ok(n) => {
                    at += n as u64;
                    rest = &mut rest[n..];
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(GgufError::io(&format!("cannot read the file (at byte {at})"), error)),
            }
        }
        Ok(())
    }
}

impl ByteSource for Bytes {
    fn n_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)).unwrap_or_default();
        let n = left.len().min(to.len());
        to[..n].copy_from_slice(&left[..n]);
        Ok(n)
    }
}

/// Appends the `n_bytes` bytes from `offset` on to `to`.
pub(crate) fn append(source: &dyn ByteSource, offset: u64, n_bytes: usize, to: &mut Vec<u8>) -> Result<(), GgufError> {
    let left = source.n_bytes().saturating_sub(offset);
    if n_bytes as u64 > left {
        return Err(GgufError::truncated(n_bytes as u64, left, offset));
    }
    if to.try_reserve_exact(n_bytes).is_err() {
        return Err(GgufError::io(&format!("no room for {n_bytes} bytes"), ErrorKind::OutOfMemory.into()));
    }
    let start = to.len();
    to.resize(start + n_bytes, 0);
    source.read_all_at(offset, &mut to[start..])
}
