//! What decides beside the tokens which keys and values sequences may share.

use ruvllm_kvcache::KvPolicy;
use ruvllm_lora::AdapterSet;

/// Whose a sequence is, and what changes the model for it: its keys and values are good for others of the same scope.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scope {
    /// Keeps the prefixes of some apart from those of others, and counts against their quota; 0 is everybody.
    pub tenant: u64,
    /// The adapters that are applied.
    pub adapters: AdapterSet,
    /// How its keys and values are kept, if not as those of others.
    pub kv: Option<KvPolicy>,
}

impl From<u64> for Scope {
    fn from(tenant: u64) -> Scope {
        Scope { tenant, ..Scope::default() }
    }
}
