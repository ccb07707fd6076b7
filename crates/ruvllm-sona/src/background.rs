//! The background loop: a little work between requests, bounded, and an item of the log like everything else.
//!
//! ```text
//! due       so many tokens were learned since, or so much time went by and some were
//! merge     base ← keep·base + share·micro, brought down to its rank;  micro ← (1 - share)·micro
//! hold      importance of MicroLoRA's values joins (EWC++), and draws them to where they were the last time
//! rehearse  λ, in pieces, until the time is over
//! distill   patterns of the ReasoningBank that say the same, if many are new
//! ```
//! The base is an adapter of the final hidden state as MicroLoRA is, of a larger rank: what MicroLoRA learns moves into it bit by bit, so
//! that a few ranks learn fast and more of them keep. With `keep` 1 what is served stays the same at the merge, up to the rank.

use ruvllm_lora::micro::BASE_RANK_MAX;
use serde::{Deserialize, Serialize};
use web_time::{Duration, Instant};

use crate::bank::{Distill, ReasoningBank};
use crate::error::{SonaError, SonaErrorKind};
use crate::history::History;

/// Options of merging MicroLoRA into the base. As JSON an object of these fields; what is left out is as by default.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Consolidate {
    /// The base's rank, 1 to [`BASE_RANK_MAX`]; it stays what it was at first.
    pub rank: usize,
    /// The share of MicroLoRA that moves, above 0, up to 1.
    pub share: f32,
    /// Share of the base that stays, 0 to 1.
    pub keep: f32,
    /// Weight of the newest importance, above 0, up to 1.
    pub newest: f32,
    /// Strength with which MicroLoRA's values are held that mattered; 0 holds nothing.
    pub strength: f32,
}

impl Default for Consolidate {
    /// Rank 8, a half of it each time, the base as it is, held lightly.
    fn default() -> Consolidate {
        Consolidate { rank: 8, share: 0.5, keep: 1.0, newest: 0.5, strength: 1.0 }
    }
}

impl Consolidate {
    /// Returns whether every value is within its bounds.
    pub fn is_sound(&self) -> bool {
        let Consolidate { rank, share, keep, newest, strength } = *self;
        let is_share = |x: f32| x > 0.0 && x <= 1.0;
        let is_held = (0.0..=1.0).contains(&keep) && (0.0..=1e9).contains(&strength);
        (1..=BASE_RANK_MAX).contains(&rank) && is_share(share) && is_share(newest) && is_held
    }

    pub(crate) fn check(&self) -> Result<(), SonaError> {
        if self.is_sound() {
            return Ok(());
        }
        let Consolidate { share, keep, newest, strength, .. } = *self;
        let line =
            format!("a share of {share}, {keep} kept, {newest} of the newest, held with {strength}; use the defaults");
        Err(SonaError::new(SonaErrorKind::Value, line))
    }
}

/// When there is work, and how much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackgroundOptions {
    /// Learned tokens after which there is work.
    pub n_tokens: u64,
    /// Time after which there is work, if anything was learned.
    pub interval: Duration,
    /// Time of a run, about: no new piece of work begins after it.
    pub budget: Duration,
    /// Options of merging MicroLoRA; `None` leaves it as it is.
    pub consolidate: Option<Consolidate>,
    /// Options of distilling patterns.
    pub distill: Distill,
    /// New patterns after which they are.
    pub n_patterns: usize,
}

impl Default for BackgroundOptions {
    /// After 4,096 tokens or five minutes, for 100 ms; patterns when there are 256 more.
    fn default() -> BackgroundOptions {
        let distill = Distill { n_clusters: 32, n_patterns_max: 512, ..Distill::default() };
        BackgroundOptions {
            n_tokens: 4096,
            interval: Duration::from_secs(300),
            budget: Duration::from_millis(100),
            consolidate: Some(Consolidate::default()),
            distill,
            n_patterns: 256,
        }
    }
}

/// Positions that are rehearsed at once.
const N_REHEARSED: usize = 16;

/// Report of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackgroundReport {
    /// Whether MicroLoRA was merged.
    pub is_consolidated: bool,
    /// Positions of calibration text that are still due.
    pub n_due: usize,
    /// Patterns that were evicted for distilled ones.
    pub n_distilled: usize,
    /// Time that it took.
    pub elapsed: Duration,
}

/// One tenant's background loop.
#[derive(Clone, Debug)]
pub struct Background {
    options: BackgroundOptions,
    /// How MicroLoRA is merged instead, if a policy says so.
    said: Option<Consolidate>,
    last: Instant,
    /// Tokens and patterns when it last ran.
    n_tokens: u64,
    n_patterns: usize,
}

impl Background {
    /// Begins to wait.
    pub fn new(options: BackgroundOptions, history: &History) -> Background {
        Background { options, said: None, last: Instant::now(), n_tokens: history.learned().n_tokens(), n_patterns: 0 }
    }

    /// Says how MicroLoRA is merged from now on; `None` for what the options say. Where they merge nothing, nothing is.
    pub fn consolidate_by(&mut self, how: Option<Consolidate>) {
        self.said = how;
    }

    /// Returns whether there is work.
    pub fn is_due(&mut self, history: &History) -> bool {
        // An undo may leave fewer than there were: what comes then is new.
        let n_now = history.learned().n_tokens();
        self.n_tokens = self.n_tokens.min(n_now);
        let n_new = n_now - self.n_tokens;
        n_new >= self.options.n_tokens || n_new > 0 && self.last.elapsed() >= self.options.interval
    }

    /// Works for about the time of the options. What it does to what is known are items of the history, so playing them again needs
    /// no clock.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn run(&mut self, history: &mut History, bank: Option<&ReasoningBank>) -> Result<BackgroundReport, SonaError> {
        let start = Instant::now();
        let mut report = BackgroundReport::default();
        let n_tokens = history.learned().n_tokens();
        let how = self.options.consolidate.map(|how| self.said.unwrap_or(how));
        let how = how.filter(|_| history.learned().micro().is_some() && n_tokens != self.n_tokens);
        if let Some(how) = how {
            history.consolidate(how)?;
            report.is_consolidated = true;
        }
        report.n_due = history.learned().n_due();
        while report.n_due > 0 && start.elapsed() < self.options.budget {
            report.n_due = history.rehearse(N_REHEARSED)?;
        }
        // Forgetting may leave fewer than there were.
        self.n_patterns = self.n_patterns.min(bank.map_or(0, ReasoningBank::len));
        if let Some(bank) = bank.filter(|bank| bank.len() >= self.n_patterns + self.options.n_patterns)
            && start.elapsed() < self.options.budget
        {
            report.n_distilled = bank.distill(&self.options.distill)?.n_removed;
            self.n_patterns = bank.len();
        }
        (self.last, self.n_tokens) = (Instant::now(), n_tokens);
        report.elapsed = start.elapsed();
        Ok(report)
    }
}

#[cfg(test)]
mod tests;
