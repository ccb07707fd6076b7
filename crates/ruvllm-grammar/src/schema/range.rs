//! Bounds of the number of items or properties.

use super::rules::{RuleId, Symbol};
use super::{Part, scalars};
use crate::GrammarError;

/// Bounds of the number of items or properties.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) min: u64,
    pub(super) max: Option<u64>,
}

impl Range {
    pub(super) fn of(bare: &[Part<'_>], least: &str, most: &str) -> Result<Range, GrammarError> {
        let mut range = Range { min: 0, max: None };
        for part in bare {
            range.min = range.min.max(scalars::count(part, least)?.unwrap_or(0));
            if let Some(most) = scalars::count(part, most)? {
                range.max = Some(range.max.map_or(most, |max| max.min(most)));
            }
        }
        // Nobody counts further, and the compiler counts in 31 bits.
        range.max = range.max.filter(|&max| max < 1 << 30);
        range.min = range.min.min(1 << 30);
        Ok(range)
    }

    pub(super) fn is_empty(self) -> bool {
        self.max.is_some_and(|max| max < self.min)
    }

    /// Returns the range of what is to come when there are `n`.
    pub(super) fn after(self, n: u64) -> Range {
        Range { min: self.min.saturating_sub(n), max: self.max.map(|max| max.saturating_sub(n)) }
    }

    pub(super) fn repeat(self, rule: RuleId) -> Symbol {
        Symbol::Repeat { rule, min: self.min as usize, max: self.max.map(|max| max as usize) }
    }
}
