//! Items that enter a log: traces, documents, corrections, and what is done to the state between them.

use super::History;
use super::generation::Generation;
use super::item::{Item, Record, Span, TrainingItem};
use super::rebuild::{self, Reading};
use crate::background::Consolidate;
use crate::clock::now_ms;
use crate::corrections::Correctness;
use crate::error::{SonaError, SonaErrorKind};
use crate::instant::{LearnOptions, Learned, RequestTrace, Stamp};
use crate::names::Names;
use crate::whiten::Key;

impl History {
    /// Ingests a request's trace, and returns the item's id; it is on disk then. `span` has the tokens that the trace observed.
    /// Nothing is ingested, and `None` returned, at quality 0, or when the request read what was undone, rolled back or let go since:
    /// what it found out may come from there.
    ///
    /// # Errors
    /// The trace observed other tokens than those of the span, the quality is no number of 0 to 1, or it cannot be written.
    pub fn ingest(&mut self, trace: RequestTrace, span: Span, quality: f32) -> Result<Option<u64>, SonaError> {
        check_quality(quality)?;
        span.check()?;
        if trace.n_observed() != span.tokens.len() || span.n_step > 0 {
            let line = format!("a trace of {} tokens for a span of {}", trace.n_observed(), span.tokens.len());
            return Err(SonaError::new(SonaErrorKind::Shape, line));
        }
        let stamps = trace.stamps().to_vec();
        if quality == 0.0 || stamps.is_empty() || self.is_gone(&stamps) {
            return Ok(None);
        }
        let record = Record { stamps, ..Record::new(now_ms(), Item::Read { span, quality }) };
        let ingest = |learned: &mut Learned| {
            learned.ingest(trace, quality);
            Ok(())
        };
        self.log_and(record, ingest).map(Some)
    }

    /// Adds a text to the holdout, for the gate: nothing is learned of it. Returns the item's id.
    ///
    /// # Errors
    /// It is no span, or it cannot be written.
    pub fn hold_out(&mut self, span: Span) -> Result<u64, SonaError> {
        span.check()?;
        self.log_and(Record::new(now_ms(), Item::Holdout { span }), |_| Ok(()))
    }

    /// Reads a document and learns it, with steps on the way if [`Span::n_step`] says so; returns the item's id.
    ///
    /// # Errors
    /// The model cannot read it, the quality is not above 0, up to 1, or it cannot be written.
    pub fn learn_document(&mut self, span: Span, quality: f32, reading: &mut dyn Reading) -> Result<u64, SonaError> {
        check_quality(quality)?;
        span.check()?;
        let span = Span { n_step: span.n_step.max(1), ..span };
        let record = Record::new(now_ms(), Item::Read { span: span.clone(), quality });
        self.log_and(record, |learned| rebuild::learn_document(&span, quality, learned, reading))
    }

    /// Ingests a training item, and rehearses the interpolation after what was read; returns the item's id, `None` where nothing was
    /// to be learned of it.
    ///
    /// # Errors
    /// As [`History::ingest`], [`History::add_correction`] and [`History::reject`].
    pub fn ingest_item(&mut self, item: TrainingItem) -> Result<Option<u64>, SonaError> {
        match item {
            TrainingItem::Read { trace, span, quality } => {
                let id = self.ingest(*trace, span, quality)?;
                if id.is_some() {
                    self.rehearse(usize::MAX)?;
                }
                Ok(id)
            }
            TrainingItem::Holdout { span } => self.hold_out(span).map(Some),
            TrainingItem::Rejected { names, trace } => self.reject(&names, &trace),
            TrainingItem::Corrected { names, hidden, answer, verdict } => {
                self.add_correction(&names, &hidden, &answer, verdict).map(Some)
            }
        }
    }

    /// Adds a correction as [`Learned::add_correction`] does; returns the item's id.
    ///
    /// # Errors
    /// As [`Learned::add_correction`], and if it cannot be written.
    ///
    /// # Panics
    /// If the states are of another width.
    pub fn add_correction(
        &mut self,
        names: &Names,
        hidden: &[f32],
        answer: &[u32],
        verdict: Correctness,
    ) -> Result<u64, SonaError> {
        let keys = self.state.learned.answer_keys(hidden, answer);
        self.add_correction_keys(names, &keys, verdict)
    }

    /// Adds the answer that a trace is of as a wrong one, as [`Learned::reject`]; returns the item's id, `None` where nothing was
    /// traced, or [`History::ingest`] would ingest nothing.
    ///
    /// # Errors
    /// As [`Learned::reject`], and if it cannot be written.
    pub fn reject(&mut self, names: &Names, trace: &RequestTrace) -> Result<Option<u64>, SonaError> {
        let keys = self.state.learned.traced_keys(trace);
        if keys.is_empty() || self.is_gone(trace.stamps()) {
            return Ok(None);
        }
        self.add_correction_keys(names, &keys, Correctness::Wrong).map(Some)
    }

    /// Whether a piece read what is no longer part of what is known, or what is older than all that is kept.
    fn is_gone(&self, stamps: &[Stamp]) -> bool {
        let oldest = self.generations.iter().find(|generation| generation.is_oldest).map_or(0, Generation::last);
        let is_gone = |version: u64| version < oldest || self.gone.iter().any(|range| range.contains(&version));
        stamps.iter().any(|stamp| is_gone(stamp.version))
    }

    fn add_correction_keys(
        &mut self,
        names: &Names,
        answer: &[(Key, u32)],
        verdict: Correctness,
    ) -> Result<u64, SonaError> {
        let (keys, tokens): (Vec<Key>, Vec<u32>) = answer.iter().cloned().unzip();
        let item = Item::Corrected { names: names.clone(), answer: tokens, verdict };
        let record = Record { keys, ..Record::new(now_ms(), item) };
        self.log_and(record, |learned| learned.add_correction_keys(names, answer, verdict))
    }

    /// Rehearses as [`Learned::rehearse`]; returns how many positions are left. It is an item also where nothing is due: without
    /// an earlier item something might have been.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn rehearse(&mut self, n_max: usize) -> Result<usize, SonaError> {
        let mut n_left = 0;
        self.log_and(Record::new(now_ms(), Item::Rehearsed { n_max }), |learned| {
            n_left = learned.rehearse(n_max);
            Ok(())
        })?;
        Ok(n_left)
    }

    /// Goes on with other options, see [`Learned::configure`]; returns the item's id.
    ///
    /// # Errors
    /// As [`Learned::configure`], and if it cannot be written.
    pub fn configure(&mut self, options: LearnOptions) -> Result<u64, SonaError> {
        self.log_and(Record::new(now_ms(), Item::Configured(options)), |learned| learned.configure(options))
    }

    /// Records that a change was looked at and not published; returns the item's id.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn discard(&mut self, why: &str, figures: &[(String, f64)]) -> Result<u64, SonaError> {
        let item = Item::Discarded { why: why.to_owned(), figures: figures.to_vec() };
        self.log_and(Record::new(now_ms(), item), |_| Ok(()))
    }

    /// Merges MicroLoRA into the base behind it, see [`Learned::consolidate`]; returns the item's id.
    ///
    /// # Errors
    /// As [`Learned::consolidate`], and if it cannot be written.
    pub fn consolidate(&mut self, how: Consolidate) -> Result<u64, SonaError> {
        self.log_and(Record::new(now_ms(), Item::Consolidated(how)), |learned| learned.consolidate(&how))
    }
}

fn check_quality(quality: f32) -> Result<(), SonaError> {
    match (0.0..=1.0).contains(&quality) {
        true => Ok(()),
        false => Err(SonaError::new(SonaErrorKind::Value, format!("a quality of {quality}; it is from 0 to 1"))),
    }
}
