//! Repacking of rows on upload: GGML blocks in, planes out. The planes are those of [`WeightFormat`].

use crate::format::{UNIT_LEN, WeightFormat};

/// Bytes that are no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepackError {
    format: WeightFormat,
    k: usize,
    n_bytes: usize,
    n_words: usize,
}

impl std::fmt::Display for RepackError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { format, k, n_bytes, n_words } = self;
        write!(f, "{n_bytes} bytes into {n_words} words are not rows of {k} values in {}", format.name())
    }
}

impl std::error::Error for RepackError {}

/// Repacks rows of `k` values each, as they lie in a file, into `words`, of which a row takes [`WeightFormat::row_words`].
///
/// # Errors
/// `k` is not whole blocks, or the lengths are not those of the same number of rows.
pub fn repack(format: WeightFormat, k: usize, bytes: &[u8], words: &mut [u32]) -> Result<(), RepackError> {
    let (n_bytes, n_words) = (bytes.len(), words.len());
    let error = RepackError { format, k, n_bytes, n_words };
    let row_bytes =
        (k / format.block_len()).checked_mul(format.block_bytes()).filter(|bytes| *bytes > 0).ok_or(error)?;
    // Before anything else is computed of `k`: one that is larger than the bytes is refused here.
    if n_bytes < row_bytes || !n_bytes.is_multiple_of(row_bytes) || !k.is_multiple_of(format.block_len()) {
        return Err(error);
    }
    let row_words = format.row_words(k);
    if (n_bytes / row_bytes).checked_mul(row_words) != Some(n_words) {
        return Err(error);
    }
    for (row, out) in bytes.chunks_exact(row_bytes).zip(words.chunks_exact_mut(row_words)) {
        repack_row(format, format.n_units(k), row, out);
    }
    Ok(())
}

/// Writes the planes of one row.
struct Planes<'a> {
    words: &'a mut [u32],
    n_units: usize,
}

impl Planes<'_> {
    /// Sets byte `i` of the plane that begins at word `plane`. Words are 0 before.
    fn byte(&mut self, plane: usize, i: usize, byte: u8) {
        self.words[plane + i / 4] |= u32::from(byte) << (8 * (i % 4));
    }

    /// Sets the bytes of entry `i` of a plane whose entries have the length of `bytes`.
    fn bytes(&mut self, plane: usize, i: usize, bytes: &[u8]) {
        for (j, byte) in bytes.iter().enumerate() {
            self.byte(plane, i * bytes.len() + j, *byte);
        }
    }

    /// Returns the end of planes of so many words a unit.
    fn after(&self, words_per_unit: usize) -> usize {
        words_per_unit * self.n_units
    }
}

fn repack_row(format: WeightFormat, n_units: usize, row: &[u8], words: &mut [u32]) {
    words.fill(0);
    let mut planes = Planes { words, n_units };
    for (i, block) in row.chunks_exact(format.block_bytes()).enumerate() {
        match format {
            WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16 => planes.bytes(0, i, block),
            WeightFormat::Q4_0 | WeightFormat::IQ4_NL => nibbles_and_head(&mut planes, i, &block[2..], &block[..2]),
            WeightFormat::Q4_1 => nibbles_and_head(&mut planes, i, &block[4..], &block[..4]),
            WeightFormat::MXFP4 => nibbles_and_head(&mut planes, i, &block[1..], &block[..1]),
            WeightFormat::Q5_0 => five_bits_and_head(&mut planes, i, &block[2..], &block[..2]),
            WeightFormat::Q5_1 => five_bits_and_head(&mut planes, i, &block[4..], &block[..4]),
            WeightFormat::Q8_0 => {
                planes.bytes(0, i, &block[2..]);
                planes.bytes(planes.after(8), i, &block[..2]);
            }
            WeightFormat::Q4_K => q4_k(&mut planes, i, block),
            WeightFormat::Q5_K => q5_k(&mut planes, i, block),
            WeightFormat::Q6_K => q6_k(&mut planes, i, block),
            WeightFormat::IQ4_XS => {
                planes.bytes(0, i, &block[8..]);
                planes.bytes(planes.after(4), i, &block[..8]);
            }
        }
    }
}

/// Nibbles as they are, and what comes before them behind all nibbles.
fn nibbles_and_head(planes: &mut Planes<'_>, i: usize, nibbles: &[u8], head: &[u8]) {
    planes.bytes(0, i, nibbles);
    planes.bytes(planes.after(4), i, head);
}

/// Fifth bits (4 bytes) and nibbles, and what comes before them behind all of those.
fn five_bits_and_head(planes: &mut Planes<'_>, i: usize, rest: &[u8], head: &[u8]) {
    planes.bytes(0, i, &rest[4..]);
    planes.bytes(planes.after(4), i, &rest[..4]);
    planes.bytes(planes.after(5), i, head);
}

/// Packs the low nibbles of a unit's values.
fn pack_nibbles(values: &[u8; UNIT_LEN]) -> [u8; 16] {
    std::array::from_fn(|j| values[j] & 15 | (values[16 + j] & 15) << 4)
}

/// The values of unit `j` in the nibbles of Q4_K and Q5_K: two units share 32 bytes.
fn k_nibbles(qs: &[u8], j: usize) -> [u8; UNIT_LEN] {
    std::array::from_fn(|v| qs[32 * (j / 2) + v] >> (4 * (j % 2)) & 15)
}

fn q4_k(planes: &mut Planes<'_>, i: usize, block: &[u8]) {
    let (head, qs) = block.split_at(16);
    for j in 0..8 {
        planes.bytes(0, 8 * i + j, &pack_nibbles(&k_nibbles(qs, j)));
    }
    planes.bytes(planes.after(4), i, head);
}

fn q5_k(planes: &mut Planes<'_>, i: usize, block: &[u8]) {
    let (head, rest) = block.split_at(16);
    let (qh, qs) = rest.split_at(32);
    for j in 0..8 {
        planes.bytes(0, 8 * i + j, &pack_nibbles(&k_nibbles(qs, j)));
        let bits = (0..UNIT_LEN).fold(0, |bits, v| bits | u32::from(qh[v] >> j & 1) << v);
        planes.bytes(planes.after(4), 8 * i + j, &bits.to_le_bytes());
    }
    planes.bytes(planes.after(5), i, head);
}

fn q6_k(planes: &mut Planes<'_>, i: usize, block: &[u8]) {
    let (ql, qh, scales, d) = (&block[..128], &block[128..192], &block[192..208], &block[208..]);
    for j in 0..8 {
        // Values 128·half + 32·group of the block.
        let (half, group) = (j / 4, j % 4);
        let low = std::array::from_fn(|v| ql[64 * half + 32 * (group % 2) + v] >> (4 * (group / 2)) & 15);
        planes.bytes(0, 8 * i + j, &pack_nibbles(&low));
        let mut pairs = [0u8; 8];
        for v in 0..UNIT_LEN {
            let high = qh[32 * half + v] >> (2 * group) & 3;
            pairs[4 * (v / 16) + v % 4] |= high << (2 * (v % 16 / 4));
        }
        planes.bytes(planes.after(4), 8 * i + j, &pairs);
    }
    planes.bytes(planes.after(6), i, scales);
    planes.bytes(planes.after(6) + planes.n_units / 2, i, d);
}
