//! Sessions: a conversation's tokens and settings under a name.

use std::time::{Duration, SystemTime};

use super::NAME_MAX;
use super::record::SessionMeta;
use crate::error::{DiskFault, KvError};

/// A saved conversation. Its KV cache is blocks of their own, found by its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its entry in lists.
    pub info: SessionInfo,
    /// Everything that was said, as tokens.
    pub tokens: Vec<u32>,
    /// Whatever the caller keeps with it. The store does not look inside.
    pub settings: String,
}

/// Entry of a list of sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Its name.
    pub name: String,
    /// Number of its tokens.
    pub n_tokens: usize,
    /// When it was first saved.
    pub created: SystemTime,
    /// When it was last saved.
    pub used: SystemTime,
    /// Bytes that it takes on disk, without its blocks.
    pub bytes: u64,
}

impl SessionInfo {
    pub(super) fn new(meta: &SessionMeta, bytes: u64) -> SessionInfo {
        let time = |ms| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms)).unwrap_or(SystemTime::UNIX_EPOCH);
        let SessionMeta { name, n_tokens, created_ms, used_ms } = meta;
        let (created, used) = (time(*created_ms), time(*used_ms));
        SessionInfo { name: name.clone(), n_tokens: *n_tokens as usize, created, used, bytes }
    }
}

/// Returns the time now in milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Checks a session's name, as saving does.
///
/// # Errors
/// It is empty, too long, or holds control characters, which would garble lists.
pub fn check_name(name: &str) -> Result<(), KvError> {
    if !(1..=NAME_MAX).contains(&name.len()) || name.chars().any(char::is_control) {
        let n = name.len();
        let line =
            format!("a session name has 1 to {NAME_MAX} bytes and no control characters; this one has {n} bytes");
        return Err(KvError::disk(DiskFault::Invalid, line));
    }
    Ok(())
}

/// Returns the payload of a session's record: tokens, then settings.
pub(super) fn encode(tokens: &[u32], settings: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 * tokens.len() + settings.len());
    tokens.iter().for_each(|token| out.extend(token.to_le_bytes()));
    out.extend(settings.as_bytes());
    out
}

/// Reads a payload back. Returns `None` if it is not what [`encode`] made of `n_tokens` tokens.
pub(super) fn decode(payload: &[u8], n_tokens: u32) -> Option<(Vec<u32>, String)> {
    let (tokens, settings) = payload.split_at_checked((n_tokens as usize).checked_mul(4)?)?;
    let tokens = tokens.as_chunks().0.iter().map(|&token| u32::from_le_bytes(token)).collect();
    Some((tokens, std::str::from_utf8(settings).ok()?.to_owned()))
}
