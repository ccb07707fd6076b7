//! `ruvllm perplexity`: how well a model predicts a text.

use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;
use ruvllm_engine::tokenizer::EncodeOptions;
use serde_json::json;

use super::{App, read_text};
use crate::args::{LoadArgs, MAX_CTX, ModelArgs, OutputArgs, count};
use crate::error::Result;
use crate::output::{print_json, print_line};

const EXAMPLES: &str = "\
Example:
  ruvllm perplexity --file prose.txt --ctx 512

Computed as llama.cpp does: the text is cut into windows of --ctx tokens and the second half of
each is scored.";

/// Options of `ruvllm perplexity`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct PerplexityArgs {
    /// The text
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    /// Length of a window in tokens
    #[arg(long = "ctx", value_name = "N", default_value = "512", value_parser = count::<4, MAX_CTX>, help_heading = "Model")]
    n_ctx: usize,
    /// Stop after K windows [default: all]
    #[arg(long, value_name = "K", value_parser = count::<1, { usize::MAX }>)]
    chunks: Option<usize>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl PerplexityArgs {
    /// Measures and prints.
    ///
    /// # Errors
    /// A failure if a file cannot be read or the text is shorter than two windows.
    pub fn run(&self, app: &App) -> Result<()> {
        let text = read_text(&self.file)?;
        let path = app.store().locate(&self.model.model, false)?;
        let mut engine = app.load(&path, &self.load.options(&app.settings, Some(self.n_ctx)))?;
        let options = EncodeOptions { add_special: true, parse_special: false };
        let tokens = engine.tokenizer()?.encode(&text, options)?;
        let bar = app.ui.steps_bar("perplexity", 0);
        let measured = engine.perplexity(&tokens, self.n_ctx, self.chunks, &mut |progress| {
            bar.set_length(progress.n_chunks as u64);
            bar.set_position(progress.chunk as u64);
            bar.set_message(format!("ppl {:.4}", progress.ppl));
            ControlFlow::Continue(())
        });
        bar.finish_and_clear();
        let measured = measured?;
        if self.output.json {
            return print_json(&json!({ "ppl": measured.ppl, "n_tokens": measured.n_tokens, "nll": measured.nll }));
        }
        let (ppl, nll, n_tokens, n_ctx) = (measured.ppl, measured.nll, measured.n_tokens, self.n_ctx);
        print_line(&format!("perplexity {ppl:.4} (nll {nll:.5}, {n_tokens} tokens scored, windows of {n_ctx})"))
    }
}
