//! Arrays of strings, kept as the bytes the file holds.

use std::fmt;

use bytes::Bytes;

use crate::cursor::Cursor;
use crate::error::GgufError;

/// Every how many strings a position is kept for [`StringArray::get`].
const STRIDE: usize = 16;

/// An array of strings that shares the memory of the file: half a byte a string besides, however short the strings are.
///
/// (A `Vec<String>` needs 24 bytes for an empty string that takes 8 on disk; vocabularies have hundreds of thousands.)
#[derive(Clone, Default)]
pub struct StringArray {
    /// For each string its length (4 or 8 bytes, little-endian) and its UTF-8, checked when the array was made.
    bytes: Bytes,
    len_bytes: usize,
    len: usize,
    /// Start of every `STRIDE`-th string.
    index: Vec<usize>,
}

impl StringArray {
    /// Reads `n` strings.
    pub(crate) fn read(cursor: &mut Cursor<'_>, n: u64) -> Result<StringArray, GgufError> {
        let len_bytes = cursor.len_bytes();
        let len = cursor.check_fits(n, len_bytes)?;
        let start = cursor.pos();
        let mut index = Vec::with_capacity(len.div_ceil(STRIDE));
        for i in 0..len {
            if i.is_multiple_of(STRIDE) {
                index.push(cursor.pos() - start);
            }
            cursor.str().map_err(|error| error.within(format_args!("string {i} of {len}")))?;
        }
        Ok(StringArray { bytes: cursor.since(start), len_bytes, len, index })
    }

    /// Returns how many strings there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns string `i`, or `None` past the end. Walks over at most 15 others.
    pub fn get(&self, i: usize) -> Option<&str> {
        if i >= self.len {
            return None;
        }
        let rest = &self.bytes[self.index[i / STRIDE]..];
        StringIter { rest, len_bytes: self.len_bytes, left: self.len - i / STRIDE * STRIDE }.nth(i % STRIDE)
    }

    /// Iterates over the strings in order.
    pub fn iter(&self) -> StringIter<'_> {
        StringIter { rest: &self.bytes, len_bytes: self.len_bytes, left: self.len }
    }

    /// Copies the strings out.
    pub fn to_vec(&self) -> Vec<String> {
        self.iter().map(str::to_owned).collect()
    }
}

impl<S: AsRef<str>> FromIterator<S> for StringArray {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> StringArray {
        let (mut bytes, mut index, mut len) = (Vec::new(), Vec::new(), 0usize);
        for string in strings {
            let string = string.as_ref();
            if len.is_multiple_of(STRIDE) {
                index.push(bytes.len());
            }
            bytes.extend_from_slice(&(string.len() as u64).to_le_bytes());
            bytes.extend_from_slice(string.as_bytes());
            len += 1;
        }
        StringArray { bytes: bytes.into(), len_bytes: 8, len, index }
    }
}

impl<'a> IntoIterator for &'a StringArray {
    type Item = &'a str;
    type IntoIter = StringIter<'a>;

    fn into_iter(self) -> StringIter<'a> {
        self.iter()
    }
}

impl PartialEq for StringArray {
    fn eq(&self, other: &StringArray) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl fmt::Debug for StringArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The strings of a [`StringArray`] in order.
#[derive(Clone, Debug)]
pub struct StringIter<'a> {
    rest: &'a [u8],
    len_bytes: usize,
    left: usize,
}

impl<'a> Iterator for StringIter<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.left = self.left.checked_sub(1)?;
        let (head, rest) = self.rest.split_at(self.len_bytes);
        let mut len = [0; 8];
        len[..self.len_bytes].copy_from_slice(head);
        // A `StringArray` is made only over bytes that hold every length and string, so the split stays inside.
        let (string, rest) = rest.split_at(u64::from_le_bytes(len) as usize);
        self.rest = rest;
        Some(std::str::from_utf8(string).expect("checked to be UTF-8 when the array was made"))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for StringIter<'_> {}
