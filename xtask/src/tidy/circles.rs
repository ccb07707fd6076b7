//! Circles: the top-level modules of a crate use each other in one direction.
//!
//! A module is the first part of a source's path under `src/`, a file or a folder. It refers to another by `crate::other` or by a
//! `super::` that reaches the root. Modules that reach each other are a circle, which is a finding unless [`KNOWN`] has it with
//! the reason why it stays. What tests refer to does not count.

use std::collections::{BTreeMap, BTreeSet};

/// A circle that stays.
struct Known {
    crate_name: &'static str,
    /// Its modules; a circle among some of them is known as well.
    modules: &'static [&'static str],
    why: &'static str,
}

/// The circles that stay, each with the reason.
const KNOWN: [Known; 10] = [
    Known {
        crate_name: "ruvllm-engine",
        modules: &["request", "request_state", "runner", "speculate"],
        why: "a request's state has its draft, and drafting runs the model that the request asks",
    },
    Known {
        crate_name: "ruvllm-engine",
        modules: &["scheduler", "tuner"],
        why: "a tuner starts from the scheduler's options and chooses its steps",
    },
    Known {
        crate_name: "ruvllm-grammar",
        modules: &["nested", "size", "source"],
        why: "a form may hold forms, so its size and its nesting are counted by its own source",
    },
    Known {
        crate_name: "ruvllm-learning",
        modules: &["kept", "learning", "log", "logits_hook", "maintenance", "reading", "tenant"],
        why: "a tenant, its log and its maintenance are one state behind one lock, in a file for each subject",
    },
    Known {
        crate_name: "ruvllm-lora",
        modules: &["apply", "gate"],
        why: "a set of adapters may have a gate, and a gate weighs as many as a set may have",
    },
    Known {
        crate_name: "ruvllm-lora",
        modules: &["bound", "packed"],
        why: "a bound adapter is packed in the format that it is asked for by",
    },
    Known {
        crate_name: "ruvllm-native",
        modules: &["backend", "kv", "load", "persist", "tiers"],
        why: "loading makes the backend with its cache, which is made by the options of loading",
    },
    Known {
        crate_name: "ruvllm-router",
        modules: &["evaluate", "fastgrnn", "select"],
        why: "training uses the folds of the evaluation, which trains a model for each",
    },
    Known {
        crate_name: "ruvllm-sona",
        modules: &["background", "history", "instant"],
        why: "the log plays both loops again, and keeps what they did as items",
    },
    Known {
        crate_name: "ruvllm-store",
        modules: &["embedded", "file"],
        why: "the store is in a file, which is opened within the store's limits",
    },
];

/// The modules of a crate, each with those that it refers to.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Checks the modules of every crate.
pub(super) fn check(files: &BTreeMap<String, String>, findings: &mut Vec<String>) {
    check_against(files, &KNOWN, findings);
}

fn check_against(files: &BTreeMap<String, String>, known: &[Known], findings: &mut Vec<String>) {
    let graphs = graphs(files);
    let circles: Vec<(&str, BTreeSet<&str>)> =
        graphs.iter().flat_map(|(name, graph)| circles(graph).into_iter().map(move |circle| (*name, circle))).collect();
    for (name, circle) in &circles {
        let has = |known: &&Known| known.crate_name == *name && circle.iter().all(|m| known.modules.contains(m));
        if !known.iter().any(|known| has(&known)) {
            let modules: Vec<&str> = circle.iter().copied().collect();
            findings.push(format!("crates/{name}: {} use each other in a circle", modules.join(", ")));
        }
    }
    for Known { crate_name, modules, why } in known {
        let is_there = |(name, circle): &(&str, BTreeSet<&str>)| {
            name == crate_name && circle.iter().all(|module| modules.contains(module))
        };
        if graphs.contains_key(crate_name) && !circles.iter().any(is_there) {
            let modules = modules.join(", ");
            findings.push(format!(
                "crates/{crate_name}: {modules} are no circle any more ({why}); take them off xtask/src/tidy/circles.rs"
            ));
        }
    }
}

/// Returns the modules of every crate by its name.
fn graphs(files: &BTreeMap<String, String>) -> BTreeMap<&str, Graph> {
    let of_tests: Vec<String> = files.iter().flat_map(|(path, text)| test_modules(path, text)).collect();
    let mut graphs: BTreeMap<&str, Graph> = BTreeMap::new();
    for (path, text) in files {
        let parts: Vec<&str> = path.split('/').collect();
        let ["crates", name, "src", inner @ ..] = &parts[..] else { continue };
        let is_test = of_tests.iter().any(|module| is_in(path, module));
        let is_root = matches!(inner, ["lib.rs" | "main.rs"]);
        if path.ends_with(".rs") && !is_test && !is_root {
            let module = inner[0].trim_end_matches(".rs").to_owned();
            let depth = inner.len() - usize::from(inner.last() == Some(&"mod.rs"));
            graphs.entry(name).or_default().entry(module).or_default().extend(references(text, depth));
        }
    }
    for graph in graphs.values_mut() {
        let modules: BTreeSet<String> = graph.keys().cloned().collect();
        for (module, others) in graph {
            others.retain(|other| other != module && modules.contains(other));
        }
    }
    graphs
}

/// Returns the modules in files of their own that a source has for tests only, as paths without an ending.
fn test_modules(path: &str, text: &str) -> Vec<String> {
    let (folder, file) = path.rsplit_once('/').unwrap_or_default();
    let folder = match file {
        "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
        _ => path.trim_end_matches(".rs").to_owned(),
    };
    let declared = text.match_indices("#[cfg(test)]\n").filter_map(|(at, line)| {
        let declaration = text[at + line.len()..].lines().next()?;
        declaration.trim().strip_suffix(';')?.rsplit_once("mod ").map(|(_, name)| name)
    });
    declared.map(|name| format!("{folder}/{name}")).collect()
}

/// Returns whether a source is a module, or lies in its folder.
fn is_in(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// Returns what a source that lies `depth` modules below the root refers to in the root.
fn references(text: &str, depth: usize) -> BTreeSet<String> {
    let own = text.find("\n#[cfg(test)]\nmod ").map_or(text, |at| &text[..at]);
    let code: String =
        own.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let mut names = BTreeSet::new();
    for root in ["crate::".to_owned(), "super::".repeat(depth)] {
        for (at, _) in code.match_indices(&root) {
            let is_begun = code[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':'));
            if !is_begun {
                names.extend(first_names(&code[at + root.len()..]));
            }
        }
    }
    names
}

/// Returns the name that a path goes on with, or those of its braces.
fn first_names(rest: &str) -> Vec<String> {
    let name = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
    };
    let Some(list) = rest.strip_prefix('{') else { return vec![name(rest)] };
    let (mut names, mut level, mut is_next) = (vec![name(list)], 1, false);
    for (at, c) in list.char_indices() {
        match c {
            '{' => level += 1,
            '}' if level == 1 => break,
            '}' => level -= 1,
            ',' if level == 1 => is_next = true,
            _ => {}
        }
        if std::mem::take(&mut is_next) {
            names.push(name(&list[at + 1..]));
        }
    }
    names
}

/// Returns the sets of modules that reach each other.
fn circles(graph: &Graph) -> Vec<BTreeSet<&str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|module| (module.as_str(), reached(graph, module))).collect();
    let mut circles: Vec<BTreeSet<&str>> = Vec::new();
    for (module, others) in &reached {
        if !others.contains(module) || circles.iter().any(|circle| circle.contains(module)) {
            continue;
        }
        circles.push(others.iter().copied().filter(|other| reached[other].contains(module)).collect());
    }
    circles
}

/// Returns the modules that are reached from one; itself only if there is a way back.
fn reached<'g>(graph: &'g Graph, module: &str) -> BTreeSet<&'g str> {
    let (mut all, mut open) = (BTreeSet::new(), vec![module]);
    while let Some(module) = open.pop() {
        for other in &graph[module] {
            if all.insert(other.as_str()) {
                open.push(other);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(sources: &[(&str, &str)]) -> BTreeMap<String, String> {
        let file = |(path, text): &(&str, &str)| (format!("crates/ruvllm-a/src/{path}"), (*text).to_owned());
        sources.iter().map(file).collect()
    }

    fn found(sources: &[(&str, &str)], known: &[Known]) -> Vec<String> {
        let mut findings = Vec::new();
        check_against(&files(sources), known, &mut findings);
        findings
    }

    #[test]
    fn modules_that_use_each_other_are_named() {
        let circle = "crates/ruvllm-a: one, two use each other in a circle";
        assert_eq!(found(&[("one.rs", "use crate::two::X;"), ("two.rs", "use crate::one::Y;")], &[]), [circle]);
        // By a longer way, from folders, from braces, and by `super`.
        let sources = [
            ("one/mod.rs", "use super::two;"),
            ("one/inner.rs", "use super::Z;"),
            ("two.rs", "use crate::{Other, three::{A, B}, four};"),
            ("three/deep.rs", "fn f() { super::super::one::g() }"),
            ("four.rs", "use crate::five::X;"),
            ("five.rs", "use std::io;"),
        ];
        assert_eq!(found(&sources, &[]), ["crates/ruvllm-a: one, three, two use each other in a circle"]);
    }

    #[test]
    fn one_direction_comments_and_tests_are_no_circle() {
        let sources = [
            ("lib.rs", "mod one; mod two; use crate::one::X;\n#[cfg(test)]\nmod three;\n"),
            ("one.rs", "use crate::two::X; use crate::one::Own; // crate::two"),
            (
                "two.rs",
                "//! See crate::one.\nuse other_crate::one::X;\n#[cfg(test)]\nmod tests {\n use crate::one::Y;\n}",
            ),
            ("two/deep/mod.rs", "#[cfg(test)]\npub(crate) mod tests;"),
            ("two/deep/tests.rs", "use crate::one::Y;"),
            ("three/mod.rs", "use crate::{one, three};"),
            ("two/inner.rs", "use super::one;"),
        ];
        assert_eq!(found(&sources, &[]), Vec::<String>::new());
    }

    #[test]
    fn a_known_circle_stays_and_goes_with_its_line() {
        let known = [Known { crate_name: "ruvllm-a", modules: &["one", "two", "three"], why: "they are one thing" }];
        let circle = [("one.rs", "use crate::two::X;"), ("two.rs", "use crate::one::Y;")];
        assert_eq!(found(&circle, &known), Vec::<String>::new());
        let line = "crates/ruvllm-a: one, two, three are no circle any more (they are one thing); take them off \
                    xtask/src/tidy/circles.rs";
        assert_eq!(found(&circle[..1], &known), [line]);
    }
}
