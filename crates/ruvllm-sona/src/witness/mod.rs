//! The witness log: what was done, in a chain that shows when somebody has touched it.
//!
//! Each record has a *link*: its number, its time, a digest of its contents, and a BLAKE3 hash over those and the link
//! before. Contents lie apart, by tenant, so that they can be erased while the chain over them stands; an erasure is a
//! record itself, and contents that are missing without one are a fault. [`verify`] finds edits, deletions and swaps; what
//! was cut off at the end shows against an [`Anchor`] that was kept elsewhere, and so does a chain that was computed anew.
//!
//! [`WitnessLog::record`] puts a record into a queue and returns; a thread writes them in batches. What finds the queue full
//! is counted, and the count goes into the chain.
//!
//! ```
//! use ruvllm_sona::store::{self, OpenOptions};
//! use ruvllm_sona::witness::{self, Event, LogOptions, Query, WitnessLog};
//!
//! # let folder = tempfile::tempdir()?;
//! let store = store::open(&folder.path().join("sona.redb"), &OpenOptions::default())?;
//! let log = WitnessLog::start(store.clone(), LogOptions::default())?;
//! log.record("alice", Event::Learning { what: "generation 4 was published".into() });
//! log.record("alice", Event::Feedback { request: 17, quality: 0.2 });
//! let anchor = log.flush()?;
//!
//! let verified = witness::verify(store.as_ref(), Some(&anchor))?;
//! assert!(verified.faults.is_empty() && verified.n_records == 2);
//! assert_eq!(witness::search(store.as_ref(), "alice", &Query::default())?.len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::clock::now_ms;
use crate::error::{SonaError, SonaErrorKind};
use crate::store::{Durability, Removed, Retention, Store};

mod chain;
mod query;
mod record;
#[cfg(test)]
mod tests;

pub use chain::{Anchor, Fault, FaultKind, Verified, verify};
use chain::{Chain, Entry, Finish, Stands};
pub use query::{Query, Recorded, search, tenants};
pub use record::{Content, Event, Served};

/// Options of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Records that may wait.
    pub n_queued_max: usize,
    /// Bytes that those may have together.
    pub queued_bytes_max: usize,
    /// Records that are written as soon as they are together.
    pub n_batch: usize,
    /// Longest time that fewer wait for more.
    pub wait_ms_max: u64,
    /// Whether a batch is on disk when it is written. Otherwise each tenth is, and a process that dies takes those since
    /// along; the chain is whole all the same.
    pub syncs_each_batch: bool,
    /// Where the newest anchor is put after each batch that is on disk: a file that is best elsewhere than the store. An
    /// anchor that is there already has to fit the chain.
    pub anchor: Option<PathBuf>,
}

impl Default for LogOptions {
    /// 10,000 in the queue and 64 MiB, batches of 100 or one second, each on disk, no anchor file.
    fn default() -> LogOptions {
        LogOptions {
            n_queued_max: 10_000,
            queued_bytes_max: 64 << 20,
            n_batch: 100,
            wait_ms_max: 1000,
            syncs_each_batch: true,
            anchor: None,
        }
    }
}

/// Batches that are not synced between two that are.
const N_UNSYNCED: u32 = 9;

/// Counters of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Records that wait.
    pub n_queued: usize,
    /// Records that were written.
    pub n_written: u64,
    /// Records that found the queue full.
    pub n_lost: u64,
    /// Batches that could not be written, whose records wait, and those whose anchor could not, whose records stand.
    pub n_failed_batches: u64,
    /// Why the last of those could not.
    pub last_error: Option<String>,
    /// Why the newest batch is not on record, or its anchor not in its place; none as soon as they are.
    pub failing: Option<String>,
}

struct Queue {
    entries: VecDeque<Entry>,
    n_bytes: usize,
    /// When the oldest came.
    since: Option<Instant>,
    /// Lost since the last record of it.
    n_lost: u64,
    stats: LogStats,
    /// How often somebody asked for all to be written, and how often it was.
    n_asked: u64,
    n_answered: u64,
    /// The error of the last answer.
    answer: Option<(SonaErrorKind, String)>,
    is_ending: bool,
}

impl Queue {
    /// Ingests what the store says of a batch that failed: so many entries at the queue's head, with a record of so many lost.
    fn settle(&mut self, settled: &Result<Stands, SonaError>, failed: &mut Option<(u64, u64)>) {
        match settled {
            Err(_) => return,
            Ok(Stands::Before) => {}
            Ok(Stands::Also) => {
                let (n, n_lost) = failed.unwrap_or_default();
                let n = self.entries.len().min(n as usize);
                self.entries.drain(..n);
                self.n_bytes = self.entries.iter().map(Entry::n_bytes).sum();
                self.n_lost = self.n_lost.saturating_sub(n_lost);
                self.stats.n_written += n as u64;
            }
            Ok(Stands::Less(n)) => {
                self.n_lost += n;
                self.stats.n_lost += n;
            }
        }
        *failed = None;
    }

    /// Says what the end of the program takes along.
    fn tell_end(&self, tell: &dyn Fn(&SonaError)) {
        let n = self.entries.len() as u64 + self.n_lost;
        if n > 0 {
            let why = self.stats.failing.as_deref().unwrap_or("the log ends");
            tell(&SonaError::new(SonaErrorKind::Io, format!("{n} records will never be written: {why}")));
        }
    }
}

/// Before what could not be written at the end is tried once more.
const LAST_TRY: Duration = Duration::from_millis(1100);

struct Shared {
    chain: Chain,
    options: LogOptions,
    queue: Mutex<Queue>,
    work: Condvar,
    done: Condvar,
}

/// A log that is being written. Dropped, it writes what waits.
pub struct WitnessLog {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl WitnessLog {
    /// Goes on with the chain in `store`. A store has one log at a time.
    ///
    /// # Errors
    /// If the store cannot be read, no thread can be started, or the anchor cannot be written; with kind `Invalid` if the
    /// chain does not go through the anchor that is there: it was cut off or computed anew, and the anchor is left alone.
    pub fn start(store: Arc<dyn Store>, options: LogOptions) -> Result<WitnessLog, SonaError> {
        WitnessLog::start_telling(store, options, |_| ())
    }

    /// Starts a log; `tell` hears on the log's thread when a batch or its anchor cannot be written. What fails again for the
    /// same reason is told once.
    ///
    /// # Errors
    /// As [`WitnessLog::start`].
    pub fn start_telling(
        store: Arc<dyn Store>,
        options: LogOptions,
        tell: impl Fn(&SonaError) + Send + 'static,
    ) -> Result<WitnessLog, SonaError> {
        let chain = Chain::open(store)?;
        if let Some(path) = &options.anchor {
            chain.check_anchor(path)?;
            // A place that cannot be written shows now, not behind the first answer.
            chain.head().save(path)?;
        }
        let queue = Mutex::new(Queue {
            entries: VecDeque::with_capacity(options.n_queued_max),
            n_bytes: 0,
            since: None,
            n_lost: 0,
            stats: LogStats::default(),
            n_asked: 0,
            n_answered: 0,
            answer: None,
            is_ending: false,
        });
        let (work, done) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { chain, options, queue, work, done });
        let run = {
            let shared = shared.clone();
            move || shared.run(&tell)
        };
        let thread = std::thread::Builder::new().name("witness".into()).spawn(run);
        let thread = thread
            .map_err(|error| SonaError::new(SonaErrorKind::Io, "no thread for the witness log").with_source(error))?;
        Ok(WitnessLog { shared, thread: Some(thread) })
    }

    /// Puts a record of `tenant` into the queue, with the time of now; returns `false` if there is no room. Never waits for
    /// the disk.
    pub fn record(&self, tenant: &str, event: Event) -> bool {
        self.enqueue(tenant, event, None)
    }

    /// Records an event; before the record is written, `finish` adds on the log's thread what takes time to know. [`WitnessLog::flush`]
    /// waits for it.
    pub fn record_then(&self, tenant: &str, event: Event, finish: impl FnOnce(&mut Event) + Send + 'static) -> bool {
        self.enqueue(tenant, event, Some(Box::new(finish)))
    }

    fn enqueue(&self, tenant: &str, event: Event, finish: Option<Finish>) -> bool {
        let entry = Entry { tenant: tenant.into(), unix_ms: now_ms(), event, finish };
        let n_bytes = entry.n_bytes();
        let Shared { options, work, .. } = &*self.shared;
        let mut queue = self.shared.queue();
        if queue.entries.len() >= options.n_queued_max || queue.n_bytes + n_bytes > options.queued_bytes_max {
            queue.n_lost += 1;
            queue.stats.n_lost += 1;
            return false;
        }
        queue.entries.push_back(entry);
        queue.n_bytes += n_bytes;
        let n = queue.entries.len();
        queue.since.get_or_insert_with(Instant::now);
        drop(queue);
        // The first starts the clock, a full batch ends the waiting.
        if n == 1 || n == options.n_batch {
            work.notify_one();
        }
        true
    }

    /// Waits until all that was recorded before is on disk; returns the chain's end.
    ///
    /// # Errors
    /// If it could not be written: it goes on waiting in the queue. Also if it was, and its anchor could not.
    pub fn flush(&self) -> Result<Anchor, SonaError> {
        let mut queue = self.shared.queue();
        queue.n_asked += 1;
        let mine = queue.n_asked;
        self.shared.work.notify_one();
        while queue.n_answered < mine {
            queue = self.shared.done.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        match &queue.answer {
            Some((kind, message)) => Err(SonaError::new(*kind, message.clone())),
            None => Ok(self.shared.chain.head()),
        }
    }

    /// Erases the contents of all records of a tenant, from the disk as well; returns how many. The chain over them
    /// stands, and says that they were erased, not whose they were.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn erase_tenant(&self, tenant: &str) -> Result<usize, SonaError> {
        self.flush()?;
        let n_erased = self.shared.chain.erase_tenant(tenant, now_ms())?;
        self.shared.chain.store().scrub()?;
        Ok(n_erased)
    }

    /// Erases the contents of records that `rules` no longer allow, oldest first, whosever they are.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn retain(&self, rules: &Retention) -> Result<Removed, SonaError> {
        self.flush()?;
        self.shared.chain.retain(rules, now_ms())
    }

    /// Returns what was done so far.
    pub fn stats(&self) -> LogStats {
        let queue = self.shared.queue();
        LogStats { n_queued: queue.entries.len(), ..queue.stats.clone() }
    }
}

impl Drop for WitnessLog {
    fn drop(&mut self) {
        self.shared.queue().is_ending = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of it has been reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Numbers and a queue are whole at each step, so a poisoned lock is as good as another.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a batch is due.
    fn wait_for_batch(&self, wait: Duration) -> MutexGuard<'_, Queue> {
        let mut queue = self.queue();
        loop {
            let is_asked = queue.n_answered < queue.n_asked || queue.is_ending;
            let waited = queue.since.map(|since| since.elapsed());
            let is_due = waited.is_some_and(|waited| waited >= wait);
            if is_asked || is_due || queue.entries.len() >= self.options.n_batch {
                return queue;
            }
            let left = waited.map_or(Duration::MAX, |waited| wait - waited);
            queue = match left {
                Duration::MAX => self.work.wait(queue).unwrap_or_else(PoisonError::into_inner),
                left => self.work.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    /// What the thread does: waits for a batch, writes it.
    fn run(&self, tell: &dyn Fn(&SonaError)) {
        let wait = Duration::from_millis(self.options.wait_ms_max);
        let (mut n_unsynced, mut told, mut failed, mut is_last_try) = (0, None, None, false);
        loop {
            drop(self.wait_for_batch(wait));
            let settled = self.chain.settle();
            let mut queue = self.queue();
            queue.settle(&settled, &mut failed);
            let (n_asked, is_ending) = (queue.n_asked, queue.is_ending);
            let mut entries = Vec::from(std::mem::take(&mut queue.entries));
            queue.entries.reserve(self.options.n_queued_max);
            let n_lost = std::mem::take(&mut queue.n_lost);
            (queue.since, queue.n_bytes) = (None, 0);
            let is_asked = queue.n_answered < n_asked || is_ending;
            drop(queue);
            for Entry { event, finish, .. } in &mut entries {
                let Some(finish) = finish.take() else { continue };
                // One that breaks has been reported where it did; the record is written as it is, and so are the others.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| finish(event)));
            }
            let n_entries = entries.len() as u64;
            if n_lost > 0 {
                let (tenant, event) = (String::new(), Event::Lost { n: n_lost });
                entries.push(Entry { tenant, unix_ms: now_ms(), event, finish: None });
            }
            let syncs = self.options.syncs_each_batch || is_asked || n_unsynced >= N_UNSYNCED;
            // Asked to sync without anything new: an empty durable commit takes earlier ones along.
            let durability = if syncs { Durability::Durable } else { Durability::Relaxed };
            let appended = settled.and_then(|_| self.chain.append(&entries, durability));
            let is_appended = appended.is_ok();
            let failure = appended.and_then(|()| if syncs { self.save_anchor() } else { Ok(()) }).err();
            // What failed is made good by a batch that is on disk, and has its anchor.
            n_unsynced = match (&failure, syncs) {
                (Some(_), _) => N_UNSYNCED,
                (None, true) => 0,
                (None, false) => n_unsynced + 1,
            };
            let line = failure.as_ref().map(SonaError::to_string);
            if let Some(error) = failure.as_ref().filter(|_| line != told) {
                tell(error);
            }
            told.clone_from(&line);

            let mut queue = self.queue();
            if is_appended {
                queue.stats.n_written += n_entries;
            } else {
                failed.get_or_insert((n_entries, n_lost));
                self.put_back(&mut queue, entries, n_lost);
            }
            queue.stats.failing.clone_from(&line);
            if failure.is_some() {
                queue.stats.n_failed_batches += 1;
                queue.stats.last_error.clone_from(&line);
            }
            if is_appended && failure.is_some() {
                // The records stand; the anchor is tried again with the next batch, which is an empty one if none come.
                queue.since.get_or_insert_with(Instant::now);
            }
            queue.answer = failure.as_ref().map(SonaError::kind).zip(line);
            queue.n_answered = n_asked;
            self.done.notify_all();
            if is_ending && (is_appended || is_last_try) {
                return queue.tell_end(tell);
            }
            if is_ending {
                // A store that failed opens itself again a second later.
                is_last_try = true;
                drop(queue);
                std::thread::sleep(LAST_TRY);
                continue;
            }
            if failure.is_some() {
                // A full disk is not better for being asked at once again.
                drop(self.work.wait_timeout(queue, wait));
            }
        }
    }

    /// Returns entries that could not be written to the head of the queue; the clock starts anew before the next try.
    fn put_back(&self, queue: &mut Queue, mut entries: Vec<Entry>, n_lost: u64) {
        if n_lost > 0 {
            entries.pop();
            queue.n_lost += n_lost;
        }
        for entry in entries.into_iter().rev() {
            queue.entries.push_front(entry);
        }
        // What came meanwhile and finds no room any more is lost, and counted.
        let n_over = queue.entries.len().saturating_sub(self.options.n_queued_max);
        queue.entries.truncate(self.options.n_queued_max);
        queue.n_bytes = queue.entries.iter().map(Entry::n_bytes).sum();
        queue.n_lost += n_over as u64;
        queue.stats.n_lost += n_over as u64;
        queue.since = (!queue.entries.is_empty()).then(Instant::now);
    }

    /// Saves the chain's end, all of which is on disk.
    fn save_anchor(&self) -> Result<(), SonaError> {
        self.options.anchor.as_ref().map_or(Ok(()), |path| self.chain.head().save(path))
    }
}
