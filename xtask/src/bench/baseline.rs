//! Baselines: a folder per host, `benches/baselines/<host>/`, with the ratios of its kernels and of its models.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::host::Host;
use super::ratio::{ByCase, Ratios, mean};
use crate::shell;

/// Ratios of one kind (`kernels` or `models`), by the name of the case.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Baseline {
    pub(super) host: Host,
    pub(super) commit: String,
    /// What the machine could do meanwhile, to turn shares back into rates.
    pub(super) machine: BTreeMap<String, String>,
    pub(super) ratios: ByCase,
}

/// Where the baseline of one kind lies, for this host.
pub(super) struct Place {
    all: PathBuf,
    host: Host,
    file: String,
}

impl Place {
    pub(super) fn new(host: &Host, kind: &str) -> Place {
        let all = shell::root().join("benches/baselines");
        Place { all, host: host.clone(), file: format!("{kind}.json") }
    }

    fn path(&self) -> PathBuf {
        self.all.join(&self.host.name).join(&self.file)
    }

    /// Reads the baseline.
    ///
    /// # Errors
    /// There is none, it is not one, or it is of another machine.
    pub(super) fn load(&self) -> Result<Baseline> {
        let path = self.path();
        if !path.is_file() {
            let entries = self.all.read_dir().into_iter().flatten().flatten();
            let mut hosts: Vec<String> = entries
                .filter(|entry| entry.path().join(&self.file).is_file())
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect();
            hosts.sort();
            let hosts = if hosts.is_empty() { "none".to_owned() } else { hosts.join(", ") };
            bail!(
                "no {} for host {} (there is: {hosts}); run `cargo xtask bench save` first, or set RUVLLM_BENCH_HOST",
                self.file,
                self.host.name
            );
        }
        let old = read(&path)?;
        self.host.same_machine(&old.host)?;
        Ok(old)
    }

    /// Writes the baseline. With `keep`, cases that were not measured this time stay as they were.
    ///
    /// # Errors
    /// It cannot be written, or the one to be kept cannot be read.
    pub(super) fn save(&self, mut new: Baseline, keep: bool) -> Result<()> {
        let path = self.path();
        if keep && path.exists() {
            let mut old = self.load()?;
            old.ratios.append(&mut new.ratios);
            new.ratios = old.ratios;
        }
        let folder = self.all.join(&self.host.name);
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let json = serde_json::to_string_pretty(&new).expect("maps of numbers are JSON") + "\n";
        std::fs::write(&path, json).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}: {} cases", path.display(), new.ratios.len());
        Ok(())
    }
}

fn read(path: &Path) -> Result<Baseline> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| {
        format!("{} is no baseline of this version; run `cargo xtask bench save` again", path.display())
    })
}

/// How one ratio of a case changed.
pub(super) struct Change {
    pub(super) case: String,
    kind: &'static str,
    old: f64,
    new: f64,
}

impl Change {
    fn factor(&self) -> f64 {
        self.new / self.old
    }
}

/// Returns every ratio that both have.
pub(super) fn changes(old: &ByCase, new: &ByCase) -> Vec<Change> {
    let both = new.iter().filter_map(|(case, new)| Some((case, new, old.get(case)?)));
    let of_case = |(case, new, old): (&String, &Ratios, &Ratios)| {
        let old: BTreeMap<_, _> = old.each().collect();
        let pairs = new.each().filter_map(|(kind, new)| Some((kind, *old.get(kind)?, new))).collect::<Vec<_>>();
        let change = |(kind, old, new)| Change { case: case.clone(), kind, old, new };
        pairs.into_iter().map(change).collect::<Vec<_>>()
    };
    both.flat_map(of_case).collect()
}

/// Returns those that fell by more than `tolerance` percent.
pub(super) fn fallen(changes: &[Change], tolerance: f64) -> Vec<&Change> {
    changes.iter().filter(|change| change.factor() < 1.0 - tolerance / 100.0).collect()
}

/// Returns a line per ratio, then the mean of each kind.
pub(super) fn show(changes: &[Change], tolerance: f64) -> String {
    let mut out = format!("{:>8}  {:>8}  {:>8}\n", "before", "now", "now/bef.");
    for change in changes {
        let Change { case, kind, old, new } = change;
        let mark = if fallen(std::slice::from_ref(change), tolerance).is_empty() { "" } else { "  FELL" };
        let number = |ratio: f64| if *kind == "over scalar" { format!("{ratio:.1}×") } else { format!("{ratio:.3}") };
        let (old, new) = (number(*old), number(*new));
        writeln!(out, "{old:>8}  {new:>8}  {:>7.3}×  {case}, {kind}{mark}", change.factor())
            .expect("a string takes all");
    }
    let mut kinds: Vec<&str> = changes.iter().map(|change| change.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    for kind in kinds {
        let factors: Vec<f64> = changes.iter().filter(|change| change.kind == kind).map(Change::factor).collect();
        let mean = mean(factors.iter().copied()).expect("a kind has a change");
        writeln!(out, "{:>27.3}×  geometric mean of {} ratios {kind}", mean, factors.len())
            .expect("a string takes all");
    }
    out
}

#[cfg(test)]
mod tests {

    use super::*;

    fn ratios(pairs: &[(&str, f64, Option<f64>)]) -> ByCase {
        let ratios = |(name, scalar, machine): &(&str, f64, Option<f64>)| {
            ((*name).to_owned(), Ratios { over_scalar: Some(*scalar), of_machine: *machine, over_peer: None })
        };
        pairs.iter().map(ratios).collect()
    }

    fn baseline(ratios: ByCase) -> Baseline {
        let machine = BTreeMap::from([("machine/dot/avx512".to_owned(), "464.1 G/s".to_owned())]);
        Baseline { host: Host::default(), commit: "abc".to_owned(), machine, ratios }
    }

    #[test]
    fn what_fell_is_told() {
        let old = ratios(&[("a", 10.0, Some(0.8)), ("b", 2.0, None), ("gone", 1.0, None)]);
        let new = ratios(&[("a", 11.0, Some(0.7)), ("b", 1.9, Some(0.5)), ("new", 1.0, None)]);
        let changes = changes(&old, &new);
        let lines = show(&changes, 10.0);
        let expected = "  before       now  now/bef.\n   10.0×     11.0×    1.100×  a, over scalar\n   \
                        0.800     0.700    0.875×  a, of the machine  FELL\n    2.0×      1.9×    0.950×  b, over scalar\n                      \
                        0.875×  geometric mean of 1 ratios of the machine\n                      \
                        1.022×  geometric mean of 2 ratios over scalar\n";
        assert_eq!(lines, expected);
        assert_eq!(fallen(&changes, 10.0).len(), 1);
        assert_eq!(fallen(&changes, 15.0).len(), 0);
    }

    #[test]
    fn baselines_are_kept_and_read() {
        let all = tempfile::tempdir().expect("a temporary folder");
        let place = |name: &str| Place {
            all: all.path().to_path_buf(),
            host: serde_json::from_str(&format!(r#"{{"name":"{name}","cpu":"","n_cores":0,"memory_gib":0}}"#))
                .expect("a host"),
            file: "kernels.json".to_owned(),
        };
        let error = place("here").load().expect_err("nothing is there").to_string();
        assert!(error.contains("(there is: none); run `cargo xtask bench save`"), "{error}");
        place("here").save(baseline(ratios(&[("a", 1.0, None)])), false).expect("it can be written");
        place("here").save(baseline(ratios(&[("b", 2.0, None)])), true).expect("it can be written");
        let both = ratios(&[("a", 1.0, None), ("b", 2.0, None)]);
        assert_eq!(place("here").load().expect("it is there"), baseline(both));
        let error = place("there").load().expect_err("another host").to_string();
        assert!(error.starts_with("no kernels.json for host there (there is: here)"), "{error}");
    }
}
