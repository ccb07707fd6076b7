//! `ruvllm imatrix`: an importance matrix for quantising, from a text that a model reads.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::{MAX_CTX, ModelArgs, OutputArgs};
use ruvllm_cli_tools::calibration::EngineCalibration;
use ruvllm_cli_tools::check;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::interrupt;
use ruvllm_cli_tools::machine::MAX_THREADS;
use ruvllm_cli_tools::output::{print_json, print_line};
use ruvllm_cli_tools::text_files::read_text;
use ruvllm_cli_tools::values::count;
use ruvllm_convert::{
    ConvertError, ImatrixProgress, ImatrixRun, ImportanceSums, compute_imatrix, measure_sensitivities,
};
use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_engine::{CancelToken, Engine, LoadOptions};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

const EXAMPLES: &str = "\
Examples:
  ruvllm imatrix --model model-f16.gguf --file text.txt --out model.imatrix.gguf
  ruvllm imatrix --model model-f16.gguf --file text.txt --out m.gguf --sensitivity 512 --process-output
  ruvllm imatrix --out both.gguf --merge prose.imatrix.gguf --merge code.imatrix.gguf

The file has the layout of llama.cpp's. A run that was broken off leaves OUT.resume; --resume goes
on with it, to the same bits.";

/// Options of `ruvllm imatrix`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ImatrixArgs {
    /// The text to read
    #[arg(long, value_name = "TEXT", required_unless_present = "merge")]
    file: Option<PathBuf>,
    /// Where to write; appears when it is whole
    #[arg(long, value_name = "F.gguf")]
    out: PathBuf,
    /// Stop after N windows [default: all of the text]
    #[arg(long, value_name = "N", value_parser = count::<1, { usize::MAX }>)]
    chunks: Option<usize>,
    /// Length of a window in tokens
    #[arg(long = "ctx", value_name = "N", default_value = "512", value_parser = count::<8, MAX_CTX>, help_heading = "Model")]
    n_ctx: usize,
    /// Go on with a run that was broken off
    #[arg(long)]
    resume: bool,
    /// Add the sums of another importance matrix of the model; may be repeated
    #[arg(long, value_name = "F.gguf")]
    merge: Vec<PathBuf>,
    /// Also sum the inputs of the output head
    #[arg(long)]
    process_output: bool,
    /// Also measure on N tokens how sensitive predictions are to errors of each tensor, for quantize --budget
    ///
    /// Every tensor is brought to fewer bits by itself, and N tokens of the text are read again.
    #[arg(long, value_name = "N", value_parser = count::<32, MAX_CTX>)]
    sensitivity: Option<usize>,
    /// Threads [default: one a core this process may use]
    #[arg(long, value_name = "N", value_parser = count::<1, MAX_THREADS>, help_heading = "Model")]
    threads: Option<usize>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    form: OutputArgs,
}

/// Tokens of the windows that sensitivities are measured on.
const PROBE_TOKENS: usize = 256;

/// Time between two checkpoints.
const CHECKPOINT_AFTER: Duration = Duration::from_secs(20);

impl ImatrixArgs {
    /// Computes, merges and writes.
    ///
    /// # Errors
    /// A failure if a file cannot be read or written, or is of another model; the engine's.
    pub fn run(&self, app: &App) -> Result<()> {
        let read = self.merge.iter().chain(&self.file);
        read.clone().try_for_each(|path| check::readable(path))?;
        let model = self.file.as_ref().map(|_| app.store().locate(&self.model.model, false)).transpose()?;
        let inputs: Vec<&Path> = read.chain(&model).map(PathBuf::as_path).collect();
        check::writable(&self.out, &inputs)?;
        // It is removed in the end.
        check::writable(&self.checkpoint(), &inputs)?;
        let merged = self.merge.iter().map(|path| ImportanceSums::open(path)).collect::<Result<Vec<_>, _>>()?;
        let start = Instant::now();
        let mut sums = match (&self.file, &model) {
            (Some(file), Some(model)) => self.compute(app, file, model)?,
            _ => ImportanceSums::default(),
        };
        for (path, other) in self.merge.iter().zip(&merged) {
            let named = |error: ConvertError| Error::failure(format_args!("{}: {error}", path.display()));
            sums.merge(other).map_err(named)?;
        }
        sums.write(&self.out)?;
        drop(std::fs::remove_file(self.checkpoint()));
        self.warn(app, &sums);
        self.tell(&sums, start.elapsed().as_secs_f64())
    }

    /// Returns the file of a run that is broken off.
    fn checkpoint(&self) -> PathBuf {
        let mut name = self.out.clone().into_os_string();
        name.push(".resume");
        name.into()
    }

    fn compute(&self, app: &App, file: &Path, path: &Path) -> Result<ImportanceSums> {
        let text = read_text(file)?;
        let (engine, windows) = self.load(app, path, &text)?;
        let settings = [usize::from(self.process_output), self.sensitivity.unwrap_or(0)];
        let run = ImatrixRun {
            source: source(&engine.identity()?, &windows, settings),
            windows: &windows,
            dataset: file.display().to_string(),
            checkpoint: self.checkpoint(),
            resume: self.resume,
            checkpoint_after: CHECKPOINT_AFTER,
        };
        let mut model = EngineCalibration::new(engine);
        let collector = model.collector(self.process_output)?;
        let cancel = CancelToken::default();
        let guard = interrupt::cancels(&cancel);
        let flow = || if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let bar = app.ui.steps_bar("reading", windows.len() as u64).of(file.display().to_string());
        let sums = compute_imatrix(&mut model, collector, &run, &mut |ImatrixProgress { n_done, .. }| {
            bar.set_position(n_done as u64);
            flow()
        });
        bar.finish_and_clear();
        let mut sums = sums?;
        if let Some(n_tokens) = self.sensitivity {
            sums.source = Some(run.source);
            sums.write(&run.checkpoint)?;
            model.set_probes(probes(&windows, n_tokens))?;
            let bar = app.ui.steps_bar("measuring", 0).of(path.display().to_string());
            let mut saved = Instant::now();
            let n_threads = app.settings.threads(self.threads);
            let measured = measure_sensitivities(&mut model, path, &mut sums, n_threads, &mut |progress, sums| {
                bar.set_length(progress.n_all as u64);
                bar.set_position(progress.n_done as u64);
                let is_due = saved.elapsed() >= CHECKPOINT_AFTER || flow().is_break();
                if is_due && sums.write(&run.checkpoint).is_ok() {
                    saved = Instant::now();
                }
                flow()
            });
            bar.finish_and_clear();
            measured?;
            sums.source = None;
        }
        drop(guard);
        Ok(sums)
    }

    /// Loads the model, and cuts the text into windows.
    fn load(&self, app: &App, path: &Path, text: &str) -> Result<(Engine, Vec<Vec<u32>>)> {
        let options = LoadOptions {
            isa: app.settings.isa,
            n_threads: app.settings.threads(self.threads),
            n_ctx: Some(self.n_ctx),
            prefix_cache: false,
            ..LoadOptions::default()
        };
        let engine = app.load(path, &options)?;
        app.warn_context(engine.info());
        let options = EncodeOptions { add_special: true, parse_special: false };
        let tokens = engine.tokenizer()?.encode(text, options)?;
        let windows = engine.windows(&tokens, self.n_ctx, self.chunks)?;
        Ok((engine, windows))
    }

    /// Warns of experts that no token went to.
    fn warn(&self, app: &App, sums: &ImportanceSums) {
        let mut unused = sums.unused_experts();
        if let Some((name, expert)) = unused.next() {
            let n = 1 + unused.count();
            app.ui.warn(&format!(
                "no token of the text went to {n} experts, such as {expert} of {name}; quantising takes all of their columns as \
                 equal, and more text may reach them"
            ));
        }
    }

    fn tell(&self, sums: &ImportanceSums, seconds: f64) -> Result<()> {
        let (n, n_chunks, size) = (sums.n_tensors(), sums.n_chunks, sums.chunk_size);
        if !self.form.json {
            let path = self.out.display();
            let measured = match sums.n_sensitivities() {
                0 => String::new(),
                n => format!(", sensitivities of {n}"),
            };
            return print_line(&format!(
                "wrote {path}: {n} tensors, {n_chunks} windows of {size} tokens{measured}, {seconds:.1} s"
            ));
        }
        let unused = sums.unused_experts().map(|(tensor, expert)| json!({ "tensor": tensor, "expert": expert }));
        print_json(&json!({
            "path": self.out,
            "datasets": sums.datasets,
            "tensors": n,
            "sensitivities": sums.n_sensitivities(),
            "chunks": n_chunks,
            "chunk_size": size,
            "unused_experts": unused.collect::<Vec<Value>>(),
            "seconds": seconds,
        }))
    }
}

/// Returns the starts of windows at equal distances, of `n_tokens` together.
fn probes(windows: &[Vec<u32>], n_tokens: usize) -> Vec<Vec<u32>> {
    let length = windows.first().map_or(1, |window| window.len().min(PROBE_TOKENS).min(n_tokens));
    let n = n_tokens.div_ceil(length).min(windows.len());
    (0..n).map(|i| windows[i * windows.len() / n][..length].to_vec()).collect()
}

/// Returns a hash of what the sums are computed of. `model` tells it from others, also from those of the same shapes.
fn source(model: &[u8; 32], windows: &[Vec<u32>], settings: [usize; 2]) -> u64 {
    let mut hash = Sha256::new();
    hash.update(model);
    settings.iter().for_each(|&setting| hash.update((setting as u64).to_le_bytes()));
    windows.iter().flatten().for_each(|token| hash.update(token.to_le_bytes()));
    hash.finalize().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_spread_over_the_text() {
        let windows: Vec<Vec<u32>> = (0..10).map(|i| (i * 512..(i + 1) * 512).collect()).collect();
        let starts =
            |n_tokens| probes(&windows, n_tokens).iter().map(|probe| (probe[0], probe.len())).collect::<Vec<_>>();
        assert_eq!(starts(512), [(0, 256), (2560, 256)]);
        assert_eq!(starts(100), [(0, 100)]);
        assert_eq!(starts(1 << 20).len(), 10);
    }
}
