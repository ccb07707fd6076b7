//! A tokenizer as `llguidance` sees it: the bytes of each token, and how text becomes tokens.

use std::sync::Arc;

use toktrie::{TokRxInfo, TokTrie, TokenizerEnv};

use crate::{GrammarError, GrammarErrorKind};
use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};

/// A model's tokens.
pub(crate) struct Environment {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
}

impl Environment {
    /// Takes over a tokenizer for logits of `n_vocab` tokens.
    ///
    /// # Errors
    /// The vocabulary has no token that ends an answer.
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, n_vocab: usize) -> Result<Environment, GrammarError> {
        let ends: Vec<u32> = tokenizer.end_of_generation().filter(|&id| (id as usize) < n_vocab).collect();
        let Some(&eos) = ends.first() else {
            let line = "the vocabulary has no token that ends an answer; a grammar needs one";
            return Err(GrammarError::new(GrammarErrorKind::Unsupported, line));
        };
        let words: Vec<Vec<u8>> = (0..n_vocab as u32).map(|id| word(&tokenizer, id)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(n_vocab as u32, eos), &words).with_eos_tokens(&ends);
        Ok(Environment { tokenizer, trie })
    }
}

/// Returns the bytes of a token; those of a control token begin with a mark that no text has. A token without bytes is
/// never chosen.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let Some(bytes) = tokenizer.token_bytes(id) else { return Vec::new() };
    if tokenizer.is_control(id) {
        return [&[TokTrie::SPECIAL_TOKEN_MARKER], &bytes[..]].concat();
    }
    match bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER) {
        true => Vec::new(),
        false => bytes.into_owned(),
    }
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    /// Encodes as the model is used to; where that gives other bytes (a space in front, half a character), the longest
    /// tokens one after the other.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        let text = std::str::from_utf8(bytes).ok();
        let ids = text.and_then(|text| self.tokenizer.encode(text, EncodeOptions::default()).ok());
        ids.filter(|ids| self.trie.decode_raw(ids) == bytes).unwrap_or_else(|| self.trie.greedy_tokenize(bytes))
    }
}
