//! Grammars in a build without the feature `grammar`: types without values, so that none of the engine needs a `cfg`.
//!
//! They have what the engine itself calls of `ruvllm-grammar`'s types, and no more.

use std::sync::Arc;

use ruvllm_text::tokenizer::Tokenizer;

use crate::{EngineError, ErrorKind};

/// Compiler of grammars. Without the feature `grammar` there is none.
#[derive(Debug)]
pub enum GrammarCompiler {}

/// Compiled grammar. Without the feature `grammar` there is none.
#[derive(Clone, Debug)]
pub enum Grammar {}

/// Grammar on its way through one answer. Without the feature `grammar` there is none.
#[derive(Debug)]
pub enum Constraint {}

impl GrammarCompiler {
    pub(crate) fn new(_: &Arc<Tokenizer>, _: usize) -> Result<GrammarCompiler, EngineError> {
        let line = "this program was built without grammars; build it with the feature 'grammar' of ruvllm-engine";
        Err(EngineError::new(ErrorKind::Unsupported, line))
    }

    pub(crate) fn with_masks_ahead(self, _: usize) -> GrammarCompiler {
        match self {}
    }
}

impl Grammar {
    pub(crate) fn start(&self) -> Constraint {
        match *self {}
    }

    pub(crate) fn allows_stops(&self) -> bool {
        match *self {}
    }

    pub(crate) fn is_for(&self, _: &Arc<Tokenizer>) -> bool {
        match *self {}
    }
}

impl Constraint {
    pub(crate) fn begin_mask(&mut self) {
        match *self {}
    }

    pub(crate) fn forced(&self) -> Option<u32> {
        match *self {}
    }

    pub(crate) fn is_watched(&self) -> bool {
        match *self {}
    }

    pub(crate) fn compute_mask(&mut self) -> Result<(), EngineError> {
        match *self {}
    }

    pub(crate) fn apply_mask(&self, _: &mut [f32]) {
        match *self {}
    }

    pub(crate) fn try_accept(&mut self, _: u32) -> Result<bool, EngineError> {
        match *self {}
    }

    pub(crate) fn rewind(&mut self) -> Result<usize, EngineError> {
        match *self {}
    }

    pub(crate) fn n_allowed(&mut self, _: &[u32]) -> usize {
        match *self {}
    }

    pub(crate) fn is_complete(&mut self) -> bool {
        match *self {}
    }
}
