//! Letting go of a tensor's memory, and asking for it ahead.

use ruvllm_gguf::{GgmlType, GgufFile, GgufWriter};

/// Returns the resident bytes of this file's map, where the system tells.
fn resident_bytes(path: &std::path::Path) -> Option<usize> {
    let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let mut lines = maps.lines().skip_while(|line| !line.ends_with(path.to_str().expect("a plain path")));
    let line = lines.find_map(|line| line.strip_prefix("Rss:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<usize>().ok()? * 1024)
}

#[test]
fn released_bytes_leave_memory_and_read_the_same() {
    const LEN: usize = 4 << 20;
    let bytes: Vec<u8> = (0..LEN).map(|i| (i * 31 + i / 4096) as u8).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("large.gguf");
    let mut writer = GgufWriter::new();
    for name in ["before", "large", "after"] {
        writer.add_tensor(name, GgmlType::I8, &[LEN], bytes.clone()).expect("sound");
    }
    writer.write_file(&path).expect("written");
    let file = GgufFile::open(&path).expect("sound");
    for tensor in file.tensors() {
        assert!(file.data(tensor).as_ref() == bytes);
    }
    let large = file.tensor("large").expect("there");
    let held = file.data(large);
    let before = resident_bytes(&path);
    file.release(large, 0..LEN / 2);
    file.release(large, LEN / 2..LEN);
    file.release(large, LEN..LEN);
    if let (Some(before), Some(after)) = (before, resident_bytes(&path)) {
        assert!(before >= 3 * LEN && after <= before - LEN + (1 << 16), "{before} bytes before, {after} after");
    }
    assert!(held.as_ref() == bytes && file.data(large).as_ref() == bytes);
    for tensor in file.tensors() {
        file.release(tensor, 1..tensor.n_bytes() - 1);
        // Beyond the tensor, and beyond the file.
        file.read_ahead(tensor, 5, LEN);
        file.read_ahead(tensor, LEN + 1, usize::MAX);
        file.read_ahead(tensor, usize::MAX, 1);
        assert!(file.data(tensor).as_ref() == bytes);
    }
}

/// Returns a file that was never mapped, with three bytes in tensor `t`.
fn in_memory() -> GgufFile {
    let mut writer = GgufWriter::new();
    writer.add_tensor("t", GgmlType::I8, &[3], vec![1, 2, 3]).expect("sound");
    let mut out = Vec::new();
    writer.write_to(&mut out).expect("a vector takes everything");
    GgufFile::from_bytes(out.into()).expect("sound")
}

#[test]
fn bytes_in_memory_stay() {
    let file = in_memory();
    let tensor = file.tensor("t").expect("there");
    file.release(tensor, 0..3);
    file.read_ahead(tensor, 0, 3);
    assert_eq!(file.data(tensor).as_ref(), [1, 2, 3]);
}

#[test]
#[should_panic(expected = "0..4 of 3 bytes")]
fn a_range_outside_the_tensor_is_refused() {
    let file = in_memory();
    file.release(file.tensor("t").expect("there"), 0..4);
}
