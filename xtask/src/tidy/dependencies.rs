//! Licences of dependencies: each is one that `deny.toml` allows, as `cargo deny` reads it.

use std::path::Path;

use anyhow::{Context, Result};
use cargo_metadata::MetadataCommand;
use spdx::{Expression, Licensee, ParseMode};
use toml_edit::DocumentMut;

/// Returns a line for each dependency under a licence that `deny.toml` does not allow.
///
/// # Errors
/// `cargo metadata` fails, or `deny.toml` cannot be read.
pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let path = root.join("deny.toml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let allowed = allowed(&text).context("deny.toml")?;
    let metadata = MetadataCommand::new().current_dir(root).other_options(["--locked".to_owned()]).exec();
    let metadata = metadata.context("cannot read the dependencies with `cargo metadata`")?;
    let packages = metadata.packages.iter();
    Ok(packages.filter_map(|package| problem(package.name.as_str(), package.license.as_deref(), &allowed)).collect())
}

/// Returns the licences that a `deny.toml` allows.
fn allowed(text: &str) -> Result<Vec<Licensee>> {
    let document: DocumentMut = text.parse()?;
    let list = document.get("licenses").and_then(|licenses| licenses.get("allow"));
    let list = list.and_then(|allow| allow.as_array()).context("[licenses] has no list 'allow'")?;
    let names = list.iter().map(|name| name.as_str().context("'allow' is a list of texts"));
    names.map(|name| Licensee::parse(name?).map_err(|error| anyhow::anyhow!("{error}"))).collect()
}

fn problem(name: &str, licence: Option<&str>, allowed: &[Licensee]) -> Option<String> {
    let Some(licence) = licence else { return Some(format!("{name} says no licence")) };
    let Ok(expression) = Expression::parse_mode(licence, ParseMode::LAX) else {
        return Some(format!("{name}: '{licence}' is no licence expression"));
    };
    let is_allowed = expression.evaluate(|wanted| allowed.iter().any(|licensee| licensee.satisfies(wanted)));
    (!is_allowed)
        .then(|| format!("{name} is under {licence}, which deny.toml does not allow; drop it, or allow it and say why"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_those_that_are_allowed() {
        let allowed = allowed("[licenses]\nallow = [\"MIT\", \"Apache-2.0 WITH LLVM-exception\"]\n").expect("a list");
        let is_right = |licence: &str| problem("x", Some(licence), &allowed).is_none();
        assert!(is_right("MIT") && is_right("GPL-3.0 OR MIT") && is_right("Apache-2.0/MIT"));
        assert!(is_right("Apache-2.0 WITH LLVM-exception"));
        assert!(!is_right("GPL-3.0") && !is_right("MIT AND Apache-2.0") && problem("x", None, &allowed).is_some());
    }
}
