//! Tiny models with what transformers computed from them in float32.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::GzDecoder;
use serde_json::Value;

/// Variable that names the folder of the golden data where tests run without the repository.
const DATA_VARIABLE: &str = "RUVLLM_TESTDATA";

/// Returns the folder of the golden data: this crate's, or the one that `RUVLLM_TESTDATA` names.
pub fn testdata_dir() -> PathBuf {
    let named = std::env::var_os(DATA_VARIABLE).filter(|name| !name.is_empty());
    named.map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata"), PathBuf::from)
}

/// Returns the folder that compressed models are unpacked to.
fn unpacked_dir() -> PathBuf {
    match std::env::var_os(DATA_VARIABLE).is_some_and(|name| !name.is_empty()) {
        true => testdata_dir().join("unpacked"),
        false => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/goldens"),
    }
}

/// Output that a golden model is expected to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoldenKind {
    /// Logits of every position.
    Logits,
    /// Hidden states and a pooled vector.
    Embedding,
}

/// A golden model: its files, its input and its expected output.
#[derive(Clone, Debug)]
pub struct Golden {
    /// Name of its folder, e.g. `llama-a`.
    pub name: String,
    /// Value of `general.architecture`.
    pub arch: String,
    /// Kind of its output.
    pub kind: GoldenKind,
    /// Token ids to feed as they are, from position 0.
    pub tokens: Vec<u32>,
    /// Context to open the model with, in tokens.
    pub n_ctx: usize,
    /// Size of the vocabulary.
    pub n_vocab: usize,
    /// All of `case.json`.
    pub case: Value,
}

impl Golden {
    /// Returns every golden model, by name.
    ///
    /// # Panics
    /// If the data cannot be read.
    pub fn all() -> Vec<Golden> {
        let dir = testdata_dir().join("models");
        let entries = fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        let name = |entry: std::io::Result<fs::DirEntry>| {
            let entry = entry.unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
            entry.file_name().into_string().expect("names of golden models are ASCII")
        };
        let mut names: Vec<String> = entries.map(name).collect();
        names.sort();
        names.iter().map(|name| Golden::load(name)).collect()
    }

    /// Returns the golden model of this name, e.g. `llama-a`.
    ///
    /// # Panics
    /// If there is none, or its `case.json` lacks a field.
    pub fn load(name: &str) -> Golden {
        let path = testdata_dir().join("models").join(name).join("case.json");
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let case: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let number = |key: &str| case[key].as_u64().unwrap_or_else(|| panic!("{}: no {key}", path.display())) as usize;
        let tokens = case["tokens"].as_array().unwrap_or_else(|| panic!("{}: no tokens", path.display()));
        let kind = match case["kind"].as_str() {
            Some("logits") => GoldenKind::Logits,
            Some("embedding") => GoldenKind::Embedding,
            other => panic!("{}: kind {other:?}", path.display()),
        };
        Golden {
            name: name.to_owned(),
            arch: case["arch"].as_str().unwrap_or_else(|| panic!("{}: no arch", path.display())).to_owned(),
            kind,
            tokens: tokens.iter().map(|id| id.as_u64().expect("token ids are numbers") as u32).collect(),
            n_ctx: number("n_ctx"),
            n_vocab: number("n_vocab"),
            case,
        }
    }

    /// Returns the element types the model comes in: `f32`, for some also `f16` and `bf16`. All give the same output.
    pub fn dtypes(&self) -> Vec<&str> {
        self.case["files"].as_object().map_or(vec!["f32"], |files| files.keys().map(String::as_str).collect())
    }

    /// Returns the path of the model in this element type. A file that lies compressed is unpacked under
    /// `target/goldens` the first time.
    ///
    /// # Panics
    /// If the model does not come in this type, or cannot be unpacked.
    pub fn model(&self, dtype: &str) -> PathBuf {
        let file =
            self.file(dtype).unwrap_or_else(|| panic!("{} comes in {:?}, not in {dtype}", self.name, self.dtypes()));
        let path = testdata_dir().join("models").join(&self.name).join(file);
        if path.is_file() {
            return path;
        }
        unpacked(&path.with_file_name(format!("{file}.gz")), &format!("{}-{file}", self.name))
    }

    /// Returns the name of the model's file; an encoder's case names its one file, not a table of them.
    fn file(&self, dtype: &str) -> Option<&str> {
        match self.case.get("files") {
            Some(files) => files[dtype].as_str(),
            None => self.case["file"].as_str().or(Some("model.gguf")).filter(|_| dtype == "f32"),
        }
    }

    /// Returns the expected logits, `[n_tokens, n_vocab]`.
    ///
    /// # Panics
    /// If the model gives none.
    pub fn logits(&self) -> Vec<f32> {
        self.f32s("logits.f32", self.tokens.len() * self.n_vocab)
    }

    /// Returns the expected last hidden states of an embedding model, `[n_tokens, n_embd]`.
    ///
    /// # Panics
    /// If the model gives none.
    pub fn hidden(&self) -> Vec<f32> {
        self.f32s("hidden.f32", self.tokens.len() * self.n_embd())
    }

    /// Returns the expected pooled and normalised vector of an embedding model, `[n_embd]`.
    ///
    /// # Panics
    /// If the model gives none.
    pub fn pooled(&self) -> Vec<f32> {
        self.f32s("pooled.f32", self.n_embd())
    }

    fn n_embd(&self) -> usize {
        self.case["n_embd"].as_u64().unwrap_or_else(|| panic!("{} is no embedding model", self.name)) as usize
    }

    fn f32s(&self, file: &str, len: usize) -> Vec<f32> {
        let path = testdata_dir().join("models").join(&self.name).join(file);
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(bytes.len(), 4 * len, "{}: size", path.display());
        bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect()
    }
}

/// Unpacks `packed` to `target/goldens/<crc32>-<name>`, unless that is there, and returns the path.
fn unpacked(packed: &Path, name: &str) -> PathBuf {
    static N_UNPACKED: AtomicU64 = AtomicU64::new(0);
    let fail = |error: std::io::Error| -> ! { panic!("{}: {error}", packed.display()) };
    let bytes = fs::read(packed).unwrap_or_else(|error| fail(error));
    // RFC 1952: the last eight bytes are the CRC-32 and the length of what was packed. As part of the name they keep
    // an old file from being taken for a new one.
    let (_, crc) = bytes[..bytes.len() - 4].split_last_chunk::<4>().expect("longer than its own header");
    let dir = unpacked_dir();
    let path = dir.join(format!("{:08x}-{name}", u32::from_le_bytes(*crc)));
    if path.is_file() {
        return path;
    }
    // Other tests may unpack the same model at this moment: each writes a file of its own and renames it when
    // complete.
    let n = N_UNPACKED.fetch_add(1, Ordering::Relaxed);
    // A module of WebAssembly is no process that has a number.
    let process = if cfg!(target_family = "wasm") { 0 } else { std::process::id() };
    let own = dir.join(format!("{process}-{n}.part"));
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(&dir)?;
        let mut file = fs::File::create(&own)?;
        std::io::copy(&mut GzDecoder::new(&bytes[..]), &mut file)?;
        file.flush()?;
        fs::rename(&own, &path)
    };
    write().unwrap_or_else(|error| fail(error));
    path
}

#[cfg(test)]
mod tests {
    use ruvllm_gguf::GgufFile;

    use super::*;
    use crate::{argmax, compare_logits};

    #[test]
    fn every_golden_model_opens_and_is_what_its_case_says() {
        let all = Golden::all();
        assert_eq!(all.len(), 36);
        for golden in &all {
            for dtype in golden.dtypes() {
                let file = GgufFile::open(&golden.model(dtype)).expect("sound");
                let arch = file.metadata().str("general.architecture").expect("a text");
                assert_eq!(arch, Some(golden.arch.as_str()), "{}", golden.name);
                let vocab = file.metadata().strings("tokenizer.ggml.tokens").expect("texts").expect("present");
                assert_eq!(vocab.len(), golden.n_vocab, "{}", golden.name);
                let bytes = golden.case["gguf_bytes"][golden.file(dtype).expect("a name")].as_u64();
                assert_eq!(Some(file.total_bytes()), bytes, "{} {dtype}", golden.name);
            }
            assert!(golden.tokens.iter().all(|&id| (id as usize) < golden.n_vocab));
            assert!(golden.tokens.len() <= golden.n_ctx);
        }
        let with_halves: Vec<&str> = all.iter().filter(|g| g.dtypes().len() == 3).map(|g| g.name.as_str()).collect();
        assert_eq!(with_halves, ["gemma3-a", "llama-a", "qwen2-a"]);
    }

    #[test]
    fn every_golden_model_has_its_output() {
        for golden in Golden::all() {
            match golden.kind {
                GoldenKind::Logits => {
                    let logits = golden.logits();
                    assert!(logits.iter().all(|x| x.is_finite()), "{}", golden.name);
                    let own = compare_logits(&logits, &logits, golden.n_vocab);
                    assert_eq!((own.n_rows, own.max_kl, own.max_abs_diff), (golden.tokens.len(), 0.0, 0.0));
                    let first = argmax(&logits[..golden.n_vocab]);
                    let other = logits.chunks_exact(golden.n_vocab).any(|row| argmax(row) != first);
                    assert!(other, "{}: always the same token", golden.name);
                }
                GoldenKind::Embedding => {
                    let norm: f64 = golden.pooled().iter().map(|&x| f64::from(x).powi(2)).sum();
                    assert!((norm - 1.0).abs() < 1e-5, "{}: {norm}", golden.name);
                    assert!(golden.hidden().iter().all(|x| x.is_finite()), "{}", golden.name);
                }
            }
        }
    }
}
