//! The largest values of rows.

use ruvllm_shaders::{Extent, Kernel, Reduction, TOP_K_MAX, TopKParams, TopKPartsParams};

use crate::device::{Dispatch, Pass, devices, floats, on_all};
use crate::random::Random;

#[test]
fn largest_values_come_in_order() {
    for reduction in [Reduction::Subgroup, Reduction::Shared] {
        for (n, k) in [(1, 1), (5, 5), (1000, 1), (1000, 40)] {
            let mut random = Random::new(n as u64);
            // Few different numbers: many are equal.
            let x: Vec<f32> = (0..1 + 3 * (n + 2)).map(|_| random.below(50) as f32 - 25.0).collect();
            let params = TopKParams { n: n as u32, k: k as u32, x_offset: 1, x_stride: n as u32 + 2, count: 1 };
            let dispatch = Dispatch {
                kernel: Kernel::TopK { reduction },
                params: params.words(),
                extent: Extent { n: 1, rows: 3, slots: 1 },
                buffers: vec![x.clone().into(), vec![0u32; 3 * k].into(), vec![0.0f32; 3 * k].into()],
                pass: Pass::default(),
            };
            on_all(&dispatch, |name, written| {
                let values = floats(&written[1]);
                for row in 0..3 {
                    let x = &x[1 + row * (n + 2)..][..n];
                    let mut order: Vec<usize> = (0..n).collect();
                    order.sort_by(|a, b| x[*b].total_cmp(&x[*a]).then(a.cmp(b)));
                    for (i, index) in order.into_iter().take(k).enumerate() {
                        let at = row * k + i;
                        assert_eq!((written[0][at], values[at]), (index as u32, x[index]), "{name}: {i} of row {row}");
                    }
                }
            });
        }
    }
}

/// Returns the ids of the k largest numbers of a row with their bits, those that are there: the smaller id first among equals,
/// and both zeros are equal.
fn largest(row: &[f32], k: usize) -> Vec<[u32; 2]> {
    let mut ids: Vec<usize> = (0..row.len()).filter(|&id| !row[id].is_nan()).collect();
    ids.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).expect("none is NaN").then(a.cmp(&b)));
    ids.into_iter().take(k).map(|id| [id as u32, row[id].to_bits()]).collect()
}

/// Runs both stages on rows that lie in `x`, and asserts that they find what plain loops find.
fn check_parts(rows: &[Vec<f32>], k: usize, part_len: usize) {
    let (n, n_rows) = (rows[0].len(), rows.len());
    let n_parts = n.div_ceil(part_len);
    let mut x = vec![f32::MAX; 3];
    rows.iter().for_each(|row| x.extend(row.iter().copied().chain([f32::MAX; 2])));
    let params = TopKPartsParams {
        n: n as u32,
        part_len: part_len as u32,
        n_parts: n_parts as u32,
        x_offset: 3,
        x_stride: n as u32 + 2,
        count: 1,
        k_count: 2,
    };
    let dispatch = |kernel, n, buffers| Dispatch {
        kernel,
        params: params.words(),
        extent: Extent { n, rows: n_rows as u32, slots: 1 },
        buffers,
        pass: Pass { third_count: Some(k as u32), ..Pass::default() },
    };
    let k = k.min(TOP_K_MAX as usize);
    let part_ids = vec![7u32; n_rows * n_parts * k];
    let parts = dispatch(Kernel::TopKParts, n_parts as u32, vec![x.clone().into(), part_ids.into()]);
    for device in devices() {
        let mut written = device.run(&parts);
        let buffers = vec![x.clone().into(), written.remove(0).into(), vec![7u32; 2 * n_rows * k].into()];
        let pairs = device.run(&dispatch(Kernel::TopKMerge, 1, buffers)).remove(0);
        for (i, row) in rows.iter().enumerate() {
            let mut expected = largest(row, k);
            expected.resize(k, [u32::MAX, f32::NEG_INFINITY.to_bits()]);
            let found = pairs[2 * i * k..][..2 * k].as_chunks::<2>().0;
            assert_eq!(found, expected, "{}: {k} of {n} in parts of {part_len}, row {i}", device.name);
        }
    }
}

#[test]
fn largest_values_of_parts_are_those_of_the_row() {
    let mut random = Random::new(3);
    for (n, k, part_len) in [
        (1, 1, 2048),
        (1, 40, 2048),
        (7, 128, 2048),
        (100, 40, 2048),
        (1024, 128, 1024),
        (2048, 64, 2048),
        (2049, 40, 2048),
        (5000, 1, 100),
        (5000, 3, 1025),
        (32_003, 40, 2048),
        (49_152, 128, 2048),
    ] {
        let rows: Vec<Vec<f32>> = (0..3).map(|_| random.floats(n)).collect();
        check_parts(&rows, k, part_len);
    }
}

#[test]
fn largest_values_are_exact_on_extreme_rows() {
    let (nan, inf, n) = (f32::NAN, f32::INFINITY, 4099);
    let mut random = Random::new(4);
    let odd = [nan, -nan, inf, -inf, 0.0, -0.0, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45, -1e-45, 1.0];
    let mut one = vec![-inf; n];
    one[n - 1] = -3.0;
    let mut few = vec![nan; n];
    [(5, -inf), (4000, 2.0), (17, 2.0), (2048, -0.0), (2047, 0.0)].into_iter().for_each(|(id, x)| few[id] = x);
    let rows = [
        vec![nan; n],
        vec![-inf; n],
        vec![inf; n],
        vec![1.5; n],
        (0..n).map(|i| i as f32).collect(),
        (0..n).map(|i| -(i as f32)).collect(),
        (0..n).map(|_| random.below(5) as f32).collect(),
        (0..n).map(|_| odd[random.below(odd.len())]).collect(),
        (0..n).map(|i| if i % 2 == 0 { -0.0 } else { 0.0 }).collect(),
        one,
        few,
    ];
    for (k, part_len) in [(1, 2048), (40, 2048), (128, 1000), (1000, 2048)] {
        check_parts(&rows, k, part_len);
    }
    for x in odd {
        check_parts(&[vec![x], vec![1.0]], 2, 2048);
    }
}
