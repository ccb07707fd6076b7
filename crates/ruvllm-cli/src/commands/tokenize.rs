//! `ruvllm tokenize`: text to token ids.

use std::path::PathBuf;

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::{ModelArgs, OutputArgs};
use ruvllm_cli_tools::error::Result;
use ruvllm_cli_tools::output::{print, print_json, table};
use ruvllm_cli_tools::text_files::read_lines;
use ruvllm_engine::tokenizer::{EncodeOptions, Tokenizer};
use ruvllm_gguf::GgufFile;
use serde_json::json;

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

impl TokenizeArgs {
    /// Prints the tokens of the text, or of every line of the file.
    ///
    /// # Errors
    /// A failure if the model or the file cannot be read.
    pub fn run(&self, app: &App) -> Result<()> {
        let texts = self.file.as_deref().map(read_lines).transpose()?;
        let path = app.store().locate(&self.model.model, false)?;
        let tokenizer = Tokenizer::from_metadata(GgufFile::open(&path)?.metadata())?;
        if let Some(texts) = texts {
            for text in texts {
                print_json(&json!({ "tokens": self.encode(&tokenizer, &text)? }))?;
            }
            return Ok(());
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
}
