//! A call that is over, as a model and programs read it.

use serde_json::{Map, Value};

use crate::error::{McpError, McpErrorKind};
use crate::output::McpOutput;
use crate::visible::visible;

/// Characters of a name that a model made up.
const NAME_CHARS: usize = 80;

/// Outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum McpOutcome {
    /// The tool ran and returned something.
    Ran,
    /// The tool or its server failed, or the arguments are none.
    Failed,
    /// Nobody allowed it.
    Denied,
    /// It was given up.
    Cancelled,
    /// There is no such tool.
    Unknown,
}

impl McpOutcome {
    /// Returns its word for programs.
    pub fn as_str(self) -> &'static str {
        match self {
            McpOutcome::Ran => "ran",
            McpOutcome::Failed => "failed",
            McpOutcome::Denied => "denied",
            McpOutcome::Cancelled => "cancelled",
            McpOutcome::Unknown => "unknown",
        }
    }
}

/// A call that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpCallResult {
    /// Outcome of the call.
    pub outcome: McpOutcome,
    /// Text that the tool returned, or why there is none.
    pub text: String,
}

impl McpCallResult {
    /// Makes the result of a call that was made.
    pub fn of(called: Result<McpOutput, McpError>) -> McpCallResult {
        let (outcome, text) = match called {
            Ok(output) if output.is_error => (McpOutcome::Failed, output.text),
            Ok(output) => (McpOutcome::Ran, output.text),
            Err(error) if error.kind() == McpErrorKind::Cancelled => (McpOutcome::Cancelled, error.to_string()),
            Err(error) => (McpOutcome::Failed, error.to_string()),
        };
        McpCallResult { outcome, text }
    }

    /// Makes the result of a call that failed before it was made.
    pub fn failed(why: impl Into<String>) -> McpCallResult {
        McpCallResult { outcome: McpOutcome::Failed, text: why.into() }
    }

    /// Makes the result of a call that is not allowed.
    pub fn denied(why: impl Into<String>) -> McpCallResult {
        McpCallResult { outcome: McpOutcome::Denied, text: why.into() }
    }

    /// Makes the result of a call of a tool that there is not.
    pub fn unknown(name: &str) -> McpCallResult {
        let text = format!("there is no tool '{}'", visible(name, NAME_CHARS));
        McpCallResult { outcome: McpOutcome::Unknown, text }
    }

    /// Returns it as the model reads it.
    pub fn for_model(&self) -> String {
        match self.outcome {
            McpOutcome::Ran => self.text.clone(),
            _ => format!("error: {}", self.text),
        }
    }
}

/// Returns the arguments that a model wrote; none are an empty object.
///
/// # Errors
/// They are no JSON object: the result of such a call.
pub fn arguments(text: &str) -> Result<Map<String, Value>, McpCallResult> {
    match text.trim() {
        "" => Ok(Map::new()),
        text => serde_json::from_str(text).map_err(|_| McpCallResult::failed("the arguments are no JSON object")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_end_as_text() {
        let output = |is_error| McpOutput { text: "a".to_owned(), is_error, n_bytes: 1 };
        let error = |kind| McpError::new(kind, "b");
        for (called, outcome, text) in [
            (Ok(output(false)), "ran", "a"),
            (Ok(output(true)), "failed", "error: a"),
            (Err(error(McpErrorKind::Cancelled)), "cancelled", "error: b"),
            (Err(error(McpErrorKind::Server)), "failed", "error: b"),
        ] {
            let result = McpCallResult::of(called);
            assert_eq!((result.outcome.as_str(), &*result.for_model()), (outcome, text));
        }
        assert_eq!(McpCallResult::unknown("a\u{1b}b").for_model(), "error: there is no tool 'a\\u{1b}b'");
    }

    #[test]
    fn arguments_are_an_object_or_nothing() {
        assert_eq!(arguments(" "), Ok(Map::new()));
        assert_eq!(arguments("{\"a\":1}").map(|map| map.len()), Ok(1));
        assert!(arguments("[1]").is_err() && arguments("{\"a\":").is_err());
    }
}
