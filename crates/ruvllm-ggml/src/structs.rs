//! The on-disk blocks. Every field is made of bytes, so a block has alignment 1 and any slice of a file can be viewed
//! as blocks without copying. Layouts: `ggml-common.h`, with the same field names; multi-byte fields are little-endian.

use bytemuck::{Pod, Zeroable};
use half::f16;

/// An f16 as it lies in a file: two bytes, little-endian, unaligned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct F16Le(pub [u8; 2]);

impl F16Le {
    /// Returns the nearest f16, ties to even.
    #[inline]
    pub fn from_f32(x: f32) -> F16Le {
        F16Le(f16::from_f32(x).to_le_bytes())
    }

    /// Returns the value, exactly.
    #[inline]
    pub fn to_f32(self) -> f32 {
        f16::from_le_bytes(self.0).to_f32()
    }
}

/// A block type of [`GgmlType`](super::GgmlType): plain bytes in, plain bytes out.
pub trait Block: Pod {
    /// How many values a block holds.
    const LEN: usize;
}

/// Views bytes as blocks.
///
/// # Panics
/// If `bytes` is not a whole number of blocks.
pub fn cast<B: Block>(bytes: &[u8]) -> &[B] {
    const { assert!(align_of::<B>() == 1, "blocks are made of bytes") };
    bytemuck::cast_slice(bytes)
}

macro_rules! blocks {
    ($($(#[$doc:meta])* $name:ident: $len:literal values in $bytes:literal bytes { $($(#[$fdoc:meta])* $field:ident: $ty:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Pod, Zeroable)]
        #[repr(C)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }
        const _: () = assert!(size_of::<$name>() == $bytes && align_of::<$name>() == 1);
        impl Block for $name {
            const LEN: usize = $len;
        }
    )*};
}

blocks! {
    /// `x[j] = d·(q − 8)`; value `j` is the low nibble of `qs[j]`, value `16 + j` the high one.
    BlockQ4_0: 32 values in 18 bytes {
        /// Scale.
        d: F16Le,
        /// Nibbles.
        qs: [u8; 16],
    }

    /// `x[j] = d·q + m`; nibbles as in [`BlockQ4_0`].
    BlockQ4_1: 32 values in 20 bytes {
        /// Scale.
        d: F16Le,
        /// Minimum.
        m: F16Le,
        /// Nibbles.
        qs: [u8; 16],
    }

    /// `x[j] = d·(q − 16)`; nibbles as in [`BlockQ4_0`], the fifth bit of value `j` is bit `j` of `qh`.
    BlockQ5_0: 32 values in 22 bytes {
        /// Scale.
        d: F16Le,
        /// Fifth bits, little-endian u32.
        qh: [u8; 4],
        /// Nibbles.
        qs: [u8; 16],
    }

    /// `x[j] = d·q + m`; bits as in [`BlockQ5_0`].
    BlockQ5_1: 32 values in 24 bytes {
        /// Scale.
        d: F16Le,
        /// Minimum.
        m: F16Le,
        /// Fifth bits, little-endian u32.
        qh: [u8; 4],
        /// Nibbles.
        qs: [u8; 16],
    }

    /// `x[j] = d·qs[j]`.
    BlockQ8_0: 32 values in 34 bytes {
        /// Scale.
        d: F16Le,
        /// Values.
        qs: [i8; 32],
    }

    /// `x[j] = d·qs[j]`; an activation format.
    BlockQ8_1: 32 values in 36 bytes {
        /// Scale.
        d: F16Le,
        /// `d·Σ qs`.
        s: F16Le,
        /// Values.
        qs: [i8; 32],
    }

    /// `x = d·(scale & 15)·q − dmin·(scale >> 4)`, a scale byte per 16 values. Value `128h + 32k + j` is bits
    /// `2k..2k+2` of `qs[32h + j]`.
    BlockQ2_K: 256 values in 84 bytes {
        /// Scales (low nibble) and minimums (high nibble).
        scales: [u8; 16],
        /// Quants, 2 bits each.
        qs: [u8; 64],
        /// Scale of the scales.
        d: F16Le,
        /// Scale of the minimums.
        dmin: F16Le,
    }

    /// `x = d·(scale − 32)·(q − 4·(1 − h))`, a scale per 16 values. Quants as in [`BlockQ2_K`]; `h` of value
    /// `32k + j` is bit `k` of `hmask[j]`.
    BlockQ3_K: 256 values in 110 bytes {
        /// Third bits.
        hmask: [u8; 32],
        /// Low two bits.
        qs: [u8; 64],
        /// 16 scales of 6 bits: see [`BlockQ3_K::scales`].
        scales: [u8; 12],
        /// Scale of the scales.
        d: F16Le,
    }

    /// `x = d·scale·q − dmin·min`, both per 32 values. Value `64g + j` is the low nibble of `qs[32g + j]`, value
    /// `64g + 32 + j` the high one.
    BlockQ4_K: 256 values in 144 bytes {
        /// Scale of the scales.
        d: F16Le,
        /// Scale of the minimums.
        dmin: F16Le,
        /// 8 scales and 8 minimums of 6 bits: see [`scale_min_k4`].
        scales: [u8; 12],
        /// Nibbles.
        qs: [u8; 128],
    }

    /// As [`BlockQ4_K`], with a fifth bit: of value `32k + j` it is bit `k` of `qh[j]`.
    BlockQ5_K: 256 values in 176 bytes {
        /// Scale of the scales.
        d: F16Le,
        /// Scale of the minimums.
        dmin: F16Le,
        /// 8 scales and 8 minimums of 6 bits: see [`scale_min_k4`].
        scales: [u8; 12],
        /// Fifth bits.
        qh: [u8; 32],
        /// Nibbles.
        qs: [u8; 128],
    }

    /// `x = d·scale·(q − 32)`, a scale per 16 values. Of value `128h + 32k + j`: the low nibble is the low (`k < 2`) or
    /// high nibble of `ql[64h + 32·(k % 2) + j]`, the high two bits are bits `2k..2k+2` of `qh[32h + j]`.
    BlockQ6_K: 256 values in 210 bytes {
        /// Low nibbles.
        ql: [u8; 128],
        /// High two bits.
        qh: [u8; 64],
        /// Scales.
        scales: [i8; 16],
        /// Scale of the scales.
        d: F16Le,
    }

    /// `x[j] = d·qs[j]`; an activation format.
    BlockQ8_K: 256 values in 292 bytes {
        /// Scale, little-endian f32.
        d: [u8; 4],
        /// Values.
        qs: [i8; 256],
        /// Sums of 16 values each, little-endian i16.
        bsums: [[u8; 2]; 16],
    }

    /// Eight groups of 32: four grid indices (u8), then a u32 of four 7-bit sign patterns and a 4-bit scale.
    BlockIQ2_XXS: 256 values in 66 bytes {
        /// Scale.
        d: F16Le,
        /// Groups.
        qs: [[u8; 8]; 8],
    }

    /// A u16 per 8 values: 9 bits of grid index, 7 of sign pattern; a 4-bit scale per 16.
    BlockIQ2_XS: 256 values in 74 bytes {
        /// Scale.
        d: F16Le,
        /// Indices and signs, little-endian u16.
        qs: [[u8; 2]; 32],
        /// Scales, two a byte.
        scales: [u8; 8],
    }

    /// A 10-bit grid index and 8 sign bits per 8 values; a 4-bit scale per 16.
    BlockIQ2_S: 256 values in 82 bytes {
        /// Scale.
        d: F16Le,
        /// Low 8 bits of the indices.
        qs: [u8; 32],
        /// Sign bits.
        signs: [u8; 32],
        /// High 2 bits of the indices, four a byte.
        qh: [u8; 8],
        /// Scales, two a byte.
        scales: [u8; 8],
    }

    /// An 8-bit grid index per 4 values; per 32, a u32 of four 7-bit sign patterns and a 4-bit scale.
    BlockIQ3_XXS: 256 values in 98 bytes {
        /// Scale.
        d: F16Le,
        /// Grid indices.
        qs: [u8; 64],
        /// Signs and scales, little-endian u32.
        scales_signs: [[u8; 4]; 8],
    }

    /// A 9-bit grid index per 4 values, 8 sign bits per 8, a 4-bit scale per 32.
    BlockIQ3_S: 256 values in 110 bytes {
        /// Scale.
        d: F16Le,
        /// Low 8 bits of the indices.
        qs: [u8; 64],
        /// Ninth bits of the indices.
        qh: [u8; 8],
        /// Sign bits.
        signs: [u8; 32],
        /// Scales, two a byte.
        scales: [u8; 4],
    }

    /// An 11-bit grid index per 8 values; per 32, a 3-bit scale and the sign of the offset 1/8.
    BlockIQ1_S: 256 values in 50 bytes {
        /// Scale.
        d: F16Le,
        /// Low 8 bits of the indices.
        qs: [u8; 32],
        /// Per 32 values, little-endian u16: four times 3 high index bits, 3 bits of scale, the offset's sign.
        qh: [[u8; 2]; 8],
    }

    /// An 11-bit grid index and the sign of the offset 1/8 per 8 values, a 3-bit scale per 16.
    BlockIQ1_M: 256 values in 56 bytes {
        /// Low 8 bits of the indices.
        qs: [u8; 32],
        /// Per 8 values a nibble: 3 high index bits and the offset's sign.
        qh: [u8; 16],
        /// Per 64 values, little-endian u16: four 3-bit scales; the top nibbles together are the f16 scale.
        scales: [[u8; 2]; 4],
    }

    /// `x[j] = d·IQ4_VALUES[q]`; nibbles as in [`BlockQ4_0`].
    BlockIQ4_NL: 32 values in 18 bytes {
        /// Scale.
        d: F16Le,
        /// Nibbles.
        qs: [u8; 16],
    }

    /// `x = d·(scale − 32)·IQ4_VALUES[q]`, a scale per 32 values; nibbles of each 32 as in [`BlockQ4_0`].
    BlockIQ4_XS: 256 values in 136 bytes {
        /// Scale of the scales.
        d: F16Le,
        /// High 2 bits of the scales, little-endian u16.
        scales_h: [u8; 2],
        /// Low 4 bits of the scales, two a byte.
        scales_l: [u8; 4],
        /// Nibbles.
        qs: [u8; 128],
    }

    /// Ternary, five base-3 digits a byte (as a fraction of 256): `x = d·(digit − 1)`.
    BlockTQ1_0: 256 values in 54 bytes {
        /// 240 values: 160 from the first 32 bytes (digit `k` of byte `j` is value `32k + j`), 80 from the last 16.
        qs: [u8; 48],
        /// 16 values: digit `k` of byte `j` is value `240 + 4k + j`.
        qh: [u8; 4],
        /// Scale.
        d: F16Le,
    }

    /// Ternary: `x = d·(q − 1)`; quants as in [`BlockQ2_K`].
    BlockTQ2_0: 256 values in 66 bytes {
        /// Quants, 2 bits each.
        qs: [u8; 64],
        /// Scale.
        d: F16Le,
    }

    /// `x[j] = 2^(e − 128)·MXFP4_VALUES[q]`; nibbles as in [`BlockQ4_0`].
    BlockMXFP4: 32 values in 17 bytes {
        /// Exponent (E8M0).
        e: u8,
        /// Nibbles (E2M1).
        qs: [u8; 16],
    }
}

/// Unpacks the scales and minimums of [`BlockQ4_K`] and [`BlockQ5_K`], 6 bits each.
///
/// ```text
/// byte 0..4: s4[7:6] s0[5:0] ..   byte 4..8: m4[7:6] m0[5:0] ..   byte 8..12: m4[3:0] s4[3:0] ..
/// ```
#[inline]
pub fn scale_min_k4(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let word = |i: usize| u32::from_le_bytes(packed.as_chunks().0[i]);
    let (s, m, low) = (word(0), word(1), word(2));
    let join = |a: u32, b: u32| (u64::from(a) | u64::from(b) << 32).to_le_bytes();
    let scales = join(s & 0x3f3f_3f3f, low & 0x0f0f_0f0f | s >> 2 & 0x3030_3030);
    let mins = join(m & 0x3f3f_3f3f, low >> 4 & 0x0f0f_0f0f | m >> 2 & 0x3030_3030);
    (scales, mins)
}

impl BlockQ3_K {
    /// Unpacks the 16 scales, −32 to 31: low nibbles in bytes 0..8, two high bits in bytes 8..12.
    #[inline]
    pub fn scales(&self) -> [i8; 16] {
        std::array::from_fn(|i| {
            let low = self.scales[i % 8] >> (4 * (i / 8)) & 15;
            let high = self.scales[8 + i % 4] >> (2 * (i / 4)) & 3;
            (low | high << 4) as i8 - 32
        })
    }
}

impl BlockIQ1_M {
    /// Returns the scale, gathered from the top nibbles of [`scales`](BlockIQ1_M::scales).
    #[inline]
    pub fn d(&self) -> F16Le {
        let [a, b, c, d] = self.scales.map(|scale| scale[1] >> 4);
        F16Le([a | b << 4, c | d << 4])
    }
}

impl BlockIQ4_XS {
    /// Unpacks the 8 scales, −32 to 31.
    #[inline]
    pub fn scales(&self) -> [i8; 8] {
        let high = u16::from_le_bytes(self.scales_h);
        std::array::from_fn(|i| {
            let low = self.scales_l[i / 2] >> (4 * (i % 2)) & 15;
            (low | (((high >> (2 * i)) as u8 & 3) << 4)) as i8 - 32
        })
    }
}

impl BlockMXFP4 {
    /// Returns half the block's scale, `2^(e − 128)`: [`MXFP4_VALUES`](super::MXFP4_VALUES) are doubled.
    #[inline]
    pub fn half_scale(&self) -> f32 {
        f32::from_bits(match self.e {
            // The two exponents that are subnormal in f32.
            0 | 1 => 0x0020_0000 << self.e,
            e => u32::from(e - 1) << 23,
        })
    }
}
