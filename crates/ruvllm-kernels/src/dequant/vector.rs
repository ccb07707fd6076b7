//! Block types over vectors of 16 bytes, written once for all instruction sets.
//!
//! Each block is cut into groups of 16 values with one scale (and minimum): unpack the group's quants to int8, widen,
//! convert, multiply, subtract. The file that expands [`vector_rows`] has these in scope, all with its target features:
//!
//! | primitive | returns or does |
//! |---|---|
//! | `load(&[u8; 16])` | the bytes |
//! | `bits(v, shift, mask)` | `v >> shift & mask` in each byte, where `mask << shift` fits a byte |
//! | `splat(n)` | `n` in each byte |
//! | `or(a, b)`, `sub(a, b)` | `a \| b`; `a - b` in each byte, wrapping |
//! | `negate(v, u16)` | `-v` in the bytes whose bit is set |
//! | `high(v)` | `v << 4` in each byte, where `v < 16` |
//! | `spread(u16)` | bit `j` of the argument in byte `j`, as 0 or 1 |
//! | `lookup(&[i8; 16], v)` | `table[v]` for each byte, where `v < 16` |
//! | `half(F16Le)` | its f32 |
//! | `scale16(v, d, out)` | `out[j] = d·v[j]`, with `v` as int8 |
//! | `affine16(v, d, m, out)` | `out[j] = d·v[j] + m`, rounded twice, with `v` as int8 |
//! | `f16_row`, `bf16_row` | whole rows of those types |
//!
//! In the super-blocks `c` counts chunks of 16 packed bytes and `k` the bit fields of a byte; which group field `k` of
//! chunk `c` is follows from the layouts in `block/structs.rs`.

use crate::block::{self, Block, signs_even};

/// Pairs blocks with their values in groups of 16.
pub(super) fn each<'a, B: Block, const GROUPS: usize>(
    bytes: &'a [u8],
    out: &'a mut [f32],
) -> impl Iterator<Item = (&'a B, &'a mut [[f32; 16]; GROUPS])> {
    const { assert!(B::LEN == 16 * GROUPS) };
    block::cast(bytes).iter().zip(out.as_chunks_mut::<16>().0.as_chunks_mut::<GROUPS>().0)
}

/// Returns 16 bytes of `bytes` from byte `16 * i` on.
pub(super) fn chunk(bytes: &[u8], i: usize) -> &[u8; 16] {
    &bytes.as_chunks::<16>().0[i]
}

/// Returns the signs of 16 values from two 7-bit patterns.
#[inline]
pub(super) fn two_patterns(patterns: u32) -> u16 {
    u16::from_le_bytes([signs_even(patterns as u8), signs_even((patterns >> 7) as u8)])
}

macro_rules! vector_rows {
    ($features:literal, $vector:ty) => {
        /// Dequantises whole blocks; the lengths are the caller's promise.
        #[target_feature(enable = $features)]
        pub(super) fn dequantize(ty: GgmlType, bytes: &[u8], out: &mut [f32]) {
            match ty {
                GgmlType::F16 => f16_row(bytes, out),
                GgmlType::BF16 => bf16_row(bytes, out),
                GgmlType::Q4_0 => each(bytes, out).for_each(|(block, out)| q4_0(block, out)),
                GgmlType::Q4_1 => each(bytes, out).for_each(|(block, out)| q4_1(block, out)),
                GgmlType::Q5_0 => each(bytes, out).for_each(|(block, out)| q5_0(block, out)),
                GgmlType::Q5_1 => each(bytes, out).for_each(|(block, out)| q5_1(block, out)),
                GgmlType::Q8_0 => each(bytes, out).for_each(|(block, out)| q8_0(block, out)),
                GgmlType::Q2_K => each(bytes, out).for_each(|(block, out)| q2_k(block, out)),
                GgmlType::Q3_K => each(bytes, out).for_each(|(block, out)| q3_k(block, out)),
                GgmlType::Q4_K => each(bytes, out).for_each(|(block, out)| q4_k(block, out)),
                GgmlType::Q5_K => each(bytes, out).for_each(|(block, out)| q5_k(block, out)),
                GgmlType::Q6_K => each(bytes, out).for_each(|(block, out)| q6_k(block, out)),
                GgmlType::IQ2_XXS => each(bytes, out).for_each(|(block, out)| iq2_xxs(block, out)),
                GgmlType::IQ2_XS => each(bytes, out).for_each(|(block, out)| iq2_xs(block, out)),
                GgmlType::IQ2_S => each(bytes, out).for_each(|(block, out)| iq2_s(block, out)),
                GgmlType::IQ3_XXS => each(bytes, out).for_each(|(block, out)| iq3_xxs(block, out)),
                GgmlType::IQ3_S => each(bytes, out).for_each(|(block, out)| iq3_s(block, out)),
                GgmlType::IQ1_S => each(bytes, out).for_each(|(block, out)| iq1_s(block, out)),
                GgmlType::IQ1_M => each(bytes, out).for_each(|(block, out)| iq1_m(block, out)),
                GgmlType::IQ4_NL => each(bytes, out).for_each(|(block, out)| iq4_nl(block, out)),
                GgmlType::IQ4_XS => each(bytes, out).for_each(|(block, out)| iq4_xs(block, out)),
                GgmlType::TQ2_0 => each(bytes, out).for_each(|(block, out)| tq2_0(block, out)),
                GgmlType::MXFP4 => each(bytes, out).for_each(|(block, out)| mxfp4(block, out)),
                _ => scalar::dequantize(ty, bytes, out),
            }
        }

        /// The low (`i == 0`) or high nibbles of a block of 32.
        #[inline]
        #[target_feature(enable = $features)]
        fn nibbles(qs: &[u8; 16], i: usize) -> $vector {
            bits(load(qs), 4 * i as i32, 15)
        }

        /// As `nibbles`, with bits `16i..16i+16` of `qh` as fifth bits.
        #[inline]
        #[target_feature(enable = $features)]
        fn five_bits(qs: &[u8; 16], qh: [u8; 4], i: usize) -> $vector {
            or(nibbles(qs, i), high(spread(u16::from_le_bytes([qh[2 * i], qh[2 * i + 1]]))))
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn q4_0(block: &BlockQ4_0, out: &mut [[f32; 16]; 2]) {
            let d = half(block.d);
            for (i, out) in out.iter_mut().enumerate() {
                scale16(sub(nibbles(&block.qs, i), splat(8)), d, out);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn q4_1(block: &BlockQ4_1, out: &mut [[f32; 16]; 2]) {
            let (d, m) = (half(block.d), half(block.m));
            for (i, out) in out.iter_mut().enumerate() {
                affine16(nibbles(&block.qs, i), d, m, out);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn q5_0(block: &BlockQ5_0, out: &mut [[f32; 16]; 2]) {
            let d = half(block.d);
            for (i, out) in out.iter_mut().enumerate() {
                scale16(sub(five_bits(&block.qs, block.qh, i), splat(16)), d, out);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn q5_1(block: &BlockQ5_1, out: &mut [[f32; 16]; 2]) {
            let (d, m) = (half(block.d), half(block.m));
            for (i, out) in out.iter_mut().enumerate() {
                affine16(five_bits(&block.qs, block.qh, i), d, m, out);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn q8_0(block: &BlockQ8_0, out: &mut [[f32; 16]; 2]) {
            let d = half(block.d);
            let halves: &[[u8; 16]; 2] = bytemuck::must_cast_ref(&block.qs);
            for (qs, out) in halves.iter().zip(out) {
                scale16(load(qs), d, out);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn q2_k(block: &BlockQ2_K, out: &mut [[f32; 16]; 16]) {
            let (d, dmin) = (half(block.d), half(block.dmin));
            for c in 0..4 {
                let v = load(chunk(&block.qs, c));
                for k in 0..4 {
                    let i = 8 * (c / 2) + 2 * k + c % 2;
                    let scale = block.scales[i];
                    let (d, m) = (d * f32::from(scale & 15), dmin * f32::from(scale >> 4));
                    affine16(bits(v, 2 * k as i32, 3), d, -m, &mut out[i]);
                }
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn q3_k(block: &BlockQ3_K, out: &mut [[f32; 16]; 16]) {
            let (d, scales) = (half(block.d), block.scales());
            for c in 0..4 {
                let (v, h) = (load(chunk(&block.qs, c)), load(chunk(&block.hmask, c % 2)));
                for k in 0..4 {
                    let i = 8 * (c / 2) + 2 * k + c % 2;
                    // The third bit stands for 4, and all is lowered by 4.
                    let third = bits(high(bits(h, i as i32 / 2, 1)), 2, 4);
                    let q = sub(or(bits(v, 2 * k as i32, 3), third), splat(4));
                    scale16(q, d * f32::from(scales[i]), &mut out[i]);
                }
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn q4_k(block: &BlockQ4_K, out: &mut [[f32; 16]; 16]) {
            let (d, dmin) = (half(block.d), half(block.dmin));
            let (scales, mins) = scale_min_k4(&block.scales);
            for c in 0..8 {
                let v = load(chunk(&block.qs, c));
                for k in 0..2 {
                    let group = 2 * (c / 2) + k;
                    let (d, m) = (d * f32::from(scales[group]), dmin * f32::from(mins[group]));
                    affine16(bits(v, 4 * k as i32, 15), d, -m, &mut out[2 * group + c % 2]);
                }
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn q5_k(block: &BlockQ5_K, out: &mut [[f32; 16]; 16]) {
            let (d, dmin) = (half(block.d), half(block.dmin));
            let (scales, mins) = scale_min_k4(&block.scales);
            for c in 0..8 {
                let (v, h) = (load(chunk(&block.qs, c)), load(chunk(&block.qh, c % 2)));
                for k in 0..2 {
                    let group = 2 * (c / 2) + k;
                    let (d, m) = (d * f32::from(scales[group]), dmin * f32::from(mins[group]));
                    let q = or(bits(v, 4 * k as i32, 15), high(bits(h, group as i32, 1)));
                    affine16(q, d, -m, &mut out[2 * group + c % 2]);
                }
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn q6_k(block: &BlockQ6_K, out: &mut [[f32; 16]; 16]) {
            let d = half(block.d);
            for c in 0..8 {
                let (v, h) = (load(chunk(&block.ql, c)), load(chunk(&block.qh, 2 * (c / 4) + c % 2)));
                for k in 0..2 {
                    let group = c / 2 % 2 + 2 * k;
                    let i = 8 * (c / 4) + 2 * group + c % 2;
                    let q = or(bits(v, 4 * k as i32, 15), high(bits(h, 2 * group as i32, 3)));
                    scale16(sub(q, splat(32)), d * f32::from(block.scales[i]), &mut out[i]);
                }
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn iq2_xxs(block: &BlockIQ2_XXS, out: &mut [[f32; 16]; 16]) {
            let d = half(block.d);
            for (i, out) in out.iter_mut().enumerate() {
                let group = u64::from_le_bytes(block.qs[i / 2]);
                let (indices, signs) = ((group >> (16 * (i % 2))) as u16, (group >> 32) as u32);
                let d = d * (0.5 + (signs >> 28) as f32) * 0.25;
                let grid = indices.to_le_bytes().map(|index| IQ2_XXS_GRID[usize::from(index)]);
                let q = negate(load(&bytemuck::must_cast(grid)), two_patterns(signs >> (14 * (i % 2))));
                scale16(q, d, out);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn iq2_xs(block: &BlockIQ2_XS, out: &mut [[f32; 16]; 16]) {
            let d = half(block.d);
            for (i, out) in out.iter_mut().enumerate() {
                let d = d * (0.5 + scale4(&block.scales, i)) * 0.25;
                let q = [0, 1].map(|l| u16::from_le_bytes(block.qs[2 * i + l]));
                let grid = q.map(|q| IQ2_XS_GRID[usize::from(q & 511)]);
                let signs = u16::from_le_bytes(q.map(|q| signs_even((q >> 9) as u8)));
                scale16(negate(load(&bytemuck::must_cast(grid)), signs), d, out);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn iq2_s(block: &BlockIQ2_S, out: &mut [[f32; 16]; 16]) {
            let d = half(block.d);
            for (i, out) in out.iter_mut().enumerate() {
                let d = d * (0.5 + scale4(&block.scales, i)) * 0.25;
                let high = u16::from(block.qh[i / 2]) >> (4 * (i % 2));
                let grid = [0, 1].map(|l| {
                    let index = u16::from(block.qs[2 * i + l]) | (high >> (2 * l) & 3) << 8;
                    IQ2_S_GRID[usize::from(index)]
                });
                let signs = u16::from_le_bytes([block.signs[2 * i], block.signs[2 * i + 1]]);
                scale16(negate(load(&bytemuck::must_cast(grid)), signs), d, out);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn iq3_xxs(block: &BlockIQ3_XXS, out: &mut [[f32; 16]; 16]) {
            let d = half(block.d);
            for (i, out) in out.iter_mut().enumerate() {
                let signs = u32::from_le_bytes(block.scales_signs[i / 2]);
                let d = d * (0.5 + (signs >> 28) as f32) * 0.5;
                let grid = [0, 1, 2, 3].map(|l| IQ3_XXS_GRID[usize::from(block.qs[4 * i + l])]);
                let q = negate(load(&bytemuck::must_cast(grid)), two_patterns(signs >> (14 * (i % 2))));
                scale16(q, d, out);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn iq3_s(block: &BlockIQ3_S, out: &mut [[f32; 16]; 16]) {
            let d = half(block.d);
            for (i, out) in out.iter_mut().enumerate() {
                let d = d * (1.0 + 2.0 * scale4(&block.scales, i / 2));
                let high = u16::from(block.qh[i / 2]) >> (4 * (i % 2));
                let grid = [0, 1, 2, 3].map(|l| {
                    let index = u16::from(block.qs[4 * i + l]) | (high >> l & 1) << 8;
                    IQ3_S_GRID[usize::from(index)]
                });
                let signs = u16::from_le_bytes([block.signs[2 * i], block.signs[2 * i + 1]]);
                scale16(negate(load(&bytemuck::must_cast(grid)), signs), d, out);
            }
        }

        /// Scales 16 ternary values, each with 1/8 added, or subtracted where its bit of `minus` is set. In eighths
        /// they are small integers, and an eighth of `d` is exact.
        #[inline]
        #[target_feature(enable = $features)]
        fn ternary_offset(grid: [[i8; 8]; 2], minus: u16, d: f32, out: &mut [f32; 16]) {
            let code = sub(load(&bytemuck::must_cast(grid)), splat(-1)); // 0, 1, 2
            let eighths = sub(bits(high(code), 1, 0x18), splat(7));
            scale16(sub(eighths, bits(high(spread(minus)), 3, 2)), d * 0.125, out);
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn iq1_s(block: &BlockIQ1_S, out: &mut [[f32; 16]; 16]) {
            let d = half(block.d);
            for (i, out) in out.iter_mut().enumerate() {
                let qh = u16::from_le_bytes(block.qh[i / 2]);
                let grid = [0, 1].map(|l| {
                    let index = u16::from(block.qs[2 * i + l]) | (qh >> (6 * (i % 2) + 3 * l) & 7) << 8;
                    IQ1_GRID[usize::from(index)]
                });
                let minus = if qh & 0x8000 == 0 { 0 } else { u16::MAX };
                ternary_offset(grid, minus, d * f32::from(2 * (qh >> 12 & 7) + 1), out);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn iq1_m(block: &BlockIQ1_M, out: &mut [[f32; 16]; 16]) {
            let (scales, d) = (block.scales.map(u16::from_le_bytes), half(block.d()));
            for (i, out) in out.iter_mut().enumerate() {
                let high = u16::from(block.qh[i]);
                let grid = [0, 1].map(|l| {
                    let index = u16::from(block.qs[2 * i + l]) | (high >> (4 * l) & 7) << 8;
                    IQ1_GRID[usize::from(index)]
                });
                let minus = (high >> 3 & 1) * 0x00ff | (high >> 7 & 1) * 0xff00;
                let scale = scales[i / 4] >> (3 * (i % 4)) & 7;
                ternary_offset(grid, minus, d * f32::from(2 * scale + 1), out);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn iq4_nl(block: &BlockIQ4_NL, out: &mut [[f32; 16]; 2]) {
            let d = half(block.d);
            for (i, out) in out.iter_mut().enumerate() {
                scale16(lookup(&IQ4_VALUES, nibbles(&block.qs, i)), d, out);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn iq4_xs(block: &BlockIQ4_XS, out: &mut [[f32; 16]; 16]) {
            let (d, scales) = (half(block.d), block.scales());
            for (c, qs) in block.qs.as_chunks::<16>().0.iter().enumerate() {
                let d = d * f32::from(scales[c]);
                for k in 0..2 {
                    scale16(lookup(&IQ4_VALUES, nibbles(qs, k)), d, &mut out[2 * c + k]);
                }
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn tq2_0(block: &BlockTQ2_0, out: &mut [[f32; 16]; 16]) {
            let d = half(block.d);
            for c in 0..4 {
                let v = load(chunk(&block.qs, c));
                for k in 0..4 {
                    scale16(sub(bits(v, 2 * k as i32, 3), splat(1)), d, &mut out[8 * (c / 2) + 2 * k + c % 2]);
                }
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn mxfp4(block: &BlockMXFP4, out: &mut [[f32; 16]; 2]) {
            let d = block.half_scale();
            for (i, out) in out.iter_mut().enumerate() {
                scale16(lookup(&MXFP4_VALUES, nibbles(&block.qs, i)), d, out);
            }
        }
    };
}
pub(super) use vector_rows;
