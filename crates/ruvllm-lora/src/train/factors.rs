//! The factors that are trained.

use candle_core::{Tensor, Var, backprop::GradStore};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::ops::{tensor, to_vec};
use super::spec::{TargetSet, linears};
use crate::adapter::{Adapter, Delta, FactorPair, RANK_MAX, RowOrder, Values};
use crate::bound::Targets;
use crate::error::{LoraError, invalid};
use ruvllm_model::ModelSpec;

/// A pair of factors and where it belongs.
pub(super) struct Pair {
    /// The layer's number.
    pub target: usize,
    /// Name of the layer in an adapter.
    pub name: String,
    /// `[rank, n_in]`
    pub a: Var,
    /// `[n_out, rank]`
    pub b: Var,
}

/// Options of [`Factors`].
#[derive(Clone, Copy, Debug)]
pub struct FactorOptions {
    /// Layers that have factors.
    pub set: TargetSet,
    /// First block of those layers.
    pub first_block: usize,
    /// Rank of each pair.
    pub rank: usize,
    /// Scale of each product.
    pub scale: f32,
    /// Seed of the first values.
    pub seed: u64,
}

/// All factors of an adapter.
pub struct Factors {
    pairs: Vec<Pair>,
    /// Which pair a layer has, by the layer's number.
    by_target: Vec<Option<usize>>,
    rank: usize,
    scale: f32,
}

impl std::fmt::Debug for Factors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Factors({} pairs of rank {})", self.pairs.len(), self.rank)
    }
}

impl Factors {
    /// Makes factors for layers of a model: `A` uniform within `±1/√n_in` as peft begins, `B` zero, so that nothing changes yet.
    ///
    /// # Errors
    /// The rank or the scale makes no sense.
    pub fn new(spec: &ModelSpec, targets: &Targets, options: &FactorOptions) -> Result<Factors, LoraError> {
        let FactorOptions { set, first_block, rank, scale, seed } = *options;
        if rank == 0 || rank > RANK_MAX || !(scale.is_finite() && scale > 0.0) {
            return Err(invalid(format!(
                "factors of rank {rank} with a scale of {scale}; use a rank of 1 to {RANK_MAX}"
            )));
        }
        if first_block >= spec.layers.len() {
            let line = format!("factors from block {first_block} on; the model has {}", spec.layers.len());
            return Err(invalid(line));
        }
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut pairs, mut by_target) = (Vec::new(), vec![None; targets.all().len()]);
        for layer in &spec.layers[first_block..] {
            for (_, linear) in linears(layer).filter(|(role, _)| set.has(*role)) {
                let target = &targets.all()[linear.id];
                let bound = 1.0 / (target.n_in as f32).sqrt();
                let draw = |_| bound * ((rng.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0);
                let a: Vec<f32> = (0..rank * target.n_in).map(draw).collect();
                let a = Var::from_tensor(&tensor(a, (rank, target.n_in))?)?;
                let n_out = target.rows.len();
                let b = Var::from_tensor(&tensor(vec![0.0; n_out * rank], (n_out, rank))?)?;
                let name = target.alias.as_ref().unwrap_or(&target.tensor).clone();
                by_target[linear.id] = Some(pairs.len());
                pairs.push(Pair { target: linear.id, name, a, b });
            }
        }
        Ok(Factors { pairs, by_target, rank, scale })
    }

    /// Returns `A` and `B` of a layer, if it is adapted.
    pub(super) fn pair(&self, target: usize) -> Option<(&Tensor, &Tensor)> {
        let pair = &self.pairs[self.by_target[target]?];
        Some((&pair.a, &pair.b))
    }

    /// Returns the names of all pairs, in order.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.pairs.iter().map(|pair| pair.name.as_str())
    }

    /// Iterates over all factors, `A` and `B` of each pair in order.
    pub(super) fn vars(&self) -> impl Iterator<Item = &Var> {
        self.pairs.iter().flat_map(|pair| [&pair.a, &pair.b])
    }

    /// Returns the number of values that are trained.
    pub fn n_params(&self) -> usize {
        self.vars().map(|var| var.elem_count()).sum()
    }

    /// Adds the gradients to `sums`, one vector a factor.
    pub(super) fn add_gradients(&self, grads: &GradStore, sums: &mut [Vec<f32>]) -> Result<(), LoraError> {
        for (var, sum) in self.vars().zip(sums) {
            if let Some(grad) = grads.get(var) {
                sum.iter_mut().zip(to_vec(grad)?).for_each(|(sum, g)| *sum += g);
            }
        }
        Ok(())
    }

    /// Returns the values of every factor.
    pub(super) fn values(&self) -> Result<Vec<Vec<f32>>, LoraError> {
        Ok(self.vars().map(|var| to_vec(var)).collect::<candle_core::Result<_>>()?)
    }

    /// Replaces the values of every factor.
    pub(super) fn set(&self, values: Vec<Vec<f32>>) -> Result<(), LoraError> {
        for (var, values) in self.vars().zip(values) {
            var.set(&tensor(values, var.shape())?)?;
        }
        Ok(())
    }

    /// Returns them as an adapter.
    ///
    /// # Errors
    /// A value is no finite number.
    pub fn adapter(&self, name: &str, targets: &Targets) -> Result<Adapter, LoraError> {
        let mut groups: Vec<Vec<&Pair>> = Vec::new();
        for pair in &self.pairs {
            let tensor = &targets.all()[pair.target].tensor;
            match groups.iter_mut().find(|group| targets.all()[group[0].target].tensor == *tensor) {
                Some(group) => group.push(pair),
                None => groups.push(vec![pair]),
            }
        }
        let deltas = groups.iter().map(|group| self.delta(group, targets)).collect::<Result<Vec<_>, _>>()?;
        let adapter = Adapter::new(name, deltas)?.for_arch(Some(&targets.facts().arch));
        adapter.check_values()?;
        Ok(adapter)
    }

    /// Makes one change of the pairs that layers of one tensor have. Where a file has several layers in one tensor, their
    /// factors go below and beside each other: the ranks add up, and each has its own rows.
    fn delta(&self, group: &[&Pair], targets: &Targets) -> Result<Delta, LoraError> {
        let target = &targets.all()[group[0].target];
        let of_tensor = targets.all().iter().filter(|other| other.tensor == target.tensor);
        let n_out = of_tensor.map(|other| other.rows.end).max().unwrap_or(0);
        let (rank, n_in) = (group.len() * self.rank, target.n_in);
        let (mut a, mut b) = (Vec::with_capacity(rank * n_in), vec![0.0; n_out * rank]);
        for (i, pair) in group.iter().enumerate() {
            a.extend(to_vec(&pair.a)?);
            let rows = targets.all()[pair.target].rows.clone();
            for (row, values) in rows.zip(to_vec(&pair.b)?.chunks_exact(self.rank)) {
                b[row * rank + i * self.rank..][..self.rank].copy_from_slice(values);
            }
        }
        let pair = FactorPair { a: Values::from_f32(rank, n_in, &a), b: Values::from_f32(n_out, rank, &b) };
        Delta::new(&target.tensor, self.scale, pair, None, RowOrder::Same)
    }
}
