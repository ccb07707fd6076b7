//! Policies in a store.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{NewPolicy, Policy, PolicyKind, PolicyStore, Source, Wanted};
use crate::codec::number_of_key;
use crate::error::{SonaError, invalid, limit};
use crate::store::{Durability, SCOPE_BYTES_MAX, Scan, Store, Table};

/// By tenant (the empty scope is everybody) and number.
const POLICIES: Table = Table::new("policies");

/// Limits of what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyLimits {
    /// Policies in all.
    pub n_max: usize,
    /// Policies of one kind, context, tenant and source: the one that counts and those before it.
    pub n_versions_max: usize,
    /// Bytes of one policy's context, reason and value.
    pub n_bytes_max: usize,
}

impl Default for PolicyLimits {
    /// 10,000 policies of 16 KiB, 8 versions of each.
    fn default() -> PolicyLimits {
        PolicyLimits { n_max: 10_000, n_versions_max: 8, n_bytes_max: 16 << 10 }
    }
}

/// Where policies stand in memory.
type Place = (PolicyKind, Option<String>, String);

/// All policies, as they are in the store.
#[derive(Default)]
struct Known {
    by_version: BTreeMap<u64, Arc<Policy>>,
    /// Those of one place, by number.
    places: HashMap<Place, Vec<Arc<Policy>>>,
}

impl Known {
    fn add(&mut self, policy: Policy) {
        let policy = Arc::new(policy);
        self.by_version.insert(policy.version, Arc::clone(&policy));
        let place = (policy.kind, policy.tenant.clone(), policy.context.clone());
        self.places.entry(place).or_default().push(policy);
    }

    fn remove(&mut self, version: u64) {
        let Some(policy) = self.by_version.remove(&version) else { return };
        let place = (policy.kind, policy.tenant.clone(), policy.context.clone());
        if let Some(all) = self.places.get_mut(&place) {
            all.retain(|other| other.version != version);
            if all.is_empty() {
                self.places.remove(&place);
            }
        }
    }
}

/// Policies in a [`Store`], beside whatever else it holds. All are in memory as well: they are few and asked for often.
pub struct StoredPolicies {
    store: Arc<dyn Store>,
    limits: PolicyLimits,
    known: RwLock<Known>,
    /// Held by whoever changes policies, so that what is read, decided and written belongs together.
    writing: Mutex<()>,
}

impl StoredPolicies {
    /// Opens the policies in `store`.
    ///
    /// # Errors
    /// If the store cannot be read, or one of them is none.
    pub fn open(store: Arc<dyn Store>, limits: PolicyLimits) -> Result<StoredPolicies, SonaError> {
        let mut found = BTreeMap::new();
        {
            let snapshot = store.snapshot()?;
            for scope in snapshot.scopes(POLICIES)? {
                let tenant = String::from_utf8(scope.clone()).map_err(|_| invalid("policy: a tenant is not utf-8"))?;
                let tenant = (!tenant.is_empty()).then_some(tenant);
                snapshot.scan(POLICIES, &Scan::all(&scope), &mut |key, value| {
                    let version = number_of_key(key, "policy")?;
                    found.insert(version, Policy::from_bytes(value, version, tenant.clone())?);
                    Ok(true)
                })?;
            }
        }
        let mut known = Known::default();
        found.into_values().for_each(|policy| known.add(policy));
        Ok(StoredPolicies { store, limits, known: RwLock::new(known), writing: Mutex::default() })
    }

    /// What is changed under the lock is whole at each step, so a poisoned one is as good as another.
    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes policies, on disk and then in memory; returns how many.
    fn remove(&self, goes: impl Fn(&Policy) -> bool) -> Result<usize, SonaError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<Arc<Policy>> = self.read().by_version.values().filter(|policy| goes(policy)).cloned().collect();
        if gone.is_empty() {
            return Ok(0);
        }
        let mut change = self.store.begin(Durability::Durable)?;
        for policy in &gone {
            change.remove(POLICIES, scope_of(&policy.tenant), &policy.version.to_be_bytes())?;
        }
        change.commit()?;
        let mut known = self.write();
        gone.iter().for_each(|policy| known.remove(policy.version));
        Ok(gone.len())
    }
}

impl PolicyStore for StoredPolicies {
    fn put(&self, policy: NewPolicy, now_ms: u64) -> Result<u64, SonaError> {
        policy.check(&self.limits)?;
        if policy.tenant.as_ref().is_some_and(|name| name.is_empty() || name.len() > SCOPE_BYTES_MAX) {
            return Err(limit(format!("a policy's tenant has a name of 1 to {SCOPE_BYTES_MAX} bytes")));
        }
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let (version, gone) = {
            let known = self.read();
            let place = (policy.kind, policy.tenant.clone(), policy.context.clone());
            let same = known.places.get(&place).into_iter().flatten().filter(|old| old.source == policy.source);
            let same: Vec<u64> = same.map(|old| old.version).collect();
            let n_over = (same.len() + 1).saturating_sub(self.limits.n_versions_max.max(1));
            let n = known.by_version.len() + 1 - n_over;
            if n > self.limits.n_max {
                let line = format!("{} policies are kept and no more may be; retire some", self.limits.n_max);
                return Err(limit(line));
            }
            let last = known.by_version.last_key_value().map_or(0, |(version, _)| *version);
            (last + 1, same[..n_over].to_vec())
        };
        let policy = Policy { version, created_ms: now_ms, put: policy };
        let scope = scope_of(&policy.tenant);
        let mut change = self.store.begin(Durability::Durable)?;
        change.put(POLICIES, scope, &version.to_be_bytes(), &policy.to_bytes())?;
        for old in &gone {
            change.remove(POLICIES, scope, &old.to_be_bytes())?;
        }
        change.commit()?;
        let mut known = self.write();
        gone.into_iter().for_each(|old| known.remove(old));
        known.add(policy);
        Ok(version)
    }

    fn best(&self, wanted: &Wanted<'_>, now_ms: u64) -> Option<Policy> {
        let Wanted { kind, context, tenant, confidence_min } = *wanted;
        let known = self.read();
        let of = |tenant: Option<&str>, context: &str| {
            known.places.get(&(kind, tenant.map(str::to_owned), context.to_owned())).map_or(&[][..], Vec::as_slice)
        };
        let mut best: Option<&Arc<Policy>> = None;
        let rank = |policy: &Policy| (policy.source, policy.tenant.is_some(), !policy.context.is_empty());
        for tenant in [None, tenant].into_iter().take(1 + usize::from(tenant.is_some())) {
            for context in ["", context].into_iter().take(1 + usize::from(!context.is_empty())) {
                // Of one place and source the newest stands for all: those before it are history.
                for source in [Source::Default, Source::Learned, Source::Operator] {
                    let counts = |policy: &&Arc<Policy>| policy.source == source && policy.holds(now_ms);
                    let Some(newest) = of(tenant, context).iter().rfind(counts) else { continue };
                    let is_sure = source != Source::Learned || newest.confidence >= confidence_min;
                    if is_sure && best.is_none_or(|best| rank(newest) > rank(best)) {
                        best = Some(newest);
                    }
                }
            }
        }
        best.map(|policy| Policy::clone(policy))
    }

    fn list(&self) -> Vec<Policy> {
        self.read().by_version.values().map(|policy| Policy::clone(policy)).collect()
    }

    fn retire(&self, version: u64) -> Result<bool, SonaError> {
        self.remove(|policy| policy.version == version).map(|n| n > 0)
    }

    fn expire(&self, now_ms: u64) -> Result<usize, SonaError> {
        self.remove(|policy| !policy.holds(now_ms))
    }

    fn forget_tenant(&self, tenant: &str) -> Result<usize, SonaError> {
        let n = self.remove(|policy| policy.tenant.as_deref() == Some(tenant))?;
        if n > 0 {
            self.store.scrub()?;
        }
        Ok(n)
    }
}

impl std::fmt::Debug for StoredPolicies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredPolicies").field("n", &self.read().by_version.len()).finish_non_exhaustive()
    }
}

fn scope_of(tenant: &Option<String>) -> &[u8] {
    tenant.as_deref().unwrap_or("").as_bytes()
}
