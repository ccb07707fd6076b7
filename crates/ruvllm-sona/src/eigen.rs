//! Eigenvectors of a symmetric matrix, by rotations of pairs of its rows.
//!
//! ```text
//! rows R = S, V = I
//! until every pair of rows stands upright:   for p < q:
//!     rotate rows p and q of R (and of V) so that R[p]·R[q] = 0
//! then |R[i]| is an eigenvalue of S >= 0 and V[i] its eigenvector
//! ```
//! One-sided Jacobi (Hestenes 1958): every access is a whole row, so the compiler's vectors do the work; a matrix of 576
//! takes half a second once in a model's life. The order of rotations is fixed: same input, same bits.

/// Sweeps that are tried; eight or nine suffice.
const N_SWEEPS_MAX: usize = 30;

/// Returns the eigenvalues of a symmetric matrix without negative ones, largest first, and its eigenvectors as rows:
/// `[n, n]`.
///
/// # Panics
/// If the matrix is not `[n, n]`.
pub(crate) fn symmetric(matrix: Vec<f64>, n: usize) -> (Vec<f64>, Vec<f64>) {
    assert_eq!(matrix.len(), n * n, "eigen: {} values for a matrix of {n}", matrix.len());
    let mut rows = matrix;
    let mut vectors = vec![0.0; n * n];
    (0..n).for_each(|i| vectors[i * n + i] = 1.0);
    let mut squares: Vec<f64> = rows.chunks_exact(n).map(|row| dot(row, row)).collect();
    let least = squares.iter().sum::<f64>() * 1e-30;
    for _ in 0..N_SWEEPS_MAX {
        let mut n_turned = 0;
        for p in 0..n {
            for q in p + 1..n {
                let product = dot(&rows[p * n..][..n], &rows[q * n..][..n]);
                if product * product <= 1e-20 * squares[p] * squares[q] || squares[p].max(squares[q]) <= least {
                    continue;
                }
                n_turned += 1;
                let zeta = (squares[q] - squares[p]) / (2.0 * product);
                let t = zeta.signum() / (zeta.abs() + (1.0 + zeta * zeta).sqrt());
                let c = 1.0 / (1.0 + t * t).sqrt();
                let rotation = Rotation { p, q, cos: c, sin: c * t };
                rotate(&mut rows, n, rotation);
                rotate(&mut vectors, n, rotation);
                squares[p] -= t * product;
                squares[q] += t * product;
            }
        }
        // What was updated step by step has gathered rounding.
        squares = rows.chunks_exact(n).map(|row| dot(row, row)).collect();
        if n_turned == 0 {
            break;
        }
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| squares[j].total_cmp(&squares[i]).then(i.cmp(&j)));
    let values = order.iter().map(|&i| squares[i].max(0.0).sqrt()).collect();
    let sorted = order.iter().flat_map(|&i| vectors[i * n..][..n].to_vec()).collect();
    (values, sorted)
}

/// Adds `x·xᵀ / n` to the upper half of a square matrix.
pub(crate) fn add_square(matrix: &mut [f64], x: &[impl Copy + Into<f64>], n: f64) {
    for (i, row) in matrix.chunks_exact_mut(x.len()).enumerate() {
        let factor = x[i].into() / n;
        row[i..].iter_mut().zip(&x[i..]).for_each(|(sum, &x)| *sum += factor * x.into());
    }
}

/// Copies the upper half of a square matrix to the lower one.
pub(crate) fn mirror(matrix: &mut [f64], n: usize) {
    for i in 0..n {
        (0..i).for_each(|j| matrix[i * n + j] = matrix[j * n + i]);
    }
}

/// Rotation of rows `p < q`: `(cos·p - sin·q, sin·p + cos·q)`.
#[derive(Clone, Copy)]
struct Rotation {
    p: usize,
    q: usize,
    cos: f64,
    sin: f64,
}

/// Turns two rows of a matrix of `n` columns.
fn rotate(rows: &mut [f64], n: usize, Rotation { p, q, cos: c, sin: s }: Rotation) {
    let (before, after) = rows.split_at_mut(q * n);
    for (x, y) in before[p * n..][..n].iter_mut().zip(&mut after[..n]) {
        (*x, *y) = (c * *x - s * *y, s * *x + c * *y);
    }
}

/// The sum of products, in eight partial sums that the compiler keeps in vectors.
fn dot(x: &[f64], y: &[f64]) -> f64 {
    let ((x8, x_tail), (y8, y_tail)) = (x.as_chunks::<8>(), y.as_chunks::<8>());
    let mut sums = [0.0; 8];
    for (x, y) in x8.iter().zip(y8) {
        (0..8).for_each(|i| sums[i] += x[i] * y[i]);
    }
    sums.iter().sum::<f64>() + x_tail.iter().zip(y_tail).map(|(x, y)| x * y).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_is_its_eigenvectors_again() {
        for n in [1, 2, 7, 33] {
            // A·Aᵀ of noise, with one direction that counts a thousand times more.
            let noise = |i: usize, k: usize| ((i * 37 + k * 101 + 5) as f64 * 0.73).sin();
            let mut matrix = vec![0.0; n * n];
            for i in 0..n {
                for j in 0..n {
                    matrix[i * n + j] = (0..n).map(|k| noise(i, k) * noise(j, k)).sum::<f64>() + 1000.0;
                }
            }
            let (values, vectors) = symmetric(matrix.clone(), n);
            assert!(values.is_sorted_by(|x, y| x >= y));
            for i in 0..n {
                for j in 0..n {
                    let sum: f64 = (0..n).map(|k| values[k] * vectors[k * n + i] * vectors[k * n + j]).sum();
                    assert!((sum - matrix[i * n + j]).abs() < 1e-8 * matrix[0].abs(), "{n}: {i}, {j}");
                    let upright = dot(&vectors[i * n..][..n], &vectors[j * n..][..n]);
                    assert!((upright - f64::from(u8::from(i == j))).abs() < 1e-9, "{n}: {i}, {j}");
                }
            }
        }
    }

    #[test]
    fn a_matrix_of_zeros_has_no_direction() {
        let (values, _) = symmetric(vec![0.0; 9], 3);
        assert_eq!(values, [0.0; 3]);
    }
}
