//! Application: what adapters add to the rows of a batch, each row its own.
//!
//! ```text
//! for each layer of a product and each run of rows with the same adapters, in parallel:
//!     y[row] *= 1 + Σ scale·gain                       DoRA only
//!     for each adapter of the row:  t = A·x[row];  y[row] += B·(scale·weight·multiplier ⊙ t)
//! ```
//! A run and a layer are one piece of work: both steps of it are done by one worker, so there is one region behind that
//! of the base's product and none where no row is changed. Every row is computed in an order of its own. What a few rows with
//! different adapters cost is reading the factors, so these are asked for while the base multiplies ([`AdaptedRows::beside`]).

use std::ops::Range;
use std::sync::Arc;

use ruvllm_cpu::{SharedSlice, ThreadPool};
use ruvllm_kernels::lowrank::LowRankKernels;
use ruvllm_kernels::prefetch::PrefetchPlan;
use ruvllm_kvcache::NamespaceBuilder;

use crate::adapter::SCALE_MAX;
use crate::bound::{BoundAdapter, Targets};
use crate::error::{LoraError, LoraErrorKind, invalid};
use crate::gate::Gate;
use crate::packed::Part;

/// Most adapters of one sequence.
pub const SET_MAX: usize = 8;

/// Rows that are worked on together: their inputs share what is loaded of the factors.
const RUN_ROWS: usize = 8;
/// Ranks that are worked on together, in a buffer on the stack.
const RANKS: usize = 32;
/// Most layers of one product.
const PRODUCTS_MAX: usize = 4;

/// The adapters of a sequence with their scales; the default is none. A clone shares them.
#[derive(Clone, Debug, Default)]
pub struct AdapterSet(Option<Arc<Members>>);

#[derive(Debug)]
struct Members {
    all: Vec<(Arc<BoundAdapter>, f32)>,
    gate: Option<Arc<Gate>>,
    identity: [u8; 32],
}

impl AdapterSet {
    /// Makes a set of adapters for one model. An adapter of scale 0 is left out: it does nothing.
    ///
    /// # Errors
    /// There are more than [`SET_MAX`], they are for different models, or a scale is no sensible number.
    pub fn new(adapters: Vec<(Arc<BoundAdapter>, f32)>) -> Result<AdapterSet, LoraError> {
        check(&adapters)?;
        let all: Vec<_> = adapters.into_iter().filter(|(_, scale)| *scale != 0.0).collect();
        match all.is_empty() {
            true => Ok(AdapterSet::default()),
            false => Ok(AdapterSet::of(all, None)),
        }
    }

    /// Makes a set of adapters whose scales are multiplied, token by token, with the weights of a gate.
    ///
    /// # Errors
    /// As [`AdapterSet::new`]; the gate weighs another number of adapters.
    pub fn gated(adapters: Vec<(Arc<BoundAdapter>, f32)>, gate: Arc<Gate>) -> Result<AdapterSet, LoraError> {
        check(&adapters)?;
        let n = gate.shape().n_adapters;
        match adapters.len() == n {
            true => Ok(AdapterSet::of(adapters, Some(gate))),
            false => Err(invalid(format!("the gate weighs {n} adapters, there are {}", adapters.len()))),
        }
    }

    fn of(all: Vec<(Arc<BoundAdapter>, f32)>, gate: Option<Arc<Gate>>) -> AdapterSet {
        let describe = |builder: NamespaceBuilder, (adapter, scale): &(Arc<BoundAdapter>, f32)| {
            let format = format!("{:?}", adapter.format());
            builder.part(&format, &adapter.content()).part("scale", &scale.to_le_bytes())
        };
        let builder = all.iter().fold(NamespaceBuilder::new("adapters 1"), describe);
        let builder = gate.iter().fold(builder, |builder, gate| builder.part("gate", &gate.content()));
        AdapterSet(Some(Arc::new(Members { all, gate, identity: builder.identity() })))
    }

    /// Returns what weighs its adapters, if something does.
    pub fn gate(&self) -> Option<&Arc<Gate>> {
        self.0.as_ref()?.gate.as_ref()
    }

    /// Returns whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Iterates over its adapters and their scales.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<BoundAdapter>, f32)> {
        self.0.iter().flat_map(|members| members.all.iter().map(|(adapter, scale)| (adapter, *scale)))
    }

    /// Returns a hash of what it does: contents, formats and scales in order, and the gate; `None` if that is nothing.
    pub fn identity(&self) -> Option<[u8; 32]> {
        self.0.as_ref().map(|members| members.identity)
    }

    /// Returns whether its adapters were fitted to these layers; an empty set fits all.
    pub fn fits(&self, targets: &Arc<Targets>) -> bool {
        self.iter().all(|(adapter, _)| Arc::ptr_eq(adapter.targets(), targets))
    }

    /// Iterates over what its adapters do to a layer: which one, what, and how strong.
    fn parts(&self, target: usize) -> impl Iterator<Item = (usize, Part<'_>, f32)> {
        self.iter().enumerate().filter_map(move |(i, (adapter, scale))| Some((i, adapter.part(target)?, scale)))
    }
}

/// Checks that adapters can be one set.
fn check(adapters: &[(Arc<BoundAdapter>, f32)]) -> Result<(), LoraError> {
    if adapters.len() > SET_MAX {
        let line = format!("{} adapters at once, at most {SET_MAX} can be", adapters.len());
        return Err(LoraError::new(LoraErrorKind::Limit, line));
    }
    if let Some((_, scale)) = adapters.iter().find(|(_, scale)| !scale.is_finite() || scale.abs() > SCALE_MAX) {
        return Err(invalid(format!("an adapter's scale is {scale}; choose a number up to {SCALE_MAX}")));
    }
    if adapters.windows(2).any(|pair| !Arc::ptr_eq(pair[0].0.targets(), pair[1].0.targets())) {
        return Err(invalid("the adapters are for different models"));
    }
    Ok(())
}

impl PartialEq for AdapterSet {
    /// Compares what they do.
    fn eq(&self, other: &AdapterSet) -> bool {
        self.identity() == other.identity()
    }
}

/// Kernels and threads of low-rank products.
#[derive(Clone, Copy, Debug)]
pub struct LowRank<'a> {
    /// Kernels.
    pub table: &'a LowRankKernels,
    /// Threads.
    pub threads: &'a ThreadPool,
}

/// Rows that layers read.
#[derive(Clone, Copy, Debug)]
pub struct InputRows<'a> {
    /// `[n, k]`
    pub x: &'a [f32],
    /// Number of rows.
    pub n: usize,
}

/// Adapters of a batch's rows. It is filled again for every pass and keeps its memory.
#[derive(Debug, Default)]
pub struct AdaptedRows {
    /// Different sets, in order of their first row.
    sets: Vec<AdapterSet>,
    /// Rows that follow each other and have the same set.
    runs: Vec<(Range<usize>, usize)>,
    /// The set of each row; `u32::MAX` for none.
    of_row: Vec<u32>,
    /// Where each row's weights begin in `weights`; empty where no row has a gate.
    weights_at: Vec<u32>,
    /// What gates say, a weight an adapter.
    weights: Vec<f32>,
}

/// A linear layer's number and its results: `[n, n_out]`.
pub type Product<'a> = (usize, &'a mut [f32]);

impl AdaptedRows {
    /// Makes room for batches of `n_rows` of `n_seqs` sequences.
    pub fn new(n_rows: usize, n_seqs: usize) -> AdaptedRows {
        AdaptedRows {
            sets: Vec::with_capacity(n_seqs),
            runs: Vec::with_capacity(n_rows / RUN_ROWS + n_seqs),
            of_row: Vec::with_capacity(n_rows),
            weights_at: Vec::new(),
            weights: Vec::new(),
        }
    }

    /// Forgets the last batch.
    pub fn clear(&mut self) {
        self.sets.clear();
        self.runs.clear();
        self.of_row.clear();
        self.weights_at.clear();
        self.weights.clear();
    }

    /// Appends `n` rows that have `set`, whose gate said `weights`: `[n, n_adapters]`, row by row.
    ///
    /// # Panics
    /// If the set has no gate, or the weights are not as many.
    pub fn push_gated(&mut self, n: usize, set: &AdapterSet, weights: &[f32]) {
        let n_adapters = set.gate().expect("a set with a gate").shape().n_adapters;
        assert_eq!(weights.len(), n * n_adapters, "{} weights of {n} rows", weights.len());
        let (first, at) = (self.of_row.len(), self.weights.len());
        self.push(n, set);
        self.weights_at.resize(first, 0);
        self.weights_at.extend((0..n).map(|row| (at + row * n_adapters) as u32));
        self.weights.extend_from_slice(weights);
    }

    /// Returns what the gates of some rows that have the same set say: `[rows, n_adapters]`, nothing without a gate.
    fn weights(&self, rows: Range<usize>, set: &AdapterSet) -> &[f32] {
        match set.gate() {
            None => &[],
            Some(gate) => {
                let at = self.weights_at[rows.start] as usize;
                &self.weights[at..at + rows.len() * gate.shape().n_adapters]
            }
        }
    }

    /// Appends `n` rows that have `set`; where it has a gate, see [`AdaptedRows::push_gated`].
    pub fn push(&mut self, n: usize, set: &AdapterSet) {
        let first = self.of_row.len();
        if set.is_empty() {
            self.of_row.resize(first + n, u32::MAX);
            return;
        }
        let at = self.sets.iter().position(|other| other == set).unwrap_or_else(|| {
            self.sets.push(set.clone());
            self.sets.len() - 1
        });
        self.of_row.resize(first + n, at as u32);
        let starts = (first..first + n).step_by(RUN_ROWS);
        self.runs.extend(starts.map(|start| (start..(start + RUN_ROWS).min(first + n), at)));
    }

    /// Returns whether no row has adapters.
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    /// Adds to the products of some rows what the rows' adapters do to those layers. `picked` says which row of the
    /// batch each of them is; without it they are the first ones in order.
    ///
    /// # Panics
    /// If there are more than four layers, a row does not exist, or a shape is not that of the layer.
    pub fn apply<const N: usize>(
        &self,
        LowRank { table, threads }: LowRank<'_>,
        InputRows { x, n }: InputRows<'_>,
        picked: Option<&[u32]>,
        products: [Product<'_>; N],
    ) {
        assert!(N <= PRODUCTS_MAX, "{N} layers of one product");
        let touched = products.each_ref().map(|(target, _)| self.touches(*target));
        if n == 0 || !touched.contains(&true) {
            return;
        }
        let k = x.len() / n;
        let n_units = picked.map_or(self.runs.len(), <[u32]>::len);
        let outs = products.map(|(target, out)| (target, out.len() / n, SharedSlice::new(out)));
        let layers = || outs.iter().zip(touched).filter(|(_, touched)| *touched).map(|(out, _)| out);
        let n_layers = layers().count();
        let run = |units: Range<usize>, _: usize| {
            for unit in units {
                // A run's layers lie behind each other in its adapter.
                let (unit, layer) = (unit / n_layers, unit % n_layers);
                let (target, n_out, out) = layers().nth(layer).expect("a unit is of a touched layer");
                let (rows, set, first) = match picked {
                    None => {
                        let (rows, set) = self.runs[unit].clone();
                        (rows.clone(), set, rows.start)
                    }
                    Some(rows) => match self.of_row[rows[unit] as usize] {
                        u32::MAX => continue,
                        set => (unit..unit + 1, set as usize, rows[unit] as usize),
                    },
                };
                let weights = self.weights(first..first + rows.len(), &self.sets[set]);
                // SAFETY: a unit is some rows of one layer, which no other unit has.
                let y = unsafe { out.slice(rows.start * n_out..rows.end * n_out) };
                let gated = Gated { set: &self.sets[set], weights };
                change(table, gated, *target, InputRows { x: &x[rows.start * k..rows.end * k], n: rows.len() }, y);
            }
        };
        match n <= RUN_ROWS {
            true => threads.for_each_short(n_units * n_layers, 1, &run),
            false => threads.for_each(n_units * n_layers, 1, &run),
        }
    }

    /// Returns the memory that [`AdaptedRows::apply`] will read of adapters for some layers, in its order, for workers to prefetch while
    /// they multiply.
    pub fn prefetch_plan(&self, targets: &[usize]) -> PrefetchPlan {
        let mut plan = PrefetchPlan::default();
        for set in &self.sets {
            for (adapter, _) in set.iter() {
                let parts = targets.iter().filter_map(|&target| adapter.part(target));
                parts.for_each(|part| plan.push(part.addresses()));
            }
        }
        plan
    }

    /// Returns whether any row has an adapter that changes a layer.
    pub fn touches(&self, target: usize) -> bool {
        self.sets.iter().any(|set| set.parts(target).next().is_some())
    }
}

/// A set with the weights of its gate for some rows.
#[derive(Clone, Copy)]
struct Gated<'a> {
    set: &'a AdapterSet,
    /// `[n, n_adapters]`; nothing without a gate.
    weights: &'a [f32],
}

/// Changes the results `y`: `[n, n_out]` of a layer for input rows.
fn change(
    table: &LowRankKernels,
    Gated { set, weights }: Gated<'_>,
    target: usize,
    InputRows { x, n }: InputRows<'_>,
    y: &mut [f32],
) {
    let k = x.len() / n;
    let n_out = y.len() / n;
    let n_weights = weights.len() / n;
    // Without a gate a row's strength is the scale, untouched.
    let strength = |row: usize, i: usize, scale: f32| match n_weights {
        0 => scale,
        _ => scale * weights[row * n_weights + i],
    };
    if set.parts(target).any(|(_, part, _)| part.gain().is_some()) {
        for (row, y) in y.chunks_exact_mut(n_out).enumerate() {
            for (j, y) in y.iter_mut().enumerate() {
                let gains = set.parts(target);
                let gains = gains.filter_map(|(i, part, scale)| Some(strength(row, i, scale) * part.gain()?[j]));
                *y *= 1.0 + gains.sum::<f32>();
            }
        }
    }
    let mut buffer = [0.0; RUN_ROWS * RANKS];
    for (i, part, scale) in set.parts(target) {
        let mut first = 0;
        while first < part.rank {
            let ranks = first..part.rank.min(first + RANKS);
            let t = &mut buffer[..n * ranks.len()];
            table.shrink(part.a(ranks.clone()), ranks.len(), x, k, t);
            for (row, t) in t.chunks_exact_mut(ranks.len()).enumerate() {
                let strength = strength(row, i, scale);
                t.iter_mut().zip(&part.multipliers()[ranks.clone()]).for_each(|(t, m)| *t *= strength * m);
            }
            table.expand(part.b(ranks.clone()), ranks.len(), t, y, n_out);
            first = ranks.end;
        }
    }
}

#[cfg(test)]
mod tests;
