//! Cutting special tokens out of a text.
//!
//! llama.cpp looks for the longest token first, through the whole text, then for the next longest in what is left. That
//! is not leftmost-first (`<a<bb>>` with tokens `<a<` and `<bb>` gives `<a`, `<bb>`, `>`), so one pass of an automaton
//! only says which tokens occur at all; those few then cut the text in that order.

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use super::vocab::{Attr, SPECIAL, Vocab};
use crate::error::EngineError;

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
}

impl SpecialTokens {
    /// Collects the special tokens of a vocabulary.
    pub(super) fn new(vocab: &Vocab) -> Result<SpecialTokens, EngineError> {
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
        Ok(SpecialTokens { ids, finder })
    }

    /// Cuts the text at special tokens; control tokens count only with `parse_special`.
    pub(super) fn cut<'t>(&self, vocab: &Vocab, text: &'t str, parse_special: bool) -> Vec<Fragment<'t>> {
        if text.is_empty() {
            return Vec::new();
        }
        let mut fragments = vec![Fragment::Text(text)];
        for index in self.present(vocab, text, parse_special) {
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
    fn present(&self, vocab: &Vocab, text: &str, parse_special: bool) -> Vec<usize> {
        let Some(finder) = &self.finder else { return Vec::new() };
        let mut seen = vec![false; self.ids.len()];
        for found in finder.find_overlapping_iter(text) {
            seen[found.pattern().as_usize()] = true;
        }
        let hidden = Attr::CONTROL.with(Attr::UNKNOWN);
        let counts = |&i: &usize| seen[i] && (parse_special || !vocab.attrs[self.ids[i] as usize].any(hidden));
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
