//! The residual stream: branches join it, and blocks read it normed.

use std::ops::Range;

use ruvllm_kernels::matmul::{ActFormat, Acts, Chunking, MadeRows};

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

/// The first `n` rows of the stream, with a join that is still to come.
#[derive(Clone, Copy)]
pub(crate) struct Pending<'a> {
    pub join: Join<'a>,
    pub n: usize,
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

    /// Makes the join that is still to come, and returns the rows as `reader` wants them.
    pub(crate) fn read<'a>(
        &'a mut self,
        compute: &Compute,
        Pending { join, n }: Pending<'_>,
        reader: Reader<'_>,
        acts: &'a mut Acts,
        adapted: Adapted<'a>,
    ) -> Branches<'a> {
        let (len, n_embd) = (n * self.n_embd, self.n_embd);
        let joined = [&mut self.x[..len], &mut self.branch[..len], &mut self.second[..len]];
        let made = MadeRows { rows: &mut self.normed[..len], n, format: reader.format, chunking: Chunking::Rows };
        let make = |_: Range<usize>, normed: &mut [f32], joined: [&mut [f32]; 3]| {
            let [x, branch, second] = joined.map(|rows| rows.chunks_exact_mut(n_embd));
            for ((x, (branch, second)), normed) in x.zip(branch.zip(second)).zip(normed.chunks_exact_mut(n_embd)) {
                join.run(compute, [&mut *x, branch, second]);
                Norm::apply_any(reader.norm, compute, x, normed);
            }
        };
        let operand = Operand::made(compute, acts, adapted, made, joined, &make);
        Branches { operand, branch: &mut self.branch[..len], second: &mut self.second[..len] }
    }

    /// Makes the join that is still to come.
    pub(crate) fn settle(&mut self, compute: &Compute, Pending { join, n }: Pending<'_>) {
        let len = n * self.n_embd;
        let joined = [&mut self.x[..len], &mut self.branch[..len], &mut self.second[..len]];
        compute.threads.for_each_row_mut(n, 8, joined, |_, rows| join.run(compute, rows));
    }
}

impl Join<'_> {
    /// Joins one row of the stream with its branches.
    fn run(self, compute: &Compute, [x, branch, second]: [&mut [f32]; 3]) {
        let table = compute.kernels.norm;
        match self {
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
    }
}
