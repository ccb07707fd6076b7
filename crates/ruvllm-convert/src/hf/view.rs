//! Views of stored tensors with other dimensions and orders, and tensors made of them whose values are computed when they are
//! written.

use std::sync::Arc;

use half::f16;

use super::stored::Stored;
use crate::error::ConvertError;

/// A stored tensor with other dimensions: no value is moved.
#[derive(Clone, Debug)]
pub(super) struct View {
    source: Arc<Stored>,
    offset: usize,
    dims: Vec<usize>,
    strides: Vec<usize>,
}

impl View {
    /// Returns the tensor as it is.
    pub(super) fn whole(source: &Arc<Stored>) -> View {
        let dims = source.shape.clone();
        let mut strides = vec![1; dims.len()];
        (1..dims.len()).rev().for_each(|i| strides[i - 1] = strides[i] * dims[i]);
        View { source: Arc::clone(source), offset: 0, dims, strides }
    }

    /// Returns the dimensions.
    pub(super) fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Divides a dimension into `sizes`, the last of which is contiguous in it.
    ///
    /// # Errors
    /// They do not make up the dimension.
    pub(super) fn split(mut self, dim: usize, sizes: &[usize]) -> Result<View, ConvertError> {
        let n = self.dims.get(dim).copied().unwrap_or(0);
        let product = sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        if n == 0 || product != Some(n) {
            let line = format!("has shape {:?}; by the configuration, dimension {dim} is {sizes:?}", self.source.shape);
            return Err(ConvertError::invalid(line).of_tensor(&self.source.name));
        }
        let mut stride = self.strides[dim] * n;
        let strides: Vec<usize> = sizes
            .iter()
            .map(|&size| {
                stride /= size;
                stride
            })
            .collect();
        self.dims.splice(dim..=dim, sizes.iter().copied());
        self.strides.splice(dim..=dim, strides);
        Ok(self)
    }

    /// Puts the dimensions into another order: `order[i]` is the one that becomes the `i`-th.
    ///
    /// # Panics
    /// `order` is no permutation of the dimensions.
    pub(super) fn permute(mut self, order: &[usize]) -> View {
        assert_eq!(order.len(), self.dims.len(), "a permutation of all dimensions");
        self.dims = order.iter().map(|&i| self.dims[i]).collect();
        self.strides = order.iter().map(|&i| self.strides[i]).collect();
        self
    }

    /// Takes `n` entries of a dimension, from `start`, `step` apart.
    ///
    /// # Errors
    /// The dimension has fewer.
    pub(super) fn slice(mut self, dim: usize, start: usize, step: usize, n: usize) -> Result<View, ConvertError> {
        let have = self.dims.get(dim).copied().unwrap_or(0);
        if n == 0 || start.checked_add((n - 1).saturating_mul(step)).is_none_or(|last| last >= have) {
            let line = format!("has shape {:?}, too small for the configuration", self.source.shape);
            return Err(ConvertError::invalid(line).of_tensor(&self.source.name));
        }
        self.offset += start * self.strides[dim];
        self.strides[dim] *= step;
        self.dims[dim] = n;
        Ok(self)
    }

    /// Returns the number of values.
    pub(super) fn n_elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Calls `run` with the parts of `range` that lie in one row: first value, distance of values, number.
    fn runs(&self, start: usize, n: usize, mut run: impl FnMut(usize, usize, usize)) {
        let (Some(&inner), Some(&stride)) = (self.dims.last(), self.strides.last()) else {
            return run(self.offset, 1, n);
        };
        let outer = self.dims.len() - 1;
        let (mut at, end) = (start, start + n);
        while at < end {
            let (mut row, column) = (at / inner, at % inner);
            let mut place = self.offset + column * stride;
            for dim in (0..outer).rev() {
                place += row % self.dims[dim] * self.strides[dim];
                row /= self.dims[dim];
            }
            let n = (inner - column).min(end - at);
            run(place, stride, n);
            at += n;
        }
    }

    /// Reads values from the `start`-th on.
    pub(super) fn read(&self, start: usize, out: &mut [f32]) {
        let mut done = 0;
        self.runs(start, out.len(), |place, stride, n| {
            self.source.read(place, stride, &mut out[done..done + n]);
            done += n;
        });
    }

    /// Reads bytes of a tensor of bytes, from the `start`-th on.
    pub(super) fn read_bytes(&self, start: usize, out: &mut [u8]) {
        let (bytes, mut done) = (self.source.bytes(), 0);
        self.runs(start, out.len(), |place, stride, n| {
            out[done..done + n].iter_mut().enumerate().for_each(|(i, out)| *out = bytes[place + i * stride]);
            done += n;
        });
    }
}

/// Arithmetic on each value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Op {
    /// Adds a number.
    Add(f32),
    /// Multiplies with a number.
    Scale(f32),
    /// Multiplies rows up to an end with a number, further rows up to the next end with the next.
    ScaleRows(Vec<(usize, f32)>),
    /// The negative exponential.
    NegExp,
}

impl Op {
    fn apply(&self, row: usize, value: f32) -> f32 {
        match self {
            Op::Add(x) => value + x,
            Op::Scale(x) => value * x,
            Op::ScaleRows(rows) => rows.iter().find(|(end, _)| row < *end).map_or(value, |(_, x)| value * x),
            // In f64, so that it is the same everywhere.
            Op::NegExp => -f64::from(value).exp() as f32,
        }
    }
}

/// Floats that are computed when they are written: views behind each other, and arithmetic.
#[derive(Clone, Debug)]
pub(super) struct Floats {
    /// Row-major, the contiguous dimension last.
    pub(super) shape: Vec<usize>,
    parts: Vec<View>,
    ops: Vec<Op>,
}

impl Floats {
    /// Returns a stored tensor as it is.
    ///
    /// # Errors
    /// It has no floats.
    pub(super) fn stored(source: &Arc<Stored>) -> Result<Floats, ConvertError> {
        Floats::view(View::whole(source))
    }

    /// Returns a view with its dimensions.
    ///
    /// # Errors
    /// It has no floats.
    pub(super) fn view(view: View) -> Result<Floats, ConvertError> {
        view.source.check_floats()?;
        Ok(Floats { shape: view.dims().to_vec(), parts: vec![view], ops: Vec::new() })
    }

    /// Stacks tensors of one shape.
    ///
    /// # Errors
    /// Their shapes differ.
    pub(super) fn stack(parts: Vec<Floats>) -> Result<Floats, ConvertError> {
        let first = parts.first().ok_or_else(|| ConvertError::invalid("nothing to stack"))?;
        let shape: Vec<usize> = std::iter::once(parts.len()).chain(first.shape.iter().copied()).collect();
        if let Some(other) = parts.iter().find(|part| part.shape != first.shape) {
            let line = format!("has shape {:?}, and others of its kind have {:?}", other.shape, first.shape);
            let name = other.parts.first().map_or("", |view| &view.source.name);
            return Err(ConvertError::invalid(line).of_tensor(name));
        }
        Ok(Floats { shape, parts: parts.into_iter().flat_map(|part| part.parts).collect(), ops: Vec::new() })
    }

    /// Gives the same values other dimensions.
    ///
    /// # Errors
    /// They are not as many.
    pub(super) fn shaped(mut self, shape: &[usize]) -> Result<Floats, ConvertError> {
        let product = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        if product != Some(self.n_elements()) {
            let name = self.parts.first().map_or("", |view| &view.source.name);
            let line = format!("has shape {:?}; by the configuration it is {shape:?}", self.shape);
            return Err(ConvertError::invalid(line).of_tensor(name));
        }
        self.shape = shape.to_vec();
        Ok(self)
    }

    /// Adds arithmetic.
    pub(super) fn with(mut self, op: Op) -> Floats {
        self.ops.push(op);
        self
    }

    /// Returns the number of values.
    pub(super) fn n_elements(&self) -> usize {
        self.parts.iter().map(View::n_elements).sum()
    }

    /// Reads values from the `start`-th on.
    pub(super) fn read(&self, start: usize, out: &mut [f32]) {
        let (mut at, mut done) = (start, 0);
        for part in &self.parts {
            let n = part.n_elements();
            if at >= n {
                at -= n;
                continue;
            }
            let take = (n - at).min(out.len() - done);
            let out = &mut out[done..done + take];
            part.read(at, out);
            self.compute(part.source.is_half(), start + done, out);
            (at, done) = (0, done + take);
        }
    }

    fn compute(&self, is_half: bool, start: usize, values: &mut [f32]) {
        let n_columns = self.shape.last().copied().unwrap_or(1);
        for op in &self.ops {
            for (i, value) in values.iter_mut().enumerate() {
                let x = op.apply((start + i) / n_columns, *value);
                *value = if is_half { f16::from_f32(x).to_f32() } else { x };
            }
        }
    }

    /// Lets go of the memory of the sources of some values.
    pub(super) fn release(&self, start: usize, end: usize) {
        let mut at = 0;
        for part in &self.parts {
            let n = part.n_elements();
            if at < end && at + n > start {
                part.source.release();
            }
            at += n;
        }
    }

    /// Returns the bytes of the sources.
    pub(super) fn source_bytes(&self) -> u64 {
        let bytes = |view: &View| {
            let source = &view.source;
            (source.range.len() as u128 * view.n_elements() as u128 / source.n_elements().max(1) as u128) as u64
        };
        self.parts.iter().map(bytes).sum()
    }
}
