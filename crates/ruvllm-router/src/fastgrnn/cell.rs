//! The recurrence, forwards and backwards.

use std::ops::Range;

use crate::math::{add_outer, add_product, add_product_transposed, add_scaled, dot, sigmoid};

/// Sizes of a cell. Its parameters lie in one slice, in the order of [`Cell::blocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    /// Values of a chunk.
    pub n_in: usize,
    /// Values of the state.
    pub n_hidden: usize,
    /// Rank of `W`.
    pub rank_w: usize,
    /// Rank of `U`.
    pub rank_u: usize,
    /// Chunks of a query.
    pub n_steps: usize,
}

/// Where each matrix and vector lies.
pub(super) struct Blocks {
    /// `[rank_w, n_in]`
    pub w1: Range<usize>,
    /// `[n_hidden, rank_w]`
    pub w2: Range<usize>,
    /// `[rank_u, n_hidden]`
    pub u1: Range<usize>,
    /// `[n_hidden, rank_u]`
    pub u2: Range<usize>,
    /// `[n_steps, n_hidden]`
    pub b_z: Range<usize>,
    /// `[n_steps, n_hidden]`
    pub b_h: Range<usize>,
    /// ζ and ν before their sigmoid
    pub scalars: Range<usize>,
}

/// What a forward pass leaves for the backward pass, a row a step.
#[derive(Clone, Debug, Default)]
pub(super) struct Tape {
    /// `[n_steps, rank_w]`: `W₁·x`
    wx: Vec<f32>,
    /// `[n_steps, rank_u]`: `U₁·h`
    uh: Vec<f32>,
    /// `[n_steps, n_hidden]`
    z: Vec<f32>,
    /// `[n_steps, n_hidden]`
    c: Vec<f32>,
    /// `[n_steps + 1, n_hidden]`, from the state of zeros on
    h: Vec<f32>,
}

impl Cell {
    /// Returns where the parameters lie.
    pub(super) fn blocks(&self) -> Blocks {
        let mut end = 0;
        let mut next = |n: usize| {
            end += n;
            end - n..end
        };
        Blocks {
            w1: next(self.rank_w * self.n_in),
            w2: next(self.n_hidden * self.rank_w),
            u1: next(self.rank_u * self.n_hidden),
            u2: next(self.n_hidden * self.rank_u),
            b_z: next(self.n_steps * self.n_hidden),
            b_h: next(self.n_steps * self.n_hidden),
            scalars: next(2),
        }
    }

    /// Returns the number of parameters.
    pub(super) fn n_parameters(&self) -> usize {
        self.blocks().scalars.end
    }

    /// Chunk `t` of a query; the last one may be shorter.
    fn chunk<'x>(&self, x: &'x [f32], t: usize) -> &'x [f32] {
        &x[t * self.n_in..((t + 1) * self.n_in).min(x.len())]
    }

    /// Runs the recurrence over a query (`[≤ n_steps·n_in]`) and returns the last state: `[n_hidden]`.
    pub(super) fn forward<'t>(&self, parameters: &[f32], x: &[f32], tape: &'t mut Tape) -> &'t [f32] {
        let (at, n) = (self.blocks(), self.n_hidden);
        let [zeta, nu] = [parameters[at.scalars.start], parameters[at.scalars.start + 1]].map(sigmoid);
        tape.reset(self);
        for t in 0..self.n_steps {
            let chunk = self.chunk(x, t);
            let wx = &mut tape.wx[t * self.rank_w..][..self.rank_w];
            for (value, row) in wx.iter_mut().zip(parameters[at.w1.clone()].chunks_exact(self.n_in)) {
                *value = dot(&row[..chunk.len()], chunk);
            }
            let (past, rest) = tape.h.split_at_mut((t + 1) * n);
            let before = &past[t * n..];
            let uh = &mut tape.uh[t * self.rank_u..][..self.rank_u];
            add_product(uh, &parameters[at.u1.clone()], before);
            let z = &mut tape.z[t * n..][..n];
            add_product(z, &parameters[at.w2.clone()], wx);
            add_product(z, &parameters[at.u2.clone()], uh);
            let c = &mut tape.c[t * n..][..n];
            let b_z = &parameters[at.b_z.clone()][t * n..][..n];
            let b_h = &parameters[at.b_h.clone()][t * n..][..n];
            for i in 0..n {
                (z[i], c[i]) = (sigmoid(z[i] + b_z[i]), (z[i] + b_h[i]).tanh());
                rest[i] = (zeta * (1.0 - z[i]) + nu) * c[i] + z[i] * before[i];
            }
        }
        tape.last(self)
    }

    /// Adds the gradient of the parameters to `gradient`, given that of the last state in `d_h`, which is used up.
    pub(super) fn backward(&self, parameters: &[f32], x: &[f32], tape: &Tape, d_h: &mut [f32], gradient: &mut [f32]) {
        let (at, n) = (self.blocks(), self.n_hidden);
        let [zeta, nu] = [parameters[at.scalars.start], parameters[at.scalars.start + 1]].map(sigmoid);
        let (mut d_sum, mut d_wx, mut d_uh) = (vec![0.0; n], vec![0.0; self.rank_w], vec![0.0; self.rank_u]);
        for t in (0..self.n_steps).rev() {
            let before = &tape.h[t * n..][..n];
            let (z, c) = (&tape.z[t * n..][..n], &tape.c[t * n..][..n]);
            let (mut d_zeta, mut d_nu) = (0.0, 0.0);
            for i in 0..n {
                d_zeta += d_h[i] * (1.0 - z[i]) * c[i];
                d_nu += d_h[i] * c[i];
                let d_z = d_h[i] * (before[i] - zeta * c[i]) * z[i] * (1.0 - z[i]);
                let d_c = d_h[i] * (zeta * (1.0 - z[i]) + nu) * (1.0 - c[i] * c[i]);
                gradient[at.b_z.start + t * n + i] += d_z;
                gradient[at.b_h.start + t * n + i] += d_c;
                d_sum[i] = d_z + d_c;
                d_h[i] *= z[i];
            }
            gradient[at.scalars.start] += d_zeta * zeta * (1.0 - zeta);
            gradient[at.scalars.start + 1] += d_nu * nu * (1.0 - nu);
            d_wx.fill(0.0);
            d_uh.fill(0.0);
            add_product_transposed(&mut d_wx, &parameters[at.w2.clone()], &d_sum);
            add_product_transposed(&mut d_uh, &parameters[at.u2.clone()], &d_sum);
            add_outer(&mut gradient[at.w2.clone()], &d_sum, &tape.wx[t * self.rank_w..][..self.rank_w]);
            add_outer(&mut gradient[at.u2.clone()], &d_sum, &tape.uh[t * self.rank_u..][..self.rank_u]);
            let chunk = self.chunk(x, t);
            for (row, &d) in gradient[at.w1.clone()].chunks_exact_mut(self.n_in).zip(&d_wx) {
                add_scaled(row, d, chunk);
            }
            add_outer(&mut gradient[at.u1.clone()], &d_uh, before);
            add_product_transposed(d_h, &parameters[at.u1.clone()], &d_uh);
        }
    }
}

impl Tape {
    /// The state after the last step.
    pub(super) fn last(&self, cell: &Cell) -> &[f32] {
        &self.h[cell.n_steps * cell.n_hidden..]
    }

    /// Brings every row to zeros and to the cell's size.
    fn reset(&mut self, cell: &Cell) {
        let sizes = [
            (&mut self.wx, cell.n_steps * cell.rank_w),
            (&mut self.uh, cell.n_steps * cell.rank_u),
            (&mut self.z, cell.n_steps * cell.n_hidden),
            (&mut self.c, cell.n_steps * cell.n_hidden),
            (&mut self.h, (cell.n_steps + 1) * cell.n_hidden),
        ];
        for (values, n) in sizes {
            values.clear();
            values.resize(n, 0.0);
        }
    }
}
