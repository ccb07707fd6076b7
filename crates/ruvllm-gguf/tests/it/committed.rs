//! The files under `testdata/`: versions 1 to 3 as this crate writes them, and files by gguf-py (`testdata/make.py`).

use std::path::PathBuf;

use ruvllm_gguf::{GgufFile, GgufWriter, Value};

use crate::base;

pub(crate) fn testdata(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

/// Set `RUVLLM_BLESS=1` to write the files anew after a change that is meant.
#[test]
fn the_writer_still_writes_the_committed_bytes() {
    for version in 1..=3 {
        let path = testdata(&format!("v{version}.gguf"));
        if std::env::var_os("RUVLLM_BLESS").is_some() {
            std::fs::write(&path, base::bytes(version)).expect("testdata can be written");
        }
        assert_eq!(std::fs::read(&path).expect("committed"), base::bytes(version), "{}", path.display());
    }
}

#[test]
fn every_version_holds_the_same_model() {
    let files = [1, 2, 3].map(|version| GgufFile::open(&testdata(&format!("v{version}.gguf"))).expect("sound"));
    for (file, version) in files.iter().zip(1..) {
        assert_eq!((file.version(), file.alignment(), file.n_parts()), (version, 64, 1));
        assert_eq!(file.metadata(), files[2].metadata());
        assert!(file.tensors().eq(files[2].tensors()), "version {version}");
        for tensor in file.tensors() {
            assert_eq!(file.data(tensor), files[2].data(tensor));
        }
    }
}

/// One line for each thing a file declares.
fn dump(file: &GgufFile) -> String {
    let mut out = format!("version {} alignment {}\n", file.version(), file.alignment());
    for (key, value) in file.metadata().iter() {
        out += &format!("{key}: {value:?}\n");
    }
    for tensor in file.tensors() {
        let sum: u64 = file.data(tensor).iter().map(|&byte| u64::from(byte)).sum();
        let (offset, n_elements, n_bytes) = (tensor.offset(), tensor.n_elements(), tensor.n_bytes());
        out += &format!("{} {} {:?} @{offset} {n_elements} {n_bytes} {sum}\n", tensor.name, tensor.ty, tensor.shape);
    }
    out
}

#[test]
fn a_file_by_gguf_py_reads_as_gguf_py_reads_it() {
    let file = GgufFile::open(&testdata("gguf_py.gguf")).expect("sound");
    insta::assert_snapshot!(dump(&file), @r#"
    version 3 alignment 32
    general.architecture: String("llama")
    t.u8: U8(255)
    t.i8: I8(-128)
    t.u16: U16(65535)
    t.i16: I16(-32768)
    t.u32: U32(4294967295)
    t.i32: I32(-2147483648)
    t.f32: F32(0.1)
    t.bool: Bool(true)
    t.string: String("héllo\n世界")
    t.u64: U64(18446744073709551615)
    t.i64: I64(-9223372036854775808)
    t.f64: F64(0.1)
    t.strings: Array(String(["a", "bc", "", "▁d"]))
    t.ints: Array(I32([1, -2, 3]))
    t.floats: Array(F32([0.5, -1.5]))
    t.bools: Array(Bool([true, false]))
    a F32 [24] @0 24 96 4079
    b F16 [4, 3, 2] @96 24 48 2948
    c Q8_0 [32, 2] @160 64 68 2278
    d I32 [5] @256 5 20 10
    "#);
}

#[test]
fn a_split_model_by_gguf_py_is_the_whole_one() {
    let whole = GgufFile::open(&testdata("gguf_py.gguf")).expect("sound");
    let split = GgufFile::open(&testdata("split-00001-of-00002.gguf")).expect("sound");
    assert_eq!((split.n_parts(), split.paths().count()), (2, 2));
    assert_eq!(split.metadata().u32("split.count").expect("an integer"), Some(2));
    assert_eq!(split.tensors().map(|tensor| tensor.part()).collect::<Vec<_>>(), [0, 0, 1, 1]);
    for (a, b) in whole.tensors().zip(split.tensors()) {
        assert_eq!((&a.name, a.ty, &a.shape), (&b.name, b.ty, &b.shape));
        assert_eq!(whole.data(a), split.data(b));
        assert_eq!(split.tensor(&a.name), Some(b));
    }
    let mut merged = Vec::new();
    GgufWriter::from_file(&split).write_to(&mut merged).expect("sound");
    let merged = GgufFile::from_bytes(merged.into()).expect("sound");
    assert_eq!(merged.metadata(), whole.metadata());
    assert!(merged.tensors().eq(whole.tensors()));
}

#[test]
fn strings_are_found_by_position() {
    let file = GgufFile::open(&testdata("v1.gguf")).expect("sound");
    let strings = file.metadata().strings("a.string").expect("strings").expect("present");
    assert_eq!((strings.len(), strings.iter().len()), (40, 40));
    for (i, text) in strings.iter().enumerate() {
        assert_eq!((text, strings.get(i)), ("▁".repeat(i % 4).as_str(), Some(text)));
    }
    assert_eq!(strings.get(40), None);
    assert_eq!(file.metadata().get("a.string"), Some(&Value::from(strings.to_vec())));
}
