//! What a shortlist leaves against the whole product.

use super::*;

/// Returns a Q8_0 matrix whose rows differ in length, as those of a head do: most products are far below the largest.
fn head(rng: &mut Rng, n_rows: usize, k: usize) -> Vec<u8> {
    let mut bytes = blocks(rng, GgmlType::Q8_0, n_rows, k, Fill::Random).to_vec();
    for row in bytes.chunks_exact_mut(GgmlType::Q8_0.row_bytes(k).expect("whole blocks")) {
        let size = 0.001 * 2f32.powf(4.0 * rng.f32());
        for block in row.chunks_exact_mut(GgmlType::Q8_0.block_bytes()) {
            block[..2].copy_from_slice(&f16::from_f32(size).to_le_bytes());
        }
    }
    bytes
}

fn n_rows_of(bytes: &[u8], k: usize) -> usize {
    bytes.len() / GgmlType::Q8_0.row_bytes(k).expect("whole blocks")
}

/// Compares every result with the whole product's, for shortlists of several directions, and returns the share of the matrix
/// that was read without one.
fn check(table: &'static MatmulKernels, bytes: &[u8], k: usize, x: &[f32], n_best: usize) -> Option<f32> {
    let mean: Vec<f32> = (0..k).map(|i| x.iter().skip(i).step_by(k).sum()).collect();
    let elsewhere = Rng(n_rows_of(bytes, k) as u64).floats(k);
    for towards in [mean, elsewhere, vec![1e-30; k], vec![f32::INFINITY; k], vec![1e30; k]] {
        check_towards(table, bytes, x, &towards, n_best);
    }
    check_towards(table, bytes, x, &vec![0.0; k], n_best)
}

/// The same for a shortlist of one direction.
fn check_towards(
    table: &'static MatmulKernels,
    bytes: &[u8],
    x: &[f32],
    towards: &[f32],
    n_best: usize,
) -> Option<f32> {
    let k = towards.len();
    let n_rows = n_rows_of(bytes, k);
    let (n, n_threads) = (x.len() / k, 1 + n_rows % 3);
    let threads = ThreadPool::new(n_threads);
    let w = Matrix::new(table, &threads, GgmlType::Q8_0, n_rows, k, Bytes::copy_from_slice(bytes));
    let x = acts(table, &threads, x, n, k, w.act_format());
    let mut whole = vec![0.0; n * n_rows];
    matmul(&threads, &w, &x, &mut whole);
    let shortlist = HeadShortlist::new(table, &threads, &w, towards)?;
    let (mut out, mut top_k) = (vec![f32::NAN; n * n_rows], TopK::default());
    let (mut approx, mut known) = (vec![f32::NAN; n * n_rows], vec![0.0; n * n_rows]);
    let result = ShortlistOut { k: n_best, logits: &mut out, approx: Some(&mut approx) };
    let share = shortlist.multiply(&threads, &w, &x, &mut top_k, result);
    shortlist.approx_logits(&threads, &x, &mut known);
    let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&approx), bits(&known), "{} {n_rows}x{k}", table.name());
    let mut again = vec![f32::NAN; n * n_rows];
    let result = ShortlistOut { k: n_best, logits: &mut again, approx: None };
    assert_eq!(shortlist.multiply(&threads, &w, &x, &mut top_k, result), share);
    assert_eq!(bits(&again), bits(&out));
    for (out, whole) in out.chunks_exact(n_rows).zip(whole.chunks_exact(n_rows)) {
        let mut sorted = whole.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let least = sorted[n_best - 1];
        for (r, (out, whole)) in out.iter().zip(whole).enumerate() {
            let is_same = out.to_bits() == whole.to_bits();
            let is_out = *out == f32::NEG_INFINITY && *whole < least;
            assert!(is_same || is_out, "{} {n_rows}x{k}, row {r}: {out}, in full {whole}", table.name());
        }
    }
    Some(share)
}

#[test]
fn the_largest_products_are_those_of_the_whole_matrix() {
    for table in rows() {
        for (seed, n_rows, k, n) in [(1, 400, 96, 1), (2, 47, 576, 3), (3, 1000, 64, 2), (4, 16, 32, 1)] {
            let mut rng = Rng(seed);
            let bytes = head(&mut rng, n_rows, k);
            let x = rng.floats(n * k);
            for n_best in [1, 2, 7, n_rows] {
                check(table, &bytes, k, &x, n_best);
            }
        }
    }
}

#[test]
fn most_of_a_head_is_not_read() {
    for table in rows() {
        let (n_rows, k, mut rng) = (2000, 128, Rng(5));
        let x = rng.floats(2 * k);
        let bytes = head(&mut rng, n_rows, k);
        let (one, eight) = (check(table, &bytes, k, &x, 1), check(table, &bytes, k, &x, 8));
        let (one, eight) = (one.expect("its scales are numbers"), eight.expect("its scales are numbers"));
        assert!(one > 0.0 && one < 0.2 && one < eight && eight < 0.6, "{}: {one}, {eight}", table.name());
    }
}

#[test]
fn what_rows_have_in_common_is_kept_apart() {
    for table in rows() {
        let (n_rows, k, mut rng) = (2000, 128, Rng(11));
        let bytes = head(&mut rng, n_rows, k);
        let common = rng.floats(k);
        let x: Vec<f32> = common.iter().chain(&common).zip(rng.floats(2 * k)).map(|(m, x)| 3.0 * m + x).collect();
        let share = |towards: &[f32]| check_towards(table, &bytes, &x, towards, 8).expect("its scales are numbers");
        // The likeliest panels are read in any case.
        let least = 8.0 / (n_rows / 16) as f32;
        let (without, with) = (share(&vec![0.0; k]) - least, share(&common) - least);
        assert!(with < 0.5 * without, "{}: {without}, {with}", table.name());
    }
}

#[test]
fn weights_of_any_kind_are_screened_or_refused() {
    for table in rows() {
        for fill in FILLS {
            let (n_rows, k, mut rng) = (100, 96, Rng(6));
            let bytes = blocks(&mut rng, GgmlType::Q8_0, n_rows, k, fill);
            let share = check(table, &bytes, k, &rng.floats(k), 2);
            // Eight times the scale is infinite.
            assert_eq!(share.is_none(), fill == Fill::HugeScales, "{} {fill:?}", table.name());
        }
    }
}

#[test]
fn rows_that_differ_in_low_bits_only_are_told_apart() {
    for table in rows() {
        let (n_rows, k, mut rng) = (320, 64, Rng(7));
        let x = rng.floats(k);
        let mut bytes = blocks(&mut rng, GgmlType::Q8_0, 1, k, Fill::Random).repeat(n_rows);
        let row_bytes = GgmlType::Q8_0.row_bytes(k).expect("whole blocks");
        for (r, row) in bytes.chunks_exact_mut(row_bytes).enumerate() {
            row.iter_mut()
                .enumerate()
                .filter(|(i, _)| i % 34 > 1)
                .for_each(|(i, q)| *q = (*q & !7) | ((i * r) % 8) as u8);
        }
        for n_best in [1, 5] {
            check(table, &bytes, k, &x, n_best);
        }
    }
}

#[test]
fn what_is_not_finite_is_multiplied_in_full() {
    for table in rows() {
        let (n_rows, k, mut rng) = (64, 64, Rng(8));
        let bytes = head(&mut rng, n_rows, k);
        for value in [f32::NAN, f32::INFINITY, 1e30] {
            let mut x = rng.floats(k);
            x[5] = value;
            assert_eq!(check(table, &bytes, k, &x, 1), Some(1.0), "{} {value}", table.name());
        }
    }
}

#[test]
fn other_types_have_no_shortlist() {
    let (table, threads, mut rng) = (pick(Isa::best()), ThreadPool::new(1), Rng(9));
    for ty in [GgmlType::Q5_0, GgmlType::Q6_K, GgmlType::F16] {
        let bytes = blocks(&mut rng, ty, 32, 256, Fill::Random);
        assert!(
            HeadShortlist::new(table, &threads, &Matrix::new(table, &threads, ty, 32, 256, bytes), &[0.0; 256])
                .is_none(),
            "{ty}"
        );
    }
}

proptest! {
    #[test]
    fn any_head_gives_its_largest_products(seed in any::<u64>(), n_rows in 1usize..300, blocks in 1usize..6, n_best in 1usize..12) {
        let (k, mut rng) = (32 * blocks, Rng(seed));
        let bytes = head(&mut rng, n_rows, k);
        let x = rng.floats(k);
        for table in rows() {
            check(table, &bytes, k, &x, n_best.min(n_rows));
        }
    }
}
