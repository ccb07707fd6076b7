//! Random blocks whose values have a given deviation, so that activations stay finite.

use std::io::{Cursor, Read};

use half::f16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use ruvllm_gguf::GgmlType;

/// Bytes that are made at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Scales of 6 bits are about this.
const SCALE_6BIT: f32 = 32.0;

/// A stream of a tensor's blocks.
pub(super) struct Blocks {
    ty: GgmlType,
    deviation: f32,
    rng: ChaCha8Rng,
    chunk: Cursor<Vec<u8>>,
    n_left: usize,
}

/// Ones in f32.
pub(super) fn ones(n: usize) -> impl Read {
    Cursor::new(1f32.to_le_bytes().repeat(n))
}

impl Blocks {
    pub(super) fn new(ty: GgmlType, n_bytes: usize, deviation: f32, seed: u64) -> Blocks {
        let rng = ChaCha8Rng::seed_from_u64(seed);
        Blocks { ty, deviation, rng, chunk: Cursor::default(), n_left: n_bytes }
    }

    fn next_chunk(&mut self) {
        let block_bytes = self.ty.block_bytes();
        let n = self.n_left.min(CHUNK_BYTES / block_bytes * block_bytes);
        let mut bytes = std::mem::take(self.chunk.get_mut());
        bytes.resize(n, 0);
        self.rng.fill_bytes(&mut bytes);
        bytes.chunks_exact_mut(block_bytes).for_each(|block| scale(self.ty, block, self.deviation));
        self.n_left -= n;
        self.chunk = Cursor::new(bytes);
    }
}

impl Read for Blocks {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.chunk.position() as usize == self.chunk.get_ref().len() && self.n_left > 0 {
            self.next_chunk();
        }
        self.chunk.read(out)
    }
}

/// Gives a block of random bytes the scales that bring its values to a deviation.
fn scale(ty: GgmlType, block: &mut [u8], deviation: f32) {
    let half = |x: f32| f16::from_f32(x).to_le_bytes();
    match ty {
        // d·scale·q - dmin·minimum: q of 0 to 15 has a deviation of 4.6 about 7.5, q of 0 to 31 one of 9.2 about 15.5.
        GgmlType::Q4_K | GgmlType::Q5_K => {
            let (spread, mean) = if ty == GgmlType::Q4_K { (4.6, 7.5) } else { (9.2, 15.5) };
            let d = deviation / (SCALE_6BIT * spread);
            block[..2].copy_from_slice(&half(d));
            block[2..4].copy_from_slice(&half(d * mean));
            // Scales and minima of the first four parts are 32, those of the others have 0 in their low bits and 2 above.
            block[4..12].fill(0x80 | 0x20);
            block[12..16].fill(0);
        }
        // d·scale·(q - 32)
        GgmlType::Q6_K => {
            block[192..208].fill(16);
            block[208..].copy_from_slice(&half(deviation / (16.0 * 18.5)));
        }
        // d·q, q of -128 to 127
        GgmlType::Q8_0 => block[..2].copy_from_slice(&half(deviation / 74.0)),
        // d·(scale - 32)·codebook[q]: scales of 48, a codebook with a deviation of 70.
        GgmlType::IQ4_XS => {
            block[..2].copy_from_slice(&half(deviation / (16.0 * 70.0)));
            block[2..4].fill(0xff);
            block[4..8].fill(0);
        }
        // 2^(e - 128)·codebook[q], a codebook with a deviation of 5.4.
        GgmlType::MXFP4 => block[0] = (128.0 + (deviation / 5.4).log2()).round() as u8,
        GgmlType::F16 | GgmlType::F32 => {
            let unit = f32::from(i16::from_le_bytes([block[0], block[1]])) / 32768.0;
            let value = unit * deviation * 3f32.sqrt();
            match ty {
                GgmlType::F16 => block.copy_from_slice(&half(value)),
                _ => block.copy_from_slice(&value.to_le_bytes()),
            }
        }
        other => unreachable!("no recipe has {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_has_its_length_and_repeats() {
        let read = |seed| {
            let mut bytes = Vec::new();
            Blocks::new(GgmlType::Q6_K, 210 * 6000, 0.02, seed).read_to_end(&mut bytes).expect("nothing is read");
            bytes
        };
        assert_eq!(read(1).len(), 210 * 6000);
        assert_eq!(read(1), read(1));
        assert_ne!(read(1), read(2));
    }

    #[test]
    fn values_of_8_bits_have_the_deviation() {
        let mut bytes = Vec::new();
        Blocks::new(GgmlType::Q8_0, 34 * 4000, 0.02, 3).read_to_end(&mut bytes).expect("nothing is read");
        let values = bytes.chunks_exact(34).flat_map(|block| {
            let d = f16::from_le_bytes([block[0], block[1]]).to_f32();
            block[2..].iter().map(move |&q| d * f32::from(q as i8)).collect::<Vec<f32>>()
        });
        let (n, sum) = values.fold((0, 0.0), |(n, sum), x| (n + 1, sum + x * x));
        let deviation = (sum / n as f32).sqrt();
        assert!((deviation / 0.02 - 1.0).abs() < 0.02, "{deviation}");
    }
}
