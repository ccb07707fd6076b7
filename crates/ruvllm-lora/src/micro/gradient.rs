//! What a token, or the mean of some, says of both factors.

use super::HeadRows;
use super::basis::Basis;

/// Computes the gradient of `-log p[target]` for a final hidden state, `Wᵀ·(p - y)`: `[n_embd]`. `likeliest` are tokens with their
/// probabilities; the target need not be among them, then its own counts as 0. `row` is as long and is written to.
pub fn of_state(likeliest: &[(u32, f32)], target: u32, head: &dyn HeadRows, gradient: &mut [f32], row: &mut [f32]) {
    gradient.fill(0.0);
    let mut add = |token: u32, error: f32| {
        head.row(token, row);
        gradient.iter_mut().zip(&*row).for_each(|(g, w)| *g += error * w);
    };
    let mut has_target = false;
    for &(token, probability) in likeliest {
        has_target |= token == target;
        add(token, probability - f32::from(u8::from(token == target)));
    }
    if !has_target {
        add(target, -1.0);
    }
}

/// A gradient of both factors, with the buffers it was computed in; made once and used again.
#[derive(Clone, Debug)]
pub struct Gradient {
    /// `[rank, n_embd]`
    pub(super) a: Vec<f32>,
    /// `[rank, n_embd]`: `B` on its side.
    pub(super) b: Vec<f32>,
    /// The same in the basis that steps are taken in; empty before it was turned.
    pub(super) turned: Vec<f32>,
    /// Of the loss with respect to the changed hidden state.
    pub(super) hidden: Vec<f32>,
    pub(super) row: Vec<f32>,
}

impl Gradient {
    pub(super) fn zeros(rank: usize, n_embd: usize) -> Gradient {
        let zeros = |n: usize| vec![0.0; n * n_embd];
        Gradient { a: zeros(rank), b: zeros(rank), turned: Vec::new(), hidden: zeros(1), row: zeros(1) }
    }

    /// Returns the gradient of `A`: `[rank, n_embd]`.
    pub fn a(&self) -> &[f32] {
        &self.a
    }

    /// Returns the gradient of `Bᵀ`: `[rank, n_embd]`.
    pub fn b(&self) -> &[f32] {
        &self.b
    }

    /// Sets it to zero.
    pub fn clear(&mut self) {
        self.a.fill(0.0);
        self.b.fill(0.0);
        self.turned.clear();
    }

    /// Adds another one, times a factor: a step for many tokens takes their mean.
    ///
    /// # Panics
    /// If it is of another adapter.
    pub fn add(&mut self, other: &Gradient, factor: f32) {
        assert_eq!(self.a.len(), other.a.len(), "the gradient is of another adapter");
        self.turned.clear();
        for (own, other) in [(&mut self.a, &other.a), (&mut self.b, &other.b)] {
            own.iter_mut().zip(other).for_each(|(x, y)| *x += factor * y);
        }
    }

    /// Returns the mean of some: one step for all of them.
    ///
    /// # Panics
    /// If there are none, or they are of different adapters.
    pub fn mean(all: &[Gradient]) -> Gradient {
        let mut mean = all.first().expect("a mean of something").clone();
        mean.clear();
        all.iter().for_each(|one| mean.add(one, 1.0 / all.len() as f32));
        if all.iter().all(|one| !one.turned.is_empty()) {
            mean.turned = vec![0.0; mean.b.len()];
            for one in all {
                mean.turned.iter_mut().zip(&one.turned).for_each(|(x, y)| *x += y / all.len() as f32);
            }
        }
        mean
    }

    /// Returns its Euclidean length.
    pub fn norm(&self) -> f64 {
        self.a.iter().chain(&self.b).map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt()
    }

    /// Multiplies it by a factor.
    pub(super) fn shorten(&mut self, factor: f32) {
        [&mut self.a, &mut self.b, &mut self.turned].into_iter().flatten().for_each(|x| *x *= factor);
    }

    /// Computes it in a basis, unless that has been done.
    pub(super) fn turn(&mut self, basis: &Basis) {
        if self.turned.is_empty() {
            self.turned = basis.turn(&self.b);
        }
    }
}
