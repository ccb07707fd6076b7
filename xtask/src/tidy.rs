//! `cargo xtask tidy`: what the compiler cannot check.
//!
//! | rule | holds for |
//! |---|---|
//! | layers | a crate depends only on crates of smaller number ([`LAYERS`]), its tests and examples on those of its own too; test crates are dev-dependencies only |
//! | packages | a crate that can be taken alone brings no more packages than its ceiling says |
//! | map | docs/src/architecture.md names every crate, and no crate that does not exist |
//! | sources | every `.rs` file opens with `//!`, no file is over 1,000 lines, no test is ignored |
//! | unsafe | crates forbid unsafe code, but for those that have SIMD, memory maps or rows that threads share |
//! | circles | the top-level modules of a crate use each other in one direction ([`circles`]) |
//! | records | adr/ is numbered without gaps; each record has its status, its date and its confirmation |
//! | links | every relative link of a Markdown file leads somewhere, and the book lists every page |
//! | licences | both licence texts are there, every crate says `MIT OR Apache-2.0`, and dependencies are under those of deny.toml ([`dependencies`]) |
//! | top level | nothing lies in the root that does not belong there |
//! | paths | no file names a folder outside the repository |
//! | words | public items are named by the field's words ([`words`]), and their docs open with their subject |
//! | types | crates that meet have no two public types of one name ([`types`]) |
//!
//! The rules are plain functions over names and texts, so that the tests can hand them small repositories.

mod circles;
mod dependencies;
mod packages;
mod records;
mod sources;
#[cfg(test)]
mod tests;
mod types;
mod words;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use cargo_metadata::{DependencyKind, MetadataCommand};

use crate::shell;

/// The layers: a crate may depend only on crates with a smaller number.
const LAYERS: [(&str, u8); 36] = [
    ("ruvllm-ggml", 0),
    ("ruvllm-shaders", 0),
    ("ruvllm-cpu", 0),
    ("ruvllm-kernels", 1),
    ("ruvllm-gguf", 1),
    ("ruvllm-store", 1),
    ("ruvllm-gpu", 2),
    ("ruvllm-metal", 2),
    ("ruvllm-kvcache", 2),
    ("ruvllm-model", 2),
    ("ruvllm-text", 2),
    ("ruvllm-pack-kernels", 2),
    ("ruvllm-packs", 3),
    ("ruvllm-grammar", 3),
    ("ruvllm-lora", 3),
    ("ruvllm-convert", 3),
    ("ruvllm-mcp", 3),
    ("ruvllm-sona", 4),
    ("ruvllm-backend", 4),
    ("ruvllm-native", 5),
    ("ruvllm-candle", 5),
    ("ruvllm-wgpu", 5),
    ("ruvllm-remote", 5),
    ("ruvllm-router", 5),
    ("ruvllm-engine", 6),
    ("ruvllm-learning", 7),
    ("ruvllm-witness", 7),
    ("ruvllm-hub", 7),
    ("ruvllm-api", 8),
    ("ruvllm-server-state", 9),
    ("ruvllm-wasm", 9),
    ("ruvllm-cli-tools", 9),
    ("ruvllm-server", 10),
    ("ruvllm-cli", 11),
    ("ruvllm-node", 12),
    ("ruvllm-python", 12),
];

/// Crates for tests: others may only name them as dev-dependencies.
const TEST_CRATES: [&str; 1] = ["ruvllm-testkit"];

/// Packages that stand outside the layers and may depend on everything.
const OUTSIDE: [&str; 2] = ["xtask", "ruvllm-benches"];

/// What the root may hold, beside what version control leaves out.
const TOP_LEVEL: [&str; 21] = [
    ".cargo",
    ".ci",
    ".git",
    ".github",
    ".gitignore",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "adr",
    "benches",
    "crates",
    "deny.toml",
    "docs",
    "examples",
    "fuzz",
    "packaging",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "xtask",
];

/// Folders of what is built or fetched.
const LEFT_OUT: [&str; 6] = [".git", ".gl", "target", "docs/book", "examples/web/node_modules", "examples/web/dist"];

/// What the rules look at.
struct Repo {
    /// Every package of the workspace.
    packages: Vec<Package>,
    /// Every text file by its path from the root, with `/` between folders.
    files: BTreeMap<String, String>,
}

/// A package of the workspace.
struct Package {
    name: String,
    licence: Option<String>,
    /// The names of the workspace packages it depends on, and whether only its tests do.
    dependencies: Vec<(String, bool)>,
}

/// Checks the repository.
///
/// # Errors
/// A rule is broken (each case is printed), or the repository cannot be read.
pub(crate) fn run() -> Result<()> {
    let root = shell::root();
    let repo = Repo { packages: packages(&root)?, files: read_files(&root)? };
    for (path, n_lines) in sources::long_files(&repo.files) {
        println!("warning: {path} has {n_lines} lines; past 500, look for the two files inside it");
    }
    let mut findings = check(&repo);
    findings.extend(packages::check()?);
    findings.extend(dependencies::check(&root)?);
    if findings.is_empty() {
        println!("tidy: {} packages, {} files", repo.packages.len(), repo.files.len());
        return Ok(());
    }
    for finding in &findings {
        eprintln!("tidy: {finding}");
    }
    bail!("tidy found {} problem(s)", findings.len())
}

/// Returns a line for every case of a broken rule.
fn check(repo: &Repo) -> Vec<String> {
    let mut findings = Vec::new();
    for package in &repo.packages {
        layers(package, &mut findings);
    }
    map(repo, &mut findings);
    licences(repo, &mut findings);
    top_level(&repo.files, &mut findings);
    sources::check(&repo.files, &mut findings);
    sources::long_crates(&repo.files, &mut findings);
    sources::forbids_unsafe(&repo.files, &mut findings);
    circles::check(&repo.files, &mut findings);
    words::check(&repo.files, &mut findings);
    types::check(&repo.packages, &repo.files, &mut findings);
    records::decisions(&repo.files, &mut findings);
    records::links(&repo.files, &mut findings);
    findings
}

/// The number of a crate's layer.
fn layer(name: &str) -> Option<u8> {
    LAYERS.iter().find(|(crate_name, _)| *crate_name == name).map(|(_, layer)| *layer)
}

fn layers(package: &Package, findings: &mut Vec<String>) {
    let name = &package.name;
    if OUTSIDE.contains(&name.as_str()) {
        return;
    }
    let own = layer(name);
    if own.is_none() && !TEST_CRATES.contains(&name.as_str()) {
        findings.push(format!("{name} has no layer; add it to the layers of xtask/src/tidy.rs"));
        return;
    }
    for (dependency, only_tests) in &package.dependencies {
        if OUTSIDE.contains(&dependency.as_str()) {
            findings.push(format!("{name} depends on {dependency}, which stands outside the layers"));
        } else if TEST_CRATES.contains(&dependency.as_str()) {
            if !only_tests {
                findings.push(format!("{name} depends on {dependency}; test crates are dev-dependencies only"));
            }
        } else if let (Some(own), Some(other)) = (own, layer(dependency))
            && (other > own || other == own && !only_tests)
        {
            findings
                .push(format!("{name} (layer {own}) depends on {dependency} (layer {other}), which is not below it"));
        }
    }
}

/// docs/src/architecture.md and crates/ name the same crates.
fn map(repo: &Repo, findings: &mut Vec<String>) {
    const PATH: &str = "docs/src/architecture.md";
    let Some(text) = repo.files.get(PATH) else {
        findings.push(format!("{PATH} is missing"));
        return;
    };
    let named: Vec<&str> = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_')).collect();
    for package in repo.packages.iter().filter(|package| package.name.starts_with("ruvllm-")) {
        if !named.contains(&package.name.as_str()) {
            findings.push(format!("{PATH} does not name {}", package.name));
        }
    }
    let mut unknown: Vec<&str> = named.into_iter().filter(|word| word.starts_with("ruvllm-")).collect();
    unknown.retain(|word| repo.packages.iter().all(|package| package.name != *word));
    unknown.sort_unstable();
    unknown.dedup();
    for word in unknown {
        findings.push(format!("{PATH} names {word}, which is no package of the workspace"));
    }
    if text.lines().count() > 300 {
        findings.push(format!("{PATH} has {} lines; it may have 300", text.lines().count()));
    }
}

fn licences(repo: &Repo, findings: &mut Vec<String>) {
    for (path, telling) in [("LICENSE-MIT", "Permission is hereby granted"), ("LICENSE-APACHE", "Apache License")] {
        if !repo.files.get(path).is_some_and(|text| text.contains(telling)) {
            findings.push(format!("{path} is missing or does not hold the licence"));
        }
    }
    for package in &repo.packages {
        if package.licence.as_deref() != Some("MIT OR Apache-2.0") {
            findings.push(format!("{} does not say 'license.workspace = true'", package.name));
        }
    }
}

fn top_level(files: &BTreeMap<String, String>, findings: &mut Vec<String>) {
    let mut entries: Vec<&str> = files.keys().filter_map(|path| path.split('/').next()).collect();
    entries.dedup();
    for entry in entries {
        if !TOP_LEVEL.contains(&entry) {
            findings.push(format!("{entry} does not belong in the root"));
        }
    }
}

/// Asks cargo for the packages of the workspace.
fn packages(root: &Path) -> Result<Vec<Package>> {
    let metadata = MetadataCommand::new()
        .current_dir(root)
        .no_deps()
        .exec()
        .context("cannot read the workspace with `cargo metadata`")?;
    let package = |package: &cargo_metadata::Package| Package {
        name: package.name.to_string(),
        licence: package.license.clone(),
        dependencies: (package.dependencies.iter())
            .filter(|dependency| dependency.path.is_some())
            .map(|dependency| (dependency.name.clone(), dependency.kind == DependencyKind::Development))
            .collect(),
    };
    Ok(metadata.packages.iter().map(package).collect())
}

/// Reads every text file below `root`, leaving out what is built or fetched. A file that is not UTF-8 is no text; its
/// path is kept with an empty text.
fn read_files(root: &Path) -> Result<BTreeMap<String, String>> {
    let (mut files, mut folders) = (BTreeMap::new(), vec![root.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        let entries = folder.read_dir().with_context(|| format!("cannot read the folder {}", folder.display()))?;
        for entry in entries {
            let (entry, path) = entry.map(|entry| (entry.file_type(), entry.path()))?;
            let relative = path.strip_prefix(root).expect("the walk stays below the root").to_string_lossy();
            let relative = relative.replace(std::path::MAIN_SEPARATOR, "/");
            if LEFT_OUT.contains(&relative.as_str()) || relative.ends_with(".profraw") {
                continue;
            }
            if entry?.is_dir() {
                folders.push(path);
            } else {
                let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
                files.insert(relative, String::from_utf8(bytes).unwrap_or_default());
            }
        }
    }
    Ok(files)
}
