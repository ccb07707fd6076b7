//! Descriptors of the process: how many connections have room among them.

/// Descriptors that are left for files: models, stores, what is loaded later.
const FILES_RESERVED: usize = 16;
/// Fewer connections than this are worth a line in the log.
const CONNECTIONS_FEW: usize = 256;
/// Connections are never fewer than this.
const CONNECTIONS_MIN: usize = 4;

/// Returns how many connections may be open at once: `wanted`, or as many as the process has descriptors for.
pub(crate) fn fitting(wanted: usize) -> usize {
    let Some(limit) = descriptors_max() else { return wanted };
    let n_open = std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count());
    let fit = limit.saturating_sub(n_open + FILES_RESERVED).max(CONNECTIONS_MIN);
    if fit < wanted.min(CONNECTIONS_FEW) {
        tracing::warn!(descriptors = limit, connections = fit, "few descriptors: raise the limit for more connections");
    }
    wanted.min(fit)
}

/// Returns how many descriptors the process may have, where the system tells.
fn descriptors_max() -> Option<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}
