//! Whose figures are measured: the machine and the commit.

use std::process::Command;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::shell;

/// The machine a figure belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Host {
    pub(super) name: String,
    cpu: String,
    n_cores: usize,
    memory_gib: u64,
}

impl Host {
    /// Describes this machine. `RUVLLM_BENCH_HOST` overrides the name, which in containers changes with every start.
    ///
    /// # Errors
    /// The machine has no name.
    pub(super) fn here() -> Result<Host> {
        let name = match std::env::var("RUVLLM_BENCH_HOST") {
            Ok(name) => name,
            Err(_) => shell::output(&mut Command::new("hostname"))?,
        };
        let name: String = name.trim().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        if name.is_empty() {
            bail!("this machine has no name; set RUVLLM_BENCH_HOST");
        }
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, key| {
            let line = text.lines().find(|line| line.starts_with(key));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
        };
        let kib =
            field(&read("/proc/meminfo"), "MemTotal").and_then(|value| value.split(' ').next()?.parse::<u64>().ok());
        Ok(Host {
            name,
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            n_cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
            memory_gib: kib.unwrap_or(0) >> 20,
        })
    }

    /// Refuses to compare figures of two machines.
    ///
    /// # Errors
    /// `old` has another processor or another number of cores.
    pub(super) fn same_machine(&self, old: &Host) -> Result<()> {
        if (&old.cpu, old.n_cores) != (&self.cpu, self.n_cores) {
            bail!(
                "the baseline is of {} with {} cores and this machine is {} with {}; figures of two machines do not compare",
                old.cpu,
                old.n_cores,
                self.cpu,
                self.n_cores
            );
        }
        Ok(())
    }
}

/// Returns the commit that is measured, marked where the tree has changes of its own.
///
/// # Errors
/// Git cannot say.
pub(super) fn commit() -> Result<String> {
    let describe = ["describe", "--always", "--dirty", "--abbrev=12"];
    Ok(shell::output(Command::new("git").args(describe).current_dir(shell::root()))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_are_refused() {
        let host = Host { name: "a".to_owned(), cpu: "Zen 5".to_owned(), n_cores: 2, memory_gib: 23 };
        assert!(host.same_machine(&Host { name: "b".to_owned(), memory_gib: 24, ..host.clone() }).is_ok());
        let more = Host { n_cores: 4, ..host.clone() };
        let error = more.same_machine(&host).expect_err("4 cores are not 2");
        assert!(error.to_string().contains("Zen 5 with 2 cores"), "{error}");
    }
}
