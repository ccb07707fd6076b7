//! API keys, and the tenant that belongs to each.
//!
//! A key file has a line per key: `name key [concurrent=N] [priority=P] [kv_mib=N] [adapter_mib=N] [salt=WORD] [admin]`; `#`
//! begins a comment. In the place of the key its SHA-256 may stand, as `sha256:HEX`. The name is the tenant: keys of one name
//! share cached prompts, others see neither those nor how long they took. The file is read again when it changes, so a key can
//! be revoked while the server runs: what runs by it ends. A key with the word `admin` changes the file through the server
//! ([`Keys::create`], [`Keys::delete`]).

mod admin;
mod file;
mod line;
mod tenant;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderMap, StatusCode, header};
use ruvllm_api::error::ApiError;
use sha2::{Digest, Sha256};

pub use admin::{CreatedKey, KeyAdmin, KeyInfo, NewKey};
use file::modified;
use line::read_lines;
pub use line::{KeyLimits, MIB_MAX};
use tenant::Revoked;
pub use tenant::{Tenant, TenantSlot};

/// Time between two looks at the file.
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

/// A tenant's part of each model's memory; `None` for as much as there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Keys and values of its requests.
    pub kv_bytes: Option<usize>,
    /// Its loaded adapters.
    pub adapter_bytes: Option<usize>,
}

/// Place that a key is given in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// The key file.
    File,
    /// An option, or the environment.
    Options,
}

impl KeySource {
    /// Returns its word in answers.
    pub fn as_str(self) -> &'static str {
        match self {
            KeySource::File => "file",
            KeySource::Options => "options",
        }
    }
}

/// A key: its tenant has its SHA-256, and the key itself is not kept.
#[derive(Debug)]
struct Key {
    tenant: Tenant,
    source: KeySource,
}

/// The keys as they are now.
#[derive(Debug)]
pub struct Keys {
    state: Mutex<State>,
    /// Held while the key file is changed.
    editing: Mutex<()>,
}

#[derive(Debug)]
struct State {
    options: KeyOptions,
    keys: Arc<Vec<Key>>,
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
            editing: Mutex::default(),
        })
    }

    /// Returns whether a key is called so.
    pub fn has(&self, name: &str) -> bool {
        self.lock().keys.iter().any(|key| *key.tenant.name == *name)
    }

    /// Returns the tenant of this name, if it has a key; everybody's is empty.
    pub fn named(&self, name: &str) -> Option<Tenant> {
        let state = self.lock();
        if state.options.is_open() {
            return name.is_empty().then(Tenant::everybody);
        }
        state.keys.iter().find(|key| *key.tenant.name == *name).map(|key| key.tenant.clone())
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
        for Key { tenant, .. } in self.current().iter() {
            if is_same(&tenant.digest, &digest) {
                found = Some(tenant.clone());
            }
        }
        found.ok_or_else(|| unauthorized("the API key is not known to this server"))
    }

    /// Returns the keys, read again if the file has changed.
    fn current(&self) -> Arc<Vec<Key>> {
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
            false => state.keys.iter().map(|key| key.tenant.id).collect(),
        }
    }

    /// Returns what tenants may hold, also of those that had a limit once.
    pub fn quotas(&self) -> Vec<(u64, Quota)> {
        let mut state = self.lock();
        let keys = Arc::clone(&state.keys);
        let mut quotas: HashMap<u64, Quota> = state.limited.iter().map(|id| (*id, Quota::default())).collect();
        let least = |a: Option<usize>, b: Option<usize>| a.into_iter().chain(b).min();
        for key in keys.iter() {
            let Tenant { id, kv_bytes_max, adapter_bytes_max, .. } = key.tenant;
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
    // A file that is being written is read the next time; who was known stays known.
    if let Err(line) = try_reread(state) {
        tracing::error!(error = %line, "the key file was not read again");
    }
}

/// Reads the keys again.
///
/// # Errors
/// One line: they cannot be read. They stay as they were.
fn try_reread(state: &mut State) -> Result<(), String> {
    let modified = state.options.file.as_deref().and_then(modified);
    let keys = read(&state.options, &state.keys)?;
    replace(state, keys, modified);
    Ok(())
}

/// Takes new keys, and ends what runs by those that are gone.
fn replace(state: &mut State, keys: Vec<Key>, modified: Option<SystemTime>) {
    let known: HashSet<[u8; 32]> = keys.iter().map(|key| key.tenant.digest).collect();
    for Key { tenant, .. } in state.keys.iter().filter(|key| !known.contains(&key.tenant.digest)) {
        tracing::info!(tenant = &*tenant.name, "a key was revoked");
        tenant.revoked.set();
    }
    (state.keys, state.modified, state.has_changed) = (Arc::new(keys), modified, true);
}

/// Compares in a time that does not depend on where they differ.
fn is_same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    let difference = a.iter().zip(b).fold(0u8, |sum, (a, b)| sum | (a ^ b));
    std::hint::black_box(difference) == 0
}

/// Reads all keys. Tenants that were known keep their counts.
fn read(options: &KeyOptions, before: &[Key]) -> Result<Vec<Key>, String> {
    let mut lines = Vec::new();
    if let Some(file) = &options.file {
        let of_file = read_lines(&file::read(file)?, |i| format!("{} line {i}", file.display()))?;
        lines.extend(of_file.into_iter().map(|line| (line, KeySource::File)));
    }
    for (i, text) in options.lines.iter().enumerate() {
        let of_options = read_lines(text, |_| format!("key {}", i + 1))?;
        lines.extend(of_options.into_iter().map(|line| (line, KeySource::Options)));
    }
    if lines.is_empty() && !options.is_open() {
        return Err("the key file has no keys; add a line 'name key', or serve without one".to_owned());
    }
    let mut counts: HashMap<Arc<str>, Arc<AtomicUsize>> = HashMap::new();
    counts.extend(before.iter().map(|Key { tenant, .. }| (Arc::clone(&tenant.name), Arc::clone(&tenant.n_inside))));
    let known: HashMap<[u8; 32], &Arc<Revoked>> =
        before.iter().map(|Key { tenant, .. }| (tenant.digest, &tenant.revoked)).collect();
    let key = |(line, source)| {
        let mut tenant = Tenant::of(line);
        tenant.n_inside = Arc::clone(counts.entry(Arc::clone(&tenant.name)).or_default());
        if let Some(revoked) = known.get(&tenant.digest) {
            tenant.revoked = Arc::clone(revoked);
        }
        Key { tenant, source }
    };
    Ok(lines.into_iter().map(key).collect())
}

#[cfg(test)]
mod tests;
