//! "Don't repeat yourself" (llama.cpp #9702, after oobabooga #5637): a token that would go on with a repetition costs the
//! more the longer the repetition is.
//!
//! ```text
//! context … a b c X … Y a b c │ ?   X would make "a b c" a repetition of four: it costs multiplier · base^(3 − allowed)
//! ```
//! Texts that end a repetition, like a line feed, are found as tokens that hold them or begin them.

use std::collections::HashMap;

use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};

use super::candidates::Candidates;
use super::params::SamplingParams;
use crate::EngineError;

/// The most recent tokens that are searched.
const LAST_N_MAX: usize = 1 << 20;
/// The most tokens of a breaker after its first.
const TAIL_MAX: usize = 20;
/// The natural logarithm of the largest `f32`, rounded down.
const LN_F32_MAX: f32 = 88.722_84;

/// Tokens that begin a breaker, each with what must follow to complete it: nothing where it holds all of it.
pub(super) type Breakers = HashMap<u32, Vec<Vec<u32>>, foldhash::fast::FixedState>;

/// Finds the tokens that hold or begin one of `texts`. Costs a look at the whole vocabulary.
///
/// # Errors
/// What follows cannot be encoded.
pub(super) fn breakers(tokenizer: &Tokenizer, texts: &[String]) -> Result<Breakers, EngineError> {
    let mut breakers = Breakers::default();
    for id in 0..tokenizer.vocab_len() as u32 {
        let Some(word) = tokenizer.token_bytes(id) else { continue };
        for text in texts {
            let bytes = text.as_bytes();
            if word.windows(bytes.len()).any(|part| part == bytes) {
                breakers.entry(id).or_default().push(Vec::new());
                continue;
            }
            // Ends of the word that begin the text; the shortest tail first. A tail is a text of its own.
            let begins = (1..bytes.len().min(word.len() + 1)).rev().filter(|&n| word.ends_with(&bytes[..n]));
            for n in begins.filter(|&n| text.is_char_boundary(n)) {
                let mut tail = tokenizer.encode(&text[n..], EncodeOptions::default())?;
                tail.truncate(TAIL_MAX);
                breakers.entry(id).or_default().push(tail);
            }
        }
    }
    Ok(breakers)
}

/// The tokens of one request and what repeating them costs.
#[derive(Clone)]
pub(super) struct Dry {
    multiplier: f32,
    base: f32,
    allowed: usize,
    last_n: usize,
    breakers: Breakers,
    /// The last tokens, the newest last; at least `last_n` of them if there were as many.
    history: Vec<u32>,
    /// How many tokens before each place, from the newest back, are those at the end.
    repeats: Vec<usize>,
    /// The longest repetition that a token would go on with.
    longest: HashMap<u32, usize, foldhash::fast::FixedState>,
}

impl Dry {
    /// `None` if it does nothing.
    pub(super) fn new(
        params: &SamplingParams,
        breakers: impl FnOnce() -> Result<Breakers, EngineError>,
    ) -> Result<Option<Dry>, EngineError> {
        let last_n = params.dry_penalty_last_n.min(LAST_N_MAX);
        if params.dry_multiplier == 0.0 || params.dry_base < 1.0 || last_n == 0 {
            return Ok(None);
        }
        Ok(Some(Dry {
            multiplier: params.dry_multiplier,
            base: params.dry_base,
            allowed: params.dry_allowed_length,
            last_n,
            breakers: breakers()?,
            history: Vec::new(),
            repeats: Vec::new(),
            longest: HashMap::default(),
        }))
    }

    /// Forgets all tokens.
    pub(super) fn clear(&mut self) {
        self.history.clear();
    }

    /// Takes over what a copy took note of.
    pub(super) fn follow(&mut self, other: &Dry) {
        self.history.clone_from(&other.history);
    }

    pub(super) fn accept(&mut self, id: u32) {
        if self.history.len() >= 2 * self.last_n {
            self.history.drain(..self.history.len() - self.last_n);
        }
        self.history.push(id);
    }

    /// Changes the logits of tokens that would go on with a repetition; `logits`: `[n_vocab]`.
    pub(super) fn apply_to_all(&mut self, logits: &mut [f32]) {
        self.search();
        for (&id, &n) in &self.longest {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit -= self.cost(n);
            }
        }
    }

    /// Changes the logits of those candidates that would go on with a repetition.
    pub(super) fn apply(&mut self, candidates: &mut Candidates) {
        self.search();
        candidates.change(|id, logit| match self.longest.get(&id) {
            Some(&n) => logit - self.cost(n),
            None => logit,
        });
    }

    fn cost(&self, n_repeated: usize) -> f32 {
        let power_max = if self.base > 1.000_001 { (LN_F32_MAX / self.base.ln()) as usize } else { usize::MAX };
        let power = (n_repeated - self.allowed).min(power_max).min(1 << 20);
        self.multiplier * self.base.powi(power as i32)
    }

    /// Finds the tokens that would go on with a repetition.
    fn search(&mut self) {
        self.longest.clear();
        let recent = &self.history[self.history.len().saturating_sub(self.last_n)..];
        if recent.len() <= self.allowed {
            return;
        }
        let limit = since_breaker(recent, &self.breakers);
        if limit < self.allowed {
            return;
        }
        count_repeats(recent, &mut self.repeats);
        // What stands `back` tokens from the end was followed by the token behind it.
        for back in 1..recent.len() {
            let n = self.repeats[back].min(limit);
            let next = recent[recent.len() - back];
            if n >= self.allowed && !self.breakers.get(&next).is_some_and(|tails| tails.iter().any(Vec::is_empty)) {
                let longest = self.longest.entry(next).or_default();
                *longest = n.max(*longest);
            }
        }
    }
}

/// Returns how many tokens there are since the last breaker.
fn since_breaker(recent: &[u32], breakers: &Breakers) -> usize {
    let n = recent.len();
    let ended = (0..n).find_map(|back| {
        let tails = breakers.get(&recent[n - 1 - back])?;
        let follows = |tail: &&Vec<u32>| recent[n - back..].starts_with(tail);
        tails.iter().filter(follows).map(|tail| back - tail.len()).min()
    });
    ended.unwrap_or(n)
}

/// Counts for each place, going back from the newest token, how many tokens up to it are those up to the newest one: the
/// Z function of the reversed tokens. Linear in their number.
fn count_repeats(recent: &[u32], repeats: &mut Vec<usize>) {
    let n = recent.len();
    let at = |back: usize| recent[n - 1 - back];
    repeats.clear();
    repeats.resize(n, 0);
    // The match that reaches furthest back: it begins at `start` and ends before `end`.
    let (mut start, mut end) = (0, 0);
    for place in 1..n {
        let mut len = if place < end { repeats[place - start].min(end - place) } else { 0 };
        while place + len < n && at(len) == at(place + len) {
            len += 1;
        }
        if place + len > end {
            (start, end) = (place, place + len);
        }
        repeats[place] = len;
    }
}
