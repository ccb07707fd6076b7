//! The vectors of a text's tokens become one.

use ruvllm_backend::Pooling;

/// Pools vectors that come in pieces.
pub(super) struct Pool {
    pooling: Pooling,
    n_embd: usize,
    /// `[n_embd]`: the sum for the mean, else the vector that counts; all that came where none are pooled.
    sum: Vec<f64>,
    n: usize,
}

impl Pool {
    pub(super) fn new(pooling: Pooling, n_embd: usize) -> Pool {
        let n_sum = if pooling == Pooling::None { 0 } else { n_embd };
        Pool { pooling, n_embd, sum: vec![0.0; n_sum], n: 0 }
    }

    /// Takes the next vectors: `[n, n_embd]`.
    pub(super) fn add(&mut self, vectors: &[f32]) {
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
    pub(super) fn finish(self) -> Vec<f32> {
        let divisor = if self.pooling == Pooling::Mean { self.n.max(1) as f64 } else { 1.0 };
        self.sum.iter().map(|sum| (sum / divisor) as f32).collect()
    }
}

/// Returns a vector with its length brought to 1; one of zeros stays.
pub(super) fn unit(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
    vector
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_one_vector() {
        let check = |pooling, expected: [f32; 2]| {
            let mut pool = Pool::new(pooling, 2);
            pool.add(&[1.0, 2.0, 3.0, 4.0]);
            pool.add(&[8.0, 0.0]);
            assert_eq!(pool.finish(), expected);
        };
        check(Pooling::Mean, [4.0, 2.0]);
        check(Pooling::Cls, [1.0, 2.0]);
        check(Pooling::Last, [8.0, 0.0]);
        let mut pool = Pool::new(Pooling::None, 2);
        pool.add(&[1.0, 2.0, 3.0, 4.0]);
        pool.add(&[8.0, 0.0]);
        assert_eq!(pool.finish(), [1.0, 2.0, 3.0, 4.0, 8.0, 0.0]);
        assert_eq!(unit(vec![3.0, 4.0]), [0.6, 0.8]);
        assert_eq!(unit(vec![0.0]), [0.0]);
    }
}
