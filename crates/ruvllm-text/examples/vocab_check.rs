//! Checks tokenizers against llama.cpp's vocabulary files.
//!
//! `cargo run --release -p ruvllm-text --example vocab_check -- FOLDER`, where the folder holds
//! `ggml-vocab-NAME.gguf` with `.gguf.inp` (texts) and `.gguf.out` (ids), as llama.cpp's `models/` does. Prints a line a
//! vocabulary: how many cases are exact, how long the tokenizer took to build, and the first case that is not.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use ruvllm_gguf::GgufFile;
use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};

const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

fn main() -> ExitCode {
    let Some(folder) = std::env::args().nth(1) else {
        eprintln!("usage: vocab_check FOLDER");
        return ExitCode::from(2);
    };
    let files = match vocab_files(Path::new(&folder)) {
        Ok(files) if !files.is_empty() => files,
        Ok(_) => {
            eprintln!("no ggml-vocab-*.gguf with .inp and .out in {folder}");
            return ExitCode::FAILURE;
        }
        Err(error) => {
            eprintln!("cannot read {folder}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (mut n_exact, mut n_total) = (0, 0);
    for file in files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().replace("ggml-vocab-", "");
        match check(&file) {
            Ok(result) => {
                println!(
                    "{name:<16} {:>3}/{:<3} built in {:>5.1} ms{}",
                    result.exact, result.total, result.build_ms, result.first
                );
                n_exact += result.exact;
                n_total += result.total;
            }
            Err(error) => println!("{name:<16} not read: {error}"),
        }
    }
    println!("{:<16} {n_exact:>3}/{n_total}", "together");
    if n_exact == n_total { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the vocabularies that have expected ids, in order.
fn vocab_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ext| ext == "gguf") && path.with_extension("gguf.out").exists() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

struct Checked {
    exact: usize,
    total: usize,
    build_ms: f64,
    first: String,
}

fn check(path: &Path) -> Result<Checked, Box<dyn Error>> {
    let file = GgufFile::open(path)?;
    let start = Instant::now();
    let tokenizer = Tokenizer::from_metadata(file.metadata())?;
    let build_ms = start.elapsed().as_secs_f64() * 1e3;
    let texts = fs::read_to_string(path.with_extension("gguf.inp"))?;
    let ids = fs::read_to_string(path.with_extension("gguf.out"))?;
    // Every text, the last one too, is followed by the separator; every line of ids by a line end.
    let texts: Vec<&str> = texts.split_terminator(SEPARATOR).collect();
    let mut lines = ids.split('\n');
    let mut checked = Checked { exact: 0, total: texts.len(), build_ms, first: String::new() };
    for text in texts {
        let line = lines.next().ok_or("fewer lines of ids than texts")?;
        let expected = line.split_whitespace().map(str::parse).collect::<Result<Vec<u32>, _>>()?;
        let actual = tokenizer.encode(text, EncodeOptions::default())?;
        if actual == expected {
            checked.exact += 1;
        } else if checked.first.is_empty() {
            checked.first = format!("; {text:?}: expected {expected:?}, got {actual:?}");
        }
    }
    Ok(checked)
}
