//! One pattern, and what it is worth.

use crate::codec::{Reader, Writer};
use crate::error::{SonaError, SonaErrorKind, limit};

/// Verdict on a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Verdict {
    /// It was done.
    Success = 0,
    /// It was not done; the pattern says what to leave.
    Failure = 1,
    /// Some of it was done.
    Partial = 2,
    /// Nobody has said.
    Unknown = 3,
}

impl Verdict {
    /// All of them.
    pub const ALL: [Verdict; 4] = [Verdict::Success, Verdict::Failure, Verdict::Partial, Verdict::Unknown];

    /// The name: `success`, `failure`, `partial`, `unknown`.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Success => "success",
            Verdict::Failure => "failure",
            Verdict::Partial => "partial",
            Verdict::Unknown => "unknown",
        }
    }
}

/// One step: what was done and what came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The action.
    pub action: String,
    /// The outcome.
    pub outcome: String,
}

/// Steps of a task with its outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct Pattern {
    /// The task, in words.
    pub task: String,
    /// Its embedding: `[dim]`, of any length greater than 0.
    pub embedding: Vec<f32>,
    /// Actions in order.
    pub steps: Vec<Step>,
    /// Its verdict.
    pub verdict: Verdict,
    /// Its quality, 0 to 1; moves with each use.
    pub quality: f32,
    /// When it was made, in Unix milliseconds.
    pub created_ms: u64,
    /// Number of times that it was used.
    pub n_uses: u32,
    /// Number of patterns that it stands for: 1, or more once they were distilled into it.
    pub n_members: u32,
    /// The model whose answers it came from.
    pub model: [u8; 32],
    /// Items of the [history](crate::history) that it came from: it goes when one of them is undone. None where a program put it there.
    pub items: Vec<u64>,
}

/// First byte of a pattern's record.
const FORMAT: u8 = 2;

/// The same of a record without items.
const FORMAT_WITHOUT_ITEMS: u8 = 1;

/// Steps of a pattern, at most.
const STEPS_MAX: usize = 1024;

impl Pattern {
    /// A pattern of now that was never used.
    pub fn new(
        task: impl Into<String>,
        embedding: Vec<f32>,
        steps: Vec<Step>,
        verdict: Verdict,
        quality: f32,
    ) -> Pattern {
        let (task, created_ms, model, items) = (task.into(), crate::now_ms(), [0; 32], Vec::new());
        Pattern { task, embedding, steps, verdict, quality, created_ms, n_uses: 0, n_members: 1, model, items }
    }

    /// Returns the pattern as a record.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut to = Writer::new();
        to.u8(FORMAT).text(&self.task).f32s(&self.embedding).count(self.steps.len());
        for step in &self.steps {
            to.text(&step.action).text(&step.outcome);
        }
        to.u8(self.verdict as u8).f32(self.quality).u64(self.created_ms).u32(self.n_uses).u32(self.n_members);
        to.raw(&self.model).count(self.items.len());
        for &item in &self.items {
            to.u64(item);
        }
        to.take()
    }

    /// Reads what [`Pattern::to_bytes`] made.
    ///
    /// # Errors
    /// If the bytes are something else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Pattern, SonaError> {
        let mut from = Reader::new(bytes, "pattern");
        let format = from.format(FORMAT_WITHOUT_ITEMS..=FORMAT)?;
        let (task, embedding) = (from.text()?, from.f32s()?);
        let mut steps = vec![];
        for _ in 0..from.count(8)? {
            steps.push(Step { action: from.text()?, outcome: from.text()? });
        }
        let verdict = usize::from(from.u8()?);
        let verdict =
            Verdict::ALL.get(verdict).copied().ok_or_else(|| from.invalid(format_args!("no verdict {verdict}")))?;
        let (quality, created_ms, n_uses, n_members) = (from.f32()?, from.u64()?, from.u32()?, from.u32()?);
        let model = from.array()?;
        let n_items = if format == FORMAT { from.count(8)? } else { 0 };
        let items = (0..n_items).map(|_| from.u64()).collect::<Result<_, _>>()?;
        from.end()?;
        let pattern = Pattern { task, embedding, steps, verdict, quality, created_ms, n_uses, n_members, model, items };
        pattern.check()?;
        Ok(pattern)
    }

    /// Checks what holds for patterns of every bank.
    pub(super) fn check(&self) -> Result<(), SonaError> {
        check_quality(self.quality)?;
        if self.steps.len() > STEPS_MAX {
            return Err(limit(format!("a pattern of {} steps; at most {STEPS_MAX}", self.steps.len())));
        }
        let length = self.embedding.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>();
        if !length.is_normal() {
            return Err(SonaError::new(SonaErrorKind::Value, "a pattern's embedding has no direction"));
        }
        Ok(())
    }

    /// Bytes of its texts.
    pub(super) fn text_bytes(&self) -> usize {
        self.task.len() + self.steps.iter().map(|step| step.action.len() + step.outcome.len()).sum::<usize>()
    }

    /// What it is worth to keep. A success is worth its quality, a failure what it warns of; half of that in part, a quarter
    /// unknown; more with each use and member, ever more slowly.
    pub(super) fn usefulness(&self) -> f32 {
        let worth = match self.verdict {
            Verdict::Success => self.quality,
            Verdict::Failure => 1.0 - self.quality,
            Verdict::Partial => 0.5 * self.quality,
            Verdict::Unknown => 0.25 * self.quality,
        };
        worth * (1.0 + (self.n_uses as f32).ln_1p() + (self.n_members.max(1) as f32).ln())
    }

    /// What two patterns have in common that say the same, whatever their numbers.
    pub(super) fn content_digest(&self) -> [u8; 16] {
        let mut to = Writer::new();
        to.text(&self.task).u8(self.verdict as u8);
        for step in &self.steps {
            to.text(&step.action).text(&step.outcome);
        }
        *blake3::hash(&to.take()).as_bytes().first_chunk().expect("a digest has 32 bytes")
    }
}

/// Checks that a quality is one.
pub(super) fn check_quality(quality: f32) -> Result<(), SonaError> {
    match (0.0..=1.0).contains(&quality) {
        true => Ok(()),
        false => Err(SonaError::new(SonaErrorKind::Value, format!("a quality of {quality}; it is from 0 to 1"))),
    }
}
