//! Bounds of what servers may cost.

use std::time::Duration;

/// The fewest and the most bytes of a result, by the model's context.
const RESULT_BYTES: (usize, usize) = (2 << 10, 64 << 10);

/// Bounds of what servers may cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpLimits {
    /// Time in which a server must have started, with its list of tools. A package that is downloaded first takes its time.
    pub start: Duration,
    /// Time that a call may take.
    pub call: Duration,
    /// Most bytes of one message of a server. One that sends more is ended.
    pub message_bytes_max: usize,
    /// Most bytes of a result's text; the rest is cut off, and a line says so.
    pub result_bytes_max: usize,
    /// Most tools of a server.
    pub n_tools_max: usize,
    /// Most pages of a server's list of tools.
    pub n_pages_max: usize,
    /// Most bytes of a tool's schema; a tool with more is left out.
    pub schema_bytes_max: usize,
    /// Most characters of a tool's description; the rest is cut off.
    pub description_chars_max: usize,
    /// Number of times that a server may end, or fail to start, before it is not started again. A result sets the count back.
    pub n_ends_max: usize,
}

impl Default for McpLimits {
    fn default() -> McpLimits {
        McpLimits {
            start: Duration::from_secs(60),
            call: Duration::from_secs(120),
            message_bytes_max: 32 << 20,
            result_bytes_max: 32 << 10,
            n_tools_max: 128,
            n_pages_max: 64,
            schema_bytes_max: 32 << 10,
            description_chars_max: 4096,
            n_ends_max: 3,
        }
    }
}

impl McpLimits {
    /// Returns the most bytes of a result for a model with a context of so many tokens, where that is known. A token is a byte at
    /// least, as a digit is, so that a result takes half of the context at most.
    pub fn result_bytes_for(n_ctx: Option<usize>) -> usize {
        let (least, most) = RESULT_BYTES;
        n_ctx.map_or_else(|| McpLimits::default().result_bytes_max, |n_ctx| (n_ctx / 2).clamp(least, most))
    }
}
