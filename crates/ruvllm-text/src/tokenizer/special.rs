//! Cutting special tokens out of a text.
//!
//! llama.cpp looks for the longest token first, through the whole text, then for the next longest in what is left. That
//! is not leftmost-first (`<a<bb>>` with tokens `<a<` and `<bb>` gives `<a`, `<bb>`, `>`), so one pass of an automaton
//! only says which tokens occur at all; those few then cut the text in that order.

use std::collections::BTreeSet;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use super::vocab::{Attr, SPECIAL, Vocab};
use crate::error::TextError;

/// Tokens that are read as such only where a text may write them.
const HIDDEN: Attr = Attr::CONTROL.with(Attr::UNKNOWN);

/// A piece of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fragment<'t> {
    /// Text for the tokenizer proper.
    Text(&'t str),
    /// A special token.
    Token(u32),
}

/// Finds special tokens.
pub(super) struct SpecialTokens {
    /// Longest text first, then by id.
    ids: Vec<u32>,
    finder: Option<AhoCorasick>,
    /// Whether each of `ids` is a control token.
    is_hidden: Vec<bool>,
    /// Control tokens as positions in `ids`, which are read as such only where a text may write them.
    hidden: Vec<usize>,
    /// Their texts backwards, in order; the texts themselves are in order in `hidden`.
    backwards: Vec<String>,
    firsts: Vec<char>,
    lasts: Vec<char>,
    max_bytes: usize,
}

/// A control token in a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found<'v> {
    /// Byte at which it begins.
    pub(crate) at: usize,
    pub(crate) text: &'v str,
}

/// The control tokens of a vocabulary by their spellings.
pub(crate) struct Control<'v> {
    tokens: &'v SpecialTokens,
    vocab: &'v Vocab,
}

impl<'v> Control<'v> {
    /// Returns whether one begins like this.
    pub(crate) fn has_beginning(&self, part: &str) -> bool {
        let text = |i: &usize| self.vocab.text(self.tokens.ids[*i]);
        let at = self.tokens.hidden.partition_point(|i| text(i) < part);
        self.tokens.hidden.get(at).is_some_and(|i| text(i).starts_with(part))
    }

    /// Returns whether one ends like this.
    pub(crate) fn has_end(&self, part: &str) -> bool {
        let part: String = part.chars().rev().collect();
        let at = self.tokens.backwards.partition_point(|text| *text < part);
        self.tokens.backwards.get(at).is_some_and(|text| text.starts_with(&part))
    }

    /// Iterates over the spellings, in order.
    #[cfg(test)]
    pub(crate) fn texts(&self) -> impl Iterator<Item = &'v str> + use<'v> {
        let (tokens, vocab) = (self.tokens, self.vocab);
        tokens.hidden.iter().map(|&i| vocab.text(tokens.ids[i]))
    }

    /// Returns the characters that begin one.
    pub(crate) fn firsts(&self) -> &'v [char] {
        &self.tokens.firsts
    }

    /// Returns the characters that end one.
    pub(crate) fn lasts(&self) -> &'v [char] {
        &self.tokens.lasts
    }

    /// Returns the bytes of the longest one.
    pub(crate) fn max_bytes(&self) -> usize {
        self.tokens.max_bytes
    }

    /// Returns all of them in a text, those within others too.
    pub(crate) fn find(&self, text: &str) -> Vec<Found<'v>> {
        let Some(finder) = &self.tokens.finder else { return Vec::new() };
        let found =
            finder.find_overlapping_iter(text).filter(|found| self.tokens.is_hidden[found.pattern().as_usize()]);
        let token = |i: usize| self.vocab.text(self.tokens.ids[i]);
        found.map(|found| Found { at: found.start(), text: token(found.pattern().as_usize()) }).collect()
    }
}

impl SpecialTokens {
    /// Collects the special tokens of a vocabulary.
    pub(super) fn new(vocab: &Vocab) -> Result<SpecialTokens, TextError> {
        let mut ids: Vec<u32> = (0..vocab.n_tokens).filter(|&id| vocab.attrs[id as usize].any(SPECIAL)).collect();
        ids.sort_by_key(|&id| (std::cmp::Reverse(vocab.texts.text(id).len()), id));
        let finder = match ids.is_empty() {
            true => None,
            false => Some(
                AhoCorasick::builder()
                    .match_kind(MatchKind::Standard)
                    .kind(Some(AhoCorasickKind::ContiguousNFA))
                    .build(ids.iter().map(|&id| vocab.texts.text(id)))
                    .map_err(|error| super::vocab::model_error(format!("too many special tokens: {error}")))?,
            ),
        };
        let is_hidden: Vec<bool> = ids.iter().map(|&id| vocab.attrs[id as usize].any(HIDDEN)).collect();
        let mut hidden: Vec<usize> = (0..ids.len()).filter(|&i| is_hidden[i]).collect();
        hidden.sort_by_key(|&i| vocab.text(ids[i]));
        let texts = || hidden.iter().map(|&i| vocab.text(ids[i]));
        let mut backwards: Vec<String> = texts().map(|text| text.chars().rev().collect()).collect();
        backwards.sort();
        let distinct = |chars: BTreeSet<char>| chars.into_iter().collect();
        let firsts = distinct(texts().filter_map(|text| text.chars().next()).collect());
        let lasts = distinct(texts().filter_map(|text| text.chars().next_back()).collect());
        let max_bytes = texts().map(str::len).max().unwrap_or(0);
        Ok(SpecialTokens { ids, finder, is_hidden, hidden, backwards, firsts, lasts, max_bytes })
    }

    /// Returns the control tokens.
    pub(super) fn control<'v>(&'v self, vocab: &'v Vocab) -> Control<'v> {
        Control { tokens: self, vocab }
    }

    /// Cuts the text at special tokens; control tokens count only with `parse_special`.
    pub(super) fn cut<'t>(&self, vocab: &Vocab, text: &'t str, parse_special: bool) -> Vec<Fragment<'t>> {
        if text.is_empty() {
            return Vec::new();
        }
        let mut fragments = vec![Fragment::Text(text)];
        for index in self.present(text, parse_special) {
            let id = self.ids[index];
            let cut_by = |fragment: &Fragment<'t>| matches!(fragment, Fragment::Text(t) if t.contains(vocab.text(id)));
            if fragments.iter().any(cut_by) {
                let mut next = Vec::with_capacity(fragments.len() + 2);
                for fragment in fragments {
                    match fragment {
                        Fragment::Text(text) => {
                            cut_one(text, vocab.text(id), id, vocab.attrs[id as usize], &mut next);
                        }
                        token => next.push(token),
                    }
                }
                fragments = next;
            }
        }
        fragments
    }

    /// Returns positions in `ids` of the tokens that occur in the text and count, in order.
    fn present(&self, text: &str, parse_special: bool) -> Vec<usize> {
        let Some(finder) = &self.finder else { return Vec::new() };
        let mut seen = vec![false; self.ids.len()];
        for found in finder.find_overlapping_iter(text) {
            seen[found.pattern().as_usize()] = true;
        }
        let counts = |&i: &usize| seen[i] && (parse_special || !self.is_hidden[i]);
        (0..self.ids.len()).filter(counts).collect()
    }
}

/// Cuts one text at every occurrence of one token.
fn cut_one<'t>(mut text: &'t str, token_text: &str, id: u32, attr: Attr, out: &mut Vec<Fragment<'t>>) {
    while let Some(at) = text.find(token_text) {
        let mut left = &text[..at];
        if attr.any(Attr::LSTRIP) {
            left = left.trim_end_matches(is_c_space);
        }
        if !left.is_empty() {
            out.push(Fragment::Text(left));
        }
        out.push(Fragment::Token(id));
        text = &text[at + token_text.len()..];
        if attr.any(Attr::RSTRIP) {
            text = text.trim_start_matches(is_c_space);
        }
    }
    if !text.is_empty() {
        out.push(Fragment::Text(text));
    }
}

/// C's `isspace`.
fn is_c_space(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}
