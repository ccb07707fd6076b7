//! Each rule against a small repository that breaks it.

use super::*;

const RECORD: &str = "# 1. Title\nStatus: accepted\nDate: 2026-11-21\n## Context\n## Options\n## Decision\n\
                      ## Consequences\n## Confirmation\n";

fn package(name: &str, dependencies: &[(&str, bool)]) -> Package {
    Package {
        name: name.to_owned(),
        licence: Some("MIT OR Apache-2.0".to_owned()),
        dependencies: dependencies.iter().map(|(name, only_tests)| ((*name).to_owned(), *only_tests)).collect(),
    }
}

/// A repository that keeps every rule.
fn tidy_repo() -> Repo {
    let files = [
        ("LICENSE-MIT", "Permission is hereby granted, free of charge"),
        ("LICENSE-APACHE", "Apache License\nVersion 2.0"),
        ("README.md", "See [the map](docs/src/architecture.md#map), [crates](crates), [a page](https://example.org)."),
        ("adr/0001-layers.md", RECORD),
        ("crates/ruvllm-kernels/src/lib.rs", "//! Kernels.\n"),
        ("docs/src/SUMMARY.md", "- [Architecture](architecture.md)"),
        ("docs/src/architecture.md", "`ruvllm-kernels` and ruvllm-kvcache, tested with ruvllm-testkit."),
    ];
    Repo {
        packages: vec![
            package("ruvllm-kernels", &[]),
            package("ruvllm-kvcache", &[("ruvllm-kernels", false), ("ruvllm-testkit", true)]),
            package("ruvllm-testkit", &[("ruvllm-kvcache", false)]),
            package("xtask", &[]),
        ],
        files: files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect(),
    }
}

/// Checks that `change` breaks exactly one rule, whose line says `expected`.
fn breaks(expected: &str, change: impl FnOnce(&mut Repo)) {
    let mut repo = tidy_repo();
    change(&mut repo);
    let findings = check(&repo);
    assert!(findings.len() == 1 && findings[0].contains(expected), "expected '{expected}', found {findings:#?}");
}

fn write(repo: &mut Repo, path: &str, text: &str) {
    repo.files.insert(path.to_owned(), text.to_owned());
}

#[test]
fn a_tidy_repository_has_no_findings() {
    assert_eq!(check(&tidy_repo()), Vec::<String>::new());
}

#[test]
fn dependencies_point_down() {
    let depend = |from: usize, to: &'static str, only_tests: bool| {
        move |repo: &mut Repo| repo.packages[from].dependencies.push((to.to_owned(), only_tests))
    };
    breaks("ruvllm-kernels (layer 1) depends on ruvllm-kvcache (layer 2)", depend(0, "ruvllm-kvcache", false));
    breaks("ruvllm-kernels (layer 1) depends on ruvllm-kvcache (layer 2)", depend(0, "ruvllm-kvcache", true));
    breaks("ruvllm-kvcache (layer 2) depends on ruvllm-model (layer 2)", depend(1, "ruvllm-model", false));
    // Tests and examples may use a neighbour.
    let mut repo = tidy_repo();
    depend(1, "ruvllm-model", true)(&mut repo);
    assert_eq!(check(&repo), Vec::<String>::new());
    breaks("test crates are dev-dependencies only", depend(0, "ruvllm-testkit", false));
    breaks("stands outside the layers", depend(0, "xtask", true));
    breaks("ruvllm-extra has no layer", |repo| {
        repo.packages.push(package("ruvllm-extra", &[]));
        write(repo, "docs/src/architecture.md", "ruvllm-kernels ruvllm-kvcache ruvllm-testkit ruvllm-extra");
    });
}

#[test]
fn the_map_and_the_workspace_agree() {
    breaks("does not name ruvllm-model", |repo| repo.packages.push(package("ruvllm-model", &[])));
    breaks("names ruvllm-oracle, which is no package", |repo| {
        write(repo, "docs/src/architecture.md", "ruvllm-kernels ruvllm-kvcache ruvllm-testkit, ruvllm-oracle.");
    });
    breaks("has 302 lines; it may have 300", |repo| {
        let text = format!("ruvllm-kernels ruvllm-kvcache\nruvllm-testkit{}", "\n.".repeat(300));
        write(repo, "docs/src/architecture.md", &text);
    });
}

#[test]
fn sources_open_with_docs_and_stay_short() {
    let path = "crates/ruvllm-kernels/src/dot.rs";
    breaks("does not open with `//!`", |repo| write(repo, path, "pub fn dot() {}\n"));
    breaks("dot.rs has 1001 lines", |repo| write(repo, path, &"//! Dot.\n".repeat(1001)));
    breaks("dot.rs:3: a test is ignored", |repo| {
        write(repo, path, &format!("//! Dot.\n#[test]\n#[{} = \"slow\"]\nfn t() {{}}\n", "ignore"));
    });
    breaks(concat!("notes.md:2: names ..", "/shared"), |repo| {
        write(repo, "docs/notes.md", concat!("See\n..", "/shared/notes.md"));
    });
    let mut repo = tidy_repo();
    write(&mut repo, path, &"//! Dot.\n".repeat(501));
    write(&mut repo, "crates/ruvllm-kernels/testdata/long.rs", &"x\n".repeat(501));
    assert_eq!(sources::long_files(&repo.files), [(path, 501)]);
}

#[test]
fn records_are_numbered_and_whole() {
    breaks("adr/0003-later.md should be adr/0002-title.md", |repo| write(repo, "adr/0003-later.md", RECORD));
    breaks("lacks '## Confirmation'", |repo| {
        write(repo, "adr/0002-two.md", RECORD.trim_end().trim_end_matches("## Confirmation"));
    });
    breaks("needs the lines 'Status: …'", |repo| write(repo, "adr/0002-two.md", &RECORD.replace("accepted", "")));
    breaks("adr/ holds no decision record", |repo| {
        repo.files.remove("adr/0001-layers.md");
    });
}

#[test]
fn links_lead_somewhere() {
    breaks("README.md links to docs/none.md", |repo| write(repo, "README.md", "[x](docs/none.md)"));
    breaks("does not list extra.md", |repo| write(repo, "docs/src/extra.md", "[up](../../README.md)"));
    let mut repo = tidy_repo();
    write(&mut repo, "README.md", "```\n[x](none.md)\n```\n`[x](none.md)`, [up](#top)");
    assert_eq!(check(&repo), Vec::<String>::new());
}

#[test]
fn licences_are_there() {
    breaks("LICENSE-MIT is missing", |repo| {
        repo.files.remove("LICENSE-MIT");
    });
    breaks("xtask does not say", |repo| repo.packages[3].licence = None);
}

#[test]
fn the_root_holds_what_belongs_there() {
    breaks("notes.txt does not belong in the root", |repo| write(repo, "notes.txt", ""));
}

#[test]
fn files_are_read_below_the_root() {
    let root = tempfile::tempdir().expect("a temporary folder");
    std::fs::create_dir_all(root.path().join("a/b")).expect("folders");
    std::fs::create_dir_all(root.path().join("target")).expect("folders");
    std::fs::write(root.path().join("a/b/c.rs"), "//! C.").expect("a file");
    std::fs::write(root.path().join("target/d.rs"), "built").expect("a file");
    std::fs::write(root.path().join("a/e.bin"), [0xff, 0xfe]).expect("a file");
    let files = read_files(root.path()).expect("a readable folder");
    let expected = [("a/b/c.rs", "//! C."), ("a/e.bin", "")];
    assert!(files.iter().map(|(path, text)| (path.as_str(), text.as_str())).eq(expected));
}

#[test]
fn one_noun_is_one_type() {
    let below = "//! Kernels.\npub struct Rows;\npub type Segment = u8;\n";
    let add = |path: &'static str, text: &'static str| {
        move |repo: &mut Repo| {
            write(repo, "crates/ruvllm-kernels/src/lib.rs", below);
            write(repo, "crates/ruvllm-kvcache/src/lib.rs", "//! Cache.\n");
            write(repo, path, text);
        }
    };
    breaks("both have a public type `Rows`", add("crates/ruvllm-kvcache/src/a.rs", "//! A.\npub unsafe trait Rows {}"));
    breaks("both have a public type `Rows`", add("crates/ruvllm-kernels/src/a.rs", "//! A.\npub enum Rows {}"));
    for (path, text) in [
        ("crates/ruvllm-kvcache/src/a.rs", "//! A.\nstruct Rows;\npub(crate) struct Rows;\npub fn Rows() {}"),
        ("crates/ruvllm-kvcache/src/a.rs", "//! A.\npub struct Segment;"),
        // Crates that do not meet, and one that is a program.
        ("crates/ruvllm-testkit/src/a.rs", "//! A.\npub struct Rows;"),
    ] {
        let mut repo = tidy_repo();
        add(path, text)(&mut repo);
        assert_eq!(check(&repo), Vec::<String>::new(), "{path}: {text}");
    }
}
