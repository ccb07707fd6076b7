//! Selections of patterns, and what they ask of one.

use super::{Pattern, Verdict};

/// Selection of patterns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Select {
    verdicts: Option<u8>,
    quality_min: f32,
    from_ms: u64,
}

impl Select {
    /// Selects patterns with this verdict; called again, with this one too.
    pub fn verdict(self, verdict: Verdict) -> Select {
        Select { verdicts: Some(self.verdicts.unwrap_or(0) | 1 << verdict as u8), ..self }
    }

    /// Selects patterns of at least this quality.
    pub fn quality_min(self, quality_min: f32) -> Select {
        Select { quality_min, ..self }
    }

    /// Selects patterns made at or after this time, in Unix milliseconds.
    pub fn since(self, from_ms: u64) -> Select {
        Select { from_ms, ..self }
    }

    pub(super) fn takes(&self, facts: &Facts) -> bool {
        self.verdicts.is_none_or(|set| set & 1 << facts.verdict as u8 != 0)
            && facts.quality >= self.quality_min
            && facts.created_ms >= self.from_ms
    }
}

/// What a search asks of a pattern, in memory.
pub(super) struct Facts {
    pub(super) verdict: Verdict,
    pub(super) quality: f32,
    pub(super) created_ms: u64,
    pub(super) usefulness: f32,
    pub(super) content: [u8; 16],
    pub(super) items: Vec<u64>,
}

impl Facts {
    pub(super) fn of(pattern: &Pattern) -> Facts {
        let Pattern { verdict, quality, created_ms, .. } = *pattern;
        let (usefulness, content, items) = (pattern.usefulness(), pattern.content_digest(), pattern.items.clone());
        Facts { verdict, quality, created_ms, usefulness, content, items }
    }
}
