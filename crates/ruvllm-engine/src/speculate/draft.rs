//! Draft tokens of a draft model: a smaller one of the same vocabulary writes on, and the model judges all of it in one pass.
//!
//! The draft's logits go through a copy of the request's own sampler: with its penalties, its temperature and *its next
//! random numbers*, one for each token (`sampler::draw`). So a draft that thinks like the model draws what the model will
//! draw, and the answer is still the one it would be without (Daliri 2024, arXiv:2408.07978). Rejection sampling (Leviathan
//! 2023, arXiv:2211.17192) keeps a little more, and gives the same distribution but other tokens than the seed alone does.
//!
//! All requests of a batch that want draft tokens are drafted together, one pass a token.

use super::draft_length::DraftLength;
use super::tree::Branch;
use crate::request_state::RequestState;
use crate::runner::ModelRunner;
use crate::sampler::{Sampler, argmax};
use ruvllm_backend::{LogitRows, Segment, SeqId};

/// Tokens of the context that the draft model reads in one step before it drafts: more wait for the next steps.
const CATCH_UP_TOKENS: usize = 256;

/// Facts of the draft model that a request needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftInfo {
    /// Cost of one of its passes, as a share of one of the model's: the weight bytes they read.
    pub pass_cost: f32,
    /// Its context in tokens.
    pub n_ctx: usize,
    /// Tokens that are tried in the place of the first draft token: 1 is the draft token alone.
    pub n_branches: usize,
}

/// One request's part in the draft model.
pub(crate) struct Drafter {
    info: DraftInfo,
    draft_length: DraftLength,
    /// Its sequence there, once it drafted.
    seq: Option<SeqId>,
    /// Leading tokens of that sequence that are known to be the context's.
    n_matched: usize,
    /// A copy of the request's own.
    sampler: Sampler,
    /// Logits over the model's vocabulary, where the draft model has fewer or more: `[n_vocab]`.
    row: Vec<f32>,
    /// Draft tokens that are still to come in this step.
    n_left: usize,
    branches: Vec<Branch>,
}

/// Tokens that a draft follows, and the tenant that they are computed for.
#[derive(Clone, Copy)]
pub(crate) struct DraftContext<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) tenant: u64,
}

impl Drafter {
    pub(crate) fn new(info: DraftInfo, sampler: &Sampler) -> Drafter {
        let (draft_length, sampler) = (DraftLength::new(info.pass_cost), sampler.copy());
        Drafter {
            info,
            draft_length,
            seq: None,
            n_matched: 0,
            sampler,
            row: Vec::new(),
            n_left: 0,
            branches: Vec::new(),
        }
    }

    /// Begins a step with up to `n_max` draft tokens behind `context`, and returns whether there are any to come.
    pub(super) fn begin(
        &mut self,
        draft: &mut ModelRunner,
        DraftContext { tokens: context, tenant }: DraftContext<'_>,
        sampler: &Sampler,
        n_max: usize,
    ) -> bool {
        self.branches.clear();
        let fits = context.len() + n_max < self.info.n_ctx;
        self.n_left = if n_max > 0 && fits { self.draft_length.n_ahead().min(n_max) } else { 0 };
        if self.n_left == 0 {
            return false;
        }
        let seq = match self.seq {
            Some(seq) => {
                let n_matched = self.n_matched.min(draft.n_tokens(seq));
                draft.rewind(seq, n_matched).map(|()| seq)
            }
            None => draft.open(Some(context), &tenant.into()).map(|(seq, _)| seq),
        };
        match seq {
            Ok(seq) => (self.seq, self.n_matched) = (Some(seq), context.len()),
            Err(_) => self.close(draft),
        }
        self.sampler.follow(sampler);
        self.seq.is_some()
    }

    /// Returns the tokens that it computes next.
    pub(super) fn segment<'a>(&self, draft: &ModelRunner, context: &'a [u32]) -> Option<Segment<'a>> {
        let seq = self.seq?;
        let rest = &context[draft.n_tokens(seq)..];
        Some(match rest.len() > CATCH_UP_TOKENS {
            true => Segment { seq, tokens: &rest[..CATCH_UP_TOKENS], logits: LogitRows::None },
            false => Segment { seq, tokens: rest, logits: LogitRows::Last },
        })
    }

    /// Returns the next draft token; `logits` are the draft model's.
    pub(crate) fn choose(
        &mut self,
        logits: &[f32],
        n_vocab: usize,
        mask: impl FnOnce(&mut [f32]),
        is_first: bool,
    ) -> Option<u32> {
        self.row.clear();
        self.row.extend_from_slice(&logits[..logits.len().min(n_vocab)]);
        self.row.resize(n_vocab, f32::NEG_INFINITY);
        let id = self.sampler.sample(&mut self.row, mask).ok()?.id;
        self.sampler.accept(id);
        self.n_left -= 1;
        if is_first {
            self.row[id as usize] = f32::NEG_INFINITY;
            for _ in 1..self.info.n_branches {
                let Some(other) = argmax(&self.row) else { break };
                self.row[other as usize] = f32::NEG_INFINITY;
                self.branches.push(Branch { at: 0, tokens: vec![other] });
            }
        }
        Some(id)
    }

    /// Returns whether it has more draft tokens to make in this step.
    pub(crate) fn goes_on(&self) -> bool {
        self.n_left > 0
    }

    /// Takes out the other ways that it sees.
    pub(crate) fn take_branches(&mut self) -> Vec<Branch> {
        std::mem::take(&mut self.branches)
    }

    /// Takes note of what became of its draft tokens: the first `n_kept` tokens of the context are known.
    pub(super) fn learn(&mut self, n_drafted: usize, n_accepted: usize, n_kept: usize) {
        self.draft_length.learn(n_drafted, n_accepted);
        self.n_matched = n_kept;
    }

    /// Gives its sequence back.
    pub(crate) fn close(&mut self, draft: &mut ModelRunner) {
        if let Some(seq) = self.seq.take() {
            // What it drafted last is nobody's prefix.
            let n_matched = self.n_matched.min(draft.n_tokens(seq));
            match draft.rewind(seq, n_matched) {
                Ok(()) => draft.close(seq),
                Err(_) => draft.discard(seq),
            }
        }
    }
}

/// Drafts for each of `answers`, up to so many tokens: by the text so far and earlier ones, and where those know nothing by the
/// draft model, if it may.
pub(crate) fn propose(runner: &mut ModelRunner, answers: &mut [(&mut RequestState, usize)]) {
    answers.iter_mut().for_each(|(answer, n_max)| answer.propose(runner.history(), *n_max));
    if let Some(draft) = runner.draft() {
        write_on(draft, answers);
    }
    answers.iter_mut().for_each(|(answer, _)| answer.check_draft());
}

/// Lets the draft model draft where there is nothing yet.
fn write_on(draft: &mut ModelRunner, answers: &mut [(&mut RequestState, usize)]) {
    let mut writing: Vec<&mut RequestState> = Vec::new();
    for (answer, n_max) in answers {
        if answer.begin_draft(draft, *n_max) {
            writing.push(answer);
        }
    }
    while !writing.is_empty() {
        let segments: Vec<Segment<'_>> = writing.iter().filter_map(|answer| answer.draft_segment(draft)).collect();
        let reads_on: Vec<bool> = segments.iter().map(|segment| segment.logits == LogitRows::None).collect();
        let n_row = draft.info().n_vocab;
        let Ok(logits) = draft.forward(&segments) else {
            // Its memory is full; the answers go on without it.
            writing.iter_mut().filter_map(|answer| answer.drafter()).for_each(|drafter| drafter.close(draft));
            return;
        };
        let (mut rows, mut reads_on) = (logits.chunks_exact(n_row), reads_on.into_iter());
        writing.retain_mut(|answer| match reads_on.next() {
            Some(false) => rows.next().is_some_and(|row| answer.draft_one(row)),
            _ => false,
        });
    }
}
