//! The largest of many values: a threshold that rises, an order that ties cannot change.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use ruvllm_cpu::ThreadPool;

/// A value and where it stood.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    /// Index of the entry or token.
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
/// Maxima that are taken beside each other, for the compiler to find its vectors.
const LANES: usize = 16;

/// The largest of what was offered so far, and some more that have not been sorted out yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Top {
    hits: Vec<Hit>,
    n: usize,
    /// What is below this is not among the `n` largest.
    threshold: f32,
}

impl Top {
    /// Begins a search for the `n` largest, 1 or more.
    pub(crate) fn start(&mut self, n: usize) {
        self.hits.clear();
        (self.n, self.threshold) = (n.max(1), f32::MIN);
    }

    /// Takes values that stand from `first` on; what is ruled out (`-∞`) or no number is none of the largest.
    pub(crate) fn offer(&mut self, first: usize, values: &[f32]) {
        for (block, values) in values.chunks(BLOCK).enumerate() {
            if !has_one_of(values, self.threshold) {
                continue;
            }
            for (i, &value) in values.iter().enumerate() {
                if value >= self.threshold {
                    self.hits.push(Hit { index: (first + block * BLOCK + i) as u32, value });
                }
            }
            if self.hits.len() >= 2 * self.n + BLOCK {
                self.cut();
            }
        }
    }

    /// Keeps the `n` largest.
    fn cut(&mut self) {
        if self.hits.len() > self.n {
            keep(&mut self.hits, self.n);
            self.threshold = self.hits[self.n - 1].value;
        }
    }

    /// Returns the `n` largest of a row, largest first.
    pub(crate) fn of(&mut self, values: &[f32], n: usize) -> &[Hit] {
        self.start(n);
        self.offer(0, values);
        self.cut();
        self.hits.sort_unstable_by(Hit::order);
        &self.hits
    }
}

/// Returns whether a value reaches the threshold.
fn has_one_of(values: &[f32], threshold: f32) -> bool {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut max = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        // What a vector's maximum does: a NaN is passed over.
        max.iter_mut().zip(chunk).for_each(|(max, &x)| *max = if x > *max { x } else { *max });
    }
    max.iter().chain(rest).any(|&x| x >= threshold)
}

/// Places `0..len`, cut into pieces of `grain` that threads claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Partition {
    pub len: usize,
    pub grain: usize,
}

/// The largest of what the threads of a threads find: each has a [`Top`] of its own.
#[derive(Debug, Default)]
pub(crate) struct Tops {
    each: Vec<Mutex<Top>>,
    all: Vec<Hit>,
}

impl Tops {
    /// Has the threads offer all places of a partition, and returns the `n` largest in no order: the same
    /// whoever looks where.
    pub(crate) fn find(
        &mut self,
        threads: &ThreadPool,
        n: usize,
        Partition { len, grain }: Partition,
        offer: &(dyn Fn(Range<usize>, &mut Top) + Sync),
    ) -> &mut Vec<Hit> {
        self.each.resize_with(threads.n_threads(), Mutex::default);
        let tops = || self.each.iter().map(|top| top.lock().unwrap_or_else(PoisonError::into_inner));
        tops().for_each(|mut top| top.start(n));
        threads.for_each_short(len, grain, &|range, worker| {
            offer(range, &mut self.each[worker].lock().unwrap_or_else(PoisonError::into_inner));
        });
        self.all.clear();
        tops().for_each(|top| self.all.extend_from_slice(&top.hits));
        keep(&mut self.all, n);
        &mut self.all
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
        assert_eq!(top.of(&[f32::NAN, f32::NEG_INFINITY, 1.0], 2), [Hit { index: 2, value: 1.0 }]);
    }

    #[test]
    fn a_team_finds_the_same_as_one_thread() {
        // Many are equal, so that it shows who came first.
        let values: Vec<f32> = (0..20_000).map(|i| (i * 7919 % 613) as f32).collect();
        let (mut top, mut tops) = (Top::default(), Tops::default());
        for n_threads in [1, 2, 5] {
            let threads = ThreadPool::new(n_threads);
            for (n, grain) in [(1, 1000), (128, 64), (128, 7000), (300, 20_000), (30_000, 512)] {
                let found = tops.find(&threads, n, Partition { len: values.len(), grain }, &|range, top| {
                    top.offer(range.start, &values[range]);
                });
                found.sort_unstable_by(Hit::order);
                assert_eq!(found, top.of(&values, n), "{n} by {n_threads}, {grain} at a time");
            }
        }
    }
}
