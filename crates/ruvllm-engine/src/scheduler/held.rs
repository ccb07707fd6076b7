//! The runner of a scheduler: borrowed for a while, or its own.

use std::ops::{Deref, DerefMut};

use crate::runner::ModelRunner;

/// A runner that a scheduler has.
pub(super) enum Held<'a> {
    Borrowed(&'a mut ModelRunner),
    Owned(Box<ModelRunner>),
}

impl Deref for Held<'_> {
    type Target = ModelRunner;

    fn deref(&self) -> &ModelRunner {
        match self {
            Held::Borrowed(runner) => runner,
            Held::Owned(runner) => runner,
        }
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut ModelRunner {
        match self {
            Held::Borrowed(runner) => runner,
            Held::Owned(runner) => runner,
        }
    }
}
