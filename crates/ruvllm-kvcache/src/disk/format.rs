//! Format of a stored block, as the number [`BlockRef::format`](super::BlockRef::format).

use ruvllm_kernels::attention::KvFormat;
use xxhash_rust::xxh3::xxh3_128;

/// Format of a stored block.
///
/// The blocks of a unit of several share scales and have no bytes of their own. The first of them that is stored has
/// the whole unit's bytes, and those stored right behind it the [`fingerprint`] of them: a block is never taken from
/// another unit than the one it was in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredFormat {
    /// The block's format.
    pub format: KvFormat,
    /// Its place in its unit.
    pub sub: usize,
    /// The contents are the bytes of its unit; else their fingerprint.
    pub has_unit: bool,
}

impl StoredFormat {
    /// Returns the number on disk. Numbers are never given to anything else.
    pub fn to_u32(self) -> u32 {
        let format = match self.format {
            KvFormat::F16 => 1,
            KvFormat::F32 => 2,
            KvFormat::Q8 => 3,
            KvFormat::Q4 => 4,
            KvFormat::Q2 => 5,
        };
        format | (self.sub as u32) << 8 | u32::from(!self.has_unit) << 16
    }

    /// Returns what a number means; `None` if this program does not know it.
    pub fn from_u32(number: u32) -> Option<StoredFormat> {
        let format = KvFormat::ALL.into_iter().find(|&format| {
            let base = StoredFormat { format, sub: 0, has_unit: true };
            base.to_u32() == number & 0xff
        })?;
        let stored = StoredFormat { format, sub: (number >> 8 & 0xff) as usize, has_unit: number >> 16 == 0 };
        let is_known = stored.to_u32() == number && stored.sub < format.blocks_per_unit();
        is_known.then_some(stored)
    }
}

/// Returns what tells bytes from damaged ones (XXH3), and what stands for a unit in the blocks stored behind the one that
/// has it.
pub fn fingerprint(bytes: &[u8]) -> [u8; 16] {
    xxh3_128(bytes).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_back() {
        for format in KvFormat::ALL {
            for (sub, has_unit) in [(0, true), (0, false), (3, true), (3, false)] {
                let stored = StoredFormat { format, sub, has_unit };
                let is_known = sub < format.blocks_per_unit();
                assert_eq!(StoredFormat::from_u32(stored.to_u32()), is_known.then_some(stored));
            }
        }
        for unknown in [0, 6, 0xff, 1 << 17 | 1, u32::MAX] {
            assert_eq!(StoredFormat::from_u32(unknown), None, "{unknown:#x}");
        }
        assert_eq!(StoredFormat { format: KvFormat::F16, sub: 0, has_unit: true }.to_u32(), 1);
    }
}
