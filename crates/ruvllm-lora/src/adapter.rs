//! An adapter as its files have it: pairs of factors by the tensor they change.

use bytes::Bytes;
use ruvllm_gguf::Watch;
use ruvllm_kernels::{GgmlType, dequant};
use ruvllm_kvcache::NamespaceBuilder;

use crate::error::{LoraError, LoraErrorKind, invalid, shape, shown};

/// The largest rank that is read: adapters in use have 4 to 256.
pub const RANK_MAX: usize = 1024;

/// Most targets of one adapter: all linear layers of 256 layers with 64 experts.
pub const N_TARGETS_MAX: usize = 1 << 16;

/// The largest scale `alpha / rank`, or multiplier of a request, that is taken for meant.
pub const SCALE_MAX: f32 = 1e4;

/// A matrix of numbers, row-major, usually in a file's mapping.
#[derive(Clone, Debug)]
pub struct Values {
    ty: GgmlType,
    n_rows: usize,
    n_cols: usize,
    bytes: Bytes,
}

impl Values {
    /// Takes `[n_rows, n_cols]` values of `ty` as they lie in `bytes`.
    ///
    /// # Errors
    /// The type is no number format of adapters (F32, F16, BF16, Q8_0), or the bytes are not as many.
    pub fn new(ty: GgmlType, n_rows: usize, n_cols: usize, bytes: Bytes) -> Result<Values, LoraError> {
        if !matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 | GgmlType::Q8_0) {
            let line = format!("factors of type {ty}; save them as F32, F16, BF16 or Q8_0");
            return Err(LoraError::new(LoraErrorKind::Unsupported, line));
        }
        let need = ty.row_bytes(n_cols).and_then(|row| row.checked_mul(n_rows));
        if n_rows == 0 || n_cols == 0 || need != Some(bytes.len()) {
            return Err(invalid(format!("{n_rows} x {n_cols} values of {ty} in {} bytes", bytes.len())));
        }
        Ok(Values { ty, n_rows, n_cols, bytes })
    }

    /// Takes `[n_rows, n_cols]` floats.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn from_f32(n_rows: usize, n_cols: usize, values: &[f32]) -> Values {
        assert_eq!(values.len(), n_rows * n_cols, "{} values for {n_rows} x {n_cols}", values.len());
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>().into();
        Values { ty: GgmlType::F32, n_rows, n_cols, bytes }
    }

    /// Returns how the values are kept.
    pub fn ty(&self) -> GgmlType {
        self.ty
    }

    /// Returns the number of rows.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Returns the length of a row.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Returns the bytes they take.
    pub fn n_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns all values: `[n_rows, n_cols]`.
    ///
    /// # Errors
    /// [`LoraErrorKind::Value`]: one is not a finite number.
    pub fn to_f32(&self) -> Result<Vec<f32>, LoraError> {
        let mut values = vec![0.0; self.n_rows * self.n_cols];
        dequant::dequantize(self.ty, &self.bytes, &mut values);
        match values.iter().position(|x| !x.is_finite()) {
            None => Ok(values),
            Some(at) => {
                let (row, column, x) = (at / self.n_cols, at % self.n_cols, values[at]);
                let line = format!("value {x} in row {row}, column {column}; the adapter is damaged or diverged");
                Err(LoraError::new(LoraErrorKind::Value, line))
            }
        }
    }
}

/// Order in which the rows of a `B` as a file has it come into the order of the GGUF tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowOrder {
    /// They are in it.
    #[default]
    Same,
    /// Queries or keys of so many heads whose rotated halves GGUF interleaves (`permute` of llama.cpp's converter).
    Rotary {
        /// Heads of the projection.
        n_heads: usize,
    },
    /// Query, key and value by head, which GGUF has one after the other (GPT-NeoX).
    ByHead {
        /// Query heads; there are as many of keys and values.
        n_heads: usize,
    },
}

impl RowOrder {
    /// Returns which row of the file is row `j` of `n` of the tensor.
    pub fn source(self, j: usize, n: usize) -> usize {
        match self {
            RowOrder::Same => j,
            RowOrder::Rotary { n_heads } => {
                let head_dim = n / n_heads;
                let (head, at) = (j / head_dim, j % head_dim);
                head * head_dim + at % 2 * (head_dim / 2) + at / 2
            }
            RowOrder::ByHead { n_heads } => {
                let head_dim = n / (3 * n_heads);
                let (part, rest) = (j / (n_heads * head_dim), j % (n_heads * head_dim));
                let (head, at) = (rest / head_dim, rest % head_dim);
                head * 3 * head_dim + part * head_dim + at
            }
        }
    }

    /// Checks that `n` rows can be in this order.
    pub(crate) fn check(self, n: usize) -> Result<(), LoraError> {
        let unit = match self {
            RowOrder::Same => 1,
            RowOrder::Rotary { n_heads } => 2 * n_heads,
            RowOrder::ByHead { n_heads } => 3 * n_heads,
        };
        match unit > 0 && n.is_multiple_of(unit) {
            true => Ok(()),
            false => {
                let line = "as the model's heads ask; the adapter is for another model";
                Err(shape(format!("{n} rows are no multiple of {unit}, {line}")))
            }
        }
    }
}

/// The two factors of a change.
#[derive(Clone, Debug)]
pub struct FactorPair {
    /// `[rank, n_in]`
    pub a: Values,
    /// `[n_out, rank]`
    pub b: Values,
}

/// Change of one tensor by an adapter: `scale · B·A`, with a magnitude a row where it is a DoRA.
#[derive(Clone, Debug)]
pub struct Delta {
    /// The GGUF tensor without `.weight`, e.g. `blk.0.attn_q`; an expert has its number behind it
    /// (`blk.0.ffn_up_exps.3`).
    pub target: String,
    /// `alpha / rank`, or `alpha / √rank` of an rsLoRA.
    pub scale: f32,
    a: Values,
    b: Values,
    /// `[n_out, 1]`
    magnitude: Option<Values>,
    order: RowOrder,
}

impl Delta {
    /// Makes a change of a pair of factors; the rows of `b` are in `order`.
    ///
    /// # Errors
    /// The shapes do not fit each other, the rank is above [`RANK_MAX`], or the scale is no sensible number.
    pub fn new(
        target: impl Into<String>,
        scale: f32,
        FactorPair { a, b }: FactorPair,
        magnitude: Option<Values>,
        order: RowOrder,
    ) -> Result<Delta, LoraError> {
        let delta = Delta { target: target.into(), scale, a, b, magnitude, order };
        delta.check().map_err(|error| error.within(format_args!("'{}'", shown(&delta.target))))?;
        Ok(delta)
    }

    fn check(&self) -> Result<(), LoraError> {
        let (rank, n_out) = (self.a.n_rows, self.b.n_rows);
        if self.b.n_cols != rank {
            return Err(invalid(format!("a has rank {rank}, b {}", self.b.n_cols)));
        }
        if rank > RANK_MAX {
            let line = format!("rank {rank}, at most {RANK_MAX} is read");
            return Err(LoraError::new(LoraErrorKind::Limit, line));
        }
        if !(self.scale.is_finite() && self.scale.abs() <= SCALE_MAX) {
            return Err(invalid(format!("a scale of {}; at most {SCALE_MAX} makes sense", self.scale)));
        }
        if self.magnitude.as_ref().is_some_and(|m| m.n_rows * m.n_cols != n_out) {
            return Err(invalid(format!("the magnitude does not have {n_out} values, one a row")));
        }
        self.order.check(n_out)
    }

    /// Returns the rank.
    pub fn rank(&self) -> usize {
        self.a.n_rows
    }

    /// Returns the length of the layer's input.
    pub fn n_in(&self) -> usize {
        self.a.n_cols
    }

    /// Returns the length of the layer's result.
    pub fn n_out(&self) -> usize {
        self.b.n_rows
    }

    /// Returns whether it has magnitudes (DoRA).
    pub fn is_dora(&self) -> bool {
        self.magnitude.is_some()
    }

    /// Returns how the factors are kept in the file.
    pub fn ty(&self) -> GgmlType {
        self.a.ty
    }

    /// Returns the bytes of its values.
    pub fn n_bytes(&self) -> usize {
        self.a.n_bytes() + self.b.n_bytes() + self.magnitude.as_ref().map_or(0, Values::n_bytes)
    }

    /// Returns `A`: `[rank, n_in]`.
    ///
    /// # Errors
    /// [`LoraErrorKind::Value`]: a value is not a finite number.
    pub fn a(&self) -> Result<Vec<f32>, LoraError> {
        self.a.to_f32().map_err(|error| error.within(format_args!("'{}' a", shown(&self.target))))
    }

    /// Returns `B`: `[n_out, rank]`, rows in the order of the GGUF tensor.
    ///
    /// # Errors
    /// [`LoraErrorKind::Value`]: a value is not a finite number.
    pub fn b(&self) -> Result<Vec<f32>, LoraError> {
        let values = self.b.to_f32().map_err(|error| error.within(format_args!("'{}' b", shown(&self.target))))?;
        Ok(self.ordered(values, self.rank()))
    }

    /// Returns the magnitudes: `[n_out]`, in the order of the GGUF tensor.
    ///
    /// # Errors
    /// [`LoraErrorKind::Value`]: a value is not a finite number.
    pub fn magnitude(&self) -> Result<Option<Vec<f32>>, LoraError> {
        let values = self.magnitude.as_ref().map(Values::to_f32).transpose();
        let values = values.map_err(|error| error.within(format_args!("'{}' magnitude", shown(&self.target))))?;
        Ok(values.map(|values| self.ordered(values, 1)))
    }

    fn ordered(&self, values: Vec<f32>, n_cols: usize) -> Vec<f32> {
        if self.order == RowOrder::Same {
            return values;
        }
        let n = self.n_out();
        let row = |j: usize| &values[self.order.source(j, n) * n_cols..][..n_cols];
        (0..n).flat_map(|j| row(j).iter().copied()).collect()
    }

    fn describe(&self, mut builder: NamespaceBuilder) -> NamespaceBuilder {
        let shape = format!("{:?} {} {} {} {}", self.order, self.rank(), self.n_in(), self.n_out(), self.a.ty);
        builder = builder.part(&self.target, shape.as_bytes()).part("scale", &self.scale.to_le_bytes());
        builder = builder.part("a", &self.a.bytes).part("b", &self.b.bytes);
        self.magnitude.iter().fold(builder, |builder, m| builder.part("magnitude", &m.bytes))
    }
}

/// A low-rank adapter: what its files say, checked for itself; whether it fits a model, `Targets::bind` says.
///
/// ```
/// use ruvllm_lora::{Adapter, Delta, FactorPair, RowOrder, Values};
/// let (a, b) = (Values::from_f32(1, 4, &[1.0; 4]), Values::from_f32(2, 1, &[0.5, -0.5]));
/// let delta = Delta::new("blk.0.attn_q", 2.0, FactorPair { a, b }, None, RowOrder::Same)?;
/// let adapter = Adapter::new("tiny", vec![delta])?;
/// assert_eq!((adapter.n_params(), adapter.rank_max()), (6, 1));
/// # Ok::<(), ruvllm_lora::LoraError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Adapter {
    name: String,
    arch: Option<String>,
    /// By target.
    deltas: Vec<Delta>,
    content: [u8; 32],
    /// Tell whether its files were cut.
    watches: Vec<Watch>,
}

/// Returns the error of a map that was cut.
pub(crate) fn cut(watch: &Watch) -> Result<(), LoraError> {
    match watch.is_cut() {
        false => Ok(()),
        true => {
            let line = "the adapter's file was cut short while it was in use, or its disk failed; load it again";
            Err(LoraError::new(LoraErrorKind::Io, line))
        }
    }
}

impl Adapter {
    /// Makes an adapter of its parts.
    ///
    /// # Errors
    /// There is none, there are more than [`N_TARGETS_MAX`], or two change the same tensor.
    pub fn new(name: impl Into<String>, mut deltas: Vec<Delta>) -> Result<Adapter, LoraError> {
        if deltas.is_empty() {
            return Err(invalid("the adapter changes no tensor; it has no pair of lora_A and lora_B"));
        }
        if deltas.len() > N_TARGETS_MAX {
            let line = format!("{} targets, at most {N_TARGETS_MAX} are read", deltas.len());
            return Err(LoraError::new(LoraErrorKind::Limit, line));
        }
        deltas.sort_by(|x, y| x.target.cmp(&y.target));
        if let Some(pair) = deltas.windows(2).find(|pair| pair[0].target == pair[1].target) {
            return Err(invalid(format!("tensor '{}' is changed twice", shown(&pair[0].target))));
        }
        let content = deltas.iter().fold(NamespaceBuilder::new("adapter 1"), |builder, delta| delta.describe(builder));
        Ok(Adapter { name: name.into(), arch: None, deltas, content: content.identity(), watches: Vec::new() })
    }

    /// The same, of bytes that lie in maps.
    pub(crate) fn watching(self, watches: Vec<Watch>) -> Adapter {
        Adapter { watches, ..self }
    }

    /// Returns whether all that was read of its files so far was there.
    ///
    /// # Errors
    /// With kind `Io`: a file was cut short while it was in use. What was made of its values is worth nothing.
    pub fn check(&self) -> Result<(), LoraError> {
        self.watches.iter().try_for_each(cut)
    }

    /// Restricts the adapter to models of one architecture.
    #[must_use]
    pub fn for_arch(mut self, arch: Option<&str>) -> Adapter {
        self.arch = arch.map(str::to_owned);
        self
    }

    /// Returns its name: the file's or folder's, until somebody gives it another.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the architecture it was made for, if the file says so.
    pub fn arch(&self) -> Option<&str> {
        self.arch.as_deref()
    }

    /// Iterates over what it adds, by target.
    pub fn deltas(&self) -> impl ExactSizeIterator<Item = &Delta> {
        self.deltas.iter()
    }

    /// Returns what it adds to a tensor.
    pub fn delta(&self, target: &str) -> Option<&Delta> {
        let at = self.deltas.binary_search_by(|delta| delta.target.as_str().cmp(target));
        at.ok().map(|at| &self.deltas[at])
    }

    /// Returns a hash of everything that it does to a model.
    pub fn content(&self) -> [u8; 32] {
        self.content
    }

    /// Returns the number of its values.
    pub fn n_params(&self) -> usize {
        let of = |delta: &Delta| delta.rank() * (delta.n_in() + delta.n_out());
        let magnitudes = |delta: &Delta| if delta.is_dora() { delta.n_out() } else { 0 };
        self.deltas.iter().map(|delta| of(delta) + magnitudes(delta)).sum()
    }

    /// Returns the bytes of its values as the file has them.
    pub fn n_bytes(&self) -> usize {
        self.deltas.iter().map(Delta::n_bytes).sum()
    }

    /// Returns its largest rank.
    pub fn rank_max(&self) -> usize {
        self.deltas.iter().map(Delta::rank).max().unwrap_or(0)
    }

    /// Reads every value once.
    ///
    /// # Errors
    /// [`LoraErrorKind::Value`]: one is not a finite number.
    pub fn check_values(&self) -> Result<(), LoraError> {
        self.deltas.iter().try_for_each(|delta| {
            delta.a()?;
            delta.b()?;
            delta.magnitude().map(drop)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_orders_are_those_of_the_converter() {
        // reshape(2 heads, 2, 2).swapaxes(1, 2) of 8 rows.
        let order = RowOrder::Rotary { n_heads: 2 };
        assert_eq!((0..8).map(|j| order.source(j, 8)).collect::<Vec<_>>(), [0, 2, 1, 3, 4, 6, 5, 7]);
        // 2 heads of (q, k, v) with 2 rows each.
        let order = RowOrder::ByHead { n_heads: 2 };
        assert_eq!((0..12).map(|j| order.source(j, 12)).collect::<Vec<_>>(), [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]);
        assert!(order.check(13).is_err());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let values = |rows, cols| Values::from_f32(rows, cols, &vec![0.5; rows * cols]);
        let line = |scale, a, b| {
            Delta::new("blk.0.attn_q", scale, FactorPair { a, b }, None, RowOrder::Same)
                .expect_err("it cannot be")
                .to_string()
        };
        assert_eq!(line(1.0, values(2, 4), values(8, 3)), "'blk.0.attn_q': a has rank 2, b 3");
        assert_eq!(line(1.0, values(1025, 4), values(8, 1025)), "'blk.0.attn_q': rank 1025, at most 1024 is read");
        assert!(line(f32::NAN, values(2, 4), values(8, 2)).contains("a scale of NaN"));
        let delta = |x: f32| {
            let a = Values::from_f32(1, 2, &[x, 1.0]);
            Delta::new("blk.0.attn_q", 1.0, FactorPair { a, b: values(2, 1) }, None, RowOrder::Same).expect("a pair")
        };
        let error = Adapter::new("x", vec![delta(f32::INFINITY)]).expect("shapes fit").check_values();
        assert_eq!(
            error.expect_err("not a number").to_string(),
            "'blk.0.attn_q' a: value inf in row 0, column 0; the adapter is damaged or diverged"
        );
        assert!(Adapter::new("x", vec![delta(1.0), delta(2.0)]).is_err());
        assert!(Adapter::new("x", Vec::new()).is_err());
        let content = |x| Adapter::new("x", vec![delta(x)]).expect("an adapter").content();
        assert!(content(1.0) == content(1.0) && content(1.0) != content(2.0));
    }
}
