//! Split models: which part to open, missing parts, parts that do not belong together.

use std::path::Path;

use ruvllm_gguf::{GgmlType, GgufErrorKind, GgufFile, GgufWriter};

/// Writes part `no` of `count`, holding one tensor of this name.
fn write_part(folder: &Path, no: u16, count: u16, n_tensors: i32, tensor: &str) {
    let mut writer = GgufWriter::new();
    writer.metadata_mut().set("split.no", no);
    writer.metadata_mut().set("split.count", count);
    writer.metadata_mut().set("split.tensors.count", n_tensors);
    writer.add_tensor(tensor, GgmlType::I8, &[3], vec![no as u8; 3]).expect("sound");
    writer.write_file(&folder.join(format!("m-{:05}-of-00003.gguf", no + 1))).expect("written");
}

/// Opens a file of the folder; the error without its folder.
fn error(folder: &Path, name: &str) -> String {
    let error = GgufFile::open(&folder.join(name)).expect_err(name);
    assert_eq!(
        error.kind(),
        if error.to_string().contains("twice") { GgufErrorKind::Duplicate } else { GgufErrorKind::Split }
    );
    error.to_string().replace(&format!("{}/", folder.display()), "")
}

#[test]
fn three_parts() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    (0..3).for_each(|no| write_part(folder, no, 3, 3, &format!("t{no}")));
    let file = GgufFile::open(&folder.join("m-00001-of-00003.gguf")).expect("sound");
    assert_eq!((file.n_parts(), file.tensors().len(), file.tensor_bytes()), (3, 3, 9));
    for (no, tensor) in file.tensors().enumerate() {
        assert_eq!((tensor.part(), file.data(tensor).as_ref()), (no, &[no as u8; 3][..]));
    }

    let second = "m-00002-of-00003.gguf: this is part 2 of 3 of a split model: open m-00001-of-00003.gguf instead";
    assert_eq!(error(folder, "m-00002-of-00003.gguf"), second);

    std::fs::rename(folder.join("m-00003-of-00003.gguf"), folder.join("other.gguf")).expect("renamed");
    let missing = "m-00003-of-00003.gguf: part 3 of 3 is missing: put it beside the others";
    assert_eq!(error(folder, "m-00001-of-00003.gguf"), missing);
    let other = "other.gguf: this is part 3 of 3 of a split model: \
                 open the part whose name ends in -00001-of-00003.gguf instead";
    assert_eq!(error(folder, "other.gguf"), other);

    std::fs::copy(folder.join("m-00001-of-00003.gguf"), folder.join("first.gguf")).expect("copied");
    let misnamed = "first.gguf: part 1 of 3 of a split model must have a name ending in -00001-of-00003.gguf";
    assert_eq!(error(folder, "first.gguf"), misnamed);
    let bytes = std::fs::read(folder.join("first.gguf")).expect("there");
    let memory = GgufFile::from_bytes(bytes.into()).expect_err("a part");
    assert_eq!(memory.to_string(), "part 1 of 3 of a split model: open it by path");

    std::fs::copy(folder.join("m-00002-of-00003.gguf"), folder.join("m-00003-of-00003.gguf")).expect("copied");
    let swapped = "m-00003-of-00003.gguf: expected part 3 of 3, the file says part 2 of 3";
    assert_eq!(error(folder, "m-00001-of-00003.gguf"), swapped);
    write_part(folder, 2, 3, 3, "t0");
    assert_eq!(
        error(folder, "m-00001-of-00003.gguf"),
        "m-00001-of-00003.gguf: tensor 't0' occurs twice (entries 0 and 2)"
    );
    (0..3).for_each(|no| write_part(folder, no, 3, 4, &format!("t{no}")));
    let count = "m-00001-of-00003.gguf: split.tensors.count is 4, the 3 parts hold 3 tensors";
    assert_eq!(error(folder, "m-00001-of-00003.gguf"), count);
    write_part(folder, 0, 0, 3, "t0");
    let file = GgufFile::open(&folder.join("m-00001-of-00003.gguf"));
    assert_eq!(file.expect_err("one part").kind(), GgufErrorKind::Split);
}
