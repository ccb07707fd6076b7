//! Each wrong thing in a file, and the line it costs.

use ruvllm_gguf::{GgufErrorKind as Kind, GgufFile, Metadata};

use crate::base::{self, Raw};

fn check(raw: Raw, kind: Kind, message: &str) {
    let error = GgufFile::from_bytes(raw.0.into()).expect_err(message);
    assert_eq!((error.kind(), error.to_string().as_str()), (kind, message));
}

#[test]
fn other_files() {
    check(Raw(vec![]), Kind::Truncated, "truncated: need 4 bytes, have 0 (at byte 0); download the file again");
    let elf = Raw(b"\x7fELF....".to_vec());
    check(elf, Kind::NotGguf, "not a GGUF file: starts with \"\\x7fELF\", expected \"GGUF\"");
    let lfs = "not a GGUF file: starts with \"vers\", expected \"GGUF\" \
               (perhaps a git-lfs pointer: fetch the file itself with `git lfs pull`)";
    check(Raw(b"version https://git-lfs.github.com/spec/v1".to_vec()), Kind::NotGguf, lfs);
    let big = "a big-endian GGUF file (version 3), only little-endian is read: \
               convert it with gguf-py's gguf_convert_endian";
    check(Raw(b"GGUF\0\0\0\x03".to_vec()), Kind::Unsupported, big);
    let version = |n| Raw(b"GGUF".to_vec()).u32(n).u64(0).u64(0);
    check(version(0), Kind::Unsupported, "GGUF version 0, versions 1 to 3 are read");
    check(version(4), Kind::Unsupported, "GGUF version 4, versions 1 to 3 are read");
}

#[test]
fn metadata_lengths() {
    let most = u64::MAX;
    let all = "truncated: need 18446744073709551615 bytes, have 8 (at byte 24); download the file again";
    check(Raw::new(0, most).u64(0), Kind::Truncated, all);
    let many = "4294967296 tensors, at most 65536 are read";
    check(Raw::new(1 << 32, 0), Kind::Limit, many);
    let key = "metadata entry 0 of 1: truncated: need 18446744073709551615 bytes, have 8 (at byte 32); download the file again";
    check(Raw::new(0, 1).u64(most).u64(0), Kind::Truncated, key);
    let array =
        "metadata key 'k': truncated: need 18446744073709551615 bytes, have 0 (at byte 49); download the file again";
    check(Raw::new(0, 1).key_array("k", 4, 1 << 62), Kind::Truncated, array);
    let strings = "metadata key 'k': truncated: need 80 bytes, have 79 (at byte 49); download the file again";
    check(Raw::new(0, 1).key_array("k", 8, 10).bytes(&[0; 79]), Kind::Truncated, strings);
}

#[test]
fn metadata_values() {
    let ty = "metadata key 'k': unknown metadata value type 13, expected 0 to 12 (at byte 33)";
    check(Raw::new(0, 1).str("k").u32(13).u64(0), Kind::Unsupported, ty);
    let bool = "metadata key 'k': a bool is 2, expected 0 or 1 (at byte 37)";
    check(Raw::new(0, 1).str("k").u32(7).bytes(&[2]), Kind::Invalid, bool);
    let bools = "metadata key 'k': a bool is 7, expected 0 or 1 (at byte 50)";
    check(Raw::new(0, 1).key_array("k", 7, 2).bytes(&[1, 7]), Kind::Invalid, bools);
    let utf8 = "metadata key 'k': a string is not UTF-8 (at byte 47)";
    check(Raw::new(0, 1).str("k").u32(8).u64(3).bytes(b"ab\xff"), Kind::Invalid, utf8);
    let strings = "metadata key 'k': string 1 of 2: a string is not UTF-8 (at byte 66)";
    check(Raw::new(0, 1).key_array("k", 8, 2).str("a").u64(1).bytes(b"\xff"), Kind::Invalid, strings);
    let twice = "metadata key 'b' occurs twice (entries 1 and 2)";
    check(Raw::new(0, 3).key_u32("a", 1).key_u32("b", 1).key_u32("b", 2), Kind::Duplicate, twice);
    let empty = "metadata entry 0 of 1 (at byte 24): the key is empty";
    check(Raw::new(0, 1).key_u32("", 1), Kind::Invalid, empty);
    let long = "metadata entry 0 of 1 (at byte 24): the key has 65536 bytes, at most 65535 are read";
    check(Raw::new(0, 1).key_u32(&"k".repeat(65_536), 1), Kind::Limit, long);
    for alignment in [0, 3, 2_097_152] {
        let message = format!("general.alignment is {alignment}, expected a power of two up to 1048576");
        check(Raw::new(0, 1).key_u32("general.alignment", alignment), Kind::Invalid, &message);
    }
    let text = "metadata key 'general.alignment' is a string, expected an integer that is not negative";
    check(Raw::new(0, 1).str("general.alignment").u32(8).str("32"), Kind::WrongType, text);
}

#[test]
fn names_cannot_break_the_line() {
    let name = format!("a\n\u{1b}[31m{}", "x".repeat(100));
    let shown = format!("a\\n\\u{{1b}}[31m{}…", "x".repeat(73));
    check(
        Raw::new(0, 1).str(&name).u32(99),
        Kind::Unsupported,
        &format!("metadata key '{shown}': unknown metadata value type 99, expected 0 to 12 (at byte 139)"),
    );
}

#[test]
fn tensors() {
    let one = |ty, shape: &[u64], offset| Raw::new(1, 0).tensor("t", ty, shape, offset).data(64);
    let at = |message: &str| format!("tensor 't': {message}");
    let invalid = |raw, message: &str| check(raw, Kind::Invalid, &at(message));
    invalid(one(0, &[], 0), "0 dimensions, expected 1 to 4");
    invalid(one(0, &[1; 5], 0), "5 dimensions, expected 1 to 4");
    invalid(one(0, &[4, 0], 0), "shape [4, 0] has a dimension of 0");
    invalid(one(2, &[33], 0), "rows of 33 values are not whole Q4_0 blocks of 32");
    let huge = "shape [4294967296, 4294967296] of F32 is too large for this machine";
    invalid(one(0, &[1 << 32, 1 << 32], 0), huge);
    invalid(one(0, &[1 << 61], 0), "shape [2305843009213693952] of F32 is too large for this machine");
    invalid(one(0, &[1], 16), "offset 16 is no multiple of 32");
    check(
        one(0, &[17], 0),
        Kind::Truncated,
        &at("truncated: need 68 bytes, have 64 (at byte 64); download the file again"),
    );
    let past = "truncated: need 4 bytes, have 0 (at byte 18446744073709551615); download the file again";
    check(one(0, &[1], u64::MAX - 31), Kind::Truncated, &at(past));
    let removed = "type Q4_0_4_4 (31) was removed from GGML: quantise the model again";
    check(one(31, &[32], 0), Kind::Unsupported, &at(removed));
    let unknown = "unknown tensor type 1234: use a model with types read here, such as Q4_K_M or Q8_0";
    check(one(1234, &[32], 0), Kind::Unsupported, &at(unknown));

    let two = |name, offset| Raw::new(2, 0).tensor("t", 0, &[9], 0).tensor(name, 0, &[1], offset).data(128);
    check(two("t", 64), Kind::Duplicate, "tensor 't' occurs twice (entries 0 and 1)");
    let overlap = "tensors 't' and 'u' overlap: 36 bytes at offset 0 reach past offset 32";
    check(two("u", 32), Kind::Invalid, overlap);
    assert!(GgufFile::from_bytes(two("u", 64).0.into()).is_ok());
    let nameless = "tensor '': the name is empty";
    check(two("", 64), Kind::Invalid, nameless);
}

#[test]
fn typed_access() {
    let file = GgufFile::from_bytes(base::bytes(3).into()).expect("sound");
    let m: &Metadata = file.metadata();
    assert_eq!(m.u32("no such key").expect("absent is no error"), None);
    assert_eq!((m.u32("t.u8").expect("fits"), m.u64("t.u64").expect("fits")), (Some(255), Some(u64::MAX)));
    assert_eq!((m.i32("t.i32").expect("fits"), m.f32("t.f64").expect("a float")), (Some(i32::MIN), Some(0.1)));
    assert_eq!(
        (m.bool("t.bool").expect("a bool"), m.str("t.string").expect("a text")),
        (Some(true), Some("héllo\n世界"))
    );
    assert_eq!(m.i32s("a.u16").expect("integers"), Some(vec![1, 2]));
    assert_eq!(m.u32s("a.empty").expect("integers"), Some(vec![]));
    assert_eq!(m.f32s("a.f32").expect("floats"), Some(vec![0.5, -1.5]));
    assert_eq!(m.f32s("a.empty").expect("nothing is of any type"), Some(vec![]));
    assert_eq!(m.bools("a.bool").expect("bools"), Some(vec![true, false, true]));
    assert!(m.strings("a.empty").expect("nothing is of any type").is_some_and(|strings| strings.is_empty()));
    assert_eq!(m.u32_per_layer("t.u8", 3).expect("one for all"), Some(vec![255; 3]));
    assert_eq!(m.u32_per_layer("a.u32", 1).expect("one each"), Some(vec![1]));
    assert_eq!(m.get("a.i8").and_then(|value| value.to_flags()), Some(vec![true, true]));

    let line = |error: ruvllm_gguf::GgufError| {
        assert_eq!(error.kind(), Kind::WrongType);
        error.to_string()
    };
    let wrong = [
        (
            line(m.u32("t.u64").unwrap_err()),
            "metadata key 't.u64' is 18446744073709551615, expected an integer from 0 to 4294967295",
        ),
        (line(m.u32("t.i8").unwrap_err()), "metadata key 't.i8' is -128, expected an integer from 0 to 4294967295"),
        (
            line(m.u32("t.string").unwrap_err()),
            "metadata key 't.string' is a string, expected an integer from 0 to 4294967295",
        ),
        (line(m.f32("t.u8").unwrap_err()), "metadata key 't.u8' is 255, expected a float"),
        (line(m.str("a.u8").unwrap_err()), "metadata key 'a.u8' is an array of 3 u8, expected a string"),
        (
            line(m.u32s("a.i8").unwrap_err()),
            "metadata key 'a.i8' is an array of 2 i8, expected an array of integers that fit u32",
        ),
        (
            line(m.strings("a.nested").unwrap_err()),
            "metadata key 'a.nested' is an array of 2 array, expected an array of strings",
        ),
        (
            line(m.u32_per_layer("a.u32", 3).unwrap_err()),
            "metadata key 'a.u32' is an array of 2, expected one integer, or 3 of them",
        ),
    ];
    for (found, expected) in wrong {
        assert_eq!(found, expected);
    }
}

#[test]
fn the_file_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    let line = |path: &std::path::Path| GgufFile::open(path).expect_err("refused").to_string();
    assert_eq!(
        line(&path),
        format!("{}: cannot open the file: No such file or directory (os error 2)", path.display())
    );
    assert_eq!(line(folder.path()), format!("{}: cannot open the file: is a directory", folder.path().display()));
    std::fs::write(&path, "").expect("written");
    let empty = format!("{}: truncated: need 4 bytes, have 0 (at byte 0); download the file again", path.display());
    assert_eq!(line(&path), empty);
    std::fs::write(&path, base::bytes(3)).expect("written");
    let error = GgufFile::open(&path).expect("sound").metadata().u32("t.string").expect_err("a string");
    assert_eq!(error.path(), Some(path.as_path()));
}
