//! Low-rank products against f64, in every row of the table.

use super::*;
use crate::Isa;
use proptest::prelude::*;

/// A factor's values, packed in each way: what it stands for, and where it lies.
struct Packed {
    f32s: Vec<f32>,
    f16s: Vec<f16>,
    quants: Vec<i8>,
    scales: Vec<f32>,
}

impl Packed {
    /// Takes `rows` of `n` values and pads them.
    fn new(rows: &[f32], n: usize) -> Packed {
        let mut f32s = Vec::new();
        for row in rows.chunks_exact(n) {
            f32s.extend_from_slice(row);
            f32s.resize(f32s.len().next_multiple_of(PADDING), 0.0);
        }
        let quants = f32s.iter().map(|x| (x * 40.0) as i8).collect();
        let scales = (0..f32s.len() / Q8_BLOCK).map(|i| 0.02 + 0.001 * (i % 7) as f32).collect();
        Packed { f16s: f32s.iter().map(|&x| f16::from_f32(x)).collect(), f32s, quants, scales }
    }

    fn each(&self) -> [(Factor<'_>, Vec<f64>); 3] {
        let q8 = |i: usize| f64::from(f32::from(self.quants[i]) * self.scales[i / Q8_BLOCK]);
        [
            (Factor::F32(&self.f32s), self.f32s.iter().map(|&x| f64::from(x)).collect()),
            (Factor::F16(&self.f16s), self.f16s.iter().map(|x| x.to_f64()).collect()),
            (Factor::Q8 { quants: &self.quants, scales: &self.scales }, (0..self.quants.len()).map(q8).collect()),
        ]
    }
}

fn values(n: usize, seed: f32) -> Vec<f32> {
    (0..n).map(|i| ((i as f32 + seed) * 0.7313).sin() * (1.0 + (i % 5) as f32)).collect()
}

/// Bounds: a sum of `n` products in any order is off by at most `n·ε·Σ|product|`.
fn check(n: usize, rank: usize, k: usize) {
    let (x, packed) = (values(n * k, 0.3), Packed::new(&values(rank * k, 7.0), k));
    for (factor, exact) in packed.each() {
        for table in available() {
            let (mut t, mut y) = (vec![f32::NAN; n * rank], values(n * k, 2.0));
            table.shrink(factor, rank, &x, k, &mut t);
            for (at, &got) in t.iter().enumerate() {
                let (row, i) = (at / rank, at % rank);
                let terms = (0..k).map(|j| exact[i * stride(k) + j] * f64::from(x[row * k + j]));
                let bound = (k + 16) as f64 * f64::from(f32::EPSILON) * terms.clone().map(f64::abs).sum::<f64>();
                let error = (f64::from(got) - terms.sum::<f64>()).abs();
                assert!(error <= bound + 1e-30, "{} {factor:?} t[{row}][{i}]: {error:e} > {bound:e}", table.isa());
            }
            let before = y.clone();
            table.expand(factor, rank, &t, &mut y, k);
            for (at, &got) in y.iter().enumerate() {
                let (row, j) = (at / k, at % k);
                let terms = (0..rank).map(|i| exact[i * stride(k) + j] * f64::from(t[row * rank + i]));
                let size = terms.clone().map(f64::abs).sum::<f64>() + f64::from(before[at].abs());
                let bound = (rank + 2) as f64 * f64::from(f32::EPSILON) * size;
                let error = (f64::from(got) - terms.sum::<f64>() - f64::from(before[at])).abs();
                assert!(error <= bound + 1e-30, "{} {factor:?} y[{row}][{j}]: {error:e} > {bound:e}", table.isa());
            }
            alone(table, factor, Shape { n, rank, k }, &x, &t, &before, &y);
        }
    }
}

/// Numbers of rows, of ranks and of values in a row.
struct Shape {
    n: usize,
    rank: usize,
    k: usize,
}

/// A row's bits are those it has alone.
fn alone(
    table: &LowRankKernels,
    factor: Factor<'_>,
    Shape { n, rank, k }: Shape,
    x: &[f32],
    t: &[f32],
    before: &[f32],
    y: &[f32],
) {
    for row in 0..n {
        let (mut t1, mut y1) = (vec![0.0; rank], before[row * k..(row + 1) * k].to_vec());
        table.shrink(factor, rank, &x[row * k..(row + 1) * k], k, &mut t1);
        assert_eq!(t1, t[row * rank..(row + 1) * rank], "{}", table.isa());
        table.expand(factor, rank, &t1, &mut y1, k);
        assert_eq!(y1, y[row * k..(row + 1) * k], "{}", table.isa());
    }
}

#[test]
fn model_shapes() {
    for (n, rank, k) in [(1, 8, 576), (16, 8, 896), (9, 16, 192), (5, 4, 64), (3, 64, 1536)] {
        check(n, rank, k);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_shape(n in 1usize..10, rank in 1usize..20, k in 1usize..150) {
        check(n, rank, k);
    }
}

#[test]
#[should_panic(expected = "64 values, 64 scaled, for 2 rows of 64")]
fn a_factor_of_another_size_is_refused() {
    let mut t = [0.0; 2];
    pick(Isa::Scalar).shrink(Factor::F32(&[0.0; 64]), 2, &[0.0; 33], 33, &mut t);
}
