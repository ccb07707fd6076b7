//! Reading what criterion leaves in `target/criterion`: a folder per case with `new/{benchmark,estimates}.json`.

use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// One measured case.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Case {
    /// The whole name, e.g. `rms_norm/avx2/576`.
    pub(super) name: String,
    /// The median of one pass in nanoseconds.
    pub(super) median_ns: f64,
    /// What one pass goes through, if the bench says so.
    pub(super) throughput: Option<Throughput>,
}

/// What one pass goes through.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub(super) enum Throughput {
    Bytes(u64),
    BytesDecimal(u64),
    Elements(u64),
    Bits(u64),
    ElementsAndBytes { elements: u64, bytes: u64 },
}

impl Case {
    /// Returns how much it goes through in a nanosecond (bytes or elements: see [`Case::counts`]), or passes.
    pub(super) fn rate(&self) -> f64 {
        let n = match self.throughput {
            Some(Throughput::Bytes(n) | Throughput::BytesDecimal(n) | Throughput::Elements(n)) => n as f64,
            Some(Throughput::ElementsAndBytes { bytes, .. }) => bytes as f64,
            Some(Throughput::Bits(n)) => n as f64 / 8.0,
            None => 1.0,
        };
        n / self.median_ns
    }

    /// Returns the unit of a billion of what [`Case::rate`] counts a second; none if it counts passes.
    pub(super) fn counts(&self) -> Option<&'static str> {
        match self.throughput? {
            Throughput::Elements(_) => Some("G/s"),
            _ => Some("GB/s"),
        }
    }
}

#[derive(Deserialize)]
struct Benchmark {
    full_id: String,
    throughput: Option<Throughput>,
}

#[derive(Deserialize)]
struct Estimates {
    median: Estimate,
}

#[derive(Deserialize)]
struct Estimate {
    point_estimate: f64,
}

/// Reads every case below `folder` that was measured since `start`, in the order of their names.
///
/// # Errors
/// There is none, or one cannot be read.
pub(super) fn read(folder: &Path, start: SystemTime) -> Result<Vec<Case>> {
    let (mut cases, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        let written = folder.join("new/estimates.json").metadata().and_then(|file| file.modified());
        if written.is_ok_and(|written| written >= start) {
            cases.push(case(&folder.join("new"))?);
        }
        let entries = folder.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
        folders.extend(entries.filter(|path| path.is_dir()));
    }
    if cases.is_empty() {
        bail!("{} holds no measurement; run `cargo xtask bench --kernels` first", folder.display());
    }
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(cases)
}

fn case(folder: &Path) -> Result<Case> {
    let benchmark: Benchmark = parse(&folder.join("benchmark.json"))?;
    let estimates: Estimates = parse(&folder.join("estimates.json"))?;
    Ok(Case { name: benchmark.full_id, median_ns: estimates.median.point_estimate, throughput: benchmark.throughput })
}

fn parse<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not what criterion 0.8 writes", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_read() {
        let (root, start) = (tempfile::tempdir().expect("a temporary folder"), SystemTime::UNIX_EPOCH);
        assert!(read(root.path(), start).expect_err("nothing is there").to_string().contains("holds no measurement"));
        let folder = root.path().join("rms_norm/avx2/576/new");
        std::fs::create_dir_all(&folder).expect("folders");
        let benchmark = r#"{"group_id":"rms_norm","function_id":"avx2","value_str":"576","throughput":{"Bytes":2304},
            "full_id":"rms_norm/avx2/576","directory_name":"rms_norm/avx2/576","title":"rms_norm/avx2/576"}"#;
        let estimate = r#"{"confidence_interval":{},"point_estimate":41.5,"standard_error":0.1}"#;
        std::fs::write(folder.join("benchmark.json"), benchmark).expect("a file");
        std::fs::write(folder.join("estimates.json"), format!(r#"{{"mean":{estimate},"median":{estimate}}}"#))
            .expect("a file");
        let expected =
            Case { name: "rms_norm/avx2/576".to_owned(), median_ns: 41.5, throughput: Some(Throughput::Bytes(2304)) };
        assert_eq!((expected.rate(), expected.counts()), (2304.0 / 41.5, Some("GB/s")));
        assert_eq!(read(root.path(), start).expect("one case"), [expected]);
        let later = SystemTime::now() + std::time::Duration::from_secs(60);
        assert!(read(root.path(), later).is_err(), "an old measurement is not a new one");
    }
}
