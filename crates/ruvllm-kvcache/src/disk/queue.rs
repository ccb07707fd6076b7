//! Queue between the store's callers and its thread.

use std::collections::{HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::mpsc::SyncSender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use super::StoreOptions;
use super::index::Index;
use super::key::BlockKey;
use super::record::{BlockMeta, SessionMeta};
use crate::error::{DiskFault, KvError, KvErrorKind};
use crate::key::Namespace;

/// Buffers kept for reuse: memory that has been touched is copied into several times faster.
const N_SPARE_MAX: usize = 8;

/// What callers and the thread share.
pub(super) struct Shared {
    /// Where the segments lie.
    pub(super) path: PathBuf,
    pub(super) options: StoreOptions,
    state: Mutex<State>,
    /// There is something to do for the thread.
    pub(super) work: Condvar,
    /// The thread has made something durable, has emptied the queue, or has ended.
    pub(super) done: Condvar,
}

/// What the lock guards.
#[derive(Default)]
pub(super) struct State {
    pub(super) index: Index,
    pub(super) queue: Queue,
    pub(super) counts: Counts,
    /// The first write that failed since the last flush.
    pub(super) failure: Option<KvError>,
    /// The last that was to be written could not be.
    pub(super) is_failing: bool,
}

/// What happened since the store was opened.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) n_written: u64,
    pub(super) n_read: u64,
    pub(super) n_dropped: u64,
    pub(super) n_failed: u64,
    pub(super) n_corrupt: u64,
    pub(super) n_evicted: u64,
    pub(super) last_failure: Option<String>,
}

/// What waits to be done.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) blocks: VecDeque<QueuedBlock>,
    /// Done before any block.
    pub(super) urgent: VecDeque<(Urgent, SyncSender<Result<bool, KvError>>)>,
    /// Bytes of blocks that wait or are being copied.
    pub(super) bytes: usize,
    /// Keys of blocks that wait, are being copied or are being written.
    pub(super) pending: HashSet<BlockKey>,
    spare: Vec<Vec<u8>>,
    /// How many blocks were put here, ever.
    pub(super) n_put: u64,
    /// How many of them the thread is done with.
    pub(super) n_done: u64,
    /// How many of them are as durable as the policy asks.
    pub(super) n_synced: u64,
    /// Somebody waits for that many to be so.
    pub(super) flush_to: u64,
    /// Somebody waits to hear whether the disk works again.
    pub(super) is_probing: bool,
    /// The thread is to end when the queue is empty.
    pub(super) closing: bool,
    /// The thread has ended.
    pub(super) closed: bool,
}

/// A block that waits to be written.
pub(super) struct QueuedBlock {
    pub(super) key: BlockKey,
    pub(super) meta: BlockMeta,
    pub(super) payload: Vec<u8>,
}

/// What a caller waits for.
pub(super) enum Urgent {
    Save(SessionMeta, Vec<u8>),
    DeleteSession(String),
    DeleteNamespace(Namespace),
    /// Gives up what lies in segments that were last written before then, but for sessions.
    ExpireBlocks(SystemTime),
    Clear,
}

impl Shared {
    pub(super) fn new(path: PathBuf, options: StoreOptions, state: State) -> Shared {
        Shared { path, options, state: Mutex::new(state), work: Condvar::new(), done: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere must not take the callers down: whatever the index says, contents are checked when read.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `condition`, at most for `wait` if there is one.
    pub(super) fn wait<'a>(
        &self,
        condition: &Condvar,
        state: MutexGuard<'a, State>,
        wait: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        match wait {
            Some(wait) => condition.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0,
            None => condition.wait(state).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl State {
    /// Notes a write that failed.
    pub(super) fn fail(&mut self, error: KvError) {
        self.disk_failed(&error);
        self.counts.last_failure = Some(error.to_string());
        self.failure.get_or_insert(error);
    }
}

impl State {
    /// Notes that something was not written, where that is the disk's fault.
    pub(super) fn disk_failed(&mut self, error: &KvError) {
        if is_of_disk(error) {
            self.is_failing = true;
            self.counts.last_failure = Some(error.to_string());
        }
    }
}

/// Returns whether an error is the disk's, not that of what was to be written.
pub(super) fn is_of_disk(error: &KvError) -> bool {
    error.kind() == KvErrorKind::Disk(DiskFault::Io)
}

impl Queue {
    /// Returns a buffer; what is in it means nothing.
    pub(super) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Notes that a block waits no more, and takes its buffer back.
    pub(super) fn finish(&mut self, key: &BlockKey, payload: Vec<u8>) {
        self.pending.remove(key);
        self.bytes -= payload.len();
        self.n_done += 1;
        if self.spare.len() < N_SPARE_MAX {
            self.spare.push(payload);
        }
    }

    /// Drops the waiting blocks that `unwanted` says, and returns how many there were.
    pub(super) fn drop_blocks(&mut self, unwanted: impl Fn(&BlockMeta) -> bool) -> u64 {
        let (dropped, kept): (VecDeque<_>, _) =
            std::mem::take(&mut self.blocks).into_iter().partition(|block| unwanted(&block.meta));
        self.blocks = kept;
        let n_dropped = dropped.len() as u64;
        dropped.into_iter().for_each(|block| self.finish(&block.key, block.payload));
        n_dropped
    }
}
