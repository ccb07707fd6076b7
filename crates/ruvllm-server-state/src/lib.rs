//! The running state of a server: models, keys, memory that tenants share, what was learned, and the record.

pub(crate) mod adapters;
pub(crate) mod batches;
pub(crate) mod descriptors;
pub(crate) mod gate;
pub(crate) mod grammars;
pub(crate) mod keys;
pub(crate) mod learning;
pub(crate) mod metrics;
pub(crate) mod models;
pub(crate) mod options;
pub(crate) mod reload;
pub(crate) mod saves;
pub(crate) mod server;
pub(crate) mod shared;
pub(crate) mod slots;
pub(crate) mod stored;
pub(crate) mod witness;
