//! `ruvllm perplexity`: how well a model predicts a text.

use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::{LoadArgs, MAX_CTX, ModelArgs, OutputArgs};
use ruvllm_cli_tools::backend::LocalBackendArgs;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::output::{print_json, print_line};
use ruvllm_cli_tools::text_files::read_text;
use ruvllm_cli_tools::values::count;
use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_engine::{LoadOptions, Perplexity, PerplexityOptions};
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  ruvllm perplexity --file prose.txt --ctx 512
  ruvllm perplexity --file prose.txt --ctx 4096 --kv tiered --kl-against f16

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
    /// Also tell how far the predictions are from those with a cache in this format (twice the time)
    #[arg(long, value_name = "FORMAT")]
    kl_against: Option<Reference>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    backend: LocalBackendArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// What a cache can be compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Reference {
    /// Half precision.
    F16,
}

impl PerplexityArgs {
    /// Measures and prints.
    ///
    /// # Errors
    /// A failure if a file cannot be read or the text is shorter than two windows.
    pub fn run(&self, app: &App) -> Result<()> {
        let text = read_text(&self.file)?;
        if text.trim().is_empty() {
            return Err(Error::failure(format_args!("{} is empty; there is nothing to predict", self.file.display())));
        }
        let backend = self.backend.chosen(&self.load)?;
        let path = app.store().locate(&self.model.model, false)?;
        let against_f16 = self.kl_against.is_some();
        let load = self.load.options(&app.settings, Some(self.n_ctx));
        let mut engine =
            app.load_on(backend, &path, &LoadOptions { n_seq_max: 1 + usize::from(against_f16), ..load })?;
        app.warn_context(engine.info());
        let options = EncodeOptions { add_special: true, parse_special: false };
        let tokens = engine.tokenizer()?.encode(&text, options)?;
        let bar = app.ui.steps_bar("perplexity", 0);
        let options = PerplexityOptions { n_ctx: self.n_ctx, max_chunks: self.chunks, against_f16 };
        let measured = engine.perplexity(&tokens, &options, &mut |progress| {
            bar.set_length(progress.n_chunks as u64);
            bar.set_position(progress.chunk as u64);
            bar.set_message(format!("ppl {:.4}", progress.ppl));
            ControlFlow::Continue(())
        });
        bar.finish_and_clear();
        let measured = measured?;
        if self.output.json {
            return print_json(&json(&measured));
        }
        let (ppl, nll, n_tokens, n_ctx) = (measured.ppl, measured.nll, measured.n_tokens, self.n_ctx);
        print_line(&format!("perplexity {ppl:.4} (nll {nll:.5}, {n_tokens} tokens scored, windows of {n_ctx})"))?;
        let Some(price) = measured.against_f16 else { return Ok(()) };
        print_line(&format!(
            "against f16: perplexity {:+.2} % ({:.4}), mean KL {:.5} nats, {:.1} % the same token on top, {:.2}x smaller \
             ({:.0} instead of {:.0} bytes a token)",
            (ppl / price.ppl_f16 - 1.0) * 100.0,
            price.ppl_f16,
            price.mean_kl,
            price.same_top1 * 100.0,
            price.f16_bytes_per_token / measured.kv_bytes_per_token,
            measured.kv_bytes_per_token,
            price.f16_bytes_per_token,
        ))
    }
}

/// Returns the object `--json` answers with.
fn json(measured: &Perplexity) -> Value {
    let mut object = json!({
        "ppl": measured.ppl,
        "n_tokens": measured.n_tokens,
        "nll": measured.nll,
        "kv_bytes_per_token": measured.kv_bytes_per_token,
    });
    if let Some(price) = measured.against_f16 {
        object["against_f16"] = json!({
            "ppl": price.ppl_f16,
            "mean_kl": price.mean_kl,
            "same_top1": price.same_top1,
            "kv_bytes_per_token": price.f16_bytes_per_token,
        });
    }
    object
}
