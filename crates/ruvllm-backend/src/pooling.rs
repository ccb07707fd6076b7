//! Shared steps of backends that make embeddings: the vectors of a text's tokens become one, and the first token's a score.

use ruvllm_model::{RankerSpec, TensorRows};

use crate::Pooling;

/// Pool of vectors that come in pieces.
pub struct VectorPool {
    pooling: Pooling,
    n_embd: usize,
    /// `[n_embd]`: the sum for the mean, else the vector that counts; all that came where none are pooled.
    sum: Vec<f64>,
    n: usize,
}

impl VectorPool {
    /// Makes an empty pool of vectors of `n_embd` values.
    pub fn new(pooling: Pooling, n_embd: usize) -> VectorPool {
        let n_sum = if pooling == Pooling::None { 0 } else { n_embd };
        VectorPool { pooling, n_embd, sum: vec![0.0; n_sum], n: 0 }
    }

    /// Takes the next vectors: `[n, n_embd]`.
    pub fn add(&mut self, vectors: &[f32]) {
        for vector in vectors.chunks_exact(self.n_embd) {
            match self.pooling {
                Pooling::Mean => self.sum.iter_mut().zip(vector).for_each(|(sum, &x)| *sum += f64::from(x)),
                Pooling::None => self.sum.extend(vector.iter().map(|&x| f64::from(x))),
                Pooling::Cls if self.n > 0 => {}
                Pooling::Cls | Pooling::Last => {
                    self.sum.iter_mut().zip(vector).for_each(|(sum, &x)| *sum = f64::from(x));
                }
            }
            self.n += 1;
        }
    }

    /// Returns the vector: `[n_embd]`, or those of all tokens.
    pub fn finish(self) -> Vec<f32> {
        let divisor = if self.pooling == Pooling::Mean { self.n.max(1) as f64 } else { 1.0 };
        self.sum.iter().map(|sum| (sum / divisor) as f32).collect()
    }
}

/// Returns a vector with its length brought to 1; one of zeros stays.
pub fn unit(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
    vector
}

/// Head of a cross-encoder: from the first token's vector to a score, `w · tanh(W·x + b) + c`, or without the inner layer.
pub struct PairHead {
    /// `[n_embd, n_embd]` and `[n_embd]`.
    dense: Option<(Vec<f32>, Vec<f32>)>,
    /// `[n_embd]`.
    weight: Vec<f32>,
    bias: f32,
}

impl PairHead {
    /// Takes the head's weights; `values` reads them.
    ///
    /// # Errors
    /// Errors of `values`.
    pub fn read<E>(spec: &RankerSpec, values: impl Fn(&TensorRows) -> Result<Vec<f32>, E>) -> Result<PairHead, E> {
        let dense = spec.dense.as_ref().map(|(matrix, bias)| Ok::<_, E>((values(matrix)?, values(bias)?)));
        let bias = spec.bias.as_ref().map(&values).transpose()?.and_then(|bias| bias.first().copied());
        Ok(PairHead { dense: dense.transpose()?, weight: values(&spec.weight)?, bias: bias.unwrap_or(0.0) })
    }

    /// Returns the score of a vector: `[n_embd]`.
    pub fn score(&self, x: &[f32]) -> f32 {
        let dot = |w: &[f32], x: &[f32]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>();
        let score = match &self.dense {
            None => dot(&self.weight, x),
            Some((matrix, bias)) => {
                let rows = matrix.chunks_exact(x.len()).zip(bias);
                let inner: Vec<f32> = rows.map(|(row, b)| (dot(row, x) + f64::from(*b)).tanh() as f32).collect();
                dot(&self.weight, &inner)
            }
        };
        (score + f64::from(self.bias)) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_one_vector() {
        let check = |pooling, expected: [f32; 2]| {
            let mut pool = VectorPool::new(pooling, 2);
            pool.add(&[1.0, 2.0, 3.0, 4.0]);
            pool.add(&[8.0, 0.0]);
            assert_eq!(pool.finish(), expected);
        };
        check(Pooling::Mean, [4.0, 2.0]);
        check(Pooling::Cls, [1.0, 2.0]);
        check(Pooling::Last, [8.0, 0.0]);
        let mut pool = VectorPool::new(Pooling::None, 2);
        pool.add(&[1.0, 2.0, 3.0, 4.0]);
        pool.add(&[8.0, 0.0]);
        assert_eq!(pool.finish(), [1.0, 2.0, 3.0, 4.0, 8.0, 0.0]);
        assert_eq!(unit(vec![3.0, 4.0]), [0.6, 0.8]);
        assert_eq!(unit(vec![0.0]), [0.0]);
    }

    #[test]
    fn a_head_scores_a_vector() {
        let plain = PairHead { dense: None, weight: vec![1.0, 2.0], bias: 3.0 };
        assert_eq!(plain.score(&[0.5, -1.0]), 1.5);
        // tanh(2 · 0.5 + 1), tanh(0.5 + 1 - 1.5)
        let dense = Some((vec![2.0, 0.0, 1.0, -1.0], vec![1.0, -1.5]));
        let deep = PairHead { dense, weight: vec![1.0, 2.0], bias: 3.0 };
        assert!((deep.score(&[0.5, -1.0]) - (3.0 + 2f32.tanh())).abs() < 1e-6);
    }
}
