//! Two factors whose product learns: `B·A`, with the memory of their rule.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::gradient::Pair;
use super::optimizer::{Moments, Update};
use super::{ALL_RANK_MAX, Basis, UpdateOptions};
use crate::dot::dot;

/// What `A` makes of a row: `[rank]`, zeros behind.
pub(super) type Small = [f32; ALL_RANK_MAX];

/// `B·A` of a rank.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Factors {
    pub n_in: usize,
    pub n_out: usize,
    /// `[rank, n_in]`
    pub a: Vec<f32>,
    /// `[rank, n_out]`: `B` on its side.
    pub b: Vec<f32>,
    pub moments: Moments,
}

impl Factors {
    pub(super) fn zeros(rank: usize, n_in: usize, n_out: usize) -> Factors {
        let (a, b) = (vec![0.0; rank * n_in], vec![0.0; rank * n_out]);
        Factors { n_in, n_out, a, b, moments: Moments::default() }
    }

    /// Makes some with `A` uniform within ±`bound` and `B` of zeros, which change nothing.
    pub(super) fn drawn(rank: usize, n_in: usize, n_out: usize, bound: f32, seed: u64) -> Factors {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut draw = || (rng.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0;
        let mut factors = Factors::zeros(rank, n_in, n_out);
        factors.a.iter_mut().for_each(|x| *x = bound * draw());
        factors
    }

    pub(super) fn rank(&self) -> usize {
        self.a.len() / self.n_in
    }

    /// Returns `A·x`: `x` is `[n_in]`.
    pub(super) fn shrink(&self, x: &[f32]) -> Small {
        let mut t = [0.0; ALL_RANK_MAX];
        t.iter_mut().zip(self.a.chunks_exact(self.n_in)).for_each(|(t, a)| *t = dot(a, x));
        t
    }

    /// Adds values from `first` on of `B·t` to `out`.
    pub(super) fn expand(&self, t: &Small, first: usize, out: &mut [f32]) {
        for (t, b) in t.iter().zip(self.b.chunks_exact(self.n_out)) {
            out.iter_mut().zip(&b[first..]).for_each(|(y, b)| *y += t * b);
        }
    }

    /// Adds the gradient of a row to a sum: `x` is what `A` reads, less a centre where there is one, `t` is `A·x`, and `d` the gradient of what
    /// `factor·B·t` was added to.
    pub(super) fn add_gradient(&self, x: &[f32], t: &Small, d: &[f32], factor: f32, sum: &mut Pair) {
        for (i, t) in t.iter().take(self.rank()).enumerate() {
            let (of_a, of_b) = (i * self.n_in..(i + 1) * self.n_in, i * self.n_out..(i + 1) * self.n_out);
            let (from_b, t) = (factor * dot(&self.b[of_b.clone()], d), factor * t);
            sum.a[of_a].iter_mut().zip(x).for_each(|(sum, x)| *sum += from_b * x);
            sum.b[of_b].iter_mut().zip(d).for_each(|(sum, d)| *sum += t * d);
        }
    }

    /// Goes a step. In a basis `steps` has what `B` moves by there; it is to be turned back.
    pub(super) fn step(
        &mut self,
        gradient: &mut Pair,
        options: &UpdateOptions,
        basis: Option<&Basis>,
        steps: &mut [f32],
    ) {
        let (b, of_b) = match basis {
            None => (&mut self.b[..], &gradient.b),
            Some(basis) => {
                gradient.turn(basis);
                self.b.iter_mut().for_each(|x| *x *= options.keep());
                (steps, &gradient.turned)
            }
        };
        let a = Update { values: &mut self.a, gradient: &gradient.a };
        self.moments.step(options, a, Update { values: b, gradient: of_b });
    }

    /// Moves towards others of the same shape: `a += (a' - a)·share`, `b += (ratio·b' - b)·share`.
    pub(super) fn blend(&mut self, other: &Factors, ratio: f32, share: f32) {
        self.a.iter_mut().zip(&other.a).for_each(|(x, y)| *x += (y - *x) * share);
        self.b.iter_mut().zip(&other.b).for_each(|(x, y)| *x += (y * ratio - *x) * share);
    }

    /// Becomes `keep` of its own product and `share` of another's, the best of this rank (by singular values) where the sum has more.
    pub(super) fn absorb(&mut self, keep: f32, other: &Factors, share: f32) {
        let (n_in, n_out, rank) = (self.n_in, self.n_out, self.rank());
        let (mut a, mut b): (Vec<f64>, Vec<&[f32]>) = (Vec::new(), Vec::new());
        let mut factors = Vec::new();
        for (one, factor) in [(&*self, keep), (other, share)] {
            for (row, column) in one.a.chunks_exact(n_in).zip(one.b.chunks_exact(n_out)) {
                // A rank that changes nothing has no direction.
                if factor != 0.0 && row.iter().any(|&x| x != 0.0) && column.iter().any(|&x| x != 0.0) {
                    a.extend(row.iter().copied().map(f64::from));
                    b.push(column);
                    factors.push(f64::from(factor));
                }
            }
        }
        let n = b.len();
        let at = |i: usize| b.iter().zip(&factors).map(move |(column, factor)| f64::from(column[i]) * factor);
        let product: Vec<f64> = (0..n_out).flat_map(at).collect();
        let (a, b, n) = match n > rank {
            true => {
                let (a, b) = crate::merge::of_product(&a, &product, n, n_in, rank);
                (a, b, rank)
            }
            false => (a, product, n),
        };
        self.a.fill(0.0);
        self.b.fill(0.0);
        self.a.iter_mut().zip(a).for_each(|(to, x)| *to = x as f32);
        for (i, row) in b.chunks_exact(n.max(1)).enumerate() {
            row.iter().enumerate().for_each(|(j, &x)| self.b[j * n_out + i] = x as f32);
        }
    }

    /// Returns some of both ranks that change what both change, the other's `B` times `ratio`; they do not learn.
    pub(super) fn beside(&self, other: &Factors, ratio: f32) -> Factors {
        let b = self.b.iter().copied().chain(other.b.iter().map(|x| x * ratio)).collect();
        Factors { a: [&self.a[..], &other.a].concat(), b, moments: Moments::default(), ..*self }
    }

    /// Returns the same product without what is kept for learning.
    pub(super) fn frozen(&self) -> Factors {
        Factors { a: self.a.clone(), b: self.b.clone(), moments: Moments::default(), ..*self }
    }
}
