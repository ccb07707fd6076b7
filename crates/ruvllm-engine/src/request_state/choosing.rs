//! The choice of an answer's next token: by the sampler, a grammar, and what is looked at as values close.

use std::sync::Arc;

use ruvllm_text::StopFilter;
use ruvllm_text::thoughts::Gate;
use ruvllm_text::tokenizer::DecodeStream;

use super::RequestState;
use crate::request::TokenEvent;
use crate::sampler::{Chosen, TokenLogprobs};
use crate::{Constraint, EngineError};

/// The part of an answer that a chosen token belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accepted {
    /// Part of what the model thinks.
    Thought,
    /// Part of the answer.
    Answer,
    /// Neither: a value that closes with it does not fit.
    No,
}

impl RequestState {
    /// Chooses the next token by its logits, and takes it over with those behind it that are forced.
    pub(super) fn choose_one(
        &mut self,
        logits: &mut [f32],
        tell: &mut dyn FnMut(TokenEvent),
    ) -> Result<(), EngineError> {
        self.choose_among(logits, tell)?;
        // Log-probabilities need the logits of each.
        while self.request.logprobs.is_none() && self.finish.is_none() {
            let Some(id) = self.forced() else { break };
            match self.accept(id)? {
                Accepted::No => break,
                part => self.hold_or_tell(part, id, None, tell),
            }
        }
        if self.finish.is_some() {
            self.held.drain(..).for_each(tell);
        }
        Ok(())
    }

    /// Returns whether the next token is one of the thought.
    pub(super) fn is_thinking(&self) -> bool {
        self.gate.as_ref().is_some_and(Gate::is_within)
    }

    /// Returns whether it has as many tokens as it must have.
    pub(super) fn may_end(&self) -> bool {
        self.n_tokens() >= self.request.min_tokens
    }

    /// Returns the token that must come next, if there is only one.
    fn forced(&self) -> Option<u32> {
        match &self.gate {
            Some(gate) if gate.is_within() => gate.forced(),
            // The model may think first.
            Some(gate) if gate.opening().is_some() => None,
            _ => self.constraint.as_ref()?.forced(),
        }
    }

    /// Returns whether values of the answer are looked at as they close.
    fn is_watched(&self) -> bool {
        self.constraint.as_ref().is_some_and(Constraint::is_watched)
    }

    /// Chooses a token. Where values are looked at as they close, one that closes what is not valid is ruled out, and another
    /// is chosen, or tokens are taken back.
    fn choose_among(&mut self, logits: &mut [f32], tell: &mut dyn FnMut(TokenEvent)) -> Result<(), EngineError> {
        let is_watched = self.is_watched() && !self.is_thinking();
        let given = if is_watched { logits.to_vec() } else { Vec::new() };
        loop {
            if let (Some(constraint), true) = (&mut self.constraint, is_watched) {
                if constraint.forced().is_none() {
                    constraint.compute_mask()?;
                }
                let n_back = constraint.rewind()?;
                if n_back > 0 {
                    return self.take_back(n_back);
                }
                logits.copy_from_slice(&given);
            }
            let Chosen { id, logprobs } = self.sample(logits)?;
            match self.accept(id)? {
                Accepted::No => {}
                part => {
                    self.hold_or_tell(part, id, logprobs, tell);
                    return Ok(());
                }
            }
        }
    }

    /// Makes a token part of the answer. It is told when it is certain: the parts of an answer that may be taken back are
    /// not.
    fn hold_or_tell(
        &mut self,
        part: Accepted,
        id: u32,
        logprobs: Option<TokenLogprobs>,
        tell: &mut dyn FnMut(TokenEvent),
    ) {
        let event = self.take_over(id, logprobs);
        if part == Accepted::Thought {
            self.n_settled = self.text.len();
        }
        match part == Accepted::Answer && self.is_watched() {
            true => self.held.push(event),
            false => tell(event),
        }
    }

    /// Takes tokens of the answer back, none of which was told.
    fn take_back(&mut self, n: usize) -> Result<(), EngineError> {
        self.context.truncate(self.context.len() - n);
        self.logprobs.truncate(self.logprobs.len().saturating_sub(n));
        self.held.truncate(self.held.len().saturating_sub(n));
        self.decoder = DecodeStream::continuing(Arc::clone(&self.tokenizer));
        self.stop = StopFilter::new(&self.request.stop);
        self.text.truncate(self.n_settled);
        self.sampler.restart(&self.context);
        let mut held = std::mem::take(&mut self.held);
        for event in &mut held {
            event.text = self.take(event.id);
        }
        self.held = held;
        Ok(())
    }

    fn sample(&mut self, logits: &mut [f32]) -> Result<Chosen, EngineError> {
        // No draw for what is forced, so that it is the same whether the model was asked or not.
        if let Some(id) = self.forced() {
            return Ok(self.sampler.forced(logits, id));
        }
        let (is_thinking, n_vocab) = (self.is_thinking(), logits.len());
        // Behind a thought an answer is to come, where one must have a form.
        let may_end = self.may_end() && !(is_thinking && self.constraint.is_some());
        let Some(constraint) = self.constraint.as_mut().filter(|_| !is_thinking) else {
            let ends = self.tokenizer.end_of_generation().chain(self.request.stop_tokens.iter().copied());
            let ends = ends.map(|id| id as usize).filter(|&id| id < n_vocab && !may_end);
            return self.sampler.sample(logits, |logits| ends.for_each(|id| logits[id] = f32::NEG_INFINITY));
        };
        constraint.compute_mask()?;
        let opening = self.gate.as_ref().and_then(Gate::opening).map(|id| id as usize);
        self.sampler.sample(logits, |logits| {
            let opening = opening.and_then(|id| Some((id, *logits.get(id)?)));
            constraint.apply_mask(logits);
            opening.iter().for_each(|&(id, logit)| logits[id] = logit);
        })
    }

    /// Takes note of a token that was chosen.
    fn accept(&mut self, id: u32) -> Result<Accepted, EngineError> {
        if self.gate.as_mut().is_some_and(|gate| gate.accept(id)) {
            return Ok(Accepted::Thought);
        }
        let fits = self.constraint.as_mut().map_or(Ok(true), |constraint| constraint.try_accept(id))?;
        Ok(if fits { Accepted::Answer } else { Accepted::No })
    }

    /// Makes a token part of the answer.
    fn take_over(&mut self, id: u32, logprobs: Option<TokenLogprobs>) -> TokenEvent {
        self.sampler.accept(id);
        self.hook.iter_mut().for_each(|hook| hook.accept(id));
        self.logprobs.extend(logprobs.clone());
        self.context.push(id);
        self.clock.last_token = self.clock.start.elapsed();
        if self.context.len() == self.n_prompt + 1 {
            self.clock.first_token = self.clock.last_token;
        }
        TokenEvent { id, text: self.take(id), logprobs }
    }
}
