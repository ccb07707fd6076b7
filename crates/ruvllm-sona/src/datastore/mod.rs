//! kNN-LM datastore: what followed hidden states like this one.
//!
//! ```text
//! entry:   key of a hidden state (bytes), the token that came next
//! search:  sim[i] = q·k[i];  the k nearest entries                      (exact up to a few thousand entries)
//!          beyond: the 256 nearest by the keys' first 128 values, then exact among those
//! context: sim[i] += 0.02 for each of up to eight tokens before that were the same, one after another
//! recall:  w[i] ∝ exp(sim[i] / T)·p_model(token[i])^0.15, a tenth of it for what the model has in view itself;
//!          p_knn(token) = Σ w[i] over entries with that token
//! ```
//! Khandelwal et al. 2020 (kNN-LM, arXiv:1911.00172) and Grave et al. 2017 (neural cache, arXiv:1612.04426), over keys of
//! [`Whitener`](crate::Whitener). A datastore has a limit of bytes. When it is full, entries are evicted by what they were worth,
//! never by age: see [`Datastore::push`].

mod entries;
mod search;
#[cfg(test)]
mod tests;

pub use search::{KnnQuery, SearchScratch};

pub use crate::top::Hit;

use entries::Entries;
use ruvllm_kernels::distance::PADDING;

use crate::codec::{Reader, Writer};
use crate::error::{SonaError, SonaErrorKind};
use crate::whiten::{Key, N_EMBD_MAX};

/// What a snapshot begins with.
const MAGIC: [u8; 8] = *b"ruvmemo2";
/// The first values of a key, which lie apart: what the coarse scan reads.
const HEAD: usize = 2 * PADDING;
/// Bytes of an entry beside its key: token, scale, worth, context.
const ENTRY_BYTES: usize = 20;
/// What a token in common before an entry adds to its similarity.
const CONTEXT_BONUS: f32 = 0.02;
/// The most entries a snapshot is read of.
const N_ENTRIES_MAX: usize = 1 << 26;
/// Of the entries of a full datastore, one in this many is evicted at once.
const EVICTED_SHARE: usize = 32;

/// The last eight tokens, a byte of each, the last one lowest. Two contexts that are the same by accident cost a bonus or
/// a share, no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Context(u64);

impl Context {
    /// Goes on by a token.
    pub fn push(&mut self, token: u32) {
        // Fibonacci hashing: the byte depends on all bits of the id.
        self.0 = (self.0 << 8) | u64::from(token.wrapping_mul(0x9e37_79b9) >> 24);
    }

    /// Returns what a snapshot keeps.
    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    /// Reads it.
    pub(crate) fn from_bits(bits: u64) -> Context {
        Context(bits)
    }

    /// Returns how many tokens are the same, from the last one back.
    pub(crate) fn n_common(self, other: Context) -> u32 {
        (self.0 ^ other.0).trailing_zeros() / 8
    }
}

/// Options of a datastore.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DatastoreOptions {
    /// Bytes of all entries.
    pub n_bytes_max: usize,
    /// Entries that are found.
    pub n_nearest: usize,
    /// Entries up to which every key is compared in full.
    pub n_exact_max: usize,
    /// Entries that the coarse scan leaves for the exact comparison.
    pub n_candidates: usize,
}

impl Default for DatastoreOptions {
    fn default() -> DatastoreOptions {
        DatastoreOptions { n_bytes_max: 256 << 20, n_nearest: 32, n_exact_max: 4096, n_candidates: 256 }
    }
}

/// Keys of hidden states with the tokens that followed.
#[derive(Clone, Debug, PartialEq)]
pub struct Datastore {
    options: DatastoreOptions,
    n_key: usize,
    entries: Entries,
    /// What an entry is worth keeping for, in nats. They lie apart: every request changes many of them.
    worths: Vec<f32>,
    /// Entries that are evicted next, the least worth last.
    victims: Vec<u32>,
    n_evicted: u64,
}

impl Datastore {
    /// Makes an empty datastore for keys of `n_key` bytes.
    ///
    /// # Errors
    /// The width is no multiple of [`PADDING`], or an option is out of range.
    pub fn new(n_key: usize, options: DatastoreOptions) -> Result<Datastore, SonaError> {
        let error = |kind, line| Err(SonaError::new(kind, line));
        if n_key == 0 || !n_key.is_multiple_of(PADDING) || n_key > N_EMBD_MAX + PADDING {
            return error(SonaErrorKind::Shape, format!("keys of {n_key} bytes, no multiple of {PADDING}"));
        }
        let DatastoreOptions { n_bytes_max, n_nearest, n_candidates, .. } = options;
        if n_nearest == 0 || n_nearest > 256 || n_candidates < n_nearest {
            let line = format!("{n_nearest} nearest of {n_candidates} candidates; choose 1 to 256 of at least as many");
            return error(SonaErrorKind::Value, line);
        }
        let least = EVICTED_SHARE * (n_key + ENTRY_BYTES);
        if n_bytes_max < least {
            let line = format!("a datastore of {n_bytes_max} bytes; {least} is the least for keys of {n_key}");
            return error(SonaErrorKind::Limit, line);
        }
        Ok(Datastore {
            options,
            n_key,
            entries: Entries::new(n_key.min(HEAD), n_key - n_key.min(HEAD)),
            worths: Vec::new(),
            victims: Vec::new(),
            n_evicted: 0,
        })
    }

    /// Returns how many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.entries.len() == 0
    }

    /// Returns the bytes of all entries.
    pub fn n_bytes(&self) -> usize {
        self.len() * (self.n_key + ENTRY_BYTES)
    }

    /// Returns how many entries were evicted so far.
    pub fn n_evicted(&self) -> u64 {
        self.n_evicted
    }

    /// Returns how many entries fit.
    pub fn capacity(&self) -> usize {
        self.options.n_bytes_max / (self.n_key + ENTRY_BYTES)
    }

    /// Returns the options.
    pub fn options(&self) -> &DatastoreOptions {
        &self.options
    }

    /// Goes on with other options.
    ///
    /// # Errors
    /// An option is out of range, or there is more than may be from now on.
    pub(crate) fn configure(&mut self, options: DatastoreOptions) -> Result<(), SonaError> {
        let n_max = Datastore::new(self.n_key, options)?.capacity();
        if self.len() > n_max {
            let line = format!("a datastore of {} entries, of which {n_max} fit; give it more room", self.len());
            return Err(SonaError::new(SonaErrorKind::Limit, line));
        }
        self.options = options;
        Ok(())
    }

    /// Returns the bytes of a key.
    pub fn n_key(&self) -> usize {
        self.n_key
    }

    /// Returns the token of an entry.
    pub fn token(&self, index: u32) -> u32 {
        self.entries.token(index as usize)
    }

    /// Returns the context of what came behind an entry: its own, and its token.
    pub(crate) fn context_behind(&self, index: u32) -> Context {
        let mut context = self.entries.context(index as usize);
        context.push(self.token(index));
        context
    }

    /// Adds an entry: what the tokens of `context` and the state of `key` were followed by. `worth` is what is known of its use, in nats: how badly the model predicted the token, less what
    /// entries with the same token already cover. When the datastore is full, an entry takes the place of the one that is
    /// worth least (of equals, the one that lies first); use so far counts ([`Datastore::credit`]), age does not.
    ///
    /// # Panics
    /// If the key has another width.
    pub fn push(&mut self, key: &Key, context: Context, token: u32, worth: f32) {
        assert_eq!(key.bytes.len(), self.n_key, "a key of {} bytes", key.bytes.len());
        let worth = if worth.is_finite() { worth } else { 0.0 };
        if self.len() < self.capacity() {
            self.entries.push(key, context, token);
            self.worths.push(worth);
            return;
        }
        let at = self.next_victim();
        self.entries.replace(at, key, context, token);
        self.worths[at] = worth;
        self.n_evicted += 1;
    }

    /// Returns the entry that is evicted. Many are chosen at once: looking at all of them takes a fraction of a
    /// millisecond.
    fn next_victim(&mut self) -> usize {
        if self.victims.is_empty() {
            let mut order: Vec<u32> = (0..self.len() as u32).collect();
            let n = (self.len() / EVICTED_SHARE).max(1);
            let by_worth =
                |&i: &u32, &j: &u32| self.worths[i as usize].total_cmp(&self.worths[j as usize]).then(i.cmp(&j));
            if n < order.len() {
                order.select_nth_unstable_by(n, by_worth);
            }
            order.truncate(n);
            order.sort_unstable_by(|i, j| by_worth(j, i));
            self.victims = order;
        }
        self.victims.pop().map_or(0, |at| at as usize)
    }

    /// Adds to an entry's worth what it gained, in nats; a loss is negative.
    pub fn credit(&mut self, index: u32, gain: f32) {
        if let Some(worth) = self.worths.get_mut(index as usize).filter(|_| gain.is_finite()) {
            *worth += gain;
        }
    }

    /// Returns everything as bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = Writer::of(MAGIC);
        let DatastoreOptions { n_bytes_max, n_nearest, n_exact_max, n_candidates } = self.options;
        for value in [n_bytes_max, n_nearest, n_exact_max, n_candidates, self.n_key, self.len(), self.victims.len()] {
            out.u64(value as u64);
        }
        out.u64(self.n_evicted);
        self.entries.write(&mut out, |out| _ = out.plain_f32s(&self.worths));
        out.plain_u32s(&self.victims);
        out.take()
    }

    /// Reads what [`Datastore::snapshot`] gave: the same to the bit.
    ///
    /// # Errors
    /// The bytes are damaged, of another version, or hold more than their limit.
    pub fn restore(bytes: &[u8]) -> Result<Datastore, SonaError> {
        let mut from = Reader::of(bytes, MAGIC, "datastore")?;
        let options = DatastoreOptions {
            n_bytes_max: from.number(usize::MAX)?,
            n_nearest: from.number(N_ENTRIES_MAX)?,
            n_exact_max: from.number(usize::MAX)?,
            n_candidates: from.number(N_ENTRIES_MAX)?,
        };
        let mut datastore = Datastore::new(from.number(N_EMBD_MAX + PADDING)?, options)?;
        let n = from.number(datastore.capacity().min(N_ENTRIES_MAX))?;
        let n_victims = from.number(n)?;
        datastore.n_evicted = from.u64()?;
        datastore.worths = datastore.entries.read(n, &mut from, |from| from.plain_f32s(n))?;
        datastore.victims = from.plain_u32s(n_victims)?;
        if datastore.victims.iter().any(|&at| at as usize >= n) {
            return Err(from.invalid(format_args!("an entry beyond {n}")));
        }
        from.end()?;
        Ok(datastore)
    }
}
