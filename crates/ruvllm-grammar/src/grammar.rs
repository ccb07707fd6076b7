//! A compiled grammar.

use std::fmt;
use std::sync::{Arc, Mutex};

use llguidance::Matcher;
use ruvllm_text::GrammarSource;
use ruvllm_text::tokenizer::Tokenizer;

use crate::Constraint;
use crate::ahead::MaskThread;
use crate::judge::Judge;

/// Memory that a compiled grammar takes at most, beside what each byte of its source may take (measured: docs, "Structured
/// output").
const GRAMMAR_BYTES: usize = 1 << 20;
const BYTES_PER_BYTE: usize = 512;

/// A compiled grammar, for the model it was compiled for. Clones share it; each request goes through it by itself.
#[derive(Clone)]
pub struct Grammar {
    pub(crate) source: Arc<GrammarSource>,
    /// Before the first token.
    pub(crate) matcher: Arc<Mutex<Matcher>>,
    /// Looks at what it cannot say.
    pub(crate) judge: Option<Arc<Judge>>,
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// Stop strings may end the answer as well.
    pub(crate) allows_stops: bool,
    pub(crate) masks: Option<Arc<MaskThread>>,
}

impl Grammar {
    /// Returns what it was compiled of.
    pub fn source(&self) -> &GrammarSource {
        &self.source
    }

    /// Returns the bytes that it takes at most.
    pub fn n_bytes(&self) -> usize {
        GRAMMAR_BYTES + BYTES_PER_BYTE * self.source.n_bytes()
    }

    /// Begins an answer.
    pub fn start(&self) -> Constraint {
        Constraint::new(self)
    }

    /// Returns how many leading tokens of an answer it allows, and whether an answer may be all of them. What ends an answer
    /// without being part of it counts as allowed where it may end.
    pub fn check(&self, ids: &[u32]) -> (usize, bool) {
        let mut constraint = self.start();
        for (i, &id) in ids.iter().enumerate() {
            let is_end = i + 1 == ids.len() && self.tokenizer.is_end_of_generation(id);
            if is_end && constraint.is_valid() {
                return (ids.len(), true);
            }
            if constraint.accept(id).is_err() {
                return (i, false);
            }
        }
        (ids.len(), constraint.is_valid())
    }

    /// Returns the grammar for answers that stop strings may end: what they cut off is missing then.
    pub fn with_stops(self) -> Grammar {
        Grammar { allows_stops: true, ..self }
    }

    /// Returns whether stop strings may end the answer.
    pub fn allows_stops(&self) -> bool {
        self.allows_stops
    }

    /// Returns whether it was compiled for this model.
    pub fn is_for(&self, tokenizer: &Arc<Tokenizer>) -> bool {
        Arc::ptr_eq(&self.tokenizer, tokenizer)
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").finish_non_exhaustive()
    }
}
