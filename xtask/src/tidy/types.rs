//! One noun, one type: crates that meet have no two public types of one name.

use std::collections::{BTreeMap, BTreeSet};

use super::Package;
use super::words::{GENERATED, declared};

/// Names that several public types have, and why they may.
const EXCEPTIONS: [(&str, &str); 7] = [
    ("Constraint", "without grammars it is another type that nobody can make"),
    ("Grammar", "without grammars it is another type that nobody can make"),
    ("GrammarCompiler", "without grammars it is another type that nobody can make"),
    ("CachedPrefix", "the contract's, and that of the cache which the native backend has"),
    ("Segment", "rows of a sequence in a batch, and in the attention of one"),
    ("Session", "a conversation of an engine, and what the cache folder has of it"),
    ("Usage", "tokens of a request, and pages of a cache"),
];

/// Programs that are a library for a few functions: others see those, and not the types of their modules.
const PROGRAMS: [&str; 1] = ["ruvllm-cli"];

/// Keywords of the items that are types.
const TYPES: [&str; 5] = ["struct", "enum", "trait", "type", "union"];

/// Checks the libraries among the crates: whoever uses one sees the types of those that it depends on, too.
pub(super) fn check(packages: &[Package], files: &BTreeMap<String, String>, findings: &mut Vec<String>) {
    let mut places: BTreeMap<&str, Vec<Place<'_>>> = BTreeMap::new();
    for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".rs") && !GENERATED.contains(&path.as_str())) {
        let Some((name, _)) = path.strip_prefix("crates/").and_then(|path| path.split_once("/src/")) else { continue };
        if PROGRAMS.contains(&name) || !files.contains_key(&format!("crates/{name}/src/lib.rs")) {
            continue;
        }
        for (line, item) in (1..).zip(text.lines().map(str::trim)) {
            if let Some(found) = item.strip_prefix("pub ").and_then(type_name) {
                places.entry(found).or_default().push(Place { package: name, path, line });
            }
        }
    }
    let below: BTreeMap<&str, BTreeSet<&str>> =
        packages.iter().map(|package| (package.name.as_str(), reached(packages, &package.name))).collect();
    for (name, places) in places.iter().filter(|(name, _)| !EXCEPTIONS.iter().any(|(known, _)| known == *name)) {
        let meets = |one: &Place<'_>, other: &Place<'_>| {
            one.package == other.package || below.get(one.package).is_some_and(|below| below.contains(other.package))
        };
        let pairs =
            places.iter().enumerate().flat_map(|(i, one)| places[i + 1..].iter().map(move |other| (one, other)));
        for (one, other) in pairs.filter(|(one, other)| meets(one, other) || meets(other, one)) {
            findings.push(format!("{one} and {other} both have a public type `{name}`; give one of them another name"));
        }
    }
}

/// Place of a declaration.
struct Place<'a> {
    package: &'a str,
    path: &'a str,
    line: usize,
}

impl std::fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.path, self.line)
    }
}

/// Returns the name of the type that a line declares after its `pub`.
fn type_name(item: &str) -> Option<&str> {
    let first = item.split_whitespace().find(|word| *word != "unsafe")?;
    declared(item).filter(|_| TYPES.contains(&first))
}

/// Returns the crates that one depends on, and those that these depend on; not those of its tests.
fn reached<'a>(packages: &'a [Package], name: &'a str) -> BTreeSet<&'a str> {
    let (mut found, mut open) = (BTreeSet::new(), vec![name]);
    while let Some(name) = open.pop() {
        let package = packages.iter().find(|package| package.name == name);
        let below = package.iter().flat_map(|package| &package.dependencies).filter(|(_, only_tests)| !only_tests);
        open.extend(below.map(|(name, _)| name.as_str()).filter(|name| found.insert(*name)));
    }
    found
}
