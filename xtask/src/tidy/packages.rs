//! Ceilings of packages: a crate that can be taken alone stays cheap to take.

use std::collections::BTreeSet;

use anyhow::Result;

use crate::shell::{self, cargo};

/// The most packages that a crate may bring, itself included, with its default features or as flags behind its name say
/// (`cargo tree -e normal`). A new dependency raises the number in the same commit, which says why.
const CEILINGS: [(&str, usize); 28] = [
    ("ruvllm-ggml", 6),
    ("ruvllm-shaders", 1),
    ("ruvllm-gpu", 60),
    ("ruvllm-ggml --features quantize", 12),
    ("ruvllm-cpu", 13),
    ("ruvllm-kernels", 16),
    ("ruvllm-gguf", 14),
    ("ruvllm-store", 25),
    ("ruvllm-kvcache", 16),
    ("ruvllm-kvcache --features disk", 25),
    ("ruvllm-model", 18),
    ("ruvllm-lora", 23),
    ("ruvllm-convert", 60),
    ("ruvllm-mcp", 63),
    ("ruvllm-text", 27),
    ("ruvllm-grammar", 85),
    ("ruvllm-backend", 48),
    ("ruvllm-native", 60),
    ("ruvllm-wgpu", 91),
    ("ruvllm-remote", 77),
    ("ruvllm-engine", 75),
    ("ruvllm-engine --no-default-features", 60),
    ("ruvllm-sona", 101),
    ("ruvllm-learning", 147),
    ("ruvllm-hub", 75),
    ("ruvllm-api", 160),
    ("ruvllm-cli-tools", 302),
    ("ruvllm-wasm", 170),
];

/// Returns a line for each crate that brings more packages than it may.
///
/// # Errors
/// `cargo tree` fails.
pub(super) fn check() -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for (name, most) in CEILINGS {
        let tree = cargo("tree --edges normal --prefix none --locked --package");
        let n = count(&shell::output({ tree }.args(name.split(' ')))?);
        problems.extend(problem(name, n, most));
    }
    Ok(problems)
}

fn problem(name: &str, n: usize, most: usize) -> Option<String> {
    let line = format!("{name} brings {n} packages, {most} are allowed; drop one, or raise its ceiling and say why");
    (n > most).then_some(line)
}

/// Counts the packages of a tree: each name and version once.
fn count(tree: &str) -> usize {
    let package = |line: &str| Some(line.split(" (").next()?.trim().to_owned()).filter(|name| !name.is_empty());
    tree.lines().filter_map(package).collect::<BTreeSet<String>>().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_counted_once() {
        let tree = "a v1.0.0 (/work/a)\nb v2.0.0\nb v2.0.0 (*)\nb v3.0.0\nc v1.0.0 (proc-macro)\n\n";
        assert_eq!(count(tree), 4);
        assert_eq!(problem("a", 4, 4), None);
        assert!(problem("a", 5, 4).is_some_and(|line| line.starts_with("a brings 5 packages, 4 are allowed")));
    }
}
