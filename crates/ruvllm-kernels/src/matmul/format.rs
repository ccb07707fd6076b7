//! The formats of the integer path: what the kernels must know of each, and its panel layout.

use crate::block::{BlockIQ4_XS, BlockQ3_K, GgmlType, IQ4_VALUES, MXFP4_VALUES, scale_min_k4};
use std::ops::Range;

/// Rows of a panel.
pub(super) const PANEL_ROWS: usize = 16;

/// Values of a block: what one activation scale covers.
pub(super) const BLOCK: usize = 32;

/// One format, as constants that the kernels are specialised by.
///
/// A panel is a straight stream of groups: the quants of `GROUP` blocks, `[GROUP][VECTORS][64]` bytes, then their
/// scales, one record of `SCALE_BYTES` per block of the file (a group has whole cache lines, the last one is padded):
///
/// | | f16, or E8M0 in a byte | f16 | per sub-block | per sub-block |
/// |---|---|---|---|---|
/// | 32-wide | `d[16]` | `m[16]` if `MIN` | – | – |
/// | 256-wide (`SUPER`) | `d[16]` | `-dmin[16]` if `MIN` | `sc[n_sub][16]` as [`SubScales`] says | `mn[n_sub][16]` u8 if `MIN`, but for nibbles |
///
/// A weight is `(u - OFFSET) * scale (+ m)` with `u` the unsigned quant, `scale` = `d` or `d * sc`, and `m` = `m` or
/// `-dmin * mn`. Where there are `CODES`, `u` is what the quant's code is, with 128 added.
pub(super) trait Format: 'static {
    /// The type in files.
    const TY: GgmlType;
    /// Bits of a quant: 2 to 6, or 8.
    const BITS: u32;
    /// Values by quant; `None` where a quant is its own.
    const CODES: Option<&'static [i8; 16]> = None;
    /// `log2` of what is subtracted from the unsigned quant; `None` subtracts nothing.
    const OFFSET_LOG2: Option<u32> = None;
    /// Whether a minimum is added.
    const MIN: bool = false;
    /// Scales of the parts of a file block.
    const SUB_SCALES: SubScales = SubScales::None;
    /// Whether a block's scale is the exponent of a power of two (E8M0) instead of an f16.
    const E8M0: bool = false;
    /// Whether scales cover 16 values instead of 32.
    const HALVES: bool = false;

    /// Whether blocks of 256 with integer sub-scales.
    const SUPER: bool = !matches!(Self::SUB_SCALES, SubScales::None);
    /// Vectors of 64 bytes that hold a block of a panel.
    const VECTORS: usize = match Self::BITS {
        2 => 2,
        3 => 3,
        4 => 4,
        5 => 5,
        6 => 6,
        _ => 8,
    };
    /// Bytes of a block's quants in a panel.
    const QUANT_BYTES: usize = Self::VECTORS * 64;
    /// Sub-blocks of a file block with a scale of their own.
    const N_SUB: usize = if Self::HALVES { 16 } else { 8 };
    /// Bytes of the part of a scale record that is of the whole file block.
    const SCALE_HEAD: usize = if Self::E8M0 { 16 } else { 32 * (1 + Self::MIN as usize) };
    /// Bytes of a scale record.
    const SCALE_BYTES: usize = Self::SCALE_HEAD
        + match Self::SUB_SCALES {
            SubScales::None => 0,
            SubScales::Unsigned => 16 * Self::N_SUB * (1 + Self::MIN as usize),
            SubScales::Signed | SubScales::Nibbles => 16 * Self::N_SUB,
        };
    /// Blocks of a group: a file block of 256 values, else as many as give whole cache lines of scales.
    const GROUP: usize = match (Self::SUPER, Self::E8M0) {
        (true, _) => 8,
        (_, true) => 4,
        _ => 2,
    };
    /// Bytes of a group.
    const GROUP_BYTES: usize = Self::GROUP * Self::QUANT_BYTES
        + (if Self::SUPER { Self::SCALE_BYTES } else { Self::GROUP * Self::SCALE_BYTES }).next_multiple_of(64);
    /// Whether products of quants by bytes can be added in i16: so many bits, and a scale per 32.
    #[cfg(target_arch = "x86_64")]
    const IS_NARROW: bool = Self::BITS <= 5 && Self::CODES.is_none() && !Self::HALVES;
    /// What is subtracted from the unsigned quant.
    const OFFSET: i32 = match Self::OFFSET_LOG2 {
        Some(bits) => 1 << bits,
        None => 0,
    };

    /// Unsigned weights by quant, where there are codes: the codes with 128 added.
    #[cfg(target_arch = "x86_64")]
    const UNSIGNED_CODES: [u8; 16] = {
        let mut codes = [0; 16];
        if let Some(signed) = Self::CODES {
            let mut quant = 0;
            while quant < codes.len() {
                codes[quant] = signed[quant] as u8 ^ 0x80;
                quant += 1;
            }
        }
        codes
    };

    /// Returns where in a panel the quants of block `b` begin: a multiple of 64.
    #[inline(always)]
    fn quants_at(b: usize) -> usize {
        b / Self::GROUP * Self::GROUP_BYTES + b % Self::GROUP * Self::QUANT_BYTES
    }

    /// Returns where in a panel the scale record of block `b` begins.
    #[inline(always)]
    fn record_at(b: usize) -> usize {
        let in_group = if Self::SUPER { 0 } else { b % Self::GROUP * Self::SCALE_BYTES };
        b / Self::GROUP * Self::GROUP_BYTES + Self::GROUP * Self::QUANT_BYTES + in_group
    }

    /// Returns the quants of block `sub` (of 32 values) within a file block, as they lie in the panel: word `v` is the
    /// row's four bytes of vector `v`; words from `VECTORS` on are zero.
    fn words(block: &[u8], sub: usize) -> [u32; 8];

    /// Writes the scales of a file block to lane `row` of a scale record. Unless a format says otherwise, its blocks begin with
    /// the scale and the minimum.
    fn scales(block: &[u8], record: &mut [u8], row: usize) {
        put_f16(record, 0, row, &block[0..2]);
        if Self::MIN {
            put_f16(record, 1, row, &block[2..4]);
        }
    }
}

/// How a format keeps the scales of the parts of a file block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubScales {
    /// There are no parts.
    None,
    /// Bytes; those of the minima, if there are any, after all scales.
    Unsigned,
    /// Signed bytes.
    Signed,
    /// Bytes of a scale in the low nibble and a minimum in the high one.
    Nibbles,
}

/// Returns the bytes of a panel with `n_blocks` blocks of 32: a multiple of 64.
pub(super) const fn panel_bytes<F: Format>(n_blocks: usize) -> usize {
    n_blocks.div_ceil(F::GROUP) * F::GROUP_BYTES
}

/// Returns the rows of a panel in a matrix of `n_rows`; the last has those that are left.
pub(super) fn panel_rows(panel: usize, n_rows: usize) -> Range<usize> {
    panel * PANEL_ROWS..n_rows.min((panel + 1) * PANEL_ROWS)
}

/// Q4_0: `d * (u - 8)`.
pub(super) enum Q40 {}
/// Q4_1: `d * u + m`.
pub(super) enum Q41 {}
/// Q5_0: `d * (u - 16)`.
pub(super) enum Q50 {}
/// Q5_1: `d * u + m`.
pub(super) enum Q51 {}
/// Q8_0: `d * (u - 128)`.
pub(super) enum Q80 {}
/// Q4_K: `d * sc * u - dmin * mn`.
pub(super) enum Q4K {}
/// Q5_K: `d * sc * u - dmin * mn`.
pub(super) enum Q5K {}
/// Q6_K: `d * sc * (u - 32)`, a scale per 16.
pub(super) enum Q6K {}
/// Q2_K: `d * sc * u - dmin * mn`, both per 16.
pub(super) enum Q2K {}
/// Q3_K: `d * sc * (u - 4)`, a scale per 16.
pub(super) enum Q3K {}
/// IQ4_NL: `d * code`.
pub(super) enum Iq4Nl {}
/// IQ4_XS: `d * sc * code`.
pub(super) enum Iq4Xs {}
/// MXFP4: `2^(e - 128) * code`.
pub(super) enum Mxfp4 {}

impl Format for Q40 {
    const TY: GgmlType = GgmlType::Q4_0;
    const BITS: u32 = 4;
    const OFFSET_LOG2: Option<u32> = Some(3);

    #[inline(always)]
    fn words(block: &[u8], _sub: usize) -> [u32; 8] {
        nibbles(part(block, 2))
    }
}

impl Format for Q41 {
    const TY: GgmlType = GgmlType::Q4_1;
    const BITS: u32 = 4;
    const MIN: bool = true;

    #[inline(always)]
    fn words(block: &[u8], _sub: usize) -> [u32; 8] {
        nibbles(part(block, 4))
    }
}

impl Format for Q50 {
    const TY: GgmlType = GgmlType::Q5_0;
    const BITS: u32 = 5;
    const OFFSET_LOG2: Option<u32> = Some(4);

    #[inline(always)]
    fn words(block: &[u8], _sub: usize) -> [u32; 8] {
        let mut words = nibbles(part(block, 6));
        words[4] = fifth_bits(u32::from_le_bytes(*part(block, 2)));
        words
    }
}

impl Format for Q51 {
    const TY: GgmlType = GgmlType::Q5_1;
    const BITS: u32 = 5;
    const MIN: bool = true;

    #[inline(always)]
    fn words(block: &[u8], _sub: usize) -> [u32; 8] {
        let mut words = nibbles(part(block, 8));
        words[4] = fifth_bits(u32::from_le_bytes(*part(block, 4)));
        words
    }
}

impl Format for Q80 {
    const TY: GgmlType = GgmlType::Q8_0;
    const BITS: u32 = 8;
    const OFFSET_LOG2: Option<u32> = Some(7);

    #[inline(always)]
    fn words(block: &[u8], _sub: usize) -> [u32; 8] {
        let quants = part::<32>(block, 2);
        std::array::from_fn(|j| word(quants, 4 * j) ^ 0x8080_8080)
    }
}

impl Format for Q4K {
    const TY: GgmlType = GgmlType::Q4_K;
    const BITS: u32 = 4;
    const MIN: bool = true;
    const SUB_SCALES: SubScales = SubScales::Unsigned;

    #[inline(always)]
    fn words(block: &[u8], sub: usize) -> [u32; 8] {
        k_nibbles(part(block, 16 + 32 * (sub / 2)), sub % 2)
    }

    fn scales(block: &[u8], record: &mut [u8], row: usize) {
        k_scales(block, record, row);
    }
}

impl Format for Q5K {
    const TY: GgmlType = GgmlType::Q5_K;
    const BITS: u32 = 5;
    const MIN: bool = true;
    const SUB_SCALES: SubScales = SubScales::Unsigned;

    #[inline(always)]
    fn words(block: &[u8], sub: usize) -> [u32; 8] {
        let mut words = k_nibbles(part(block, 48 + 32 * (sub / 2)), sub % 2);
        words[4] = bits(part(block, 16), sub);
        words
    }

    fn scales(block: &[u8], record: &mut [u8], row: usize) {
        k_scales(block, record, row);
    }
}

impl Format for Q6K {
    const TY: GgmlType = GgmlType::Q6_K;
    const BITS: u32 = 6;
    const OFFSET_LOG2: Option<u32> = Some(5);
    const SUB_SCALES: SubScales = SubScales::Signed;
    const HALVES: bool = true;

    #[inline(always)]
    fn words(block: &[u8], sub: usize) -> [u32; 8] {
        // Each half of 128 values: low nibbles of 64 bytes, then their high nibbles; two bits each of 32 bytes.
        let (half, s) = (sub / 4, sub % 4);
        let mut words = k_nibbles(part(block, 64 * half + 32 * (s % 2)), s / 2);
        words[4..6].copy_from_slice(&pairs_of_bits(part(block, 128 + 32 * half), s)[..2]);
        words
    }

    fn scales(block: &[u8], record: &mut [u8], row: usize) {
        put_f16(record, 0, row, &block[208..210]);
        put_sub_scales(&mut record[Self::SCALE_HEAD..], row, block[192..208].iter().copied());
    }
}

impl Format for Q2K {
    const TY: GgmlType = GgmlType::Q2_K;
    const BITS: u32 = 2;
    const MIN: bool = true;
    const SUB_SCALES: SubScales = SubScales::Nibbles;
    const HALVES: bool = true;

    #[inline(always)]
    fn words(block: &[u8], sub: usize) -> [u32; 8] {
        pairs_of_bits(part(block, 16 + 32 * (sub / 4)), sub % 4)
    }

    fn scales(block: &[u8], record: &mut [u8], row: usize) {
        put_f16(record, 0, row, &block[80..82]);
        put_f16(record, 1, row, &[block[82], block[83] ^ 0x80]);
        put_sub_scales(&mut record[Self::SCALE_HEAD..], row, block[..16].iter().copied());
    }
}

impl Format for Q3K {
    const TY: GgmlType = GgmlType::Q3_K;
    const BITS: u32 = 3;
    const OFFSET_LOG2: Option<u32> = Some(2);
    const SUB_SCALES: SubScales = SubScales::Signed;
    const HALVES: bool = true;

    #[inline(always)]
    fn words(block: &[u8], sub: usize) -> [u32; 8] {
        let mut words = pairs_of_bits(part(block, 32 + 32 * (sub / 4)), sub % 4);
        words[2] = bits(part(block, 0), sub);
        words
    }

    fn scales(block: &[u8], record: &mut [u8], row: usize) {
        let block: &BlockQ3_K = bytemuck::from_bytes(block);
        put_f16(record, 0, row, &block.d.0);
        put_sub_scales(&mut record[Self::SCALE_HEAD..], row, block.scales().into_iter().map(|scale| scale as u8));
    }
}

impl Format for Iq4Nl {
    const TY: GgmlType = GgmlType::IQ4_NL;
    const BITS: u32 = 4;
    const CODES: Option<&'static [i8; 16]> = Some(&IQ4_VALUES);
    const OFFSET_LOG2: Option<u32> = Some(7);

    #[inline(always)]
    fn words(block: &[u8], _sub: usize) -> [u32; 8] {
        nibbles(part(block, 2))
    }
}

impl Format for Iq4Xs {
    const TY: GgmlType = GgmlType::IQ4_XS;
    const BITS: u32 = 4;
    const CODES: Option<&'static [i8; 16]> = Some(&IQ4_VALUES);
    const OFFSET_LOG2: Option<u32> = Some(7);
    const SUB_SCALES: SubScales = SubScales::Signed;

    #[inline(always)]
    fn words(block: &[u8], sub: usize) -> [u32; 8] {
        nibbles(part(block, 8 + 16 * sub))
    }

    fn scales(block: &[u8], record: &mut [u8], row: usize) {
        let block: &BlockIQ4_XS = bytemuck::from_bytes(block);
        put_f16(record, 0, row, &block.d.0);
        put_sub_scales(&mut record[Self::SCALE_HEAD..], row, block.scales().into_iter().map(|scale| scale as u8));
    }
}

impl Format for Mxfp4 {
    const TY: GgmlType = GgmlType::MXFP4;
    const BITS: u32 = 4;
    const CODES: Option<&'static [i8; 16]> = Some(&MXFP4_VALUES);
    const OFFSET_LOG2: Option<u32> = Some(7);
    const E8M0: bool = true;

    #[inline(always)]
    fn words(block: &[u8], _sub: usize) -> [u32; 8] {
        nibbles(part(block, 1))
    }

    fn scales(block: &[u8], record: &mut [u8], row: usize) {
        record[row] = block[0];
    }
}

/// Returns the bytes of a block from `at` on.
#[inline(always)]
fn part<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    block[at..].first_chunk().expect("a whole block")
}

#[inline(always)]
fn word<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Low nibble `i` is value `i`, high nibble `i` is value `16 + i`: the panel's own order.
#[inline(always)]
fn nibbles(qs: &[u8; 16]) -> [u32; 8] {
    [word(qs, 0), word(qs, 4), word(qs, 8), word(qs, 12), 0, 0, 0, 0]
}

/// Values `0..32` are the low (`high` = 0) or the high nibbles of 32 bytes.
#[inline(always)]
fn k_nibbles(qs: &[u8; 32], high: usize) -> [u32; 8] {
    let mut words = [0; 8];
    for (j, to) in words.iter_mut().enumerate().take(4) {
        let (low, up) = (word(qs, 4 * j) >> (4 * high), word(qs, 16 + 4 * j) >> (4 * high));
        *to = (low & 0x0f0f_0f0f) | (up & 0x0f0f_0f0f) << 4;
    }
    words
}

/// Values `0..32` are bits `2 * at` and the next of 32 bytes.
#[inline(always)]
fn pairs_of_bits(qs: &[u8; 32], at: usize) -> [u32; 8] {
    let mut words = [0; 8];
    for j in 0..8 {
        words[j / 4] |= ((word(qs, 4 * j) >> (2 * at)) & 0x0303_0303) << (2 * (j % 4));
    }
    words
}

/// Bit `j` of byte `i` is bit `at` of byte `4j + i`.
#[inline(always)]
fn bits(qs: &[u8; 32], at: usize) -> u32 {
    (0..8).fold(0, |bits, j| bits | ((word(qs, 4 * j) >> at) & 0x0101_0101) << j)
}

/// Turns bit `4j + i` into bit `j` of byte `i`.
fn fifth_bits(qh: u32) -> u32 {
    let mut word = 0;
    for i in 0..4 {
        // Gather every fourth bit of a word, in three folds.
        let mut x = (qh >> i) & 0x1111_1111;
        x = (x | x >> 3) & 0x0303_0303;
        x = (x | x >> 6) & 0x000f_000f;
        x = (x | x >> 12) & 0xff;
        word |= x << (8 * i);
    }
    word
}

fn put_f16(record: &mut [u8], plane: usize, row: usize, f16: &[u8]) {
    let at = 32 * plane + 2 * row;
    record[at..at + 2].copy_from_slice(f16);
}

/// Writes the scales of a file block's parts, a byte each.
fn put_sub_scales(bytes: &mut [u8], row: usize, scales: impl Iterator<Item = u8>) {
    scales.enumerate().for_each(|(sub, scale)| bytes[16 * sub + row] = scale);
}

/// Q4_K and Q5_K: `d`, `dmin`, then eight 6-bit scales and minima in 12 bytes.
fn k_scales(block: &[u8], record: &mut [u8], row: usize) {
    put_f16(record, 0, row, &block[0..2]);
    // The minimum is subtracted: store it negated, so that kernels always add.
    put_f16(record, 1, row, &[block[2], block[3] ^ 0x80]);
    let (scales, mins) = scale_min_k4(part(block, 4));
    put_sub_scales(&mut record[64..], row, scales.into_iter().chain(mins));
}
