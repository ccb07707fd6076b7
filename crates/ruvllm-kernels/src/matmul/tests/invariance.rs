//! Bits of a result whatever else is computed.

use super::*;

/// Bits of a result do not depend on the rows beside it, on how they are picked or laid out, on the threads or on the chunk.
pub(super) fn check_invariance(
    table: &'static MatmulKernels,
    ty: GgmlType,
    seed: u64,
    n_rows: usize,
    k: usize,
    n: usize,
) {
    let (k, mut rng) = (k.next_multiple_of(ty.block_len()), Rng(seed));
    let bytes = blocks(&mut rng, ty, n_rows, k, Fill::Random);
    let x = rng.floats(n * k);
    let threads = ThreadPool::new(1);
    let w = Matrix::new(table, &threads, ty, n_rows, k, bytes.clone());
    let mut expected = vec![0.0; n * n_rows];
    for (x, out) in x.chunks_exact(k).zip(expected.chunks_exact_mut(n_rows)) {
        matmul(&threads, &w, &acts(table, &threads, x, 1, k, w.act_format()), out);
    }
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    for n_threads in [1, 2, 3] {
        let threads = ThreadPool::new(n_threads);
        let w = Matrix::new(table, &threads, ty, n_rows, k, bytes.clone());
        let (all, mut out) = (acts(table, &threads, &x, n, k, w.act_format()), vec![f32::NAN; n * n_rows]);
        let case = format!("{} {ty} {n_rows}x{k} n={n} threads={n_threads}", table.name());
        matmul(&threads, &w, &all, &mut out);
        assert_eq!(bits(&out), bits(&expected), "{case}");
        let rows: Vec<u32> = (0..n + 3).map(|_| (rng.next() % n as u64) as u32).collect();
        let mut out = vec![f32::NAN; rows.len() * n_rows];
        matmul_grouped(&threads, &all, [GroupedProduct { matrix: &w, rows: &rows, out: &mut out }]);
        for (&row, out) in rows.iter().zip(out.chunks_exact(n_rows)) {
            assert_eq!(bits(out), bits(&expected[row as usize * n_rows..][..n_rows]), "{case}, gathered");
        }
        // The rows cut into as many products as there are cuts, one of them without a row.
        let mut out = vec![f32::NAN; rows.len() * n_rows];
        let cuts = [0, 1, 1, rows.len().min(3), rows.len()];
        let mut left = &mut out[..];
        let products = cuts.windows(2).map(|cut| {
            let (out, rest) = std::mem::take(&mut left).split_at_mut((cut[1] - cut[0]) * n_rows);
            left = rest;
            GroupedProduct { matrix: &w, rows: &rows[cut[0]..cut[1]], out }
        });
        matmul_grouped(&threads, &all, products);
        for (&row, out) in rows.iter().zip(out.chunks_exact(n_rows)) {
            assert_eq!(bits(out), bits(&expected[row as usize * n_rows..][..n_rows]), "{case}, grouped");
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_batch() {
    for table in rows().filter(|table| table.isa() != Isa::Scalar) {
        for (at, ty) in INT_TYPES.into_iter().chain([GgmlType::F16, GgmlType::IQ2_S]).enumerate() {
            for n in 1..=40 {
                check_invariance(table, ty, n as u64, [17, 33, 64][(n + at) % 3], [96, 256][n % 2], n);
            }
        }
    }
}

/// Rows that promise each other's bits: AMX those of AVX-512, AVX-VNNI those of AVX2.
#[test]
fn related_rows_have_the_same_bits() {
    let bits = |table: &'static MatmulKernels, ty, n_rows, k, n| {
        let (threads, mut rng) = (ThreadPool::new(1), Rng(18));
        let w = Matrix::new(table, &threads, ty, n_rows, k, blocks(&mut rng, ty, n_rows, k, Fill::Random));
        let x = rng.floats((n + 2) * k);
        let x = acts(table, &threads, &x, n + 2, k, ActFormat::Q16);
        // Rows one after the other, and not.
        let mut out = vec![0.0; 2 * n * n_rows];
        let rows: Vec<u32> = (1..=n as u32).chain((0..n as u32).map(|i| (7 * i) % (n as u32 + 2))).collect();
        for (rows, out) in rows.chunks_exact(n).zip(out.chunks_exact_mut(n * n_rows)) {
            matmul_grouped(&threads, &x, [GroupedProduct { matrix: &w, rows, out }]);
        }
        out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    let find = |name: &str| rows().find(|table| table.name() == name);
    for pair in [["amx (software tiles)", "avx512"], ["amx", "avx512"], ["avxvnni", "avx2"]] {
        let [Some(one), Some(other)] = pair.map(find) else { continue };
        for ty in INT_TYPES {
            for (n_rows, k, n) in [(32, 256, 3), (48, 512, 4), (33, 768, 19), (64, 256, 21), (17, 2048, 37)] {
                let expected = bits(other, ty, n_rows, k, n);
                assert_eq!(bits(one, ty, n_rows, k, n), expected, "{} {ty} {n_rows}x{k} n={n}", one.name());
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_cuts_through_long_rows_and_many_rows() {
    // 2,048 and 2,080 values are cut in chunks of 16 blocks; 520 rows are more than a chunk of rows.
    for table in rows() {
        for ty in [GgmlType::Q8_0, GgmlType::Q5_0, GgmlType::Q6_K, GgmlType::Q4_K] {
            check_invariance(table, ty, 7, 49, 2048, 14);
        }
        check_invariance(table, GgmlType::Q4_1, 8, 47, 2080, 20);
        check_invariance(table, GgmlType::Q8_0, 9, 33, 832, 520);
        check_invariance(table, GgmlType::F32, 9, 33, 1100, 7);
    }
}

#[test]
fn odd_shapes_of_real_models() {
    for table in rows() {
        for n_rows in [1, 15, 17, 576] {
            check_invariance(table, GgmlType::Q8_0, 10, n_rows, 576, 3);
            check_invariance(table, GgmlType::Q4_K, 11, n_rows, 256, 2);
        }
    }
}
