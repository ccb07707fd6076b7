//! Items of the log: what was ingested, as bytes.

use crate::background::Consolidate;
use crate::codec::{Reader, Writer};
use crate::corrections::Correctness;
use crate::datastore::DatastoreOptions;
use crate::error::{SonaError, SonaErrorKind};
use crate::instant::{LearnOptions, Learned, MicroOptions, RequestTrace, Stamp};
use crate::names::{Kind, Names};
use crate::whiten::Key;

/// First byte of an item's record.
const FORMAT: u8 = 4;
/// The earliest that is read: it has no approximate spans.
const FORMAT_MIN: u8 = 3;

/// A text that was learned from: everything that its [`RequestTrace`](crate::RequestTrace) observed, in order.
///
/// ```text
/// tokens   0 .. n_read          n_read .. n_remembered     n_remembered ..
/// trace    read                 remember                   adjust, accept      (skipped: read)
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Span {
    /// All tokens.
    pub tokens: Vec<u32>,
    /// The first of them were only read; at least one, which no state is before.
    pub n_read: usize,
    /// End of the tokens that were remembered: a prompt whose logits nobody computed.
    pub n_remembered: usize,
    /// Question, if the request was for an answer.
    pub question: Option<Names>,
    /// Tokens after which steps were taken while it was read, again and again; 0: only at its end. For documents, which nobody
    /// else learns beside.
    pub n_step: usize,
    /// Places behind [`Span::n_read`], ascending, whose tokens were only read: nobody computed what they follow, such as where a
    /// grammar left no choice.
    pub skipped: Vec<u32>,
    /// Whether its rows of logits had approximate ones, see [`LogitRow`](ruvllm_lora::micro::LogitRow).
    pub is_approx: bool,
}

impl Span {
    /// Whether the token there was only read.
    pub(super) fn is_skipped(&self, at: usize) -> bool {
        u32::try_from(at).is_ok_and(|at| self.skipped.binary_search(&at).is_ok())
    }

    pub(super) fn check(&self) -> Result<(), SonaError> {
        let n = self.tokens.len();
        let is_in_order = self.skipped.is_sorted_by(|a, b| a < b)
            && self.skipped.first().is_none_or(|&at| at as usize >= self.n_read)
            && self.skipped.last().is_none_or(|&at| (at as usize) < n);
        match is_in_order && 0 < self.n_read && self.n_read <= self.n_remembered && self.n_remembered <= n {
            true => Ok(()),
            false => {
                let (read, remembered) = (self.n_read, self.n_remembered);
                let line = format!("a span of {n} tokens, of which {read} were read and {remembered} remembered");
                Err(SonaError::new(SonaErrorKind::Shape, line))
            }
        }
    }
}

/// Item of a history.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Item {
    /// A request's trace, or a document's.
    Read {
        /// What was read.
        span: Span,
        /// How much it counts, above 0, up to 1.
        quality: f32,
    },
    /// A correction.
    Corrected {
        /// Names in the question.
        names: Names,
        /// Tokens of the answer.
        answer: Vec<u32>,
        /// Right or wrong.
        verdict: Correctness,
    },
    /// λ was fitted on calibration text.
    Rehearsed {
        /// Positions, at most.
        n_max: usize,
    },
    /// Other options from here on.
    Configured(LearnOptions),
    /// MicroLoRA was merged into the base behind it.
    Consolidated(Consolidate),
    /// An adapter of the deep loop was adopted.
    Adopted {
        /// Digest of what the deep loop knows, which lies in a table of its own.
        digest: [u8; 32],
        /// Items that it was trained on, and those before it that it comes from: undoing one undoes it.
        sources: Vec<u64>,
    },
    /// A change was looked at and not published.
    Discarded {
        /// Why, and the figures.
        why: String,
        /// Names and values.
        figures: Vec<(String, f64)>,
    },
    /// The state went back to that of a generation.
    RolledBack {
        /// Its number.
        generation: u64,
    },
    /// An item was taken back.
    TookBack {
        /// Its id.
        item: u64,
    },
    /// What stood here was taken back: nothing of it is left.
    Undone,
    /// A text of the holdout: nothing was learned of it, so that it shows whether what was learned is good.
    Holdout {
        /// The text.
        span: Span,
    },
}

impl Item {
    /// Whether it changed what is known, so that it can be undone.
    pub fn has_effect(&self) -> bool {
        use Item::{Adopted, Configured, Consolidated, Corrected, Read, Rehearsed};
        matches!(
            self,
            Read { .. } | Corrected { .. } | Rehearsed { .. } | Configured(_) | Consolidated(_) | Adopted { .. }
        )
    }
}

/// Training item on its way to become an [`Item`]: with its sources, which the log does not keep.
#[derive(Debug)]
pub enum TrainingItem {
    /// A request's trace.
    Read {
        /// The trace.
        trace: Box<RequestTrace>,
        /// Tokens that the trace observed.
        span: Span,
        /// How much it counts, 0 to 1.
        quality: f32,
    },
    /// A text of the holdout, see [`Item::Holdout`].
    Holdout {
        /// The text.
        span: Span,
    },
    /// An answer was wrong.
    Rejected {
        /// Names in the question.
        names: Names,
        /// Trace of the answer.
        trace: Box<RequestTrace>,
    },
    /// A correction: an answer to a question.
    Corrected {
        /// Names in the question.
        names: Names,
        /// The final hidden states that the tokens follow: `[n, n_embd]`.
        hidden: Vec<f32>,
        /// Tokens of the answer.
        answer: Vec<u32>,
        /// Right or wrong.
        verdict: Correctness,
    },
}

impl TrainingItem {
    /// Applies it to a state that has no log, as [`History::ingest_item`](super::History::ingest_item) would; returns whether there was something to
    /// learn.
    ///
    /// # Errors
    /// As [`Learned::add_correction`].
    pub fn apply_to(self, learned: &mut Learned) -> Result<bool, SonaError> {
        match self {
            TrainingItem::Read { quality: 0.0, .. } | TrainingItem::Holdout { .. } => return Ok(false),
            TrainingItem::Read { trace, quality, .. } => {
                learned.ingest(*trace, quality);
                learned.rehearse(usize::MAX);
            }
            TrainingItem::Rejected { names, trace } => learned.reject(&names, &trace)?,
            TrainingItem::Corrected { names, hidden, answer, verdict } => {
                learned.add_correction(&names, &hidden, &answer, verdict)?
            }
        }
        Ok(true)
    }
}

/// An item as the log keeps it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Record {
    pub unix_ms: u64,
    pub item: Item,
    /// Versions that a span read, and from which token on.
    pub stamps: Vec<Stamp>,
    /// The keys of a correction.
    pub keys: Vec<Key>,
}

impl Record {
    pub(super) fn new(unix_ms: u64, item: Item) -> Record {
        Record { unix_ms, item, stamps: Vec::new(), keys: Vec::new() }
    }

    /// The oldest version that it was made from; none if it depends on none.
    pub(super) fn first_version(&self) -> Option<u64> {
        self.stamps.first().map(|stamp| stamp.version)
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut to = Writer::new();
        to.u8(FORMAT).u64(self.unix_ms);
        match &self.item {
            Item::Read { span, quality } => {
                write_span(to.u8(0).f32(*quality), span);
                to.count(self.stamps.len());
                self.stamps.iter().for_each(|stamp| _ = to.count(stamp.n_observed).u64(stamp.version));
            }
            Item::Corrected { names, answer, verdict } => {
                to.u8(1).u8(u8::from(*verdict == Correctness::Wrong));
                write_names(&mut to, names);
                to.u32s(answer).count(self.keys.first().map_or(0, |key| key.bytes.len()));
                self.keys.iter().for_each(|key| _ = to.i8s(&key.bytes).f32(key.scale));
            }
            Item::Rehearsed { n_max } => _ = to.u8(2).u64(*n_max as u64),
            Item::Configured(options) => write_options(to.u8(3), options),
            Item::Discarded { why, figures } => {
                to.u8(4).text(why);
                write_figures(&mut to, figures);
            }
            Item::Undone => _ = to.u8(5),
            Item::RolledBack { generation } => _ = to.u8(6).u64(*generation),
            Item::TookBack { item } => _ = to.u8(7).u64(*item),
            Item::Consolidated(Consolidate { rank, share, keep, newest, strength }) => {
                to.u8(8).count(*rank);
                [share, keep, newest, strength].into_iter().for_each(|x| _ = to.f32(*x));
            }
            Item::Adopted { digest, sources } => {
                to.u8(9).raw(digest).count(sources.len());
                sources.iter().for_each(|id| _ = to.u64(*id));
            }
            Item::Holdout { span } => write_span(to.u8(10), span),
        }
        to.take()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Record, SonaError> {
        let mut from = Reader::new(bytes, "learning log");
        let format = from.format(FORMAT_MIN..=FORMAT)?;
        let mut record = Record::new(from.u64()?, Item::Undone);
        record.item = match from.u8()? {
            0 => {
                let (quality, span) = (from.f32()?, read_span(&mut from, format)?);
                for _ in 0..from.count(12)? {
                    record.stamps.push(Stamp { n_observed: from.u32()? as usize, version: from.u64()? });
                }
                Item::Read { span, quality }
            }
            1 => {
                let verdict = if from.u8()? == 0 { Correctness::Right } else { Correctness::Wrong };
                let (names, answer) = (read_names(&mut from)?, from.u32s()?);
                let n_key = from.u32()? as usize;
                for _ in 0..answer.len() {
                    record.keys.push(Key { bytes: from.i8s(n_key)?, scale: from.f32()? });
                }
                Item::Corrected { names, answer, verdict }
            }
            2 => Item::Rehearsed { n_max: from.number(usize::MAX)? },
            3 => Item::Configured(read_options(&mut from)?),
            4 => Item::Discarded { why: from.text()?, figures: read_figures(&mut from)? },
            5 => Item::Undone,
            6 => Item::RolledBack { generation: from.u64()? },
            7 => Item::TookBack { item: from.u64()? },
            8 => {
                let rank = from.u32()? as usize;
                let (share, keep, newest, strength) = (from.f32()?, from.f32()?, from.f32()?, from.f32()?);
                Item::Consolidated(Consolidate { rank, share, keep, newest, strength })
            }
            9 => {
                let digest = from.array()?;
                Item::Adopted { digest, sources: (0..from.count(8)?).map(|_| from.u64()).collect::<Result<_, _>>()? }
            }
            10 => Item::Holdout { span: read_span(&mut from, format)? },
            kind => return Err(from.invalid(format_args!("there is no kind {kind}"))),
        };
        from.end()?;
        Ok(record)
    }
}

fn write_span(to: &mut Writer, span: &Span) {
    to.u32s(&span.tokens).count(span.n_read).count(span.n_remembered);
    to.count(span.n_step).u32s(&span.skipped).u8(u8::from(span.question.is_some()));
    span.question.iter().for_each(|names| write_names(to, names));
    to.u8(u8::from(span.is_approx));
}

fn read_span(from: &mut Reader<'_>, format: u8) -> Result<Span, SonaError> {
    let tokens = from.u32s()?;
    let (n_read, n_remembered) = (from.u32()? as usize, from.u32()? as usize);
    let (n_step, skipped) = (from.u32()? as usize, from.u32s()?);
    let question = if from.u8()? == 0 { None } else { Some(read_names(from)?) };
    let is_approx = format > FORMAT_MIN && from.u8()? != 0;
    let span = Span { tokens, n_read, n_remembered, question, n_step, skipped, is_approx };
    span.check()?;
    Ok(span)
}

fn write_names(to: &mut Writer, names: &Names) {
    to.count(names.values().len());
    names.values().for_each(|(word, kind)| _ = to.u64(word).u8(kind as u8));
}

fn read_names(from: &mut Reader<'_>) -> Result<Names, SonaError> {
    let n = from.count(9)?;
    let word = |from: &mut Reader<'_>| {
        let (word, kind) = (from.u64()?, usize::from(from.u8()?));
        let kind = Kind::ALL.get(kind).ok_or_else(|| from.invalid(format!("a word of kind {kind}")))?;
        Ok((word, *kind))
    };
    let words = (0..n).map(|_| word(from)).collect::<Result<_, SonaError>>()?;
    Names::from_values(words).ok_or_else(|| from.invalid("words in no order"))
}

pub(super) fn write_figures(to: &mut Writer, figures: &[(String, f64)]) {
    to.count(figures.len());
    figures.iter().for_each(|(name, value)| _ = to.text(name).f64(*value));
}

pub(super) fn read_figures(from: &mut Reader<'_>) -> Result<Vec<(String, f64)>, SonaError> {
    (0..from.count(12)?).map(|_| Ok((from.text()?, from.f64()?))).collect()
}

pub(super) fn write_options(to: &mut Writer, options: &LearnOptions) {
    to.f32(options.temperature).u8(u8::from(options.datastore.is_some()));
    let number = |to: &mut Writer, n: usize| _ = to.u64(n as u64);
    if let Some(DatastoreOptions { n_bytes_max, n_nearest, n_exact_max, n_candidates }) = options.datastore {
        [n_bytes_max, n_nearest, n_exact_max, n_candidates].into_iter().for_each(|n| number(to, n));
    }
    to.u8(u8::from(options.micro.is_some()));
    if let Some(MicroOptions { rank, rate, n_tokens, n_likeliest, is_centred }) = options.micro {
        [rank, n_tokens, n_likeliest].into_iter().for_each(|n| number(to, n));
        // Where a seed was once.
        to.f32(rate).u8(u8::from(is_centred)).u64(0);
    }
}

pub(super) fn read_options(from: &mut Reader<'_>) -> Result<LearnOptions, SonaError> {
    let temperature = from.f32()?;
    let number = |from: &mut Reader<'_>| from.number(usize::MAX);
    let datastore = match from.u8()? {
        0 => None,
        // The order of the fields is the order of the bytes.
        _ => Some(DatastoreOptions {
            n_bytes_max: number(from)?,
            n_nearest: number(from)?,
            n_exact_max: number(from)?,
            n_candidates: number(from)?,
        }),
    };
    let micro = match from.u8()? {
        0 => None,
        _ => {
            let (rank, n_tokens, n_likeliest) = (number(from)?, number(from)?, number(from)?);
            let (rate, is_centred, _) = (from.f32()?, from.u8()? == 1, from.u64()?);
            Some(MicroOptions { rank, rate, n_tokens, n_likeliest, is_centred })
        }
    };
    Ok(LearnOptions { datastore, micro, temperature })
}
