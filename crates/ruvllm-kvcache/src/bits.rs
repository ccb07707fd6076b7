//! A set of small numbers that knows its least one.

/// Numbers below a limit, a bit each.
#[derive(Debug)]
pub(crate) struct Bits {
    words: Vec<u64>,
    /// No word before this one has a bit.
    first: usize,
    n: usize,
}

impl Bits {
    /// Returns an empty set of numbers below `limit`.
    pub(crate) fn new(limit: usize) -> Bits {
        Bits { words: vec![0; limit.div_ceil(64)], first: 0, n: 0 }
    }

    /// Returns the set of all numbers below `limit`.
    pub(crate) fn full(limit: usize) -> Bits {
        let mut bits = Bits { words: vec![!0; limit.div_ceil(64)], first: 0, n: limit };
        if let Some(last) = bits.words.last_mut().filter(|_| !limit.is_multiple_of(64)) {
            *last >>= 64 - limit % 64;
        }
        bits
    }

    /// Returns how many numbers it holds.
    pub(crate) fn len(&self) -> usize {
        self.n
    }

    pub(crate) fn contains(&self, i: usize) -> bool {
        self.words[i / 64] >> (i % 64) & 1 == 1
    }

    /// Puts a number in or takes it out.
    pub(crate) fn set(&mut self, i: usize, is_in: bool) {
        if self.contains(i) == is_in {
            return;
        }
        self.words[i / 64] ^= 1 << (i % 64);
        if is_in {
            self.n += 1;
            self.first = self.first.min(i / 64);
        } else {
            self.n -= 1;
        }
    }

    /// Returns the least number.
    pub(crate) fn least(&mut self) -> Option<usize> {
        while self.words.get(self.first) == Some(&0) {
            self.first += 1;
        }
        self.words.get(self.first).map(|word| self.first * 64 + word.trailing_zeros() as usize)
    }

    /// Iterates over the numbers, the least first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> {
        self.words.iter().enumerate().flat_map(|(i, &word)| {
            std::iter::successors((word != 0).then_some(word), |&word| {
                Some(word & (word - 1)).filter(|&word| word != 0)
            })
            .map(move |word| i * 64 + word.trailing_zeros() as usize)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_a_set(limit in 1usize..200, full in any::<bool>(), ops in proptest::collection::vec((0usize..200, any::<bool>()), 0..100)) {
            let mut bits = if full { Bits::full(limit) } else { Bits::new(limit) };
            let mut set: BTreeSet<usize> = if full { (0..limit).collect() } else { BTreeSet::new() };
            for (i, is_in) in ops {
                let i = i % limit;
                bits.set(i, is_in);
                if is_in { set.insert(i); } else { set.remove(&i); }
                prop_assert_eq!((bits.least(), bits.len(), bits.contains(i)), (set.first().copied(), set.len(), is_in));
                prop_assert!(bits.iter().eq(set.iter().copied()));
            }
        }
    }
}
