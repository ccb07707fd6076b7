//! SHA-256 (FIPS 180-4) without a dependency, for builds without the feature `disk`: names are the same with it and without.
//!
//! It hashes names, which are short. Where `disk` is on, `sha2` does it, with the instructions that some CPUs have for it.

/// Fractional parts of the cube roots of the first 64 primes.
const K: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98,
    0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8,
    0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819,
    0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2,
];

/// Bytes of a block.
const BLOCK: usize = 64;

/// Hash of the bytes so far.
#[derive(Clone)]
pub(crate) struct Sha256 {
    state: [u32; 8],
    /// Bytes of the block that is not full yet.
    tail: [u8; BLOCK],
    n_bytes: u64,
}

impl Sha256 {
    pub(crate) fn new() -> Sha256 {
        // Fractional parts of the square roots of the first eight primes.
        let state = [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];
        Sha256 { state, tail: [0; BLOCK], n_bytes: 0 }
    }

    pub(crate) fn update(&mut self, bytes: impl AsRef<[u8]>) {
        let mut bytes = bytes.as_ref();
        let n_tail = self.n_tail();
        self.n_bytes += bytes.len() as u64;
        if n_tail > 0 {
            let n = bytes.len().min(BLOCK - n_tail);
            self.tail[n_tail..n_tail + n].copy_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            if n_tail + n < BLOCK {
                return;
            }
            compress(&mut self.state, &self.tail);
        }
        let (blocks, rest) = bytes.as_chunks::<BLOCK>();
        blocks.iter().for_each(|block| compress(&mut self.state, block));
        self.tail[..rest.len()].copy_from_slice(rest);
    }

    pub(crate) fn finalize(mut self) -> [u8; 32] {
        let n_bits = self.n_bytes * 8;
        // A bit that is set, then none, and the number of bits at the end of a block.
        let n_zeros = (2 * BLOCK - 9 - self.n_tail()) % BLOCK;
        let mut padding = [0; BLOCK + 8];
        padding[0] = 0x80;
        padding[1 + n_zeros..][..8].copy_from_slice(&n_bits.to_be_bytes());
        self.update(&padding[..n_zeros + 9]);
        let mut hash = [0; 32];
        for (bytes, word) in hash.as_chunks_mut::<4>().0.iter_mut().zip(self.state) {
            *bytes = word.to_be_bytes();
        }
        hash
    }

    fn n_tail(&self) -> usize {
        (self.n_bytes % BLOCK as u64) as usize
    }
}

/// Takes a block into the state.
fn compress(state: &mut [u32; 8], block: &[u8; BLOCK]) {
    let mut w = [0u32; 64];
    for (word, bytes) in w.iter_mut().zip(block.as_chunks::<4>().0) {
        *word = u32::from_be_bytes(*bytes);
    }
    for i in 16..64 {
        let s0 = w[i - 15].rotate_right(7) ^ w[i - 15].rotate_right(18) ^ w[i - 15] >> 3;
        let s1 = w[i - 2].rotate_right(17) ^ w[i - 2].rotate_right(19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16].wrapping_add(s0).wrapping_add(w[i - 7]).wrapping_add(s1);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for (k, w) in K.into_iter().zip(w) {
        let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = (e & f) ^ (!e & g);
        let t1 = h.wrapping_add(s1).wrapping_add(choice).wrapping_add(k).wrapping_add(w);
        let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let majority = (a & b) ^ (a & c) ^ (b & c);
        (h, g, f, e) = (g, f, e, d.wrapping_add(t1));
        (d, c, b, a) = (c, b, a, t1.wrapping_add(s0).wrapping_add(majority));
    }
    for (sum, word) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *sum = sum.wrapping_add(word);
    }
}

#[cfg(test)]
mod tests {
    use sha2::Digest;

    use super::*;

    /// Every length around the ends of blocks, in one piece and in two.
    #[test]
    fn it_is_sha_256() {
        let bytes: Vec<u8> = (0..300u32).map(|i| (i * 31 + 7) as u8).collect();
        for n in 0..bytes.len() {
            let expected: [u8; 32] = sha2::Sha256::digest(&bytes[..n]).into();
            for at in [0, 1, n / 2, n.min(64)] {
                let mut hash = Sha256::new();
                hash.update(&bytes[..at.min(n)]);
                hash.update(&bytes[at.min(n)..n]);
                assert_eq!(hash.finalize(), expected, "{n} bytes in two pieces, cut at {at}");
            }
        }
    }
}
