//! The software bill of materials: each package that the program is built of, in CycloneDX 1.5.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package, PackageId};
use serde_json::{Value, json};

use crate::shell;

/// Returns the bill of a package of the workspace, for Linux on x86-64, with its default features.
///
/// # Errors
/// `cargo metadata` fails, or there is no such package.
pub(super) fn bill(name: &str) -> Result<Value> {
    let metadata = MetadataCommand::new()
        .current_dir(shell::root())
        .other_options(["--locked", "--filter-platform", "x86_64-unknown-linux-gnu"].map(str::to_owned))
        .exec()
        .context("cannot read the dependencies with `cargo metadata`")?;
    of_metadata(&metadata, name)
}

fn of_metadata(metadata: &Metadata, name: &str) -> Result<Value> {
    let packages: BTreeMap<&PackageId, &Package> =
        metadata.packages.iter().map(|package| (&package.id, package)).collect();
    let root = metadata.packages.iter().find(|package| package.name.as_str() == name);
    let root = root.with_context(|| format!("there is no package {name}"))?;
    let resolve = metadata.resolve.as_ref().context("`cargo metadata` tells no dependencies")?;
    let normal: BTreeMap<&PackageId, Vec<&PackageId>> = resolve
        .nodes
        .iter()
        .map(|node| {
            let is_built_in = |kind: &cargo_metadata::DepKindInfo| kind.kind == DependencyKind::Normal;
            let deps = node.deps.iter().filter(|dep| dep.dep_kinds.iter().any(is_built_in));
            (&node.id, deps.map(|dep| &dep.pkg).collect())
        })
        .collect();
    let (mut found, mut left) = (BTreeSet::new(), vec![&root.id]);
    while let Some(id) = left.pop() {
        if found.insert(id) {
            left.extend(normal.get(id).into_iter().flatten());
        }
    }
    let purl = |id: &PackageId| packages.get(id).map(|package| purl(package)).unwrap_or_default();
    let components: Vec<Value> = found
        .iter()
        .filter(|id| **id != &root.id)
        .filter_map(|id| packages.get(*id))
        .map(|one| component(one, "library"))
        .collect();
    let dependencies: Vec<Value> = found
        .iter()
        .map(|id| {
            let on: BTreeSet<String> = normal.get(*id).into_iter().flatten().map(|id| purl(id)).collect();
            json!({ "ref": purl(id), "dependsOn": on })
        })
        .collect();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": component(root, "application") },
        "components": components,
        "dependencies": dependencies,
    }))
}

fn purl(package: &Package) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version)
}

fn component(package: &Package, kind: &str) -> Value {
    let mut component = json!({
        "type": kind,
        "bom-ref": purl(package),
        "name": package.name.as_str(),
        "version": package.version.to_string(),
        "purl": purl(package),
    });
    if let Some(licence) = &package.license {
        // Old manifests write a slash where SPDX has OR.
        component["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
    }
    if let Some(description) = &package.description {
        component["description"] = description.trim().into();
    }
    component
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bill_has_what_the_program_is_built_of() {
        let bill = bill("ruvllm-cli").expect("the workspace has it");
        let components = bill["components"].as_array().expect("a list");
        let has = |name: &str| components.iter().any(|one| one["name"] == name);
        assert!(components.len() > 100, "{}", components.len());
        assert!(has("ruvllm-engine") && has("clap") && has("redb") && !has("insta") && !has("ruvllm-testkit"));
        assert!(components.iter().all(|one| one["licenses"].is_array()), "each says its licence");
        assert_eq!(bill["metadata"]["component"]["name"], "ruvllm-cli");
        let refs: BTreeSet<&str> = components.iter().filter_map(|one| one["bom-ref"].as_str()).collect();
        let on = bill["dependencies"]
            .as_array()
            .expect("a list")
            .iter()
            .flat_map(|one| one["dependsOn"].as_array().expect("a list"));
        assert!(on.filter_map(Value::as_str).all(|id| refs.contains(id)), "each is there");
    }
}
