//! The one error type of this crate, and the lines that `llguidance`'s errors become.

use std::fmt;

use llguidance::api::StopReason;
use ruvllm_text::TextError;

/// Reason of rules that only lead back to each other, a class without characters and the like.
pub(crate) const NO_TEXT: &str =
    "it allows no text at all; give its rules an end: what only leads back to itself has none";

/// Kind of an error, for callers who branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrammarErrorKind {
    /// A grammar is malformed, too large, uses what is not supported, or costs more than it may.
    Invalid,
    /// The vocabulary has no token that ends an answer.
    Unsupported,
    /// As many grammars wait to be compiled as may; one that comes later may be taken.
    QueueFull,
    /// No grammars are compiled any more.
    Stopped,
}

/// An error: a kind for code, one line for people, and a cause where there is one.
#[derive(Debug)]
pub struct GrammarError {
    kind: GrammarErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl GrammarError {
    /// Makes an error from its kind and one line (lower case, no full stop, with the numbers and what to do).
    pub(crate) fn new(kind: GrammarErrorKind, message: impl Into<String>) -> GrammarError {
        GrammarError { kind, message: message.into(), source: None }
    }

    /// Makes an error of a kind with the error that caused it.
    pub(crate) fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> GrammarError {
        self.source = Some(Box::new(source));
        self
    }

    /// Returns what kind of error this is.
    pub fn kind(&self) -> GrammarErrorKind {
        self.kind
    }
}

impl fmt::Display for GrammarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for GrammarError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as _)
    }
}

/// An error while the rules of a grammar are written, of a schema that calls cannot be held to.
impl From<TextError> for GrammarError {
    fn from(error: TextError) -> GrammarError {
        GrammarError::new(GrammarErrorKind::Invalid, error.to_string()).with_source(error)
    }
}

/// Returns whether `llguidance` says that no token may come: the name of its reason is all that it writes.
pub(crate) fn is_dead_end(error: &str) -> bool {
    error.starts_with(&format!("{:?}", StopReason::NoExtensionBias))
}

/// Makes an error of what `llguidance` says, in one line that names unsupported keywords.
pub(crate) fn refused(reason: &str) -> GrammarError {
    let lines = || reason.lines().map(str::trim);
    let line = lines().find(|line| !line.is_empty()).unwrap_or("it cannot be compiled");
    // A regular expression's fault comes behind a drawing of where it is.
    let fault = lines().find_map(|line| line.strip_prefix("error: ")).filter(|_| line.ends_with(':'));
    let whole = fault.map_or_else(|| line.to_owned(), |fault| format!("{line} {fault}"));
    let line = whole.as_str();
    let line = match line.split_once("Unimplemented keys: ") {
        Some((_, keys)) => {
            let keys: Vec<String> = keys.split('"').skip(1).step_by(2).map(|key| format!("'{key}'")).collect();
            format!("the schema uses {}, which is not supported", keys.join(", "))
        }
        None if is_dead_end(line) => {
            "nothing can follow what is written; give the rules that are used an end".to_owned()
        }
        None if line.contains("oneOf constraints") => {
            "the schema uses 'oneOf' with branches that may overlap, which is not supported".to_owned()
        }
        None => match line.split_once("Only absolute $ref's").and_then(|(_, rest)| rest.split_once("; ref ")) {
            Some((_, name)) => format!("the schema uses '$ref' to {name}, and only '#/…' is supported"),
            None => line.trim_end_matches('.').chars().take(300).collect(),
        },
    };
    let line = match line.starts_with("the schema uses") {
        true => line,
        false => format!("the grammar cannot be used: {line}"),
    };
    GrammarError::new(GrammarErrorKind::Invalid, line)
}
