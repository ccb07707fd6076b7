//! Vectors of one length, one after another.

use crate::error::{RouterError, shape, value};

/// Rows of one width: what is learned from, or what is expected of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    width: usize,
    values: Vec<f32>,
}

impl Rows {
    /// Makes an empty table of rows of `width` values.
    ///
    /// # Panics
    /// `width` is 0.
    pub fn new(width: usize) -> Rows {
        assert!(width > 0, "a row has at least one value");
        Rows { width, values: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Errors
    /// Its length is another (kind `Shape`), or a value is not finite (kind `Value`).
    pub fn push(&mut self, row: &[f32]) -> Result<(), RouterError> {
        if row.len() != self.width {
            return Err(shape(format!("a vector has {} values; {} are needed here", row.len(), self.width)));
        }
        if let Some(at) = row.iter().position(|x| !x.is_finite()) {
            return Err(value(format!("value {at} of a vector is {}; only finite numbers are taken", row[at])));
        }
        self.values.extend_from_slice(row);
        Ok(())
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.values.len() / self.width
    }

    /// Tells whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns the length of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns row `i`.
    ///
    /// # Panics
    /// There is no such row.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.width..][..self.width]
    }

    /// Returns row `i` to be written.
    pub(crate) fn row_mut(&mut self, i: usize) -> &mut [f32] {
        &mut self.values[i * self.width..][..self.width]
    }

    /// Walks over the rows.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.width)
    }

    /// Returns the rows of these indices, in their order.
    ///
    /// # Panics
    /// There is no such row.
    pub fn pick(&self, indices: &[usize]) -> Rows {
        let values = indices.iter().flat_map(|&i| self.row(i)).copied().collect();
        Rows { width: self.width, values }
    }

    /// Makes `n` rows of zeros.
    pub(crate) fn zeros(n: usize, width: usize) -> Rows {
        Rows { width, values: vec![0.0; n * width] }
    }
}

/// Mean and spread of every value of a set of rows: brings others to mean 0 and a common spread.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scaler {
    /// What is taken away: `[width]`.
    pub(crate) means: Vec<f32>,
    /// What is multiplied then: `[width]`.
    pub(crate) gains: Vec<f32>,
}

/// Values further out than this many spreads are brought back to it.
const SPREADS_MAX: f32 = 4.0;

impl Scaler {
    /// Learns means and spreads; `gain(i)` is the spread that value `i` shall have. What never varies becomes 0.
    pub(crate) fn fit(rows: &Rows, gain: impl Fn(usize) -> f32) -> Scaler {
        let n = rows.len().max(1) as f64;
        let (mut sums, mut squares) = (vec![0.0f64; rows.width], vec![0.0f64; rows.width]);
        for row in rows.iter() {
            for ((&x, sum), square) in row.iter().zip(&mut sums).zip(&mut squares) {
                *sum += f64::from(x);
                *square += f64::from(x) * f64::from(x);
            }
        }
        let spread = |i: usize| (squares[i] / n - (sums[i] / n).powi(2)).max(0.0).sqrt();
        let gain_of = |i: usize| if spread(i) > 1e-6 { gain(i) / spread(i) as f32 } else { 0.0 };
        Scaler {
            means: sums.iter().map(|sum| (sum / n) as f32).collect(),
            gains: (0..rows.width).map(gain_of).collect(),
        }
    }

    /// Scales a vector.
    pub(crate) fn apply(&self, row: &[f32]) -> Vec<f32> {
        let scaled = row.iter().zip(&self.means).zip(&self.gains);
        scaled.map(|((x, mean), gain)| ((x - mean) * gain).clamp(-SPREADS_MAX, SPREADS_MAX)).collect()
    }

    /// Scales every row.
    pub(crate) fn apply_all(&self, rows: &Rows) -> Rows {
        Rows { width: rows.width, values: rows.iter().flat_map(|row| self.apply(row)).collect() }
    }
}
