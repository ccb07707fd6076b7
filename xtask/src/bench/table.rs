//! The tables that `cargo xtask bench` prints.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Result, bail};

use super::criterion::{Case, Throughput};

/// The instruction sets a case may name, in the order of the columns. `scalar` is what the others are measured by.
const ISAS: [&str; 6] = ["scalar", "neon", "neon+dotprod", "avx2", "avx512", "amx"];

/// How the parts of a name begin that say whose shape was measured, not what: models, and floats beside them.
const SHAPES: [&str; 4] = ["smollm2", "gemma3", "qwen", "float_"];

/// The implementations of one kernel on one shape.
#[derive(Default)]
struct Row {
    kernel: String,
    by_isa: BTreeMap<&'static str, Case>,
}

impl Row {
    /// Returns how many times faster than scalar `isa` is, if both were measured.
    fn speed_up(&self, isa: &str) -> Option<f64> {
        Some(self.by_isa.get("scalar")?.median_ns / self.by_isa.get(isa)?.median_ns)
    }

    /// Returns the fastest implementation.
    fn best(&self) -> Option<&Case> {
        self.by_isa.values().min_by(|a, b| a.median_ns.total_cmp(&b.median_ns))
    }
}

/// Returns a Markdown table of speed-ups over scalar: a row per kernel (the geometric mean over its shapes), or with
/// `full` a row per shape.
///
/// # Errors
/// No case names an instruction set.
pub(super) fn speed_ups(cases: &[Case], full: bool) -> Result<String> {
    let rows = rows(cases);
    let measured = |isa: &&&str| rows.values().any(|row| row.by_isa.contains_key(**isa));
    let isas: Vec<&str> = ISAS[1..].iter().filter(measured).copied().collect();
    if rows.is_empty() {
        bail!("no case names an instruction set ({})", ISAS.join(", "));
    }
    let mut out = String::new();
    let mut line = |cells: &[String]| writeln!(out, "| {} |", cells.join(" | ")).expect("a string takes all");
    let names = |first: &str, more: &[&str]| -> Vec<String> {
        std::iter::once(first).chain(more.iter().copied()).chain(isas.iter().copied()).map(str::to_owned).collect()
    };
    let ratio = |ratio: Option<f64>| ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.1}×"));
    if full {
        let header = names("case", &["scalar", "best"]);
        line(&header);
        line(&vec!["---".to_owned(); header.len()]);
        for (key, row) in &rows {
            let scalar = row.by_isa.get("scalar").map_or("–".to_owned(), |case| time(case.median_ns));
            let mut cells = vec![key.clone(), scalar, row.best().map_or("–".to_owned(), rate)];
            cells.extend(isas.iter().map(|isa| ratio(row.speed_up(isa))));
            line(&cells);
        }
    } else {
        let header = names("kernel", &["shapes"]);
        line(&header);
        line(&vec!["---".to_owned(); header.len()]);
        let mut kernels: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
        rows.values().for_each(|row| kernels.entry(&row.kernel).or_default().push(row));
        for (kernel, rows) in kernels {
            if rows.iter().all(|row| isas.iter().all(|isa| row.speed_up(isa).is_none())) {
                continue; // a type without a kernel of its own beside scalar has nothing to compare
            }
            let mut cells = vec![kernel.to_owned(), rows.len().to_string()];
            cells.extend(isas.iter().map(|isa| ratio(mean(rows.iter().filter_map(|row| row.speed_up(isa))))));
            line(&cells);
        }
    }
    Ok(out)
}

/// Gathers the implementations of each case: the instruction set is the part of the name that is one of [`ISAS`].
fn rows(cases: &[Case]) -> BTreeMap<String, Row> {
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    for case in cases {
        let (isas, parts): (Vec<&str>, Vec<&str>) = case.name.split('/').partition(|part| ISAS.contains(part));
        let Some(isa) = ISAS.into_iter().find(|isa| isas.contains(isa)) else { continue };
        let row = rows.entry(parts.join("/")).or_default();
        let kernel: Vec<&str> = parts.into_iter().filter(|part| !is_shape(part)).collect();
        row.kernel = kernel.join("/");
        row.by_isa.insert(isa, case.clone());
    }
    rows
}

/// Whether a part of a name says which shape was measured: a number, a depth (`k4864`) or one of [`SHAPES`].
fn is_shape(part: &str) -> bool {
    let number = part.strip_prefix('k').unwrap_or(part);
    number.bytes().all(|byte| byte.is_ascii_digit()) || SHAPES.iter().any(|start| part.starts_with(start))
}

/// Returns the geometric mean, or `None` of nothing.
fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let logs: Vec<f64> = values.map(f64::ln).collect();
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

/// Returns how fast a case goes through its data, or how long it takes if it does not say what it goes through.
fn rate(case: &Case) -> String {
    let per_ns = |n: u64| n as f64 / case.median_ns;
    match case.throughput {
        Some(Throughput::Bytes(n) | Throughput::BytesDecimal(n)) => format!("{:.1} GB/s", per_ns(n)),
        Some(Throughput::ElementsAndBytes { bytes, .. }) => format!("{:.1} GB/s", per_ns(bytes)),
        Some(Throughput::Bits(n)) => format!("{:.1} GB/s", per_ns(n) / 8.0),
        Some(Throughput::Elements(n)) => format!("{:.2} G/s", per_ns(n)),
        None => time(case.median_ns),
    }
}

/// Returns a time in the unit that fits it.
fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.1} µs", ns / 1e3),
        ns => format!("{:.2} ms", ns / 1e6),
    }
}

/// Returns a line per case: its name and its median.
pub(super) fn medians(unit: &str, medians: &BTreeMap<String, f64>) -> String {
    let show = |value: f64| if unit == "ns" { time(value) } else { format!("{value:.1} {unit}") };
    medians.iter().map(|(name, value)| format!("{:>18}  {name}\n", show(*value))).collect()
}

/// Returns a line per case: how much faster than `old` it is (over 1 is faster, whatever the unit), then the mean.
pub(super) fn ratios(unit: &str, old: &BTreeMap<String, f64>, new: &BTreeMap<String, f64>) -> String {
    let (mut out, mut all) = (String::new(), Vec::new());
    for (name, now) in new {
        let Some(before) = old.get(name) else {
            writeln!(out, "     new  {name}").expect("a string takes all");
            continue;
        };
        let ratio = if unit == "ns" { before / now } else { now / before };
        all.push(ratio);
        writeln!(out, "{ratio:>7.3}×  {name}").expect("a string takes all");
    }
    if let Some(mean) = mean(all.iter().copied()) {
        writeln!(out, "{mean:>7.3}×  geometric mean of {} cases", all.len()).expect("a string takes all");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(name: &str, median_ns: f64, throughput: Option<Throughput>) -> Case {
        Case { name: name.to_owned(), median_ns, throughput }
    }

    fn cases() -> Vec<Case> {
        let bytes = Some(Throughput::Bytes(4000));
        vec![
            case("dot/scalar/576", 400.0, bytes),
            case("dot/avx2/576", 100.0, bytes),
            case("dot/avx512/576", 50.0, bytes),
            case("dot/scalar/2048", 1600.0, None),
            case("dot/avx2/2048", 1600.0, None),
            case("rope/neox/avx2", 2.5e6, None),
            case("load/all", 1.0, None),
        ]
    }

    #[test]
    fn kernels_have_a_row_each() {
        let expected = "| kernel | shapes | avx2 | avx512 |\n| --- | --- | --- | --- |\n\
                        | dot | 2 | 2.0× | 8.0× |\n";
        assert_eq!(speed_ups(&cases(), false).expect("a table"), expected);
    }

    #[test]
    fn cases_have_a_row_each() {
        let expected = "| case | scalar | best | avx2 | avx512 |\n| --- | --- | --- | --- | --- |\n\
                        | dot/2048 | 1.6 µs | 1.6 µs | 1.0× | – |\n| dot/576 | 400 ns | 80.0 GB/s | 4.0× | 8.0× |\n\
                        | rope/neox | – | 2.50 ms | – | – |\n";
        assert_eq!(speed_ups(&cases(), true).expect("a table"), expected);
        assert!(speed_ups(&cases()[6..], true).is_err());
    }

    #[test]
    fn kernels_are_named_without_shapes() {
        let ns = [("scalar", 30.0), ("avx2", 10.0)];
        let cases = ["matmul/qwen_up/Q5_0/n1", "matmul/gemma3_up/Q5_0/n1", "quantize/k4864", "decode/smollm2-135m/256"]
            .into_iter()
            .flat_map(|name| ns.map(|(isa, ns)| case(&format!("{name}/{isa}"), ns, None)));
        let table = speed_ups(&cases.collect::<Vec<_>>(), false).expect("a table");
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(rows, ["| decode | 1 | 3.0× |", "| matmul/Q5_0/n1 | 2 | 3.0× |", "| quantize | 1 | 3.0× |"]);
    }

    #[test]
    fn ratios_over_one_are_faster() {
        let map = |pairs: &[(&str, f64)]| pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let (old, new) = (map(&[("a", 100.0), ("b", 10.0)]), map(&[("a", 50.0), ("b", 20.0), ("c", 1.0)]));
        let expected = "  2.000×  a\n  0.500×  b\n     new  c\n  1.000×  geometric mean of 2 cases\n";
        assert_eq!(ratios("ns", &old, &new), expected);
        assert!(ratios("tokens/s", &old, &new).starts_with("  0.500×  a\n  2.000×  b\n"));
        assert_eq!(medians("ns", &old), "            100 ns  a\n             10 ns  b\n");
    }
}
