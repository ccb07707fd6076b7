//! Texts by number and numbers by text, in one block of memory.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;

const EMPTY: u32 = u32::MAX;

/// Maps numbers `0..len` to texts and texts back to numbers. A quarter of a million tokens cost two allocations here,
/// where a map of owned strings costs as many as there are tokens.
pub(super) struct TextIndex {
    bytes: Vec<u8>,
    /// `len + 1` ends: text `i` is `bytes[ends[i]..ends[i + 1]]`.
    ends: Vec<u32>,
    /// Open addressing, a power of two, never more than half full.
    slots: Vec<u32>,
    hasher: RandomState,
}

impl TextIndex {
    /// Makes an empty index with room for `n_texts`.
    pub(super) fn with_capacity(n_texts: usize) -> TextIndex {
        let slots = vec![EMPTY; (2 * n_texts.max(8)).next_power_of_two()];
        let mut ends = Vec::with_capacity(n_texts + 1);
        ends.push(0);
        TextIndex { bytes: Vec::with_capacity(8 * n_texts), ends, slots, hasher: RandomState::default() }
    }

    /// Returns how many texts there are.
    pub(super) fn len(&self) -> usize {
        self.ends.len() - 1
    }

    /// Returns text number `i`.
    ///
    /// # Panics
    /// If there is no such text.
    pub(super) fn text(&self, i: u32) -> &[u8] {
        &self.bytes[self.ends[i as usize] as usize..self.ends[i as usize + 1] as usize]
    }

    /// Appends a text; a later text shadows an equal earlier one. Returns its number, or `None` past 4 GiB.
    pub(super) fn push(&mut self, text: &[u8]) -> Option<u32> {
        let id = u32::try_from(self.len()).ok().filter(|&id| id != EMPTY)?;
        let end = u32::try_from(self.bytes.len() + text.len()).ok()?;
        if 2 * (self.len() + 1) > self.slots.len() {
            self.grow();
        }
        self.bytes.extend_from_slice(text);
        self.ends.push(end);
        let slot = self.slot(text);
        self.slots[slot] = id;
        Some(id)
    }

    /// Returns the number of a text, appending it when it is new; `None` past 4 GiB.
    pub(super) fn intern(&mut self, text: &[u8]) -> Option<u32> {
        self.find(text).or_else(|| self.push(text))
    }

    /// Returns the number of a text.
    pub(super) fn find(&self, text: &[u8]) -> Option<u32> {
        Some(self.slots[self.slot(text)]).filter(|&id| id != EMPTY)
    }

    /// Returns the slot that holds the text, or the empty one where it belongs.
    fn slot(&self, text: &[u8]) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = self.hasher.hash_one(text) as usize & mask;
        while self.slots[at] != EMPTY && self.text(self.slots[at]) != text {
            at = (at + 1) & mask;
        }
        at
    }

    fn grow(&mut self) {
        self.slots = vec![EMPTY; self.slots.len() * 2];
        for id in 0..self.len() as u32 {
            let slot = self.slot(self.text(id));
            self.slots[slot] = id;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_pushed_and_the_last_of_equals() {
        let mut index = TextIndex::with_capacity(0);
        for i in 0..1000u32 {
            assert_eq!(index.push(i.to_string().as_bytes()), Some(i));
        }
        assert_eq!((index.find(b"999"), index.find(b"1000"), index.text(7)), (Some(999), None, &b"7"[..]));
        assert_eq!(index.push(b"7"), Some(1000));
        assert_eq!((index.find(b"7"), index.intern(b"8"), index.intern(b"new")), (Some(1000), Some(8), Some(1001)));
        assert_eq!(index.len(), 1002);
    }
}
