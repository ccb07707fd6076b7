//! Who asks: API keys, and the tenant that belongs to each.
//!
//! A key file has a line per key: `name key [concurrent=N] [priority=P] [kv_mib=N] [adapter_mib=N] [salt=WORD]`; `#` begins a comment.
//! The name is the tenant: keys of one name share cached prompts, others see neither those nor how long they took. The
//! file is read again when it changes, so a key can be revoked while the server runs: what runs by it ends.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderMap, StatusCode, header};
use ruvllm_api::error::ApiError;
use ruvllm_engine::IDLE_PRIORITY;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

/// How often the file is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Where keys come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyOptions {
    /// A file of keys, read again when it changes.
    pub file: Option<PathBuf>,
    /// More of them, as lines of such a file.
    pub lines: Vec<String>,
}

impl KeyOptions {
    /// Returns whether everybody may ask, without a key.
    pub fn is_open(&self) -> bool {
        self.file.is_none() && self.lines.is_empty()
    }
}

/// A key's owner.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// For the log; empty without keys.
    pub name: Arc<str>,
    /// Keeps its cached prompts apart; 0 is everybody.
    pub id: u64,
    /// Added to the priority of its requests.
    pub priority: i8,
    /// The most requests at once.
    concurrent_max: Option<usize>,
    /// The most bytes of keys and values that its requests hold together, in each model.
    kv_bytes_max: Option<usize>,
    /// The most bytes that its loaded adapters take together, in each model.
    pub adapter_bytes_max: Option<usize>,
    /// Its requests that wait or run.
    n_inside: Arc<AtomicUsize>,
    /// Whether its key was taken out of the file.
    revoked: Arc<Revoked>,
}

/// Whether a key was revoked, for those that run by it.
#[derive(Debug, Default)]
struct Revoked {
    is: AtomicBool,
    told: Notify,
}

/// A tenant's part of each model's memory; `None` for as much as there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Keys and values of its requests.
    pub kv_bytes: Option<usize>,
    /// Its loaded adapters.
    pub adapter_bytes: Option<usize>,
}

/// A request of a tenant counts from here until this is dropped.
#[derive(Debug)]
pub struct TenantSlot {
    n_inside: Arc<AtomicUsize>,
    revoked: Arc<Revoked>,
}

impl TenantSlot {
    /// Ends when the key that the request came by is revoked; the error is what it ends with.
    pub async fn revoked(&self) -> ApiError {
        let told = self.revoked.told.notified();
        tokio::pin!(told);
        told.as_mut().enable();
        if !self.revoked.is.load(Ordering::Acquire) {
            told.await;
        }
        ApiError::new(StatusCode::UNAUTHORIZED, "the API key was revoked while the request ran").code("invalid_api_key")
    }
}

impl Drop for TenantSlot {
    fn drop(&mut self) {
        self.n_inside.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Tenant {
    /// Returns the tenant of a server without keys.
    pub fn everybody() -> Tenant {
        Tenant {
            name: "".into(),
            id: 0,
            priority: 0,
            concurrent_max: None,
            kv_bytes_max: None,
            adapter_bytes_max: None,
            n_inside: Arc::default(),
            revoked: Arc::default(),
        }
    }

    /// Returns the same tenant for its batches: they are answered while nobody else asks, and do not count to its requests at once.
    pub fn for_batches(&self) -> Tenant {
        Tenant { priority: IDLE_PRIORITY, concurrent_max: None, n_inside: Arc::default(), ..self.clone() }
    }

    /// Counts a request in.
    ///
    /// # Errors
    /// 429: the tenant has as many as it may.
    pub fn enter(&self) -> Result<TenantSlot, ApiError> {
        let max = self.concurrent_max.unwrap_or(usize::MAX);
        let room = |n: usize| (n < max).then_some(n + 1);
        self.n_inside.fetch_update(Ordering::AcqRel, Ordering::Acquire, room).map_err(|_| {
            let line = format!("this key may have {max} requests at once; wait for one to end");
            let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, line).code("too_many_requests");
            ApiError { retry_after_s: Some(1), ..error }
        })?;
        Ok(TenantSlot { n_inside: Arc::clone(&self.n_inside), revoked: Arc::clone(&self.revoked) })
    }
}

/// The keys as they are now.
#[derive(Debug)]
pub struct Keys {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    options: KeyOptions,
    /// By the SHA-256 of the key: keys themselves are not kept.
    keys: Arc<Vec<([u8; 32], Tenant)>>,
    looked_at: Instant,
    modified: Option<SystemTime>,
    /// Tenants that had a quota once: those that have none any more are told so.
    limited: Vec<u64>,
    /// The keys have changed since somebody asked whether they have.
    has_changed: bool,
}

impl Keys {
    /// Reads the keys.
    ///
    /// # Errors
    /// One line: a file that cannot be read, or a line of it that is no key.
    pub fn new(options: KeyOptions) -> Result<Keys, String> {
        let keys = Arc::new(read(&options, &[])?);
        let modified = options.file.as_deref().and_then(modified);
        Ok(Keys {
            state: Mutex::new(State {
                options,
                keys,
                looked_at: Instant::now(),
                modified,
                limited: Vec::new(),
                has_changed: false,
            }),
        })
    }

    /// Returns whether a key is called so.
    pub fn has(&self, name: &str) -> bool {
        self.lock().keys.iter().any(|(_, tenant)| *tenant.name == *name)
    }

    /// Returns the tenant of this name, if it has a key; everybody's is empty.
    pub fn named(&self, name: &str) -> Option<Tenant> {
        let state = self.lock();
        if state.options.is_open() {
            return name.is_empty().then(Tenant::everybody);
        }
        state.keys.iter().find(|(_, tenant)| *tenant.name == *name).map(|(_, tenant)| tenant.clone())
    }

    /// Returns whose request this is.
    ///
    /// # Errors
    /// 401: no key, or none that is known.
    pub fn tenant(&self, headers: &HeaderMap) -> Result<Tenant, ApiError> {
        if self.is_open() {
            return Ok(Tenant::everybody());
        }
        let unauthorized = |line: &str| ApiError::new(StatusCode::UNAUTHORIZED, line).code("invalid_api_key");
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let bearer =
            bearer.and_then(|value| value.split_once(' ')).filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
        let plain = headers.get("x-api-key").and_then(|value| value.to_str().ok());
        let key = bearer
            .map(|(_, key)| key.trim())
            .or(plain)
            .ok_or_else(|| unauthorized("no API key; send one as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"))?;
        let digest: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        // Every key is compared whole: how long it takes tells nothing about any.
        let mut found = None;
        for (known, tenant) in self.current().iter() {
            if is_same(known, &digest) {
                found = Some(tenant.clone());
            }
        }
        found.ok_or_else(|| unauthorized("the API key is not known to this server"))
    }

    /// Returns the keys, read again if the file has changed.
    fn current(&self) -> Arc<Vec<([u8; 32], Tenant)>> {
        let mut state = self.lock();
        self.refresh(&mut state);
        Arc::clone(&state.keys)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the file again if it has changed; what runs by keys that are gone ends then. Returns whether it has since the last
    /// call, by this one or by a request.
    pub fn look(&self) -> bool {
        let mut state = self.lock();
        self.refresh(&mut state);
        std::mem::take(&mut state.has_changed)
    }

    /// Reads the file again, changed or not; as [`Keys::look`].
    pub fn read_again(&self) -> bool {
        let mut state = self.lock();
        if state.options.file.is_some() {
            reread(&mut state);
        }
        std::mem::take(&mut state.has_changed)
    }

    /// Reads the file again if it is due and the file has changed.
    fn refresh(&self, state: &mut State) {
        let is_due = state.looked_at.elapsed() >= LOOK_INTERVAL;
        let Some(file) = state.options.file.as_deref().filter(|_| is_due) else {
            return;
        };
        let now = modified(file);
        state.looked_at = Instant::now();
        if now != state.modified {
            reread(state);
        }
    }

    /// Takes keys from elsewhere, or other ones. What runs by keys that are gone ends.
    ///
    /// # Errors
    /// One line: they cannot be read, or everybody may ask from then on who may not now; nothing has changed then.
    pub fn set_options(&self, options: KeyOptions) -> Result<(), String> {
        let mut state = self.lock();
        if options == state.options {
            return Ok(());
        }
        if options.is_open() {
            return Err("without keys everybody may ask, which takes a restart".to_owned());
        }
        let modified = options.file.as_deref().and_then(modified);
        let keys = read(&options, &state.keys)?;
        state.options = options;
        replace(&mut state, keys, modified);
        Ok(())
    }

    /// Returns whether everybody may ask, without a key.
    fn is_open(&self) -> bool {
        self.lock().options.is_open()
    }

    /// Returns the numbers of the tenants that there are.
    pub fn tenants(&self) -> Vec<u64> {
        let state = self.lock();
        match state.options.is_open() {
            true => vec![Tenant::everybody().id],
            false => state.keys.iter().map(|(_, tenant)| tenant.id).collect(),
        }
    }

    /// Returns what tenants may hold, also of those that had a limit once.
    pub fn quotas(&self) -> Vec<(u64, Quota)> {
        let mut state = self.lock();
        let keys = Arc::clone(&state.keys);
        let mut quotas: HashMap<u64, Quota> = state.limited.iter().map(|id| (*id, Quota::default())).collect();
        let least = |a: Option<usize>, b: Option<usize>| a.into_iter().chain(b).min();
        for (_, tenant) in keys.iter() {
            let Tenant { id, kv_bytes_max, adapter_bytes_max, .. } = *tenant;
            if kv_bytes_max.is_some() || adapter_bytes_max.is_some() {
                let quota = quotas.entry(id).or_default();
                quota.kv_bytes = least(quota.kv_bytes, kv_bytes_max);
                quota.adapter_bytes = least(quota.adapter_bytes, adapter_bytes_max);
            }
        }
        state.limited = quotas.keys().copied().collect();
        quotas.into_iter().collect()
    }
}

/// Reads the keys again.
fn reread(state: &mut State) {
    let modified = state.options.file.as_deref().and_then(modified);
    match read(&state.options, &state.keys) {
        Ok(keys) => replace(state, keys, modified),
        // A file that is being written is read the next time; who was known stays known.
        Err(line) => tracing::error!(error = %line, "the key file was not read again"),
    }
}

/// Takes new keys, and ends what runs by those that are gone.
fn replace(state: &mut State, keys: Vec<([u8; 32], Tenant)>, modified: Option<SystemTime>) {
    let gone = state.keys.iter().filter(|(known, _)| keys.iter().all(|(key, _)| key != known));
    for (_, tenant) in gone {
        tracing::info!(tenant = &*tenant.name, "a key was revoked");
        tenant.revoked.is.store(true, Ordering::Release);
        tenant.revoked.told.notify_waiters();
    }
    (state.keys, state.modified, state.has_changed) = (Arc::new(keys), modified, true);
}

fn modified(file: &Path) -> Option<SystemTime> {
    std::fs::metadata(file).and_then(|metadata| metadata.modified()).ok()
}

/// Compares in a time that does not depend on where they differ.
fn is_same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    let difference = a.iter().zip(b).fold(0u8, |sum, (a, b)| sum | (a ^ b));
    std::hint::black_box(difference) == 0
}

/// Reads all keys. Tenants that were known keep their counts.
fn read(options: &KeyOptions, before: &[([u8; 32], Tenant)]) -> Result<Vec<([u8; 32], Tenant)>, String> {
    let mut counts: HashMap<Arc<str>, Arc<AtomicUsize>> = HashMap::new();
    counts.extend(before.iter().map(|(_, tenant)| (Arc::clone(&tenant.name), Arc::clone(&tenant.n_inside))));
    let mut keys: Vec<([u8; 32], Tenant)> = Vec::new();
    let mut add = |text: &str, place: &dyn Fn(usize) -> String| -> Result<(), String> {
        for (i, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                let (key, mut tenant) =
                    parse(line, &mut counts).map_err(|reason| format!("{}: {reason}", place(i + 1)))?;
                if let Some((_, known)) = before.iter().find(|(known, _)| *known == key) {
                    tenant.revoked = Arc::clone(&known.revoked);
                }
                keys.push((key, tenant));
            }
        }
        Ok(())
    };
    if let Some(file) = &options.file {
        let name = file.display();
        let text =
            std::fs::read_to_string(file).map_err(|error| format!("cannot read the key file {name}: {error}"))?;
        add(&text, &|i| format!("{name} line {i}"))?;
    }
    for (i, line) in options.lines.iter().enumerate() {
        add(line, &|_| format!("key {}", i + 1))?;
    }
    match keys.is_empty() && !options.is_open() {
        true => Err("the key file has no keys; add a line 'name key', or serve without one".to_owned()),
        false => Ok(keys),
    }
}

/// Reads a line of a key file. The message never holds the line: it may be a key.
fn parse(line: &str, counts: &mut HashMap<Arc<str>, Arc<AtomicUsize>>) -> Result<([u8; 32], Tenant), String> {
    let mut words = line.split_whitespace();
    let (Some(name), Some(key)) = (words.next(), words.next()) else {
        return Err(
            "a line is 'name key [concurrent=N] [priority=P] [kv_mib=N] [adapter_mib=N] [salt=WORD]'".to_owned()
        );
    };
    if key.len() < 8 {
        return Err(format!("the key of '{name}' has {} characters; use at least 8", key.len()));
    }
    let (mut concurrent_max, mut priority, mut salt) = (None, 0, "");
    let (mut kv_bytes_max, mut adapter_bytes_max) = (None, None);
    for word in words {
        let number = |range: &str| format!("'{word}' of '{name}' is no {range}");
        match word.split_once('=') {
            Some(("concurrent", n)) => {
                let n = n.parse().ok().filter(|n| *n > 0);
                concurrent_max = Some(n.ok_or_else(|| number("number from 1 up"))?);
            }
            Some(("priority", n)) => {
                let n = n.parse().ok().filter(|n| (-10..=10).contains(n));
                priority = n.ok_or_else(|| number("number from -10 to 10"))?;
            }
            Some((kind @ ("kv_mib" | "adapter_mib"), n)) => {
                let n: Option<usize> = n.parse().ok().filter(|n| (1..=1 << 24).contains(n));
                let bytes = Some(n.ok_or_else(|| number("number from 1 up"))? << 20);
                *(if kind == "kv_mib" { &mut kv_bytes_max } else { &mut adapter_bytes_max }) = bytes;
            }
            Some(("salt", word)) => salt = word,
            _ => {
                return Err(format!(
                    "'{name}' has an option that is none of concurrent=N, priority=P, kv_mib=N, adapter_mib=N and salt=WORD"
                ));
            }
        }
    }
    let name: Arc<str> = name.into();
    let n_inside = Arc::clone(counts.entry(Arc::clone(&name)).or_default());
    let id = tenant_id(&name, salt);
    let revoked = Arc::default();
    let tenant = Tenant { name, id, priority, concurrent_max, kv_bytes_max, adapter_bytes_max, n_inside, revoked };
    Ok((Sha256::digest(key.as_bytes()).into(), tenant))
}

/// Returns the number of a tenant: the same after a restart, and never everybody's. What is cached lies under it; with
/// another salt it is not found any more.
fn tenant_id(name: &str, salt: &str) -> u64 {
    let digest = Sha256::digest(format!("ruvllm tenant {name} {salt}").as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(first).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(key: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, format!("Bearer {key}").parse().expect("a header"));
        headers
    }

    #[test]
    fn keys_have_tenants_and_change_with_their_file() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("keys");
        std::fs::write(&file, "# who may\nann  key-of-ann concurrent=2\nbob  key-of-bob priority=-3 # slow\n")
            .expect("written");
        let options = KeyOptions { file: Some(file.clone()), lines: vec!["ann other-of-ann".to_owned()] };
        let keys = Keys::new(options).expect("two keys and one");
        let name =
            |key: &str| keys.tenant(&bearer(key)).map(|tenant| tenant.name.to_string()).map_err(|error| error.status);
        assert_eq!(name("key-of-ann"), Ok("ann".to_owned()));
        assert_eq!(name("key-of-bo"), Err(StatusCode::UNAUTHORIZED));
        assert_eq!(
            keys.tenant(&HeaderMap::new()).map(drop).map_err(|error| error.status),
            Err(StatusCode::UNAUTHORIZED)
        );
        let (ann, other, bob) = (
            keys.tenant(&bearer("key-of-ann")).expect("known"),
            keys.tenant(&bearer("other-of-ann")).expect("known"),
            keys.tenant(&bearer("key-of-bob")).expect("known"),
        );
        assert_eq!((ann.id, bob.priority), (other.id, -3));
        assert_ne!(ann.id, bob.id);
        assert_eq!(keys.tenants(), [ann.id, bob.id, ann.id]);
        let places = [ann.enter().expect("one"), ann.enter().expect("two")];
        assert_eq!(ann.enter().map(drop).map_err(|error| error.status), Err(StatusCode::TOO_MANY_REQUESTS));
        drop(places);
        drop(ann.enter().expect("there is room again"));

        // Revoked while it is used.
        let place = ann.enter().expect("there is room");
        std::thread::sleep(LOOK_INTERVAL);
        std::fs::write(&file, "bob key-of-bob kv_mib=3 adapter_mib=5\n").expect("written");
        assert_eq!(name("key-of-ann"), Err(StatusCode::UNAUTHORIZED));
        assert_eq!(name("key-of-bob"), Ok("bob".to_owned()));
        assert!(place.revoked.is.load(Ordering::Acquire) && !bob.revoked.is.load(Ordering::Acquire));
        assert_eq!(keys.quotas(), [(bob.id, Quota { kv_bytes: Some(3 << 20), adapter_bytes: Some(5 << 20) })]);
        std::thread::sleep(LOOK_INTERVAL);
        std::fs::write(&file, "bob key-of-bob salt=other\n").expect("written");
        assert_ne!(keys.tenant(&bearer("key-of-bob")).expect("known").id, bob.id);
        assert_eq!(keys.quotas(), [(bob.id, Quota::default())]);
    }

    #[test]
    fn wrong_lines_are_told_without_the_key() {
        let error = |line: &str| {
            Keys::new(KeyOptions { file: None, lines: vec![line.to_owned()] }).map(drop).expect_err("a wrong line")
        };
        assert_eq!(
            error("secret-key"),
            "key 1: a line is 'name key [concurrent=N] [priority=P] [kv_mib=N] [adapter_mib=N] [salt=WORD]'"
        );
        assert_eq!(error("ann short"), "key 1: the key of 'ann' has 5 characters; use at least 8");
        assert_eq!(error("ann long-enough concurrent=0"), "key 1: 'concurrent=0' of 'ann' is no number from 1 up");
        assert_eq!(
            error("ann long-enough x"),
            "key 1: 'ann' has an option that is none of concurrent=N, priority=P, kv_mib=N, adapter_mib=N and salt=WORD"
        );
        assert!(error(" # nothing").starts_with("the key file has no keys"));
    }
}
