//! Index of the store, in memory: blocks and sessions by their places in segments.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::UNIX_EPOCH;

use super::BLOCK_TOKENS;
use super::inspect::StoredPrefix;
use super::key::BlockKey;
use super::record::{BlockMeta, Frame, Meta, Place, SessionMeta};
use crate::key::Namespace;

/// Where a record lies, and what guards its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Located {
    pub(super) place: Place,
    pub(super) frame: Frame,
    /// The random number of its segment.
    pub(super) nonce: u64,
}

/// A stored block.
struct BlockEntry {
    at: Located,
    namespace: Namespace,
    parent: BlockKey,
    block_idx: u32,
    /// Tokens up to its last.
    n_tokens: usize,
    /// When it was last wanted, by the index's clock; 0 if never since it was written.
    used: u64,
}

/// A stored session.
struct SessionEntry {
    at: Located,
    meta: SessionMeta,
}

/// A segment file.
struct SegmentEntry {
    nonce: u64,
    /// Length of the file.
    bytes: u64,
    /// Bytes of records that are in use. A mark of deletion always is: what it deletes may be in an older segment.
    live_bytes: u64,
}

/// A record that is in use.
#[derive(Clone, Debug)]
pub(super) enum Live {
    Session(String),
    Block(BlockKey),
}

/// Everything the store knows about its files.
#[derive(Default)]
pub(super) struct Index {
    blocks: HashMap<BlockKey, BlockEntry>,
    sessions: BTreeMap<String, SessionEntry>,
    segments: BTreeMap<u64, SegmentEntry>,
    bytes: u64,
    clock: u64,
}

impl Index {
    /// Adds a segment whose file has `bytes` bytes.
    pub(super) fn add_segment(&mut self, id: u64, nonce: u64, bytes: u64) {
        self.bytes += bytes;
        self.segments.insert(id, SegmentEntry { nonce, bytes, live_bytes: 0 });
    }

    /// Notes that a segment's file has `bytes` bytes now.
    pub(super) fn set_segment_bytes(&mut self, id: u64, bytes: u64) {
        if let Some(segment) = self.segments.get_mut(&id) {
            self.bytes = self.bytes - segment.bytes + bytes;
            segment.bytes = bytes;
        }
    }

    /// Takes up a record. Records must come in the order of their places, as far as they concern the same thing.
    pub(super) fn apply(&mut self, place: Place, frame: Frame, meta: Meta) {
        let segment = self.segments.get_mut(&place.segment).expect("records come after their segment");
        segment.live_bytes += frame.record_len();
        let at = Located { place, frame, nonce: segment.nonce };
        match meta {
            Meta::Block(BlockMeta { namespace, parent, block_idx, ref tokens, .. }) => {
                let n_tokens = block_idx as usize * BLOCK_TOKENS + tokens.len();
                let entry = BlockEntry { at, namespace, parent, block_idx, n_tokens, used: 0 };
                let replaced = self.blocks.insert(parent.child(tokens), entry);
                self.retire(replaced.map(|entry| entry.at));
            }
            Meta::Session(meta) => {
                let replaced = self.sessions.insert(meta.name.clone(), SessionEntry { at, meta });
                self.retire(replaced.map(|entry| entry.at));
            }
            Meta::DeleteSession(name) => drop(self.remove_session(&name)),
            Meta::DeleteNamespace(namespace) => drop(self.retain_blocks(|_, entry| entry.namespace != namespace)),
        }
    }

    /// Notes that a record is in use no more.
    fn retire(&mut self, at: Option<Located>) {
        if let Some(segment) = at.and_then(|at| self.segments.get_mut(&at.place.segment)) {
            segment.live_bytes -= at.map_or(0, |at| at.frame.record_len());
        }
    }

    /// Keeps the blocks that `keep` says, and returns how many others there were.
    fn retain_blocks(&mut self, mut keep: impl FnMut(&BlockKey, &BlockEntry) -> bool) -> u64 {
        let mut retired = Vec::new();
        self.blocks.retain(|key, entry| {
            let keep = keep(key, entry);
            if !keep {
                retired.push(entry.at);
            }
            keep
        });
        retired.iter().for_each(|&at| self.retire(Some(at)));
        retired.len() as u64
    }

    /// Returns where the block lies, and notes that it was wanted.
    pub(super) fn block(&mut self, key: &BlockKey) -> Option<Located> {
        let entry = self.blocks.get_mut(key)?;
        self.clock += 1;
        entry.used = self.clock;
        Some(entry.at)
    }

    /// Tells whether the block is stored, without noting that it was wanted.
    pub(super) fn has_block(&self, key: &BlockKey) -> bool {
        self.blocks.contains_key(key)
    }

    /// Returns where the session lies, and what is known about it.
    pub(super) fn session(&self, name: &str) -> Option<(Located, &SessionMeta)> {
        self.sessions.get(name).map(|entry| (entry.at, &entry.meta))
    }

    /// Returns all sessions by name, with the bytes of their records.
    pub(super) fn sessions(&self) -> impl Iterator<Item = (&SessionMeta, u64)> {
        self.sessions.values().map(|entry| (&entry.meta, entry.at.frame.record_len()))
    }

    /// Forgets a session. Returns whether there was one.
    pub(super) fn remove_session(&mut self, name: &str) -> bool {
        let removed = self.sessions.remove(name).map(|entry| entry.at);
        self.retire(removed);
        removed.is_some()
    }

    /// Forgets blocks that no prefix leads to, because a block before them is missing, and returns how many.
    pub(super) fn drop_orphans(&mut self, identity: &[u8; 32]) -> u64 {
        let mut by_depth: Vec<(u32, BlockKey)> =
            self.blocks.iter().map(|(&key, entry)| (entry.block_idx, key)).collect();
        by_depth.sort_unstable();
        let mut roots: HashMap<Namespace, BlockKey> = HashMap::new();
        let mut n_orphans = 0;
        for (block_idx, key) in by_depth {
            let entry = &self.blocks[&key];
            let reachable = match block_idx.checked_sub(1) {
                None => {
                    let root = roots.entry(entry.namespace);
                    *root.or_insert_with(|| BlockKey::root(identity, entry.namespace)) == entry.parent
                }
                Some(before) => self.blocks.get(&entry.parent).is_some_and(|parent| parent.block_idx == before),
            };
            if !reachable {
                let at = entry.at;
                self.forget(&Live::Block(key), &at);
                n_orphans += 1;
            }
        }
        n_orphans
    }

    /// Returns the segment to give up next, other than `active`: one of which nothing is in use, else the oldest.
    ///
    /// Neither holds a mark of deletion that is still needed: the first holds none, and before the oldest there is
    /// nothing that could come back.
    pub(super) fn victim(&self, active: Option<u64>) -> Option<u64> {
        let mut others = self.segments.iter().filter(|&(&id, _)| Some(id) != active);
        let oldest = others.clone().next().map(|(&id, _)| id);
        others.find(|(_, segment)| segment.live_bytes == 0).map(|(&id, _)| id).or(oldest)
    }

    /// Returns what of a segment is worth copying when it is given up, with the bytes of each: the sessions from the
    /// last used on, then the blocks wanted since they were written, last wanted first.
    pub(super) fn keepers(&self, id: u64) -> Vec<(Live, u64)> {
        let mut sessions: Vec<_> = self.sessions.values().filter(|entry| entry.at.place.segment == id).collect();
        sessions.sort_by_key(|entry| Reverse(entry.meta.used_ms));
        let used = self.used_with_descendants();
        let mut blocks: Vec<_> = (self.blocks.iter())
            .filter(|(_, entry)| entry.at.place.segment == id)
            .filter_map(|(key, entry)| Some((Reverse(*used.get(key)?), entry.block_idx, key, entry)))
            .collect();
        blocks.sort_unstable_by_key(|&(used, block_idx, key, _)| (used, block_idx, *key));
        let session = |entry: &SessionEntry| (Live::Session(entry.meta.name.clone()), entry.at.frame.record_len());
        let blocks = blocks.into_iter().map(|(_, _, &key, entry)| (Live::Block(key), entry.at.frame.record_len()));
        sessions.into_iter().map(session).chain(blocks).collect()
    }

    /// Returns when each block that was wanted was last wanted, itself or a block that follows it: without the one the
    /// other cannot be found.
    fn used_with_descendants(&self) -> HashMap<BlockKey, u64> {
        let mut wanted: Vec<_> = self.blocks.iter().filter(|(_, entry)| entry.used > 0).collect();
        wanted.sort_unstable_by_key(|(_, entry)| Reverse(entry.block_idx));
        let mut used: HashMap<BlockKey, u64> = HashMap::new();
        for (&key, entry) in wanted {
            let (mut key, mut last) = (key, entry.used);
            // Up to the first block that is known to be wanted as lately.
            while let Some(entry) = self.blocks.get(&key) {
                last = last.max(entry.used);
                if used.get(&key).is_some_and(|&known| known >= last) {
                    break;
                }
                used.insert(key, last);
                key = entry.parent;
            }
        }
        used
    }

    /// Returns where a record that is in use lies, without noting that it was wanted.
    pub(super) fn locate(&self, live: &Live) -> Option<Located> {
        match live {
            Live::Session(name) => self.sessions.get(name).map(|entry| entry.at),
            Live::Block(key) => self.blocks.get(key).map(|entry| entry.at),
        }
    }

    /// Forgets a record, if it still lies at `at`. Returns whether it did.
    pub(super) fn forget(&mut self, live: &Live, at: &Located) -> bool {
        let found = self.locate(live).is_some_and(|found| found.place == at.place);
        match live {
            _ if !found => {}
            Live::Session(name) => drop(self.sessions.remove(name)),
            Live::Block(key) => drop(self.blocks.remove(key)),
        }
        self.retire(found.then_some(*at));
        found
    }

    /// Forgets a segment and everything in it; returns how many blocks and sessions that were.
    pub(super) fn drop_segment(&mut self, id: u64) -> u64 {
        let n_blocks = self.retain_blocks(|_, entry| entry.at.place.segment != id);
        let n_sessions = self.sessions.len();
        self.sessions.retain(|_, entry| entry.at.place.segment != id);
        self.bytes -= self.segments.remove(&id).map_or(0, |segment| segment.bytes);
        n_blocks + (n_sessions - self.sessions.len()) as u64
    }

    /// Returns the blocks that no other follows, with their segments, longest prefix first.
    pub(super) fn prefixes(&self) -> Vec<(StoredPrefix, u64)> {
        let parents: HashSet<BlockKey> = self.blocks.values().map(|entry| entry.parent).collect();
        let mut leaves: Vec<_> = (self.blocks.iter())
            .filter(|(key, _)| !parents.contains(key))
            .map(|(&key, entry)| {
                let chain = std::iter::successors(Some(entry), |entry| self.blocks.get(&entry.parent));
                let bytes = chain.map(|entry| entry.at.frame.record_len()).sum();
                let BlockEntry { namespace, n_tokens, .. } = *entry;
                (StoredPrefix { key, namespace, n_tokens, bytes, written: UNIX_EPOCH }, entry.at.place.segment)
            })
            .collect();
        leaves.sort_by_key(|(prefix, _)| (Reverse(prefix.n_tokens), prefix.key));
        leaves
    }

    /// Returns the numbers of all segments, oldest first.
    pub(super) fn segments(&self) -> Vec<u64> {
        self.segments.keys().copied().collect()
    }

    /// Returns how many segments there are.
    pub(super) fn n_segments(&self) -> usize {
        self.segments.len()
    }

    /// Returns the length of a segment's file.
    pub(super) fn segment_bytes(&self, id: u64) -> u64 {
        self.segments.get(&id).map_or(0, |segment| segment.bytes)
    }

    /// Returns the length of all segment files.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes of records in use.
    pub(super) fn live_bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.live_bytes).sum()
    }

    /// Returns how many blocks are stored.
    pub(super) fn n_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Returns how many sessions are stored.
    pub(super) fn n_sessions(&self) -> usize {
        self.sessions.len()
    }
}
