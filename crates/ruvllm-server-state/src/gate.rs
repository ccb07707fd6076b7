//! Gates in front of work that takes a while: on long texts, a few of which are read at once, one of each tenant, so that the
//! engine and short requests find a core; and calls of tools.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use http::StatusCode;
use ruvllm_api::error::ApiError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The gates of a server.
#[derive(Debug)]
pub struct Gates {
    /// Places of all work together.
    all: Arc<Semaphore>,
    /// Places of a tenant at most.
    n_own: usize,
    /// Places of everybody at most, where there are no keys.
    n_everybody: usize,
    /// A gate for each tenant that is at one.
    own: Mutex<HashMap<u64, Arc<Semaphore>>>,
}

/// The gates that a tenant's work goes through.
#[derive(Clone, Debug)]
pub struct TenantGate {
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
}

tokio::task_local! {
    /// The gate of the request at hand, if its text is long.
    static GATE: Option<TenantGate>;
}

impl Default for Gates {
    /// Returns the gates of long texts, with all their places free.
    fn default() -> Gates {
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        Gates { n_everybody: 1, ..Gates::bounded(n_cores.div_ceil(2), 1) }
    }
}

impl Gates {
    /// Returns gates of so many places, of which a tenant has `n_own` at most, and everybody has all.
    pub fn bounded(n_all: usize, n_own: usize) -> Gates {
        Gates { all: Arc::new(Semaphore::new(n_all)), n_own, n_everybody: n_all, own: Mutex::default() }
    }

    /// Returns the gate of a tenant.
    pub fn of(&self, tenant: u64) -> TenantGate {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody is at need not be kept.
        own.retain(|_, gate| Arc::strong_count(gate) > 1);
        let n_own = if tenant == 0 { self.n_everybody } else { self.n_own };
        let own = own.entry(tenant).or_insert_with(|| Arc::new(Semaphore::new(n_own)));
        TenantGate { own: Arc::clone(own), all: Arc::clone(&self.all) }
    }
}

impl TenantGate {
    /// Waits for the tenant's turn; it lasts until this is dropped.
    pub async fn own(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.own).acquire_owned().await.ok()
    }

    /// Waits for a turn of the tenant's, and then for one among all; it lasts until this is dropped. The tenant's own gate comes
    /// first, so that tenants take turns at the one for all.
    pub async fn turn(self) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
        let own = self.own.acquire_owned().await.ok()?;
        Some((own, self.all.acquire_owned().await.ok()?))
    }
}

/// Does work of a request whose long texts go through a gate.
pub async fn through<F: Future>(gate: Option<TenantGate>, work: F) -> F::Output {
    GATE.scope(gate, work).await
}

/// Waits for the turn of the request at hand; it lasts until this is dropped.
pub async fn turn() -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
    GATE.try_with(Option::clone).ok().flatten()?.turn().await
}

/// Does work that takes a while where it holds up nobody; work on long texts waits for its turn.
pub async fn offload<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let turn = turn().await;
    let work = move || {
        let _turn = turn;
        work()
    };
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| {
        Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error; the server's log tells more"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_tenants_texts_wait_for_each_other() {
        let gates = Gates::bounded(2, 1);
        let (ann, bob) = (gates.of(1), gates.of(2));
        assert!(turn().await.is_none() && through(None, turn()).await.is_none());
        let first = through(Some(ann.clone()), turn()).await.expect("a gate");
        let second = through(Some(bob), turn()).await.expect("a gate");
        let mut third = Box::pin(through(Some(ann), turn()));
        let soon = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(soon, &mut third).await.is_err());
        drop(first);
        assert!(third.await.is_some());
        drop(second);
        gates.of(3);
        assert_eq!(gates.own.lock().expect("whole").len(), 1);
        // Everybody may have all places.
        let both = (gates.of(0).turn().await, gates.of(0).turn().await);
        assert!(tokio::time::timeout(soon, gates.of(4).turn()).await.is_err());
        drop(both);
        assert!(gates.of(4).turn().await.is_some());
    }
}
