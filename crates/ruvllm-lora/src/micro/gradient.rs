//! What tokens say of the factors.

use super::HeadRows;
use super::basis::Basis;
use super::gain::ahead;
use crate::dot::dot;

/// Computes the gradient of `-log p[target]` for a final hidden state, `Wᵀ·(p - y)`: `[n_embd]`. `likeliest` are tokens with their
/// probabilities; the target need not be among them, then its own counts as 0. `row` is as long and is written to.
pub fn of_state(likeliest: &[(u32, f32)], target: u32, head: &dyn HeadRows, gradient: &mut [f32], row: &mut [f32]) {
    gradient.fill(0.0);
    let mut add = |token: u32, error: f32| {
        head.row(token, row);
        gradient.iter_mut().zip(&*row).for_each(|(g, w)| *g += error * w);
    };
    let mut has_target = false;
    for &(token, probability) in ahead(likeliest, head) {
        has_target |= token == target;
        add(token, probability - f32::from(u8::from(token == target)));
    }
    if !has_target {
        add(target, -1.0);
    }
}

/// A gradient of two factors, or a sum of some.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pair {
    /// `[rank, n_in]`
    pub a: Vec<f32>,
    /// `[rank, n_out]`: `B` on its side.
    pub b: Vec<f32>,
    /// Values in the basis that steps are taken in; empty before it was turned.
    pub turned: Vec<f32>,
}

impl Pair {
    pub(super) fn zeros(rank: usize, n_in: usize, n_out: usize) -> Pair {
        Pair { a: vec![0.0; rank * n_in], b: vec![0.0; rank * n_out], turned: Vec::new() }
    }

    /// Becomes `share` of its own and `factor` times another.
    fn mix(&mut self, share: f32, other: &Pair, factor: f32) {
        let pairs = [(&mut self.a, &other.a), (&mut self.b, &other.b)];
        let is_turned = !self.turned.is_empty() && !other.turned.is_empty();
        let turned = is_turned.then_some((&mut self.turned, &other.turned));
        for (own, other) in pairs.into_iter().chain(turned) {
            own.iter_mut().zip(other).for_each(|(x, y)| *x = share * *x + factor * y);
        }
        if !is_turned {
            self.turned.clear();
        }
    }

    pub(super) fn norm(&self) -> f32 {
        (dot(&self.a, &self.a) + dot(&self.b, &self.b)).sqrt()
    }

    /// Shortens it to a length. Returns whether it holds numbers only.
    pub(super) fn clip(&mut self, longest: f32) -> bool {
        let norm = self.norm();
        if norm > longest {
            let factor = longest / norm;
            [&mut self.a, &mut self.b, &mut self.turned].into_iter().flatten().for_each(|x| *x *= factor);
        }
        norm.is_finite()
    }

    /// Computes it in a basis, unless that has been done.
    pub(super) fn turn(&mut self, basis: &Basis) {
        if self.turned.is_empty() {
            self.turned = basis.turn(&self.b);
        }
    }
}

/// Gradient of a MicroLoRA's factors by some tokens: a sum to which each adds.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradient {
    pub(super) state: Pair,
    /// Of the factors inside the last block, where there are some.
    pub(super) inside: Option<Pair>,
    /// How many of their kind this one stands for.
    pub(super) weight: f32,
}

impl Gradient {
    fn pairs(&self) -> impl Iterator<Item = &Pair> + Clone {
        [&self.state].into_iter().chain(&self.inside)
    }

    fn pairs_mut(&mut self) -> impl Iterator<Item = &mut Pair> {
        [&mut self.state].into_iter().chain(&mut self.inside)
    }

    /// Iterates over its values, in the order of [`MicroLora::values`](super::MicroLora::values).
    pub fn values(&self) -> impl Iterator<Item = &[f32]> + Clone {
        self.pairs().flat_map(|pair| [&pair.a[..], &pair.b[..]])
    }

    /// Returns its length over all values.
    pub fn norm(&self) -> f32 {
        self.pairs().map(|pair| pair.norm().powi(2)).sum::<f32>().sqrt()
    }

    /// Sets it to zero.
    pub fn clear(&mut self) {
        for pair in self.pairs_mut() {
            pair.a.fill(0.0);
            pair.b.fill(0.0);
            pair.turned.clear();
        }
    }

    /// Makes of many so few as there may be steps: of neighbours their mean, each counting as what it stands for, those first that stand for
    /// the least.
    ///
    /// # Panics
    /// If they are of different adapters, or there may be none.
    pub fn merge(all: &mut Vec<Gradient>, n_max: usize) {
        assert!(n_max > 0, "no step for {} gradients", all.len());
        while all.len() > n_max {
            let both = |i: &usize| all[*i].weight + all[*i + 1].weight;
            let at = (0..all.len() - 1).min_by(|i, j| both(i).total_cmp(&both(j))).expect("two at least");
            let other = all.remove(at + 1);
            let one = &mut all[at];
            let sum = one.weight + other.weight;
            let share = one.weight / sum;
            assert_eq!(one.inside.is_some(), other.inside.is_some(), "gradients are of different adapters");
            for (own, other) in one.pairs_mut().zip(other.pairs()) {
                own.mix(share, other, 1.0 - share);
            }
            one.weight = sum;
        }
    }
}
