//! Blocks against hashes of what the reference quantisers make of the same rows (`testdata/make.py`).

use super::*;

/// Kinds of rows, in the order of the seeds.
const KINDS: [&str; 10] =
    ["normal", "uniform", "positive", "sparse", "outlier", "constant", "zero", "huge", "tiny", "minute"];

/// Numbers of -1 to 1, multiples of 2^-23.
fn units(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as i32 - (1 << 23)) as f32 / (1 << 23) as f32
    };
    (0..n).map(|_| next()).collect()
}

fn values(kind: &str, n: usize) -> Vec<f32> {
    let seed = KINDS.iter().position(|name| *name == kind).expect("a kind") as u64 + 1;
    let units = units(seed, 3 * n);
    let value = |(at, u): (usize, &[f32; 3])| {
        let normal = (u[0] + u[1]) + u[2];
        match kind {
            "normal" => normal * 0.02,
            "uniform" => u[0],
            "positive" => normal.abs(),
            "sparse" if at % 13 == 5 => normal,
            "outlier" if at % 97 == 3 => normal * 50.0,
            "outlier" => normal,
            "constant" => 0.37,
            "huge" => normal * 20000.0,
            "tiny" => normal * 1e-7,
            "minute" => normal * 1e-38,
            _ => 0.0,
        }
    };
    units.as_chunks().0.iter().enumerate().map(value).collect()
}

fn weights(n: usize) -> Vec<f32> {
    units(99, n).iter().enumerate().map(|(at, u)| if at % 17 == 4 { 0.0 } else { u * u }).collect()
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn quantized(ty: GgmlType, row: &[f32], weights: Option<&[f32]>) -> Vec<u8> {
    let mut out = vec![0; ty.row_bytes(row.len()).expect("whole blocks")];
    quantize_row(ty, row, weights, &mut out);
    out
}

#[test]
fn blocks_are_those_of_the_reference() {
    let mut wrong = Vec::new();
    let mut n = 0;
    for line in include_str!("../../testdata/quantize.txt").lines() {
        let [ty, kind, weighing, expected] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let ty = *GgmlType::ALL.iter().find(|one| one.name() == ty).expect("a type");
        let n_values = if ty.block_len() == SUPER { 768 } else { 800 };
        let of_columns = weights(n_values);
        let of_columns = (weighing == "weighted").then_some(&of_columns[..]);
        let blocks = quantized(ty, &values(kind, n_values), of_columns);
        if format!("{:016x}", hash(&blocks)) != expected {
            wrong.push(format!("{ty} {kind} {weighing}"));
        }
        n += 1;
    }
    assert!(wrong.is_empty() && n == 398, "{} of {n}: {wrong:?}", wrong.len());
}

#[test]
fn infinite_scales_are_seen() {
    for ty in GgmlType::ALL.iter().copied().filter(|&ty| can_quantize(ty)) {
        let row = vec![1.0; 256];
        assert!(is_finite(ty, &quantized(ty, &row, Some(&row))), "{ty}");
        let bytes = vec![0xff; ty.row_bytes(256).expect("whole blocks")];
        assert!(!is_finite(ty, &bytes), "{ty}");
    }
}

/// Weighted squared error of a quantised row.
fn error(ty: GgmlType, row: &[f32], weights: Option<&[f32]>, blocks: &[u8]) -> f64 {
    let weight = |i: usize| weights.map_or(1.0, |weights| f64::from(weights[i]));
    let values = values_of(ty, blocks);
    (0..row.len()).map(|i| weight(i) * (f64::from(row[i]) - f64::from(values[i])).powi(2)).sum()
}

/// Returns the values of blocks.
fn values_of(ty: GgmlType, bytes: &[u8]) -> Vec<f32> {
    let half = |block: &[u8], at: usize| F16Le([block[at], block[at + 1]]).to_f32();
    let nibble = |block: &[u8], from: usize, i: usize| block[from + i % 16] >> (i / 16 * 4) & 15;
    let fifth = |block: &[u8], from: usize, i: usize| (block[from + i / 8] >> (i % 8) & 1) << 4;
    let codebook = |index: u8| f32::from(crate::IQ4_VALUES[usize::from(index)]);
    let pair = |qs: &[u8], i: usize| qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    let long_nibble = |qs: &[u8], i: usize| qs[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
    let value = |block: &[u8], i: usize| match ty {
        GgmlType::Q4_0 => half(block, 0) * (f32::from(nibble(block, 2, i)) - 8.0),
        GgmlType::Q4_1 => half(block, 0) * f32::from(nibble(block, 4, i)) + half(block, 2),
        GgmlType::Q5_0 => half(block, 0) * (f32::from(nibble(block, 6, i) | fifth(block, 2, i)) - 16.0),
        GgmlType::Q5_1 => half(block, 0) * f32::from(nibble(block, 8, i) | fifth(block, 4, i)) + half(block, 2),
        GgmlType::Q8_0 => half(block, 0) * f32::from(block[2 + i] as i8),
        GgmlType::IQ4_NL => half(block, 0) * codebook(nibble(block, 2, i)),
        GgmlType::IQ4_XS => {
            let block = &cast::<BlockIQ4_XS>(block)[0];
            let scale = f32::from(block.scales()[i / 32]);
            block.d.to_f32() * scale * codebook(nibble(&block.qs, i / 32 * 16, i % 32))
        }
        GgmlType::Q3_K => {
            let block = &cast::<BlockQ3_K>(block)[0];
            let high = block.hmask[i % 32] >> (i / 32) & 1;
            block.d.to_f32() * f32::from(block.scales()[i / 16]) * (f32::from(pair(&block.qs, i) | high << 2) - 4.0)
        }
        GgmlType::Q4_K | GgmlType::Q5_K => {
            let is_long = ty == GgmlType::Q5_K;
            let (scales, minimums) = crate::scale_min_k4(block[4..16].try_into().expect("12 bytes"));
            let high = if is_long { (block[16 + i % 32] >> (i / 32) & 1) << 4 } else { 0 };
            let level = long_nibble(&block[if is_long { 48 } else { 16 }..], i) | high;
            half(block, 0) * f32::from(scales[i / 32]) * f32::from(level) - half(block, 2) * f32::from(minimums[i / 32])
        }
        GgmlType::Q6_K => {
            let block = &cast::<BlockQ6_K>(block)[0];
            let (h, k, j) = (i / 128, i % 128 / 32, i % 32);
            let low = block.ql[64 * h + 32 * (k % 2) + j] >> (k / 2 * 4) & 15;
            let high = block.qh[32 * h + j] >> (2 * k) & 3;
            block.d.to_f32() * f32::from(block.scales[i / 16]) * (f32::from(low | high << 4) - 32.0)
        }
        _ => unreachable!("types that are searched"),
    };
    let blocks = bytes.chunks(ty.block_bytes());
    blocks.flat_map(|block| (0..ty.block_len()).map(move |i| value(block, i))).collect()
}

#[test]
fn the_closest_blocks_are_never_worse_than_the_references() {
    use GgmlType::*;
    let of_columns = weights(768);
    let of_blocks = [(Q4_0, 0.98), (Q4_1, 0.95), (Q5_0, 0.94), (Q5_1, 0.93), (Q8_0, 0.74), (IQ4_NL, 0.90)];
    let of_super_blocks = [(Q3_K, 0.99), (Q4_K, 0.97), (Q5_K, 0.96), (Q6_K, 0.995), (IQ4_XS, 0.99)];
    for (ty, share) in of_blocks.into_iter().chain(of_super_blocks) {
        for kind in KINDS.iter().filter(|kind| **kind != "minute") {
            let row = values(kind, 768);
            for weights in [None, Some(&of_columns[..])] {
                let mut closest = vec![0; ty.row_bytes(768).expect("whole blocks")];
                quantize_row_closest(ty, &row, weights, &mut closest);
                let reference = error(ty, &row, weights, &quantized(ty, &row, weights));
                let error = error(ty, &row, weights, &closest);
                // Sums of f32 decide; those here are of f64.
                assert!(error <= reference * 1.0001, "{ty} {kind}: {error:e}, the reference {reference:e}");
                let is_usual = *kind == "normal" && weights.is_some();
                assert!(!is_usual || error < share * reference, "{ty}: {} of the reference", error / reference);
            }
        }
    }
}

#[test]
#[should_panic(expected = "quantize Q4_0: 32 values into 17 bytes")]
fn lengths_are_checked() {
    quantize_row(GgmlType::Q4_0, &[0.0; 32], None, &mut [0; 17]);
}

#[test]
#[should_panic(expected = "quantize IQ1_S: the importance of its columns is missing")]
fn importance_is_not_guessed() {
    quantize_row(GgmlType::IQ1_S, &[0.0; 256], None, &mut [0; 50]);
}

/// The reference loses the place of parts behind one of zeros.
#[test]
fn parts_of_zeros_do_not_shift_those_behind_them() {
    let mut row = values("normal", 256);
    let whole = quantized(GgmlType::IQ3_S, &row, None);
    row[..32].fill(0.0);
    let cut = quantized(GgmlType::IQ3_S, &row, None);
    // The signs lie behind the scale, 64 bytes of points and 8 of their high bits.
    assert_eq!(cut[78..106], whole[78..106]);
    assert_eq!(cut[2..10], [0; 8]);
}

#[test]
fn scales_below_those_of_f16_give_zeros() {
    let row = values("minute", 800);
    for (ty, at) in
        [(GgmlType::Q4_0, 0), (GgmlType::Q4_1, 2), (GgmlType::Q5_0, 0), (GgmlType::Q5_1, 2), (GgmlType::Q8_0, 0)]
    {
        let blocks = quantized(ty, &row, None);
        let is_zero = |bytes: &[u8]| matches!(bytes, [0, 0 | 0x80]);
        let mut blocks = blocks.chunks(ty.block_bytes());
        assert!(blocks.all(|block| is_zero(&block[..2]) && is_zero(&block[at..at + 2])), "{ty}");
    }
    assert!(quantized(GgmlType::MXFP4, &row, None).chunks(17).all(|block| block[0] <= 1));
}
