//! Ten thousand damaged copies of each of several files: never a panic, and never much memory. The seed is fixed, so a
//! failure repeats; it names the file, the number of the copy, and what was done to it.

use std::collections::BTreeMap;

use ruvllm_gguf::GgufFile;

use crate::base;
use crate::committed::testdata;
use crate::malformed_files::read;

const N_COPIES: u64 = 10_000;
const FILES: [&str; 5] = ["v1.gguf", "v2.gguf", "v3.gguf", "gguf_py.gguf", "split-00002-of-00002.gguf"];

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// A value a length field should not have, or a small one it might.
    fn length(&mut self) -> u64 {
        let bits = [0u32, 3, 8, 16, 31, 32, 48, 61, 62, 63][self.below(10)];
        (1u64 << bits).wrapping_sub(2).wrapping_add(self.next() % 4)
    }
}

/// Damages the first `n_head` bytes (header, metadata and directory) in one way, and says how.
fn damage(bytes: &mut Vec<u8>, n_head: usize, random: &mut Random) -> &'static str {
    let n_head = n_head.min(bytes.len());
    let at = random.below(n_head);
    let len = 1 + random.below(64.min(bytes.len() - at));
    match random.below(9) {
        0 => {
            bytes[at] ^= 1 << random.below(8);
            "bit flip"
        }
        1 => {
            bytes[at] = random.next() as u8;
            "byte"
        }
        2 => {
            let end = bytes.len().min(at + 8);
            let value = random.length().to_le_bytes();
            bytes[at..end].copy_from_slice(&value[..end - at]);
            "8-byte length"
        }
        3 => {
            let end = bytes.len().min(at + 4);
            let value = random.length().to_le_bytes();
            bytes[at..end].copy_from_slice(&value[..end - at]);
            "4-byte length"
        }
        4 => {
            let copy = bytes[at..at + len].to_vec();
            bytes.splice(at..at, copy);
            "range doubled"
        }
        5 => {
            bytes.drain(at..at + len);
            "range removed"
        }
        6 => {
            bytes.truncate(at);
            "cut short"
        }
        7 => {
            let from = random.below(n_head);
            let len = len.min(bytes.len() - from.max(at));
            bytes.copy_within(from..from + len, at);
            "range copied over another"
        }
        _ => {
            bytes[at..at + len].fill([0x00, 0xff, 0x09, 0x80][random.below(4)]);
            "range filled"
        }
    }
}

/// Returns how many bytes come before the data section, all of them for a part that cannot be read alone.
fn head_bytes(bytes: &[u8]) -> usize {
    let Ok(file) = GgufFile::from_bytes(bytes.to_vec().into()) else { return bytes.len() };
    let data_bytes = file.tensors().map(|tensor| tensor.offset() + tensor.n_bytes() as u64).max().unwrap_or(0);
    bytes.len() - data_bytes.next_multiple_of(file.alignment()) as usize
}

#[test]
fn no_panic_and_bounded_memory() {
    let (mut outcomes, mut largest_peak) = (BTreeMap::new(), 0);
    for path in FILES.map(testdata) {
        let original = std::fs::read(&path).expect("committed");
        let n_head = head_bytes(&original);
        for copy in 0..N_COPIES {
            let mut random = Random(copy);
            let mut bytes = original.clone();
            let n_times = 1 + random.below(3);
            let what: Vec<_> = (0..n_times)
                .map(|_| if bytes.is_empty() { "empty" } else { damage(&mut bytes, n_head, &mut random) })
                .collect();
            let result = std::panic::catch_unwind(|| read(bytes));
            let Ok((file, peak)) = result else { panic!("{}, copy {copy}: {what:?}", path.display()) };
            *outcomes.entry(file.map_or_else(|kind| format!("{kind:?}"), |_| "read".into())).or_insert(0) += 1;
            largest_peak = largest_peak.max(peak);
        }
    }
    println!("{outcomes:?}, largest peak {largest_peak} bytes");
    // The damage must be neither so coarse that nothing gets past the header nor so slight that all is read.
    assert!(outcomes["read"] > 1000 && outcomes["Truncated"] > 1000 && outcomes["Invalid"] > 1000, "{outcomes:?}");
    assert!(outcomes["Duplicate"] > 10 && outcomes["Unsupported"] > 100 && outcomes["Limit"] > 100, "{outcomes:?}");
}

#[test]
fn damage_is_the_same_every_time() {
    let run = || {
        let (mut bytes, mut random) = (base::bytes(3), Random(7));
        let what: Vec<_> = (0..20).map(|_| damage(&mut bytes, 1000, &mut random)).collect();
        (bytes, what)
    };
    assert_eq!(run(), run());
}
