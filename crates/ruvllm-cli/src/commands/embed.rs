//! `ruvllm embed`: texts to vectors.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::{LoadArgs, OutputArgs};
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::output::{print_json, print_line};
use ruvllm_cli_tools::text_files::read_lines;
use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_engine::{Engine, Pooling, Readout};
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  ruvllm embed --text \"A cat sat on the mat.\" --json
  ruvllm embed --file texts.jsonl --json           one {\"text\": ...} a line, one answer a line
  ruvllm embed --model qwen2.5-coder:0.5b --pooling last --text \"fn main() {}\"

Vectors have unit length: their dot product is their cosine.";

/// Options of `ruvllm embed`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct EmbedArgs {
    /// The text
    #[arg(long, value_name = "TEXT", required_unless_present = "file", conflicts_with = "file")]
    text: Option<String>,
    /// A file of JSON lines {"text": ...}; each is answered with a line
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// How the tokens' vectors become one [default: as the model's file says, or their mean]
    #[arg(long, value_name = "WAY")]
    pooling: Option<PoolingWay>,
    /// Name from 'ruvllm list', hf:..., pypi:..., or path; models that write text embed as well
    #[arg(short, long, value_name = "NAME|PATH", default_value = "minilm:l6", help_heading = "Model")]
    model: String,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// The values of `--pooling`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum PoolingWay {
    Mean,
    Cls,
    Last,
}

impl EmbedArgs {
    /// Prints the vector of the text, or of every line of the file.
    ///
    /// # Errors
    /// A failure if the model or the file cannot be read, or a text does not fit the model.
    pub fn run(&self, app: &App) -> Result<()> {
        let texts = match &self.file {
            Some(file) => read_lines(file)?,
            None => self.text.iter().cloned().collect(),
        };
        if texts.is_empty() {
            return Err(Error::failure("there are no texts to embed; write lines {\"text\": ...}"));
        }
        let path = app.store().locate(&self.model, true)?;
        let mut engine = app.load(&path, &self.load.options(&app.settings, None))?;
        let bar = app.ui.steps_bar("embedding", texts.len() as u64);
        for text in &texts {
            let line = self.embed(&mut engine, text)?;
            bar.suspend(|| self.print(&line))?;
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn embed(&self, engine: &mut Engine, text: &str) -> Result<Embedded> {
        let tokens = engine.tokenizer()?.encode(text, EncodeOptions::EMBEDDED)?;
        let pooling = self.pooling.map(|way| match way {
            PoolingWay::Mean => Pooling::Mean,
            PoolingWay::Cls => Pooling::Cls,
            PoolingWay::Last => Pooling::Last,
        });
        let vector = engine.read_out(&tokens, Readout::Embedding(pooling))?;
        Ok(Embedded { vector, n_tokens: tokens.len() })
    }

    fn print(&self, Embedded { vector, n_tokens }: &Embedded) -> Result<()> {
        if self.output.json {
            return print_json(&json!({ "embedding": vector, "n_tokens": n_tokens }));
        }
        print_line(&vector.iter().map(|x| Value::from(*x).to_string()).collect::<Vec<_>>().join(" "))
    }
}

/// A text's vector.
struct Embedded {
    vector: Vec<f32>,
    n_tokens: usize,
}
