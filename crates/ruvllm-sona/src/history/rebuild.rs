//! Items played again: the state that they make, whichever requests ran at the same time.
//!
//! ```text
//! version k:   the state behind item k                      a request's trace says which versions it read, and from which token on
//! play:        before item k is ingested, every piece that was read of versions below k is read again of this state
//! ```

use std::ops::Range;

use ruvllm_kernels::softmax;
use ruvllm_lora::micro::{HeadRows, KeptRows, LogitRow, MicroLora, StateRows};

use super::State;
use super::item::{Item, Record, Span};
use crate::error::{SonaError, SonaErrorKind};
use crate::instant::{Learned, RequestTrace};

/// Callback for a token: its place, the final hidden state before it, one row, before any MicroLoRA, and the logits made of that
/// state behind the MicroLoRA, `[n_vocab]`, approximate ones too if the span has them; no logits where the token was only remembered.
pub type Each<'a> = dyn FnMut(usize, StateRows<'_>, LogitRow<'_>) + 'a;

/// The model, which reads spans again. It must give the bits that it gave when they were served.
pub trait Reading {
    /// Reads `span.tokens` and calls `each` for every place in `range` from [`Span::n_read`] on, in order.
    ///
    /// # Errors
    /// The model cannot read it.
    fn read(
        &mut self,
        span: &Span,
        range: Range<usize>,
        micro: Option<&MicroLora>,
        each: &mut Each<'_>,
    ) -> Result<(), SonaError>;

    /// Goes on with an adapter of the deep loop, [`DeepState`](crate::deep::DeepState) as bytes, or with none; begins with none.
    ///
    /// # Errors
    /// The model cannot take it.
    fn adopt(&mut self, deep: Option<&[u8]>) -> Result<(), SonaError>;

    /// Returns what gives rows of the output head.
    fn head(&self) -> &dyn HeadRows;

    /// Observes how a token was predicted with all that is known: `[n_vocab]`. For measurements of how well a text was read.
    fn predicted(&mut self, token: u32, logits: &[f32]) {
        let _ = (token, logits);
    }
}

/// Reads a piece of a span into its trace, as it was read when it was served.
pub(super) fn read(
    span: &Span,
    range: Range<usize>,
    learned: &Learned,
    trace: &mut RequestTrace,
    reading: &mut dyn Reading,
) -> Result<(), SonaError> {
    let only_read = range.start..range.end.min(span.n_read);
    only_read.for_each(|at| trace.read(span.tokens[at]));
    trace.begin(learned);
    // The head is borrowed between two tokens only.
    let mut rest = range.start.max(span.n_read)..range.end;
    let mut rows: Vec<Row> = Vec::new();
    while !rest.is_empty() {
        // Up to there hidden states change as they do now.
        let n = if rest.start < span.n_remembered {
            PIECE.min(span.n_remembered - rest.start)
        } else {
            PIECE.min(trace.n_until_step(learned))
        };
        let (piece, micro) = (rest.start..rest.end.min(rest.start + n), trace.micro().cloned());
        rows.clear();
        reading.read(span, piece.clone(), micro.as_deref(), &mut |_, state, logits| {
            let LogitRow { exact, approx } = logits;
            rows.push(Row { state: state.into(), logits: exact.to_vec(), approx: approx.map(<[f32]>::to_vec) });
        })?;
        if rows.len() != piece.len() {
            let line = format!("{} of {} tokens were read again; is it the same model", rows.len(), piece.len());
            return Err(SonaError::new(SonaErrorKind::Shape, line));
        }
        for (at, row) in piece.clone().zip(&mut rows) {
            let token = span.tokens[at];
            if at == span.n_remembered {
                span.question.iter().for_each(|names| trace.set_question(names.clone()));
            }
            if span.is_skipped(at) {
                trace.read(token);
                continue;
            }
            if at < span.n_remembered {
                trace.remember(learned, row.state.rows().hidden, token);
                continue;
            }
            if row.logits.len() <= token as usize {
                let line = format!("token {token} of a model with {}; is it the same model", row.logits.len());
                return Err(SonaError::new(SonaErrorKind::Shape, line));
            }
            trace.adjust(learned, row.state.rows(), LogitRow { exact: &mut row.logits, approx: row.approx.as_deref() });
            reading.predicted(token, &row.logits);
            trace.accept(learned, token, reading.head());
        }
        rest.start = piece.end;
    }
    Ok(())
}

/// Tokens whose rows are held at once.
const PIECE: usize = 32;

struct Row {
    state: KeptRows,
    logits: Vec<f32>,
    approx: Option<Vec<f32>>,
}

/// Reads a document and takes its steps; at its end it is ingested.
pub(super) fn learn_document(
    span: &Span,
    quality: f32,
    learned: &mut Learned,
    reading: &mut dyn Reading,
) -> Result<(), SonaError> {
    let mut trace = RequestTrace::default();
    let mut at = 0;
    while at < span.tokens.len() {
        // A step comes after so many predicted tokens.
        let end = at.max(span.n_remembered).saturating_add(span.n_step).min(span.tokens.len());
        read(span, at..end, learned, &mut trace, reading)?;
        learned.step(&mut trace, quality);
        at = end;
    }
    learned.ingest(trace, quality);
    Ok(())
}

/// Returns how badly each predicted token of a span is predicted with what is known, in nats; nothing is learned.
///
/// # Errors
/// The model cannot read it.
pub fn losses(span: &Span, learned: &Learned, reading: &mut dyn Reading) -> Result<Vec<f32>, SonaError> {
    span.check()?;
    let mut listener = Listener { reading, isa: learned.compute().isa, losses: Vec::new() };
    read(span, 0..span.tokens.len(), learned, &mut RequestTrace::default(), &mut listener)?;
    Ok(listener.losses)
}

/// Listens to how tokens are predicted.
struct Listener<'a> {
    reading: &'a mut dyn Reading,
    isa: ruvllm_kernels::Isa,
    losses: Vec<f32>,
}

impl Reading for Listener<'_> {
    fn read(
        &mut self,
        span: &Span,
        range: Range<usize>,
        micro: Option<&MicroLora>,
        each: &mut Each<'_>,
    ) -> Result<(), SonaError> {
        self.reading.read(span, range, micro, each)
    }

    fn adopt(&mut self, deep: Option<&[u8]>) -> Result<(), SonaError> {
        self.reading.adopt(deep)
    }

    fn head(&self) -> &dyn HeadRows {
        self.reading.head()
    }

    fn predicted(&mut self, token: u32, logits: &[f32]) {
        self.losses.push(softmax::pick(self.isa).log_sum_exp(logits) as f32 - logits[token as usize]);
        self.reading.predicted(token, logits);
    }
}

/// A piece of a span that was read of one version.
struct Piece {
    version: u64,
    /// Whose it is: the item's place in the list.
    item: usize,
    range: Range<usize>,
}

/// Gives what the deep loop knew, by its digest.
type DeepOf<'a> = dyn Fn(&[u8; 32]) -> Result<Vec<u8>, SonaError> + 'a;

/// Plays items, in the order of their ids.
pub(super) fn play(
    state: &mut State,
    items: &[(u64, Record)],
    deep: &DeepOf<'_>,
    reading: &mut dyn Reading,
) -> Result<(), SonaError> {
    reading.adopt(state.adopted.as_ref().map(deep).transpose()?.as_deref())?;
    let mut pieces: Vec<Piece> = Vec::new();
    for (i, (_, record)) in items.iter().enumerate() {
        let Item::Read { span, .. } = &record.item else { continue };
        for (j, stamp) in record.stamps.iter().enumerate() {
            let start = if j == 0 { 0 } else { stamp.n_observed };
            let end = record.stamps.get(j + 1).map_or(span.tokens.len(), |next| next.n_observed);
            pieces.push(Piece { version: stamp.version, item: i, range: start..end });
        }
    }
    pieces.sort_by_key(|piece| (piece.version, piece.item));
    let mut pieces = pieces.into_iter().peekable();
    let mut open: Vec<Option<RequestTrace>> = items.iter().map(|_| None).collect();
    for (i, (id, record)) in items.iter().enumerate() {
        while let Some(piece) = pieces.next_if(|piece| piece.version < *id) {
            if let Item::Read { span, .. } = &items[piece.item].1.item {
                let trace = open[piece.item].get_or_insert_default();
                read(span, piece.range, &state.learned, trace, reading)?;
            }
        }
        if let Item::Adopted { digest, .. } = &record.item {
            reading.adopt(Some(&deep(digest)?))?;
            state.adopted = Some(*digest);
        }
        apply(state.learned_mut(), record, open[i].take(), reading)?;
        state.learned_mut().set_version(*id);
    }
    Ok(())
}

/// Ingests one item.
fn apply(
    learned: &mut Learned,
    record: &Record,
    trace: Option<RequestTrace>,
    reading: &mut dyn Reading,
) -> Result<(), SonaError> {
    match &record.item {
        Item::Read { span, quality } if span.n_step > 0 => learn_document(span, *quality, learned, reading)?,
        Item::Read { quality, .. } => learned.ingest(trace.unwrap_or_default(), *quality),
        Item::Corrected { names, answer, verdict } => {
            let answer: Vec<_> = record.keys.iter().cloned().zip(answer.iter().copied()).collect();
            learned.add_correction_keys(names, &answer, *verdict)?;
        }
        Item::Rehearsed { n_max } => _ = learned.rehearse(*n_max),
        Item::Configured(options) => learned.configure(*options)?,
        Item::Consolidated(how) => learned.consolidate(how)?,
        Item::Adopted { .. }
        | Item::Discarded { .. }
        | Item::Holdout { .. }
        | Item::RolledBack { .. }
        | Item::TookBack { .. }
        | Item::Undone => {}
    }
    Ok(())
}
