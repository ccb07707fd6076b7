//! `ruvllm compare`: how far models are from the first, and what they cost.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::{MAX_CTX, OutputArgs};
use ruvllm_cli_tools::chart::{self, Axes, Line};
use ruvllm_cli_tools::check;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::machine::MAX_THREADS;
use ruvllm_cli_tools::output::{bytes, print, print_json, table};
use ruvllm_cli_tools::rates::{Test, measure, median};
use ruvllm_cli_tools::text_files::read_text;
use ruvllm_cli_tools::values::count;
use ruvllm_cli_tools::work::WorkProgress;
use ruvllm_convert::check_space;
use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_engine::{Engine, LoadOptions, LogitRows, PackedPrediction, log_probability};
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  ruvllm compare model-f16.gguf model-q4.gguf model-iq4.gguf --file text.txt
  ruvllm compare model-f16.gguf model-q4.gguf --file text.txt --chunks 20 --svg models.svg --json

The text is cut into windows as for perplexity, and the second half of each is scored. KL is the
divergence of a model's predictions from the first one's, in nats: 0 is the same. Models are loaded
one after the other; the first one's predictions lie in the temporary folder meanwhile, 2 bytes for
each token of the vocabulary and scored token.";

/// Tokens of the speed tests: read, and written.
const READ: Test = Test::Prefill { n: 256 };
const WRITE: Test = Test::Decode { n: 32, n_batch: 1, depth: 0 };

/// Options of `ruvllm compare`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CompareArgs {
    /// Models of the same vocabulary; the others are compared with the first
    #[arg(value_name = "MODEL", num_args = 2.., required = true)]
    models: Vec<String>,
    /// The text
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    /// Length of a window in tokens
    #[arg(long = "ctx", value_name = "N", default_value = "512", value_parser = count::<4, MAX_CTX>)]
    n_ctx: usize,
    /// Stop after K windows [default: all]
    #[arg(long, value_name = "K", value_parser = count::<1, { usize::MAX }>)]
    chunks: Option<usize>,
    /// Rounds of the speed tests; 0 leaves speed out
    #[arg(long, value_name = "R", default_value = "3", value_parser = count::<0, 1000>)]
    reps: usize,
    /// Draw size and divergence into this file
    #[arg(long, value_name = "F.svg")]
    svg: Option<PathBuf>,
    /// Threads [default: one a core this process may use]
    #[arg(long, value_name = "N", value_parser = count::<1, MAX_THREADS>)]
    threads: Option<usize>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Figures of one model.
struct Figures {
    name: String,
    file_bytes: u64,
    bits_per_weight: f64,
    ppl: f64,
    n_scored: usize,
    /// Divergence from the first model, of the others.
    against: Option<Against>,
    /// Tokens a second that it reads and writes.
    rates: Option<[f64; 2]>,
}

/// Divergence of a model's predictions from the first one's.
struct Against {
    mean_kl: f64,
    /// 50, 90 and 99 %, and the largest.
    quantiles: [f64; 4],
    same_top1: f64,
}

/// Predictions of the first model, for each scored token.
struct Reference {
    file: File,
    windows: Vec<Vec<u32>>,
    n_vocab: usize,
}

impl CompareArgs {
    /// Measures and prints.
    ///
    /// # Errors
    /// A failure if a model or the text cannot be read, or models differ in their vocabulary; the disk is too full.
    pub fn run(&self, app: &App) -> Result<()> {
        let text = read_text(&self.file)?;
        let paths: Vec<PathBuf> =
            self.models.iter().map(|model| Ok(app.store().locate(model, false)?)).collect::<Result<_>>()?;
        if let Some(svg) = &self.svg {
            let inputs: Vec<&Path> = paths.iter().map(PathBuf::as_path).chain([&*self.file]).collect();
            check::writable(svg, &inputs)?;
        }
        let bar = app.ui.steps_bar("comparing", 0).of(self.file.display().to_string());
        let (mut reference, mut all) = (None, Vec::new());
        for (name, path) in self.models.iter().zip(&paths) {
            let mut engine = self.load(app, path)?;
            let windows = self.windows(&engine, &text)?;
            bar.set_length((windows.len() * paths.len()) as u64);
            let figures = match &mut reference {
                None => {
                    let (figures, made) = self.first(&mut engine, windows, &bar)?;
                    reference = Some(made);
                    figures
                }
                Some(reference) => other(&mut engine, &windows, reference, &bar)?,
            };
            let file = engine.runner().vocabulary().file();
            let n_values = engine.info().n_params.max(1);
            let figures = Figures {
                name: name.clone(),
                file_bytes: file.total_bytes(),
                bits_per_weight: file.tensor_bytes() as f64 * 8.0 / n_values as f64,
                ..figures
            };
            all.push(Figures { rates: self.rates(&mut engine)?, ..figures });
        }
        bar.finish_and_clear();
        if let Some(svg) = &self.svg {
            draw(svg, &all)?;
        }
        match self.output.json {
            true => print_json(&self.json(&all)),
            false => print_table(&all),
        }
    }

    fn load(&self, app: &App, path: &Path) -> Result<Engine> {
        let options = LoadOptions {
            isa: app.settings.isa,
            n_threads: app.settings.threads(self.threads),
            n_ctx: Some(self.n_ctx.max(READ.n_ctx()).max(WRITE.n_ctx())),
            prefix_cache: false,
            ..LoadOptions::default()
        };
        let engine = app.load(path, &options)?;
        match engine.info().is_encoder {
            true => Err(Error::failure(format_args!("{} makes embeddings and predicts no tokens", path.display()))),
            false => Ok(engine),
        }
    }

    fn windows(&self, engine: &Engine, text: &str) -> Result<Vec<Vec<u32>>> {
        let options = EncodeOptions { add_special: true, parse_special: false };
        let tokens = engine.tokenizer()?.encode(text, options)?;
        Ok(engine.windows(&tokens, self.n_ctx, self.chunks)?)
    }

    /// Measures the first model and keeps its predictions.
    fn first(&self, engine: &mut Engine, windows: Vec<Vec<u32>>, bar: &WorkProgress) -> Result<(Figures, Reference)> {
        let n_vocab = engine.info().n_vocab;
        let n_scored = windows.iter().map(|window| window.len() - 1 - window.len() / 2).sum::<usize>();
        let folder = std::env::temp_dir();
        check_space(&folder.join("predictions"), (n_scored * n_vocab * PackedPrediction::BYTES) as u64)?;
        let failed = |error: std::io::Error| Error::io("write predictions to", &folder, &error);
        let mut out = BufWriter::with_capacity(1 << 20, tempfile::tempfile_in(&folder).map_err(failed)?);
        let (mut nll, mut row, mut written) = (0.0, Vec::new(), Ok(()));
        for window in &windows {
            engine.predictions(window, window.len() / 2, &mut |logits, next| {
                nll -= log_probability(logits, next);
                row.clear();
                PackedPrediction::pack(logits, &mut row);
                if written.is_ok() {
                    written = out.write_all(&row);
                }
            })?;
            bar.inc(1);
        }
        written.map_err(failed)?;
        let file = out.into_inner().map_err(|error| failed(error.into_error()))?;
        Ok((figures(nll, n_scored, None), Reference { file, windows, n_vocab }))
    }

    /// Returns the rates at which a model reads and writes.
    fn rates(&self, engine: &mut Engine) -> Result<Option<[f64; 2]>> {
        let mut rates = [Vec::new(), Vec::new()];
        for i in 0..self.reps + usize::from(self.reps > 0) {
            for (test, rates) in [READ, WRITE].into_iter().zip(&mut rates) {
                let rate = measure(engine, test, LogitRows::Last)?;
                // The first time warms up.
                if i > 0 {
                    rates.push(rate);
                }
            }
        }
        Ok((self.reps > 0).then(|| rates.map(|mut rates| median(&mut rates))))
    }

    fn json(&self, all: &[Figures]) -> Value {
        let model = |figures: &Figures| {
            let mut object = json!({
                "model": figures.name,
                "file_bytes": figures.file_bytes,
                "bits_per_weight": figures.bits_per_weight,
                "ppl": figures.ppl,
            });
            if let Some(against) = &figures.against {
                let [p50, p90, p99, max] = against.quantiles;
                object["kl"] = json!({ "mean": against.mean_kl, "p50": p50, "p90": p90, "p99": p99, "max": max });
                object["same_top1"] = json!(against.same_top1);
            }
            if let Some([read, write]) = figures.rates {
                object[format!("{}_tps", READ.name())] = json!(read);
                object[format!("{}_tps", WRITE.name())] = json!(write);
            }
            object
        };
        let n_tokens = all.first().map_or(0, |figures| figures.n_scored);
        json!({ "ctx": self.n_ctx, "n_tokens": n_tokens, "models": all.iter().map(model).collect::<Vec<_>>() })
    }
}

/// Returns the figures of what was scored, without those of the file.
fn figures(nll: f64, n_scored: usize, against: Option<Against>) -> Figures {
    let ppl = (nll / n_scored.max(1) as f64).exp();
    Figures { name: String::new(), file_bytes: 0, bits_per_weight: 0.0, ppl, n_scored, against, rates: None }
}

/// Measures another model against the first.
fn other(engine: &mut Engine, windows: &[Vec<u32>], reference: &mut Reference, bar: &WorkProgress) -> Result<Figures> {
    let name = &engine.info().name;
    if windows != reference.windows || engine.info().n_vocab != reference.n_vocab {
        let line = "has other tokens than the first model; only models of the same vocabulary can be compared";
        return Err(Error::failure(format_args!("model '{name}' {line}")));
    }
    let failed = |error: std::io::Error| Error::io("read predictions from", &std::env::temp_dir(), &error);
    reference.file.rewind().map_err(failed)?;
    let mut from = BufReader::with_capacity(1 << 20, &reference.file);
    let mut row = vec![0; reference.n_vocab * PackedPrediction::BYTES];
    let (mut nll, mut kl, mut n_same, mut read) = (0.0, Vec::new(), 0, Ok(()));
    for window in windows {
        engine.predictions(window, window.len() / 2, &mut |logits, next| {
            nll -= log_probability(logits, next);
            if read.is_ok() {
                read = from.read_exact(&mut row);
            }
            let one = PackedPrediction::new(&row).divergence_to(logits);
            kl.push(one.kl);
            n_same += usize::from(one.same_top1);
        })?;
        bar.inc(1);
    }
    read.map_err(failed)?;
    let n = kl.len();
    let against = Against {
        mean_kl: kl.iter().sum::<f64>() / n.max(1) as f64,
        quantiles: quantiles(&mut kl),
        same_top1: n_same as f64 / n.max(1) as f64,
    };
    Ok(figures(nll, n, Some(against)))
}

/// Sorts values and returns what 50, 90 and 99 % of them are not above, and the largest.
fn quantiles(values: &mut [f64]) -> [f64; 4] {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    [0.5, 0.9, 0.99, 1.0].map(|share| match n {
        0 => 0.0,
        _ => values[((n as f64 * share).ceil() as usize).clamp(1, n) - 1],
    })
}

fn print_table(all: &[Figures]) -> Result<()> {
    let (read, write) = (READ.name().to_uppercase(), WRITE.name().to_uppercase());
    let mut head =
        ["MODEL", "SIZE", "BITS", "PPL", "MEAN KL", "50 %", "90 %", "99 %", "MAX", "TOP-1"].map(str::to_owned).to_vec();
    head.extend([format!("{read} TOK/S"), format!("{write} TOK/S")]);
    let mut rows = vec![head];
    for figures in all {
        let Figures { name, file_bytes, bits_per_weight, ppl, .. } = figures;
        let mut row = vec![name.clone(), bytes(*file_bytes), format!("{bits_per_weight:.2}"), format!("{ppl:.4}")];
        match &figures.against {
            None => row.extend(["-"; 6].map(str::to_owned)),
            Some(against) => {
                row.push(format!("{:.5}", against.mean_kl));
                row.extend(against.quantiles.map(|kl| format!("{kl:.5}")));
                row.push(format!("{:.1} %", 100.0 * against.same_top1));
            }
        }
        row.extend(figures.rates.into_iter().flatten().map(|rate| format!("{rate:.1}")));
        rows.push(row);
    }
    print(&table(&rows, &(1..12).collect::<Vec<_>>()))
}

/// Draws a dot for each model but the first: its size and its divergence.
fn draw(path: &Path, all: &[Figures]) -> Result<()> {
    let dot = |figures: &Figures| {
        let against = figures.against.as_ref()?;
        Some(Line { name: figures.name.clone(), points: vec![(figures.file_bytes as f64 / 1e6, against.mean_kl)] })
    };
    let lines: Vec<Line> = all.iter().filter_map(dot).collect();
    chart::write(path, Axes { x: "MB", y: "mean KL, nats" }, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_values() {
        let mut values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(quantiles(&mut values), [100.0, 180.0, 198.0, 200.0]);
        assert_eq!(quantiles(&mut [3.0]), [3.0; 4]);
        assert_eq!(quantiles(&mut []), [0.0; 4]);
    }
}
