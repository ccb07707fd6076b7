//! An adapter fitted to a model: shapes checked, fused projections split, factors in the form the kernels read.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use ruvllm_kernels::lowrank::stride;
use ruvllm_model::{LinearSpec, ModelSpec, TensorRows};

use crate::adapter::{Adapter, Delta};
use crate::error::{LoraError, shape, shown};
use crate::format::ModelFacts;
use crate::packed::{self, LayerFactors, LayerSizes, LayerValues, Packed, Part, Shape};

/// Format of factors in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FactorFormat {
    /// 32-bit floats: exact.
    F32,
    /// 16-bit floats, each rank scaled to the middle of their range: within 2^-11 of every value.
    #[default]
    F16,
    /// Bytes with a scale per 32 values.
    Q8,
}

/// A linear layer of a model, which may be some rows of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The tensor without `.weight`.
    pub tensor: String,
    /// The layer's rows of it.
    pub rows: Range<usize>,
    /// Name of the layer where a file has it as a tensor of its own; none if that is `tensor`.
    pub alias: Option<String>,
    /// The length of its input.
    pub n_in: usize,
}

impl Target {
    /// Reads the layer's weights: `[n_out, n_in]`.
    ///
    /// # Errors
    /// As [`BaseWeights::row`].
    pub fn weights(&self, base: &dyn BaseWeights) -> Result<Vec<f32>, LoraError> {
        let mut values = vec![0.0; self.rows.len() * self.n_in];
        for (row, out) in self.rows.clone().zip(values.chunks_exact_mut(self.n_in)) {
            base.row(&self.tensor, row, out)?;
        }
        Ok(values)
    }
}

/// All linear layers of a model that adapters can change, numbered in order.
#[derive(Debug)]
pub struct Targets {
    facts: ModelFacts,
    all: Vec<Target>,
    /// Layers by tensor and by alias.
    by_name: HashMap<String, Vec<usize>>,
}

/// Gives a model's own weights: DoRA's norms are taken of them.
pub trait BaseWeights {
    /// Writes row `row` of a tensor, as floats.
    ///
    /// # Errors
    /// The tensor cannot be read.
    fn row(&self, tensor: &str, row: usize, out: &mut [f32]) -> Result<(), LoraError>;

    /// Reads rows of a tensor of the model's description, as floats: `[n_rows, n_cols]`.
    ///
    /// # Errors
    /// The tensor cannot be read.
    fn values(&self, rows: &TensorRows) -> Result<Vec<f32>, LoraError>;
}

/// No base weights: a DoRA cannot be bound with them.
#[derive(Clone, Copy, Debug)]
pub struct NoBase;

impl BaseWeights for NoBase {
    fn row(&self, tensor: &str, _: usize, _: &mut [f32]) -> Result<(), LoraError> {
        Err(shape(format!("a DoRA adapter needs the base weights of '{}'", shown(tensor))))
    }

    fn values(&self, rows: &TensorRows) -> Result<Vec<f32>, LoraError> {
        Err(shape(format!("there are no base weights of '{}'", shown(&rows.tensor))))
    }
}

/// A layer and which rows of a delta are its own.
struct Place {
    target: usize,
    rows: Range<usize>,
}

impl Targets {
    /// Takes the layers of a model; a layer's number is its place.
    pub fn new(facts: ModelFacts, all: Vec<Target>) -> Targets {
        let mut by_name: HashMap<String, Vec<usize>> = HashMap::new();
        for (i, target) in all.iter().enumerate() {
            by_name.entry(target.tensor.clone()).or_default().push(i);
            if let Some(alias) = &target.alias {
                by_name.entry(alias.clone()).or_default().push(i);
            }
        }
        Targets { facts, all, by_name }
    }

    /// Takes the layers of a model's description.
    pub fn of_model(spec: &ModelSpec) -> Targets {
        let target = |linear: &LinearSpec| Target {
            tensor: linear.name.clone(),
            rows: linear.name_rows.clone(),
            alias: linear.alias.clone(),
            n_in: linear.n_in(),
        };
        Targets::new(ModelFacts::of(spec), spec.linears().into_iter().map(target).collect())
    }

    /// Returns what of the model decides how files are read.
    pub fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    /// Returns the layers by number.
    pub fn all(&self) -> &[Target] {
        &self.all
    }

    /// Returns which layers a delta changes, and by which of its rows.
    fn places(&self, delta: &Delta) -> Result<Vec<Place>, LoraError> {
        let fits = |name: &str, n_in: usize, n_out: usize| {
            let line = format!(
                "'{}' changes {} x {}, the model's '{name}' is {n_out} x {n_in}; the adapter is for another model",
                shown(&delta.target),
                delta.n_out(),
                delta.n_in()
            );
            if (n_in, n_out) == (delta.n_in(), delta.n_out()) { Ok(()) } else { Err(shape(line)) }
        };
        let name = delta.target.as_str();
        if let Some(found) = self.by_name.get(name) {
            // Some rows of a tensor each; the first alias is the layer alone.
            let is_alias = self.all[found[0]].alias.as_deref() == Some(name);
            let rows = |&i: &usize| match is_alias {
                true => 0..self.all[i].rows.len(),
                false => self.all[i].rows.clone(),
            };
            let n_out = found.iter().map(|i| rows(i).end).max().unwrap_or(0);
            fits(name, self.all[found[0]].n_in, n_out)?;
            return Ok(found.iter().map(|i| Place { target: *i, rows: rows(i) }).collect());
        }
        // One factor for projections that this file has apart.
        if let Some(block) = name.strip_suffix("attn_qkv") {
            let parts = ["attn_q", "attn_k", "attn_v"].map(|part| self.by_name.get(&format!("{block}{part}")));
            if let [Some(q), Some(k), Some(v)] = parts {
                let (mut places, mut end) = (Vec::new(), 0);
                for &target in [q[0], k[0], v[0]].iter() {
                    let rows = end..end + self.all[target].rows.len();
                    end = rows.end;
                    places.push(Place { target, rows });
                }
                fits(name, self.all[q[0]].n_in, end)?;
                return Ok(places);
            }
        }
        let line = format!("the model has no layer '{}'; the adapter is for another model", shown(name));
        Err(shape(line))
    }

    /// Checks that an adapter fits the model, without looking at its values.
    ///
    /// # Errors
    /// It changes a layer that the model does not have, or one of another shape.
    pub fn check(&self, adapter: &Adapter) -> Result<(), LoraError> {
        if adapter.arch().is_some_and(|arch| arch != self.facts.arch) {
            let (of, is) = (shown(adapter.arch().unwrap_or_default()), &self.facts.arch);
            return Err(shape(format!("the adapter is for the architecture '{of}', the model is '{is}'")));
        }
        let mut changed = vec![false; self.all.len()];
        for delta in adapter.deltas() {
            for place in self.places(delta)? {
                if std::mem::replace(&mut changed[place.target], true) {
                    let name = shown(&delta.target);
                    return Err(shape(format!("'{name}' changes a layer that another part of the adapter changes")));
                }
            }
        }
        Ok(())
    }

    /// Fits an adapter to the model. `base` is asked by DoRA adapters only.
    ///
    /// # Errors
    /// As [`Targets::check`]; a value is not a finite number; the base weights cannot be read.
    pub fn bind(
        self: &Arc<Targets>,
        adapter: &Adapter,
        format: FactorFormat,
        base: &dyn BaseWeights,
    ) -> Result<BoundAdapter, LoraError> {
        self.check(adapter)?;
        let shapes = self.shapes(adapter)?;
        let n_bytes = packed::n_bytes(format, shapes.iter().flatten().copied());
        let mut packed = Packed::new(format, &shapes);
        for delta in adapter.deltas() {
            let (a, b, magnitude) = (delta.a()?, delta.b()?, delta.magnitude()?);
            for place in self.places(delta)? {
                let rank = delta.rank();
                let b = &b[place.rows.start * rank..place.rows.end * rank];
                let mut layer = Layer { a: &a, b: b.to_vec(), rank, scale: delta.scale, gain: None };
                if let Some(magnitude) = &magnitude {
                    layer.take_magnitude(&magnitude[place.rows.clone()], &self.all[place.target], base)?;
                }
                layer.pack(delta.n_in(), place.target, &mut packed);
            }
        }
        adapter.check()?;
        let (name, content) = (adapter.name().to_owned(), adapter.content());
        Ok(BoundAdapter { targets: Arc::clone(self), name, content, packed, n_bytes })
    }

    /// Returns the shapes of what an adapter changes, by the layer's number.
    fn shapes(&self, adapter: &Adapter) -> Result<Vec<Option<Shape>>, LoraError> {
        let mut shapes = vec![None; self.all.len()];
        for delta in adapter.deltas() {
            let (rank, is_dora) = (delta.rank(), delta.is_dora());
            for place in self.places(delta)? {
                let shape = Shape { rank, n_in: delta.n_in(), n_out: place.rows.len(), is_dora };
                shapes[place.target] = Some(shape);
            }
        }
        Ok(shapes)
    }

    /// Returns how many bytes an adapter takes when bound; of a large one these are whole pages.
    ///
    /// # Errors
    /// As [`Targets::check`].
    pub fn bound_bytes(&self, adapter: &Adapter, format: FactorFormat) -> Result<usize, LoraError> {
        Ok(packed::n_bytes(format, self.shapes(adapter)?.into_iter().flatten()))
    }
}

/// A layer's change on its way into the kernels' form.
struct Layer<'a> {
    /// `[rank, n_in]`
    a: &'a [f32],
    /// `[n_out, rank]`
    b: Vec<f32>,
    rank: usize,
    scale: f32,
    /// What DoRA multiplies each result of the base with, less 1.
    gain: Option<Vec<f32>>,
}

impl Layer<'_> {
    /// Turns `m ⊙ (W + s·B·A)/‖W + s·B·A‖` into a gain of the base and a `B` of its own. The norm is of each row (Liu et
    /// al. 2024, DoRA, arXiv:2402.09353).
    fn take_magnitude(&mut self, magnitude: &[f32], target: &Target, base: &dyn BaseWeights) -> Result<(), LoraError> {
        let n_in = target.n_in;
        let (mut row, mut gains) = (vec![0.0; n_in], Vec::with_capacity(magnitude.len()));
        for (j, (&m, b)) in magnitude.iter().zip(self.b.chunks_exact_mut(self.rank)).enumerate() {
            base.row(&target.tensor, target.rows.start + j, &mut row)?;
            for (&b, a) in b.iter().zip(self.a.chunks_exact(n_in)) {
                row.iter_mut().zip(a).for_each(|(w, a)| *w += self.scale * b * a);
            }
            let norm = row.iter().map(|&w| f64::from(w) * f64::from(w)).sum::<f64>().sqrt();
            let gain = if norm > 0.0 { f64::from(m) / norm } else { 1.0 };
            b.iter_mut().for_each(|b| *b = (f64::from(*b) * gain) as f32);
            gains.push((gain - 1.0) as f32);
        }
        self.gain = Some(gains);
        Ok(())
    }

    /// Brings the factors into the kernels' form: `B` on its side, and each rank of both scaled by a power of two to
    /// magnitudes below 1, which its multiplier takes back.
    fn pack(self, n_in: usize, target: usize, packed: &mut Packed) {
        let (rank, n_out) = (self.rank, self.b.len() / self.rank);
        let mut a = vec![0.0; rank * stride(n_in)];
        let mut b = vec![0.0; rank * stride(n_out)];
        let mut multipliers = Vec::with_capacity(rank);
        for i in 0..rank {
            let a_row = &mut a[i * stride(n_in)..][..n_in];
            a_row.copy_from_slice(&self.a[i * n_in..(i + 1) * n_in]);
            let b_row = &mut b[i * stride(n_out)..][..n_out];
            b_row.iter_mut().enumerate().for_each(|(j, to)| *to = self.b[j * rank + i]);
            let of = |row: &[f32]| row.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            let (by_a, by_b) = (power_of_two(of(a_row)), power_of_two(of(b_row)));
            a_row.iter_mut().for_each(|x| *x /= by_a);
            b_row.iter_mut().for_each(|x| *x /= by_b);
            multipliers.push((f64::from(self.scale) * f64::from(by_a) * f64::from(by_b)) as f32);
        }
        let shape = Shape { rank, n_in, n_out, is_dora: self.gain.is_some() };
        let gain = self.gain.as_deref();
        packed.write(target, shape, LayerValues { multipliers: &multipliers, a: &a, b: &b, gain });
    }
}

/// Returns the power of two that brings `max` to at most 1, within what f32 divides exactly by.
fn power_of_two(max: f32) -> f32 {
    if max < 1e-30 { 1.0 } else { max.log2().ceil().clamp(-90.0, 90.0).exp2() }
}

/// An adapter that can be applied to a model.
pub struct BoundAdapter {
    targets: Arc<Targets>,
    name: String,
    content: [u8; 32],
    packed: Packed,
    n_bytes: usize,
}

impl BoundAdapter {
    /// Returns the adapter's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the hash of what it does.
    pub fn content(&self) -> [u8; 32] {
        self.content
    }

    /// Returns how its factors are kept.
    pub fn format(&self) -> FactorFormat {
        self.packed.format()
    }

    /// Returns the bytes it takes.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Returns the layers it was fitted to.
    pub fn targets(&self) -> &Arc<Targets> {
        &self.targets
    }

    /// Returns the sizes of what it does to a layer, if it changes it.
    pub fn layer_sizes(&self, target: usize) -> Option<LayerSizes> {
        self.part(target).map(|part| part.sizes())
    }

    /// Returns what it does to a layer, in f32, if it changes it.
    pub fn layer_factors(&self, target: usize) -> Option<LayerFactors> {
        self.part(target).map(|part| part.to_factors())
    }

    /// Returns what it does to a layer.
    pub(crate) fn part(&self, target: usize) -> Option<Part<'_>> {
        let layer = self.targets.all.get(target)?;
        self.packed.part(target, layer.n_in, layer.rows.len())
    }
}

impl std::fmt::Debug for BoundAdapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let BoundAdapter { name, packed, n_bytes, .. } = self;
        write!(f, "BoundAdapter({name}, {} layers, {:?}, {n_bytes} bytes)", packed.n_parts(), packed.format())
    }
}
