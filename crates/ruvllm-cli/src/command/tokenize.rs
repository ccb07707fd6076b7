//! `ruvllm tokenize`: text to token ids.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm_engine::tokenizer::{EncodeOptions, Tokenizer};
use ruvllm_gguf::GgufFile;
use serde::Deserialize;
use serde_json::json;

use super::App;
use crate::args::{ModelArgs, OutputArgs};
use crate::error::{Error, Result};
use crate::output::{print, print_json, table};

const EXAMPLES: &str = "\
Examples:
  ruvllm tokenize --text \"Hello, world\" --json
  ruvllm tokenize --text \"<|im_start|>user\" --parse-special
  ruvllm tokenize --file texts.jsonl --json        one {\"text\": ...} a line, one answer a line";

/// Options of `ruvllm tokenize`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct TokenizeArgs {
    /// The text
    #[arg(long, value_name = "TEXT", required_unless_present = "file", conflicts_with = "file")]
    text: Option<String>,
    /// A file of JSON lines {"text": ...}; each is answered with a line
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Add the tokens the model wants at the beginning and the end
    #[arg(long)]
    add_special: bool,
    /// Read <|im_start|> and its like as one token
    #[arg(long)]
    parse_special: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A line of the file.
#[derive(Deserialize)]
struct Line {
    text: String,
}

impl TokenizeArgs {
    /// Prints the tokens of the text, or of every line of the file.
    ///
    /// # Errors
    /// A failure if the model or the file cannot be read.
    pub fn run(&self, app: &App) -> Result<()> {
        let path = app.store().locate(&self.model.model, false)?;
        let tokenizer = Tokenizer::from_metadata(GgufFile::open(&path)?.metadata())?;
        if let Some(file) = &self.file {
            return self.answer_lines(&tokenizer, file);
        }
        let tokens = self.encode(&tokenizer, self.text.as_deref().unwrap_or_default())?;
        if self.output.json {
            return print_json(&json!({ "tokens": tokens }));
        }
        let rows = tokens.iter().map(|id| {
            let bytes = tokenizer.token_bytes(*id).unwrap_or_default();
            vec![id.to_string(), format!("{:?}", String::from_utf8_lossy(&bytes))]
        });
        print(&table(&rows.collect::<Vec<_>>(), &[0]))
    }

    fn encode(&self, tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
        let options = EncodeOptions { add_special: self.add_special, parse_special: self.parse_special };
        Ok(tokenizer.encode(text, options)?)
    }

    fn answer_lines(&self, tokenizer: &Tokenizer, path: &Path) -> Result<()> {
        let file = File::open(path).map_err(|error| Error::io("read", path, &error))?;
        for (idx, line) in BufReader::new(file).lines().enumerate() {
            let line = line.map_err(|error| Error::io("read", path, &error))?;
            if line.trim().is_empty() {
                continue;
            }
            let Line { text } = serde_json::from_str(&line).map_err(|error| {
                Error::failure(format_args!(
                    "{} line {}: {error}; each line must be {{\"text\": ...}}",
                    path.display(),
                    idx + 1
                ))
            })?;
            print_json(&json!({ "tokens": self.encode(tokenizer, &text)? }))?;
        }
        Ok(())
    }
}
