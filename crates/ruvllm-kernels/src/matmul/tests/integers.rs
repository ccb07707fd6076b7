//! The integer path against f64, and its integer parts against exact sums.

use super::*;

/// Each table row against f64 arithmetic on the same quantised activations.
///
/// A block adds `(1 + HALVES) * (1 + MIN)` terms to the sum. Each term is rounded at most 4 times before it is added (`d * sc`,
/// the product of scales, the integer sum or the activations' scaled sum, the product where it is not fused), and each
/// addition rounds the sum once: with u = ε / 2, `|error| ≤ (terms + 4) * u * Σ|term|` to first order; ε in place of u
/// covers the rest.
pub(super) fn check_tables<F: Format>(seed: u64, n_rows: usize, k: usize, n: usize, fill: Fill) {
    let (k, threads, mut rng) = (whole::<F>(k), ThreadPool::new(1), Rng(seed));
    let n_blocks = k / BLOCK;
    let bytes = blocks(&mut rng, F::TY, n_rows, k, fill);
    let x = rng.floats(n * k);
    let packed = packed::<F>(&threads, n_rows, k, &bytes);
    let size = panel_bytes::<F>(n_blocks);
    let mut q = vec![bytemuck::Zeroable::zeroed(); n * n_blocks];
    pick(Isa::Scalar).quantize(&x, &mut q);
    let mut results: Vec<(&MatmulKernels, Vec<f32>)> = Vec::new();
    for table in rows() {
        let w = Matrix::new(table, &threads, F::TY, n_rows, k, bytes.clone());
        let mut out = vec![f32::NAN; n * n_rows];
        matmul(&threads, &w, &acts(table, &threads, &x, n, k, ActFormat::Q16), &mut out);
        results.push((table, out));
    }
    for row in 0..n_rows {
        let panel = &packed[row / PANEL_ROWS * size..][..size];
        let lane = row % PANEL_ROWS;
        for i in 0..n {
            let (mut sum, mut magnitude) = (0.0f64, 0.0f64);
            let mut add = |term: f64| {
                sum += term;
                magnitude += term.abs();
            };
            for (b, act) in q[i * n_blocks..][..n_blocks].iter().enumerate() {
                let weights = scalar::lane::<F>(&panel[F::quants_at(b)..], lane);
                let (scale, min) = scalar::scales::<F>(panel, b, lane);
                for (half, (scale, min)) in scale.into_iter().zip(min).enumerate() {
                    let range = 16 * half..16 * half + 16;
                    let dot: i32 = range.clone().map(|i| weights[i] * act.q(i)).sum();
                    let total: i32 = range.map(|i| act.q(i)).sum();
                    add(f64::from(scale) * f64::from(act.scale) * f64::from(dot));
                    add(f64::from(min) * f64::from(act.scale) * f64::from(total));
                }
            }
            let n_terms = n_blocks * (1 + F::HALVES as usize) * (1 + F::MIN as usize);
            let bound = (n_terms + 4) as f64 * (f64::from(f32::EPSILON) * magnitude + f64::from(f32::MIN_POSITIVE));
            for (table, out) in &results {
                let error = (f64::from(out[i * n_rows + row]) - sum).abs();
                assert!(
                    error <= bound,
                    "{} {} {n_rows}x{k} n={n} {fill:?}: {error:e} > {bound:e}",
                    table.name(),
                    F::TY
                );
            }
        }
    }
}

#[test]
fn tables_agree_with_f64_on_extreme_blocks() {
    for fill in FILLS {
        each_format!(check_tables(3, 17, 512, 7, fill));
        each_format!(check_tables(4, 32, 2048, 13, fill));
    }
}

/// With scales that are powers of two and sums under 2^24 no operation rounds: results are the exact integers.
///
/// Three blocks of a row have values, one of them the largest and the others up to 360:
/// `128 * 3 * (32512 + 7 * 360 + 24 * 127) < 2^24`.
fn check_integers<F: Format>(seed: u64) {
    let (n_rows, k, n, mut rng) = (20, 256, 9, Rng(seed));
    let mut bytes = blocks(&mut rng, F::TY, n_rows, k, Fill::Random).to_vec();
    for block in bytes.chunks_exact_mut(F::TY.block_bytes()) {
        for &at in f16_fields(F::TY) {
            block[at..at + 2].copy_from_slice(&f16::ONE.to_le_bytes());
        }
        match F::TY {
            // Scales up to 3 keep weights within ±128, as Q8_0's are.
            GgmlType::Q4_K | GgmlType::Q5_K => block[4..16].iter_mut().for_each(|b| *b &= 0x03),
            GgmlType::Q6_K => block[192..208].iter_mut().for_each(|b| *b = (*b % 4).wrapping_sub(2)),
            // Scales of 0 and 1, as codes are up to 127.
            GgmlType::IQ4_XS => {
                block[2..4].fill(0xaa);
                block[4..8].iter_mut().for_each(|b| *b &= 0x11);
            }
            GgmlType::MXFP4 => block[0] = 128,
            _ => {}
        }
    }
    // Two groups are large, wherever they are; a 127 in another makes the scale 1 / 256.
    let mut large = [0; 2];
    let q: Vec<i32> = (0..n * k)
        .map(|i| {
            if i % BLOCK == 0 {
                large = [(rng.next() % 7) as usize, 0];
                large[1] = large[0] + 1 + rng.next() as usize % (7 - large[0]);
            }
            match (i / BLOCK % 8, i % BLOCK / GROUP) {
                (0 | 3 | 6, group) if group == large[0] && i % GROUP == 1 => {
                    [-32_512, 32_512][(rng.next() % 2) as usize]
                }
                (0 | 3 | 6, group) if large.contains(&group) => (rng.next() % 721) as i32 - 360,
                (0 | 3 | 6, _) if i % GROUP == 2 => [-127, 127][(rng.next() % 2) as usize],
                (0 | 3 | 6, _) => (rng.next() % 255) as i32 - 127,
                _ => 0,
            }
        })
        // Quants with a low byte of -128 do not occur.
        .map(|q| q + i32::from(q & 0xff == 0x80))
        .collect();
    let x: Vec<f32> = q.iter().map(|&q| q as f32 / 256.0).collect();
    let (threads, mut w) = (ThreadPool::new(1), vec![0.0; n_rows * k]);
    dequant::dequantize(F::TY, &bytes, &mut w);
    let bytes = Bytes::from(bytes);
    for table in rows() {
        let matrix = Matrix::new(table, &threads, F::TY, n_rows, k, bytes.clone());
        let mut out = vec![0.0; n * n_rows];
        matmul(&threads, &matrix, &acts(table, &threads, &x, n, k, ActFormat::Q16), &mut out);
        for (i, q) in q.chunks_exact(k).enumerate() {
            for (r, w) in w.chunks_exact(k).enumerate() {
                let exact: i64 = q.iter().zip(w).map(|(&q, &w)| i64::from(q) * w as i64).sum();
                assert_eq!(256.0 * out[i * n_rows + r], exact as f32, "{} {} ({i}, {r})", table.name(), F::TY);
            }
        }
    }
}

#[test]
fn integer_parts_are_exact() {
    for seed in 0..20 {
        each_format!(check_integers(seed));
    }
}

/// Returns how far quants of a block may be apart: what the third largest group needs with 8 bits, or the largest value with
/// 16, and a quarter more for the scale's two bits.
pub(super) fn step(block: &[f32]) -> f64 {
    let largest = |x: &[f32]| f64::from(x.iter().fold(0.0f32, |max, x| max.max(x.abs())));
    let mut groups: Vec<f64> = block.chunks_exact(GROUP).map(largest).collect();
    groups.sort_by(|a, b| b.total_cmp(a));
    1.2501 * (groups[N_LARGE] / 127.0).max(groups[0] / 32_512.0)
}

/// Against f64 arithmetic on the activations as given: each is off by at most half a step of its block's scale,
/// a step and a half where the low byte would be -128.
fn check_quantised<F: Format>(seed: u64, n_rows: usize, k: usize) {
    let (k, threads, mut rng) = (whole::<F>(k), ThreadPool::new(1), Rng(seed));
    let bytes = blocks(&mut rng, F::TY, n_rows, k, Fill::Random);
    let (x, mut w) = (rng.floats(k), vec![0.0; n_rows * k]);
    dequant::dequantize(F::TY, &bytes, &mut w);
    let table = pick(Isa::best());
    let matrix = Matrix::new(table, &threads, F::TY, n_rows, k, bytes);
    let mut out = vec![0.0; n_rows];
    matmul(&threads, &matrix, &acts(table, &threads, &x, 1, k, ActFormat::Q16), &mut out);
    for (row, w) in w.chunks_exact(k).enumerate() {
        let (mut sum, mut bound) = (0.0, 0.0);
        for (w, x) in w.chunks_exact(BLOCK).zip(x.chunks_exact(BLOCK)) {
            let step = step(x);
            for (w, x) in w.iter().zip(x) {
                sum += f64::from(*w) * f64::from(*x);
                // What f32 arithmetic adds (`check_tables`) is at most 260 ε = 3.1e-5, for Q2_K and 2,048 values.
                let off = if f64::from(x.abs()) > 127.0 * step / 1.2501 { 1.51 } else { 0.51 };
                bound += (off * step + 3.2e-5 * f64::from(x.abs())) * (f64::from(w.abs()) + 1e-3);
            }
        }
        let error = (f64::from(out[row]) - sum).abs();
        assert!(error <= bound, "{} row {row}: {error:e} > {bound:e}", F::TY);
    }
}

#[test]
fn products_are_within_the_activations_rounding() {
    for k in [32, 96, 256, 576, 2048] {
        each_format!(check_quantised(5, 33, k));
    }
}
