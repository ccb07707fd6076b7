//! A reader over the bytes of one file that checks every length before it acts on it.

use bytes::Bytes;

use crate::error::{GgufError, GgufErrorKind};
use crate::limits;

/// A position in a file. Nothing is allocated from a length before the bytes left are known to hold it.
pub(crate) struct Cursor<'a> {
    file: &'a Bytes,
    /// Length of the whole file, of which `file` may be the beginning.
    n_bytes: u64,
    pos: usize,
    /// Bytes of a count or length: 4 in version 1, 8 since.
    len_bytes: usize,
    n_nested_arrays: u64,
}

impl<'a> Cursor<'a> {
    /// Begins to read a file of `n_bytes`, of which `file` may be the beginning.
    pub(crate) fn new(file: &'a Bytes, n_bytes: u64) -> Cursor<'a> {
        Cursor { file, n_bytes, pos: 0, len_bytes: 8, n_nested_arrays: 0 }
    }

    pub(crate) fn set_version(&mut self, version: u32) {
        self.len_bytes = if version == 1 { 4 } else { 8 };
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    pub(crate) fn pos(&self) -> usize {
        self.pos
    }

    /// Fails unless `n` items of at least `item_bytes` each can still follow; returns `n` as a `usize`.
    pub(crate) fn check_fits(&self, n: u64, item_bytes: usize) -> Result<usize, GgufError> {
        let (need, pos) = (n.saturating_mul(item_bytes as u64), self.pos as u64);
        let left = self.n_bytes - pos;
        if need > left {
            return Err(GgufError::truncated(need, left, pos));
        }
        if need > (self.file.len() - self.pos) as u64 {
            return Err(GgufError::truncated(need, self.file.len() as u64 - pos, pos).wanting(pos + need));
        }
        usize::try_from(n).map_err(|_| GgufError::invalid(format!("length {n} does not fit this machine")))
    }

    /// Takes the next `n` bytes.
    pub(crate) fn take(&mut self, n: u64) -> Result<&'a [u8], GgufError> {
        let n = self.check_fits(n, 1)?;
        let bytes = &self.file[self.pos..self.pos + n];
        self.pos += n;
        Ok(bytes)
    }

    /// Returns the bytes from `start` to the present position, sharing the file's memory.
    pub(crate) fn since(&self, start: usize) -> Bytes {
        self.file.slice(start..self.pos)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64)?);
        Ok(out)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a count or length as wide as the file's version has it.
    pub(crate) fn len(&mut self) -> Result<u64, GgufError> {
        if self.len_bytes == 4 { Ok(u64::from(self.u32()?)) } else { self.u64() }
    }

    /// Reads a length and that many bytes of UTF-8.
    pub(crate) fn str(&mut self) -> Result<&'a str, GgufError> {
        let len = self.len()?;
        let at = self.pos;
        std::str::from_utf8(self.take(len)?).map_err(|error| {
            GgufError::invalid(format!("a string is not UTF-8 (at byte {})", at + error.valid_up_to()))
        })
    }

    /// Counts `n` arrays inside an array against the limit of the file.
    pub(crate) fn count_nested(&mut self, n: u64) -> Result<(), GgufError> {
        self.n_nested_arrays = self.n_nested_arrays.saturating_add(n);
        if self.n_nested_arrays > limits::N_NESTED_ARRAYS_MAX {
            let (found, most) = (self.n_nested_arrays, limits::N_NESTED_ARRAYS_MAX);
            let message = format!("{found} arrays inside arrays, at most {most} are read (at byte {})", self.pos);
            return Err(GgufError::new(GgufErrorKind::Limit, message));
        }
        Ok(())
    }
}
