//! The tokens that may still be chosen.

use std::cmp::Ordering;

use super::kernels;

/// How many of the most likely are sorted at first where it is not known how many are needed.
const SORTED_AT_FIRST: usize = 256;

/// Logits that are looked at together.
const BLOCK: usize = 64;

/// A token that may be chosen, with its logit, and its probability once it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub id: u32,
    pub logit: f32,
    pub p: f32,
}

/// Sorts most likely first, lower id first among equals. Both zeros are equal, as for whoever compares logits as numbers.
fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    (b.logit + 0.0).total_cmp(&(a.logit + 0.0)).then(a.id.cmp(&b.id))
}

/// Candidates, and whether they are sorted, the most likely first. Has room for the whole vocabulary from the beginning.
pub(super) struct Candidates {
    items: Vec<Candidate>,
    is_sorted: bool,
}

impl Candidates {
    pub(super) fn new(n_vocab: usize) -> Candidates {
        Candidates { items: Vec::with_capacity(n_vocab), is_sorted: true }
    }

    /// Takes all tokens whose logit is a number.
    pub(super) fn fill(&mut self, logits: &[f32]) {
        let candidates = logits.iter().enumerate().filter(|(_, logit)| !logit.is_nan());
        self.items.clear();
        self.items.extend(candidates.map(|(id, &logit)| Candidate { id: id as u32, logit, p: 0.0 }));
        self.is_sorted = false;
    }

    /// Takes the `k` most likely tokens: what [`Candidates::fill`] and [`Candidates::keep`] do, in one look at the logits.
    pub(super) fn fill_top(&mut self, logits: &[f32], k: usize) {
        let at_once = 2 * k.min(logits.len());
        if at_once >= logits.len() {
            self.fill(logits);
            return self.keep(k);
        }
        self.items.clear();
        let (kernels, mut least) = (kernels(), f32::NEG_INFINITY);
        for (i, block) in logits.chunks(BLOCK).enumerate() {
            // Most blocks have nothing for the list once it is full.
            let best = kernels.max(block);
            if best < least || (best == least && self.items.len() >= k) {
                continue;
            }
            for (id, logit) in (i * BLOCK..).zip(block.iter().copied()) {
                // Among equals the lower id is there already. Nothing is above -∞ as long as there are fewer than `k`.
                if logit > least || (logit == least && self.items.len() < k) {
                    self.items.push(Candidate { id: id as u32, logit, p: 0.0 });
                    if self.items.len() == at_once {
                        self.items.select_nth_unstable_by(k - 1, by_rank);
                        self.items.truncate(k);
                        least = self.items[k - 1].logit;
                    }
                }
            }
        }
        self.is_sorted = false;
        self.keep(k);
    }

    /// Returns how many there is room for.
    pub(super) fn capacity(&self) -> usize {
        self.items.capacity()
    }

    pub(super) fn items(&self) -> &[Candidate] {
        &self.items
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns whether nothing is left that can be drawn.
    pub(super) fn is_empty(&self) -> bool {
        self.items.iter().all(|candidate| candidate.logit == f32::NEG_INFINITY)
    }

    /// Changes the logits, after which nothing is sorted.
    pub(super) fn change(&mut self, mut each: impl FnMut(u32, f32) -> f32) {
        self.items.iter_mut().for_each(|candidate| candidate.logit = each(candidate.id, candidate.logit));
        self.is_sorted = false;
    }

    /// Divides the logits, which keeps their order.
    pub(super) fn scale(&mut self, divisor: f32) {
        self.items.iter_mut().for_each(|candidate| candidate.logit /= divisor);
    }

    /// Keeps those that `is_kept`, in their order.
    pub(super) fn retain(&mut self, is_kept: impl FnMut(&Candidate) -> bool) {
        self.items.retain(is_kept);
    }

    /// Keeps the first `n` of those that are there.
    pub(super) fn truncate(&mut self, n: usize) {
        self.items.truncate(n);
    }

    /// Drops the first `n`.
    pub(super) fn drop_first(&mut self, n: usize) {
        self.items.drain(..n);
    }

    /// Returns the largest logit; -∞ if there is none.
    pub(super) fn max(&self) -> f32 {
        match self.is_sorted {
            true => self.items.first().map_or(f32::NEG_INFINITY, |first| first.logit),
            false => self.items.iter().fold(f32::NEG_INFINITY, |max, candidate| max.max(candidate.logit)),
        }
    }

    /// Sorts all.
    pub(super) fn sort(&mut self) {
        if !self.is_sorted {
            self.items.sort_unstable_by(by_rank);
            self.is_sorted = true;
        }
    }

    /// Puts the `n` most likely first, sorted, and leaves the rest as it is.
    fn sort_first(&mut self, n: usize) {
        if self.is_sorted || n == 0 {
            return;
        }
        if n < self.items.len() {
            self.items.select_nth_unstable_by(n - 1, by_rank);
            self.items[..n].sort_unstable_by(by_rank);
        } else {
            self.sort();
        }
    }

    /// Keeps the `k` most likely, sorted.
    pub(super) fn keep(&mut self, k: usize) {
        self.sort_first(k);
        self.items.truncate(k);
        self.is_sorted = true;
    }

    /// Keeps the most likely, sorted, up to the first at which `is_last`, which sees them in order.
    pub(super) fn keep_until(&mut self, mut is_last: impl FnMut(&Candidate) -> bool) {
        let mut seen = 0;
        for n in [SORTED_AT_FIRST, usize::MAX] {
            let n = n.min(self.items.len());
            self.sort_first(n);
            if let Some(at) = self.items[seen..n].iter().position(&mut is_last) {
                self.items.truncate(seen + at + 1);
                break;
            }
            seen = n;
        }
        self.is_sorted = true;
    }

    /// Sorts by another measure, the smallest first; the lower id first among equals.
    pub(super) fn sort_by_key(&mut self, key: impl Fn(&Candidate) -> f32) {
        self.items.sort_unstable_by(|a, b| key(a).total_cmp(&key(b)).then(by_rank(a, b)));
        self.is_sorted = false;
    }

    /// Fills in the probabilities.
    pub(super) fn softmax(&mut self) {
        let max = self.max();
        let mut sum = 0.0f64;
        for candidate in &mut self.items {
            candidate.p = (candidate.logit - max).exp();
            sum += f64::from(candidate.p);
        }
        self.items.iter_mut().for_each(|candidate| candidate.p = (f64::from(candidate.p) / sum) as f32);
    }

    /// Returns the entropy of the probabilities, in nats.
    pub(super) fn entropy(&self) -> f32 {
        let terms = self.items.iter().map(|candidate| f64::from(candidate.p)).filter(|&p| p > 0.0);
        -terms.map(|p| p * p.ln()).sum::<f64>() as f32
    }
}
