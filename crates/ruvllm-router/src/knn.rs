//! Nearest neighbours: the mean of what was seen at the most similar vectors.

use crate::error::{RouterError, data};
use crate::math::{dot, normalise};
use crate::rows::Rows;

/// Remembers vectors with what was seen there; similarity is the cosine.
#[derive(Clone, Debug)]
pub struct Neighbours {
    vectors: Rows,
    targets: Rows,
}

impl Neighbours {
    /// Remembers `vectors` (`[n, dim]`, any length but 0) with their `targets` (`[n, n_out]`).
    ///
    /// # Errors
    /// There are no rows, or not as many of both; kind `Data`.
    pub fn new(vectors: &Rows, targets: &Rows) -> Result<Neighbours, RouterError> {
        if vectors.is_empty() || vectors.len() != targets.len() {
            let (n, m) = (vectors.len(), targets.len());
            return Err(data(format!("{n} vectors with {m} targets; neighbours need as many of both")));
        }
        let mut vectors = vectors.clone();
        (0..vectors.len()).for_each(|i| normalise(vectors.row_mut(i)));
        Ok(Neighbours { vectors, targets: targets.clone() })
    }

    /// Returns the `k` nearest rows with their cosines, nearest first; equal ones in their order.
    pub fn nearest(&self, x: &[f32], k: usize) -> Vec<(usize, f32)> {
        let length = dot(x, x).sqrt().max(f32::MIN_POSITIVE);
        let cosines = self.vectors.iter().map(|row| dot(row, x) / length);
        let mut hits: Vec<(usize, f32)> = cosines.enumerate().collect();
        let k = k.min(hits.len());
        let order = |a: &(usize, f32), b: &(usize, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if k < hits.len() {
            hits.select_nth_unstable_by(k, order);
            hits.truncate(k);
        }
        hits.sort_unstable_by(order);
        hits
    }

    /// Returns the mean of the targets of the `k` nearest rows: `[n_out]`.
    pub fn predict(&self, x: &[f32], k: usize) -> Vec<f32> {
        self.mean(&self.nearest(x, k))
    }

    /// Returns the mean of the targets of these hits.
    pub fn mean(&self, hits: &[(usize, f32)]) -> Vec<f32> {
        let mut mean = vec![0.0; self.targets.width()];
        for &(i, _) in hits {
            mean.iter_mut().zip(self.targets.row(i)).for_each(|(sum, y)| *sum += y / hits.len() as f32);
        }
        mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_are_found_in_order() {
        let (mut vectors, mut targets) = (Rows::new(2), Rows::new(1));
        for (vector, y) in [([1.0, 0.0], 0.0), ([0.0, 5.0], 1.0), ([3.0, 3.0], 1.0), ([-1.0, 0.0], 0.0)] {
            vectors.push(&vector).unwrap();
            targets.push(&[y]).unwrap();
        }
        let neighbours = Neighbours::new(&vectors, &targets).unwrap();
        let places: Vec<usize> = neighbours.nearest(&[0.2, 1.0], 3).iter().map(|hit| hit.0).collect();
        assert_eq!(places, [1, 2, 0]);
        assert_eq!(neighbours.predict(&[0.2, 1.0], 2), [1.0]);
        assert_eq!(neighbours.predict(&[0.2, 1.0], 9), [0.5]);
    }
}
