//! Block types over vectors of 16 bytes, written once for all instruction sets.
//!
//! Each block is cut into groups of 16 values with one scale (and minimum): unpack the group's quants to int8, widen,
//! convert, multiply, subtract. The file that expands [`vector_rows`] has these in scope, all with its target features:
//!
//! | primitive | returns or does |
//! |---|---|
//! | `load(&[u8; 16])` | the bytes |
//! | `bits(v, shift, mask)` | `v >> shift & mask` in each byte, where `mask << shift` fits a byte |
//! | `or(a, b)`, `sub(v, n)` | `a \| b`; `v - n` in each byte, wrapping |
//! | `high(v)` | `v << 4` in each byte, where `v < 16` |
//! | `spread(u16)` | bit `j` of the argument in byte `j`, as 0 or 1 |
//! | `lookup(&[i8; 16], v)` | `table[v]` for each byte, where `v < 16` |
//! | `half(F16Le)` | its f32 |
//! | `scale16(v, d, out)` | `out[j] = d·v[j]`, with `v` as int8 |
//! | `affine16(v, d, m, out)` | `out[j] = d·v[j] + m`, rounded twice, with `v` as int8 |
//! | `f16_row`, `bf16_row` | whole rows of those types |

use crate::block::{self, Block};

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

        /// Group `i` of 2-bit quants as Q2_K, Q3_K and TQ2_0 lay them out.
        #[inline]
        #[target_feature(enable = $features)]
        fn two_bits(qs: &[u8; 64], i: usize) -> $vector {
            bits(load(chunk(qs, 2 * (i / 8) + i % 2)), 2 * (i as i32 / 2 % 4), 3)
        }

        /// Group `i` of nibbles as Q4_K and Q5_K lay them out.
        #[inline]
        #[target_feature(enable = $features)]
        fn nibbles_k(qs: &[u8; 128], i: usize) -> $vector {
            bits(load(chunk(qs, 2 * (i / 4) + i % 2)), 4 * (i as i32 / 2 % 2), 15)
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn q4_0(block: &BlockQ4_0, out: &mut [[f32; 16]; 2]) {
            let d = half(block.d);
            for (i, out) in out.iter_mut().enumerate() {
                scale16(sub(nibbles(&block.qs, i), 8), d, out);
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
                scale16(sub(five_bits(&block.qs, block.qh, i), 16), d, out);
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
            for (i, out) in out.iter_mut().enumerate() {
                scale16(load(chunk(bytemuck::cast_slice(&block.qs), i)), d, out);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn q2_k(block: &BlockQ2_K, out: &mut [[f32; 16]; 16]) {
            let (d, dmin) = (half(block.d), half(block.dmin));
            for (i, (out, scale)) in out.iter_mut().zip(block.scales).enumerate() {
                let (d, m) = (d * f32::from(scale & 15), dmin * f32::from(scale >> 4));
                affine16(two_bits(&block.qs, i), d, -m, out);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn q3_k(block: &BlockQ3_K, out: &mut [[f32; 16]; 16]) {
            let d = half(block.d);
            for (i, (out, scale)) in out.iter_mut().zip(block.scales()).enumerate() {
                // The third bit stands for 4, and all is lowered by 4.
                let third = bits(load(chunk(&block.hmask, i % 2)), i as i32 / 2, 1);
                let q = sub(or(two_bits(&block.qs, i), bits(high(third), 2, 4)), 4);
                scale16(q, d * f32::from(scale), out);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn q4_k(block: &BlockQ4_K, out: &mut [[f32; 16]; 16]) {
            let (d, dmin) = (half(block.d), half(block.dmin));
            let (scales, mins) = scale_min_k4(&block.scales);
            for (i, out) in out.iter_mut().enumerate() {
                let (d, m) = (d * f32::from(scales[i / 2]), dmin * f32::from(mins[i / 2]));
                affine16(nibbles_k(&block.qs, i), d, -m, out);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn q5_k(block: &BlockQ5_K, out: &mut [[f32; 16]; 16]) {
            let (d, dmin) = (half(block.d), half(block.dmin));
            let (scales, mins) = scale_min_k4(&block.scales);
            for (i, out) in out.iter_mut().enumerate() {
                let (d, m) = (d * f32::from(scales[i / 2]), dmin * f32::from(mins[i / 2]));
                let fifth = bits(load(chunk(&block.qh, i % 2)), i as i32 / 2, 1);
                affine16(or(nibbles_k(&block.qs, i), high(fifth)), d, -m, out);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn q6_k(block: &BlockQ6_K, out: &mut [[f32; 16]; 16]) {
            let d = half(block.d);
            for (i, (out, scale)) in out.iter_mut().zip(block.scales).enumerate() {
                let low = load(chunk(&block.ql, 4 * (i / 8) + i % 4));
                let q = or(bits(low, 4 * (i as i32 / 4 % 2), 15), high(two_bits(&block.qh, i)));
                scale16(sub(q, 32), d * f32::from(scale), out);
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
            for (i, out) in out.iter_mut().enumerate() {
                let q = nibbles(chunk(&block.qs, i / 2), i % 2);
                scale16(lookup(&IQ4_VALUES, q), d * f32::from(scales[i / 2]), out);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn tq2_0(block: &BlockTQ2_0, out: &mut [[f32; 16]; 16]) {
            let d = half(block.d);
            for (i, out) in out.iter_mut().enumerate() {
                scale16(sub(two_bits(&block.qs, i), 1), d, out);
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
