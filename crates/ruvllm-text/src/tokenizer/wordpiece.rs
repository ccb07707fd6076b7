//! WordPiece: a word gets `▁` in front, then the longest token that fits is taken again and again. Files are as llama.cpp reads
//! them, words as the tokenizer made them that the models were trained with.

use regex::Regex;
use unicode_normalization::char::decompose_canonical;

use super::vocab::Vocab;

/// Cuts text into the words of BERT's basic tokenizer, and words into tokens.
pub(super) struct WordPiece {
    lowercase: bool,
    strip_accents: bool,
    /// Characters that are left out.
    dropped: Regex,
    /// Words: one punctuation mark or Chinese character, or a run of anything else but white space.
    words: Regex,
    /// The lengths tokens have, longest first.
    token_lens: Vec<usize>,
}

/// Punctuation, ASCII symbols and Chinese characters (2B920, not 2B820, as in the tokenizer that made the models).
const SINGLE: &str = concat!(
    r"\p{P}\$\+<=>\^`\|~\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}\x{2B740}-\x{2B81F}",
    r"\x{2B920}-\x{2CEAF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}"
);

/// A longer word is one unknown token, as in the tokenizer that made the models (`max_input_chars_per_word`); llama.cpp has no
/// such limit.
const WORD_CHARS_MAX: usize = 100;

impl WordPiece {
    /// Prepares for a vocabulary.
    pub(super) fn new(vocab: &Vocab, lowercase: bool, strip_accents: bool) -> WordPiece {
        let accents = if strip_accents { r"\p{Mn}" } else { "" };
        let regex = |pattern: String| Regex::new(&pattern).expect("the patterns are constants that a test compiles");
        let mut has_len = vec![false; vocab.max_token_bytes + 1];
        (0..vocab.n_tokens).for_each(|id| has_len[vocab.texts.text(id).len()] = true);
        WordPiece {
            lowercase,
            strip_accents,
            dropped: regex(format!(r"[[\x00\x{{FFFD}}\p{{Cc}}\p{{Cf}}\p{{Co}}{accents}]--[\t\n\r]]")),
            words: regex(format!(r"[{SINGLE}]|[^\s{SINGLE}]+")),
            token_lens: (1..has_len.len()).rev().filter(|&len| has_len[len]).collect(),
        }
    }

    /// Appends the tokens of a text; a word that cannot be covered is one unknown token.
    pub(super) fn encode(&self, vocab: &Vocab, text: &str, out: &mut Vec<u32>) {
        let text = self.normalize(text);
        let mut word = String::new();
        for found in self.words.find_iter(&text) {
            word.clear();
            word.push('▁');
            word.push_str(found.as_str());
            let n_before = out.len();
            let is_too_long = found.as_str().chars().count() > WORD_CHARS_MAX;
            if is_too_long || !self.cover(vocab, word.as_bytes(), out) {
                out.truncate(n_before);
                out.extend(vocab.special.unk);
            }
        }
    }

    /// Takes the longest token again and again; false when none fits.
    fn cover(&self, vocab: &Vocab, mut word: &[u8], out: &mut Vec<u32>) -> bool {
        while !word.is_empty() {
            let fits = |&&len: &&usize| len <= word.len();
            let longest = self.token_lens.iter().filter(fits).find_map(|&len| Some((vocab.id(&word[..len])?, len)));
            let Some((id, len)) = longest else { return false };
            out.push(id);
            word = &word[len..];
        }
        true
    }

    /// Decomposes, drops (accents are marks without a width; vowel signs with one stay), and lowers the text, as asked.
    /// llama.cpp keeps the first part only, and so one sound of each Korean syllable.
    fn normalize(&self, text: &str) -> String {
        let mut base = String::with_capacity(text.len());
        for c in text.chars() {
            match self.strip_accents {
                true => decompose_canonical(c, |part| base.push(part)),
                false => base.push(c),
            }
        }
        let mut out = String::with_capacity(base.len());
        for c in self.dropped.replace_all(&base, "").chars() {
            let mut lower = c.to_lowercase();
            match (self.lowercase, lower.next(), lower.next()) {
                (true, Some(lower), None) => out.push(lower),
                _ => out.push(c),
            }
        }
        out
    }
}
