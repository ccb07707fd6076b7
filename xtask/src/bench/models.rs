//! Rates of whole models: `ruvllm bench`, and the peer beside it if there is one, in turns.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

use super::ratio::Ratios;
use crate::{models, shell};

/// What is measured of a model.
pub(super) struct What<'a> {
    pub(super) n_threads: Option<usize>,
    /// Rounds; the median counts.
    pub(super) n_rounds: usize,
    /// A Python that has llama-cpp-python.
    pub(super) peer: Option<&'a Path>,
}

/// The tests of every model, as `ruvllm bench` and the peer's script take them.
const TESTS: [&str; 8] = ["--pp", "128,512", "--tg", "64", "--depth", "0,2048", "--batch", "1,8,16"];

/// What is read of the object that `ruvllm bench --json` prints.
#[derive(Clone, Debug, Deserialize)]
struct Report {
    isa: String,
    threads: usize,
    read_share: f64,
    results: Vec<Rate>,
}

#[derive(Clone, Debug, Deserialize)]
struct Rate {
    test: String,
    tps: f64,
}

/// A test of a model, in medians over the rounds.
#[derive(Debug, PartialEq)]
pub(super) struct Measured {
    /// `model/test/isa/threads`.
    pub(super) name: String,
    tps: f64,
    peer_tps: Option<f64>,
    pub(super) ratios: Ratios,
}

/// Measures every real model.
///
/// # Errors
/// A model cannot be had, or a program fails.
pub(super) fn measure(what: &What<'_>) -> Result<Vec<Measured>> {
    models::fetch(&models::WRITERS, models::build_ruvllm)?;
    shell::run(&mut shell::cargo("build --release --package ruvllm-cli"))?;
    let ruvllm = models::ruvllm_path("release");
    let mut all = Vec::new();
    for model in models::WRITERS {
        println!("{model}");
        let mut rounds = Vec::with_capacity(what.n_rounds);
        for _ in 0..what.n_rounds {
            let ours = report(model, &ruvllm, what)?;
            let peer = what.peer.map(|python| peer(model, python, ours.threads)).transpose()?;
            rounds.push((ours, peer));
        }
        all.extend(medians(model, &rounds));
    }
    Ok(all)
}

/// Runs `ruvllm bench` once.
fn report(model: &str, ruvllm: &PathBuf, what: &What<'_>) -> Result<Report> {
    let mut command = Command::new(ruvllm);
    command.args(["bench", "--json", "--reps", "1", "--model", model]).args(TESTS);
    if let Some(n_threads) = what.n_threads {
        command.args(["--threads", &n_threads.to_string()]);
    }
    let json = shell::output(&mut command)?;
    serde_json::from_str(&json).with_context(|| format!("`ruvllm bench` on {model} printed '{}'", json.trim()))
}

/// Runs the peer once and returns tokens per second by test.
fn peer(model: &str, python: &Path, n_threads: usize) -> Result<BTreeMap<String, f64>> {
    let mut command = Command::new(python);
    command.arg(shell::root().join("benches/peer.py")).arg("--model").arg(models::path(model)?);
    command.args(["--threads", &n_threads.to_string()]).args(TESTS);
    let json = shell::output(&mut command)?;
    let rates: Value =
        serde_json::from_str(&json).with_context(|| format!("benches/peer.py on {model} printed '{}'", json.trim()))?;
    let rates = rates.as_object().context("benches/peer.py printed no object")?;
    Ok(rates.iter().filter_map(|(test, tps)| Some((test.clone(), tps.as_f64()?))).collect())
}

/// One run of `ruvllm bench`, and the peer's rates right after it.
type Round = (Report, Option<BTreeMap<String, f64>>);

/// Returns a line per test; a ratio is the median of the rounds' ratios.
fn medians(model: &str, rounds: &[Round]) -> Vec<Measured> {
    let Some((first, _)) = rounds.first() else { return Vec::new() };
    first.results.iter().filter_map(|rate| of_test(model, &rate.test, first, rounds)).collect()
}

fn of_test(model: &str, test: &str, first: &Report, rounds: &[Round]) -> Option<Measured> {
    let runs = rounds.iter().filter_map(|(ours, peer)| {
        let tps = ours.results.iter().find(|rate| rate.test == test)?.tps;
        Some((tps, ours, peer.as_ref().and_then(|peer| peer.get(test).copied())))
    });
    let runs: Vec<_> = runs.collect();
    // One token at a time from an empty context reads the weights and little else.
    let is_stream = test.starts_with("tg") && !test.contains('@');
    let shares = runs.iter().map(|(_, ours, _)| ours.read_share);
    Some(Measured {
        name: format!("{model}/{test}/{}/t{}", first.isa, first.threads),
        tps: median(runs.iter().map(|(tps, ..)| *tps))?,
        peer_tps: median(runs.iter().filter_map(|(.., peer)| *peer)),
        ratios: Ratios {
            over_scalar: None,
            of_machine: median(shares.filter(|_| is_stream)),
            over_peer: median(runs.iter().filter_map(|(tps, _, peer)| Some(tps / (*peer)?))),
        },
    })
}

/// Returns the median, or `None` of nothing.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let n = values.len();
    (n > 0).then(|| (values[(n - 1) / 2] + values[n / 2]) / 2.0)
}

/// Returns a Markdown table of the models' rates.
pub(super) fn table(measured: &[Measured]) -> String {
    let mut out = "| model/test/isa/threads | tokens/s | of read bandwidth | peer | over peer |\n\
                   | --- | --: | --: | --: | --: |\n"
        .to_owned();
    let cell = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
    for Measured { name, tps, peer_tps, ratios } in measured {
        let share = cell(ratios.of_machine.map(|share| format!("{:.0} %", 100.0 * share)));
        let (peer, over) = (peer_tps.map(|tps| format!("{tps:.1}")), ratios.over_peer.map(|x| format!("{x:.2}×")));
        out += &format!("| {name} | {tps:.1} | {share} | {} | {} |\n", cell(peer), cell(over));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_read_and_compared() {
        let report = |tg: f64| -> Report {
            let json = format!(
                r#"{{"isa":"avx2","threads":2,"weight_bytes":100000000,"read_share":0.4,"load_ms":12,
                "results":[{{"test":"pp512","tps":1650.0,"tps_min":1,"tps_max":2}},{{"test":"tg64","tps":{tg}}}]}}"#
            );
            serde_json::from_str(&json).expect("the object of `ruvllm bench`")
        };
        let peer = |tg: f64| Some(BTreeMap::from([("tg64".to_owned(), tg)]));
        let measured = medians("qwen", &[(report(150.0), peer(100.0)), (report(90.0), peer(30.0))]);
        let expected = "| model/test/isa/threads | tokens/s | of read bandwidth | peer | over peer |\n\
                        | --- | --: | --: | --: | --: |\n\
                        | qwen/pp512/avx2/t2 | 1650.0 | – | – | – |\n\
                        | qwen/tg64/avx2/t2 | 120.0 | 40 % | 65.0 | 2.25× |\n";
        assert_eq!(table(&measured), expected);
        assert_eq!(medians("qwen", &[]), []);
    }
}
