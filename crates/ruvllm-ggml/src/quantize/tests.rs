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
