//! Which conversations there are: whose, about what, and where their state lies.
//!
//! ```
//! use ruvllm_sona::session::{SessionRecord, SessionIndex};
//! use ruvllm_sona::store::{self, OpenOptions};
//!
//! # let folder = tempfile::tempdir()?;
//! let store = store::open(&folder.path().join("sona.redb"), &OpenOptions::default())?;
//! let sessions = SessionIndex::open(store, 2)?;
//! let trip = SessionRecord { user: "ada".into(), kv: "kv-17".into(), context: vec![1.0, 0.1], n_turns: 4, ..SessionRecord::default() };
//! sessions.save("acme", "trip to Oslo", &trip, 1_000)?;
//! sessions.save("acme", "taxes", &SessionRecord { context: vec![0.0, 1.0], ..SessionRecord::default() }, 2_000)?;
//!
//! assert_eq!(sessions.recover("acme", "trip to Oslo")?.expect("it was saved").kv, "kv-17");
//! assert_eq!(sessions.list("acme"), [("taxes".into(), 2_000), ("trip to Oslo".into(), 1_000)]);
//! assert_eq!(sessions.of_user("acme", "ada"), ["trip to Oslo"]);
//! assert_eq!(sessions.nearest("acme", &[0.9, 0.0], 1)?[0].0, "trip to Oslo");
//! assert_eq!(sessions.expire(1_500)?, 1);
//! assert!(sessions.recover("acme", "trip to Oslo")?.is_none());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::codec::{Reader, Writer};
use crate::error::{SonaError, invalid, limit};
use crate::index::{IndexConfig, VectorIndex};
use crate::store::{Durability, SCOPE_BYTES_MAX, Scan, Store, Table};

/// A scope of its own for each session, so that names are hidden in an encrypted store.
const SESSIONS: Table = Table::new("sessions");

/// The only key of a session's scope.
const STATE: &[u8] = b"state";

/// State from which a conversation goes on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionRecord {
    /// Who speaks with it.
    pub user: String,
    /// Embedding of its topic, `[dim]`; empty if it has none and cannot be found by likeness.
    pub context: Vec<f32>,
    /// Where its keys and values lie, as the cache names them; empty if nowhere.
    pub kv: String,
    /// The adapter it is served with; empty for none.
    pub adapter: String,
    /// The generation of what was learnt that it was served with last.
    pub adapter_generation: u64,
    /// The model's hash.
    pub model: [u8; 32],
    /// Turns so far.
    pub n_turns: u32,
    /// Tokens so far.
    pub n_tokens: u32,
}

/// First byte of a session's record.
const FORMAT: u8 = 1;

impl SessionRecord {
    fn to_bytes(&self, used_ms: u64) -> Vec<u8> {
        let mut to = Writer::new();
        to.u8(FORMAT).u64(used_ms).text(&self.user).f32s(&self.context).text(&self.kv).text(&self.adapter);
        to.u64(self.adapter_generation).raw(&self.model).u32(self.n_turns).u32(self.n_tokens);
        to.take()
    }

    /// Returns the session and when it was used last.
    fn from_bytes(bytes: &[u8]) -> Result<(SessionRecord, u64), SonaError> {
        let mut from = Reader::new(bytes, "session");
        from.format(FORMAT..=FORMAT)?;
        let used_ms = from.u64()?;
        let session = SessionRecord {
            user: from.text()?,
            context: from.f32s()?,
            kv: from.text()?,
            adapter: from.text()?,
            adapter_generation: from.u64()?,
            model: from.array()?,
            n_turns: from.u32()?,
            n_tokens: from.u32()?,
        };
        from.end()?;
        Ok((session, used_ms))
    }
}

/// What is in memory of a session.
struct Known {
    user: String,
    used_ms: u64,
    /// Its number in the tenant's index, if it has a context.
    number: Option<u64>,
}

/// What is in memory of a tenant.
struct Tenant {
    sessions: BTreeMap<String, Known>,
    index: VectorIndex,
    names: HashMap<u64, String>,
    next_number: u64,
}

/// The sessions of all tenants. State is read from the store when it is asked for; names, users and contexts are in
/// memory.
pub struct SessionIndex {
    store: Arc<dyn Store>,
    dim: usize,
    tenants: RwLock<HashMap<String, Tenant>>,
}

impl SessionIndex {
    /// Opens the sessions in `store`, whose contexts have `dim` values.
    ///
    /// # Errors
    /// If the store cannot be read, or contexts have another width.
    pub fn open(store: Arc<dyn Store>, dim: usize) -> Result<SessionIndex, SonaError> {
        let mut tenants = HashMap::new();
        {
            let snapshot = store.snapshot()?;
            for scope in snapshot.scopes(SESSIONS)? {
                let (tenant, id) = names_of(&scope)?;
                snapshot.scan(SESSIONS, &Scan::all(&scope), &mut |_, value| {
                    let (session, used_ms) = SessionRecord::from_bytes(value)?;
                    insert(&mut tenants, dim, &tenant, &id, &session, used_ms)?;
                    Ok(true)
                })?;
            }
        }
        Ok(SessionIndex { store, dim, tenants: RwLock::new(tenants) })
    }

    /// Saves a session under its name, used at `now_ms` (Unix milliseconds); it is on disk then.
    ///
    /// # Errors
    /// With kind `Limit` if the names are too long, `Shape` or `Value` if the context does not fit; or if it cannot be
    /// written.
    pub fn save(&self, tenant: &str, id: &str, session: &SessionRecord, now_ms: u64) -> Result<(), SonaError> {
        let scope = scope_of(tenant, id)?;
        if !session.context.is_empty() {
            // Checked before anything is written.
            VectorIndex::new(self.dim, IndexConfig::default())?.insert(0, &session.context)?;
        }
        let mut change = self.store.begin(Durability::Durable)?;
        change.put(SESSIONS, &scope, STATE, &session.to_bytes(now_ms))?;
        let mut tenants = self.write();
        change.commit()?;
        insert(&mut tenants, self.dim, tenant, id, session, now_ms)
    }

    /// Returns what a session goes on from: some microseconds, whatever their number.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn recover(&self, tenant: &str, id: &str) -> Result<Option<SessionRecord>, SonaError> {
        let state = self.store.snapshot()?.get(SESSIONS, &scope_of(tenant, id)?, STATE)?;
        state.map(|bytes| Ok(SessionRecord::from_bytes(&bytes)?.0)).transpose()
    }

    /// Returns whose sessions there are, sorted.
    pub fn tenants(&self) -> Vec<String> {
        let tenants = self.read();
        let mut names: Vec<String> =
            tenants.iter().filter(|(_, tenant)| !tenant.sessions.is_empty()).map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }

    /// Returns the names of a tenant's sessions and when each was used last (Unix milliseconds), the latest first.
    pub fn list(&self, tenant: &str) -> Vec<(String, u64)> {
        let tenants = self.read();
        let sessions = tenants.get(tenant).into_iter().flat_map(|tenant| &tenant.sessions);
        let mut all: Vec<(String, u64)> = sessions.map(|(id, known)| (id.clone(), known.used_ms)).collect();
        all.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        all
    }

    /// Returns how many sessions a tenant has.
    pub fn len(&self, tenant: &str) -> usize {
        self.read().get(tenant).map_or(0, |tenant| tenant.sessions.len())
    }

    /// Returns the names of a user's sessions, sorted.
    pub fn of_user(&self, tenant: &str, user: &str) -> Vec<String> {
        let tenants = self.read();
        let sessions = tenants.get(tenant).into_iter().flat_map(|tenant| &tenant.sessions);
        sessions.filter(|(_, known)| known.user == user).map(|(id, _)| id.clone()).collect()
    }

    /// Returns the `k` sessions of a tenant that are nearest in context, with the cosines, nearest first.
    ///
    /// # Errors
    /// With kind `Shape` or `Value` if the query does not fit.
    pub fn nearest(&self, tenant: &str, query: &[f32], k: usize) -> Result<Vec<(String, f32)>, SonaError> {
        let tenants = self.read();
        let Some(tenant) = tenants.get(tenant) else { return Ok(vec![]) };
        let hits = tenant.index.search(query, k, None)?;
        Ok(hits.into_iter().map(|hit| (tenant.names[&hit.id].clone(), hit.similarity)).collect())
    }

    /// Forgets a session; returns whether there was one.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn remove(&self, tenant: &str, id: &str) -> Result<bool, SonaError> {
        self.remove_all(&[(tenant.to_owned(), id.to_owned())]).map(|n| n > 0)
    }

    /// Forgets the sessions that were used last before `before_ms`; returns how many.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn expire(&self, before_ms: u64) -> Result<usize, SonaError> {
        self.remove_where(|_, known| known.used_ms < before_ms)
    }

    /// Forgets all sessions of a tenant, on the disk as well; returns how many.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn forget_tenant(&self, tenant: &str) -> Result<usize, SonaError> {
        let n = self.remove_where(|name, _| name == tenant)?;
        self.write().remove(tenant);
        self.store.scrub()?;
        Ok(n)
    }

    fn remove_where(&self, goes: impl Fn(&str, &Known) -> bool) -> Result<usize, SonaError> {
        let mut gone = vec![];
        for (name, tenant) in &*self.read() {
            let ids = tenant.sessions.iter().filter(|(_, known)| goes(name, known));
            gone.extend(ids.map(|(id, _)| (name.clone(), id.clone())));
        }
        self.remove_all(&gone)
    }

    fn remove_all(&self, gone: &[(String, String)]) -> Result<usize, SonaError> {
        let mut n = 0;
        let mut change = self.store.begin(Durability::Durable)?;
        for (tenant, id) in gone {
            n += usize::from(change.remove(SESSIONS, &scope_of(tenant, id)?, STATE)?);
        }
        let mut tenants = self.write();
        change.commit()?;
        for (tenant, id) in gone {
            if let Some(tenant) = tenants.get_mut(tenant) {
                tenant.forget(id);
                if tenant.index.wants_rebuild() {
                    tenant.index.rebuild(&mut |_, _| {});
                }
            }
        }
        Ok(n)
    }

    /// What is changed under the lock is whole for each session, so a poisoned one is as good as another.
    fn read(&self) -> RwLockReadGuard<'_, HashMap<String, Tenant>> {
        self.tenants.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<String, Tenant>> {
        self.tenants.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tenant {
    fn forget(&mut self, id: &str) {
        if let Some(number) = self.sessions.remove(id).and_then(|known| known.number) {
            self.index.remove(number);
            self.names.remove(&number);
        }
    }
}

/// Puts a session into memory, in the place of an earlier one of its name.
fn insert(
    tenants: &mut HashMap<String, Tenant>,
    dim: usize,
    tenant: &str,
    id: &str,
    session: &SessionRecord,
    used_ms: u64,
) -> Result<(), SonaError> {
    if !tenants.contains_key(tenant) {
        let index = VectorIndex::new(dim, IndexConfig::default())?;
        let (sessions, names) = (BTreeMap::new(), HashMap::new());
        tenants.insert(tenant.to_owned(), Tenant { sessions, index, names, next_number: 0 });
    }
    let tenant = tenants.get_mut(tenant).expect("it was put there");
    tenant.forget(id);
    let mut number = None;
    if !session.context.is_empty() {
        tenant.index.insert(tenant.next_number, &session.context)?;
        tenant.names.insert(tenant.next_number, id.to_owned());
        number = Some(tenant.next_number);
        tenant.next_number += 1;
    }
    tenant.sessions.insert(id.to_owned(), Known { user: session.user.clone(), used_ms, number });
    Ok(())
}

/// The scope of what a tenant has by a name: the length of the tenant's name, both names.
pub(crate) fn scope_of(tenant: &str, id: &str) -> Result<Vec<u8>, SonaError> {
    let n_bytes = 1 + tenant.len() + id.len();
    if n_bytes > SCOPE_BYTES_MAX {
        return Err(limit(format!(
            "the names of a tenant and what is kept for it have {n_bytes} bytes; at most {SCOPE_BYTES_MAX}"
        )));
    }
    Ok([&[tenant.len() as u8], tenant.as_bytes(), id.as_bytes()].concat())
}

/// Returns the two names of such a scope.
pub(crate) fn names_of(scope: &[u8]) -> Result<(String, String), SonaError> {
    let parts = scope.split_first().and_then(|(n, rest)| rest.split_at_checked(usize::from(*n)));
    let (tenant, id) = parts.ok_or_else(|| invalid("the name of what is kept is cut short"))?;
    let text =
        |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| invalid("the name of what is kept is not utf-8"));
    Ok((text(tenant)?, text(id)?))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::error::SonaErrorKind;
    use crate::store::{MasterKey, OpenOptions, open};

    fn session(i: usize) -> SessionRecord {
        let angle = i as f32 / 1000.0;
        SessionRecord {
            user: format!("user {}", i % 10),
            context: vec![angle.cos(), angle.sin()],
            kv: format!("kv {i}"),
            adapter: "tone".into(),
            adapter_generation: i as u64,
            model: [i as u8; 32],
            n_turns: 3,
            n_tokens: 400,
        }
    }

    /// A thousand sessions in an encrypted store, recovered by another process's index: each below 100 µs at the median,
    /// and most of them by far.
    #[test]
    fn a_thousand_sessions_are_recovered() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, key) = (folder.path().join("sona.redb"), MasterKey::new([2; 32]));
        let options = OpenOptions { key: Some(&key), ..OpenOptions::default() };
        {
            let sessions = SessionIndex::open(open(&path, &options).expect("a store"), 2).expect("sessions");
            for i in 0..1000 {
                sessions.save("t", &format!("session {i}"), &session(i), i as u64).expect("room");
            }
            sessions.save("other", "session 1", &session(5), 0).expect("room");
        }
        let sessions = SessionIndex::open(open(&path, &options).expect("a store"), 2).expect("sessions");
        let mut times: Vec<_> = (0..1000)
            .map(|i| {
                let (id, start) = (format!("session {i}"), Instant::now());
                let found = sessions.recover("t", &id).expect("readable");
                let time = start.elapsed();
                assert_eq!(found, Some(session(i)));
                time
            })
            .collect();
        times.sort();
        // The machine of a test may be busy: the goal of 100 µs is checked with room.
        assert!(times[500].as_micros() < 1000, "{:?} at the median", times[500]);
        assert_eq!((sessions.len("t"), sessions.len("other"), sessions.len("nobody")), (1000, 1, 0));
        assert_eq!(sessions.of_user("t", "user 3").len(), 100);
        let nearest = sessions.nearest("t", &session(500).context, 3).expect("sound");
        assert_eq!(nearest[0].0, "session 500");
        assert_eq!(sessions.expire(990).expect("writable"), 991, "one of them is another tenant's");
        assert_eq!(sessions.len("t"), 10);
        assert_eq!(sessions.nearest("t", &session(500).context, 1).expect("sound")[0].0, "session 990");
        assert!(sessions.recover("t", "session 3").expect("readable").is_none());
        assert!(sessions.remove("t", "session 999").expect("writable"));
        assert!(!sessions.remove("t", "session 999").expect("writable"));
        drop(sessions);
        let sessions = SessionIndex::open(open(&path, &options).expect("a store"), 2).expect("sessions");
        assert_eq!(sessions.len("t"), 9);
        assert_eq!(sessions.forget_tenant("t").expect("writable"), 9);
        assert!(sessions.nearest("t", &[1.0, 0.0], 1).expect("sound").is_empty());
    }

    #[test]
    fn a_session_saved_again_is_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = open(&folder.path().join("sona.redb"), &OpenOptions::default()).expect("a store");
        let sessions = SessionIndex::open(store, 2).expect("sessions");
        sessions.save("t", "a", &session(1), 1).expect("room");
        sessions.save("t", "a", &SessionRecord { context: vec![], ..session(2) }, 2).expect("room");
        assert_eq!(sessions.recover("t", "a").expect("readable").expect("it is there").kv, "kv 2");
        assert!(sessions.nearest("t", &[1.0, 0.0], 5).expect("sound").is_empty());
        assert_eq!(sessions.len("t"), 1);
        let long = "x".repeat(300);
        assert_eq!(sessions.save("t", &long, &session(1), 1).expect_err("too long").kind(), SonaErrorKind::Limit);
        let wide = SessionRecord { context: vec![1.0; 3], ..SessionRecord::default() };
        assert_eq!(sessions.save("t", "b", &wide, 1).expect_err("too wide").kind(), SonaErrorKind::Shape);
        assert_eq!(sessions.len("t"), 1);
    }
}
