//! The best approximation of a matrix by one of small rank: its largest singular values and their vectors.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Columns beyond the rank that a search takes along, and how often it is sharpened (Halko, Martinsson & Tropp 2011,
/// arXiv:0909.4061, alg. 4.4).
const EXTRA: usize = 12;
const N_ROUNDS: usize = 6;
/// A rotation that changes less is none.
const TOLERANCE: f64 = 1e-14;
const N_SWEEPS_MAX: usize = 60;

/// Returns factors `a`: `[rank, n_in]` and `b`: `[n_out, rank]` of the product of `b`: `[n_out, n]` and `a`: `[n, n_in]`,
/// brought down to `rank`.
pub(crate) fn of_product(a: &[f64], b: &[f64], n: usize, n_in: usize, rank: usize) -> (Vec<f64>, Vec<f64>) {
    // Columns of B, and rows of A, in orthonormal directions: B = Q·R, Aᵀ = P·S, so B·A = Q·(R·Sᵀ)·Pᵀ.
    let n_out = b.len() / n;
    let mut q: Vec<Vec<f64>> = (0..n).map(|i| (0..n_out).map(|j| b[j * n + i]).collect()).collect();
    let mut p: Vec<Vec<f64>> = a.chunks_exact(n_in).map(<[f64]>::to_vec).collect();
    let (r, s) = (orthonormalize(&mut q), orthonormalize(&mut p));
    // Column j of the middle: Σ_l R[i][l]·S[j][l].
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    let row = |i: usize| (0..n).map(|l| r[l][i]).collect::<Vec<f64>>();
    let rows: Vec<Vec<f64>> = (0..n).map(row).collect();
    let columns = (0..n).map(|j| {
        let s_row: Vec<f64> = (0..n).map(|l| s[l][j]).collect();
        rows.iter().map(|r_row| dot(r_row, &s_row)).collect()
    });
    let (u, v) = jacobi(columns.collect());
    combine(&q, &u, &p, &v, rank)
}

/// Returns factors `a`: `[rank, n_in]` and `b`: `[n_out, rank]` of a matrix `m`: `[n_out, n_in]`, brought down to `rank`.
pub(super) fn of_dense(m: &[f64], n_in: usize, rank: usize) -> (Vec<f64>, Vec<f64>) {
    let n_out = m.len() / n_in;
    let n = (rank + EXTRA).min(n_in).min(n_out);
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let mut draw = || (rng.next_u32() as f64 / f64::from(u32::MAX)) - 0.5;
    let mut p: Vec<Vec<f64>> = (0..n).map(|_| (0..n_in).map(|_| draw()).collect()).collect();
    let mut q: Vec<Vec<f64>> = Vec::new();
    for _ in 0..N_ROUNDS {
        orthonormalize(&mut p);
        q = p.iter().map(|p| times(m, n_in, p)).collect();
        orthonormalize(&mut q);
        p = q.iter().map(|q| times_transposed(m, n_in, q)).collect();
    }
    // m ≈ Q·(Qᵀ·m), whose rows are in p: the product of orthonormal columns with rows to be decomposed.
    let s = orthonormalize(&mut p);
    let columns = (0..n).map(|j| (0..n).map(|i| s[i][j]).collect()).collect();
    let (u, v) = jacobi(columns);
    combine(&q, &u, &p, &v, rank)
}

/// `m·x`
fn times(m: &[f64], n_in: usize, x: &[f64]) -> Vec<f64> {
    m.chunks_exact(n_in).map(|row| row.iter().zip(x).map(|(m, x)| m * x).sum()).collect()
}

/// `mᵀ·x`
fn times_transposed(m: &[f64], n_in: usize, x: &[f64]) -> Vec<f64> {
    let mut out = vec![0.0; n_in];
    for (row, x) in m.chunks_exact(n_in).zip(x) {
        out.iter_mut().zip(row).for_each(|(y, m)| *y += m * x);
    }
    out
}

/// Makes columns orthonormal (modified Gram-Schmidt, twice), and returns `r` with `column_j = Σ_i r[j][i]·q_i`. A column
/// that depends on those before it becomes zero.
fn orthonormalize(columns: &mut [Vec<f64>]) -> Vec<Vec<f64>> {
    let n = columns.len();
    let mut r = vec![vec![0.0; n]; n];
    for (j, r) in r.iter_mut().enumerate() {
        let (before, rest) = columns.split_at_mut(j);
        let column = &mut rest[0];
        let length = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
        let original = length(column);
        for _ in 0..2 {
            for (i, q) in before.iter().enumerate() {
                let part: f64 = q.iter().zip(column.iter()).map(|(q, x)| q * x).sum();
                r[i] += part;
                column.iter_mut().zip(q).for_each(|(x, q)| *x -= part * q);
            }
        }
        let norm = length(column);
        if norm > 1e-13 * original && norm > 0.0 {
            r[j] = norm;
            column.iter_mut().for_each(|x| *x /= norm);
        } else {
            column.fill(0.0);
        }
    }
    r
}

/// Decomposes a square matrix given by columns: returns the columns of `U·Σ` and of `V`, the largest first, with `M =
/// U·Σ·Vᵀ` (one-sided Jacobi, Hestenes 1958).
fn jacobi(mut m: Vec<Vec<f64>>) -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
    let n = m.len();
    let mut v: Vec<Vec<f64>> = (0..n).map(|j| (0..n).map(|i| f64::from(u8::from(i == j))).collect()).collect();
    for _ in 0..N_SWEEPS_MAX {
        let mut is_done = true;
        for i in 0..n {
            for j in i + 1..n {
                let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
                let (x, y, xy) = (dot(&m[i], &m[i]), dot(&m[j], &m[j]), dot(&m[i], &m[j]));
                if xy.abs() <= TOLERANCE * (x * y).sqrt() {
                    continue;
                }
                is_done = false;
                let zeta = (y - x) / (2.0 * xy);
                let tangent = zeta.signum() / (zeta.abs() + (1.0 + zeta * zeta).sqrt());
                let cosine = 1.0 / (1.0 + tangent * tangent).sqrt();
                rotate(&mut m, i, j, cosine, cosine * tangent);
                rotate(&mut v, i, j, cosine, cosine * tangent);
            }
        }
        if is_done {
            break;
        }
    }
    let mut order: Vec<usize> = (0..n).collect();
    let size = |j: &usize| m[*j].iter().map(|x| x * x).sum::<f64>();
    order.sort_by(|x, y| size(y).total_cmp(&size(x)));
    (order.iter().map(|&j| m[j].clone()).collect(), order.iter().map(|&j| v[j].clone()).collect())
}

fn rotate(columns: &mut [Vec<f64>], i: usize, j: usize, cosine: f64, sine: f64) {
    let (before, rest) = columns.split_at_mut(j);
    for (x, y) in before[i].iter_mut().zip(&mut rest[0]) {
        (*x, *y) = (cosine * *x - sine * *y, sine * *x + cosine * *y);
    }
}

/// Returns `b = Q·U·√` and `a = √·Vᵀ·Pᵀ` of the first `rank` directions, the singular value shared between both.
fn combine(q: &[Vec<f64>], u: &[Vec<f64>], p: &[Vec<f64>], v: &[Vec<f64>], rank: usize) -> (Vec<f64>, Vec<f64>) {
    let (n_out, n_in) = (q.first().map_or(0, Vec::len), p.first().map_or(0, Vec::len));
    let (mut a, mut b) = (vec![0.0; rank * n_in], vec![0.0; n_out * rank]);
    for (l, (u, v)) in u.iter().zip(v).take(rank).enumerate() {
        let root = u.iter().map(|x| x * x).sum::<f64>().sqrt().sqrt();
        if root == 0.0 {
            continue;
        }
        for (q, x) in q.iter().zip(u) {
            q.iter().enumerate().for_each(|(j, q)| b[j * rank + l] += q * x / root);
        }
        for (p, x) in p.iter().zip(v) {
            a[l * n_in..(l + 1) * n_in].iter_mut().zip(p).for_each(|(a, p)| *a += p * x * root);
        }
    }
    (a, b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, seed: f64) -> Vec<f64> {
        (0..n).map(|i| ((i as f64 + seed) * 0.917).sin() + 0.3 * ((i * i) as f64 * 0.31 + seed).cos()).collect()
    }

    fn product(a: &[f64], b: &[f64], n_in: usize) -> Vec<f64> {
        let rank = a.len() / n_in;
        b.chunks_exact(rank).flat_map(|b| (0..n_in).map(|c| (0..rank).map(|i| b[i] * a[i * n_in + c]).sum())).collect()
    }

    fn distance(x: &[f64], y: &[f64]) -> f64 {
        x.iter().zip(y).map(|(x, y)| (x - y).powi(2)).sum::<f64>().sqrt()
    }

    /// Singular values of `m`, by the eigenvalues of `m·mᵀ`: power iterations with deflation, which share nothing with the
    /// above.
    fn singular_values(m: &[f64], n_in: usize, n: usize) -> Vec<f64> {
        let mut rest = m.to_vec();
        let mut values = Vec::new();
        for _ in 0..n {
            let mut x = noise(n_in, 5.0);
            for _ in 0..4000 {
                let y = times(&rest, n_in, &x);
                x = times_transposed(&rest, n_in, &y);
                let length = x.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-300);
                x.iter_mut().for_each(|x| *x /= length);
            }
            let y = times(&rest, n_in, &x);
            values.push(y.iter().map(|y| y * y).sum::<f64>().sqrt());
            for (row, y) in rest.chunks_exact_mut(n_in).zip(&y) {
                row.iter_mut().zip(&x).for_each(|(m, x)| *m -= y * x);
            }
        }
        values
    }

    #[test]
    fn what_is_cut_off_is_the_least_that_can_be() {
        let (n_out, n_in, n) = (19, 14, 6);
        let (a, b) = (noise(n * n_in, 1.0), noise(n_out * n, 2.0));
        let m = product(&a, &b, n_in);
        let values = singular_values(&m, n_in, n);
        for rank in [1, 3, 6] {
            let least = values[rank..].iter().map(|s| s * s).sum::<f64>().sqrt();
            for (a, b) in [of_product(&a, &b, n, n_in, rank), of_dense(&m, n_in, rank)] {
                assert_eq!((a.len(), b.len()), (rank * n_in, n_out * rank));
                let error = distance(&product(&a, &b, n_in), &m);
                assert!((error - least).abs() < 1e-6 * values[0], "rank {rank}: {error} for {least}");
            }
        }
    }

    #[test]
    fn directions_that_depend_on_each_other_and_zeros() {
        let (n_in, a) = (5, noise(5, 1.0));
        let twice = [a.clone(), a.clone()].concat();
        let b = noise(8, 3.0);
        let m = product(&twice, &b, n_in);
        let (x, y) = of_product(&twice, &b, 2, n_in, 1);
        assert!(distance(&product(&x, &y, n_in), &m) < 1e-12);
        let (x, y) = of_dense(&[0.0; 20], n_in, 2);
        assert!(x.iter().chain(&y).all(|&x| x == 0.0));
    }
}
