//! What the machine offers: CPU, cores, memory, limits. Linux tells all of it; other systems what the standard
//! library knows.

use std::collections::HashSet;
use std::path::Path;
use std::{fs, thread};

/// The most threads that can be asked for.
pub const MAX_THREADS: usize = 1024;

/// Facts about the machine, as `ruvllm detect` shows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Operating system and its version.
    pub os: String,
    /// Architecture, e.g. `x86_64`.
    pub arch: &'static str,
    /// Name of the CPU; empty where unknown.
    pub cpu: String,
    /// Hardware threads of the machine.
    pub n_logical: usize,
    /// Cores of the machine, where known.
    pub n_physical: Option<usize>,
    /// Threads this process may use at once: affinity and cgroup quota counted.
    pub n_available: usize,
    /// Bytes of memory, where known.
    pub memory_bytes: Option<u64>,
    /// Bytes of memory that can be taken without swapping, where known.
    pub memory_available_bytes: Option<u64>,
    /// Limit of the control group in bytes, where there is one.
    pub memory_limit_bytes: Option<u64>,
    /// The mode of transparent huge pages, where known.
    pub huge_pages: Option<String>,
}

impl Machine {
    /// Asks the system.
    pub fn detect() -> Machine {
        let cpuinfo = read("/proc/cpuinfo");
        let meminfo = read("/proc/meminfo");
        let n_available = n_available();
        let n_logical = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
        Machine {
            os: os_name(),
            arch: std::env::consts::ARCH,
            cpu: field(&cpuinfo, "model name").or_else(|| field(&cpuinfo, "Hardware")).unwrap_or_default(),
            n_logical: n_logical.max(n_available),
            n_physical: n_physical(Path::new("/sys/devices/system/cpu")),
            n_available,
            memory_bytes: kilobytes(&meminfo, "MemTotal"),
            memory_available_bytes: kilobytes(&meminfo, "MemAvailable"),
            memory_limit_bytes: memory_limit(),
            huge_pages: selected(&read("/sys/kernel/mm/transparent_hugepage/enabled")),
        }
    }

    /// Returns the bytes a model and its cache may take: what is free, within the control group's limit.
    pub fn usable_bytes(&self) -> Option<u64> {
        let free = self.memory_available_bytes.or(self.memory_bytes)?;
        Some(self.memory_limit_bytes.map_or(free, |limit| limit.min(free)))
    }
}

/// Returns the threads to compute with: one a core, no more than the process may use.
pub fn default_threads() -> usize {
    let available = n_available();
    n_physical(Path::new("/sys/devices/system/cpu")).map_or(available, |cores| cores.min(available)).max(1)
}

/// Returns what affinity and cgroup quota leave to this process.
fn n_available() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the most memory this process has held at once, in bytes, where the system tells (Linux: `VmHWM`).
pub fn peak_bytes() -> Option<u64> {
    kilobytes(&read("/proc/self/status"), "VmHWM")
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Returns the value of the first `name : value` line.
fn field(text: &str, name: &str) -> Option<String> {
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
}

fn kilobytes(meminfo: &str, name: &str) -> Option<u64> {
    let value = field(meminfo, name)?;
    value.strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the word in brackets of `always [madvise] never`.
fn selected(text: &str) -> Option<String> {
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

fn os_name() -> String {
    let release = read("/etc/os-release");
    let pretty = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let pretty = pretty.map(|name| name.trim_matches('"').to_owned());
    let name = pretty.unwrap_or_else(|| std::env::consts::OS.to_owned());
    match read("/proc/sys/kernel/osrelease").trim() {
        "" => name,
        kernel => format!("{name} (kernel {kernel})"),
    }
}

/// Counts cores: groups of hardware threads that share one.
fn n_physical(cpus: &Path) -> Option<usize> {
    let mut cores = HashSet::new();
    for entry in fs::read_dir(cpus).ok()?.flatten() {
        let name = entry.file_name();
        let is_cpu = name.to_str().and_then(|n| n.strip_prefix("cpu")).is_some_and(|n| n.parse::<usize>().is_ok());
        if is_cpu && let Ok(siblings) = fs::read_to_string(entry.path().join("topology/thread_siblings_list")) {
            cores.insert(siblings.trim().to_owned());
        }
    }
    (!cores.is_empty()).then_some(cores.len())
}

/// Returns the memory limit of this process's control group (version 2, then version 1).
fn memory_limit() -> Option<u64> {
    let group = read("/proc/self/cgroup").lines().find_map(|line| Some(line.strip_prefix("0::")?.to_owned()));
    let own = group.map(|path| format!("/sys/fs/cgroup{}/memory.max", path.trim_end_matches('/')));
    let files = own
        .into_iter()
        .chain(["/sys/fs/cgroup/memory.max".to_owned(), "/sys/fs/cgroup/memory/memory.limit_in_bytes".to_owned()]);
    // Version 1 writes a number near 2^63 where there is no limit.
    files.filter_map(|file| read(&file).trim().parse::<u64>().ok()).find(|limit| *limit < 1 << 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_files_are_read() {
        let meminfo = "MemTotal:       24684092 kB\nMemFree:        1 kB\n";
        assert_eq!(kilobytes(meminfo, "MemTotal"), Some(24_684_092 * 1024));
        assert_eq!(kilobytes(meminfo, "Swap"), None);
        assert_eq!(selected("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(selected(""), None);
        assert_eq!(field("a\t: b c\n", "a").as_deref(), Some("b c"));
    }

    #[test]
    fn siblings_share_a_core() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for (cpu, siblings) in [("cpu0", "0,2"), ("cpu1", "1,3"), ("cpu2", "0,2"), ("cpu3", "1,3"), ("cpufreq", "9")] {
            let topology = dir.path().join(cpu).join("topology");
            fs::create_dir_all(&topology).expect("a temporary folder is writable");
            fs::write(topology.join("thread_siblings_list"), siblings).expect("a temporary folder is writable");
        }
        assert_eq!(n_physical(dir.path()), Some(2));
        assert_eq!(n_physical(&dir.path().join("none")), None);
    }

    #[test]
    fn this_machine_has_threads() {
        let machine = Machine::detect();
        assert!(machine.n_available >= 1 && machine.n_logical >= machine.n_available);
        assert!((1..=machine.n_available).contains(&default_threads()));
        assert!(peak_bytes().is_none_or(|bytes| bytes > 1 << 16));
    }
}
