//! Dequantisation against gguf-py's output, bit for bit, and every row against scalar.

use proptest::prelude::*;

use super::*;
use crate::isa::Isa;

/// Asserts equality bit for bit; a NaN equals a NaN.
fn assert_same(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
        assert!(same, "{what}: value {i} is {got:e} ({:08x}), not {want:e} ({:08x})", got.to_bits(), want.to_bits());
    }
}

struct Golden {
    ty: GgmlType,
    bytes: &'static [u8],
    values: Vec<f32>,
}

/// Records of `testdata/dequant.bin`; `testdata/make_dequant_goldens.py` tells the format.
fn goldens() -> Vec<Golden> {
    let mut rest: &'static [u8] = include_bytes!("../../testdata/dequant.bin");
    let mut goldens = Vec::new();
    while let Some((head, body)) = rest.split_at_checked(8) {
        let [id, n_blocks] = [0, 1].map(|i| u32::from_le_bytes(head.as_chunks().0[i]));
        let ty = GgmlType::from_id(id).expect("a known type");
        let (bytes, body) = body.split_at(n_blocks as usize * ty.block_bytes());
        let (values, body) = body.split_at(n_blocks as usize * ty.block_len() * 4);
        goldens.push(Golden {
            ty,
            bytes,
            values: values.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        });
        rest = body;
    }
    assert!(rest.is_empty(), "{} bytes after the last record", rest.len());
    goldens
}

#[test]
fn goldens_cover_every_type() {
    let mut types: Vec<GgmlType> = goldens().iter().map(|golden| golden.ty).collect();
    types.sort();
    assert_eq!(types, GgmlType::ALL);
}

#[test]
fn scalar_equals_gguf_py() {
    for Golden { ty, bytes, values } in goldens() {
        let mut out = vec![0.0; values.len()];
        dequantize(ty, bytes, &mut out);
        assert_same(ty.name(), &out, &values);
    }
}

#[test]
fn every_row_equals_gguf_py() {
    for table in available() {
        for Golden { ty, bytes, values } in goldens() {
            let mut out = vec![0.0; values.len()];
            table.dequantize(ty, bytes, &mut out);
            assert_same(&format!("{} {ty}", table.isa()), &out, &values);
        }
    }
}

#[test]
fn every_f16_and_bf16_converts_exactly_and_back() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    let (mut floats, mut back) = (vec![0.0; all.len()], vec![0; all.len()]);
    for table in available() {
        table.from_f16(&all, &mut floats);
        table.to_f16(&floats, &mut back);
        for (bits, (x, back)) in (0..=u16::MAX).zip(floats.iter().zip(&back)) {
            let want = half::f16::from_bits(bits);
            assert!(want.is_nan() && x.is_nan() || want.to_f32_const().to_bits() == x.to_bits(), "{bits:04x}");
            assert!(want.is_nan() && half::f16::from_bits(*back).is_nan() || *back == bits, "{bits:04x} -> {back:04x}");
        }
        table.from_bf16(&all, &mut floats);
        table.to_bf16(&floats, &mut back);
        for (bits, (x, back)) in (0..=u16::MAX).zip(floats.iter().zip(&back)) {
            let nan = bits & 0x7fff > 0x7f80;
            assert!(nan && x.is_nan() || x.to_bits() == u32::from(bits) << 16, "{bits:04x}");
            assert_eq!(*back, if nan { bits | 0x40 } else { bits }, "{bits:04x}");
        }
    }
}

#[test]
fn narrowing_rounds_to_nearest_even() {
    // (value, f16, bf16)
    let cases: &[(f32, u16, u16)] = &[
        (1.0, 0x3c00, 0x3f80),
        (-0.0, 0x8000, 0x8000),
        (1.0 + 1.0 / 2048.0, 0x3c00, 0x3f80), // half way for f16: to even, down
        (1.0 + 3.0 / 2048.0, 0x3c02, 0x3f80), // to even, up
        (1.0 + 1.0 / 256.0, 0x3c04, 0x3f80),  // half way for bf16
        (1.0 + 3.0 / 256.0, 0x3c0c, 0x3f82),
        (65504.0, 0x7bff, 0x4780),
        (65519.996, 0x7bff, 0x4780),
        (65520.0, 0x7c00, 0x4780), // half way to 65536
        (f32::MAX, 0x7c00, 0x7f80),
        (f32::NEG_INFINITY, 0xfc00, 0xff80),
        (2f32.powi(-24), 0x0001, 0x3380),
        (2f32.powi(-25), 0x0000, 0x3300), // half way to the least subnormal: to even
        (3.0 * 2f32.powi(-25), 0x0002, 0x33c0),
        (f32::from_bits(1), 0x0000, 0x0000),
    ];
    // Once in the vector part of the rows and once in the tail.
    let x: Vec<f32> = cases.iter().chain(cases).chain(cases).map(|case| case.0).collect();
    let mut out = vec![0; x.len()];
    for table in available() {
        table.to_f16(&x, &mut out);
        for (out, case) in out.iter().zip(cases.iter().cycle()) {
            assert_eq!(*out, case.1, "{}: f16 of {:e}", table.isa(), case.0);
        }
        table.to_bf16(&x, &mut out);
        for (out, case) in out.iter().zip(cases.iter().cycle()) {
            assert_eq!(*out, case.2, "{}: bf16 of {:e}", table.isa(), case.0);
        }
    }
}

#[test]
fn no_values_are_fine() {
    for table in available() {
        for ty in GgmlType::ALL {
            table.dequantize(*ty, &[], &mut []);
        }
        table.to_f16(&[], &mut []);
    }
}

#[test]
#[should_panic(expected = "dequantize Q4_0: 32 values need Some(18) bytes, got 17")]
fn a_short_block_panics() {
    dequantize(GgmlType::Q4_0, &[0; 17], &mut [0.0; 32]);
}

#[test]
#[should_panic(expected = "dequantize Q6_K: 255 values need None bytes")]
fn a_part_of_a_block_panics() {
    pick(Isa::Scalar).dequantize(GgmlType::Q6_K, &[0; 210], &mut [0.0; 255]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// Raw random bytes: every scale, also infinite and NaN, at any alignment, with any tail.
    #[test]
    fn every_row_equals_scalar(
        ty in proptest::sample::select(GgmlType::ALL),
        n_blocks in 0usize..5,
        n_values in 0usize..70,
        start in 0usize..4,
        bytes in proptest::collection::vec(any::<u8>(), 1200),
    ) {
        let n_blocks = if ty.block_len() == 1 { n_values } else { n_blocks.min(4) };
        let bytes = &bytes[start..][..n_blocks * ty.block_bytes()];
        let (mut want, mut got) = (vec![0.0; n_blocks * ty.block_len()], vec![1.0; n_blocks * ty.block_len()]);
        dequantize(ty, bytes, &mut want);
        for table in available() {
            table.dequantize(ty, bytes, &mut got);
            assert_same(&format!("{} {ty}", table.isa()), &got, &want);
        }
    }

    #[test]
    fn every_row_narrows_like_scalar(bits in proptest::collection::vec(any::<u32>(), 0..80)) {
        let x: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        let (mut want, mut got) = (vec![0; x.len()], vec![1; x.len()]);
        for table in available() {
            let isa = table.isa();
            scalar::to_f16(&x, &mut want);
            table.to_f16(&x, &mut got);
            assert_eq!(got, want, "f16, {isa}");
            scalar::to_bf16(&x, &mut want);
            table.to_bf16(&x, &mut got);
            assert_eq!(got, want, "bf16, {isa}");
        }
    }
}
