//! Byte-pair encoding over words.

use std::cell::RefCell;
use std::collections::HashMap;

use foldhash::fast::RandomState;
use ruvllm_gguf::Metadata;

use super::merge::{Merger, Symbol};
use super::pretokenize::{PreTokenizer, Rule};
use super::vocab::{Vocab, gguf_error, model_error};
use crate::error::TextError;

/// Merges and how words are cut.
pub(super) struct Bpe {
    rule: &'static Rule,
    pre: PreTokenizer,
    /// Texts of a pair → rank (the first merge has the highest) and text of both. Texts may be no tokens.
    merges: HashMap<(u32, u32), (u32, u32), RandomState>,
    /// The text of each byte in GPT-2's alphabet.
    byte_ids: Vec<u32>,
    /// `<0x00>` … `<0xFF>`, where they are tokens.
    byte_tokens: Vec<Option<u32>>,
}

impl Bpe {
    /// Reads the merges; their texts join the vocabulary's where they are no tokens.
    ///
    /// # Errors
    /// No merges (unless `may_lack_merges`), or one that is no pair.
    pub(super) fn new(
        metadata: &Metadata,
        vocab: &mut Vocab,
        rule: &'static Rule,
        may_lack_merges: bool,
    ) -> Result<Bpe, TextError> {
        let key = "tokenizer.ggml.merges";
        let lines = metadata.strings(key).map_err(gguf_error)?;
        if lines.is_none() && !may_lack_merges {
            return Err(model_error(format!("the file has no merges: '{key}' is missing")));
        }
        let lines = lines.unwrap_or_default();
        let mut merges = HashMap::with_capacity_and_hasher(lines.len(), RandomState::default());
        let mut both = Vec::new();
        for (i, line) in lines.iter().enumerate() {
            // A merge may begin with a space, so the separator is looked for after the first byte.
            let at = line.bytes().skip(1).position(|byte| byte == b' ').map(|at| at + 1);
            let (left, right) = at
                .map(|at| (&line.as_bytes()[..at], &line.as_bytes()[at + 1..]))
                .ok_or_else(|| model_error(format!("'{key}' item {i} is no pair: {line:?}")))?;
            both.clear();
            both.extend_from_slice(left);
            both.extend_from_slice(right);
            let mut intern =
                |text| vocab.texts.intern(text).ok_or_else(|| model_error("the merges are larger than 4 GiB"));
            let (pair, merged) = ((intern(left)?, intern(right)?), intern(&both)?);
            merges.entry(pair).or_insert((u32::MAX - i as u32, merged));
        }
        let mut utf8 = [0; 4];
        let mut byte_id = |byte: u8| vocab.texts.find(char_of(byte).encode_utf8(&mut utf8).as_bytes());
        let byte_ids = (0..=255).map(|byte| byte_id(byte).unwrap_or(Symbol::UNKNOWN)).collect();
        let byte_tokens = super::spm::byte_tokens(vocab);
        Ok(Bpe { rule, pre: PreTokenizer::new(rule), merges, byte_ids, byte_tokens })
    }

    /// Returns whether tokens are plain text with `▁` for a space.
    pub(super) fn sentencepiece(&self) -> bool {
        self.rule.sentencepiece
    }

    /// Appends the tokens of a text. What no token covers is left out, as in llama.cpp.
    pub(super) fn encode(&self, vocab: &Vocab, text: &str, out: &mut Vec<u32>) {
        thread_local!(static MERGER: RefCell<Merger> = RefCell::default());
        MERGER.with_borrow_mut(|merger| {
            if self.rule.sentencepiece {
                let text = text.replace(' ', "▁");
                self.pre.words(&text).into_iter().for_each(|word| self.encode_plain(vocab, merger, word, out));
            } else {
                self.pre.words(text).into_iter().for_each(|word| self.encode_bytes(vocab, merger, word, out));
            }
        });
    }

    /// Encodes a word whose symbols are bytes, each spelt as a character of GPT-2's alphabet.
    fn encode_bytes(&self, vocab: &Vocab, merger: &mut Merger, word: &str, out: &mut Vec<u32>) {
        if self.rule.ignore_merges && word.len() <= vocab.max_token_bytes {
            let spelt: String = word.bytes().map(char_of).collect();
            if let Some(id) = vocab.id(spelt.as_bytes()) {
                out.push(id);
                return;
            }
        }
        merger.clear();
        word.bytes().for_each(|byte| merger.push(self.byte_ids[byte as usize], 1));
        for symbol in merger.merge(|left, right| self.merges.get(&(left.id, right.id)).copied()) {
            if symbol.id < vocab.n_tokens {
                out.push(symbol.id);
            } else if symbol.id != Symbol::UNKNOWN {
                let parts = vocab.texts.text(symbol.id);
                out.extend(parts.iter().filter_map(|byte| vocab.id(std::slice::from_ref(byte))));
            }
        }
    }

    /// Encodes a word whose symbols are characters; what no token covers is spelt in bytes.
    fn encode_plain(&self, vocab: &Vocab, merger: &mut Merger, word: &str, out: &mut Vec<u32>) {
        let whole = self.rule.ignore_merges || (self.rule.newline_tokens && word.starts_with('\n'));
        if let Some(id) = Some(word).filter(|_| whole).and_then(|word| vocab.id(word.as_bytes())) {
            out.push(id);
            return;
        }
        merger.clear();
        let mut utf8 = [0; 4];
        for c in word.chars() {
            let id = vocab.texts.find(c.encode_utf8(&mut utf8).as_bytes());
            merger.push(id.unwrap_or(Symbol::UNKNOWN), c.len_utf8());
        }
        for symbol in merger.merge(|left, right| self.merges.get(&(left.id, right.id)).copied()) {
            if symbol.id < vocab.n_tokens {
                out.push(symbol.id);
            } else {
                let bytes = &word.as_bytes()[symbol.range()];
                out.extend(bytes.iter().filter_map(|&byte| self.byte_tokens[byte as usize]));
            }
        }
    }
}

/// Returns the character that stands for a byte: itself where it is visible Latin-1, else one from U+0100 on.
pub(super) fn char_of(byte: u8) -> char {
    let shift = match byte {
        0..=0x20 => 0x100,
        0x7F..=0xA0 => 0x121 - 0x7F,
        0xAD => 0x143 - 0xAD,
        _ => 0,
    };
    char::from_u32(u32::from(byte) + shift).unwrap_or_default()
}

/// Returns the byte a character stands for.
fn byte_of(c: char) -> Option<u8> {
    let byte = match c as u32 {
        n @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => n,
        n @ 0x100..=0x120 => n - 0x100,
        n @ 0x121..=0x142 => n - 0x121 + 0x7F,
        0x143 => 0xAD,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// Returns the bytes of a token; a character outside the alphabet stands for itself.
pub(super) fn bytes_of(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut utf8 = [0; 4];
    for c in text.chars() {
        match byte_of(c) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(c.encode_utf8(&mut utf8).as_bytes()),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_character_of_its_own() {
        let chars: std::collections::BTreeSet<char> = (0..=255).map(char_of).collect();
        assert_eq!(chars.len(), 256);
        assert!((0..=255).all(|byte| byte_of(char_of(byte)) == Some(byte)));
        assert_eq!((char_of(b' '), char_of(b'\n'), char_of(0x7F), char_of(0xAD)), ('Ġ', 'Ċ', 'ġ', 'Ń'));
        assert_eq!(bytes_of("Ġhi中"), " hi中".as_bytes());
    }
}
