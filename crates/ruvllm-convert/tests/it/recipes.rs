//! Whole files, byte for byte, against hashes of llama.cpp's (`testdata/make.py`).

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;

use ruvllm_convert::{ImportanceMatrix, KeepRule, QuantizeOptions, Recipe, quantize};
use ruvllm_gguf::{GgmlType, GgufFile};

use crate::models::SHAPES;

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Opens an importance matrix under the path that llama.cpp was given.
fn imatrix(folder: &Path, model: &str) -> ImportanceMatrix {
    let name = format!("{model}.imatrix");
    let mut matrix = ImportanceMatrix::open(&folder.join(&name)).expect("it is sound");
    matrix.file = name;
    matrix
}

#[test]
fn files_are_those_of_llama_cpp() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    for shape in &SHAPES {
        shape.write(&folder.join(format!("{}.gguf", shape.name)));
        shape.write_imatrix(&folder.join(format!("{}.imatrix", shape.name)));
    }
    let (mut n, mut wrong) = (0, Vec::new());
    for line in include_str!("../../testdata/recipes.txt").lines() {
        let [model, recipe, weighing, expected] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let mut options = QuantizeOptions::new(Recipe::parse(recipe).expect("a recipe"));
        options.imatrix = (weighing == "weighted").then(|| imatrix(folder, model));
        let output = folder.join("out.gguf");
        let result =
            quantize(&folder.join(format!("{model}.gguf")), &output, &options, &mut |_| ControlFlow::Continue(()));
        let is_right = match &result {
            Err(_) => expected == "refused",
            Ok(_) => format!("{:016x}", hash(&std::fs::read(&output).expect("a file"))) == expected,
        };
        if !is_right {
            wrong.push(format!("{line} ({:?})", result.err()));
        }
        n += 1;
    }
    assert!(wrong.is_empty() && n == SHAPES.len() * Recipe::ALL.len() * 2, "{} of {n}: {wrong:#?}", wrong.len());
}

#[test]
fn the_number_of_threads_changes_nothing_and_progress_reaches_the_end() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    SHAPES[3].write(&path("in.gguf"));
    let mut outputs = Vec::new();
    for n in [1, 2, 5] {
        let mut options = QuantizeOptions::new(Recipe::Q4_K_M);
        options.n_threads = NonZeroUsize::new(n);
        let (mut done, mut total) = (0, 1);
        let summary = quantize(&path("in.gguf"), &path("out.gguf"), &options, &mut |progress| {
            assert!(progress.done_bytes > done);
            (done, total) = (progress.done_bytes, progress.total_bytes);
            ControlFlow::Continue(())
        });
        let summary = summary.expect("it can be quantised");
        assert_eq!(done, total);
        outputs.push(std::fs::read(path("out.gguf")).expect("a file"));
        assert_eq!(summary.output_bytes, outputs[0].len() as u64);
    }
    assert!(outputs.windows(2).all(|pair| pair[0] == pair[1]));
    assert!(!path("out.gguf.part").exists());
}

#[test]
fn rules_go_before_recipes_and_odd_rows_are_told() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    SHAPES[0].write(&path("in.gguf"));
    let mut options = QuantizeOptions::new(Recipe::Q4_K_S);
    options.keep = ["attn_(q|k)=Q8_0", "^blk.9.=f16"].map(|rule| KeepRule::parse(rule).expect("a rule")).to_vec();
    let summary = quantize(&path("in.gguf"), &path("out.gguf"), &options, &mut |_| ControlFlow::Continue(()))
        .expect("it can be quantised");
    assert!(summary.fallbacks.is_empty());
    let file = GgufFile::open(&path("out.gguf")).expect("a file");
    let ty = |name: &str| file.tensor(name).expect("a tensor").ty;
    assert_eq!(ty("blk.0.attn_q.weight"), GgmlType::Q8_0);
    assert_eq!(ty("blk.9.attn_k.weight"), GgmlType::Q8_0, "the first rule that matches");
    assert_eq!(ty("blk.9.ffn_up.weight"), GgmlType::F16);
    assert_eq!(ty("blk.9.attn_norm.weight"), GgmlType::F32, "norms stay");
    assert_eq!(ty("blk.5.ffn_up.weight"), GgmlType::Q4_K);

    SHAPES[4].write(&path("in.gguf"));
    let summary = quantize(&path("in.gguf"), &path("out.gguf"), &options, &mut |_| ControlFlow::Continue(()))
        .expect("it can be quantised");
    let fallback = |name: &str| summary.fallbacks.iter().find(|(one, _)| one == name).map(|(_, ty)| *ty);
    assert_eq!(fallback("blk.5.ffn_up.weight"), Some(GgmlType::F16));
    assert_eq!(fallback("blk.5.ffn_down.weight"), Some(GgmlType::Q5_0));
}
