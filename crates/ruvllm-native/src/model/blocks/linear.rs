//! A weight matrix with an optional bias, and the activations it is multiplied with.

use std::ops::Range;

use ruvllm_cpu::NextShares;
use ruvllm_kernels::matmul::{
    self, ActFormat, Acts, Chunking, GroupedProduct, HeadShortlist, MadeRows, MakeChunk, Matrix, ShortlistOut, TopK,
};
use ruvllm_kernels::prefetch::PrefetchPlan;
use ruvllm_lora::{AdaptedRows, InputRows, LowRank};

use crate::kernels::Compute;

/// `y = W·x + b`. A clone shares its weights.
#[derive(Clone)]
pub(crate) struct Linear {
    matrix: Matrix,
    bias: Option<Vec<f32>>,
    /// Its number among those that adapters can change.
    id: usize,
    /// Prefetch plan: the weights that a pass reads after this one's and those multiplied together with it.
    pub next: NextShares,
}

impl Linear {
    pub(crate) fn new(id: usize, matrix: Matrix, bias: Option<Vec<f32>>) -> Linear {
        if let Some(bias) = &bias {
            assert_eq!(bias.len(), matrix.n_rows(), "bias and matrix differ in rows");
        }
        Linear { matrix, bias, id, next: NextShares::default() }
    }

    pub(crate) fn n_out(&self) -> usize {
        self.matrix.n_rows()
    }

    pub(crate) fn n_in(&self) -> usize {
        self.matrix.n_cols()
    }

    /// Returns what the matrix multiplies with.
    pub(crate) fn format(&self) -> ActFormat {
        self.matrix.act_format()
    }

    /// Returns the bytes one pass over the weights reads.
    pub(crate) fn weight_bytes(&self) -> usize {
        self.matrix.weight_bytes()
    }

    pub(crate) fn matrix(&self) -> &Matrix {
        &self.matrix
    }

    /// Returns the matrix to multiply with: the model's, unless a hook has another one in its place.
    fn in_use<'a>(&'a self, compute: &'a Compute) -> &'a Matrix {
        let other = compute.hooks.as_ref().and_then(|hooks| hooks.matrices.get(&self.id));
        other.unwrap_or(&self.matrix)
    }

    /// Returns its number among those that adapters can change.
    pub(crate) fn id(&self) -> usize {
        self.id
    }

    pub(crate) fn has_bias(&self) -> bool {
        self.bias.is_some()
    }

    fn add_bias(&self, out: &mut [f32]) {
        if let Some(bias) = &self.bias {
            for row in out.chunks_exact_mut(bias.len()) {
                row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
            }
        }
    }
}

/// What adapters change in the rows of a pass.
#[derive(Clone, Copy, Default)]
pub(crate) struct Adapted<'a> {
    /// The adapters of each row of the batch; `None` if no row has any.
    rows: Option<&'a AdaptedRows>,
    /// Which row of the batch each row at hand is; `None` if they are the first in order.
    picked: Option<&'a [u32]>,
}

impl<'a> Adapted<'a> {
    pub(crate) fn new(rows: &'a AdaptedRows) -> Adapted<'a> {
        Adapted { rows: (!rows.is_empty()).then_some(rows), picked: None }
    }

    /// The same for some rows of the batch.
    pub(crate) fn of_rows<'b>(self, picked: &'b [u32]) -> Adapted<'b>
    where
        'a: 'b,
    {
        Adapted { rows: self.rows, picked: Some(picked) }
    }
}

/// Rows `x`: `[n, k]` that several matrices are multiplied with; brought into each format once.
pub(crate) struct Operand<'a> {
    x: &'a [f32],
    n: usize,
    acts: &'a mut Acts,
    adapted: Adapted<'a>,
    started: bool,
}

impl<'a> Operand<'a> {
    pub(crate) fn new(x: &'a [f32], n: usize, acts: &'a mut Acts, adapted: Adapted<'a>) -> Operand<'a> {
        Operand { x, n, acts, adapted, started: false }
    }

    /// Makes an operand of rows that `make` writes chunk by chunk, each quantised at once: see [`Acts::make`].
    pub(crate) fn made<const N: usize>(
        compute: &Compute,
        acts: &'a mut Acts,
        adapted: Adapted<'a>,
        MadeRows { rows, n, format, chunking }: MadeRows<'a>,
        also: [&mut [f32]; N],
        make: &MakeChunk<'_, N>,
    ) -> Operand<'a> {
        let made = MadeRows { rows: &mut *rows, n, format, chunking };
        acts.make(compute.kernels.matmul, &compute.threads, made, also, make);
        Operand { x: rows, n, acts, adapted, started: true }
    }

    /// Makes an operand of the same rows for what reads them first; they are brought into a format anew for what reads them next.
    pub(crate) fn lend(&mut self) -> Operand<'_> {
        let started = std::mem::take(&mut self.started);
        Operand { x: self.x, n: self.n, acts: self.acts, adapted: self.adapted, started }
    }

    /// Makes an operand of other rows in the same activation buffer.
    pub(crate) fn replaced_by<'b>(self, x: &'b [f32]) -> Operand<'b>
    where
        'a: 'b,
    {
        Operand::new(x, self.n, self.acts, self.adapted)
    }

    /// Makes an operand of other rows in the same activation buffer, as [`Operand::made`] does for `linear`: each value by
    /// itself.
    pub(crate) fn replaced_by_made<'b>(
        self,
        compute: &Compute,
        x: &'b mut [f32],
        linear: &Linear,
        make: &(dyn Fn(Range<usize>, &mut [f32]) + Sync),
    ) -> Operand<'b>
    where
        'a: 'b,
    {
        let made = MadeRows { rows: x, n: self.n, format: linear.format(), chunking: Chunking::Anywhere };
        Operand::made(compute, self.acts, self.adapted, made, [], &|range, x, []| make(range, x))
    }

    /// Makes an operand of as many rows as are `picked` out of the batch.
    pub(crate) fn of_rows<'b>(self, picked: &'b [u32]) -> Operand<'b>
    where
        'a: 'b,
    {
        Operand { n: picked.len(), adapted: self.adapted.of_rows(picked), ..self }
    }

    pub(crate) fn n_rows(&self) -> usize {
        self.n
    }

    /// Returns what adapters change in its rows.
    pub(crate) fn adapted(&self) -> Adapted<'a> {
        self.adapted
    }

    fn prepare(&mut self, compute: &Compute, format: ActFormat) {
        let table = compute.kernels.matmul;
        if !self.started {
            self.acts.set(table, &compute.threads, self.x, self.n, self.x.len() / self.n, format);
            self.started = true;
        } else if !self.acts.has(format) {
            self.acts.add(table, &compute.threads, self.x, format);
        }
    }

    /// Writes `linear(x)` to `out`: `[n, n_out]`.
    pub(crate) fn apply(&mut self, compute: &Compute, linear: &Linear, out: &mut [f32]) {
        self.apply_many(compute, [(linear, out)]);
    }

    /// Writes `linear(x)` for several matrices, shared among the threads as one piece of work.
    pub(crate) fn apply_many<const N: usize>(&mut self, compute: &Compute, pairs: [(&Linear, &mut [f32]); N]) {
        self.apply_many_prefetching(compute, pairs, None);
    }

    /// [`Operand::apply_many`] while memory is prefetched that is read right after: what adapters read where there are some, else
    /// that of `plan`.
    pub(crate) fn apply_many_prefetching<const N: usize>(
        &mut self,
        compute: &Compute,
        pairs: [(&Linear, &mut [f32]); N],
        plan: Option<PrefetchPlan>,
    ) {
        for (linear, _) in &pairs {
            compute.observe(linear.id, self.x);
            self.prepare(compute, linear.in_use(compute).act_format());
        }
        if let Some((linear, _)) = pairs.first() {
            compute.threads.set_next(&linear.next);
        }
        let ids = pairs.each_ref().map(|(linear, _)| linear.id);
        let mut products = pairs.map(|(linear, out)| (linear, linear.in_use(compute), out));
        let mut work = products.each_mut().map(|(_, matrix, out)| (*matrix, &mut **out));
        match self.adapted.rows.map(|rows| rows.prefetch_plan(&ids)).or(plan) {
            None => matmul::matmul_many(&compute.threads, self.acts, &mut work),
            Some(plan) => matmul::matmul_many_prefetching(&compute.threads, self.acts, &mut work, &plan),
        }
        if let Some(rows) = self.adapted.rows {
            let how = LowRank { table: compute.kernels.lowrank, threads: &compute.threads };
            let products = products.each_mut().map(|(linear, _, out)| (linear.id, &mut **out));
            rows.apply(how, InputRows { x: self.x, n: self.n }, self.adapted.picked, products);
        }
        for (linear, _, out) in &mut products {
            linear.add_bias(out);
        }
    }

    /// Returns whether adapters change some of the rows.
    pub(crate) fn is_adapted(&self) -> bool {
        self.adapted.rows.is_some()
    }

    /// Writes the largest of each row of `linear(x)`, and -∞ where the matrix's shortlist rules them out: see
    /// [`HeadShortlist::multiply`]. Returns the share of the matrix that was read. Neither bias nor adapters are added.
    pub(crate) fn apply_shortlisted(
        mut self,
        compute: &Compute,
        linear: &Linear,
        shortlist: &HeadShortlist,
        top_k: &mut TopK,
        out: ShortlistOut<'_>,
    ) -> f32 {
        self.prepare(compute, ActFormat::Q16);
        compute.threads.set_next(&linear.next);
        shortlist.multiply(&compute.threads, &linear.matrix, self.acts, top_k, out)
    }

    /// Writes the approximate products of a matrix's shortlist to `out`, `[n, n_out]`: the same bits as
    /// [`Operand::apply_shortlisted`] gives.
    pub(crate) fn apply_approx(&mut self, compute: &Compute, shortlist: &HeadShortlist, out: &mut [f32]) {
        self.prepare(compute, ActFormat::Q16);
        shortlist.approx_logits(&compute.threads, self.acts, out);
    }

    /// Writes the products of a group of experts, shared among the threads as one piece of work: row `i` of each stack's results is
    /// that of `x[rows[i]]` and the expert whose run has `i`. The same bits as [`Operand::apply`] gives those rows.
    pub(crate) fn apply_experts<const N: usize>(
        &mut self,
        compute: &Compute,
        runs: impl Iterator<Item = ExpertRun> + Clone,
        rows: &[u32],
        mut stacks: [ExpertStack<'_>; N],
    ) {
        for stack in &stacks {
            for run in runs.clone() {
                let linear = &stack.linears[run.expert];
                if compute.hooks.is_some() {
                    self.rows(&rows[run.rows]).for_each(|x| compute.observe(linear.id, x));
                }
                self.prepare(compute, linear.in_use(compute).act_format());
            }
        }
        // The experts of the next layer are not known yet.
        compute.threads.set_next(&NextShares::default());
        let products = stacks.iter_mut().flat_map(|stack| {
            stack.of(runs.clone()).map(|(run, linear, out)| GroupedProduct {
                matrix: linear.in_use(compute),
                rows: &rows[run.rows],
                out,
            })
        });
        matmul::matmul_grouped(&compute.threads, self.acts, products);
        for (run, linear, out) in stacks.iter_mut().flat_map(|stack| stack.of(runs.clone())) {
            self.adapt(compute, linear, &rows[run.rows], out);
            linear.add_bias(out);
        }
    }

    /// Iterates over some of the rows.
    fn rows(&self, rows: &[u32]) -> impl Iterator<Item = &[f32]> {
        let k = self.x.len() / self.n;
        rows.iter().map(move |&row| &self.x[row as usize * k..][..k])
    }

    /// Adds to `out`, the products of a layer and some rows, what the rows' adapters do to the layer.
    fn adapt(&self, compute: &Compute, linear: &Linear, rows: &[u32], out: &mut [f32]) {
        let Some(adapted) = self.adapted.rows.filter(|adapted| adapted.touches(linear.id)) else { return };
        let how = LowRank { table: compute.kernels.lowrank, threads: &compute.threads };
        let (k, mut left) = (self.x.len() / self.n, out);
        for rows in rows.chunk_by(|row, next| row + 1 == *next) {
            let (out, rest) = std::mem::take(&mut left).split_at_mut(rows.len() * linear.n_out());
            left = rest;
            let (start, n) = (rows[0] as usize, rows.len());
            let picked = self.adapted.picked.map_or(rows, |picked| &picked[start..start + n]);
            let inputs = InputRows { x: &self.x[start * k..(start + n) * k], n };
            adapted.apply(how, inputs, Some(picked), [(linear.id, out)]);
        }
    }
}

/// Rows of a group that one expert works on.
#[derive(Clone, Debug)]
pub(crate) struct ExpertRun {
    /// The expert's number.
    pub expert: usize,
    /// Its rows among those of the group. Runs lie one after another.
    pub rows: Range<usize>,
}

/// One layer of each expert, and the results of a group.
pub(crate) struct ExpertStack<'a> {
    /// By expert; all of one shape.
    pub linears: &'a [Linear],
    /// `[rows of the group, n_out]`
    pub out: &'a mut [f32],
}

impl ExpertStack<'_> {
    /// Iterates over the experts of a group: each run with its layer and its part of the results.
    fn of(&mut self, runs: impl Iterator<Item = ExpertRun>) -> impl Iterator<Item = (ExpertRun, &Linear, &mut [f32])> {
        let (linears, mut left) = (self.linears, &mut *self.out);
        runs.map(move |run| {
            let linear = &linears[run.expert];
            let (out, rest) = std::mem::take(&mut left).split_at_mut(run.rows.len() * linear.n_out());
            left = rest;
            (run, linear, out)
        })
    }
}
