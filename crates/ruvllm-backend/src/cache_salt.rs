//! The salt of cached prefixes: what in addition to its tokens decides which sequences may share KV blocks.

use ruvllm_kvcache::KvPolicy;
use ruvllm_lora::AdapterSet;

/// Owner of a sequence and everything that changes the model for it. Cached KV blocks are shared within equal salts only.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CacheSalt {
    /// Number of the tenant: prefixes are shared within a tenant, and its quota counts its sequences. 0 is everybody.
    pub tenant: u64,
    /// Adapters that are applied.
    pub adapters: AdapterSet,
    /// Policy of the KV cache for this sequence; `None` takes the backend's default.
    pub kv: Option<KvPolicy>,
}

impl From<&AdapterSet> for CacheSalt {
    /// Everybody's, with these adapters.
    fn from(adapters: &AdapterSet) -> CacheSalt {
        CacheSalt { adapters: adapters.clone(), ..CacheSalt::default() }
    }
}

impl From<u64> for CacheSalt {
    fn from(tenant: u64) -> CacheSalt {
        CacheSalt { tenant, ..CacheSalt::default() }
    }
}
