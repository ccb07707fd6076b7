//! Tiny models of every architecture against what llama.cpp's converter makes of them.
//!
//! `testdata/hf/` was made by `testdata/make_hf.py` with transformers 4.57.6 and torch 2.11: a folder a model, the tokenizers
//! that they share, and `expected.txt` with a line for each key and each tensor of the converter's file in F16; long values as the first 16
//! digits of their SHA-256.

use std::collections::BTreeSet;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use ruvllm_convert::{ConvertError, ConvertOptions, ConvertType, convert};
use ruvllm_gguf::{Array, GgufFile, Value};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// Starts of lines that differ by intent (`docs/src/own-models.md`), by model.
const DIFFERENT: [(&str, &str); 7] = [
    ("bert", "K bert.pooling_type u32 1"),
    ("roberta", "K bert.pooling_type u32 1"),
    ("gptneox", "K general.file_type u32 1"),
    ("mamba", "T blk.0.ssm_a F32 4x32 "),
    ("mistral", "K tokenizer.ggml.scores "),
    ("mistral", "K tokenizer.ggml.token_type "),
    ("mistral", "K tokenizer.ggml.tokens "),
];

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/hf")
}

fn copy_files(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
        let path = entry.expect("an entry").path();
        fs::copy(&path, to.join(path.file_name().expect("a name"))).expect("a copy");
    }
}

fn digest(bytes: &[u8]) -> String {
    hex::encode(&Sha256::digest(bytes)[..8])
}

/// Returns the type of a value and its text.
fn text_of(value: &Value) -> (String, String) {
    let joined = |kind: &str, texts: Vec<String>| (format!("array-{kind}"), texts.join("\u{1f}"));
    let bits = |x: &f32| format!("{:08x}", x.to_bits());
    match value {
        Value::F32(x) => ("f32".to_owned(), bits(x)),
        Value::U32(n) => ("u32".to_owned(), n.to_string()),
        Value::I32(n) => ("i32".to_owned(), n.to_string()),
        Value::Bool(flag) => ("bool".to_owned(), flag.to_string()),
        Value::String(text) => ("string".to_owned(), text.clone()),
        Value::Array(Array::String(all)) => joined("string", all.iter().map(str::to_owned).collect()),
        Value::Array(Array::I32(all)) => joined("i32", all.iter().map(i32::to_string).collect()),
        Value::Array(Array::F32(all)) => joined("f32", all.iter().map(bits).collect()),
        Value::Array(Array::Bool(all)) => joined("bool", all.iter().map(bool::to_string).collect()),
        other => panic!("no key has a value of type {}", other.value_type().name()),
    }
}

/// Returns a line for each key and each tensor.
pub(crate) fn lines(file: &GgufFile) -> BTreeSet<String> {
    let key = |(key, value): (&str, &Value)| {
        let (kind, text) = text_of(value);
        let text = text.replace('\n', "\\n");
        let is_short = text.chars().count() <= 60 && !text.contains('\u{1f}');
        format!("K {key} {kind} {}", if is_short { text } else { digest(text.as_bytes()) })
    };
    let tensor = |tensor: &ruvllm_gguf::TensorInfo| {
        let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
        format!("T {} {} {} {}", tensor.name, tensor.ty, shape.join("x"), digest(&file.data(tensor)))
    };
    file.metadata().iter().map(key).chain(file.tensors().map(tensor)).collect()
}

/// A model of `testdata/` with its tokenizer, in a folder of its own.
pub(crate) struct Fixture {
    dir: TempDir,
    name: String,
    pub(crate) folder: PathBuf,
    /// Lines of the reference's file.
    expected: BTreeSet<String>,
}

impl Fixture {
    pub(crate) fn new(name: &str) -> Fixture {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let folder = dir.path().join(name);
        fs::create_dir(&folder).expect("it is writable");
        copy_files(&testdata().join(name), &folder);
        let expected = fs::read_to_string(folder.join("expected.txt")).expect("the expected lines");
        let (tokenizer, expected) = expected.split_once('\n').expect("lines");
        copy_files(&testdata().join("tokenizers").join(tokenizer), &folder);
        let expected = expected.lines().map(str::to_owned).collect();
        Fixture { dir, name: name.to_owned(), folder, expected }
    }

    /// Converts it to F16, and opens the file.
    pub(crate) fn convert(&self) -> Result<GgufFile, ConvertError> {
        let output = self.dir.path().join("out.gguf");
        let ty = Some(ConvertType::parse("F16").expect("a type"));
        let options = ConvertOptions { ty, name: Some(self.name.clone()), ..ConvertOptions::default() };
        convert(&self.folder, &output, &options, &mut |_| ControlFlow::Continue(()))?;
        Ok(GgufFile::open(&output).expect("a GGUF file"))
    }
}

/// Returns the names of the models.
pub(crate) fn names() -> BTreeSet<String> {
    let names = fs::read_dir(testdata()).expect("the models").map(|entry| entry.expect("an entry").file_name());
    names.map(|name| name.to_string_lossy().into_owned()).filter(|name| name != "tokenizers").collect()
}

/// Returns the lines that only one of the two has.
fn differences(name: &str) -> Vec<String> {
    let model = Fixture::new(name);
    let have = match model.convert() {
        Ok(file) => lines(&file),
        Err(error) => return vec![format!("{name}: {error}")],
    };
    let want = model.expected;
    let is_meant = |line: &str| DIFFERENT.iter().any(|(model, start)| *model == name && line.starts_with(start));
    let ours = have.difference(&want).map(|line| (line, "is in our file alone"));
    let theirs = want.difference(&have).map(|line| (line, "is missing"));
    let different = ours.chain(theirs).filter(|(line, _)| !is_meant(line));
    different.map(|(line, what)| format!("{name}: {line} {what}")).collect()
}

#[test]
fn files_are_those_of_the_reference() {
    let names = names();
    assert!(names.len() >= 33, "{names:?}");
    let different: Vec<String> = names.iter().flat_map(|name| differences(name)).collect();
    assert!(different.is_empty(), "{}", different.join("\n"));
}
