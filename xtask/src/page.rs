//! `cargo xtask codegen page`: the server's page, built of its sources and committed, so that builds need no Node.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{node, shell};

/// Sources of the page, and what is made of them.
const SOURCES: &str = "crates/ruvllm-server/page";
const BUILT: &str = "crates/ruvllm-server/src/page/dist";

/// Builds the page, or compares it with what is there.
///
/// # Errors
/// A source is wrong, a package cannot be had, or with `is_check` the page is another one.
pub(crate) fn make(is_check: bool) -> Result<()> {
    let (sources, built) = (shell::root().join(SOURCES), shell::root().join(BUILT));
    let modules = shell::target_dir().join("page-modules");
    node::install(&sources, &modules)?;
    let build = |out: &Path| {
        shell::run(Command::new("node").arg(sources.join("build.mjs")).args([modules.as_path(), out]))
            .context("the page")
    };
    if !is_check {
        return build(&built);
    }
    let made = tempfile::tempdir().context("cannot make a temporary folder")?;
    build(made.path())?;
    match difference(&files(made.path())?, &files(&built)?) {
        None => Ok(()),
        Some(name) => bail!("{BUILT}/{name} is not what {SOURCES} gives: run `cargo xtask codegen page`"),
    }
}

/// Reads all files of a folder.
fn files(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in folder.read_dir().with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry.with_context(|| format!("cannot read {}", folder.display()))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        files.insert(name, std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?);
    }
    Ok(files)
}

/// Returns the first name that one of two folders lacks, or has with other bytes.
fn difference(one: &BTreeMap<String, Vec<u8>>, other: &BTreeMap<String, Vec<u8>>) -> Option<String> {
    one.keys().chain(other.keys()).find(|name| one.get(*name) != other.get(*name)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_compared_by_names_and_bytes() {
        let folder = |files: &[(&str, &str)]| -> BTreeMap<String, Vec<u8>> {
            files.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect()
        };
        let one = folder(&[("a", "1"), ("b", "2")]);
        assert_eq!(difference(&one, &one), None);
        assert_eq!(difference(&one, &folder(&[("a", "1")])).as_deref(), Some("b"));
        assert_eq!(difference(&folder(&[("a", "1")]), &one).as_deref(), Some("b"));
        assert_eq!(difference(&one, &folder(&[("a", "1"), ("b", "3")])).as_deref(), Some("b"));
    }
}
