//! Form of an answer, as a caller asks for it.

use serde_json::Value;

/// Form that an answer must have.
#[derive(Clone, Debug, PartialEq)]
pub enum GrammarSource {
    /// Any JSON object.
    JsonObject,
    /// JSON that is valid by this schema (draft 2020-12, or as its `$schema` says).
    JsonSchema(Value),
    /// A text that this regular expression matches as a whole (syntax of the crate `regex`, without anchors, word
    /// boundaries and captures).
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// What the rule `start` of a grammar in Lark's syntax allows (the dialect of `llguidance`).
    Lark(String),
    /// What the rule `root` of a grammar in llama.cpp's syntax allows. In rules that refer to themselves the longest of
    /// overlapping pieces is taken, so that some of its texts may be impossible.
    Gbnf(String),
}

impl GrammarSource {
    /// Returns the bytes of its text.
    pub fn n_bytes(&self) -> usize {
        match self {
            GrammarSource::JsonObject => 0,
            GrammarSource::JsonSchema(schema) => schema.to_string().len(),
            GrammarSource::Regex(text) | GrammarSource::Lark(text) | GrammarSource::Gbnf(text) => text.len(),
            GrammarSource::Choice(texts) => texts.iter().map(String::len).sum(),
        }
    }
}
