//! Importance matrices in the older form, little-endian: the number of entries; for each the length of its name, the name, how many
//! calls there were, the number of values and the values (f32); then, if there is more, the number of chunks, and the length and
//! the name of the text.

use std::fs::File;
use std::io::{self, Read, Seek};

use super::{ImportanceMatrix, TensorImportance};
use crate::error::{ConvertError, shown};

/// Most bytes that are read: some of these files have a hundred megabytes.
const BYTES_MAX: u64 = 1 << 31;

/// Reads a file from its start.
///
/// # Errors
/// As reading; a file of more bytes than are read.
pub(super) fn bytes(mut file: File) -> io::Result<Vec<u8>> {
    file.rewind()?;
    let mut bytes = Vec::new();
    match file.take(BYTES_MAX + 1).read_to_end(&mut bytes)? as u64 {
        n if n > BYTES_MAX => Err(io::Error::other("it has more than 2 GiB; is it one?")),
        _ => Ok(bytes),
    }
}

/// Bytes that are left.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    /// A count, which is not negative.
    fn count(&mut self) -> Option<usize> {
        let bytes = self.take(4)?.first_chunk()?;
        usize::try_from(i32::from_le_bytes(*bytes)).ok()
    }

    fn text(&mut self) -> Option<&'a str> {
        let n = self.count()?;
        std::str::from_utf8(self.take(n)?).ok()
    }

    fn entry(&mut self) -> Option<(&'a str, TensorImportance)> {
        let name = self.text()?;
        let n_calls = self.count()?;
        let n = self.count().filter(|&n| n > 0)?;
        let values = self.take(n.checked_mul(4)?)?.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x));
        let values = match n_calls {
            0 => values.collect(),
            n_calls => values.map(|x| x / n_calls as f32).collect(),
        };
        Some((name, TensorImportance { values, unused_experts: Vec::new() }))
    }
}

pub(super) fn parse(bytes: &[u8]) -> Result<ImportanceMatrix, ConvertError> {
    let mut rest = Rest(bytes);
    let wrong = |what: String| ConvertError::invalid(format!("{what}: it is no importance matrix, or was cut short"));
    let n = rest.count().filter(|&n| n > 0).ok_or_else(|| wrong("it has no number of entries".to_owned()))?;
    let mut matrix = ImportanceMatrix::default();
    for i in 0..n {
        let at = bytes.len() - rest.0.len();
        let (name, entry) = rest.entry().ok_or_else(|| wrong(format!("entry {i} of {n} at byte {at} is damaged")))?;
        if matrix.entries.insert(name.to_owned(), entry).is_some() {
            return Err(wrong(format!("'{}' is in it twice", shown(name))));
        }
    }
    matrix.n_chunks = rest.count().map_or(0, |n| n as u32);
    matrix.dataset = rest.text().filter(|text| !text.is_empty()).map(str::to_owned);
    Ok(matrix)
}
