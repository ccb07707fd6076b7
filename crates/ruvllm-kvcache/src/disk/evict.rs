//! Staying below the limit of bytes: which segment goes, and what of it stays.

use std::fs;
use std::time::SystemTime;

use super::index::Live;
use super::io_error;
use super::recover;
use super::segment::{self, SEGMENT_HEADER_LEN};
use super::writer::Writer;
use crate::error::KvError;

/// How much of a segment is copied when it is given up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// All sessions, and blocks up to three quarters of the segment.
    Sessions,
    /// All sessions and nothing else.
    OnlySessions,
    /// Three quarters of the segment, sessions first.
    Most,
    Nothing,
}

impl Writer {
    /// Gives up segments until a record of `len` bytes can be written. Returns false if it cannot be, even alone.
    ///
    /// At any point of it, everything that is kept lies in a durable file: copies are synced before their original is
    /// removed, and of two copies the later counts.
    ///
    /// # Errors
    /// A file cannot be read, written or removed.
    pub(super) fn make_room(&mut self, len: u64) -> Result<bool, KvError> {
        let options = &self.shared.options;
        // Copies need room before their original is gone.
        let limit = options.max_bytes - options.segment_bytes;
        let (mut n_passes, n_segments) = (0, self.shared.lock().index.n_segments());
        loop {
            let (bytes, victim) = {
                let index = &self.shared.lock().index;
                let active = self.active.as_ref().map(|active| active.header.id);
                (index.bytes(), index.victim(active))
            };
            if bytes + len + SEGMENT_HEADER_LEN <= limit {
                return Ok(true);
            }
            // A round that keeps every session, a round that does not, and if both gained too little, none are kept.
            let keep = match n_passes / (n_segments + 1) {
                0 => Keep::Sessions,
                1 => Keep::Most,
                _ => Keep::Nothing,
            };
            match victim {
                Some(id) => self.give_up(id, keep)?,
                None if self.active.is_some() => self.leave_active()?,
                None => return Ok(false),
            }
            n_passes += 1;
        }
    }

    /// Gives up the segments that were last written before `before`, but for their sessions.
    ///
    /// # Errors
    /// A file cannot be read, written or removed.
    pub(super) fn expire_blocks(&mut self, before: SystemTime) -> Result<(), KvError> {
        let ids = self.shared.lock().index.segments();
        let mut due = Vec::with_capacity(ids.len());
        for id in ids {
            let path = segment::path(&self.shared.path, id);
            let modified = fs::metadata(&path).and_then(|about| about.modified());
            if modified.map_err(|error| io_error("read", &path, &error))? > before {
                // Not past it: what a later segment deletes may lie in this one.
                break;
            }
            due.push(id);
        }
        // Sessions that are copied on the way go to a segment of their own.
        if self.active.as_ref().is_some_and(|active| due.contains(&active.header.id)) {
            self.leave_active()?;
        }
        due.into_iter().try_for_each(|id| self.give_up(id, Keep::OnlySessions))
    }

    /// Removes a segment after copying what of it is kept.
    fn give_up(&mut self, id: u64, keep: Keep) -> Result<(), KvError> {
        let (keepers, victim_bytes, bytes) = {
            let index = &self.shared.lock().index;
            (index.keepers(id), index.segment_bytes(id), index.bytes())
        };
        // Only a store opened with a lower limit than before is above it, and is on its way down.
        let limit = if bytes > self.shared.options.max_bytes { u64::MAX } else { self.shared.options.max_bytes };
        let (mut copied_bytes, mut payload) = (0, Vec::new());
        self.must_sync = true;
        for (live, len) in keepers {
            let fits = self.shared.lock().index.bytes() + len + SEGMENT_HEADER_LEN <= limit;
            let kept = match keep {
                Keep::Sessions | Keep::OnlySessions if matches!(live, Live::Session(_)) => true,
                Keep::Sessions | Keep::Most => copied_bytes + len <= victim_bytes / 4 * 3,
                Keep::OnlySessions | Keep::Nothing => false,
            };
            if fits && kept {
                self.copy(&live, &mut payload)?;
                copied_bytes += len;
            }
        }
        // Also what replaced a record of this segment must not be lost when the segment is.
        self.sync_files()?;
        self.must_sync = false;
        let n_gone = self.remove_segment(id)?;
        let mut state = self.shared.lock();
        let n_orphans = state.index.drop_orphans(&self.shared.options.identity);
        state.counts.n_evicted += n_gone + n_orphans;
        Ok(())
    }

    /// Appends a record again, unless it is damaged.
    fn copy(&mut self, live: &Live, payload: &mut Vec<u8>) -> Result<(), KvError> {
        let Some(at) = self.shared.lock().index.locate(live) else { return Ok(()) };
        let found = recover::read(&self.shared.path, &at, payload);
        let Some(meta) = found.map_err(|error| io_error("read", &self.shared.path, &error))? else {
            let mut state = self.shared.lock();
            state.counts.n_corrupt += u64::from(state.index.forget(live, &at));
            return Ok(());
        };
        self.append(meta, payload)
    }
}
