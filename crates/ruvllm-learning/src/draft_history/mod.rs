//! Texts that drafts are made of, on disk: what an engine's tenants were served is there again after a restart.
//!
//! The engine has them in memory, tenant by tenant; this is the same in a store ([`ruvllm_sona::store`]), one file for a model.
//! ```text
//! <folder>/drafts/1f0c….redb     the name is a hash of the model's identity and of its vocabulary
//!   texts: tenant → time → tokens that were appended to the tenant's texts then
//! ```
//! A thread of its own writes, a second's texts in one transaction, so that no answer waits for a disk. What is lost by a crash or
//! a full queue costs drafts, never an answer. Draft tokens are judged by the model, and those that its vocabulary does not have
//! are refused here.

mod records;

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ruvllm_engine::{Engine, EngineError, ErrorKind};
use ruvllm_sona::store::{self, Durability, Limits, OpenOptions, StoreError};

use crate::file;
use crate::kept::read_key;
use records::{Log, TEXTS, open_store};

/// The folder within a cache folder or the folder of learned state.
const FOLDER: &str = "drafts";
/// Endings of files: of a store, and of one that was set aside.
const ENDING: &str = "redb";
const SET_ASIDE: &str = "damaged";

/// Bytes of memory that one byte on disk stands for: the engine's tables take 16 for a token.
const MEMORY_FACTOR: usize = 4;

/// Texts that may wait for the disk; of more the newest are not kept.
const QUEUE_MAX: usize = 256;

/// Time that texts wait for others before they are written together.
const COLLECT: Duration = Duration::from_secs(1);

/// Options of keeping the texts that drafts are made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraftHistoryOptions {
    /// The cache folder of the model, or that of what models were taught.
    pub folder: PathBuf,
    /// A file with the key that texts are encrypted with, 32 bytes or 64 hexadecimal digits.
    pub key: Option<PathBuf>,
    /// The tenants that there are: texts of others are removed.
    pub tenants: Vec<u64>,
}

/// The texts of an engine's tenants on disk. Dropping it writes what waits.
pub struct DraftHistory {
    path: PathBuf,
    /// `None` where they cannot be kept.
    writer: Option<Writer>,
    notes: Vec<String>,
    failure: Arc<Mutex<Option<String>>>,
}

/// The thread that writes.
struct Writer {
    sender: SyncSender<Message>,
    thread: Option<JoinHandle<()>>,
}

/// Something for the thread to do.
enum Message {
    Texts(u64, Vec<u32>),
    /// Forget a tenant.
    Forget(u64, Reply),
    /// Forget all other tenants.
    ForgetOthers(Vec<u64>, Reply),
    /// Write what waits.
    Flush(Reply),
    End,
}

type Reply = SyncSender<Result<(), StoreError>>;

impl DraftHistory {
    /// Opens the file of an engine's model, gives the engine what stands there and has it told what is new. Where the file cannot
    /// be used, it is set aside, or texts are in memory only: [`DraftHistory::notes`] say so.
    ///
    /// # Errors
    /// [`ErrorKind::Learning`]: the key file cannot be read.
    pub fn open(engine: &mut Engine, options: &DraftHistoryOptions) -> Result<DraftHistory, EngineError> {
        let key = options.key.as_deref().map(read_key).transpose()?;
        let budget_bytes = engine.runner().history_budget_bytes() / MEMORY_FACTOR;
        let limits =
            Limits { store_bytes_max: 2 * budget_bytes as u64 + (1 << 20), cache_bytes: 4 << 20, ..Limits::default() };
        let open = OpenOptions { key: key.as_ref(), limits, guard: None };
        let (mut notes, failure) = (Vec::new(), Arc::default());
        let model = model_of(engine)?;
        let path = options.folder.join(FOLDER).join(format!("{}.{ENDING}", &model.to_hex()[..32]));
        let kept = open_store(&path, &open, model.as_bytes(), &mut notes)
            .and_then(|store| Log::read(store, budget_bytes, engine, options, &mut notes));
        let log = match kept {
            Ok(log) => log,
            Err(error) => {
                notes.push(format!("texts that drafts are made of are in memory only: {error}"));
                return Ok(DraftHistory { path, writer: None, notes, failure });
            }
        };
        let (sender, receiver) = sync_channel(QUEUE_MAX);
        let of_thread = Arc::clone(&failure);
        let run = move || Writing { log, waiting: Vec::new(), failure: of_thread }.run(&receiver);
        let thread = std::thread::Builder::new().name("ruvllm-drafts".to_owned()).spawn(run).map_err(|error| {
            EngineError::new(ErrorKind::Learning, format!("cannot start the thread that keeps texts: {error}"))
        })?;
        let to_thread = sender.clone();
        engine.runner_mut().set_history_keeper(Box::new(move |tenant, tokens| {
            // A full queue, or a thread that has ended: the texts are in memory only.
            let _ = to_thread.try_send(Message::Texts(tenant, tokens.to_vec()));
        }));
        let writer = Some(Writer { sender, thread: Some(thread) });
        Ok(DraftHistory { path, writer, notes, failure })
    }

    /// Returns the file of the model, if it is used.
    pub fn path(&self) -> Option<&Path> {
        self.writer.as_ref().map(|_| self.path.as_path())
    }

    /// Returns what is to be told about the file: that it was set aside, or is not used.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns why texts could not be written lately, once.
    pub fn take_failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Removes a tenant's texts from the file, and waits until they are gone. The engine is to forget them before.
    ///
    /// # Errors
    /// [`ErrorKind::Learning`]: the file cannot be written.
    pub fn forget(&self, tenant: u64) -> Result<(), EngineError> {
        self.ask(|reply| Message::Forget(tenant, reply))
    }

    /// Removes the texts of all other tenants, as [`DraftHistory::forget`] does.
    ///
    /// # Errors
    /// As [`DraftHistory::forget`].
    pub fn forget_others(&self, tenants: &[u64]) -> Result<(), EngineError> {
        self.ask(|reply| Message::ForgetOthers(tenants.to_vec(), reply))
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// [`ErrorKind::Learning`]: the file cannot be written.
    pub fn flush(&self) -> Result<(), EngineError> {
        self.ask(Message::Flush)
    }

    fn ask(&self, message: impl FnOnce(Reply) -> Message) -> Result<(), EngineError> {
        let Some(writer) = &self.writer else { return Ok(()) };
        let (reply, done) = sync_channel(1);
        let ended = || EngineError::new(ErrorKind::Learning, "the thread that keeps texts has ended; restart");
        writer.sender.send(message(reply)).map_err(|_| ended())?;
        done.recv().map_err(|_| ended())?.map_err(not_written)
    }
}

fn not_written(error: StoreError) -> EngineError {
    let line = format!("texts that drafts are made of cannot be written: {error}");
    EngineError::new(ErrorKind::Learning, line).with_source(error)
}

impl Drop for Writer {
    fn drop(&mut self) {
        // A thread that has ended has nothing left to write.
        let _ = self.sender.send(Message::End);
        self.thread.take().map(JoinHandle::join);
    }
}

/// File of texts that drafts are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftHistoryFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Time of the last write.
    pub used: SystemTime,
}

impl DraftHistoryFile {
    /// Returns the files of a cache folder or of the folder of learned state, by name; those that were set aside as well.
    pub fn list(folder: &Path) -> Vec<DraftHistoryFile> {
        let is_ours = |path: &Path| path.extension().is_some_and(|ending| ending == ENDING || ending == SET_ASIDE);
        let entries = fs::read_dir(folder.join(FOLDER)).into_iter().flatten().flatten();
        let mut files: Vec<DraftHistoryFile> = entries
            .filter(|entry| is_ours(&entry.path()))
            .filter_map(|entry| {
                let about = entry.metadata().ok().filter(fs::Metadata::is_file)?;
                let used = about.modified().unwrap_or(UNIX_EPOCH);
                Some(DraftHistoryFile { path: entry.path(), bytes: about.len(), used })
            })
            .collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        files
    }

    /// Removes a tenant's texts from it, while no engine uses it; `key` is the file with its key. One that was set aside is removed as
    /// a whole: nobody can tell what stands there.
    ///
    /// # Errors
    /// [`ErrorKind::Learning`]: it cannot be opened with this key, or written.
    pub fn forget(&self, tenant: u64, key: Option<&Path>) -> Result<(), EngineError> {
        if self.path.extension().is_some_and(|ending| ending == SET_ASIDE) {
            return self.remove();
        }
        let key = key.map(read_key).transpose()?;
        let open = OpenOptions { key: key.as_ref(), ..OpenOptions::default() };
        let forget = || {
            let store = store::open(&self.path, &open)?;
            let mut change = store.begin(Durability::Durable)?;
            let n_removed = change.remove_scope(TEXTS, &tenant.to_le_bytes())?;
            change.commit()?;
            if n_removed > 0 { store.scrub() } else { Ok(()) }
        };
        forget().map_err(not_written)
    }

    /// Removes it.
    ///
    /// # Errors
    /// [`ErrorKind::Learning`]: a process has it open, or it cannot be removed.
    pub fn remove(&self) -> Result<(), EngineError> {
        let open = File::open(&self.path).map_err(|error| file::failed("open", &self.path, error))?;
        match open.try_lock() {
            Err(TryLockError::WouldBlock) => {
                let line = format!("{} is in use; stop the server first", self.path.display());
                Err(EngineError::new(ErrorKind::Learning, line))
            }
            // Where there are no locks nobody else says so.
            Ok(()) | Err(TryLockError::Error(_)) => file::remove(&self.path),
        }
    }
}

/// Returns the hash of a model and of its vocabulary.
fn model_of(engine: &Engine) -> Result<blake3::Hash, EngineError> {
    let mut hasher = blake3::Hasher::new_derive_key("ruvllm draft texts 1: model and vocabulary");
    hasher.update(&engine.identity()?);
    let tokenizer = engine.tokenizer()?;
    for text in (0..tokenizer.vocab_len() as u32).filter_map(|id| tokenizer.token_text(id)) {
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    }
    Ok(hasher.finalize())
}

/// The state of the thread that writes.
struct Writing {
    log: Log,
    waiting: Vec<(u64, Vec<u32>)>,
    failure: Arc<Mutex<Option<String>>>,
}

impl Writing {
    /// Writes until it is told to end.
    fn run(mut self, messages: &Receiver<Message>) {
        let mut due: Option<Instant> = None;
        loop {
            let message = match due {
                None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => messages.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match message {
                Ok(Message::Texts(tenant, tokens)) => {
                    self.waiting.push((tenant, tokens));
                    due = due.or_else(|| Some(Instant::now() + COLLECT));
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => drop(self.write()),
                Ok(Message::Flush(reply)) => drop(reply.send(self.write())),
                Ok(Message::Forget(tenant, reply)) => {
                    let written = self.write();
                    drop(reply.send(self.log.forget(&[tenant]).and(written)));
                }
                Ok(Message::ForgetOthers(tenants, reply)) => {
                    let written = self.write();
                    drop(reply.send(self.log.forget_others(&tenants).and(written)));
                }
                Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => return drop(self.write()),
            }
            due = None;
        }
    }

    /// Writes what waits; what cannot be written is in memory only.
    fn write(&mut self) -> Result<(), StoreError> {
        let written = self.log.write(&std::mem::take(&mut self.waiting));
        if let Err(error) = &written {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        }
        written
    }
}
