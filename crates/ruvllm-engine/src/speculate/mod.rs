//! Speculation: drafting the next tokens and computing them all in one pass.
//!
//! ```text
//! context … the cat sat on the │ draft: mat .        one pass computes rows for: the, mat, .
//! logits after "the" choose "mat": right, so the row of "mat" counts, and its logits choose the next one, and so on
//! ```
//! A pass of a few rows costs little more than one of a single row: both read all weights. Each token is chosen by the
//! request's own sampler from the logits of its own row, which do not depend on the other rows; so the answer is the one
//! it would be without drafting, greedy or drawn. Rows behind the first rejected token are taken back.
//!
//! Draft tokens come from the text so far ([`ngram`]): what followed the last tokens when they stood there before; from what
//! the tenant was served earlier ([`history`]), where that matches longer; and where both know nothing from a smaller model, if
//! there is one ([`draft`]). [`draft_length`] says how many, for each of them by what they brought, and stops where they are
//! not worth it. [`tree`] holds what was drafted: a chain, and ways that leave it.

pub(crate) mod draft;
mod draft_length;
mod history;
mod ngram;
pub(crate) mod tree;

use std::str::FromStr;

use crate::runner::ModelRunner;
use crate::sampler::Sampler;
pub use draft::DraftInfo;
pub(crate) use draft::{DraftContext, Drafter};
use draft_length::DraftLength;
pub(crate) use history::History;
pub use history::HistoryKeeper;
use history::n_common_last;
use ngram::Index;
use ruvllm_backend::Segment;

/// Source of draft tokens. It changes how fast an answer is, never what it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculation {
    /// One token a pass.
    Off,
    /// What followed the same tokens earlier in the prompt and the answer, or in earlier ones of the tenant; by itself as long as
    /// it pays.
    Ngram,
    /// The draft model, if there is one; by itself as long as it pays.
    Draft,
    /// Both: the draft model where the text so far says nothing.
    #[default]
    Auto,
}

impl FromStr for Speculation {
    type Err = String;

    fn from_str(name: &str) -> Result<Speculation, String> {
        match name {
            "off" => Ok(Speculation::Off),
            "ngram" => Ok(Speculation::Ngram),
            "draft" => Ok(Speculation::Draft),
            "auto" => Ok(Speculation::Auto),
            _ => Err(format!("'{name}' is no way to guess; use auto, ngram, draft or off")),
        }
    }
}

/// Draft tokens of one source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCount {
    /// Tokens that were drafted.
    pub draft_tokens: usize,
    /// Tokens of them that the model accepted.
    pub accepted_tokens: usize,
}

/// Draft tokens by where they came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftSources {
    /// From the request's own prompt and answer.
    pub context: DraftCount,
    /// From earlier prompts and answers of the tenant.
    pub history: DraftCount,
    /// From the draft model.
    pub model: DraftCount,
}

impl DraftSources {
    /// Returns the counts by the name of their source, as JSON and metrics have it.
    pub fn by_name(&self) -> [(&'static str, DraftCount); 3] {
        [("context", self.context), ("history", self.history), ("model", self.model)]
    }

    /// Returns the counts of all sources together.
    pub fn total(&self) -> DraftCount {
        self.by_name().iter().fold(DraftCount::default(), |sum, (_, count)| DraftCount {
            draft_tokens: sum.draft_tokens + count.draft_tokens,
            accepted_tokens: sum.accepted_tokens + count.accepted_tokens,
        })
    }
}

/// Where the draft tokens at hand are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The text so far.
    Context,
    /// Earlier texts of the tenant.
    History,
    /// The draft model.
    Model,
}

/// Drafts from texts: the request's own and earlier ones.
struct TextDrafts {
    index: Index,
    /// Lengths of drafts from the context and from the history.
    of_context: DraftLength,
    of_history: DraftLength,
}

/// The draft tokens of one request.
pub(crate) struct Speculator {
    texts: Option<TextDrafts>,
    draft: Option<Drafter>,
    source: Source,
    counts: DraftSources,
    /// The most tokens that the backend takes back at once.
    n_rewind_max: usize,
}

impl Speculator {
    /// `None` if nothing is drafted; `sampler` is the request's.
    pub(crate) fn new(how: Speculation, runner: &ModelRunner, sampler: &Sampler) -> Option<Speculator> {
        let n_rewind_max = runner.info().n_rewind_max;
        if n_rewind_max == 0 {
            return None;
        }
        let ngram = matches!(how, Speculation::Ngram | Speculation::Auto);
        let draft = runner.draft_info().filter(|_| matches!(how, Speculation::Draft | Speculation::Auto));
        let texts = ngram.then(|| TextDrafts {
            index: Index::default(),
            of_context: DraftLength::new(0.0),
            of_history: DraftLength::new(0.0),
        });
        let draft = draft.map(|info| Drafter::new(info, sampler));
        let (source, counts) = (Source::Context, DraftSources::default());
        (texts.is_some() || draft.is_some()).then_some(Speculator { texts, draft, source, counts, n_rewind_max })
    }

    /// Appends up to `n_max` draft tokens to `context`, which begins with what it began with the last time: by the text so far,
    /// or by the tenant's history where that matches longer.
    pub(crate) fn propose(&mut self, history: &History, tenant: u64, context: &mut Vec<u32>, n_max: usize) {
        self.source = Source::Context;
        let n_max = n_max.min(self.n_rewind_max);
        let Some(TextDrafts { index, of_context, of_history }) = self.texts.as_mut().filter(|_| n_max > 0) else {
            return;
        };
        // A source that rests is not looked at, and rests a pass less.
        let [n_context, n_history] = [of_context, of_history].map(|length| length.n_ahead().min(n_max));
        let mut place = None;
        if n_context > 0 {
            index.extend(context);
            place = index.find(context);
        }
        let n_matched = place.map_or(0, |place| n_common_last(&context[..place], context));
        let found = if n_history > 0 { history.find(tenant, context) } else { None };
        if let Some(found) = found.filter(|found| found.len > n_matched) {
            self.source = Source::History;
            found.continue_with(context, n_history);
        } else if let Some(place) = place {
            ngram::continue_with(context, place, n_context);
        }
    }

    /// Returns whether texts are drafted by.
    pub(crate) fn reads_texts(&self) -> bool {
        self.texts.is_some()
    }

    /// Returns the draft model's part, if there is one.
    pub(crate) fn drafter(&mut self) -> Option<&mut Drafter> {
        self.draft.as_mut()
    }

    /// Lets the draft model begin, and returns whether there are draft tokens to come: up to `n_max` after `context`.
    pub(crate) fn begin_draft(
        &mut self,
        draft: &mut ModelRunner,
        context: DraftContext<'_>,
        sampler: &Sampler,
        n_max: usize,
    ) -> bool {
        let n_max = n_max.min(self.n_rewind_max);
        let begins = self.draft.as_mut().is_some_and(|drafter| drafter.begin(draft, context, sampler, n_max));
        if begins {
            self.source = Source::Model;
        }
        begins
    }

    /// Returns the tokens that the draft model computes next, if it began.
    pub(crate) fn draft_segment<'a>(&self, draft: &ModelRunner, context: &'a [u32]) -> Option<Segment<'a>> {
        self.draft.as_ref().and_then(|drafter| drafter.segment(draft, context))
    }

    /// Returns how many draft tokens there were so far, by source.
    pub(crate) fn counts(&self) -> DraftSources {
        self.counts
    }

    /// Takes note of what became of draft tokens: `n_kept` tokens of the context are right, and `n_branched` tokens were tried
    /// beside the chain.
    pub(crate) fn learn(&mut self, n_drafted: usize, n_branched: usize, n_accepted: usize, n_kept: usize) {
        let count = match self.source {
            Source::Context => &mut self.counts.context,
            Source::History => &mut self.counts.history,
            Source::Model => &mut self.counts.model,
        };
        count.draft_tokens += n_drafted + n_branched;
        count.accepted_tokens += n_accepted;
        match (self.source, &mut self.texts, &mut self.draft) {
            (Source::Model, _, Some(draft)) => draft.learn(n_drafted, n_accepted, n_kept),
            (Source::History, Some(texts), _) => texts.of_history.learn(n_drafted, n_accepted),
            (Source::Context, Some(texts), _) => texts.of_context.learn(n_drafted, n_accepted),
            _ => {}
        }
    }
}
