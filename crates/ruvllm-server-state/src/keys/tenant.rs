//! The owner of a key, and a request of it while it is inside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::StatusCode;
use ruvllm_api::error::ApiError;
use ruvllm_engine::IDLE_PRIORITY;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use super::line::{KeyLimits, KeyLine};

/// A key's owner, with what the key allows.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// For the log; empty without keys.
    pub name: Arc<str>,
    /// Keeps its cached prompts apart; 0 is everybody.
    pub id: u64,
    /// Added to the priority of its requests.
    pub priority: i8,
    /// The most requests at once.
    pub(super) concurrent_max: Option<usize>,
    /// The most bytes of keys and values that its requests hold together, in each model.
    pub(super) kv_bytes_max: Option<usize>,
    /// The most bytes that its loaded adapters take together, in each model.
    pub adapter_bytes_max: Option<usize>,
    /// Whether its key may administer keys.
    pub is_admin: bool,
    /// SHA-256 of its key; zeros without keys.
    pub(super) digest: [u8; 32],
    /// Its requests that wait or run.
    pub(super) n_inside: Arc<AtomicUsize>,
    /// Whether its key was taken out of the file.
    pub(super) revoked: Arc<Revoked>,
}

/// Whether a key was revoked, for those that run by it.
#[derive(Debug, Default)]
pub(super) struct Revoked {
    pub(super) is: AtomicBool,
    told: Notify,
}

impl Revoked {
    /// Ends what runs by the key.
    pub(super) fn set(&self) {
        self.is.store(true, Ordering::Release);
        self.told.notify_waiters();
    }
}

/// A request of a tenant counts from here until this is dropped.
#[derive(Debug)]
pub struct TenantSlot {
    n_inside: Arc<AtomicUsize>,
    pub(super) revoked: Arc<Revoked>,
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
            is_admin: false,
            digest: [0; 32],
            n_inside: Arc::default(),
            revoked: Arc::default(),
        }
    }

    /// Returns the tenant of a line's key.
    pub(super) fn of(line: KeyLine) -> Tenant {
        let KeyLimits { concurrent_max, priority, kv_mib, adapter_mib } = line.limits;
        Tenant {
            id: tenant_id(&line.name, &line.salt),
            name: line.name.into(),
            priority,
            concurrent_max,
            kv_bytes_max: kv_mib.map(|mib| mib << 20),
            adapter_bytes_max: adapter_mib.map(|mib| mib << 20),
            is_admin: line.is_admin,
            digest: line.digest,
            ..Tenant::everybody()
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

/// Returns the number of a tenant: the same after a restart, and never everybody's. What is cached lies under it; with
/// another salt it is not found any more.
fn tenant_id(name: &str, salt: &str) -> u64 {
    let digest = Sha256::digest(format!("ruvllm tenant {name} {salt}").as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(first).max(1)
}
