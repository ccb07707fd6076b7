//! Rules about single files: sizes, opening comments, ignored tests, unsafe code, paths outside the repository.

use std::collections::BTreeMap;

use super::words::GENERATED;

/// The most lines a source file may have.
const N_LINES_MAX: usize = 1000;

/// The lines past which a source file earns a warning.
const N_LINES_WARN: usize = 500;

/// The most lines of code that a crate may have, without tests, generated files, comments and blank lines.
const CRATE_LINES_MAX: usize = 11_000;

/// Returns the sources past the warning, longest first, with their lines.
pub(super) fn long_files(files: &BTreeMap<String, String>) -> Vec<(&str, usize)> {
    let mut long: Vec<(&str, usize)> = (files.iter())
        .filter(|(path, _)| is_source(path))
        .filter(|(_, text)| (N_LINES_WARN + 1..=N_LINES_MAX).contains(&text.lines().count()))
        .map(|(path, text)| (path.as_str(), text.lines().count()))
        .collect();
    long.sort_by_key(|(_, n_lines)| std::cmp::Reverse(*n_lines));
    long
}

/// Checks how long each crate is.
pub(super) fn long_crates(files: &BTreeMap<String, String>, findings: &mut Vec<String>) {
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    for (path, text) in files {
        let Some((name, source)) = path.strip_prefix("crates/").and_then(|path| path.split_once("/src/")) else {
            continue;
        };
        let is_test = source.ends_with("tests.rs") || source.contains("tests/");
        if path.ends_with(".rs") && !is_test && !GENERATED.contains(&path.as_str()) {
            *lines.entry(name).or_default() += lines_of_code(text);
        }
    }
    for (name, n_lines) in lines.into_iter().filter(|(_, n_lines)| *n_lines > CRATE_LINES_MAX) {
        findings.push(format!(
            "crates/{name} has {n_lines} lines of code ({CRATE_LINES_MAX} at most); look for the two crates inside it"
        ));
    }
}

/// Returns the lines of code before the tests at the end of a file.
fn lines_of_code(text: &str) -> usize {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

/// Crates that may have `unsafe` code: SIMD, memory maps, rows that threads write side by side, calls of Metal, addresses that the host
/// of a WebAssembly module gives. `ruvllm-ggml` derives it, and so does `ruvllm-node` (`#[napi]`).
const MAY_BE_UNSAFE: [&str; 9] = [
    "ruvllm-ggml",
    "ruvllm-cpu",
    "ruvllm-kernels",
    "ruvllm-gguf",
    "ruvllm-kvcache",
    "ruvllm-lora",
    "ruvllm-metal",
    "ruvllm-node",
    "ruvllm-pack-kernels",
];

/// Every other crate forbids it.
pub(super) fn forbids_unsafe(files: &BTreeMap<String, String>, findings: &mut Vec<String>) {
    for (path, text) in files {
        let parts: Vec<&str> = path.split('/').collect();
        let ["crates", name, "src", "lib.rs" | "main.rs"] = parts[..] else { continue };
        if !MAY_BE_UNSAFE.contains(&name) && !text.contains("#![forbid(unsafe_code)]") {
            findings.push(format!("{path} does not forbid unsafe code; add #![forbid(unsafe_code)]"));
        }
    }
}

/// Checks every file by itself.
pub(super) fn check(files: &BTreeMap<String, String>, findings: &mut Vec<String>) {
    // Put together here, so that this file does not break its own rule.
    let outside = [concat!("..", "/shared"), concat!("/work", "/shared"), concat!("/work", "/main")];
    for (path, text) in files {
        for folder in outside {
            if let Some(at) = text.lines().position(|line| line.contains(folder)) {
                findings.push(format!("{path}:{}: names {folder}, which is not in the repository", at + 1));
            }
        }
        if !is_source(path) {
            continue;
        }
        let n_lines = text.lines().count();
        if n_lines > N_LINES_MAX {
            findings
                .push(format!("{path} has {n_lines} lines; look for the two files inside it ({N_LINES_MAX} at most)"));
        }
        if path.ends_with(".rs") {
            rust(path, text, findings);
        }
    }
}

fn rust(path: &str, text: &str, findings: &mut Vec<String>) {
    if !text.starts_with("//!") {
        findings.push(format!("{path} does not open with `//!`"));
    }
    let ignored = |line: &str| line.trim_start().starts_with("#[ignore");
    if let Some(at) = text.lines().position(ignored) {
        findings.push(format!("{path}:{}: a test is ignored; one that cannot run fails", at + 1));
    }
}

/// Whether a file is written by hand as source or text, as opposed to data.
fn is_source(path: &str) -> bool {
    let written = [".rs", ".md", ".py", ".toml"].iter().any(|ending| path.ends_with(ending));
    written && !path.contains("/testdata/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_has_a_size() {
        let file = |path: &str, n_lines: usize| (path.to_owned(), "x;\n\n// x\n".repeat(n_lines));
        let tests = "x;\n#[cfg(test)]\nmod tests {\n".to_owned() + &"x;\n".repeat(9_000);
        let mut files = BTreeMap::from([
            file("crates/ruvllm-a/src/lib.rs", 9_000),
            file("crates/ruvllm-a/src/other.rs", 1_999),
            ("crates/ruvllm-a/src/short.rs".to_owned(), tests),
            file("crates/ruvllm-a/src/short/tests.rs", 9_000),
            file("crates/ruvllm-a/tests/it/main.rs", 9_000),
        ]);
        let mut findings = Vec::new();
        long_crates(&files, &mut findings);
        assert!(findings.is_empty(), "{findings:?}");
        files.extend([file("crates/ruvllm-a/src/more.rs", 1)]);
        long_crates(&files, &mut findings);
        assert!(findings.len() == 1 && findings[0].contains("has 11001 lines"), "{findings:?}");
    }

    #[test]
    fn crates_forbid_unsafe_code_but_for_some() {
        let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        let files = BTreeMap::from([
            file("crates/ruvllm-a/src/lib.rs", "//! x\n\n#![forbid(unsafe_code)]\n"),
            file("crates/ruvllm-b/src/lib.rs", "//! x\n"),
            file("crates/ruvllm-b/src/other.rs", "//! x\n"),
            file("crates/ruvllm-kernels/src/lib.rs", "//! x\n"),
        ]);
        let mut findings = Vec::new();
        forbids_unsafe(&files, &mut findings);
        let line = "crates/ruvllm-b/src/lib.rs does not forbid unsafe code; add #![forbid(unsafe_code)]";
        assert_eq!(findings, [line]);
    }
}
