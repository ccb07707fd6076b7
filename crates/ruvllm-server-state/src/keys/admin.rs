//! Keys that are listed, made and deleted while the server runs, by a key with the word `admin`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use ruvllm_api::error::{ApiError, without_numbers};
use sha2::{Digest, Sha256};

use super::line::{KeyLimits, KeyLine, read_lines};
use super::{Key, KeySource, Keys, Tenant, file, try_reread};

/// Most characters of the name of a key that is made.
const NAME_CHARS_MAX: usize = 100;
/// Most keys that a file may have for one more to be made.
const KEYS_MAX: usize = 10_000;

/// Description of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// First 12 hexadecimal digits of the key's SHA-256.
    pub id: String,
    /// Name of its tenant.
    pub name: Arc<str>,
    /// Whether it may administer keys.
    pub is_admin: bool,
    /// Limits of it.
    pub limits: KeyLimits,
    /// Place that it is given in.
    pub source: KeySource,
    /// Whether the caller can delete it.
    pub can_be_deleted: bool,
}

/// Key that is to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewKey {
    /// Name of its tenant, which may have other keys.
    pub name: String,
    /// Limits of it.
    pub limits: KeyLimits,
    /// Whether it may administer keys.
    pub is_admin: bool,
}

/// Key that was made.
#[derive(Clone)]
pub struct CreatedKey {
    /// Description of it.
    pub info: KeyInfo,
    /// Key itself, which is kept nowhere.
    pub key: String,
}

/// Caller that administers keys, and the key that must stay for the metrics.
#[derive(Clone, Copy, Debug)]
pub struct KeyAdmin<'a> {
    /// Tenant of the caller.
    pub tenant: &'a Tenant,
    /// Name that one key at least must have.
    pub metrics_key: Option<&'a str>,
}

impl Key {
    fn id(&self) -> String {
        hex::encode(&self.tenant.digest[..6])
    }

    fn info(&self, keys: &[Key], admin: KeyAdmin<'_>) -> KeyInfo {
        let Tenant { name, is_admin, concurrent_max, priority, kv_bytes_max, adapter_bytes_max, .. } = &self.tenant;
        let limits = KeyLimits {
            concurrent_max: *concurrent_max,
            priority: *priority,
            kv_mib: kv_bytes_max.map(|bytes| bytes >> 20),
            adapter_mib: adapter_bytes_max.map(|bytes| bytes >> 20),
        };
        KeyInfo {
            id: self.id(),
            name: Arc::clone(name),
            is_admin: *is_admin,
            limits,
            source: self.source,
            can_be_deleted: self.why_it_stays(keys, admin).is_none(),
        }
    }

    /// Returns why the caller cannot delete it, if so. The caller's key stays each time, so an admin key always does. It is the
    /// last of the lines that have the key.
    fn why_it_stays(&self, keys: &[Key], admin: KeyAdmin<'_>) -> Option<String> {
        let others = || keys.iter().filter(|key| key.tenant.digest != self.tenant.digest);
        let name = &*self.tenant.name;
        if self.tenant.digest == admin.tenant.digest {
            return Some(match others().any(|key| key.tenant.is_admin) {
                true => "a key cannot delete itself; ask with another admin key".to_owned(),
                false => {
                    "this is the last admin key, without which nobody could administer keys; make another one first"
                        .to_owned()
                }
            });
        }
        if self.source == KeySource::Options {
            return Some(format!(
                "the key of '{name}' is no line of the key file; it goes with the option that gives it"
            ));
        }
        let is_last = || others().all(|key| *key.tenant.name != *name);
        (admin.metrics_key == Some(name) && is_last()).then(|| {
            format!("the last key of '{name}' alone may read the metrics; make another one of this name first")
        })
    }
}

/// Returns each key once, where several lines have it the last, which counts.
fn distinct(keys: &[Key]) -> impl Iterator<Item = &Key> {
    let last: HashMap<[u8; 32], usize> = keys.iter().enumerate().map(|(i, key)| (key.tenant.digest, i)).collect();
    keys.iter().enumerate().filter(move |(i, key)| last.get(&key.tenant.digest) == Some(i)).map(|(_, key)| key)
}

impl Keys {
    /// Returns whether a caller may administer keys here.
    pub fn is_administered_by(&self, tenant: &Tenant) -> bool {
        tenant.is_admin && self.administered_by(tenant).is_ok()
    }

    /// Returns the key file, if the caller may administer keys.
    ///
    /// # Errors
    /// 404: there is no key file. 401: the caller's key is gone. 403: it is no admin key.
    fn administered_by(&self, tenant: &Tenant) -> Result<PathBuf, ApiError> {
        let state = self.lock();
        let Some(file) = state.options.file.clone() else {
            let line = "this server has no key file; start it with --api-key-file FILE";
            return Err(ApiError::new(StatusCode::NOT_FOUND, line).code("no_key_file"));
        };
        match state.keys.iter().rfind(|key| key.tenant.digest == tenant.digest) {
            Some(key) if key.tenant.is_admin => Ok(file),
            Some(_) => {
                let line = "this key may not administer keys; write the word admin behind it in the key file";
                Err(ApiError::new(StatusCode::FORBIDDEN, line).code("not_admin"))
            }
            None => {
                let line = "the API key is not known to this server any more";
                Err(ApiError::new(StatusCode::UNAUTHORIZED, line).code("invalid_api_key"))
            }
        }
    }

    /// Returns all keys, in the order of the file and the options.
    ///
    /// # Errors
    /// The caller may not administer keys here.
    pub fn list(&self, admin: KeyAdmin<'_>) -> Result<Vec<KeyInfo>, ApiError> {
        self.administered_by(admin.tenant)?;
        let keys = self.current();
        Ok(distinct(&keys).map(|key| key.info(&keys, admin)).collect())
    }

    /// Makes a key of the system's randomness, and adds a line with its SHA-256 to the key file. The key is known when this
    /// returns. It has the salt of the name's other keys, so that they are one tenant.
    ///
    /// # Errors
    /// The caller may not administer keys here; 400: the name is none; 507: there are too many keys, or the disk is full;
    /// 409 and 500: the file cannot be read or replaced. It is as it was, then.
    pub fn create(&self, admin: KeyAdmin<'_>, new: &NewKey) -> Result<CreatedKey, ApiError> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| {
            let line = format!("the system gives no random numbers for a key: {error}");
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, line)
        })?;
        let key = format!("sk-{}", URL_SAFE_NO_PAD.encode(bytes));
        let digest: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        self.edit(admin.tenant, |text, keys| {
            if keys.len() >= KEYS_MAX {
                let line = format!("there are {} keys, and no more are made; delete some", keys.len());
                return Err(ApiError::new(StatusCode::INSUFFICIENT_STORAGE, line).code("too_many_keys"));
            }
            let known = read_lines(text, |_| String::new()).unwrap_or_default();
            let same = known.into_iter().rfind(|line| line.name == new.name);
            let line = KeyLine {
                name: new.name.clone(),
                digest,
                salt: same.map(|line| line.salt).unwrap_or_default(),
                limits: new.limits,
                is_admin: new.is_admin,
            };
            check_name(&line)?;
            let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
            Ok(format!("{text}{end}{line}\n"))
        })?;
        let keys = self.current();
        let Some(made) = keys.iter().rfind(|key| key.tenant.digest == digest) else {
            let line = "the key was taken out of the key file again by somebody else";
            return Err(ApiError::new(StatusCode::CONFLICT, line).code("key_file"));
        };
        Ok(CreatedKey { info: made.info(&keys, admin), key })
    }

    /// Takes a key out of the key file. What runs by it has ended or is about to when this returns.
    ///
    /// # Errors
    /// The caller may not administer keys here; 404: there is no such key; 409: it must stay; 409, 500 and 507: the file cannot
    /// be read or replaced. It is as it was, then.
    pub fn delete(&self, admin: KeyAdmin<'_>, id: &str) -> Result<(), ApiError> {
        self.edit(admin.tenant, |text, keys| {
            let Some(key) = keys.iter().rfind(|key| key.id() == id) else {
                let line = "there is no key with this id; GET /v1/keys lists them";
                return Err(ApiError::new(StatusCode::NOT_FOUND, line).code("key_not_found"));
            };
            if let Some(why) = key.why_it_stays(keys, admin) {
                return Err(ApiError::new(StatusCode::CONFLICT, why).code("key_stays"));
            }
            let has_key = |line: &str| {
                let read = KeyLine::read(line).ok().flatten();
                read.is_some_and(|line| line.digest == key.tenant.digest)
            };
            Ok(text.split_inclusive('\n').filter(|line| !has_key(line)).collect())
        })
    }

    /// Changes the text of the key file and takes the keys that it has then. One change at a time is made.
    fn edit(
        &self,
        tenant: &Tenant,
        change: impl FnOnce(&str, &[Key]) -> Result<String, ApiError>,
    ) -> Result<(), ApiError> {
        self.administered_by(tenant)?;
        let _one_at_a_time = self.editing.lock().unwrap_or_else(PoisonError::into_inner);
        let file = self.administered_by(tenant)?;
        let failed = |status, line: String| ApiError::new(status, without_numbers(&line)).code("key_file");
        let before = file::read(&file).map_err(|line| failed(StatusCode::INTERNAL_SERVER_ERROR, line))?;
        // The file may have been changed since it was looked at, so that the caller may do so no more.
        try_reread(&mut self.lock()).map_err(|line| {
            failed(StatusCode::CONFLICT, format!("the key file has to be mended before it is changed here: {line}"))
        })?;
        self.administered_by(tenant)?;
        let keys = Arc::clone(&self.lock().keys);
        file::replace(&file, &before, &change(&before, &keys)?)?;
        try_reread(&mut self.lock()).map_err(|line| {
            let line = format!("the key file was changed, and cannot be read again: {line}");
            failed(StatusCode::INTERNAL_SERVER_ERROR, line)
        })
    }
}

/// Checks that a line says what was meant: a name with a blank or `#` would not.
fn check_name(line: &KeyLine) -> Result<(), ApiError> {
    let is_read = KeyLine::read(&line.to_string()).is_ok_and(|read| read.as_ref() == Some(line));
    let is_plain = !line.name.contains(char::is_control) && line.name.chars().count() <= NAME_CHARS_MAX;
    match is_read && is_plain {
        true => Ok(()),
        false => {
            let line =
                format!("a name has 1 to {NAME_CHARS_MAX} characters, none of them '#', white space or a control");
            Err(ApiError::bad("name", line))
        }
    }
}

/// Shows no key.
impl std::fmt::Debug for CreatedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreatedKey").field("info", &self.info).finish_non_exhaustive()
    }
}
