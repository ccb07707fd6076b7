//! Refusals: one line that says why, before anything is written.

use std::ops::ControlFlow;
use std::path::Path;

use ruvllm_convert::{ConvertErrorKind, ImportanceMatrix, KeepRule, QuantizeOptions, Recipe, quantize};
use ruvllm_gguf::{GgmlType, GgufFile, GgufWriter};

use crate::models::SHAPES;

/// Quantises and returns the error, which leaves nothing behind.
fn refused(input: &Path, output: &Path, options: &QuantizeOptions) -> (ConvertErrorKind, String) {
    let had = std::fs::read(output).ok();
    let error = quantize(input, output, options, &mut |_| ControlFlow::Continue(())).expect_err("it is refused");
    let line = error.to_string();
    assert!(!line.contains('\n') && line.contains(".gguf"), "{line}");
    assert_eq!(std::fs::read(output).ok(), had, "nothing is written");
    assert!(!output.with_extension("gguf.part").exists());
    (error.kind(), line)
}

#[test]
fn wrong_files_and_options_cost_one_line() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    let (input, output) = (path("in.gguf"), path("out.gguf"));
    SHAPES[0].write(&input);
    let q4 = QuantizeOptions::new(Recipe::Q4_K_M);
    let check = |(kind, line): (ConvertErrorKind, String), expected: ConvertErrorKind, part: &str| {
        assert!(kind == expected && line.contains(part), "{kind:?}: {line}");
    };
    check(refused(&input, &input, &q4), ConvertErrorKind::Usage, "is the input; write to another file");
    check(refused(&input, &path("none/out.gguf"), &q4), ConvertErrorKind::Usage, "name a file in a folder that exists");
    check(refused(&path("none.gguf"), &output, &q4), ConvertErrorKind::Io, "cannot open the file");
    let two_bits = QuantizeOptions::new(Recipe::Q2_K_S);
    check(refused(&input, &output, &two_bits), ConvertErrorKind::Unsupported, "needs an importance matrix");

    quantize(&input, &path("q4.gguf"), &q4, &mut |_| ControlFlow::Continue(())).expect("it can be quantised");
    let q8 = QuantizeOptions::new(Recipe::Q8_0);
    check(refused(&path("q4.gguf"), &output, &q8), ConvertErrorKind::Unsupported, "pass --requantize");
    let again = QuantizeOptions { requantize: true, ..q8 };
    quantize(&path("q4.gguf"), &path("q8.gguf"), &again, &mut |_| ControlFlow::Continue(())).expect("it was asked for");
    assert_eq!(
        GgufFile::open(&path("q8.gguf")).expect("a file").tensor("blk.0.attn_q.weight").map(|t| t.ty),
        Some(GgmlType::Q8_0)
    );

    SHAPES[4].write_imatrix(&path("other.gguf"));
    let imatrix = Some(ImportanceMatrix::open(&path("other.gguf")).expect("it is sound"));
    let other = QuantizeOptions { imatrix, ..q4.clone() };
    check(refused(&input, &output, &other), ConvertErrorKind::Invalid, "has 96 values and 256 are needed");
}

/// Writes a model of one matrix, or part `no` of two.
fn write(path: &Path, value: f32, no: Option<u16>) {
    let mut writer = GgufWriter::new();
    writer.metadata_mut().set("general.architecture", "llama");
    writer.metadata_mut().set("llama.block_count", 1u32);
    if let Some(no) = no {
        writer.metadata_mut().set("split.no", no);
        writer.metadata_mut().set("split.count", 2u16);
        writer.metadata_mut().set("split.tensors.count", 2i32);
    }
    let data: Vec<u8> = (0..512).flat_map(|i| if i == 300 { value } else { 0.5 }.to_le_bytes()).collect();
    writer.add_tensor(format!("blk.0.a{}.weight", no.unwrap_or(0)), GgmlType::F32, &[256, 2], data).expect("a tensor");
    writer.write_file(path).expect("a temporary folder is writable");
}

#[test]
fn values_are_checked() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (input, output) = (folder.path().join("in.gguf"), folder.path().join("out.gguf"));
    for (value, recipe, part) in [
        (f32::NAN, Recipe::Q4_K_M, "tensor 'blk.0.a0.weight': row 1 has a value that is not finite"),
        (f32::INFINITY, Recipe::F16, "row 1 has a value that is not finite"),
        (1e30, Recipe::Q8_0, "row 1 has values too large for Q8_0"),
        (1e5, Recipe::F16, "row 1 has values too large for F16"),
    ] {
        write(&input, value, None);
        let (kind, line) = refused(&input, &output, &QuantizeOptions::new(recipe));
        assert!(kind == ConvertErrorKind::Value && line.contains(part), "{line}");
    }
}

#[test]
fn models_in_parts_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let part = |no: u16| folder.path().join(format!("m-0000{}-of-00002.gguf", no + 1));
    (0..2).for_each(|no| write(&part(no), 1.0, Some(no)));
    let (kind, line) = refused(&part(0), &folder.path().join("out.gguf"), &QuantizeOptions::new(Recipe::Q8_0));
    assert!(kind == ConvertErrorKind::Unsupported && line.contains("is in 2 files; join them"), "{line}");
}

#[test]
fn wrong_rules_cost_one_line() {
    let check = |rule: &str, part: &str| {
        let line = KeepRule::parse(rule).expect_err("it is wrong").to_string();
        assert!(line.contains(part) && !line.contains('\n'), "{line}");
    };
    check("attn_v", "is no PATTERN=TYPE");
    check("=Q8_0", "has no pattern before '='");
    check("(=Q8_0", "has no regular expression before '='");
    check("attn_v=Q9", "choose one of F32, F16,");
    check("attn_v=TQ1_0", "names no type to quantise to");
}

#[test]
fn work_that_is_broken_off_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (input, output) = (folder.path().join("in.gguf"), folder.path().join("out.gguf"));
    SHAPES[0].write(&input);
    let mut n = 0;
    let result = quantize(&input, &output, &QuantizeOptions::new(Recipe::Q8_0), &mut |_| {
        n += 1;
        if n == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!((result.expect_err("it is broken off").kind(), n), (ConvertErrorKind::Cancelled, 3));
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
}
