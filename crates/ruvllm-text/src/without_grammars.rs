//! Grammars in a build without the feature `grammar`: none compiles, so there is none to ask.

use std::sync::Arc;

use crate::tokenizer::Tokenizer;
use crate::{GrammarSource, TextError, TextErrorKind};

/// Nothing has this type.
#[derive(Clone, Copy, Debug)]
enum Never {}

/// Compiles grammars with the feature `grammar`. Without it nobody has one.
#[derive(Debug)]
pub struct GrammarCompiler(Never);

impl GrammarCompiler {
    /// Makes no compiler.
    ///
    /// # Errors
    /// [`TextErrorKind::Unsupported`] always.
    pub fn new(_: &Arc<Tokenizer>, _: usize) -> Result<GrammarCompiler, TextError> {
        let line = "this program was built without grammars; build it with the feature 'grammar' of ruvllm-text";
        Err(TextError::new(TextErrorKind::Unsupported, line))
    }

    /// Has masks computed while the model runs.
    pub fn with_masks_ahead(self, _: usize) -> GrammarCompiler {
        match self.0 {}
    }

    /// Compiles a grammar.
    ///
    /// # Errors
    /// None: nobody has a compiler.
    pub fn compile(&self, _: &GrammarSource) -> Result<Grammar, TextError> {
        match self.0 {}
    }
}

/// A compiled grammar. Without the feature `grammar` there is none.
#[derive(Clone, Debug)]
pub struct Grammar(Never);

impl Grammar {
    /// Returns what it was compiled of.
    pub fn source(&self) -> &GrammarSource {
        match self.0 {}
    }

    /// Returns the bytes that it takes at most.
    pub fn n_bytes(&self) -> usize {
        match self.0 {}
    }

    /// Begins an answer.
    pub fn start(&self) -> Constraint {
        match self.0 {}
    }

    /// Returns how many leading tokens of an answer it allows, and whether an answer may be all of them.
    pub fn check(&self, _: &[u32]) -> (usize, bool) {
        match self.0 {}
    }

    /// Returns the grammar for answers that stop strings may end.
    pub fn with_stops(self) -> Grammar {
        match self.0 {}
    }

    /// Returns whether stop strings may end the answer.
    pub fn allows_stops(&self) -> bool {
        match self.0 {}
    }

    /// Returns whether it was compiled for this model.
    pub fn is_for(&self, _: &Arc<Tokenizer>) -> bool {
        match self.0 {}
    }
}

/// A grammar on its way through one answer. Without the feature `grammar` there is none.
#[derive(Debug)]
pub struct Constraint(Never);

impl Constraint {
    /// Begins to find out which tokens may come next.
    pub fn begin_mask(&mut self) {
        match self.0 {}
    }

    /// Returns the token that must come next, if there is only one.
    pub fn forced(&self) -> Option<u32> {
        match self.0 {}
    }

    /// Returns whether values are looked at as they close.
    pub fn is_watched(&self) -> bool {
        match self.0 {}
    }

    /// Finds out which tokens may come next.
    ///
    /// # Errors
    /// None: nobody has a constraint.
    pub fn compute_mask(&mut self) -> Result<(), TextError> {
        match self.0 {}
    }

    /// Sets the logits of those that may not come to -∞.
    pub fn apply_mask(&self, _: &mut [f32]) {
        match self.0 {}
    }

    /// Takes note of the next token.
    ///
    /// # Errors
    /// None: nobody has a constraint.
    pub fn accept(&mut self, _: u32) -> Result<(), TextError> {
        match self.0 {}
    }

    /// Takes note of the next token, or rules it out.
    ///
    /// # Errors
    /// None: nobody has a constraint.
    pub fn try_accept(&mut self, _: u32) -> Result<bool, TextError> {
        match self.0 {}
    }

    /// Goes back, if no token may come.
    ///
    /// # Errors
    /// None: nobody has a constraint.
    pub fn rewind(&mut self) -> Result<usize, TextError> {
        match self.0 {}
    }

    /// Returns how many of some tokens may follow, one after the other.
    pub fn n_allowed(&mut self, _: &[u32]) -> usize {
        match self.0 {}
    }

    /// Returns whether the answer may end here.
    pub fn is_valid(&mut self) -> bool {
        match self.0 {}
    }

    /// Returns whether the answer is complete.
    pub fn is_complete(&mut self) -> bool {
        match self.0 {}
    }
}
