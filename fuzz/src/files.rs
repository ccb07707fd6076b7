//! Files of models and adapters.

use std::cell::RefCell;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use bytes::Bytes;
use ruvllm_convert::{ConvertOptions, ImportanceMatrix, ImportanceSums, convert};
use ruvllm_engine::template::ChatTemplate;
use ruvllm_engine::tokenizer::{EncodeOptions, Tokenizer};
use ruvllm_gguf::GgufFile;
use ruvllm_lora::format::{self, ModelFacts};
use serde_json::Value;
use tempfile::TempDir;

use crate::{check_line, two_parts};

/// Reads a model file, its vocabulary and its template.
pub fn gguf(bytes: &[u8]) {
    let file = match GgufFile::from_bytes(Bytes::copy_from_slice(bytes)) {
        Ok(file) => file,
        Err(error) => return check_line(&error),
    };
    for tensor in file.tensors() {
        assert!(file.tensor(&tensor.name).is_some(), "a tensor is found by its name");
        assert!(file.data(tensor).len() <= bytes.len(), "no data beyond the file");
    }
    match Tokenizer::from_metadata(file.metadata()) {
        Ok(tokenizer) => {
            if let Ok(ids) = tokenizer.encode("a river, 3 stones", EncodeOptions::default()) {
                assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_len()), "{ids:?}");
                tokenizer.decode(&ids, Default::default());
            }
        }
        Err(error) => check_line(&error),
    }
    let source = file.metadata().str("tokenizer.chat_template").ok().flatten();
    if let Some(Err(error)) = source.map(|source| ChatTemplate::new(source, "", "")) {
        check_line(&error);
    }
}

/// Reads an importance matrix, in GGUF or in the older form; also by the reader that goes on with one.
pub fn imatrix(bytes: &[u8]) {
    match ImportanceMatrix::from_bytes(Bytes::copy_from_slice(bytes)) {
        Ok(matrix) => {
            assert!(matrix.n_tensors() > 0, "there is something in it");
            for (name, experts) in matrix.unused_experts() {
                let tensor = matrix.tensor(name).expect("a tensor is found by its name");
                assert!(!experts.is_empty() && tensor.values.iter().all(|x| x.is_finite() && *x >= 0.0), "{name}");
            }
        }
        Err(error) => check_line(&error),
    }
    in_folder(&[("m.gguf", bytes)], |folder| match ImportanceSums::open(&folder.path().join("m.gguf")) {
        Ok(sums) => {
            let mut both = sums.clone();
            both.merge(&sums).expect("a matrix fits itself");
            if let Err(error) = both.write(&folder.path().join("both.gguf")) {
                check_line(&error);
            }
        }
        Err(error) => check_line(&error),
    });
}

/// Reads the folder of a model in safetensors: settings, then weights.
pub fn safetensors(bytes: &[u8]) {
    let (config, weights) = two_parts(bytes);
    in_folder(&[("config.json", config), ("model.safetensors", weights), ("vocab.txt", b"[PAD]\n[UNK]\na\nb")], |folder| {
        converted(folder.path());
    });
}

/// The most bytes of weights of a folder that is made up.
const WEIGHT_BYTES_MAX: u64 = 1 << 18;

/// Reads the folder of a model: settings, its tokenizer, then the directory of its weights, whose bytes are zeros as many as it says.
pub fn folder(bytes: &[u8]) {
    let (config, rest) = two_parts(bytes);
    let (tokenizer, directory) = two_parts(rest);
    let told: Value = serde_json::from_slice(directory).unwrap_or_default();
    let ends = told.as_object().into_iter().flatten().filter_map(|(_, tensor)| tensor["data_offsets"][1].as_u64());
    let n_zeros = ends.max().unwrap_or(0).min(WEIGHT_BYTES_MAX) as usize;
    let n_directory = (directory.len() as u64).to_le_bytes();
    let weights = [&n_directory[..], directory, &vec![0; n_zeros]].concat();
    in_folder(
        &[("config.json", config), ("tokenizer.json", tokenizer), ("model.safetensors", &weights)],
        |folder| converted(folder.path()),
    );
}

/// Converts a folder; what comes of it is a model file.
fn converted(folder: &Path) {
    let output = folder.join("out.gguf");
    match convert(folder, &output, &ConvertOptions::default(), &mut |_| ControlFlow::Continue(())) {
        Ok(summary) => {
            let file = GgufFile::open(&output).expect("a file of ours");
            assert_eq!(file.tensors().count(), summary.n_tensors);
            drop(fs::remove_file(&output));
        }
        Err(error) => check_line(&error),
    }
}

/// Reads the folder of an adapter: settings, then weights.
pub fn peft(bytes: &[u8]) {
    let (config, weights) = two_parts(bytes);
    in_folder(&[("adapter_config.json", config), ("adapter_model.safetensors", weights)], |folder| {
        adapter(folder.path());
    });
}

/// Reads an adapter in one file.
pub fn gguf_adapter(bytes: &[u8]) {
    in_folder(&[("a.gguf", bytes)], |folder| adapter(&folder.path().join("a.gguf")));
}

fn adapter(path: &Path) {
    let facts = ModelFacts { arch: "llama".into(), n_heads: vec![2; 2], n_kv_heads: vec![1; 2], n_experts: 4 };
    let adapter = match format::read(path, &facts) {
        Ok(adapter) => adapter,
        Err(error) => return check_line(&error),
    };
    for delta in adapter.deltas() {
        match (delta.a(), delta.b()) {
            (Ok(a), Ok(b)) => {
                assert_eq!(a.len(), delta.rank() * delta.n_in());
                assert_eq!(b.len(), delta.rank() * delta.n_out());
                assert!(delta.scale.is_finite());
            }
            (a, b) => a.err().iter().chain(&b.err()).for_each(|error| check_line(error)),
        }
    }
}

/// Writes files to this thread's folder and uses it.
fn in_folder(files: &[(&str, &[u8])], then: impl FnOnce(&TempDir)) {
    thread_local! {
        static FOLDER: RefCell<TempDir> = RefCell::new(temporary());
    }
    FOLDER.with_borrow(|folder| {
        for (name, bytes) in files {
            // A new file each time: the last one may still be mapped.
            drop(fs::remove_file(folder.path().join(name)));
            fs::write(folder.path().join(name), bytes).expect("a temporary folder is writable");
        }
        then(folder);
    });
}

/// A folder in memory where the system has one.
fn temporary() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary folder")
}
