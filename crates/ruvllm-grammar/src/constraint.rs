//! A grammar on its way through one answer: masks over tokens, tokens that must come, tokens that are taken back.

use std::fmt;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, PoisonError};

use llguidance::Matcher;
use ruvllm_text::tokenizer::Tokenizer;
use toktrie::SimpleVob;

use crate::ahead::{Computed, MaskThread};
use crate::error::refused;
use crate::watch::Watch;
use crate::{Grammar, GrammarError};

/// A grammar on its way through one answer. Requests have one inside; it is for callers who drive sequences themselves.
pub struct Constraint {
    /// `None` while its mask is computed elsewhere.
    matcher: Option<Box<Matcher>>,
    /// From where it comes back then.
    away: Option<Receiver<Computed>>,
    masks: Option<Arc<MaskThread>>,
    pub(crate) mask: Option<SimpleVob>,
    /// The tokens that must come next, the last first.
    forced: Vec<u32>,
    /// What looks at values as they close, if a grammar cannot say all.
    watch: Option<Box<Watch>>,
    tokenizer: Arc<Tokenizer>,
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint").field("forced", &self.forced).finish_non_exhaustive()
    }
}

impl Constraint {
    pub(crate) fn new(grammar: &Grammar) -> Constraint {
        let matcher = grammar.matcher.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        let masks = grammar.masks.clone();
        let mut constraint = Constraint {
            matcher: Some(Box::new(matcher)),
            away: None,
            masks,
            mask: None,
            forced: Vec::new(),
            watch: grammar.judge.clone().map(|judge| Box::new(Watch::new(judge))),
            tokenizer: Arc::clone(&grammar.tokenizer),
        };
        constraint.look_ahead();
        constraint
    }

    /// Returns the matcher; waits for it if its mask is computed elsewhere.
    fn matcher(&mut self) -> Result<&mut Matcher, GrammarError> {
        if let Some(away) = self.away.take() {
            let (matcher, mask) = away.recv().map_err(|_| refused("the thread that computes masks failed"))?;
            self.matcher = Some(matcher);
            self.mask = Some(mask.map_err(|error| refused(&error))?);
        }
        self.matcher.as_deref_mut().ok_or_else(|| refused("the thread that computes masks failed"))
    }

    /// Begins to find out which tokens may come next, on another core if there is one: [`Constraint::compute_mask`] has it
    /// then. To be called before the model runs.
    pub fn begin_mask(&mut self) {
        let (true, true, Some(masks)) = (self.forced.is_empty(), self.mask.is_none(), &self.masks) else { return };
        match self.matcher.take().map(|matcher| masks.begin(matcher)) {
            Some(Ok(away)) => self.away = Some(away),
            Some(Err(matcher)) => self.matcher = Some(matcher),
            None => {}
        }
    }

    /// Returns the token that must come next, if there is only one.
    pub fn forced(&self) -> Option<u32> {
        self.forced.last().copied()
    }

    /// Returns whether values are looked at as they close: tokens that were taken may be taken back then, and none of the
    /// answer is certain before its end.
    pub fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    /// Finds out which tokens may come next.
    ///
    /// # Errors
    /// [`crate::GrammarErrorKind::Invalid`]: it costs more than it may.
    pub fn compute_mask(&mut self) -> Result<(), GrammarError> {
        self.matcher()?;
        if self.mask.is_none() {
            let mask = self.matcher()?.compute_mask().map_err(|error| refused(&error.to_string()))?;
            self.mask = Some(mask);
        }
        self.rule_out();
        Ok(())
    }

    /// Takes what the watch rules out of the mask.
    fn rule_out(&mut self) {
        let (Some(watch), Some(mask)) = (&self.watch, &mut self.mask) else { return };
        watch.ruled_out().iter().for_each(|&id| mask.disallow_token(id));
        let n_vocab = mask.len();
        let ends = || self.tokenizer.end_of_generation().filter(|&id| (id as usize) < n_vocab);
        if ends().any(|id| mask.is_allowed(id)) && !watch.is_right() {
            ends().for_each(|id| mask.disallow_token(id));
        }
    }

    /// Sets the logits of those that may not come to -∞; `logits`: `[n_vocab]`.
    pub fn apply_mask(&self, logits: &mut [f32]) {
        let Some(mask) = &self.mask else { return };
        for (logits, &bits) in logits.chunks_mut(32).zip(mask.as_slice()) {
            match bits {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                bits => {
                    let ruled_out = logits.iter_mut().enumerate().filter(|(i, _)| bits >> i & 1 == 0);
                    ruled_out.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
                }
            }
        }
    }

    /// Takes note of the next token.
    ///
    /// # Errors
    /// [`crate::GrammarErrorKind::Invalid`]: the token is none that may come, or looking at it costs more than it may.
    pub fn accept(&mut self, id: u32) -> Result<(), GrammarError> {
        match self.try_accept(id)? {
            true => Ok(()),
            false => Err(refused("a value that closes with the token does not fit the schema")),
        }
    }

    /// Takes note of the next token, or rules it out, if a value that is not valid closes with it; another is to be chosen
    /// then, by [`Constraint::compute_mask`].
    ///
    /// # Errors
    /// As [`Constraint::accept`].
    pub fn try_accept(&mut self, id: u32) -> Result<bool, GrammarError> {
        self.matcher()?;
        if let Some(watch) = &mut self.watch {
            let is_right = match self.tokenizer.is_end_of_generation(id) {
                true => watch.is_right(),
                false => watch.take(id, &self.tokenizer.token_bytes(id).unwrap_or_default()),
            };
            if !is_right {
                if self.tokenizer.is_end_of_generation(id) {
                    watch.rule_out(id);
                }
                self.forced.clear();
                return Ok(false);
            }
        }
        let consumed = self.matcher()?.consume_token(id);
        self.mask = None;
        consumed.map_err(|error| refused(&error.to_string()))?;
        // A number at the top may end without a mark.
        if self.is_complete()
            && !self.tokenizer.is_end_of_generation(id)
            && self.watch.as_mut().is_some_and(|watch| watch.give_up_last())
        {
            self.forced.clear();
            self.matcher()?.rollback(1).map_err(|error| refused(&error.to_string()))?;
            return Ok(false);
        }
        if self.forced.last() == Some(&id) {
            self.forced.pop();
        } else {
            self.forced.clear();
        }
        if self.forced.is_empty() {
            self.look_ahead();
        }
        Ok(true)
    }

    /// Goes back, if no token may come or what is written closes in no way that was tried. Returns how many tokens are taken
    /// back; the mask is that behind the others then. To be asked after [`Constraint::compute_mask`].
    ///
    /// # Errors
    /// [`crate::GrammarErrorKind::Invalid`]: it was gone back as often as may be.
    pub fn rewind(&mut self) -> Result<usize, GrammarError> {
        let Some(watch) = &mut self.watch else { return Ok(0) };
        let is_stuck = self.forced.is_empty() && self.mask.as_ref().is_some_and(SimpleVob::is_zero);
        if !watch.must_rewind(is_stuck)? {
            return Ok(0);
        }
        let n_back = watch.rewind()?;
        self.mask = None;
        self.forced.clear();
        let rolled_back = self.matcher()?.rollback(n_back);
        rolled_back.map_err(|error| refused(&error.to_string()))?;
        Ok(n_back)
    }

    /// Returns how many of `ids` may follow, one after the other.
    pub fn n_allowed(&mut self, ids: &[u32]) -> usize {
        // What is looked at is not guessed.
        if self.is_watched() {
            return 0;
        }
        self.matcher().ok().and_then(|matcher| matcher.validate_tokens(ids).ok()).unwrap_or(0)
    }

    /// Returns whether the answer may end here.
    pub fn is_valid(&mut self) -> bool {
        let is_accepting = self.matcher().is_ok_and(|matcher| matcher.is_accepting().unwrap_or(false));
        is_accepting && self.watch.as_ref().is_none_or(|watch| watch.is_right())
    }

    /// Returns whether the answer is complete: valid, and nothing can follow.
    pub fn is_complete(&mut self) -> bool {
        self.matcher().is_ok_and(|matcher| matcher.is_stopped() && !matcher.is_error())
    }

    fn look_ahead(&mut self) {
        if let Some(matcher) = self.matcher.as_deref_mut().filter(|matcher| !matcher.is_stopped()) {
            self.forced = matcher.compute_ff_tokens();
            self.forced.reverse();
        }
    }
}
