//! Links, contents, and whether they fit.

use std::collections::{HashMap, HashSet};
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::record::Event;
use crate::codec::{Reader, Writer};
use crate::error::{SonaError, SonaErrorKind, invalid};
use crate::store::{
    Durability, Removed, Retention, Scan, Snapshot, Store, Table, Transaction, beside, random, time_key, time_of,
};

/// By number: the time, the digest of the contents, the hash.
const LINKS: Table = Table::new("witness links");

/// By tenant, time and number: salt and contents. What belongs to nobody has the empty name.
pub(super) const CONTENTS: Table = Table::new("witness");

/// Bytes before the contents that keep their digest from being guessed.
const SALT_BYTES: usize = 16;

/// Numbers in one record of erasure.
const SEQS_MAX: usize = 100_000;

/// The end of a chain at some time. Kept elsewhere, it shows what was cut off or computed anew since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Anchor {
    /// Number of links.
    pub n_links: u64,
    /// The hash of the last; zeros without links.
    pub hash: [u8; 32],
}

impl Anchor {
    /// Reads what `Display` writes: the number, a colon, 64 hexadecimal digits.
    ///
    /// # Errors
    /// If it is something else.
    pub fn parse(text: &str) -> Result<Anchor, SonaError> {
        let refused = || invalid("an anchor is a number, a colon and 64 hexadecimal digits");
        let (n_links, digits) = text.trim().split_once(':').ok_or_else(refused)?;
        let mut hash = [0; 32];
        if digits.len() != 64 || !digits.is_ascii() {
            return Err(refused());
        }
        for (i, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).map_err(|_| refused())?;
        }
        Ok(Anchor { n_links: n_links.parse().map_err(|_| refused())?, hash })
    }

    /// Puts the anchor into a file, in one step: a loss of power leaves this anchor or the one before.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), SonaError> {
        let part = beside(path);
        let write = || {
            let mut file = std::fs::File::create(&part)?;
            writeln!(file, "{self}")?;
            file.sync_all()?;
            std::fs::rename(&part, path)
        };
        write().map_err(|error| {
            let _ = std::fs::remove_file(&part);
            let advice = "make a folder there that can be written, or give another file";
            let line = format!("{}: the anchor cannot be written: {error}; {advice}", path.display());
            SonaError::new(SonaErrorKind::Io, line).with_source(error)
        })
    }

    /// Reads the anchor in a file; `None` where there is no file yet.
    pub(super) fn load(path: &Path) -> Result<Option<Anchor>, SonaError> {
        let shown = path.display();
        match std::fs::read(path) {
            Ok(bytes) => Anchor::parse(&String::from_utf8_lossy(&bytes)).map(Some).map_err(|error| {
                invalid(format!("{shown}: this is no anchor and is not written over; give another file"))
                    .with_source(error)
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => {
                let line = format!("{shown}: the anchor cannot be read: {error}; give another file");
                Err(SonaError::new(SonaErrorKind::Io, line).with_source(error))
            }
        }
    }
}

impl std::fmt::Display for Anchor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:", self.n_links)?;
        self.hash.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Something to be put on record.
pub(super) struct Entry {
    pub(super) tenant: String,
    pub(super) unix_ms: u64,
    pub(super) event: Event,
    /// Adds what takes time to know, before it is written.
    pub(super) finish: Option<Finish>,
}

impl Entry {
    /// About how much memory it takes while it waits.
    pub(super) fn n_bytes(&self) -> usize {
        let contents = match &self.event {
            Event::Served(served) => {
                4 * (served.prompt.n_kept() + served.completion.n_kept()) + served.settings.len() + 512
            }
            Event::Learning { what } | Event::Pack { what } => what.len(),
            Event::Erased { seqs } => 8 * seqs.len(),
            Event::Feedback { .. } | Event::Lost { .. } => 0,
        };
        size_of::<Entry>() + self.tenant.len() + contents
    }
}

/// Completes an event, on the log's thread.
pub(super) type Finish = Box<dyn FnOnce(&mut Event) + Send>;

#[derive(Clone, Copy)]
struct Link {
    unix_ms: u64,
    digest: [u8; 32],
    hash: [u8; 32],
}

impl Link {
    fn to_bytes(self) -> Vec<u8> {
        let mut to = Writer::new();
        to.u64(self.unix_ms).raw(&self.digest).raw(&self.hash);
        to.take()
    }

    fn from_bytes(bytes: &[u8]) -> Result<Link, SonaError> {
        let mut from = Reader::new(bytes, "witness link");
        let link = Link { unix_ms: from.u64()?, digest: from.array()?, hash: from.array()? };
        from.end()?;
        Ok(link)
    }
}

/// How the chain in a store ends.
fn end_of(records: &dyn Snapshot) -> Result<Anchor, SonaError> {
    let mut head = Anchor::default();
    records.scan(LINKS, &Scan::all(b"").newest_first(), &mut |key, value| {
        head = Anchor { n_links: time_of(key).0 + 1, hash: Link::from_bytes(value)?.hash };
        Ok(false)
    })?;
    Ok(head)
}

/// Checks that nothing is put behind an end that is not there: the file was opened again since, and what was not synced is gone.
fn check_end(records: &dyn Snapshot, head: &Anchor) -> Result<(), SonaError> {
    match end_of(records)? == *head {
        true => Ok(()),
        false => Err(SonaError::new(SonaErrorKind::Io, "the log was opened again meanwhile: it is tried once more")),
    }
}

/// The hash of link `seq` behind one of hash `before`.
fn link_hash(before: &[u8; 32], seq: u64, unix_ms: u64, digest: &[u8; 32]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("ruvllm-sona witness link 1");
    hasher.update(before).update(&seq.to_le_bytes()).update(&unix_ms.to_le_bytes()).update(digest);
    *hasher.finalize().as_bytes()
}

/// The digest of contents: salt and record, and whose they are.
fn digest(tenant: &[u8], contents: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("ruvllm-sona witness contents 1");
    hasher.update(&(tenant.len() as u64).to_le_bytes()).update(tenant).update(contents);
    *hasher.finalize().as_bytes()
}

/// The event of contents.
pub(super) fn event_of(contents: &[u8]) -> Result<Event, SonaError> {
    let event = contents.get(SALT_BYTES..).ok_or_else(|| invalid("witness record: shorter than its salt"))?;
    Event::from_bytes(event)
}

pub(super) struct Chain {
    store: Arc<dyn Store>,
    head: Mutex<Anchor>,
    /// The end that a commit would have made that failed: it may be on the disk all the same.
    tried: Mutex<Option<Anchor>>,
}

/// What the store holds after a commit that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stands {
    /// All of it, as far as the last commit that did not fail.
    Before,
    /// That which failed too.
    Also,
    /// So many links less: they were not synced when the file was closed.
    Less(u64),
}

impl Chain {
    pub(super) fn open(store: Arc<dyn Store>) -> Result<Chain, SonaError> {
        let head = end_of(store.snapshot()?.as_ref())?;
        Ok(Chain { store, head: Mutex::new(head), tried: Mutex::new(None) })
    }

    /// Looks how the chain in the store ends, and goes on from there: behind a commit that failed it may be elsewhere.
    ///
    /// # Errors
    /// If the store cannot be read yet.
    pub(super) fn settle(&self) -> Result<Stands, SonaError> {
        let mut head = self.lock();
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        let end = end_of(self.store.snapshot()?.as_ref())?;
        let stands = match head.n_links.saturating_sub(end.n_links) {
            _ if end == *head => Stands::Before,
            _ if Some(end) == *tried => Stands::Also,
            n => Stands::Less(n),
        };
        (*head, *tried) = (end, None);
        Ok(stands)
    }

    pub(super) fn store(&self) -> &dyn Store {
        self.store.as_ref()
    }

    pub(super) fn head(&self) -> Anchor {
        *self.lock()
    }

    /// The head is replaced as a whole, so a poisoned lock is as good as another.
    fn lock(&self) -> MutexGuard<'_, Anchor> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that the chain goes through the anchor in a file, as [`verify`] does, before a new one is written over it: an
    /// anchor that does not fit is the proof that the log was touched. A file that is not there yet fits.
    ///
    /// # Errors
    /// With kind `Invalid` if the chain is shorter or differs, or the file holds no anchor.
    pub(super) fn check_anchor(&self, path: &Path) -> Result<(), SonaError> {
        let anchor = Anchor::load(path)?.unwrap_or_default();
        let Some(last) = anchor.n_links.checked_sub(1) else { return Ok(()) };
        let link = self.store.snapshot()?.get(LINKS, b"", &last.to_be_bytes())?;
        if link.and_then(|link| Link::from_bytes(&link).ok()).is_some_and(|link| link.hash == anchor.hash) {
            return Ok(());
        }
        let (shown, n_links) = (path.display(), self.head().n_links);
        let why = match n_links < anchor.n_links {
            true => format!("is shorter than what this anchor vouches for: {n_links} of {} records", anchor.n_links),
            false => format!("differs from what this anchor vouches for: record {last} is another"),
        };
        let look = format!("look at it with 'ruvllm witness verify DIR --anchor {shown}'");
        Err(invalid(format!("{shown}: the log {why}; {look}, and give another anchor file or move this one away")))
    }

    /// Appends entries in a transaction and commits it; a commit that fails may be on the disk, and is looked for.
    fn append_and_commit(
        &self,
        mut change: Box<dyn Transaction + '_>,
        head: &mut Anchor,
        entries: &[Entry],
    ) -> Result<(), SonaError> {
        let after = append(change.as_mut(), *head, entries)?;
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        *tried = Some(after);
        change.commit()?;
        (*head, *tried) = (after, None);
        Ok(())
    }

    pub(super) fn append(&self, entries: &[Entry], durability: Durability) -> Result<(), SonaError> {
        let mut head = self.lock();
        let change = self.store.begin(durability)?;
        check_end(&*change, &head)?;
        self.append_and_commit(change, &mut head, entries)
    }

    pub(super) fn erase_tenant(&self, tenant: &str, now_ms: u64) -> Result<usize, SonaError> {
        let mut gone = vec![];
        self.store.snapshot()?.scan(CONTENTS, &Scan::all(tenant.as_bytes()), &mut |key, _| {
            gone.push((tenant.as_bytes().to_vec(), time_of(key)));
            Ok(true)
        })?;
        self.erase(&gone, now_ms)?;
        Ok(gone.len())
    }

    pub(super) fn retain(&self, rules: &Retention, now_ms: u64) -> Result<Removed, SonaError> {
        let mut records = vec![];
        let snapshot = self.store.snapshot()?;
        // What belongs to nobody says what was lost and erased: it stays.
        for tenant in snapshot.scopes(CONTENTS)?.into_iter().filter(|tenant| !tenant.is_empty()) {
            snapshot.scan(CONTENTS, &Scan::all(&tenant), &mut |key, value| {
                records.push((time_of(key), value.len() as u64, tenant.clone()));
                Ok(true)
            })?;
        }
        drop(snapshot);
        records.sort();
        let sizes: Vec<_> = records.iter().map(|((time_ms, _), n_bytes, _)| (*time_ms, *n_bytes)).collect();
        records.truncate(rules.n_surplus(&sizes, now_ms));
        let n_bytes = records.iter().map(|record| record.1).sum();
        let gone: Vec<_> = records.into_iter().map(|(key, _, tenant)| (tenant, key)).collect();
        self.erase(&gone, now_ms)?;
        Ok(Removed { n_records: gone.len(), n_bytes })
    }

    /// Removes contents and records it, in one transaction.
    fn erase(&self, gone: &[(Vec<u8>, (u64, u64))], now_ms: u64) -> Result<(), SonaError> {
        if gone.is_empty() {
            return Ok(());
        }
        let mut seqs: Vec<u64> = gone.iter().map(|(_, (_, seq))| *seq).collect();
        seqs.sort_unstable();
        let entry = |seqs: &[u64]| Entry {
            tenant: String::new(),
            unix_ms: now_ms,
            event: Event::Erased { seqs: seqs.to_vec() },
            finish: None,
        };
        let entries: Vec<Entry> = seqs.chunks(SEQS_MAX).map(entry).collect();
        let mut head = self.lock();
        let mut change = self.store.begin(Durability::Durable)?;
        check_end(&*change, &head)?;
        for (tenant, (unix_ms, seq)) in gone {
            change.remove(CONTENTS, tenant, &time_key(*unix_ms, *seq))?;
        }
        self.append_and_commit(change, &mut head, &entries)
    }
}

/// Puts entries behind `head`; returns the new one.
fn append(change: &mut dyn Transaction, head: Anchor, entries: &[Entry]) -> Result<Anchor, SonaError> {
    let Anchor { n_links: mut seq, mut hash } = head;
    for Entry { tenant, unix_ms, event, .. } in entries {
        let salt: [u8; SALT_BYTES] = random()?;
        let contents = [&salt[..], &event.to_bytes()].concat();
        let digest = digest(tenant.as_bytes(), &contents);
        hash = link_hash(&hash, seq, *unix_ms, &digest);
        let link = Link { unix_ms: *unix_ms, digest, hash };
        change.put(LINKS, b"", &seq.to_be_bytes(), &link.to_bytes())?;
        change.put(CONTENTS, tenant.as_bytes(), &time_key(*unix_ms, seq), &contents)?;
        seq += 1;
    }
    Ok(Anchor { n_links: seq, hash })
}

/// Kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// The link's hash does not follow from it and the link before.
    LinkChanged,
    /// There is no link of this number.
    LinkMissing,
    /// The contents are not those that the link has the digest of, or lie elsewhere.
    ContentsChanged,
    /// There are no contents, and no record says that they were erased.
    ContentsMissing,
    /// There are contents, and no link of their number, or twice.
    ContentsUnlinked,
    /// The chain does not go through the anchor: it was computed anew from somewhere before.
    AnchorMissed,
}

/// Where something does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fault {
    /// The number of the record, counted from 0.
    pub seq: u64,
    /// Kind of the fault.
    pub kind: FaultKind,
}

/// Result of a verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Links that were checked.
    pub n_records: u64,
    /// Number of records whose contents were erased, on record.
    pub n_erased: u64,
    /// Records that never came to be written, which the chain says itself.
    pub n_lost: u64,
    /// Faults by number. Empty: the log is what was written, up to its end or the anchor's.
    pub faults: Vec<Fault>,
    /// The end of the chain.
    pub head: Anchor,
}

/// Where contents of a number lie, and their digest.
struct Lies {
    unix_ms: u64,
    digest: [u8; 32],
    erases: Vec<u64>,
    n_lost: u64,
    is_twice: bool,
}

/// Checks each link and all contents, and that the chain goes through `anchor`. The log may be written meanwhile.
///
/// # Errors
/// If the store cannot be read; also if an encrypted store finds a record that is not its own.
pub fn verify(store: &dyn Store, anchor: Option<&Anchor>) -> Result<Verified, SonaError> {
    let snapshot = store.snapshot()?;
    let mut contents = gather(snapshot.as_ref())?;
    let mut faults = vec![];
    let (mut links, mut head) = (vec![], Anchor::default());
    snapshot.scan(LINKS, &Scan::all(b""), &mut |key, value| {
        let seq = time_of(key).0;
        let link = Link::from_bytes(value).ok();
        faults.extend((head.n_links..seq).map(|seq| Fault { seq, kind: FaultKind::LinkMissing }));
        // Behind a gap the hash before is not known; the gap is the fault then.
        let follows = link.is_some_and(|link| {
            seq > head.n_links || link.hash == link_hash(&head.hash, seq, link.unix_ms, &link.digest)
        });
        if !follows {
            faults.push(Fault { seq, kind: FaultKind::LinkChanged });
        }
        let hash = link.map_or([0; 32], |link| link.hash);
        if anchor.is_some_and(|anchor| anchor.n_links == seq + 1 && anchor.hash != hash) {
            faults.push(Fault { seq, kind: FaultKind::AnchorMissed });
        }
        head = Anchor { n_links: seq + 1, hash };
        links.push((seq, link));
        Ok(true)
    })?;
    let n_anchored = anchor.map_or(0, |anchor| anchor.n_links);
    faults.extend((head.n_links..n_anchored).map(|seq| Fault { seq, kind: FaultKind::LinkMissing }));

    let n_records = links.len() as u64;
    let mut without = vec![];
    let (mut erased, mut n_lost) = (HashSet::new(), 0_u64);
    for (seq, link) in links {
        match (contents.remove(&seq), link) {
            (Some(lies), Some(link)) => {
                let fits = lies.digest == link.digest && lies.unix_ms == link.unix_ms;
                if lies.is_twice {
                    faults.push(Fault { seq, kind: FaultKind::ContentsUnlinked });
                } else if !fits {
                    faults.push(Fault { seq, kind: FaultKind::ContentsChanged });
                } else {
                    // Only what is on record itself can excuse.
                    erased.extend(lies.erases);
                    n_lost = n_lost.saturating_add(lies.n_lost);
                }
            }
            (None, _) => without.push(seq),
            (Some(_), None) => {}
        }
    }
    let n_without = without.len() as u64;
    without.retain(|seq| !erased.contains(seq));
    let n_erased = n_without - without.len() as u64;
    faults.extend(without.into_iter().map(|seq| Fault { seq, kind: FaultKind::ContentsMissing }));
    faults.extend(contents.into_keys().map(|seq| Fault { seq, kind: FaultKind::ContentsUnlinked }));
    faults.sort();
    Ok(Verified { n_records, n_erased, n_lost, faults, head })
}

/// All contents by number.
fn gather(snapshot: &dyn Snapshot) -> Result<HashMap<u64, Lies>, SonaError> {
    let mut contents: HashMap<u64, Lies> = HashMap::new();
    for tenant in snapshot.scopes(CONTENTS)? {
        snapshot.scan(CONTENTS, &Scan::all(&tenant), &mut |key, value| {
            let (unix_ms, seq) = time_of(key);
            let (erases, n_lost) = match event_of(value) {
                Ok(Event::Erased { seqs }) if tenant.is_empty() => (seqs, 0),
                Ok(Event::Lost { n }) if tenant.is_empty() => (vec![], n),
                _ => (vec![], 0),
            };
            let lies = Lies { unix_ms, digest: digest(&tenant, value), erases, n_lost, is_twice: false };
            contents.entry(seq).and_modify(|lies| lies.is_twice = true).or_insert(lies);
            Ok(true)
        })?;
    }
    Ok(contents)
}
