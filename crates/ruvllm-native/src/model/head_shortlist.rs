//! When the head is screened: where of each row's logits only the largest count, or those of its high bits will do.

use ruvllm_kernels::GgmlType;
use ruvllm_kernels::matmul::{HeadShortlist, TopK};

use super::Model;
use crate::kernels::Compute;

/// Rows that ask before the shortlist is made: a short answer is not worth the time and the memory.
const ASKED_BEFORE: usize = 16;

/// Rows of a pass that are screened: with more, arithmetic bounds the head and not memory.
const ROWS_MAX: usize = 4;

/// Logits of a row that may count.
const BEST_MAX: usize = 64;

/// The share of the head that may be read beside the shortlist, whose bytes are two thirds of it.
const SHARE_MAX: f32 = 0.2;

/// How much of the mean share is that of the last pass.
const FADE: f32 = 1.0 / 8.0;

/// A model's head as a greedy decoder sees it. It costs two thirds of the head's memory, once enough rows have asked for it.
#[derive(Default)]
pub(crate) struct ShortlistState {
    /// Whether rows of passes are screened.
    is_wanted: bool,
    /// Whether the head is one that has a shortlist.
    is_possible: bool,
    n_asked: usize,
    /// Where states point, as somebody said who knows, or else the sum of the rows that asked before it was made.
    direction: Vec<f32>,
    is_told: bool,
    shortlist: Option<HeadShortlist>,
    top_k: TopK,
    /// The mean share of the head that was read, by the logarithm of how many logits counted.
    shares: [f32; BEST_MAX.ilog2() as usize + 1],
}

impl ShortlistState {
    /// Returns the shortlist of a model's head that is not made yet. Never will be where the largest of the products is not the largest
    /// of the logits for certain, or the head has another type than Q8_0. Unless it `is_wanted`, passes have none of it.
    pub(crate) fn new(model: &Model, is_wanted: bool) -> ShortlistState {
        let output = &model.output;
        let is_plain = output.scale == 1.0 && output.softcap.is_none();
        let head = output.head.as_ref().filter(|head| !head.has_bias() && head.matrix().ty() == GgmlType::Q8_0);
        let is_possible = is_plain && head.is_some();
        ShortlistState { is_wanted: is_wanted && is_possible, is_possible, ..ShortlistState::default() }
    }

    /// Returns whether passes are screened, once that is made which screens them.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Returns whether enough rows have asked.
    pub(crate) fn is_due(&self) -> bool {
        self.is_wanted && self.shortlist.is_none() && self.n_asked >= ASKED_BEFORE
    }

    /// Hears where states point, `[n_embd]`: that is what it is made for from now on, again if it was for another.
    pub(crate) fn tell(&mut self, direction: &[f32]) {
        if !self.is_told || self.direction != direction {
            self.direction = direction.to_vec();
            (self.is_told, self.shortlist) = (true, None);
        }
    }

    /// Makes it, if it is not there yet and can be made; returns whether it was made now.
    pub(crate) fn make(&mut self, model: &Model, compute: &Compute) -> bool {
        let head = model.output.head.as_ref().filter(|_| self.is_possible);
        let (Some(head), None) = (head, &self.shortlist) else { return false };
        self.direction.resize(model.spec.n_embd, 0.0);
        self.shortlist = HeadShortlist::new(compute.kernels.matmul, &compute.threads, head.matrix(), &self.direction);
        self.is_possible = self.shortlist.is_some();
        self.is_wanted &= self.is_possible;
        self.is_possible
    }

    /// Returns the shortlist once it is made, for passes or for who asks beside them.
    pub(crate) fn made(&self) -> Option<&HeadShortlist> {
        self.shortlist.as_ref()
    }

    /// Returns the shortlist for passes once it is made.
    pub(crate) fn get(&self) -> Option<&HeadShortlist> {
        self.shortlist.as_ref().filter(|_| self.is_wanted)
    }

    /// Returns whether the `n_best` largest logits of few rows are to be had without reading all of the head.
    pub(crate) fn saves(&self, n_best: usize) -> bool {
        self.get().is_some() && self.is_worth(n_best.max(1))
    }

    fn is_worth(&self, n_best: usize) -> bool {
        n_best <= BEST_MAX && self.shares[n_best.ilog2() as usize] <= SHARE_MAX
    }

    /// Returns the shortlist and its scratch for a pass in which `n_rows` rows of `states` want `n_best` logits each; `None` if all
    /// logits are computed.
    pub(crate) fn ask(&mut self, states: &[f32], n_rows: usize, n_best: usize) -> Option<(&HeadShortlist, &mut TopK)> {
        if n_rows > ROWS_MAX || !self.is_worth(n_best) {
            return None;
        }
        self.n_asked = self.n_asked.saturating_add(n_rows);
        if self.shortlist.is_none() && self.is_wanted && !self.is_told {
            self.direction.resize(states.len() / n_rows.max(1), 0.0);
            let rows = states.chunks_exact(self.direction.len().max(1));
            rows.for_each(|row| self.direction.iter_mut().zip(row).for_each(|(sum, x)| *sum += x));
        }
        Some((self.shortlist.as_ref().filter(|_| self.is_wanted)?, &mut self.top_k))
    }

    /// Takes note of the share of the head that was read for `n_best` logits of each row. A model that reads too much is no longer
    /// screened for so many.
    pub(crate) fn learn(&mut self, n_best: usize, share: f32) {
        let mean = &mut self.shares[n_best.ilog2() as usize];
        *mean += FADE * (share - *mean);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_that_is_read_all_the_same_is_no_longer_shortlisted_for_so_many() {
        let mut shortlist = ShortlistState { is_wanted: true, ..ShortlistState::default() };
        let asks = |shortlist: &mut ShortlistState, n_best| {
            let before = shortlist.n_asked;
            shortlist.ask(&[1.0], 1, n_best);
            shortlist.n_asked > before
        };
        shortlist.learn(40, 1.0);
        (0..20).for_each(|_| shortlist.learn(1, 0.1));
        assert!(asks(&mut shortlist, 40) && asks(&mut shortlist, 1), "a token may read all");
        shortlist.learn(40, 1.0);
        assert!(
            !asks(&mut shortlist, 40)
                && !asks(&mut shortlist, 32)
                && asks(&mut shortlist, 1)
                && asks(&mut shortlist, 16)
        );
        assert!(!asks(&mut shortlist, 65) && shortlist.ask(&[1.0; 5], 5, 1).is_none());
    }

    #[test]
    fn a_shortlist_is_due_after_some_rows() {
        let mut shortlist = ShortlistState { is_wanted: true, ..ShortlistState::default() };
        (1..ASKED_BEFORE).for_each(|_| assert!(shortlist.ask(&[1.0, 2.0], 1, 1).is_none()));
        assert!(!shortlist.is_due());
        shortlist.ask(&[0.0, 2.0], 1, 1);
        assert!(shortlist.is_due() && shortlist.direction == [15.0, 32.0]);
        assert!(!ShortlistState { n_asked: 1000, ..ShortlistState::default() }.is_due());
    }
}
