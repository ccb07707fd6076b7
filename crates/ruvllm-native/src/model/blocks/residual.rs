//! The residual stream: branches join it, and blocks read it normed.

use std::ops::Range;

use ruvllm_kernels::matmul::{ActFormat, Acts, Cut};
use ruvllm_kernels::threads::Shared;

use super::{Adapted, Norm, Operand};
use crate::kernels::Compute;

/// The stream of a pass and what is computed from it: `[n_rows_max, n_embd]` each.
pub(crate) struct Residual {
    n_embd: usize,
    pub x: Vec<f32>,
    /// Input of the next block.
    pub normed: Vec<f32>,
    /// The last block's output, and that of a second one beside it.
    pub branch: Vec<f32>,
    pub second: Vec<f32>,
}

/// How branches that have been computed join the stream, which they do when it is read next: row by row, together with
/// the norm and the quantisation, by whoever has the row near.
#[derive(Clone, Copy)]
pub(crate) enum Join<'a> {
    /// Nothing is left to join.
    Nothing,
    /// `x += scale · norm(branch)`.
    Branch { norm: Option<&'a Norm>, scale: f32 },
    /// `x = x + branch + second`.
    Both,
    /// `x = norm(branch + x)`.
    Replace(Option<&'a Norm>),
}

/// What reads the stream: after which norm, and what it multiplies with first.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub norm: Option<&'a Norm>,
    pub format: ActFormat,
}

/// The places that a block reads from and writes to beside the stream.
pub(crate) struct Branches<'a> {
    pub operand: Operand<'a>,
    pub branch: &'a mut [f32],
    pub second: &'a mut [f32],
}

impl Residual {
    pub(crate) fn new(n_rows_max: usize, n_embd: usize) -> Residual {
        let rows = || vec![0.0; n_rows_max * n_embd];
        Residual { n_embd, x: rows(), normed: rows(), branch: rows(), second: rows() }
    }

    /// Joins what is left to join to the first `n` rows, and returns them as `reader` wants them.
    pub(crate) fn read<'a>(
        &'a mut self,
        compute: &Compute,
        (join, n): (Join<'_>, usize),
        reader: Reader<'_>,
        acts: &'a mut Acts,
        adapted: Adapted<'a>,
    ) -> Branches<'a> {
        let (len, n_embd) = (n * self.n_embd, self.n_embd);
        let rows = Joining::new(&mut self.x[..len], &mut self.branch[..len], &mut self.second[..len]);
        let normed = &mut self.normed[..len];
        let make = |range: Range<usize>, normed: &mut [f32]| {
            for (at, normed) in range.step_by(n_embd).zip(normed.chunks_exact_mut(n_embd)) {
                // SAFETY: each row is made once.
                let x = unsafe { rows.join(compute, join, at..at + n_embd) };
                Norm::apply_any(reader.norm, compute, x, normed);
            }
        };
        let operand = Operand::made(compute, (normed, n), acts, adapted, (reader.format, Cut::Rows), &make);
        Branches { operand, branch: &mut self.branch[..len], second: &mut self.second[..len] }
    }

    /// Joins what is left to join to the first `n` rows.
    pub(crate) fn settle(&mut self, compute: &Compute, join: Join<'_>, n: usize) {
        let (len, n_embd) = (n * self.n_embd, self.n_embd);
        let rows = Joining::new(&mut self.x[..len], &mut self.branch[..len], &mut self.second[..len]);
        compute.threads.for_each(n, 8, &|range, _| {
            for row in range {
                // SAFETY: `for_each` hands out each row once.
                unsafe { rows.join(compute, join, row * n_embd..(row + 1) * n_embd) };
            }
        });
    }
}

/// A stream and its branches while the threads join them.
struct Joining<'a> {
    x: Shared<'a, f32>,
    branch: Shared<'a, f32>,
    second: Shared<'a, f32>,
}

impl<'a> Joining<'a> {
    fn new(x: &'a mut [f32], branch: &'a mut [f32], second: &'a mut [f32]) -> Joining<'a> {
        Joining { x: Shared::new(x), branch: Shared::new(branch), second: Shared::new(second) }
    }

    /// Joins one row and returns it.
    ///
    /// # Safety
    /// Nobody else may have the row at the same time.
    #[allow(clippy::mut_from_ref, reason = "whoever has a row writes it")]
    unsafe fn join(&self, compute: &Compute, join: Join<'_>, row: Range<usize>) -> &mut [f32] {
        let table = compute.kernels.norm;
        // SAFETY: the caller's promise.
        let [x, branch, second] = [&self.x, &self.branch, &self.second].map(|rows| unsafe { rows.slice(row.clone()) });
        match join {
            Join::Nothing => {}
            Join::Branch { norm, scale } => {
                if let Some(norm) = norm {
                    norm.apply_in_place(compute, branch);
                }
                match scale {
                    1.0 => table.add(x, branch),
                    _ => x.iter_mut().zip(branch).for_each(|(x, b)| *x += scale * *b),
                }
            }
            Join::Both => {
                table.add(x, branch);
                table.add(x, second);
            }
            Join::Replace(norm) => {
                table.add(branch, x);
                Norm::apply_any(norm, compute, branch, x);
            }
        }
        x
    }
}
