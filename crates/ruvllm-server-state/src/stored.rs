//! Answers and conversations that are kept for clients: in the store of the witness log, or in memory where the server has none.

use std::sync::Arc;

use ruvllm_sona::documents::{DocumentLimits, Documents};
use ruvllm_sona::store::{self, Limits, Store};
use ruvllm_sona::{SonaError, now_ms};

use super::options::ServerError;
use super::saves::Saves;

/// Bounds of what is kept in a store on the disk: 24 MiB of one, 256 MiB of a key, 1 GiB of all, answers for 30 days.
const ON_DISK: DocumentLimits = DocumentLimits {
    document_bytes_max: 24 << 20,
    tenant_bytes_max: 256 << 20,
    bytes_max: 1 << 30,
    age_ms_max: 30 * 24 * 3_600_000,
};
/// Bounds of what is kept in memory.
const IN_MEMORY: DocumentLimits = DocumentLimits { tenant_bytes_max: 32 << 20, bytes_max: 64 << 20, ..ON_DISK };
/// Memory for pages of a store that is memory.
const CACHE_BYTES: usize = 1 << 20;

/// Documents that a server keeps for its clients.
pub struct StoredDocuments {
    /// The documents.
    pub documents: Documents,
    /// Counters of answers that were to be kept.
    pub saves: Saves,
}

impl StoredDocuments {
    /// Opens what is kept in a store, or makes room in memory.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn open(store: Option<Arc<dyn Store>>) -> Result<StoredDocuments, ServerError> {
        let documents = match store {
            Some(store) => Documents::open(store, ON_DISK)?,
            None => {
                let limits = Limits { cache_bytes: CACHE_BYTES, ..Limits::default() };
                Documents::open(store::in_memory(limits).map_err(SonaError::from)?, IN_MEMORY)?
            }
        };
        Ok(StoredDocuments { documents, saves: Saves::new("answers") })
    }

    /// Removes what is too old.
    pub fn expire(&self) {
        if let Err(error) = self.documents.expire(now_ms()) {
            tracing::warn!(%error, "kept answers that are too old are not removed");
        }
    }
}
