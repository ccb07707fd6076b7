//! Bytes that grow: pages of a range where the system has no maps, and memory that was taken once is never given back.

use std::ops::{Deref, DerefMut};

use super::ALIGN;

/// Zeros, aligned to [`ALIGN`], whose number grows. They stay where they are as long as nothing lies behind them.
#[derive(Debug, Default)]
pub(super) struct Grown {
    words: Vec<u64>,
    /// The first aligned one of the words.
    first: usize,
    len: usize,
}

/// Words between two aligned ones.
const STEP: usize = ALIGN / size_of::<u64>();

impl Grown {
    /// Grows to `len` bytes, a multiple of [`ALIGN`]; those that are there stay. Returns false, and nothing changes, if there is
    /// not so much memory.
    pub(super) fn grow_to(&mut self, len: usize) -> bool {
        let n_words = len / size_of::<u64>();
        let Some(n_more) = (n_words + STEP).checked_sub(self.words.len()) else { return true };
        if self.words.try_reserve_exact(n_more).is_err() {
            return false;
        }
        self.words.resize(n_words + STEP, 0);
        let first = self.words.as_ptr().align_offset(ALIGN).min(STEP);
        if first != self.first {
            // They moved to where another word is aligned.
            let n_kept = self.len / size_of::<u64>();
            self.words.copy_within(self.first..self.first + n_kept, first);
            self.words[first + n_kept..].fill(0);
        }
        (self.first, self.len) = (first, len);
        true
    }
}

impl Deref for Grown {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words[self.first..])[..self.len]
    }
}

impl DerefMut for Grown {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words[self.first..])[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_stays_and_what_comes_is_zeros() {
        let (mut grown, mut between) = (Grown::default(), Vec::new());
        assert!(grown.is_empty());
        for len in (1..40).map(|n| n * 1000 * ALIGN) {
            let before = grown.len();
            assert!(grown.grow_to(len) && grown.grow_to(before));
            assert_eq!((grown.len(), grown.as_ptr() as usize % ALIGN), (len, 0));
            assert!(grown[..before].iter().all(|&byte| byte == 7) && grown[before..].iter().all(|&byte| byte == 0));
            grown.fill(7);
            // So that it has to move.
            between.push(vec![1u8; 100_000 + len / 2]);
        }
        let len = grown.len();
        assert!(!grown.grow_to(isize::MAX as usize / ALIGN * ALIGN - ALIGN * 2) && grown.len() == len);
    }
}
