//! The float path against f64.

use super::*;

/// The float path against f64. A pair adds `KC / lanes` products per lane, then a tree, then chunks: at most `depth`
/// roundings for any term, so `|error| ≤ depth * ε * Σ|w * x|`.
pub(super) fn check_floats(ty: GgmlType, seed: u64, n_rows: usize, k: usize, n: usize) {
    let (k, threads, mut rng) = (k.next_multiple_of(ty.block_len()), ThreadPool::new(1), Rng(seed));
    let bytes = blocks(&mut rng, ty, n_rows, k, Fill::Random);
    let (x, mut w) = (rng.floats(n * k), vec![0.0; n_rows * k]);
    dequant::dequantize(ty, &bytes, &mut w);
    let depth = (float::KC / 4 + 8 + k.div_ceil(float::KC)) as f64;
    for table in rows() {
        let matrix = Matrix::new(table, &threads, ty, n_rows, k, bytes.clone());
        assert_eq!((matrix.act_format(), matrix.weight_bytes()), (ActFormat::F32, bytes.len()));
        let mut out = vec![f32::NAN; n * n_rows];
        matmul(&threads, &matrix, &acts(table, &threads, &x, n, k, ActFormat::F32), &mut out);
        for (i, x) in x.chunks_exact(k).enumerate() {
            for (r, w) in w.chunks_exact(k).enumerate() {
                let terms = || w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
                let magnitude: f64 = terms().map(f64::abs).sum();
                let error = (f64::from(out[i * n_rows + r]) - terms().sum::<f64>()).abs();
                let bound = depth * (f64::from(f32::EPSILON) * magnitude + f64::from(f32::MIN_POSITIVE));
                assert!(error <= bound, "{} {ty} {n_rows}x{k} n={n}: {error:e} > {bound:e}", table.name());
            }
        }
    }
}

#[test]
fn every_other_type_takes_the_float_path() {
    for &ty in GgmlType::ALL {
        if Matrix::supports(ty) && !INT_TYPES.contains(&ty) {
            check_floats(ty, 12, 19, 768, 5);
            check_floats(ty, 13, 3, 100, 1);
        }
    }
}
