//! The largest of many values: a threshold that rises, an order that ties cannot change.

use std::cmp::Ordering;

/// A value and where it stood.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    /// Which entry, or which token.
    pub index: u32,
    /// Its similarity, or its logit.
    pub value: f32,
}

impl Hit {
    /// Larger first; of equals the one that stood first.
    pub(crate) fn order(&self, other: &Hit) -> Ordering {
        other.value.total_cmp(&self.value).then(self.index.cmp(&other.index))
    }
}

/// Values that are compared with the threshold at once.
pub(crate) const BLOCK: usize = 64;

/// The largest of what was offered so far, and some more that have not been sorted out yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Top {
    hits: Vec<Hit>,
    n: usize,
    /// What is not above this is not among the `n` largest.
    threshold: f32,
}

impl Top {
    /// Begins a search for the `n` largest, 1 or more.
    pub(crate) fn start(&mut self, n: usize) {
        self.hits.clear();
        (self.n, self.threshold) = (n.max(1), f32::NEG_INFINITY);
    }

    /// Takes values that stand from `first` on; in rising order.
    pub(crate) fn offer(&mut self, first: usize, values: &[f32]) {
        for (block, values) in values.chunks(BLOCK).enumerate() {
            if values.iter().fold(f32::NEG_INFINITY, |max, &x| max.max(x)) <= self.threshold {
                continue;
            }
            for (i, &value) in values.iter().enumerate() {
                if value > self.threshold {
                    self.hits.push(Hit { index: (first + block * BLOCK + i) as u32, value });
                }
            }
            if self.hits.len() >= 2 * self.n + BLOCK {
                self.cut();
            }
        }
    }

    /// Keeps the `n` largest. One that only equals the threshold stands behind those that set it, and is not among them.
    fn cut(&mut self) {
        if self.hits.len() > self.n {
            keep(&mut self.hits, self.n);
            self.threshold = self.hits[self.n - 1].value;
        }
    }

    /// Returns the largest, in no order.
    pub(crate) fn finish(&mut self) -> &mut Vec<Hit> {
        self.cut();
        &mut self.hits
    }

    /// Returns the `n` largest of a row, largest first.
    pub(crate) fn of(&mut self, values: &[f32], n: usize) -> &[Hit] {
        self.start(n);
        self.offer(0, values);
        let hits = self.finish();
        hits.sort_unstable_by(Hit::order);
        hits
    }
}

/// Keeps the `n` largest, 1 or more, in no order.
pub(crate) fn keep(hits: &mut Vec<Hit>, n: usize) {
    if hits.len() > n {
        hits.select_nth_unstable_by(n - 1, Hit::order);
        hits.truncate(n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_are_those_that_sorting_finds() {
        let mut top = Top::default();
        for n in [1, 63, 64, 1000, 5000] {
            let values: Vec<f32> = (0..n).map(|i| ((i * 7919 % 613) as f32 * 0.01).sin()).collect();
            for k in [1, 5, 128] {
                let mut expected: Vec<Hit> =
                    values.iter().enumerate().map(|(i, &value)| Hit { index: i as u32, value }).collect();
                expected.sort_by(Hit::order);
                expected.truncate(k);
                assert_eq!(top.of(&values, k), expected, "{k} of {n}");
            }
        }
        assert!(top.of(&[], 3).is_empty());
        assert_eq!(top.of(&[f32::NAN, 1.0], 1), [Hit { index: 1, value: 1.0 }]);
    }
}
