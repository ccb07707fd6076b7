//! `ruvllm convert`: make a GGUF file of a folder of the Hugging Face hub, which lies here or there.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::{OutputArgs, convert_type};
use ruvllm_cli_tools::check;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::interrupt;
use ruvllm_cli_tools::machine::MAX_THREADS;
use ruvllm_cli_tools::output::{bytes, print_json, print_line};
use ruvllm_cli_tools::values::count;
use ruvllm_convert::{ConvertOptions, ConvertSummary, ConvertType, DESCRIPTION_FILES, convert, weight_files};
use ruvllm_engine::CancelToken;
use ruvllm_hub::{FolderOrder, HubFile, Resolved, Source, fetch_folder};
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  ruvllm convert ./Qwen2.5-0.5B-Instruct model-f16.gguf
  ruvllm convert ./my-fine-tune model-q4.gguf --type Q4_K_M
  ruvllm convert hf:owner/repo model.gguf --type Q8_0        downloads the folder first
  ruvllm convert ./my-fine-tune model.gguf --force --json

The folder has config.json, model.safetensors (or an index and its files) and a tokenizer
(tokenizer.json, tokenizer.model, or the older vocabularies). Types are F32, and those of
'ruvllm quantize'.";

/// Options of `ruvllm convert`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ConvertArgs {
    /// Folder of the model, as the Hugging Face hub has it, or hf:owner/repo of one there
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Where to write
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// Type of the matrices [default: the 16 bits of the checkpoint, else F16]
    #[arg(long = "type", value_name = "T", value_parser = convert_type)]
    ty: Option<ConvertType>,
    /// Name of the model in the file [default: as its card or its folder says]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Name of the rule by which the tokenizer cuts texts into words, where it is not known by itself
    #[arg(long, value_name = "RULE")]
    pre: Option<String>,
    /// Replace OUT if it is there
    #[arg(long)]
    force: bool,
    /// Threads [default: one a core this process may use]
    #[arg(long, value_name = "N", value_parser = count::<1, MAX_THREADS>)]
    threads: Option<usize>,
    #[command(flatten)]
    form: OutputArgs,
}

impl ConvertArgs {
    /// Converts the model and says what came of it.
    ///
    /// # Errors
    /// A usage error for an output that is there or a file of the folder; a failure if the folder holds no model that is converted,
    /// or the output cannot be written.
    pub fn run(&self, app: &App) -> Result<()> {
        if self.output.exists() && !self.force {
            let line = format_args!("{} is there already; pass --force to replace it", self.output.display());
            return Err(Error::usage(line));
        }
        check::writable(&self.output, &[])?;
        self.ty.map_or(Ok(()), ConvertType::check)?;
        let folder = self.folder(app)?;
        let inputs = files_of(&folder);
        check::writable(&self.output, &inputs.iter().map(PathBuf::as_path).collect::<Vec<_>>())?;
        let options = ConvertOptions {
            ty: self.ty,
            name: self.name.clone(),
            pre: self.pre.clone(),
            n_threads: NonZeroUsize::new(app.settings.threads(self.threads)),
            ..ConvertOptions::default()
        };
        let start = Instant::now();
        let bar = app.ui.bytes_bar("converting", 0).of(self.output.display().to_string());
        let cancel = CancelToken::default();
        let guard = interrupt::cancels(&cancel);
        let summary = convert(&folder, &self.output, &options, &mut |progress| {
            bar.set_length(progress.total_bytes);
            bar.set_position(progress.done_bytes);
            if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        drop(guard);
        bar.finish_and_clear();
        self.tell(&summary?, start.elapsed().as_secs_f64())
    }

    /// Returns the folder, downloaded if it is one of the hub.
    fn folder(&self, app: &App) -> Result<PathBuf> {
        let Some(name) = self.folder.to_str().filter(|name| name.starts_with("hf:")) else {
            return Ok(self.folder.clone());
        };
        let Resolved::Pullable(pullable) = app.registry().resolve(name)? else {
            return Err(Error::usage(format_args!("{name} is no repository of the hub")));
        };
        match (&pullable.sources[..], &pullable.ty) {
            ([Source::Hub { repo, revision, file }], None) if !file.ends_with(".gguf") => {
                let from = HubFile { repo, revision, file };
                let order = FolderOrder { ty: self.ty.map(ConvertType::name), ..FolderOrder::default() };
                Ok(fetch_folder(&from, &order, &app.fetch_context(false))?)
            }
            (_, Some(_)) => Err(Error::usage(format_args!("give the type of {name} with --type"))),
            _ => Err(Error::usage(format_args!("{name} is a GGUF file; name the folder, as hf:owner/repo"))),
        }
    }

    fn tell(&self, summary: &ConvertSummary, seconds: f64) -> Result<()> {
        let ConvertSummary { architecture, ty, input_bytes, output_bytes, n_tensors, n_values, n_tokens, pre } =
            summary;
        if !self.form.json {
            let (path, from, to) = (self.output.display(), bytes(*input_bytes), bytes(*output_bytes));
            let line = format!(
                "wrote {path}: {architecture}, {from} -> {to} in {}, {n_tensors} tensors, {n_tokens} tokens, {seconds:.1} s",
                ty.name()
            );
            return print_line(&line);
        }
        print_json(&json!({
            "path": self.output,
            "architecture": architecture,
            "type": ty.name(),
            "input_bytes": input_bytes,
            "output_bytes": output_bytes,
            "tensors": n_tensors,
            "parameters": n_values,
            "tokens": n_tokens,
            "pre": pre,
            "seconds": seconds,
        }))
    }
}

/// Returns the files of a folder that are read.
fn files_of(folder: &Path) -> Vec<PathBuf> {
    // A folder without weights is told of when it is converted.
    let weights = weight_files(folder).unwrap_or_default();
    DESCRIPTION_FILES.into_iter().chain(weights.iter().map(String::as_str)).map(|name| folder.join(name)).collect()
}
