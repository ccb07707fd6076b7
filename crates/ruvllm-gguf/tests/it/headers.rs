//! Headers without their tensors: the beginning of a file is enough, and nothing less is.

use bytes::Bytes;
use ruvllm_gguf::{GgmlType, GgufErrorKind, GgufFile, GgufWriter};

use crate::base;

/// Bytes of a file of one tensor, as a part if `split` names its number and how many there are.
fn file(name: &str, split: Option<(u32, u32)>) -> Vec<u8> {
    let mut writer = GgufWriter::new();
    if let Some((no, count)) = split {
        writer.metadata_mut().set("split.no", no);
        writer.metadata_mut().set("split.count", count);
    }
    writer.add_tensor(name, GgmlType::I8, &[5000], vec![1u8; 5000]).expect("sound");
    written(writer)
}

fn written(writer: GgufWriter<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).expect("memory does not fail");
    bytes
}

#[test]
fn every_beginning_is_too_short_or_says_the_same() {
    for version in 1..=3 {
        let whole = written(base::writer(version));
        let file = GgufFile::from_bytes(whole.clone().into()).expect("sound");
        let mut first = None;
        for n in 0..=whole.len() {
            let beginning = Bytes::copy_from_slice(&whole[..n]);
            let has_header = GgufFile::has_header(&beginning).expect("the beginning of a sound file");
            let read = GgufFile::from_headers(vec![(beginning, whole.len() as u64)]);
            match read {
                Ok(header) => {
                    assert!(has_header);
                    first.get_or_insert(n);
                    assert_eq!(header.metadata(), file.metadata());
                    assert!(header.tensors().eq(file.tensors()));
                    assert_eq!((header.total_bytes(), header.version()), (whole.len() as u64, version));
                }
                Err(error) => {
                    assert!(!has_header && first.is_none(), "at {n}: {error}");
                    assert_eq!(error.kind(), GgufErrorKind::Truncated);
                }
            }
        }
        assert!(first.is_some_and(|n| n < whole.len()), "version {version}");
    }
}

#[test]
fn tensors_must_lie_in_the_whole_file() {
    let whole = file("t", None);
    let beginning = Bytes::copy_from_slice(&whole[..200]);
    assert!(GgufFile::has_header(&beginning).expect("sound"));
    let error = GgufFile::from_headers(vec![(beginning, whole.len() as u64 - 33)]).expect_err("too short");
    assert_eq!(error.kind(), GgufErrorKind::Truncated);
    assert!(GgufFile::has_header(&Bytes::from_static(b"<html>....")).is_err());
}

#[test]
fn parts_are_of_one_model_and_in_order() {
    let part = |name: &str, no, count| {
        let whole = file(name, Some((no, count)));
        (Bytes::copy_from_slice(&whole[..250]), whole.len() as u64)
    };
    let read = GgufFile::from_headers(vec![part("a", 0, 2), part("b", 1, 2)]).expect("two parts");
    assert_eq!((read.n_parts(), read.tensors().len(), read.tensor_bytes()), (2, 2, 10_000));
    for wrong in
        [vec![], vec![part("a", 0, 2)], vec![part("b", 1, 2), part("a", 0, 2)], vec![part("a", 0, 3), part("b", 1, 3)]]
    {
        assert_eq!(GgufFile::from_headers(wrong).expect_err("not the parts").kind(), GgufErrorKind::Split);
    }
    let twice = GgufFile::from_headers(vec![part("a", 0, 2), part("a", 1, 2)]).expect_err("one name twice");
    assert_eq!(twice.kind(), GgufErrorKind::Duplicate);
}
