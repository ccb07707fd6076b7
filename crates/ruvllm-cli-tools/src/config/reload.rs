//! The settings of a server that are read again while it runs.

use super::setting::COMMON;

/// Options of `serve` whose new value is used from the next request on. Others need a restart.
const RELOADED: [&str; 44] = [
    "adapter",
    "alias",
    "any-model-name",
    "api-key",
    "api-key-file",
    "context-shift",
    "drain",
    "idle-timeout",
    "log-level",
    "max-body",
    "metrics-key",
    "models-max",
    "no-models-autoload",
    "no-slots",
    "queue",
    "slots",
    "speculate",
    "tags",
    "timeout",
    "verbose",
    // Of samplers all are.
    "temp",
    "top-k",
    "top-p",
    "min-p",
    "typical",
    "top-n-sigma",
    "xtc-probability",
    "xtc-threshold",
    "dynatemp-range",
    "dynatemp-exponent",
    "repeat-penalty",
    "frequency-penalty",
    "presence-penalty",
    "repeat-last-n",
    "dry-multiplier",
    "dry-base",
    "dry-allowed-length",
    "dry-penalty-last-n",
    "dry-sequence-breaker",
    "mirostat",
    "mirostat-tau",
    "mirostat-eta",
    "logit-bias",
    "samplers",
];

/// Returns whether a running server takes a new value of a setting.
pub fn is_reloaded(table: &str, key: &str) -> bool {
    ["serve", COMMON].contains(&table) && RELOADED.contains(&key)
}
