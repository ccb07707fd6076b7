//! `ruvllm quantize`: write a model file in smaller types.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::OutputArgs;
use ruvllm_cli_tools::check;
use ruvllm_cli_tools::error::Result;
use ruvllm_cli_tools::interrupt;
use ruvllm_cli_tools::machine::MAX_THREADS;
use ruvllm_cli_tools::output::{bytes, print_json, print_line};
use ruvllm_cli_tools::values::count;
use ruvllm_convert::{
    Budget, ImportanceMatrix, KeepRule, QuantizeOptions, QuantizeSummary, Recipe, RowQuantizer, quantize,
};
use ruvllm_engine::CancelToken;
use serde_json::{Map, Value, json};

const EXAMPLES: &str = "\
Examples:
  ruvllm quantize model-f16.gguf model-q4.gguf --type Q4_K_M
  ruvllm quantize model-f16.gguf small.gguf --type IQ4_XS --imatrix model.imatrix.gguf
  ruvllm quantize model-f16.gguf mixed.gguf --type Q4_K_M --keep 'attn_v=Q8_0' --keep '^blk.0.=Q6_K'
  ruvllm quantize model-f16.gguf fits.gguf --budget 3.5GB --imatrix model.imatrix.gguf

Types, of which each is a recipe that gives sensitive matrices more bits: IQ1_S, IQ1_M, IQ2_XXS,
IQ2_XS, IQ2_S, IQ2_M, Q2_K_S, Q2_K, IQ3_XXS, IQ3_XS, IQ3_S, IQ3_M, Q3_K_S, Q3_K_M, Q3_K_L, IQ4_XS,
IQ4_NL, Q4_0, Q4_K_S, Q4_K_M, MXFP4_MOE, Q4_1, Q5_0, Q5_K_S, Q5_K_M, Q5_1, Q6_K, Q8_0, F16, BF16.
IQ1_S to IQ2_M, Q2_K_S, IQ3_XXS and IQ3_XS need an importance matrix.";

/// Options of `ruvllm quantize`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct QuantizeArgs {
    /// The model in F16, BF16 or F32: a path, or a name as 'ruvllm list' shows it
    #[arg(value_name = "IN")]
    input: String,
    /// Where to write; an older file of this name is replaced when the new one is whole
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// Type of the matrices
    #[arg(long = "type", value_name = "T", value_parser = recipe, required_unless_present_any = ["size", "bits"])]
    recipe: Option<Recipe>,
    /// Size that the file may have, such as 3.5GB: each tensor gets the type in which bits win most
    #[arg(long = "budget", value_name = "SIZE", value_parser = size, conflicts_with_all = ["recipe", "bits"])]
    size: Option<Budget>,
    /// Bits per weight that the tensors may have, such as 4.6, instead of a size of the file
    #[arg(long = "budget-bpw", value_name = "BITS", value_parser = bits, conflicts_with = "recipe")]
    bits: Option<Budget>,
    /// Importance matrix of the model: GGUF, or the older .dat
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// Type for tensors whose names match a regular expression, instead of the recipe's; may be repeated
    #[arg(long, value_name = "PATTERN=TYPE", value_parser = rule)]
    keep: Vec<KeepRule>,
    /// Quantise a model that is quantised already: it loses twice
    #[arg(long)]
    requantize: bool,
    /// Threads [default: one a core this process may use]
    #[arg(long, value_name = "N", value_parser = count::<1, MAX_THREADS>)]
    threads: Option<usize>,
    /// Kernel pack that quantises rows without importance [default: those measured to be faster]
    #[cfg(feature = "packs")]
    #[arg(long, value_name = "NAME")]
    pack: Option<String>,
    #[command(flatten)]
    form: OutputArgs,
}

fn recipe(text: &str) -> std::result::Result<Recipe, String> {
    Recipe::parse(text).map_err(|error| error.to_string())
}

fn size(text: &str) -> std::result::Result<Budget, String> {
    Budget::parse_size(text).map_err(|error| error.to_string())
}

fn bits(text: &str) -> std::result::Result<Budget, String> {
    Budget::parse_bits(text).map_err(|error| error.to_string())
}

fn rule(text: &str) -> std::result::Result<KeepRule, String> {
    KeepRule::parse(text).map_err(|error| error.to_string())
}

impl QuantizeArgs {
    /// Quantises the model and says what came of it.
    ///
    /// # Errors
    /// A usage error for an output that is the input or the importance matrix; a failure if one of these cannot be used, or the output
    /// not be written.
    pub fn run(&self, app: &App) -> Result<()> {
        if let Some(path) = &self.imatrix {
            check::readable(path)?;
        }
        check::writable(&self.output, self.imatrix.as_deref().as_slice())?;
        let imatrix = self.imatrix.as_deref().map(ImportanceMatrix::open).transpose()?;
        let input = app.store().locate(&self.input, true)?;
        let base = match (self.recipe, self.size.or(self.bits)) {
            (_, Some(budget)) => QuantizeOptions::of_budget(budget),
            (recipe, None) => QuantizeOptions::new(recipe.unwrap_or(Recipe::Q4_K_M)),
        };
        let options = QuantizeOptions {
            imatrix,
            keep: self.keep.clone(),
            requantize: self.requantize,
            n_threads: NonZeroUsize::new(app.settings.threads(self.threads)),
            row_quantizer: self.row_quantizer(app)?,
            ..base
        };
        let start = Instant::now();
        let bar = app.ui.bytes_bar("quantising", 0).of(self.output.display().to_string());
        let cancel = CancelToken::default();
        let guard = interrupt::cancels(&cancel);
        let summary = quantize(&input, &self.output, &options, &mut |progress| {
            bar.set_length(progress.total_bytes);
            bar.set_position(progress.done_bytes);
            if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        drop(guard);
        bar.finish_and_clear();
        let summary = summary?;
        self.warn(app, &summary, options.imatrix.as_ref());
        self.tell(&summary, options.imatrix.as_ref(), start.elapsed().as_secs_f64())
    }

    /// Returns the packs that quantise rows.
    #[cfg(feature = "packs")]
    fn row_quantizer(&self, app: &App) -> Result<Option<Arc<dyn RowQuantizer>>> {
        ruvllm_cli_tools::packs::row_quantizer(app, self.pack.as_deref())
    }

    #[cfg(not(feature = "packs"))]
    fn row_quantizer(&self, _: &App) -> Result<Option<Arc<dyn RowQuantizer>>> {
        Ok(None)
    }

    /// Warns of what a person may not expect.
    fn warn(&self, app: &App, summary: &QuantizeSummary, imatrix: Option<&ImportanceMatrix>) {
        if let [(first, ty), ..] = &summary.fallbacks[..] {
            let n = summary.fallbacks.len();
            app.ui.warn(&format!("{n} tensors have rows too odd for their type, such as {first}, which is {ty} now"));
        }
        if let [first, ..] = &summary.without_importance[..] {
            let n = summary.without_importance.len();
            app.ui.warn(&format!("the importance matrix does not know {n} tensors, such as {first}"));
        }
        if let Some((first, experts)) = imatrix.and_then(|imatrix| imatrix.unused_experts().next()) {
            let n: usize =
                imatrix.map_or(0, |imatrix| imatrix.unused_experts().map(|(_, experts)| experts.len()).sum());
            let line = format!(
                "the importance matrix saw nothing of {n} experts, such as {} of {first}; their columns count the same",
                experts[0]
            );
            app.ui.warn(&line);
        }
    }

    fn tell(&self, summary: &QuantizeSummary, imatrix: Option<&ImportanceMatrix>, seconds: f64) -> Result<()> {
        let bits = summary.bits_per_weight();
        if !self.form.json {
            let (path, from, to) = (self.output.display(), bytes(summary.input_bytes), bytes(summary.output_bytes));
            let kl = summary.expected_kl.map_or_else(String::new, |kl| format!(", KL of about {kl:.4} nats"));
            let line = format!("wrote {path}: {from} -> {to}, {bits:.2} bits per weight{kl}, {seconds:.1} s");
            return print_line(&line);
        }
        let types: Map<String, Value> = summary.types.iter().map(|(ty, n)| (ty.to_string(), json!(n))).collect();
        let odd = summary.fallbacks.iter().map(|(tensor, ty)| json!({ "tensor": tensor, "type": ty.name() }));
        let unused = imatrix.into_iter().flat_map(ImportanceMatrix::unused_experts);
        let unused = unused.map(|(tensor, experts)| json!({ "tensor": tensor, "experts": experts }));
        print_json(&json!({
            "path": self.output,
            "type": self.recipe.map_or("budget", Recipe::name),
            "input_bytes": summary.input_bytes,
            "output_bytes": summary.output_bytes,
            "bits_per_weight": bits,
            "seconds": seconds,
            "expected_kl": summary.expected_kl,
            "tensors": types,
            "fallbacks": odd.collect::<Vec<_>>(),
            "without_importance": summary.without_importance,
            "unused_experts": unused.collect::<Vec<_>>(),
        }))
    }
}
