//! Documents that are kept for whoever asks for them again: by name, each tenant's for itself, for a time and within bounds.
//!
//! A document has a head, which may change, and parts with numbers in the order in which they came. Contents are read from the
//! store when they are asked for; names, times and sizes are in memory. Where there is no room for a new one, old ones go.
//!
//! ```
//! use ruvllm_sona::documents::{DocumentLimits, Documents, NewDocument};
//! use ruvllm_sona::store;
//!
//! let documents = Documents::open(store::in_memory(store::Limits::default())?, DocumentLimits::default())?;
//! let letter = NewDocument { head: b"to Ada", parts: &[b"Dear Ada".to_vec()], is_lasting: false };
//! documents.put("acme", "letter", &letter, 1_000)?;
//! assert_eq!(documents.append("acme", "letter", &[b"Yours".to_vec()], 2_000)?, Some(2));
//! assert_eq!(documents.head("acme", "letter", 2_000)?.as_deref(), Some(&b"to Ada"[..]));
//! assert_eq!(documents.part("acme", "letter", 2, 2_000)?.as_deref(), Some(&b"Yours"[..]));
//! assert!(documents.head("other", "letter", 2_000)?.is_none());
//! assert!(documents.remove("acme", "letter")?);
//! # Ok::<(), ruvllm_sona::SonaError>(())
//! ```

mod index;
#[cfg(test)]
mod tests;

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::codec::{Reader, Writer};
use crate::error::{SonaError, limit};
use crate::session::{names_of, scope_of};
use crate::store::{Durability, Scan, Store, Table, Transaction};
use index::{Index, Known, Name};

/// A scope of its own for each document, so that names are hidden in an encrypted store.
const DOCUMENTS: Table = Table::new("documents");

/// First byte of a label.
const FORMAT: u8 = 1;

/// Bytes that a document counts beside its contents: its place in memory and in the store.
const DOCUMENT_BYTES: u64 = 512;
/// Bytes that a part counts beside its contents.
const PART_BYTES: u64 = 64;

/// Bounds of what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DocumentLimits {
    /// Bytes of one document; more are refused.
    pub document_bytes_max: u64,
    /// Bytes of a tenant's documents; its oldest go.
    pub tenant_bytes_max: u64,
    /// Bytes of all documents; the oldest of the tenant that has most go.
    pub bytes_max: u64,
    /// Milliseconds after which a document goes that is not lasting.
    pub age_ms_max: u64,
}

impl Default for DocumentLimits {
    /// 16 MiB, 256 MiB, 1 GiB and 30 days.
    fn default() -> DocumentLimits {
        DocumentLimits {
            document_bytes_max: 16 << 20,
            tenant_bytes_max: 256 << 20,
            bytes_max: 1 << 30,
            age_ms_max: 30 * 24 * 3_600_000,
        }
    }
}

/// A document that is to be kept.
#[derive(Clone, Copy, Debug)]
pub struct NewDocument<'a> {
    /// Bytes that stand for it as a whole and may change.
    pub head: &'a [u8],
    /// Parts, numbered from 1.
    pub parts: &'a [Vec<u8>],
    /// Whether it stays whatever its age, until there is no room for it.
    pub is_lasting: bool,
}

/// The first record of a document.
struct Label {
    known: Known,
    head: Vec<u8>,
}

impl Label {
    fn to_bytes(&self) -> Vec<u8> {
        let Known { made_ms, used_ms, is_lasting, n_bytes, next } = self.known;
        let mut to = Writer::new();
        to.u8(FORMAT).u64(made_ms).u64(used_ms).u8(u8::from(is_lasting)).u64(n_bytes).u64(next).bytes(&self.head);
        to.take()
    }

    fn from_bytes(bytes: &[u8]) -> Result<Label, SonaError> {
        let mut from = Reader::new(bytes, "document");
        from.format(FORMAT..=FORMAT)?;
        let (made_ms, used_ms, is_lasting) = (from.u64()?, from.u64()?, from.u8()? != 0);
        let known = Known { made_ms, used_ms, is_lasting, n_bytes: from.u64()?, next: from.u64()? };
        let label = Label { known, head: from.bytes()?.to_vec() };
        from.end()?;
        Ok(label)
    }
}

/// The key of a part; 0 is the label.
fn key_of(part: u64) -> [u8; 8] {
    part.to_be_bytes()
}

fn bytes_of(parts: &[Vec<u8>]) -> u64 {
    parts.iter().map(|part| part.len() as u64 + PART_BYTES).sum()
}

/// Callback for each part that is visited, with its number and contents; it says whether to go on.
pub type VisitPart<'a> = dyn FnMut(u64, &[u8]) -> Result<bool, SonaError> + 'a;

/// Order in which parts are visited.
#[derive(Clone, Copy, Debug, Default)]
pub struct Order {
    /// The last part first.
    pub newest_first: bool,
    /// The time, in Unix milliseconds.
    pub now_ms: u64,
}

/// The documents of all tenants.
pub struct Documents {
    store: Arc<dyn Store>,
    limits: DocumentLimits,
    index: RwLock<Index>,
}

impl Documents {
    /// Opens the documents in `store`.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn open(store: Arc<dyn Store>, limits: DocumentLimits) -> Result<Documents, SonaError> {
        let mut index = Index::default();
        {
            let snapshot = store.snapshot()?;
            for scope in snapshot.scopes(DOCUMENTS)? {
                let (tenant, id) = names_of(&scope)?;
                if let Some(bytes) = snapshot.get(DOCUMENTS, &scope, &key_of(0))? {
                    index.note(&Name { tenant, id }, Label::from_bytes(&bytes)?.known);
                }
            }
        }
        Ok(Documents { store, limits, index: RwLock::new(index) })
    }

    /// Returns the bounds.
    pub fn limits(&self) -> &DocumentLimits {
        &self.limits
    }

    /// Keeps a document under a name, in the place of an earlier one, and returns when it is on disk; old ones go where there
    /// is no room.
    ///
    /// # Errors
    /// With kind `Limit` if it is too large or its names are too long; or if it cannot be written.
    pub fn put(&self, tenant: &str, id: &str, new: &NewDocument<'_>, now_ms: u64) -> Result<(), SonaError> {
        let name = Name::of(tenant, id);
        let n_bytes = DOCUMENT_BYTES + new.head.len() as u64 + bytes_of(new.parts);
        let next = new.parts.len() as u64 + 1;
        let known = Known { made_ms: now_ms, used_ms: now_ms, is_lasting: new.is_lasting, n_bytes, next };
        let mut change = self.store.begin(Durability::Durable)?;
        change.remove_scope(DOCUMENTS, &scope_of(tenant, id)?)?;
        self.write_parts(change.as_mut(), &name, 1, new.parts)?;
        self.end(change, &name, Label { known, head: new.head.to_vec() })
    }

    /// Adds parts to a document, and returns the number of the first of them; `None` if there is no such document.
    ///
    /// # Errors
    /// With kind `Limit` if it becomes too large; or if it cannot be written.
    pub fn append(&self, tenant: &str, id: &str, parts: &[Vec<u8>], now_ms: u64) -> Result<Option<u64>, SonaError> {
        let name = Name::of(tenant, id);
        let mut change = self.store.begin(Durability::Durable)?;
        let Some(mut label) = self.label(change.as_ref(), &name, now_ms)? else { return Ok(None) };
        let first = label.known.next;
        self.write_parts(change.as_mut(), &name, first, parts)?;
        label.known.next += parts.len() as u64;
        label.known.n_bytes += bytes_of(parts);
        label.known.used_ms = now_ms;
        self.end(change, &name, label)?;
        Ok(Some(first))
    }

    /// Puts another head in the place of a document's; returns whether there is such a document.
    ///
    /// # Errors
    /// As [`Documents::append`].
    pub fn set_head(&self, tenant: &str, id: &str, head: &[u8], now_ms: u64) -> Result<bool, SonaError> {
        let name = Name::of(tenant, id);
        let change = self.store.begin(Durability::Durable)?;
        let Some(mut label) = self.label(change.as_ref(), &name, now_ms)? else { return Ok(false) };
        label.known.n_bytes = (label.known.n_bytes + head.len() as u64).saturating_sub(label.head.len() as u64);
        label.head = head.to_vec();
        self.end(change, &name, label)?;
        Ok(true)
    }

    /// Removes a part of a document; returns whether there was one.
    ///
    /// # Errors
    /// If the store cannot be read or written.
    pub fn remove_part(&self, tenant: &str, id: &str, part: u64, now_ms: u64) -> Result<bool, SonaError> {
        let name = Name::of(tenant, id);
        let mut change = self.store.begin(Durability::Durable)?;
        let Some(mut label) = self.label(change.as_ref(), &name, now_ms)? else { return Ok(false) };
        let scope = scope_of(tenant, id)?;
        let Some(old) = change.get(DOCUMENTS, &scope, &key_of(part))?.filter(|_| part > 0) else { return Ok(false) };
        change.remove(DOCUMENTS, &scope, &key_of(part))?;
        label.known.n_bytes = label.known.n_bytes.saturating_sub(bytes_of(&[old]));
        self.end(change, &name, label)?;
        Ok(true)
    }

    /// Returns the head of a document, `None` if there is no such document.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn head(&self, tenant: &str, id: &str, now_ms: u64) -> Result<Option<Vec<u8>>, SonaError> {
        let snapshot = self.store.snapshot()?;
        Ok(self.label(snapshot.as_ref(), &Name::of(tenant, id), now_ms)?.map(|label| label.head))
    }

    /// Returns a part of a document, `None` if there is no such document or part.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn part(&self, tenant: &str, id: &str, part: u64, now_ms: u64) -> Result<Option<Vec<u8>>, SonaError> {
        if part == 0 || !self.is_known(&Name::of(tenant, id), now_ms) {
            return Ok(None);
        }
        Ok(self.store.snapshot()?.get(DOCUMENTS, &scope_of(tenant, id)?, &key_of(part))?)
    }

    /// Visits the parts of a document with their numbers, in their order or the other way around, until `visit` says `false`;
    /// returns whether there is such a document.
    ///
    /// # Errors
    /// If the store cannot be read, and what `visit` returns.
    pub fn visit(&self, tenant: &str, id: &str, order: Order, visit: &mut VisitPart<'_>) -> Result<bool, SonaError> {
        if !self.is_known(&Name::of(tenant, id), order.now_ms) {
            return Ok(false);
        }
        let (scope, first) = (scope_of(tenant, id)?, key_of(1));
        let scan = Scan::all(&scope).between(&first, None);
        let scan = if order.newest_first { scan.newest_first() } else { scan };
        self.store.snapshot()?.scan(DOCUMENTS, &scan, &mut |key, value| {
            let number = key.try_into().map(u64::from_be_bytes);
            Ok(visit(number.map_err(|_| crate::error::invalid("a part's number is cut short"))?, value)?)
        })?;
        Ok(true)
    }

    /// Removes a document; returns whether there was one.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn remove(&self, tenant: &str, id: &str) -> Result<bool, SonaError> {
        let name = Name::of(tenant, id);
        self.remove_where(|index| index.get(&name).map(|_| name.clone()).into_iter().collect()).map(|n| n > 0)
    }

    /// Removes what is too old at `now_ms`; returns how many documents that were.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn expire(&self, now_ms: u64) -> Result<usize, SonaError> {
        self.remove_where(|index| index.expired(&self.limits, now_ms))
    }

    /// Removes all documents of a tenant, on the disk as well; returns how many.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn forget_tenant(&self, tenant: &str) -> Result<usize, SonaError> {
        let n = self.remove_where(|index| index.names(tenant))?;
        self.store.scrub()?;
        Ok(n)
    }

    /// Returns how many documents a tenant has.
    pub fn len(&self, tenant: &str) -> usize {
        self.read().len(tenant)
    }

    /// Returns whether a document is there and not too old.
    fn is_known(&self, name: &Name, now_ms: u64) -> bool {
        self.read().get(name).is_some_and(|known| !known.is_expired(&self.limits, now_ms))
    }

    fn label(
        &self,
        snapshot: &(impl crate::store::Snapshot + ?Sized),
        name: &Name,
        now_ms: u64,
    ) -> Result<Option<Label>, SonaError> {
        if !self.is_known(name, now_ms) {
            return Ok(None);
        }
        let bytes = snapshot.get(DOCUMENTS, &scope_of(&name.tenant, &name.id)?, &key_of(0))?;
        bytes.map(|bytes| Label::from_bytes(&bytes)).transpose()
    }

    fn write_parts(
        &self,
        change: &mut dyn Transaction,
        name: &Name,
        first: u64,
        parts: &[Vec<u8>],
    ) -> Result<(), SonaError> {
        let scope = scope_of(&name.tenant, &name.id)?;
        Ok((first..).zip(parts).try_for_each(|(number, part)| change.put(DOCUMENTS, &scope, &key_of(number), part))?)
    }

    /// Writes a changed document's label, makes room for it, and makes all that real.
    fn end(&self, mut change: Box<dyn Transaction + '_>, name: &Name, label: Label) -> Result<(), SonaError> {
        let max = self.limits.document_bytes_max.min(self.limits.tenant_bytes_max).min(self.limits.bytes_max);
        let n_bytes = label.known.n_bytes;
        if n_bytes > max {
            return Err(limit(format!("a document of {n_bytes} bytes; at most {max} are kept of one")));
        }
        change.put(DOCUMENTS, &scope_of(&name.tenant, &name.id)?, &key_of(0), &label.to_bytes())?;
        // Whoever changes the index has the store's one transaction, as this does.
        let gone = self.read().surplus(name, n_bytes, &self.limits);
        self.remove_and_commit(change, &gone)?.note(name, label.known);
        Ok(())
    }

    /// Removes documents and makes that and the rest of a change real; returns the index, which has forgotten them.
    fn remove_and_commit(
        &self,
        mut change: Box<dyn Transaction + '_>,
        gone: &[Name],
    ) -> Result<RwLockWriteGuard<'_, Index>, SonaError> {
        for name in gone {
            change.remove_scope(DOCUMENTS, &scope_of(&name.tenant, &name.id)?)?;
        }
        let mut index = self.write();
        change.commit()?;
        gone.iter().for_each(|name| index.forget(name));
        Ok(index)
    }

    fn remove_where(&self, goes: impl Fn(&Index) -> Vec<Name>) -> Result<usize, SonaError> {
        // Where nothing goes, nobody waits for the store.
        if goes(&self.read()).is_empty() {
            return Ok(0);
        }
        let change = self.store.begin(Durability::Durable)?;
        let gone = goes(&self.read());
        drop(self.remove_and_commit(change, &gone)?);
        Ok(gone.len())
    }

    /// A change under the lock is whole for each document, so a poisoned one is as good as another.
    fn read(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }
}
