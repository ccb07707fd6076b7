//! Merging: several adapters into one of a chosen rank, or into a model's file.
//!
//! | method | change of a tensor, of the adapters' own changes `Δᵢ = scale·B·A` |
//! |---|---|
//! | linear | `Σ wᵢ·Δᵢ / Σ wᵢ` |
//! | task arithmetic | `Σ wᵢ·Δᵢ` (Ilharco et al. 2022, arXiv:2212.04089) |
//! | SLERP | of two: along the arc between them, seen as vectors (Shoemake 1985) |
//! | TIES | the largest values of each, one sign elected a value, and the mean of those that have it (Yadav et al. 2023, arXiv:2306.01708) |
//! | DARE | values dropped at random and the others scaled up, then as task arithmetic (Yu et al. 2023, arXiv:2311.03099) |
//!
//! The first three have a rank of at most the sum of the ranks, and that is kept exactly unless a smaller one is asked for;
//! the others have any rank, and come down to one by their largest singular values. Factors are never merged by themselves:
//! `A` and `B` of two adapters say nothing to each other.

mod model;
mod svd;

pub use model::{Merged, merge_into_model};
pub(crate) use svd::of_product;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::adapter::{Adapter, Delta, FactorPair, RANK_MAX, RowOrder, Values};
use crate::error::{LoraError, LoraErrorKind, invalid, unsupported};

/// Method of merging adapters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Method {
    /// The weighted mean.
    Linear,
    /// The weighted sum.
    TaskArithmetic,
    /// Between two, `t` of the way from the first to the second.
    Slerp {
        /// 0 to 1.
        t: f64,
    },
    /// Trim, elect a sign, mean.
    Ties {
        /// The share of values of each that stays: above 0, up to 1.
        density: f64,
    },
    /// Drop and rescale.
    Dare {
        /// The share of values of each that stays: above 0, up to 1.
        density: f64,
        /// Decides which.
        seed: u64,
    },
}

impl Method {
    /// Checks that adapters of these weights can be merged in this way, into one of up to `rank`, before they are read.
    ///
    /// # Errors
    /// As [`merge`] for what is no matter of the adapters themselves.
    pub fn check(self, weights: &[f64], rank: Option<usize>) -> Result<(), LoraError> {
        if weights.is_empty() {
            return Err(invalid("no adapter to merge"));
        }
        self.check_values(weights.len())?;
        if let Some(weight) = weights.iter().find(|weight| !weight.is_finite()) {
            return Err(invalid(format!("a weight of {weight}")));
        }
        if rank.is_some_and(|rank| rank == 0 || rank > RANK_MAX) {
            return Err(invalid(format!("a rank of {}; choose 1 to {RANK_MAX}", rank.unwrap_or(0))));
        }
        match self == Method::Linear && weights.iter().sum::<f64>() == 0.0 {
            true => Err(invalid("the weights of a linear merge sum to 0")),
            false => Ok(()),
        }
    }

    fn check_values(self, n: usize) -> Result<(), LoraError> {
        let share = |density: f64| match density > 0.0 && density <= 1.0 {
            true => Ok(()),
            false => Err(invalid(format!("a density of {density}; choose above 0, up to 1"))),
        };
        match self {
            Method::Linear | Method::TaskArithmetic => Ok(()),
            Method::Slerp { .. } if n != 2 => Err(invalid(format!("slerp is between 2 adapters, not {n}"))),
            Method::Slerp { t } if !(0.0..=1.0).contains(&t) => Err(invalid(format!("a slerp of {t}; choose 0 to 1"))),
            Method::Slerp { .. } => Ok(()),
            Method::Ties { density } | Method::Dare { density, .. } => share(density),
        }
    }
}

/// One adapter's change of a tensor, in f64.
struct Change {
    weight: f64,
    rank: usize,
    /// `[rank, n_in]`
    a: Vec<f64>,
    /// `[n_out, rank]`, the scale in it.
    b: Vec<f64>,
}

impl Change {
    fn new(delta: &Delta, weight: f64) -> Result<Change, LoraError> {
        if delta.is_dora() {
            let line = format!(
                "'{}' is a DoRA, whose change depends on the model; merge it into the model instead",
                delta.target
            );
            return Err(unsupported(line));
        }
        let scale = f64::from(delta.scale);
        let a = delta.a()?.into_iter().map(f64::from).collect();
        let b = delta.b()?.into_iter().map(|x| scale * f64::from(x)).collect();
        Ok(Change { weight, rank: delta.rank(), a, b })
    }

    /// Returns `B·A`: `[n_out, n_in]`.
    fn dense(&self, n_in: usize) -> Vec<f64> {
        let mut out = vec![0.0; self.b.len() / self.rank * n_in];
        for (row, b) in out.chunks_exact_mut(n_in).zip(self.b.chunks_exact(self.rank)) {
            for (b, a) in b.iter().zip(self.a.chunks_exact(n_in)) {
                row.iter_mut().zip(a).for_each(|(x, a)| *x += b * a);
            }
        }
        out
    }

    /// Returns `Σ Δ∘Δ'` from the factors: `Σᵢⱼ (B·ᵢ · B'·ⱼ)(Aᵢ · A'ⱼ)`.
    fn product(&self, other: &Change, n_in: usize) -> f64 {
        let mut sum = 0.0;
        for i in 0..self.rank {
            for j in 0..other.rank {
                let rows = self.b.chunks_exact(self.rank).zip(other.b.chunks_exact(other.rank));
                let b: f64 = rows.map(|(x, y)| x[i] * y[j]).sum();
                let a = self.a[i * n_in..(i + 1) * n_in].iter().zip(&other.a[j * n_in..(j + 1) * n_in]);
                sum += b * a.map(|(x, y)| x * y).sum::<f64>();
            }
        }
        sum
    }
}

/// Merges adapters, each with its weight, into one of up to `rank`; without it, of the sum of the ranks where the method
/// keeps it, else of the largest.
///
/// # Errors
/// No adapter, a method that cannot take these, tensors of different shapes, a DoRA, or a rank above [`RANK_MAX`].
pub fn merge(
    name: &str,
    adapters: &[(&Adapter, f64)],
    method: Method,
    rank: Option<usize>,
) -> Result<Adapter, LoraError> {
    let weights: Vec<f64> = adapters.iter().map(|(_, weight)| *weight).collect();
    method.check(&weights, rank)?;
    let mut targets: Vec<&str> = adapters.iter().flat_map(|(a, _)| a.deltas().map(|d| d.target.as_str())).collect();
    targets.sort_unstable();
    targets.dedup();
    let total: f64 = weights.iter().sum();
    let mut deltas = Vec::with_capacity(targets.len());
    for (number, target) in targets.into_iter().enumerate() {
        let mut shape = None;
        let mut changes = Vec::with_capacity(adapters.len());
        for (adapter, weight) in adapters {
            let Some(delta) = adapter.delta(target) else {
                changes.push(None);
                continue;
            };
            let own = (delta.n_out(), delta.n_in());
            if *shape.get_or_insert(own) != own {
                return Err(invalid(format!(
                    "'{target}' has another shape in '{}'; they are for two models",
                    adapter.name()
                )));
            }
            changes.push(Some(Change::new(delta, *weight)?));
        }
        let (_, n_in) = shape.expect("some adapter has the target");
        let (a, b) = match method {
            Method::Linear => factored(&coefficients(&changes, |c| c.weight / total), n_in, rank),
            Method::TaskArithmetic => factored(&coefficients(&changes, |c| c.weight), n_in, rank),
            Method::Slerp { t } => factored(&slerp(&changes, t, n_in), n_in, rank),
            Method::Ties { density } => truncated(ties(&changes, density, n_in), &changes, n_in, rank),
            Method::Dare { density, seed } => {
                truncated(dare(&changes, density, seed ^ (number as u64) << 32, n_in), &changes, n_in, rank)
            }
        };
        let rank = a.len() / n_in;
        if rank > RANK_MAX {
            let line = format!("'{target}' would have rank {rank}, at most {RANK_MAX} can be; choose one");
            return Err(LoraError::new(LoraErrorKind::Limit, line));
        }
        let pair = FactorPair { a: Values::from_f32(rank, n_in, &a), b: Values::from_f32(b.len() / rank, rank, &b) };
        deltas.push(Delta::new(target, 1.0, pair, None, RowOrder::Same)?);
    }
    let arch = adapters.iter().find_map(|(adapter, _)| adapter.arch());
    adapters.iter().try_for_each(|(adapter, _)| adapter.check())?;
    Ok(Adapter::new(name, deltas)?.for_arch(arch))
}

fn coefficients(changes: &[Option<Change>], of: impl Fn(&Change) -> f64) -> Vec<(&Change, f64)> {
    changes.iter().flatten().map(|change| (change, of(change))).collect()
}

/// Returns both changes with their parts of the arc. Where it has no plane, between parallel ones, the way is straight;
/// an adapter without this tensor is the origin.
fn slerp(changes: &[Option<Change>], t: f64, n_in: usize) -> Vec<(&Change, f64)> {
    match changes {
        [Some(first), Some(second)] => {
            let lengths = first.product(first, n_in).sqrt() * second.product(second, n_in).sqrt();
            let cosine = if lengths > 0.0 { first.product(second, n_in) / lengths } else { 1.0 };
            let angle = cosine.clamp(-1.0, 1.0).acos();
            let (s, t) = match angle.sin() {
                sine if sine.abs() < 1e-6 => (1.0 - t, t),
                sine => (((1.0 - t) * angle).sin() / sine, (t * angle).sin() / sine),
            };
            vec![(first, s), (second, t)]
        }
        [Some(first), None] => vec![(first, 1.0 - t)],
        [None, Some(second)] => vec![(second, t)],
        _ => Vec::new(),
    }
}

/// Puts factors beside each other: `Σ c·B·A` is one product of rank `Σ rank`; brought down to `rank` if that is less.
fn factored(parts: &[(&Change, f64)], n_in: usize, rank: Option<usize>) -> (Vec<f32>, Vec<f32>) {
    let n_ranks: usize = parts.iter().map(|(change, _)| change.rank).sum();
    let n_out = parts.first().map_or(0, |(change, _)| change.b.len() / change.rank);
    let (mut a, mut b) = (Vec::with_capacity(n_ranks * n_in), vec![0.0; n_out * n_ranks]);
    let mut first = 0;
    for (change, coefficient) in parts {
        a.extend_from_slice(&change.a);
        for (row, own) in b.chunks_exact_mut(n_ranks).zip(change.b.chunks_exact(change.rank)) {
            row[first..first + change.rank].iter_mut().zip(own).for_each(|(to, b)| *to = coefficient * b);
        }
        first += change.rank;
    }
    let (a, b) = match rank {
        Some(rank) if rank < n_ranks => of_product(&a, &b, n_ranks, n_in, rank),
        _ => (a, b),
    };
    (narrow(&a), narrow(&b))
}

/// Brings a change of any rank down to `rank`.
fn truncated(dense: Vec<f64>, changes: &[Option<Change>], n_in: usize, rank: Option<usize>) -> (Vec<f32>, Vec<f32>) {
    let largest = changes.iter().flatten().map(|change| change.rank).max().unwrap_or(1);
    let n_out = dense.len() / n_in;
    let (a, b) = svd::of_dense(&dense, n_in, rank.unwrap_or(largest).min(n_in).min(n_out));
    (narrow(&a), narrow(&b))
}

fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&x| x as f32).collect()
}

/// Keeps the share `density` of the largest values (ties by place), elects the sign that weighs more at each place, and
/// takes the mean of the weighted values that have it.
fn ties(changes: &[Option<Change>], density: f64, n_in: usize) -> Vec<f64> {
    let mut tasks: Vec<Vec<f64>> = Vec::new();
    for change in changes.iter().flatten() {
        let mut task = change.dense(n_in);
        trim(&mut task, density);
        task.iter_mut().for_each(|x| *x *= change.weight);
        tasks.push(task);
    }
    let elect = |at: usize| {
        let sign = tasks.iter().map(|task| task[at]).sum::<f64>();
        let agree = tasks.iter().map(|task| task[at]).filter(|x| x * sign > 0.0);
        let (n, sum) = agree.fold((0, 0.0), |(n, sum), x| (n + 1, sum + x));
        sum / f64::from(n.max(1))
    };
    (0..tasks.first().map_or(0, Vec::len)).map(elect).collect()
}

/// Sets all but the largest values to 0.
fn trim(task: &mut [f64], density: f64) {
    let n_kept = ((task.len() as f64 * density).round() as usize).clamp(1, task.len());
    let mut order: Vec<u32> = (0..task.len() as u32).collect();
    let by_size = |&x: &u32, &y: &u32| {
        let (a, b) = (task[x as usize].abs(), task[y as usize].abs());
        b.total_cmp(&a).then(x.cmp(&y))
    };
    if n_kept < task.len() {
        order.select_nth_unstable_by(n_kept, by_size);
        order[n_kept..].iter().for_each(|&at| task[at as usize] = 0.0);
    }
}

/// Keeps each value with the chance `density`, divided by it.
fn dare(changes: &[Option<Change>], density: f64, seed: u64, n_in: usize) -> Vec<f64> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut sum: Vec<f64> = Vec::new();
    for change in changes.iter().flatten() {
        let task = change.dense(n_in);
        sum.resize(task.len(), 0.0);
        for (sum, x) in sum.iter_mut().zip(task) {
            // 53 random bits are a fraction below 1.
            let draw = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            if draw < density {
                *sum += change.weight * x / density;
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests;
