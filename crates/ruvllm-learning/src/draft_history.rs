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

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ruvllm_engine::{Engine, EngineError, ErrorKind};
use ruvllm_sona::store::{
    self, Durability, Limits, OpenOptions, Scan, Store, StoreError, StoreErrorKind, Table, time_key, time_of,
};

use crate::file;
use crate::kept::read_key;

/// Tokens that were appended to a tenant's texts: by tenant and time, 4 bytes each.
const TEXTS: Table = Table::new("draft texts");
/// Record that says which model the file is of.
const ABOUT: Table = Table::new("draft texts of");
const MODEL: &[u8] = b"model";

/// The folder within a cache folder or the folder of learned state.
const FOLDER: &str = "drafts";
/// Endings of files: of a store, and of one that was set aside.
const ENDING: &str = "redb";
const SET_ASIDE: &str = "damaged";

/// Bytes of memory that one byte on disk stands for: the engine's tables take 16 for a token.
const MEMORY_FACTOR: usize = 4;

/// Texts that may wait for the disk; of more the newest are not kept.
const QUEUE_MAX: usize = 256;

/// How long texts wait for others before they are written together.
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
        let path = options.folder.join(FOLDER).join(format!("{}.{ENDING}", hex(&model[..16])));
        let kept = open_store(&path, &open, &model, &mut notes)
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

    /// Returns the file of the model.
    pub fn path(&self) -> &Path {
        &self.path
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
    /// Where it lies.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// When it was written last.
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
fn model_of(engine: &Engine) -> Result<[u8; 32], EngineError> {
    let mut hasher = blake3::Hasher::new_derive_key("ruvllm draft texts 1: model and vocabulary");
    hasher.update(&engine.identity());
    let tokenizer = engine.tokenizer()?;
    for text in (0..tokenizer.vocab_len() as u32).filter_map(|id| tokenizer.token_text(id)) {
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    }
    Ok(*hasher.finalize().as_bytes())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Opens the store of a model. A file that is no store, or another model's, is set aside.
fn open_store(
    path: &Path,
    open: &OpenOptions<'_>,
    model: &[u8; 32],
    notes: &mut Vec<String>,
) -> Result<Arc<dyn Store>, StoreError> {
    if let Some(folder) = path.parent() {
        make_private(folder).map_err(|error| StoreError::new(StoreErrorKind::Io, error.to_string()))?;
    }
    let opened = store::open(path, open).and_then(|store| claimed(store, model));
    let why = match opened {
        Err(error) if error.kind() == StoreErrorKind::Invalid => error,
        opened => return opened,
    };
    let aside = path.with_extension(SET_ASIDE);
    fs::rename(path, &aside)
        .map_err(|error| StoreError::new(StoreErrorKind::Io, format!("{why}; and it cannot be set aside: {error}")))?;
    notes.push(format!("{why}; it was set aside as {}, and a new file of texts for drafts is begun", aside.display()));
    store::open(path, open).and_then(|store| claimed(store, model))
}

/// Makes a folder that only its owner looks into: texts lie there.
fn make_private(folder: &Path) -> Result<(), EngineError> {
    file::make_folder(folder)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        // A file system without modes keeps them as it can; the store's own file has mode 600.
        let _ = fs::set_permissions(folder, fs::Permissions::from_mode(0o700));
    }
    Ok(())
}

/// Checks that a store is this model's; a new one becomes it.
fn claimed(store: Arc<dyn Store>, model: &[u8; 32]) -> Result<Arc<dyn Store>, StoreError> {
    let about = store.snapshot()?.get(ABOUT, b"", MODEL)?;
    match about {
        Some(about) if about == model => {}
        Some(_) => {
            return Err(StoreError::new(StoreErrorKind::Invalid, "a file of texts for drafts is another model's"));
        }
        None if store.n_bytes() > 0 && !store.snapshot()?.scopes(TEXTS)?.is_empty() => {
            return Err(StoreError::new(StoreErrorKind::Invalid, "a file of texts for drafts names no model"));
        }
        None => {
            let mut change = store.begin(Durability::Durable)?;
            change.put(ABOUT, b"", MODEL, model)?;
            change.commit()?;
        }
    }
    Ok(store)
}

/// A store with what is to be known of its records.
struct Log {
    store: Arc<dyn Store>,
    /// The most bytes of all texts; a tenant has at most half of them.
    bytes_max: usize,
    /// Tenant and bytes of each record, oldest first.
    records: BTreeMap<[u8; 16], (u64, usize)>,
    bytes_of: HashMap<u64, usize>,
    /// Time of the newest record.
    newest: (u64, u64),
}

impl Log {
    /// Reads all records into an engine; those that are wrong, or of tenants that are no more, are removed.
    fn read(
        store: Arc<dyn Store>,
        bytes_max: usize,
        engine: &mut Engine,
        options: &DraftHistoryOptions,
        notes: &mut Vec<String>,
    ) -> Result<Log, StoreError> {
        let mut log = Log { store, bytes_max, records: BTreeMap::new(), bytes_of: HashMap::new(), newest: (0, 0) };
        let (mut texts, mut wrong) = (BTreeMap::<[u8; 16], (u64, Vec<u32>)>::new(), Vec::new());
        let snapshot = log.store.snapshot()?;
        for scope in snapshot.scopes(TEXTS)? {
            let tenant = <[u8; 8]>::try_from(&scope[..]).ok().map(u64::from_le_bytes);
            snapshot.scan(TEXTS, &Scan::all(&scope), &mut |key, value| {
                match (tenant, <[u8; 16]>::try_from(key), value.as_chunks::<4>()) {
                    (Some(tenant), Ok(key), (tokens, [])) => {
                        texts.insert(key, (tenant, tokens.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()));
                    }
                    _ => wrong.push((scope.clone(), key.to_vec())),
                }
                Ok(true)
            })?;
        }
        drop(snapshot);
        for (key, (tenant, tokens)) in texts {
            let is_there = options.tenants.contains(&tenant);
            if is_there && engine.runner_mut().restore_history(tenant, &tokens) {
                log.count(key, tenant, 4 * tokens.len());
            } else {
                wrong.extend(is_there.then(|| (tenant.to_le_bytes().to_vec(), key.to_vec())));
                log.bytes_of.entry(tenant).or_insert(0);
            }
        }
        if !wrong.is_empty() {
            notes.push(format!(
                "{} records of texts for drafts were not what was written; they are removed",
                wrong.len()
            ));
            let mut change = log.store.begin(Durability::Durable)?;
            wrong.iter().try_for_each(|(scope, key)| change.remove(TEXTS, scope, key).map(drop))?;
            change.commit()?;
        }
        log.forget_others(&options.tenants)?;
        log.write(&[])?;
        Ok(log)
    }

    fn count(&mut self, key: [u8; 16], tenant: u64, n_bytes: usize) {
        self.records.insert(key, (tenant, n_bytes));
        *self.bytes_of.entry(tenant).or_insert(0) += n_bytes;
        self.newest = self.newest.max(time_of(&key));
    }

    /// Returns the key of a new record: its time, and never one that was.
    fn next_key(&self) -> [u8; 16] {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        match self.newest {
            (newest, n) if newest >= now => time_key(newest, n + 1),
            _ => time_key(now, 0),
        }
    }

    /// Returns the records that are to go: the oldest of a tenant that has more than half of what there may be, then the oldest.
    fn surplus(&self) -> BTreeMap<[u8; 16], (u64, usize)> {
        let mut over: HashMap<u64, usize> =
            self.bytes_of.iter().map(|(&tenant, &n)| (tenant, n.saturating_sub(self.bytes_max / 2))).collect();
        let mut total: usize = self.bytes_of.values().sum();
        let mut surplus = BTreeMap::new();
        for by_tenant in [true, false] {
            for (&key, &(tenant, n_bytes)) in &self.records {
                let own = over.entry(tenant).or_insert(0);
                let goes = if by_tenant { *own > 0 } else { total > self.bytes_max };
                if goes && surplus.insert(key, (tenant, n_bytes)).is_none() {
                    *own = own.saturating_sub(n_bytes);
                    total -= n_bytes;
                }
            }
        }
        surplus
    }

    /// Appends texts of tenants in one transaction, and removes what is too much.
    fn write(&mut self, texts: &[(u64, Vec<u32>)]) -> Result<(), StoreError> {
        let mut added = BTreeMap::new();
        for (tenant, tokens) in texts {
            let key = self.next_key();
            self.count(key, *tenant, 4 * tokens.len());
            added.insert(key, (*tenant, tokens));
        }
        let surplus = self.surplus();
        if added.is_empty() && surplus.is_empty() {
            return Ok(());
        }
        let written = self.commit(&added, &surplus);
        let gone = if written.is_ok() { surplus.into_keys().collect() } else { added.into_keys().collect::<Vec<_>>() };
        for (tenant, n_bytes) in gone.iter().filter_map(|key| self.records.remove(key)) {
            self.bytes_of.entry(tenant).and_modify(|n| *n -= n_bytes);
        }
        written
    }

    fn commit(
        &self,
        added: &BTreeMap<[u8; 16], (u64, &Vec<u32>)>,
        surplus: &BTreeMap<[u8; 16], (u64, usize)>,
    ) -> Result<(), StoreError> {
        let mut change = self.store.begin(Durability::Durable)?;
        for (key, (tenant, _)) in surplus {
            change.remove(TEXTS, &tenant.to_le_bytes(), key)?;
        }
        for (key, (tenant, tokens)) in added.iter().filter(|(key, _)| !surplus.contains_key(*key)) {
            let value: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
            change.put(TEXTS, &tenant.to_le_bytes(), key, &value)?;
        }
        change.commit()
    }

    fn forget_others(&mut self, tenants: &[u64]) -> Result<(), StoreError> {
        let gone: Vec<u64> = self.bytes_of.keys().copied().filter(|tenant| !tenants.contains(tenant)).collect();
        self.forget(&gone)
    }

    /// Removes all of some tenants, from the places that were freed in the file as well.
    fn forget(&mut self, tenants: &[u64]) -> Result<(), StoreError> {
        if tenants.is_empty() {
            return Ok(());
        }
        let mut change = self.store.begin(Durability::Durable)?;
        for tenant in tenants {
            change.remove_scope(TEXTS, &tenant.to_le_bytes())?;
        }
        change.commit()?;
        self.bytes_of.retain(|tenant, _| !tenants.contains(tenant));
        self.records.retain(|_, (tenant, _)| !tenants.contains(tenant));
        self.store.scrub()
    }
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
