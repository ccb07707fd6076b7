//! Dequantisation in plain Rust over the blocks of `ruvllm-ggml`, and blocks to try it on.

use half::f16;
use ruvllm_ggml::{
    Block, BlockIQ4_NL, BlockIQ4_XS, BlockMXFP4, BlockQ4_0, BlockQ4_1, BlockQ4_K, BlockQ5_0, BlockQ5_1, BlockQ5_K,
    BlockQ6_K, BlockQ8_0, F16Le, GgmlType, IQ4_VALUES, MXFP4_VALUES, cast, scale_min_k4,
};
use ruvllm_shaders::WeightFormat;

use crate::random::Random;

/// A weight: its value, and the sum of the magnitudes it is computed of, to which rounding errors are relative.
#[derive(Clone, Copy, Default)]
pub(crate) struct Weight {
    pub(crate) value: f64,
    pub(crate) magnitude: f64,
}

fn scaled(d: f64, q: impl Into<f64>, m: f64) -> Weight {
    let product = d * q.into();
    Weight { value: product + m, magnitude: product.abs() + m.abs() }
}

fn f(d: F16Le) -> f64 {
    f64::from(d.to_f32())
}

/// Value `j` of 32 nibbles.
fn nibble(qs: &[u8], j: usize) -> u8 {
    qs[j % 16] >> (4 * (j / 16)) & 15
}

fn five_bits(qs: &[u8; 16], qh: [u8; 4], j: usize) -> u8 {
    nibble(qs, j) | ((u32::from_le_bytes(qh) >> j & 1) as u8) << 4
}

fn blocks<B: Block>(bytes: &[u8], value: impl Fn(&B, usize) -> Weight) -> Vec<Weight> {
    cast::<B>(bytes).iter().flat_map(|block| (0..B::LEN).map(|j| value(block, j)).collect::<Vec<_>>()).collect()
}

fn floats<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f32) -> Vec<Weight> {
    bytes.as_chunks::<N>().0.iter().map(|x| scaled(1.0, value(*x), 0.0)).collect()
}

/// The weights of whole blocks.
pub(crate) fn dequantize(format: WeightFormat, bytes: &[u8]) -> Vec<Weight> {
    match format {
        WeightFormat::F32 => floats(bytes, f32::from_le_bytes),
        WeightFormat::F16 => floats(bytes, |x| f16::from_le_bytes(x).to_f32()),
        WeightFormat::BF16 => floats(bytes, |x| f32::from_bits(u32::from(u16::from_le_bytes(x)) << 16)),
        WeightFormat::Q4_0 => blocks(bytes, |b: &BlockQ4_0, j| scaled(f(b.d), nibble(&b.qs, j) as i8 - 8, 0.0)),
        WeightFormat::Q4_1 => blocks(bytes, |b: &BlockQ4_1, j| scaled(f(b.d), nibble(&b.qs, j), f(b.m))),
        WeightFormat::Q5_0 => {
            blocks(bytes, |b: &BlockQ5_0, j| scaled(f(b.d), five_bits(&b.qs, b.qh, j) as i8 - 16, 0.0))
        }
        WeightFormat::Q5_1 => blocks(bytes, |b: &BlockQ5_1, j| scaled(f(b.d), five_bits(&b.qs, b.qh, j), f(b.m))),
        WeightFormat::Q8_0 => blocks(bytes, |b: &BlockQ8_0, j| scaled(f(b.d), b.qs[j], 0.0)),
        WeightFormat::Q4_K => blocks(bytes, |b: &BlockQ4_K, j| {
            let (s, m) = scale_min_k4(&b.scales);
            let q = b.qs[32 * (j / 64) + j % 32] >> (4 * (j / 32 % 2)) & 15;
            scaled(f(b.d) * f64::from(s[j / 32]), q, -f(b.dmin) * f64::from(m[j / 32]))
        }),
        WeightFormat::Q5_K => blocks(bytes, |b: &BlockQ5_K, j| {
            let (s, m) = scale_min_k4(&b.scales);
            let low = b.qs[32 * (j / 64) + j % 32] >> (4 * (j / 32 % 2)) & 15;
            let q = low | (b.qh[j % 32] >> (j / 32) & 1) << 4;
            scaled(f(b.d) * f64::from(s[j / 32]), q, -f(b.dmin) * f64::from(m[j / 32]))
        }),
        WeightFormat::Q6_K => blocks(bytes, |b: &BlockQ6_K, j| {
            let (half, group, v) = (j / 128, j / 32 % 4, j % 32);
            let low = b.ql[64 * half + 32 * (group % 2) + v] >> (4 * (group / 2)) & 15;
            let q = low | (b.qh[32 * half + v] >> (2 * group) & 3) << 4;
            scaled(f(b.d) * f64::from(b.scales[j / 16]), q as i8 - 32, 0.0)
        }),
        WeightFormat::IQ4_NL => {
            blocks(bytes, |b: &BlockIQ4_NL, j| scaled(f(b.d), IQ4_VALUES[usize::from(nibble(&b.qs, j))], 0.0))
        }
        WeightFormat::IQ4_XS => blocks(bytes, |b: &BlockIQ4_XS, j| {
            let q = nibble(&b.qs[16 * (j / 32)..], j % 32);
            scaled(f(b.d) * f64::from(b.scales()[j / 32]), IQ4_VALUES[usize::from(q)], 0.0)
        }),
        WeightFormat::MXFP4 => blocks(bytes, |b: &BlockMXFP4, j| {
            let d = (f64::from(b.e) - 128.0).exp2();
            scaled(d, MXFP4_VALUES[usize::from(nibble(&b.qs, j))], 0.0)
        }),
    }
}

/// Bytes at which a block has f16 numbers.
fn halves(format: WeightFormat) -> &'static [usize] {
    match format {
        WeightFormat::F32 | WeightFormat::BF16 | WeightFormat::MXFP4 => &[],
        WeightFormat::Q4_1 | WeightFormat::Q5_1 | WeightFormat::Q4_K | WeightFormat::Q5_K => &[0, 2],
        WeightFormat::Q6_K => &[208],
        _ => &[0],
    }
}

/// Rows whose quants and small scales are random bytes; f16 numbers and exponents are moderate.
pub(crate) fn random_rows(format: WeightFormat, k: usize, n_rows: usize, random: &mut Random) -> Vec<u8> {
    let n_blocks = k / format.block_len() * n_rows;
    let mut bytes: Vec<u8> = (0..n_blocks * format.block_bytes()).map(|_| random.byte()).collect();
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        let float = random.float();
        match format {
            WeightFormat::F32 => block.copy_from_slice(&float.to_le_bytes()),
            WeightFormat::BF16 => block.copy_from_slice(&half::bf16::from_f32(float).to_le_bytes()),
            // 2^-6 to 2^2
            WeightFormat::MXFP4 => block[0] = 122 + block[0] % 8,
            _ => {}
        }
        for at in halves(format) {
            block[*at..at + 2].copy_from_slice(&f16::from_f32(random.float()).to_le_bytes());
        }
    }
    bytes
}

/// Rows of one block each (of 32 values for plain floats): all bits 0, all bits 1 and others, with the largest, the
/// smallest and no scales.
pub(crate) fn extreme_rows(format: WeightFormat) -> Vec<u8> {
    let n_blocks = if format.block_len() == 1 { 32 } else { 1 };
    let mut bytes = Vec::new();
    for fill in [0x00, 0xff, 0x0f, 0xf0, 0x7f, 0x80, 0x55] {
        for d in [f16::MAX, f16::MIN, f16::MIN_POSITIVE, f16::ZERO, f16::NEG_ZERO, f16::ONE] {
            let mut row = vec![fill; n_blocks * format.block_bytes()];
            for block in row.chunks_exact_mut(format.block_bytes()) {
                let float = d.to_f32() * (1.0 + f32::from(fill) / 256.0);
                match format {
                    WeightFormat::F32 => block.copy_from_slice(&float.to_le_bytes()),
                    WeightFormat::BF16 => block.copy_from_slice(&half::bf16::from_f32(float).to_le_bytes()),
                    // The smallest normal scale, and one whose 32 products add up within f32.
                    WeightFormat::MXFP4 => block[0] = if fill < 0x80 { 2 } else { 244 },
                    _ => {}
                }
                for at in halves(format) {
                    block[*at..at + 2].copy_from_slice(&d.to_le_bytes());
                }
            }
            bytes.extend(row);
        }
    }
    bytes
}

/// Values of a row of [`extreme_rows`].
pub(crate) fn extreme_len(format: WeightFormat) -> usize {
    format.block_len().max(32)
}

#[test]
fn table_is_that_of_ggml() {
    for format in WeightFormat::ALL {
        let ty = GgmlType::from_id(format.ggml_id()).expect("GGML has it");
        assert_eq!(
            (ty.name(), ty.block_len(), ty.block_bytes()),
            (format.name(), format.block_len(), format.block_bytes())
        );
        assert_eq!(WeightFormat::from_ggml_id(format.ggml_id()), Some(format));
    }
    assert_eq!(WeightFormat::from_ggml_id(16), None);
}
