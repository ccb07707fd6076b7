//! What is in memory of documents: names, times and sizes, and which of them go where there is no room.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, btree_map};

use super::DocumentLimits;

/// The name of a document, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub tenant: String,
    pub id: String,
}

impl Name {
    pub(super) fn of(tenant: &str, id: &str) -> Name {
        Name { tenant: tenant.to_owned(), id: id.to_owned() }
    }
}

/// What is known of a document without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// When it was put there.
    pub made_ms: u64,
    /// When its parts changed last.
    pub used_ms: u64,
    pub is_lasting: bool,
    /// Bytes that it counts.
    pub n_bytes: u64,
    /// The number of its next part.
    pub next: u64,
}

impl Known {
    pub(super) fn is_expired(&self, limits: &DocumentLimits, now_ms: u64) -> bool {
        !self.is_lasting && self.made_ms.saturating_add(limits.age_ms_max) < now_ms
    }
}

/// The documents of a tenant.
#[derive(Default)]
struct Owned {
    by_id: HashMap<String, (Known, u64)>,
    /// By when they were used last, and by a number that tells equal times apart.
    by_time: BTreeMap<(u64, u64), String>,
    n_bytes: u64,
}

/// The documents of all tenants.
#[derive(Default)]
pub(super) struct Index {
    tenants: HashMap<String, Owned>,
    n_bytes: u64,
    n_noted: u64,
}

impl Index {
    pub(super) fn get(&self, name: &Name) -> Option<&Known> {
        self.tenants.get(&name.tenant)?.by_id.get(&name.id).map(|(known, _)| known)
    }

    /// Puts a document into memory, in the place of an earlier one of its name.
    pub(super) fn note(&mut self, name: &Name, known: Known) {
        self.forget(name);
        self.n_noted += 1;
        self.n_bytes += known.n_bytes;
        let owned = self.tenants.entry(name.tenant.clone()).or_default();
        owned.n_bytes += known.n_bytes;
        owned.by_time.insert((known.used_ms, self.n_noted), name.id.clone());
        owned.by_id.insert(name.id.clone(), (known, self.n_noted));
    }

    pub(super) fn forget(&mut self, name: &Name) {
        let Some(owned) = self.tenants.get_mut(&name.tenant) else { return };
        let Some((known, number)) = owned.by_id.remove(&name.id) else { return };
        owned.by_time.remove(&(known.used_ms, number));
        owned.n_bytes -= known.n_bytes;
        self.n_bytes -= known.n_bytes;
        if owned.by_id.is_empty() {
            self.tenants.remove(&name.tenant);
        }
    }

    /// Returns the names of a tenant's documents.
    pub(super) fn names(&self, tenant: &str) -> Vec<Name> {
        let ids = self.tenants.get(tenant).into_iter().flat_map(|owned| owned.by_id.keys());
        ids.map(|id| Name::of(tenant, id)).collect()
    }

    /// Returns how many documents a tenant has.
    pub(super) fn len(&self, tenant: &str) -> usize {
        self.tenants.get(tenant).map_or(0, |owned| owned.by_id.len())
    }

    /// Returns what is too old.
    pub(super) fn expired(&self, limits: &DocumentLimits, now_ms: u64) -> Vec<Name> {
        let of = |(tenant, owned): (&String, &Owned)| {
            let old = owned.by_id.iter().filter(|(_, (known, _))| known.is_expired(limits, now_ms));
            old.map(|(id, _)| Name::of(tenant, id)).collect::<Vec<_>>()
        };
        self.tenants.iter().flat_map(of).collect()
    }

    /// Returns what has to go for a document to have `n_bytes`: the oldest of its tenant until that one is within its bound,
    /// then the oldest of whoever has most until all are.
    pub(super) fn surplus(&self, name: &Name, n_bytes: u64, limits: &DocumentLimits) -> Vec<Name> {
        let n_more = n_bytes.saturating_sub(self.get(name).map_or(0, |known| known.n_bytes));
        let mut left: Vec<Left<'_>> = Vec::new();
        let own = self.tenants.get(&name.tenant);
        let own_bytes = own.map_or(0, |owned| owned.n_bytes) + n_more;
        if own_bytes <= limits.tenant_bytes_max && self.n_bytes + n_more <= limits.bytes_max {
            return Vec::new();
        }
        for (tenant, owned) in &self.tenants {
            let is_own = *tenant == name.tenant;
            let n_bytes = if is_own { own_bytes } else { owned.n_bytes };
            left.push(Left { tenant, owned, n_bytes, oldest: owned.by_time.iter() });
        }
        let (mut gone, mut total) = (Vec::new(), self.n_bytes + n_more);
        if let Some(own) = left.iter_mut().find(|left| *left.tenant == name.tenant) {
            while own.n_bytes > limits.tenant_bytes_max {
                let Some(n) = own.take(name, &mut gone) else { break };
                total -= n;
            }
        }
        while total > limits.bytes_max {
            let owning = left.iter_mut().filter(|left| left.oldest.len() > 0);
            let Some(most) = owning.max_by_key(|left| (left.n_bytes, left.oldest_time())) else { break };
            total -= most.take(name, &mut gone).unwrap_or(0);
        }
        gone
    }
}

/// A tenant while it is found out what goes.
struct Left<'a> {
    tenant: &'a String,
    owned: &'a Owned,
    n_bytes: u64,
    oldest: btree_map::Iter<'a, (u64, u64), String>,
}

impl Left<'_> {
    /// Returns what is greater the older the oldest document is.
    fn oldest_time(&self) -> Reverse<Option<(u64, u64)>> {
        Reverse(self.oldest.clone().next().map(|(time, _)| *time))
    }

    /// Takes the oldest document that is not `kept`; returns its bytes, `None` if there is no other.
    fn take(&mut self, kept: &Name, gone: &mut Vec<Name>) -> Option<u64> {
        let is_kept = |id: &String| *id == kept.id && *self.tenant == kept.tenant;
        let (_, id) = self.oldest.find(|(_, id)| !is_kept(id))?;
        let n = self.owned.by_id.get(id).map_or(0, |(known, _)| known.n_bytes);
        self.n_bytes -= n;
        gone.push(Name::of(self.tenant, id));
        Some(n)
    }
}
