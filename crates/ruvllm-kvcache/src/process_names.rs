//! Hashes of names in builds without the feature `disk`: the standard library's keyed hash, with keys that are drawn when the
//! process begins. Such names do not outlive the process, and whoever chooses a part of one cannot make two the same.

use std::array;
use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};
use std::sync::LazyLock;

/// Hashes of 64 bits that a name is made of.
const N_LANES: usize = 4;

/// Keys of each lane.
static KEYS: LazyLock<[RandomState; N_LANES]> = LazyLock::new(|| array::from_fn(|_| RandomState::new()));

/// Hash of the bytes so far, with what [`NamespaceBuilder`](crate::NamespaceBuilder) needs of `sha2`'s interface.
#[derive(Clone)]
pub(crate) struct NameHash([DefaultHasher; N_LANES]);

impl NameHash {
    pub(crate) fn new() -> NameHash {
        NameHash(KEYS.each_ref().map(RandomState::build_hasher))
    }

    pub(crate) fn update(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.iter_mut().for_each(|lane| lane.write(bytes.as_ref()));
    }

    pub(crate) fn finalize(self) -> [u8; 8 * N_LANES] {
        let mut hash = [0; 8 * N_LANES];
        for (bytes, lane) in hash.as_chunks_mut::<8>().0.iter_mut().zip(self.0) {
            *bytes = lane.finish().to_le_bytes();
        }
        hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_bytes_have_equal_names_in_any_pieces() {
        let name = |pieces: &[&str]| {
            let mut hash = NameHash::new();
            pieces.iter().for_each(|piece| hash.update(piece));
            hash.finalize()
        };
        assert_eq!(name(&["abc", "def"]), name(&["abc", "def"]));
        assert_ne!(name(&["abc", "def"]), name(&["abc", "deg"]));
        let lanes = name(&["abc"]);
        let (lanes, _) = lanes.as_chunks::<8>();
        assert!((0..N_LANES).all(|i| (0..i).all(|j| lanes[i] != lanes[j])), "each lane has keys of its own");
    }
}
