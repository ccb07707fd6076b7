//! `ruvllm logits`: the logits of given token ids, as raw floats.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::{ContextArgs, LoadArgs, ModelArgs, OutputArgs};
use ruvllm_cli_tools::backend::LocalBackendArgs;
use ruvllm_cli_tools::error::{Error, Result, io_reason};
use ruvllm_cli_tools::out_file::OutFile;
use ruvllm_cli_tools::output::{print_json, print_line};
use ruvllm_cli_tools::text_files::read_text;
use ruvllm_cli_tools::values::count;
use ruvllm_engine::{Engine, EngineError, ErrorKind};
use ruvllm_gguf::{GgufFile, Value};
use serde::Deserialize;
use serde_json::json;

const EXAMPLES: &str = "\
Example:
  echo '[1, 2, 3]' > ids.json && ruvllm logits --tokens ids.json --out logits.f32

The output is little-endian f32, [n_tokens, n_vocab]; for an encoder (bert) the pooled, normalised
embedding. Ids are taken as they are: nothing is added.";

/// Options of `ruvllm logits`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct LogitsArgs {
    /// A JSON file: an array of token ids, or {"tokens": [...]}
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    /// Where to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Tokens computed at once; the result does not depend on it
    #[arg(long, value_name = "N", default_value = "512", value_parser = count::<1, { ruvllm_cli_tools::args::MAX_CTX }>)]
    chunk: usize,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    backend: LocalBackendArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// The two forms of a token file.
#[derive(Deserialize)]
#[serde(untagged)]
enum TokenFile {
    Ids(Vec<u32>),
    Object { tokens: Vec<u32> },
}

impl LogitsArgs {
    /// Writes the file.
    ///
    /// # Errors
    /// A failure if a file cannot be read or written, or the tokens do not fit the model.
    pub fn run(&self, app: &App) -> Result<()> {
        let tokens = read_tokens(&self.tokens)?;
        let backend = self.backend.chosen(&self.load)?;
        let path = app.store().locate(&self.model.model, false)?;
        check_ids(&tokens, &path)?;
        let mut out = OutFile::create(&self.out, &[&path, &self.tokens])?;
        let n_ctx = self.context.n_ctx.unwrap_or(tokens.len());
        let mut engine = app.load_on(backend, &path, &self.load.options(&app.settings, Some(n_ctx)))?;
        app.warn_context(engine.info());
        let start = Instant::now();
        let n_values = self.write(&mut engine, &tokens, &mut out)?;
        out.finish()?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        let rows = if engine.info().is_encoder { 1 } else { tokens.len() };
        if self.output.json {
            let shape = [rows, n_values / rows];
            return print_json(&json!({ "out": self.out, "shape": shape, "n_tokens": tokens.len(), "ms": ms }));
        }
        print_line(&format!(
            "{}: [{rows}, {}] f32, {} tokens in {ms:.0} ms",
            self.out.display(),
            n_values / rows,
            tokens.len()
        ))
    }

    /// Computes and writes; returns how many values were written.
    fn write(&self, engine: &mut Engine, tokens: &[u32], out: &mut dyn Write) -> Result<usize> {
        let mut n_values = 0;
        let mut sink = |values: &[f32]| -> Result<(), EngineError> {
            n_values += values.len();
            write_floats(out, values).map_err(|error| {
                let line = format!("cannot write {}: {}", self.out.display(), io_reason(&error));
                EngineError::new(ErrorKind::Model, line)
            })
        };
        if engine.info().is_encoder {
            let embedding = engine.embed(tokens)?;
            sink(&embedding)?;
        } else {
            engine.logits(tokens, self.chunk, &mut sink)?;
        }
        Ok(n_values)
    }
}

/// Checks that the ids are of the model's vocabulary, before it is loaded.
fn check_ids(tokens: &[u32], model: &Path) -> Result<()> {
    let file = GgufFile::open(model)?;
    let n_vocab = match file.metadata().get("tokenizer.ggml.tokens") {
        Some(Value::Array(vocabulary)) => vocabulary.len(),
        // The model's shapes tell when it is loaded.
        _ => return Ok(()),
    };
    // A head may have more rows than the vocabulary has tokens.
    let rows = file.tensors().find(|tensor| tensor.name == "token_embd.weight");
    let n_rows = rows.and_then(|tensor| tensor.shape.last().copied()).unwrap_or(n_vocab);
    match tokens.iter().find(|&&token| token as usize >= n_rows.max(n_vocab)) {
        None => Ok(()),
        Some(token) => Err(Error::failure(format_args!(
            "token {token} is not in the vocabulary of {n_vocab} tokens; use ids of 'ruvllm tokenize' with this model"
        ))),
    }
}

fn write_floats(out: &mut dyn Write, values: &[f32]) -> std::io::Result<()> {
    for value in values {
        out.write_all(&value.to_le_bytes())?;
    }
    Ok(())
}

fn read_tokens(path: &Path) -> Result<Vec<u32>> {
    let text = read_text(path)?;
    let tokens = match serde_json::from_str(&text) {
        Ok(TokenFile::Ids(tokens) | TokenFile::Object { tokens }) => tokens,
        Err(_) => {
            return Err(Error::failure(format_args!(
                "{} is not a JSON array of token ids; write [1, 2, 3] or {{\"tokens\": [1, 2, 3]}}",
                path.display()
            )));
        }
    };
    if tokens.is_empty() {
        return Err(Error::failure(format_args!("{} holds no token ids; give at least one", path.display())));
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_files_have_two_forms() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let read = |text: &str| {
            let path = dir.path().join("ids.json");
            std::fs::write(&path, text).expect("a temporary folder is writable");
            read_tokens(&path)
        };
        assert_eq!(read("[1, 2]").expect("an array"), [1, 2]);
        assert_eq!(read("{\"tokens\": [3]}").expect("an object"), [3]);
        for wrong in ["", "[]", "[-1]", "[1.5]", "{}", "hello"] {
            assert_eq!(read(wrong).expect_err(wrong).exit_code(), 1);
        }
    }

    #[test]
    fn floats_are_little_endian() {
        let mut bytes = Vec::new();
        write_floats(&mut bytes, &[1.0, -2.0]).expect("memory does not fail");
        assert_eq!(bytes, [0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0]);
    }
}
