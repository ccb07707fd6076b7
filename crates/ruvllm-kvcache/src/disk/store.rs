//! The store as its callers see it.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use super::folder::{self, Lock};
use super::index::{Live, Located};
use super::key::BlockKey;
use super::queue::{Queue, QueuedBlock, Shared, State, Urgent, is_of_disk};
use super::record::{BlockMeta, Meta, SessionMeta};
use super::session::{self, Session, SessionInfo};
use super::writer::Writer;
use super::{BLOCK_TOKENS, BlockRef, DiskStats, Prefix, Put, StoreOptions, io_error, recover};
use crate::error::{DiskFault, KvError};
use crate::key::Namespace;

/// The least that [`StoreOptions::max_bytes`] can be.
const MAX_BYTES_MIN: u64 = 64 << 10;

/// An open store. All of it can be used from several threads at once.
///
/// Dropping it writes what waits to be written, and ends its thread.
pub struct DiskStore {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    // Released last: until then the thread may write.
    _lock: Lock,
}

impl DiskStore {
    /// Opens the store of an identity in `folder`, creating what is missing.
    ///
    /// Reads the descriptions of all records, drops what is not intact, and gives up segments if there are more bytes
    /// than `options` allow.
    ///
    /// # Errors
    /// An option cannot be; another process has it open; it has another format version; a file cannot be read or
    /// written.
    pub fn open(folder: &Path, options: StoreOptions) -> Result<DiskStore, KvError> {
        let options = check(options)?;
        let path = folder::path(folder, &options.identity);
        let lock = Lock::take(&path)?;
        folder::create(&path)?;
        let mut state = State::default();
        state.counts.n_corrupt = u64::from(folder::check_manifest(&path, &options)?);
        let shared = Arc::new(Shared::new(path, options, state));
        let mut writer = Writer::recover(Arc::clone(&shared))?;
        writer.make_room(0)?;
        let spawned = thread::Builder::new().name("kv-disk".to_owned()).spawn(move || writer.run());
        let thread = spawned.map_err(|error| io_error("start a thread for", &shared.path, &error))?;
        Ok(DiskStore { shared, thread: Some(thread), _lock: lock })
    }

    /// Returns the name of the empty prefix in a namespace: the parent of every first block.
    pub fn root(&self, namespace: Namespace) -> BlockKey {
        BlockKey::root(&self.shared.options.identity, namespace)
    }

    /// Hands over a block, whose contents are the bytes of `payload` one after the other: as
    /// [`put_block_with`](DiskStore::put_block_with).
    ///
    /// # Panics
    /// As there.
    pub fn put_block(&self, block: &BlockRef<'_>, payload: &[&[u8]]) -> Put {
        let copy = |mut to: &mut [u8]| {
            for part in payload {
                let (head, rest) = to.split_at_mut(part.len());
                head.copy_from_slice(part);
                to = rest;
            }
        };
        self.put_block_with(block, payload.iter().map(|part| part.len()).sum(), copy)
    }

    /// Hands over a block of `len` bytes, which `fill` writes if they are wanted.
    ///
    /// It never waits for the disk: the bytes are queued, or dropped and counted. Offering a block that is stored
    /// costs its hash, and marks it as wanted; so offer the whole prefix each time.
    ///
    /// # Panics
    /// The block has no tokens, or more than 16.
    pub fn put_block_with(&self, block: &BlockRef<'_>, len: usize, fill: impl FnOnce(&mut [u8])) -> Put {
        let key = block.key();
        let mut buffer = {
            let mut state = self.shared.lock();
            let put = self.admit(&mut state, block, &key, len);
            if put != Put::Queued {
                state.counts.n_dropped += u64::from(put != Put::Present);
                return put;
            }
            state.queue.pending.insert(key);
            state.queue.bytes += len;
            state.queue.buffer()
        };
        buffer.resize(len, 0);
        fill(&mut buffer);
        let BlockRef { namespace, parent, block_idx, format, tokens } = *block;
        let meta = BlockMeta { namespace, parent, block_idx, format, tokens: tokens.to_vec() };
        let mut state = self.shared.lock();
        state.queue.blocks.push_back(QueuedBlock { key, meta, payload: buffer });
        state.queue.n_put += 1;
        drop(state);
        self.shared.work.notify_one();
        Put::Queued
    }

    /// Decides what becomes of a block of `len` bytes.
    fn admit(&self, state: &mut State, block: &BlockRef<'_>, key: &BlockKey, len: usize) -> Put {
        let State { index, queue, .. } = state;
        let known = |queue: &Queue, key: &BlockKey| queue.pending.contains(key);
        if index.block(key).is_some() || known(queue, key) {
            return Put::Present;
        }
        let has_parent = match block.block_idx {
            0 => block.parent == self.root(block.namespace),
            _ => index.has_block(&block.parent) || known(queue, &block.parent),
        };
        match () {
            () if queue.closed => Put::Closed,
            () if len > self.shared.options.payload_bytes_max => Put::TooLarge,
            () if !has_parent => Put::NoParent,
            () if queue.bytes + len > self.shared.options.queue_bytes => Put::QueueFull,
            () => Put::Queued,
        }
    }

    /// Returns how much of `tokens` is stored in a namespace, from the first token on: whole blocks, and after them the
    /// longest block of fewer than 16 tokens that fits. Blocks that still wait to be written are not found.
    ///
    /// Costs a hash and a look-up in memory per block, and marks them as wanted.
    pub fn find_prefix(&self, namespace: Namespace, tokens: &[u32]) -> Prefix {
        let mut prefix = Prefix::default();
        let mut parent = self.root(namespace);
        let mut state = self.shared.lock();
        for block in tokens.chunks_exact(BLOCK_TOKENS) {
            let key = parent.child(block);
            if state.index.block(&key).is_none() {
                break;
            }
            prefix.keys.push(key);
            prefix.n_tokens += BLOCK_TOKENS;
            parent = key;
        }
        let rest = &tokens[prefix.n_tokens..];
        let partial = (1..BLOCK_TOKENS.min(rest.len() + 1)).rev().map(|n| (n, parent.child(&rest[..n])));
        for (n, key) in partial {
            if state.index.block(&key).is_some() {
                prefix.keys.push(key);
                prefix.n_tokens += n;
                break;
            }
        }
        prefix
    }

    /// Reads the contents of a block into `payload` and returns their format, or `None` with an empty `payload` unless
    /// they are there and exactly what was written.
    ///
    /// # Errors
    /// The file cannot be read, for another reason than that it is shorter than it was.
    pub fn read_block(&self, key: &BlockKey, payload: &mut Vec<u8>) -> Result<Option<u32>, KvError> {
        let found = self.read(&Live::Block(*key), payload)?;
        let format = match found {
            Some((Meta::Block(block), _)) if block.key() == *key => Some(block.format),
            _ => None,
        };
        if format.is_none() {
            payload.clear();
        }
        Ok(format)
    }

    /// Reads a record, which may be moved meanwhile, and returns its description and its bytes on disk. Forgets it if it
    /// is damaged.
    fn read(&self, live: &Live, payload: &mut Vec<u8>) -> Result<Option<(Meta, u64)>, KvError> {
        let locate = || {
            let mut state = self.shared.lock();
            if let Live::Block(key) = live {
                state.index.block(key);
            }
            state.index.locate(live)
        };
        let mut at: Located = match locate() {
            Some(at) => at,
            None => return Ok(None),
        };
        loop {
            match recover::read(&self.shared.path, &at, payload) {
                Ok(Some(meta)) => {
                    self.shared.lock().counts.n_read += 1;
                    return Ok(Some((meta, at.frame.record_len())));
                }
                Ok(None) => break,
                Err(error) if error.kind() == io::ErrorKind::NotFound => match locate() {
                    // The segment was given up just now and the record copied.
                    Some(moved) if moved.place != at.place => at = moved,
                    Some(_) => break,
                    None => return Ok(None),
                },
                Err(error) => return Err(io_error("read", &self.shared.path, &error)),
            }
        }
        let mut state = self.shared.lock();
        state.counts.n_corrupt += u64::from(state.index.forget(live, &at));
        Ok(None)
    }

    /// Waits until there is room for more blocks to wait: the queue is empty, or its thread has ended.
    pub fn wait_idle(&self) {
        let mut state = self.shared.lock();
        while state.queue.n_done < state.queue.n_put && !state.queue.closed {
            state = self.shared.wait(&self.shared.done, state, None);
        }
    }

    /// Waits until every block put so far is written, and durable unless the policy is
    /// [`FsyncPolicy::Never`](super::FsyncPolicy::Never).
    ///
    /// What a disk that failed and works again has cost is counted ([`DiskStats::n_failed`]), and no error.
    ///
    /// # Errors
    /// A write failed since the last call, and the disk does not work yet.
    pub fn flush(&self) -> Result<(), KvError> {
        let mut state = self.shared.lock();
        let flush_to = state.queue.n_put;
        state.queue.flush_to = state.queue.flush_to.max(flush_to);
        state.queue.is_probing |= state.is_failing;
        self.shared.work.notify_one();
        while (state.queue.n_synced < flush_to || state.queue.is_probing) && !state.queue.closed {
            state = self.shared.wait(&self.shared.done, state, None);
            // What was written meanwhile may have failed.
            state.queue.is_probing |= state.is_failing && state.queue.n_synced < flush_to;
        }
        let failure = state.failure.take();
        match failure.filter(|error| state.is_failing || !is_of_disk(error)) {
            Some(error) => Err(error),
            None if state.queue.n_synced < flush_to => Err(closed()),
            None => Ok(()),
        }
    }

    /// Saves a session under a name, in place of one that has it already, and returns when it is written.
    ///
    /// `settings` are for the caller. Waits for at most one block in front of it.
    ///
    /// # Errors
    /// The name cannot be, the session is too large, or it could not be written.
    pub fn save_session(&self, name: &str, tokens: &[u32], settings: &str) -> Result<(), KvError> {
        session::check_name(name)?;
        let payload = session::encode(tokens, settings);
        let (n, max) = (payload.len(), self.shared.options.payload_bytes_max);
        if n > max {
            let line = format!("session '{name}' has {n} bytes, the store takes {max}; start a new session");
            return Err(KvError::disk(DiskFault::TooLarge, line));
        }
        let (name, n_tokens, used_ms) = (name.to_owned(), tokens.len() as u32, session::now_ms());
        let meta = SessionMeta { name, n_tokens, created_ms: used_ms, used_ms };
        self.ask(Urgent::Save(meta, payload)).map(drop)
    }

    /// Returns a session, or `None` if there is none of that name or it is damaged.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn load_session(&self, name: &str) -> Result<Option<Session>, KvError> {
        let mut payload = Vec::new();
        let Some((Meta::Session(meta), bytes)) = self.read(&Live::Session(name.to_owned()), &mut payload)? else {
            return Ok(None);
        };
        let info = SessionInfo::new(&meta, bytes);
        let decoded = session::decode(&payload, meta.n_tokens).filter(|_| meta.name == name);
        Ok(decoded.map(|(tokens, settings)| Session { info, tokens, settings }))
    }

    /// Returns what is known about all sessions, by name.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.shared.lock().index.sessions().map(|(meta, bytes)| SessionInfo::new(meta, bytes)).collect()
    }

    /// Deletes a session, and returns whether there was one. Its blocks stay, for whoever has the same prefix.
    ///
    /// # Errors
    /// The deletion could not be written.
    pub fn delete_session(&self, name: &str) -> Result<bool, KvError> {
        self.ask(Urgent::DeleteSession(name.to_owned()))
    }

    /// Deletes the sessions that were not saved for `age`, and returns how many there were.
    ///
    /// # Errors
    /// A deletion could not be written.
    pub fn expire_sessions(&self, age: Duration) -> Result<usize, KvError> {
        let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let oldest_ms = session::now_ms().saturating_sub(age_ms);
        let old = |(meta, _): (&SessionMeta, u64)| (meta.used_ms < oldest_ms).then(|| meta.name.clone());
        let names: Vec<String> = self.shared.lock().index.sessions().filter_map(old).collect();
        names.iter().map(|name| self.delete_session(name)).try_fold(0, |n, deleted| Ok(n + usize::from(deleted?)))
    }

    /// Gives up the blocks of all segments that were not written to for `age`, and their bytes; sessions stay. What
    /// follows one of those blocks goes too.
    ///
    /// # Errors
    /// A file could not be read, written or removed.
    pub fn expire_blocks(&self, age: Duration) -> Result<(), KvError> {
        let before = SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
        self.ask(Urgent::ExpireBlocks(before)).map(drop)
    }

    /// Deletes all blocks of a namespace, also those that wait to be written. They are never found again; their bytes
    /// go when their segment is given up, or with [`clear`](DiskStore::clear).
    ///
    /// # Errors
    /// The deletion could not be written.
    pub fn delete_namespace(&self, namespace: Namespace) -> Result<(), KvError> {
        self.shared.lock().queue.drop_blocks(|block| block.namespace == namespace);
        self.shared.done.notify_all();
        self.ask(Urgent::DeleteNamespace(namespace)).map(drop)
    }

    /// Removes all blocks and sessions, and their files.
    ///
    /// # Errors
    /// A file could not be removed.
    pub fn clear(&self) -> Result<(), KvError> {
        self.shared.lock().queue.drop_blocks(|_| true);
        self.shared.done.notify_all();
        self.ask(Urgent::Clear).map(drop)
    }

    /// Returns what the store holds and what happened since it was opened.
    pub fn stats(&self) -> DiskStats {
        let state = self.shared.lock();
        let (index, counts) = (&state.index, state.counts.clone());
        DiskStats {
            n_blocks: index.n_blocks(),
            n_sessions: index.n_sessions(),
            n_segments: index.n_segments(),
            bytes: index.bytes(),
            live_bytes: index.live_bytes(),
            queued_bytes: state.queue.bytes,
            n_written: counts.n_written,
            n_read: counts.n_read,
            n_dropped: counts.n_dropped,
            n_corrupt: counts.n_corrupt,
            n_evicted: counts.n_evicted,
            n_failed: counts.n_failed,
            is_failing: state.is_failing,
            last_failure: counts.last_failure,
        }
    }

    /// Returns the folder that the store's files lie in.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Has the thread do something, and waits for it.
    fn ask(&self, urgent: Urgent) -> Result<bool, KvError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        {
            let mut state = self.shared.lock();
            if state.queue.closed {
                return Err(closed());
            }
            state.queue.urgent.push_back((urgent, sender));
        }
        self.shared.work.notify_one();
        // The sender is dropped unanswered only when the thread ends.
        receiver.recv().unwrap_or_else(|_| Err(closed()))
    }
}

impl Drop for DiskStore {
    fn drop(&mut self) {
        self.shared.lock().queue.closing = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported; there is nobody to tell here.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for DiskStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskStore").field("path", &self.shared.path).finish_non_exhaustive()
    }
}

fn closed() -> KvError {
    KvError::disk(DiskFault::Closed, "the cache folder's thread has ended; restart the program".to_owned())
}

/// Checks options, and fits those that follow from others.
fn check(mut options: StoreOptions) -> Result<StoreOptions, KvError> {
    let max_bytes = options.max_bytes;
    if max_bytes < MAX_BYTES_MIN {
        let line = format!("a cache folder of {max_bytes} bytes is too small; allow {MAX_BYTES_MIN} or more");
        return Err(KvError::disk(DiskFault::Invalid, line));
    }
    options.segment_bytes = options.segment_bytes.clamp(4 << 10, 1 << 30).min(max_bytes / 8);
    let quarter = usize::try_from(max_bytes / 4).unwrap_or(usize::MAX);
    // A segment that holds one record of this size stays below the longest that is read back.
    options.payload_bytes_max = options.payload_bytes_max.min(quarter).min(1 << 30);
    Ok(options)
}

/// Returns the numbers of the segment files in `path`, oldest first.
pub(super) fn list_segments(path: &Path) -> io::Result<Vec<u64>> {
    let mut ids = Vec::new();
    for entry in fs::read_dir(path)? {
        ids.extend(entry?.file_name().to_str().and_then(super::segment::id_of));
    }
    ids.sort_unstable();
    Ok(ids)
}
