//! Files made to cost memory, time or the stack: each costs an error and bounded memory.

use bytes::Bytes;
use ruvllm_gguf::{GgufErrorKind as Kind, GgufFile};

use crate::base::{self, Raw};
use crate::counting::peak_bytes;

/// What parsing may allocate beyond the size of the file.
pub(crate) const BOUND_BYTES: usize = 64 << 20;

/// Reads the bytes, walks over everything they declare, and checks what that allocated. Returns how the reading ended
/// and the peak.
pub(crate) fn read(bytes: Vec<u8>) -> (Result<GgufFile, Kind>, usize) {
    let n_bytes = bytes.len();
    let bytes = Bytes::from(bytes);
    let (file, peak) = peak_bytes(|| GgufFile::from_bytes(bytes).map_err(|error| error.kind()));
    assert!(peak <= BOUND_BYTES + n_bytes, "{peak} bytes allocated for a file of {n_bytes}: {:?}", file.err());
    if let Ok(file) = &file {
        for tensor in file.tensors() {
            assert_eq!(file.data(tensor).len(), tensor.n_bytes());
            assert_eq!(file.tensor(&tensor.name), Some(tensor));
        }
        for (key, value) in file.metadata().iter() {
            assert!(file.metadata().get(key).is_some(), "{}", value.type_name());
            let _ = (file.metadata().strings(key), file.metadata().u32s(key), file.metadata().u32_per_layer(key, 3));
        }
    }
    (file, peak)
}

const MIB: usize = 1 << 20;

#[test]
fn entries_larger_in_memory_than_on_disk() {
    let n_strings = 4 * MIB as u64;
    let strings = Raw::new(0, 1).key_array("k", 8, n_strings).bytes(&vec![0; 32 * MIB]);
    let (file, peak) = read(strings.0);
    assert!(file.is_ok() && peak < 4 * MIB, "{peak} bytes for {n_strings} empty strings");

    // An array of a million empty arrays: 12 bytes each on disk.
    let nested = Raw::new(0, 1).key_array("k", 9, 1 << 20).bytes(&vec![0; 12 * MIB]);
    assert_eq!(read(nested.0).0.err(), Some(Kind::Limit));
    // As many as are read, in arrays that each hold one empty string.
    let mut nested = Raw::new(0, 1).key_array("k", 9, 1 << 16);
    for _ in 0..1 << 16 {
        nested = nested.u32(8).u64(1).u64(0);
    }
    let (file, nested_peak) = read(nested.0);
    assert!(file.is_ok());

    let mut entries = Raw::new(0, 1 << 16);
    for i in 0..1 << 16 {
        entries = entries.str(&format!("{i:x}")).u32(9).u32(8).u64(1).u64(0);
    }
    let (file, entries_peak) = read(entries.0);
    assert!(file.is_ok());
    let mut entries = Raw::new(0, (1 << 16) + 1).bytes(&vec![0; 4 * MIB]);
    assert_eq!(read(entries.0).0.err(), Some(Kind::Limit));

    let mut tensors = Raw::new(1 << 16, 0);
    for i in 0..1u64 << 16 {
        tensors = tensors.tensor(&format!("{i:x}"), 24, &[1; 4], i * 32);
    }
    let (file, tensors_peak) = read(tensors.data(32 << 16).0);
    assert!(file.is_ok());
    println!("peaks: {nested_peak} nested arrays, {entries_peak} entries, {tensors_peak} tensors");
    entries = Raw::new((1 << 16) + 1, 0);
    assert_eq!(read(entries.0).0.err(), Some(Kind::Limit));
}

#[test]
fn arrays_in_arrays_do_not_use_up_the_stack() {
    for depth in [4, 5, 1000, 100_000] {
        let mut raw = Raw::new(0, 1).str("k").u32(9);
        for _ in 1..depth {
            raw = raw.u32(9).u64(1);
        }
        let result = read(raw.u32(0).u64(0).0).0;
        assert_eq!(result.err(), (depth > 4).then_some(Kind::Limit), "depth {depth}");
    }
}

#[test]
fn every_length_near_every_power_of_two() {
    let values = [8, 16, 31, 32, 33, 48, 60, 61, 62, 63, 64].map(|bits: u32| u64::MAX.unbounded_shr(64 - bits));
    for base_value in values {
        for value in [base_value - 1, base_value, base_value.wrapping_add(1), base_value / 3, base_value / 8] {
            let raws = [
                Raw::new(value, 0),
                Raw::new(0, value),
                Raw::new(0, 1).u64(value).bytes(b"key"),
                Raw::new(0, 1).str("k").u32(8).u64(value),
                Raw::new(1, 0).u64(value),
                Raw::new(1, 0).tensor("t", 0, &[value], 0).data(32),
                Raw::new(1, 0).tensor("t", 0, &[1, 1, 1, value], 0).data(32),
                Raw::new(1, 0).tensor("t", 34, &[256, value, value, 3], 0).data(32),
                Raw::new(1, 0).tensor("t", 0, &[1], value).data(32),
                Raw::new(1, 0).tensor("t", 0, &[1], value & !31).data(32),
            ];
            raws.into_iter().for_each(|raw| drop(read(raw.0)));
            for ty in 0..14 {
                drop(read(Raw::new(0, 1).key_array("k", ty, value).bytes(&[0; 64]).0));
                drop(read(Raw::new(0, 1).key_array("k", 9, 1).u32(ty).u64(value).bytes(&[0; 64]).0));
            }
        }
    }
}

#[test]
fn cut_short_at_every_byte() {
    for version in 1..=3 {
        let bytes = base::bytes(version);
        // The last tensor has 51 bytes and is padded to 64.
        let n_needed = bytes.len() - 13;
        for len in 0..bytes.len() {
            let result = read(bytes[..len].to_vec()).0;
            assert_eq!(result.err(), (len < n_needed).then_some(Kind::Truncated), "{len} of {} bytes", bytes.len());
        }
    }
}
