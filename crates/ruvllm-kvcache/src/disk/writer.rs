//! The thread that writes: the only one that changes segment files.

use std::fs::{self, File};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::queue::{QueuedBlock, Shared, Urgent, is_of_disk};
use super::record::{self, Meta, Place};
use super::segment::{self, Active, SEGMENT_HEADER_LEN, SegmentHeader};
use super::store::list_segments;
use super::{FsyncPolicy, io_error, recover};
use crate::error::{DiskFault, KvError};

/// Bytes after which [`FsyncPolicy::EachBatch`] does not wait for the queue to be empty.
const BATCH_BYTES: u64 = 16 << 20;

/// The thread's own state.
pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    /// The segment that is appended to. Without one, the next record starts one.
    pub(super) active: Option<Active>,
    next_id: u64,
    /// When the first record was written that is not durable yet, and how many bytes there are.
    dirty: Option<(Instant, u64)>,
    /// A segment was created whose name is not durable yet.
    new_name: bool,
    /// Records must be durable before their segment is left, whatever the policy.
    pub(super) must_sync: bool,
}

/// What to do next.
enum Work {
    Block(QueuedBlock),
    Urgent(Urgent, std::sync::mpsc::SyncSender<Result<bool, KvError>>),
    Sync,
    End,
}

/// Tells everybody that the thread has ended, also when it panics.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.queue.closed = true;
        state.queue.urgent.clear();
        drop(state);
        self.0.done.notify_all();
    }
}

impl Writer {
    /// Reads all segments into the index, cutting or removing what is not intact.
    ///
    /// # Errors
    /// A file cannot be read, cut or removed.
    pub(super) fn recover(shared: Arc<Shared>) -> Result<Writer, KvError> {
        let ids = list_segments(&shared.path).map_err(|error| io_error("read", &shared.path, &error))?;
        let next_id = ids.last().map_or(1, |last| last.saturating_add(1));
        let mut writer = Writer { shared, active: None, next_id, dirty: None, new_name: false, must_sync: false };
        for id in ids {
            let path = segment::path(&writer.shared.path, id);
            writer.recover_segment(id).map_err(|error| io_error("recover", &path, &error))?;
        }
        let mut state = writer.shared.lock();
        state.index.drop_orphans(&writer.shared.options.identity);
        drop(state);
        Ok(writer)
    }

    /// Reads one segment. The last one with room becomes the active one.
    fn recover_segment(&mut self, id: u64) -> io::Result<()> {
        let options = &self.shared.options;
        let path = segment::path(&self.shared.path, id);
        let mut file = File::open(&path)?;
        let len = file.metadata()?.len();
        let mut state = self.shared.lock();
        let header: SegmentHeader = match recover::header(&mut file, len, &options.identity)? {
            Some(header) if header.id == id => header,
            _ => {
                state.counts.n_corrupt += 1;
                return fs::remove_file(&path);
            }
        };
        let index = &mut state.index;
        index.add_segment(id, header.nonce, len);
        let mut visit = |offset, frame, meta| index.apply(Place { segment: id, offset }, frame, meta);
        let recovered = recover::records(&mut file, len, &header, options.payload_bytes_max, &mut visit)?;
        index.set_segment_bytes(id, recovered.end);
        state.counts.n_corrupt += recovered.n_corrupt;
        drop(state);
        self.active = None;
        if recovered.end < len || recovered.end < options.segment_bytes {
            self.active = Some(Active::reopen(&self.shared.path, header, recovered.end)?);
        }
        Ok(())
    }

    /// Works until the store is closed and the queue is empty.
    pub(super) fn run(mut self) {
        let _ended = Ended(Arc::clone(&self.shared));
        loop {
            match self.next() {
                Work::Block(block) => self.write_block(block),
                Work::Urgent(urgent, sender) => {
                    let answer = self.answer(urgent);
                    if let Err(error) = &answer {
                        let mut state = self.shared.lock();
                        state.counts.n_failed += u64::from(is_of_disk(error));
                        state.disk_failed(error);
                    }
                    // Whoever asked may have ended.
                    let _ = sender.send(answer);
                }
                Work::Sync => self.sync(),
                Work::End => return self.sync(),
            }
        }
    }

    /// Waits for something to do.
    fn next(&self) -> Work {
        let mut state = self.shared.lock();
        loop {
            let queue = &mut state.queue;
            if let Some((urgent, sender)) = queue.urgent.pop_front() {
                return Work::Urgent(urgent, sender);
            }
            let wait = self.sync_due(queue.blocks.is_empty());
            let flush = queue.n_synced < queue.flush_to && queue.n_done >= queue.flush_to;
            if flush || queue.is_probing || wait.is_some_and(|wait| wait.is_zero()) {
                return Work::Sync;
            }
            if let Some(block) = queue.blocks.pop_front() {
                return Work::Block(block);
            }
            if queue.closing {
                return Work::End;
            }
            state = self.shared.wait(&self.shared.work, state, wait);
        }
    }

    /// Returns how long from now records are to be made durable by the policy.
    fn sync_due(&self, queue_is_empty: bool) -> Option<Duration> {
        let (since, bytes) = self.dirty?;
        match self.shared.options.fsync {
            FsyncPolicy::Never => None,
            FsyncPolicy::Interval(interval) => Some(interval.saturating_sub(since.elapsed())),
            FsyncPolicy::EachBatch => (queue_is_empty || bytes >= BATCH_BYTES).then_some(Duration::ZERO),
        }
    }

    /// Writes a block of the queue.
    fn write_block(&mut self, block: QueuedBlock) {
        let QueuedBlock { key, meta, payload } = block;
        let has_parent = meta.block_idx == 0 || {
            let state = self.shared.lock();
            state.index.has_block(&meta.parent) || state.queue.pending.contains(&meta.parent)
        };
        // The block before it may have been given up, or failed, while this one waited.
        let written = if has_parent { self.write(Meta::Block(meta), &payload).map(|_| true) } else { Ok(false) };
        let mut state = self.shared.lock();
        state.queue.finish(&key, payload);
        state.counts.n_dropped += u64::from(!matches!(written, Ok(true)));
        if let Err(error) = written {
            state.counts.n_failed += u64::from(is_of_disk(&error));
            state.fail(error);
        }
        if state.queue.n_done == state.queue.n_put {
            drop(state);
            self.shared.done.notify_all();
        }
    }

    /// Does what a caller waits for.
    fn answer(&mut self, urgent: Urgent) -> Result<bool, KvError> {
        let done = match urgent {
            Urgent::Save(mut meta, payload) => {
                if let Some((_, old)) = self.shared.lock().index.session(&meta.name) {
                    meta.created_ms = old.created_ms;
                }
                self.write(Meta::Session(meta), &payload).map(|()| true)
            }
            Urgent::DeleteSession(name) => {
                let found = self.shared.lock().index.session(&name).is_some();
                if found { self.write(Meta::DeleteSession(name), &[]).map(|()| true) } else { Ok(false) }
            }
            Urgent::DeleteNamespace(namespace) => self.write(Meta::DeleteNamespace(namespace), &[]).map(|()| true),
            Urgent::ExpireBlocks(before) => self.expire_blocks(before).map(|()| true),
            Urgent::Clear => self.clear().map(|()| true),
        }?;
        if self.shared.options.fsync == FsyncPolicy::EachBatch {
            self.sync_files()?;
        }
        Ok(done)
    }

    /// Removes every segment.
    fn clear(&mut self) -> Result<(), KvError> {
        (self.active, self.dirty) = (None, None);
        let ids = self.shared.lock().index.segments();
        ids.into_iter().try_for_each(|id| self.remove_segment(id).map(drop))
    }

    /// Removes a segment with everything in it, and returns how many blocks and sessions that were.
    pub(super) fn remove_segment(&mut self, id: u64) -> Result<u64, KvError> {
        let path = segment::path(&self.shared.path, id);
        // Forgotten before it is removed: who finds the file gone looks again, and must not find it in the index.
        let n_gone = self.shared.lock().index.drop_segment(id);
        match fs::remove_file(&path) {
            // Somebody else removed it: that is what was wanted.
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error("remove", &path, &error)),
            _ => Ok(n_gone),
        }
    }

    /// Writes a record, giving up old segments for it if need be.
    fn write(&mut self, meta: Meta, payload: &[u8]) -> Result<(), KvError> {
        let len = record::record_len(record::encode_meta(&meta).len(), payload.len());
        if !self.make_room(len)? {
            let max = self.shared.options.max_bytes;
            let line = format!("a record of {len} bytes does not fit a cache folder of {max}; allow more bytes");
            return Err(KvError::disk(DiskFault::TooLarge, line));
        }
        self.append(meta, payload)?;
        self.shared.lock().counts.n_written += 1;
        Ok(())
    }

    /// Appends a record and takes it up in the index.
    pub(super) fn append(&mut self, meta: Meta, payload: &[u8]) -> Result<(), KvError> {
        let len = record::record_len(record::encode_meta(&meta).len(), payload.len());
        let is_full =
            |active: &Active| active.len > SEGMENT_HEADER_LEN && active.len + len > self.shared.options.segment_bytes;
        if self.active.as_ref().is_some_and(is_full) {
            self.leave_active()?;
        }
        let failed = |error: io::Error| io_error("write", &self.shared.path, &error);
        let active = match &mut self.active {
            Some(active) => active,
            none => {
                let created = Active::create(&self.shared.path, self.next_id, &self.shared.options.identity);
                let created = created.map_err(failed)?;
                self.shared.lock().index.add_segment(self.next_id, created.header.nonce, created.len);
                (self.next_id, self.new_name) = (self.next_id + 1, true);
                none.insert(created)
            }
        };
        let (place, frame) = active.append(&meta, payload).map_err(failed)?;
        let mut state = self.shared.lock();
        state.index.set_segment_bytes(place.segment, active.len);
        state.index.apply(place, frame, meta);
        let (since, bytes) = self.dirty.unwrap_or((Instant::now(), 0));
        self.dirty = Some((since, bytes + len));
        Ok(())
    }

    /// Ends the active segment. The next record starts another.
    pub(super) fn leave_active(&mut self) -> Result<(), KvError> {
        if self.must_sync || self.shared.options.fsync != FsyncPolicy::Never {
            self.sync_files()?;
        }
        self.active = None;
        Ok(())
    }

    /// Makes everything durable that was written, unless the policy is never to, and tells those who wait.
    fn sync(&mut self) {
        let policy = self.shared.options.fsync;
        let synced = if policy == FsyncPolicy::Never { Ok(()) } else { self.sync_files() };
        let was_failing = self.shared.lock().is_failing;
        // What was given up shows nothing of the disk as it is now.
        let probed = match was_failing && synced.is_ok() {
            true => segment::probe(&self.shared.path).map_err(|error| io_error("write", &self.shared.path, &error)),
            false => synced,
        };
        let mut state = self.shared.lock();
        state.queue.n_synced = state.queue.n_done;
        state.queue.is_probing = false;
        match probed {
            Ok(()) => state.is_failing = false,
            Err(error) => state.fail(error),
        }
        drop(state);
        self.shared.done.notify_all();
    }

    /// Waits until the active segment and its name are durable.
    pub(super) fn sync_files(&mut self) -> Result<(), KvError> {
        let failed = |error: io::Error| io_error("write", &self.shared.path, &error);
        if let (Some(active), Some(_)) = (&self.active, self.dirty.take()) {
            let synced = active.sync();
            if synced.is_err() {
                // What the system could not write it may have forgotten: write nothing behind that.
                self.active = None;
            }
            synced.map_err(failed)?;
        }
        if std::mem::take(&mut self.new_name) {
            segment::sync_folder(&self.shared.path).map_err(failed)?;
        }
        Ok(())
    }
}
