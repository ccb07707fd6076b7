//! `ruvllm bench`: load time, prefill and decode rates beside the memory's read bandwidth.

#[cfg(feature = "gpu")]
mod profile;

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::{LoadArgs, MAX_CTX, ModelArgs, OutputArgs};
use ruvllm_cli_tools::backend::LocalBackendArgs;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::machine::peak_bytes;
use ruvllm_cli_tools::output::{bytes, print, print_json, table};
use ruvllm_cli_tools::rates::{Test, measure, median};
use ruvllm_cli_tools::values::count;
use ruvllm_engine::{Engine, LoadOptions, LogitRows};
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  ruvllm bench
  ruvllm bench --pp 128,512 --tg 64 --depth 0,2048 --batch 1,8 --reps 5 --json

Tests: pp512 reads 512 tokens; tg64 writes 64 tokens; tg64@d2048 does so after 2048 tokens of
context; tg64@b8 does so in 8 sequences at once, tokens per second over all. The median of --reps
counts. The last column is how much of the measured read bandwidth the weights of every token took.";

/// Options of `ruvllm bench`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    /// Prompt lengths to read
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "512", value_parser = count::<1, MAX_CTX>)]
    pp: Vec<usize>,
    /// Numbers of tokens to write
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "64", value_parser = count::<1, MAX_CTX>)]
    tg: Vec<usize>,
    /// Context lengths to write after (one sequence)
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "0", value_parser = count::<0, MAX_CTX>)]
    depth: Vec<usize>,
    /// Numbers of sequences to write at once (empty context)
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1", value_parser = count::<1, 256>)]
    batch: Vec<usize>,
    /// Ask for the K likeliest tokens only when writing, as sampling with --top-k does; 1 as --temp 0 does [default: all]
    #[arg(long, value_name = "K", value_parser = count::<1, MAX_CTX>)]
    top_k: Option<usize>,
    /// How often each test runs
    #[arg(long, value_name = "R", default_value = "3", value_parser = count::<1, 1000>)]
    reps: usize,
    /// Time each kernel of a pass instead: one token after each --depth, and --pp tokens up to 256; with --backend gpu
    #[cfg(feature = "gpu")]
    #[arg(long)]
    profile: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    backend: LocalBackendArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// The rates of one test, in tokens per second.
#[derive(Clone, Debug, PartialEq)]
struct Rates {
    test: Test,
    median: f64,
    min: f64,
    max: f64,
}

impl BenchArgs {
    /// Measures and prints.
    ///
    /// # Errors
    /// A failure if the model cannot be loaded or makes embeddings only.
    pub fn run(&self, app: &App) -> Result<()> {
        let tests = self.tests();
        let backend = self.backend.chosen(&self.load)?;
        let path = app.store().locate(&self.model.model, false)?;
        let n_ctx = tests.iter().map(|test| test.n_ctx()).max().unwrap_or(1).max(64);
        let n_seq_max = self.batch.iter().copied().max().unwrap_or(1);
        let options = LoadOptions { n_seq_max, ..self.load.options(&app.settings, Some(n_ctx)) };
        #[cfg(feature = "gpu")]
        if self.profile {
            let passes = profile::Passes { n_before: &self.depth, n_read: &self.pp };
            return passes.run(app, backend, &path, &options, self.output.json);
        }
        let mut engine = app.load_on(backend, &path, &options)?;
        if engine.info().is_encoder {
            return Err(Error::failure("this model makes embeddings and writes no tokens; bench another one"));
        }
        let bar = app.ui.steps_bar("warming up", (tests.len() * self.reps) as u64);
        let logits = self.top_k.map_or(LogitRows::Last, |n_best| LogitRows::Top { n_tail: 1, n_best });
        measure(&mut engine, Test::Prefill { n: 32 }, logits)?;
        measure(&mut engine, Test::Decode { n: 4, n_batch: 1, depth: 0 }, logits)?;
        let mut results = Vec::with_capacity(tests.len());
        for test in tests {
            bar.set_message(test.name());
            let mut rates = Vec::with_capacity(self.reps);
            for _ in 0..self.reps {
                rates.push(measure(&mut engine, test, logits)?);
                bar.inc(1);
            }
            results.push(summarize(test, rates));
        }
        bar.finish_and_clear();
        // Before the bandwidth is measured: its buffer is no part of running the model.
        let peak_bytes = peak_bytes();
        let bar = app.ui.spinner("measuring the memory");
        let (read_gbps, read_share) = read_share(&mut engine, logits)?;
        drop(bar);
        let costs = Costs { read_gbps, read_share, peak_bytes };
        if self.output.json { print_object(&engine, &costs, &results) } else { print_table(&engine, &costs, &results) }
    }

    /// Lists the tests: prefill, then decode of every batch in an empty context, then decode after every depth.
    fn tests(&self) -> Vec<Test> {
        let prefill = self.pp.iter().map(|n| Test::Prefill { n: *n });
        let batches = self.batch.iter().map(|n_batch| (*n_batch, 0)).filter(|_| self.depth.contains(&0));
        let depths = self.depth.iter().filter(|depth| **depth > 0).map(|depth| (1, *depth));
        let kinds: Vec<_> = batches.chain(depths).collect();
        let decode = self.tg.iter().flat_map(|n| {
            let n = *n;
            kinds.iter().map(move |(n_batch, depth)| Test::Decode { n, n_batch: *n_batch, depth: *depth })
        });
        prefill.chain(decode).collect()
    }
}

/// Rounds of [`read_share`].
const ROUNDS: usize = 5;

/// Returns the bandwidth at which the threads read a buffer of the weights' size, and the share of it that decode
/// reaches. The bandwidth of a shared machine drifts within seconds, so a share is that of a short decode to what was
/// read right before and after it; both are medians over the rounds.
fn read_share(engine: &mut Engine, logits: LogitRows) -> Result<(f64, f64)> {
    let weight_bytes = engine.info().weight_bytes;
    let (mut bandwidths, mut shares) = (Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS));
    for _ in 0..ROUNDS {
        let before = engine.read_bandwidth(weight_bytes);
        let rate = measure(engine, Test::Decode { n: 16, n_batch: 1, depth: 0 }, logits)?;
        let gbps = (before + engine.read_bandwidth(weight_bytes)) / 2.0;
        bandwidths.push(gbps);
        shares.push(rate * weight_bytes as f64 / (gbps * 1e9));
    }
    Ok((median(&mut bandwidths), median(&mut shares)))
}

fn summarize(test: Test, mut rates: Vec<f64>) -> Rates {
    let median = median(&mut rates);
    Rates { test, median, min: rates[0], max: rates[rates.len() - 1] }
}

/// What was measured beside the rates.
struct Costs {
    /// Read bandwidth in 1e9 bytes a second.
    read_gbps: f64,
    /// The share of it that decode of one sequence reaches with an empty context.
    read_share: f64,
    /// Most memory held at once, where the system tells.
    peak_bytes: Option<u64>,
}

fn print_object(engine: &Engine, costs: &Costs, results: &[Rates]) -> Result<()> {
    let (info, Costs { read_gbps, read_share, peak_bytes }) = (engine.info(), costs);
    let results = results.iter().map(
        |rates| json!({ "test": rates.test.name(), "tps": rates.median, "tps_min": rates.min, "tps_max": rates.max }),
    );
    print_json(&json!({
        "model": info.name,
        "isa": info.device.name,
        "threads": info.device.n_threads,
        "weight_bytes": info.weight_bytes,
        "read_gbps": read_gbps,
        "read_share": read_share,
        "load_ms": info.load_ms,
        "peak_bytes": peak_bytes,
        "results": results.collect::<Vec<_>>(),
    }))
}

fn print_table(engine: &Engine, costs: &Costs, results: &[Rates]) -> Result<()> {
    let (info, Costs { read_gbps, read_share, peak_bytes }) = (engine.info(), costs);
    let weights = bytes(info.weight_bytes as u64);
    let head = [
        vec!["model".to_owned(), format!("{} ({}, {})", info.name, info.arch, info.quantization)],
        vec![
            "machine".to_owned(),
            format!("{}, {} threads, reads {read_gbps:.1} GB/s", info.device.name, info.device.n_threads),
        ],
        vec!["load".to_owned(), format!("{:.0} ms, {weights} of weights read for every token", info.load_ms)],
        vec!["peak memory".to_owned(), peak_bytes.map_or_else(|| "unknown".to_owned(), bytes)],
    ];
    let mut rows = vec![["TEST", "TOK/S", "MIN", "MAX", "OF READ BANDWIDTH"].map(str::to_owned).to_vec()];
    for rates in results {
        let share = match rates.test {
            Test::Decode { n_batch: 1, depth: 0, .. } => format!("{:.0} %", 100.0 * read_share),
            _ => String::new(),
        };
        let tps = |rate: f64| format!("{rate:.1}");
        rows.push(vec![rates.test.name(), tps(rates.median), tps(rates.min), tps(rates.max), share]);
    }
    print(&format!("{}\n{}", table(&head, &[]), table(&rows, &[1, 2, 3, 4])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Wrapper {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn names(args: &[&str]) -> Vec<String> {
        let args = std::iter::once("bench").chain(args.iter().copied());
        let wrapper = Wrapper::try_parse_from(args).unwrap_or_else(|error| panic!("{error}"));
        wrapper.bench.tests().into_iter().map(Test::name).collect()
    }

    #[test]
    fn tests_have_stable_names() {
        assert_eq!(names(&[]), ["pp512", "tg64"]);
        assert_eq!(
            names(&["--pp", "128,512", "--tg", "64", "--depth", "0,2048", "--batch", "1,8"]),
            ["pp128", "pp512", "tg64", "tg64@b8", "tg64@d2048"]
        );
        assert_eq!(names(&["--pp", "8", "--depth", "16", "--batch", "1,8"]), ["pp8", "tg64@d16"]);
    }

    #[test]
    fn the_median_counts() {
        let test = Test::Prefill { n: 1 };
        let rates = summarize(test, vec![3.0, 1.0, 2.0]);
        assert_eq!(rates, Rates { test, median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(summarize(test, vec![4.0, 1.0]).median, 2.5);
    }
}
