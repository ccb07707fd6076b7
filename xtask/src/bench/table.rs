//! The tables that `cargo xtask bench` prints.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Result, bail};

use super::criterion::Case;
use super::ratio::{Cases, ISAS, count, is_machine, isa, mean};

/// How the parts of a name begin that say whose shape was measured, not what: the models.
const SHAPES: [&str; 3] = ["smollm2", "gemma3", "qwen"];

/// A Markdown table.
struct Table(String);

impl Table {
    /// Starts a table; all columns after the first are numbers.
    fn new(title: &str, header: &[String]) -> Table {
        let mut table = Table(if title.is_empty() { String::new() } else { format!("{title}\n\n") });
        table.line(header);
        let rule = |(i, _)| if i == 0 { "---" } else { "--:" }.to_owned();
        table.line(&header.iter().enumerate().map(rule).collect::<Vec<_>>());
        table
    }

    fn line(&mut self, cells: &[String]) {
        writeln!(self.0, "| {} |", cells.join(" | ")).expect("a string takes all");
    }
}

/// The implementations of one kernel on one shape, by instruction set.
type Row<'a> = BTreeMap<&'static str, &'a Case>;

/// Gathers the implementations of each case under its name without the instruction set.
fn rows<'a>(cases: &[&'a Case]) -> BTreeMap<String, Row<'a>> {
    let mut rows: BTreeMap<String, Row<'a>> = BTreeMap::new();
    for case in cases {
        let Some(isa) = isa(&case.name) else { continue };
        let parts: Vec<&str> = case.name.split('/').filter(|part| *part != isa).collect();
        rows.entry(parts.join("/")).or_default().insert(isa, case);
    }
    rows
}

/// Returns the instruction sets that some row has, but for scalar.
fn columns<'a, 'b: 'a>(rows: impl Iterator<Item = &'a Row<'b>>) -> Vec<&'static str> {
    let rows: Vec<_> = rows.collect();
    ISAS[1..].iter().copied().filter(|isa| rows.iter().any(|row| row.contains_key(isa))).collect()
}

fn header(first: &[&str], isas: &[&str]) -> Vec<String> {
    first.iter().chain(isas).map(|cell| (*cell).to_owned()).collect()
}

/// Returns every table that there are cases for: what the machine can do, matrix products beside it, and the speed-up
/// of the other kernels over scalar (the geometric mean over their shapes; with `full`, a row per shape).
///
/// # Errors
/// No case names an instruction set.
pub(super) fn all(cases: &[Case], full: bool) -> Result<String> {
    let cases = Cases::new(cases);
    if cases.iter().all(|case| isa(&case.name).is_none()) {
        bail!("no case names an instruction set ({})", ISAS.join(", "));
    }
    let (of_machine, kernels): (Vec<&Case>, Vec<&Case>) = cases.iter().partition(|case| is_machine(&case.name));
    let is_product = |case: &Case| case.name.starts_with("matmul/") && isa(&case.name).is_some();
    let (products, others): (Vec<&Case>, Vec<&Case>) = kernels.into_iter().partition(|case| is_product(case));
    let (streams, tiles): (Vec<&Case>, Vec<&Case>) = products.into_iter().partition(|case| case.name.contains("/n1/"));
    let tables = [
        machine(&of_machine),
        matmul("One row: weight bytes, share of the read bandwidth, over scalar", &cases, &streams),
        matmul("More rows: multiply-adds, share of the peak, over scalar", &cases, &tiles),
        if full { shapes(&cases, &others) } else { speed_ups(&cases, &others) },
    ];
    Ok(tables.into_iter().flatten().collect::<Vec<_>>().join("\n"))
}

/// Returns what the machine can do, by size of the buffer and threads or by instruction.
fn machine(cases: &[&Case]) -> Option<String> {
    let name = |case: &Case| case.name.trim_start_matches("machine/").trim_start_matches("matmul/").to_owned();
    let mut table = Table::new("", &header(&["machine", "rate"], &[]));
    cases.iter().for_each(|case| table.line(&[name(case), rate(case)]));
    (!cases.is_empty()).then_some(table.0)
}

/// Returns a row per product, rows of activations and threads.
fn matmul(title: &str, all: &Cases<'_>, cases: &[&Case]) -> Option<String> {
    let mut rows = rows(cases);
    rows.retain(|_, row| row.keys().any(|isa| *isa != "scalar"));
    let isas = columns(rows.values());
    let mut table = Table::new(title, &header(&["product", "rows", "threads"], &isas));
    let mut sorted: Vec<_> = rows.iter().collect();
    sorted.sort_by_key(|(name, _)| {
        let (product, n, n_threads) = split(name);
        (product, n, n_threads)
    });
    for (name, row) in sorted {
        let (product, n, n_threads) = split(name);
        let cell = |isa: &&str| row.get(*isa).map_or("–".to_owned(), |case| product_cell(all, case));
        let mut cells = vec![product, n.to_string(), n_threads.to_string()];
        cells.extend(isas.iter().map(cell));
        table.line(&cells);
    }
    (!rows.is_empty()).then_some(table.0)
}

/// Splits `matmul/qwen/o/Q5_0/n8/t1` into `qwen/o/Q5_0`, 8 and 1.
fn split(name: &str) -> (String, u64, u64) {
    let (mut product, mut n, mut n_threads) = (Vec::new(), 0, 0);
    for part in name.split('/').skip(1) {
        match (count(part, 'n'), count(part, 't')) {
            (Some(count), _) => n = count,
            (_, Some(count)) => n_threads = count,
            _ => product.push(part),
        }
    }
    (product.join("/"), n, n_threads)
}

/// Returns `38.2 GB/s, 85 %, 120×`: rate, share of the machine, times as fast as scalar.
fn product_cell(all: &Cases<'_>, case: &Case) -> String {
    let ratios = all.ratios(case);
    let share = ratios.of_machine.map(|share| format!("{:.0} %", 100.0 * share));
    let over = ratios.over_scalar.map(|over| format!("{over:.0}×"));
    [Some(rate(case)), share, over].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Returns a row per kernel.
fn speed_ups(all: &Cases<'_>, cases: &[&Case]) -> Option<String> {
    let rows = rows(cases);
    let isas = columns(rows.values());
    let mut kernels: BTreeMap<String, Vec<&Row<'_>>> = BTreeMap::new();
    for (name, row) in &rows {
        let parts: Vec<&str> = name.split('/').filter(|part| !is_shape(part)).collect();
        kernels.entry(parts.join("/")).or_default().push(row);
    }
    let speed_up = |row: &Row<'_>, isa: &str| row.get(isa).and_then(|case| all.ratios(case).over_scalar);
    // A type without a kernel of its own beside scalar has nothing to compare.
    kernels.retain(|_, rows| rows.iter().any(|row| isas.iter().any(|isa| speed_up(row, isa).is_some())));
    let mut table = Table::new("Over scalar", &header(&["kernel", "shapes"], &isas));
    for (kernel, rows) in &kernels {
        let cell = |isa: &&str| times(mean(rows.iter().filter_map(|row| speed_up(row, isa))));
        let mut cells = vec![kernel.clone(), rows.len().to_string()];
        cells.extend(isas.iter().map(cell));
        table.line(&cells);
    }
    (!kernels.is_empty()).then_some(table.0)
}

/// Returns a row per shape.
fn shapes(all: &Cases<'_>, cases: &[&Case]) -> Option<String> {
    let rows = rows(cases);
    let isas = columns(rows.values());
    let mut table = Table::new("Over scalar", &header(&["case", "scalar", "best"], &isas));
    for (name, row) in &rows {
        let scalar = row.get("scalar").map_or("–".to_owned(), |case| time(case.median_ns));
        let best = row.values().min_by(|a, b| a.median_ns.total_cmp(&b.median_ns));
        let mut cells = vec![name.clone(), scalar, best.map_or("–".to_owned(), |case| rate(case))];
        cells.extend(isas.iter().map(|isa| times(row.get(isa).and_then(|case| all.ratios(case).over_scalar))));
        table.line(&cells);
    }
    (!rows.is_empty()).then_some(table.0)
}

/// Whether a part of a name says which shape was measured: a number, a depth (`k4864`) or a model.
fn is_shape(part: &str) -> bool {
    let number = part.strip_prefix('k').unwrap_or(part);
    number.bytes().all(|byte| byte.is_ascii_digit()) || SHAPES.iter().any(|start| part.starts_with(start))
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.1}×"))
}

/// Returns how fast a case goes through its data, or how long it takes if it does not say what it goes through.
pub(super) fn rate(case: &Case) -> String {
    match case.counts() {
        Some(unit) => format!("{:.1} {unit}", case.rate()),
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
pub(super) fn medians(cases: &[Case]) -> String {
    cases.iter().map(|case| format!("{:>12}  {:>12}  {}\n", time(case.median_ns), rate(case), case.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::criterion::Throughput;
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
        let expected = "Over scalar\n\n| kernel | shapes | avx2 | avx512 |\n| --- | --: | --: | --: |\n\
                        | dot | 2 | 2.0× | 8.0× |\n";
        assert_eq!(all(&cases(), false).expect("a table"), expected);
    }

    #[test]
    fn cases_have_a_row_each() {
        let expected = "Over scalar\n\n| case | scalar | best | avx2 | avx512 |\n| --- | --: | --: | --: | --: |\n\
                        | dot/2048 | 1.6 µs | 1.6 µs | 1.0× | – |\n| dot/576 | 400 ns | 80.0 GB/s | 4.0× | 8.0× |\n\
                        | rope/neox | – | 2.50 ms | – | – |\n";
        assert_eq!(all(&cases(), true).expect("a table"), expected);
        assert!(all(&cases()[6..], true).is_err());
    }

    #[test]
    fn kernels_are_named_without_shapes() {
        let ns = [("scalar", 30.0), ("avx2", 10.0)];
        let cases = ["decode/qwen2.5-0.5b/256", "quantize/k4864", "decode/smollm2-135m/256"]
            .into_iter()
            .flat_map(|name| ns.map(|(isa, ns)| case(&format!("{name}/{isa}"), ns, None)));
        let table = all(&cases.collect::<Vec<_>>(), false).expect("a table");
        let rows: Vec<&str> = table.lines().skip(4).collect();
        assert_eq!(rows, ["| decode | 2 | 3.0× |", "| quantize | 1 | 3.0× |"]);
    }

    #[test]
    fn products_stand_beside_the_machine() {
        let (bytes, madds) = (|n| Some(Throughput::Bytes(n)), |n| Some(Throughput::Elements(n)));
        let cases = [
            case("matmul/qwen/read/t1", 10.0, bytes(400)),
            case("machine/dot/avx512", 1.0, madds(400)),
            case("matmul/qwen/o/Q5_0/n1/t1/avx512", 10.0, bytes(200)),
            case("matmul/qwen/o/Q5_0/n1/t1/scalar", 100.0, bytes(100)),
            case("matmul/qwen/o/Q5_0/n16/t1/avx512", 10.0, madds(1500)),
            case("matmul/qwen/o/Q5_0/n8/t1/avx512", 10.0, madds(1000)),
        ];
        let expected = "| machine | rate |\n| --- | --: |\n| dot/avx512 | 400.0 G/s |\n| qwen/read/t1 | 40.0 GB/s |\n\n\
             One row: weight bytes, share of the read bandwidth, over scalar\n\n\
             | product | rows | threads | avx512 |\n| --- | --: | --: | --: |\n\
             | qwen/o/Q5_0 | 1 | 1 | 20.0 GB/s, 50 %, 20× |\n\n\
             More rows: multiply-adds, share of the peak, over scalar\n\n\
             | product | rows | threads | avx512 |\n| --- | --: | --: | --: |\n\
             | qwen/o/Q5_0 | 8 | 1 | 100.0 G/s, 50 % |\n| qwen/o/Q5_0 | 16 | 1 | 150.0 G/s, 75 % |\n";
        assert_eq!(all(&cases, false).expect("tables"), expected);
    }
}
