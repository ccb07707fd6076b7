//! Decoders of all formats: repacked rows, embedded, against plain dequantisation.

use ruvllm_shaders::{EmbedParams, Extent, Kernel, RowRecord, WeightFormat, repack};

use crate::device::{Dispatch, Pass, floats, on_all};
use crate::random::Random;
use crate::reference::{Weight, dequantize, extreme_len, extreme_rows, random_rows};

/// The rows as words of the device.
pub(crate) fn packed(format: WeightFormat, k: usize, rows: &[u8]) -> Vec<u32> {
    let n_rows = rows.len() / (k / format.block_len() * format.block_bytes());
    let mut words = vec![0xdead_beef; n_rows * format.row_words(k)];
    repack(format, k, rows, &mut words).expect("whole rows");
    words
}

/// Embeds every row of a table, last first, and compares.
fn check(format: WeightFormat, k: usize, rows: &[u8], scale: f32) {
    let words = packed(format, k, rows);
    let n_rows = words.len() / format.row_words(k);
    let params = EmbedParams {
        n_units: format.n_units(k) as u32,
        n_quads: k as u32 / 4,
        row_words: format.row_words(k) as u32,
        n_out: n_rows as u32,
        first_token: 1000,
        y_offset: 3,
        y_stride: k as u32 + 5,
        scale,
        count: 1,
        ..EmbedParams::default()
    };
    // One token of a table before this one, which is left alone.
    let tokens = (0..n_rows as u32).rev().map(|token| 1000 + token).chain([999]);
    let rows_of_pass: Vec<RowRecord> = tokens.map(|token| RowRecord { token, ..RowRecord::default() }).collect();
    let stride = k + 5;
    let dispatch = Dispatch {
        kernel: Kernel::Embed { format },
        params: params.words(),
        extent: Extent { n: k as u32, rows: rows_of_pass.len() as u32, slots: 1 },
        buffers: vec![words.into(), vec![7.0f32; (n_rows + 1) * stride + 3].into()],
        pass: Pass { rows: rows_of_pass, tables: vec![], ..Pass::default() },
    };
    let expected: Vec<Weight> = dequantize(format, rows);
    on_all(&dispatch, |name, written| {
        let y = floats(&written[0]);
        for (row, expected) in expected.chunks_exact(k).rev().enumerate() {
            let got = &y[3 + row * stride..][..k];
            for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
                let (value, magnitude) = (expected.value * f64::from(scale), expected.magnitude * f64::from(scale));
                // Roundings of the scale, the product, the sum and the factor; below that what flushes to zero.
                let bound = 4.0 * f64::from(f32::EPSILON) * magnitude + f64::from(f32::MIN_POSITIVE);
                let error = (f64::from(*got) - value).abs();
                assert!(error <= bound, "{name}: row {row}, value {i}: {got} instead of {value}");
            }
            assert_eq!(y[3 + row * stride + k], 7.0, "{name} wrote past row {row}");
        }
        assert!(y[3 + n_rows * stride..].iter().all(|x| *x == 7.0), "{name} wrote a token of another table");
    });
}

#[test]
fn random_blocks() {
    let mut random = Random::new(1);
    for format in WeightFormat::ALL {
        for n_blocks in [1, 2, 3, 5] {
            let k = n_blocks * extreme_len(format);
            check(format, k, &random_rows(format, k, 3, &mut random), 1.0);
        }
    }
}

#[test]
fn extreme_blocks() {
    for format in WeightFormat::ALL {
        check(format, extreme_len(format), &extreme_rows(format), 1.0);
    }
}

#[test]
fn rows_that_end_within_a_unit() {
    let mut random = Random::new(2);
    for format in [WeightFormat::F32, WeightFormat::F16, WeightFormat::BF16] {
        for k in [4, 20, 36, 100] {
            check(format, k, &random_rows(format, k, 3, &mut random), 0.5);
        }
    }
}

#[test]
fn bytes_that_are_no_rows_are_refused() {
    let format = WeightFormat::Q4_0;
    for (k, n_bytes, n_words) in
        [(32, 17, 5), (33, 18, 5), (0, 0, 0), (32, 18, 4), (64, 18, 9), (usize::MAX & !31, 18, 5)]
    {
        let error = repack(format, k, &vec![0; n_bytes], &mut vec![0; n_words]).expect_err("no rows");
        assert_eq!(
            error.to_string(),
            format!("{n_bytes} bytes into {n_words} words are not rows of {k} values in Q4_0")
        );
    }
}

#[test]
fn repacking_adds_at_most_a_word_a_row() {
    for format in WeightFormat::ALL {
        for n_blocks in 1..5 {
            let k = n_blocks * extreme_len(format);
            let bytes = k / format.block_len() * format.block_bytes();
            let words = format.row_words(k);
            assert!(4 * words < bytes + 4 && 4 * words >= bytes, "{}: {words} words", format.name());
        }
    }
}
