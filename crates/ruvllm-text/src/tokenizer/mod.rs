//! Text to tokens and back, as the model file says.
//!
//! [`Tokenizer::from_metadata`] reads `tokenizer.ggml.*`: byte-pair encoding (`gpt2`, `gemma4`) with the pre-tokenizer the
//! file names, SentencePiece (`llama`) and WordPiece (`bert`). The reference is llama.cpp: ids are equal to its ids.
//!
//! ```text
//! text ── special tokens cut out ──► fragments ── words (BPE) ──► symbols ── merged, best first ──► ids
//! ```
//! What it does not do: Unicode normalisation (llama.cpp does none either, but for BERT), and the tidying of spaces
//! before punctuation that some decoders apply: decoding gives the text the tokens stand for. Where the two know
//! different versions of Unicode, a character that is new to one of them may be cut off differently.

mod bpe;
mod infill;
mod merge;
mod pretokenize;
mod special;
mod spm;
mod stream;
#[cfg(test)]
mod tests;
mod text_index;
mod vocab;
mod wordpiece;

use std::borrow::Cow;

use ruvllm_gguf::Metadata;

pub use infill::{InfillFile, InfillTokens};
pub use stream::DecodeStream;

use crate::error::{TextError, TextErrorKind};
use crate::template::Marks;
use bpe::Bpe;
pub(crate) use special::Control;
use special::{Fragment, SpecialTokens};
use spm::Spm;
use vocab::{Attr, SpecialIds, Vocab, gguf_error, model_error};
use wordpiece::WordPiece;

/// Options of encoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Add BOS, EOS and the like where the model wants them.
    pub add_special: bool,
    /// Read `<|im_start|>` and its like as tokens, not as text. User-defined tokens are always read as tokens.
    pub parse_special: bool,
}

impl EncodeOptions {
    /// A text to embed: all of it is the caller's, and `[SEP]` in it is a token, as for sentence-transformers and llama.cpp.
    pub const EMBEDDED: EncodeOptions = EncodeOptions { add_special: true, parse_special: true };
}

/// Options of decoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Write control tokens as their text; otherwise they give nothing.
    pub render_special: bool,
}

enum Model {
    Bpe(Box<Bpe>),
    Spm(Spm),
    WordPiece(Box<WordPiece>),
}

/// Tokens and characters that are added to texts.
struct Added {
    bos: bool,
    eos: bool,
    space_prefix: bool,
}

/// A model's tokenizer.
pub struct Tokenizer {
    vocab: Vocab,
    special: SpecialTokens,
    model: Model,
    /// BOS (for BERT: `[CLS]`), where it is to be added.
    prefix: Option<u32>,
    /// EOS (for BERT: `[SEP]`), where it is to be added.
    suffix: Option<u32>,
    add_space_prefix: bool,
    /// Marks the parts of a prompt with a gap.
    infill: Option<InfillTokens>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("n_tokens", &self.vocab.n_tokens).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Builds the tokenizer of a file.
    ///
    /// # Errors
    /// [`TextErrorKind::Unsupported`] for a tokenizer or pre-tokenizer of another kind, [`TextErrorKind::Model`] for metadata
    /// that is missing or contradicts itself.
    pub fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, TextError> {
        let text = |key| metadata.str(key).map_err(gguf_error);
        let kind = text("tokenizer.ggml.model")?
            .ok_or_else(|| model_error("the file has no tokenizer: 'tokenizer.ggml.model' is missing"))?;
        match kind {
            "gpt2" => Tokenizer::new_bpe(metadata, text("tokenizer.ggml.pre")?.unwrap_or_default(), Some(11)),
            "gemma4" => Tokenizer::new_bpe(metadata, "gemma4", None),
            "llama" => Tokenizer::new_spm(metadata),
            "bert" => Tokenizer::new_wordpiece(metadata),
            other => {
                let line = format!(
                    "tokenizer '{other}' (tokenizer.ggml.model) is not supported; known are gpt2, gemma4, llama and bert"
                );
                Err(TextError::new(TextErrorKind::Unsupported, line))
            }
        }
    }

    fn new_bpe(metadata: &Metadata, pre: &str, default_id: Option<u32>) -> Result<Tokenizer, TextError> {
        let rule = pretokenize::rule(pre)?;
        let bos = default_id.filter(|_| !rule.no_bos);
        let defaults = SpecialIds { bos, eos: default_id, ..SpecialIds::default() };
        let mut vocab = Vocab::read(metadata, defaults)?;
        let bpe = Bpe::new(metadata, &mut vocab, rule, pre == "kimi-k2")?;
        // llama.cpp adds BOS for gemma 4 even where the file says no.
        let forced = rule.sentencepiece && rule.add_bos;
        let added = Added {
            bos: flag(metadata, "add_bos_token", rule.add_bos)? || forced,
            eos: flag(metadata, "add_eos_token", false)?,
            space_prefix: flag(metadata, "add_space_prefix", false)?,
        };
        Tokenizer::finish(metadata, vocab, Model::Bpe(Box::new(bpe)), added)
    }

    fn new_spm(metadata: &Metadata) -> Result<Tokenizer, TextError> {
        let defaults = SpecialIds { bos: Some(1), eos: Some(2), unk: Some(0), ..SpecialIds::default() };
        let vocab = Vocab::read(metadata, defaults)?;
        let added = Added {
            bos: flag(metadata, "add_bos_token", true)?,
            eos: flag(metadata, "add_eos_token", false)?,
            space_prefix: flag(metadata, "add_space_prefix", true)?,
        };
        let model = Model::Spm(Spm::new(&vocab));
        Tokenizer::finish(metadata, vocab, model, added)
    }

    fn new_wordpiece(metadata: &Metadata) -> Result<Tokenizer, TextError> {
        let defaults = SpecialIds { bos: Some(101), unk: Some(100), sep: Some(102), ..SpecialIds::default() };
        let mut vocab = Vocab::read(metadata, defaults)?;
        vocab.special.eos = vocab.special.eos.or(vocab.special.sep);
        let lowercase = flag(metadata, "normalizer.lowercase", true)?;
        let strip_accents = flag(metadata, "normalizer.strip_accents", lowercase)?;
        let model = Model::WordPiece(Box::new(WordPiece::new(&vocab, lowercase, strip_accents)));
        let sep = vocab.special.sep;
        let mut tokenizer =
            Tokenizer::finish(metadata, vocab, model, Added { bos: true, eos: false, space_prefix: false })?;
        tokenizer.suffix = Some(sep.ok_or_else(|| missing_id("seperator"))?);
        Ok(tokenizer)
    }

    fn finish(metadata: &Metadata, vocab: Vocab, model: Model, added: Added) -> Result<Tokenizer, TextError> {
        let needed = |add: bool, id: Option<u32>, name: &str| match (add, id) {
            (true, None) => Err(missing_id(name)),
            (true, id) => Ok(id),
            (false, _) => Ok(None),
        };
        let prefix = needed(added.bos, vocab.special.bos, "bos")?;
        let suffix = needed(added.eos, vocab.special.eos, "eos")?;
        let special = SpecialTokens::new(&vocab)?;
        let n_tokens = vocab.n_tokens;
        let infill = InfillTokens::read(metadata, &|text| vocab.id(text.as_bytes()))?;
        let infill = infill.filter(|ids| ids.all().all(|id| id < n_tokens));
        Ok(Tokenizer { vocab, special, model, prefix, suffix, add_space_prefix: added.space_prefix, infill })
    }

    /// Returns the tokens of a text.
    ///
    /// # Errors
    /// A SentencePiece vocabulary without a token for a byte of the text and without an unknown token.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::with_capacity(text.len() / 4 + 2);
        if options.add_special {
            ids.extend(self.prefix);
        }
        let mut after_special = true;
        for fragment in self.special.cut(&self.vocab, text, options.parse_special) {
            self.encode_fragment(fragment, &mut after_special, &mut ids)?;
        }
        if options.add_special {
            ids.extend(self.suffix);
        }
        Ok(ids)
    }

    /// Returns the tokens of a text that is to be continued: as [`Tokenizer::encode`] with `add_special`, but nothing ends it,
    /// and one that writes the token that begins texts itself gets no second one. A text to embed is enclosed:
    /// [`EncodeOptions::EMBEDDED`].
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_prompt(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, TextError> {
        self.encode_marked(text, parse_special, None)
    }

    /// Encodes a prompt, where marks stand for characters that begin no control token.
    pub(crate) fn encode_marked(
        &self,
        text: &str,
        parse_special: bool,
        marks: Option<Marks>,
    ) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::with_capacity(text.len() / 4 + 2);
        let has_bos = self.bos().is_some_and(|bos| parse_special && text.starts_with(self.vocab.text(bos)));
        ids.extend(self.prefix.filter(|_| !has_bos));
        let mut after_special = true;
        for fragment in self.special.cut(&self.vocab, text, parse_special) {
            match (fragment, marks) {
                (Fragment::Text(text), Some(marks)) => {
                    for fragment in self.special.cut(&self.vocab, &marks.removed(text), false) {
                        self.encode_fragment(fragment, &mut after_special, &mut ids)?;
                    }
                }
                _ => self.encode_fragment(fragment, &mut after_special, &mut ids)?,
            }
        }
        Ok(ids)
    }

    fn encode_fragment(
        &self,
        fragment: Fragment<'_>,
        after_special: &mut bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        match (fragment, &self.model) {
            (Fragment::Token(id), _) => ids.push(id),
            (Fragment::Text(text), Model::Bpe(bpe)) => bpe.encode(&self.vocab, text, ids),
            (Fragment::Text(text), Model::WordPiece(model)) => model.encode(&self.vocab, text, ids),
            (Fragment::Text(text), Model::Spm(spm)) => {
                spm.encode(&self.vocab, text, self.add_space_prefix && *after_special, ids)?;
            }
        }
        *after_special = matches!(fragment, Fragment::Token(_));
        Ok(())
    }

    /// Returns the control tokens: those that [`EncodeOptions::parse_special`] is about.
    pub(crate) fn control(&self) -> Control<'_> {
        self.special.control(&self.vocab)
    }

    /// Returns the control tokens that a text has where it may write them.
    pub(crate) fn control_tokens_of(&self, text: &str) -> Vec<u32> {
        let token = |fragment| match fragment {
            Fragment::Token(id) if self.is_control(id) => Some(id),
            _ => None,
        };
        self.special.cut(&self.vocab, text, true).into_iter().filter_map(token).collect()
    }

    /// Returns the text of tokens; what is no UTF-8 becomes U+FFFD. Ids outside the vocabulary give nothing.
    pub fn decode(&self, ids: &[u32], options: DecodeOptions) -> String {
        let bytes = self.decode_bytes(ids, options);
        match String::from_utf8_lossy(&bytes) {
            Cow::Owned(text) => text,
            Cow::Borrowed(_) => String::from_utf8(bytes).unwrap_or_default(),
        }
    }

    /// Returns the bytes of tokens. Where encoding puts a space before the text, the first token's space is left out.
    pub fn decode_bytes(&self, ids: &[u32], options: DecodeOptions) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(4 * ids.len());
        for (i, &id) in ids.iter().enumerate() {
            let piece = self.piece(id, options.render_special);
            let strip = i == 0 && self.add_space_prefix && piece.first() == Some(&b' ');
            bytes.extend_from_slice(&piece[usize::from(strip)..]);
        }
        bytes
    }

    /// Returns a decoder for tokens that come one by one. Its text is that of [`Tokenizer::decode`] without special
    /// tokens.
    pub fn stream(&self) -> DecodeStream<&Tokenizer> {
        DecodeStream::from_start(self)
    }

    /// Returns a decoder for tokens that continue a text: unlike in [`Tokenizer::stream`], a first space is part of it.
    pub fn stream_continuing(&self) -> DecodeStream<&Tokenizer> {
        DecodeStream::continuing(self)
    }

    /// Returns whether decoding drops the space that encoding puts in front of a text.
    fn strips_space(&self) -> bool {
        self.add_space_prefix
    }

    /// Returns the bytes a token stands for (a special token: its name), or `None` outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        (id < self.vocab.n_tokens).then(|| self.piece(id, true))
    }

    /// Returns a token as the file spells it, or `None` outside the vocabulary.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        (id < self.vocab.n_tokens).then(|| self.vocab.text(id))
    }

    /// Returns the token the file spells like this.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.vocab.id(text.as_bytes())
    }

    /// Returns the number of tokens.
    pub fn vocab_len(&self) -> usize {
        self.vocab.n_tokens as usize
    }

    /// Returns the token that begins a text, whether or not it is to be added.
    pub fn bos(&self) -> Option<u32> {
        self.vocab.special.bos
    }

    /// Returns the token that ends a text, whether or not it is to be added.
    pub fn eos(&self) -> Option<u32> {
        self.vocab.special.eos
    }

    /// Returns the token [`EncodeOptions::add_special`] puts first.
    pub fn bos_to_add(&self) -> Option<u32> {
        self.prefix
    }

    /// Returns the token [`EncodeOptions::add_special`] puts last.
    pub fn eos_to_add(&self) -> Option<u32> {
        self.suffix
    }

    /// Returns whether the model is done when it says this.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.vocab.end_of_generation.contains(&id)
    }

    /// Iterates over the tokens that end an answer, in order.
    pub fn end_of_generation(&self) -> impl Iterator<Item = u32> {
        self.vocab.end_of_generation.iter().copied()
    }

    /// Returns whether a token is no text: control tokens and the unknown token.
    pub fn is_control(&self, id: u32) -> bool {
        id < self.vocab.n_tokens && self.vocab.attrs[id as usize].any(Attr::CONTROL.with(Attr::UNKNOWN))
    }

    /// Returns the first difference to the tokens of another tokenizer, in words. That one of them has a few more at the end
    /// (padding) is none.
    pub fn difference(&self, other: &Tokenizer) -> Option<String> {
        let (own, others) = (self.vocab_len(), other.vocab_len());
        let n_common = own.min(others);
        if own.max(others) - n_common > n_common / 50 {
            return Some(format!("{others} tokens instead of {own}"));
        }
        let id = (0..n_common as u32).find(|&id| self.vocab.text(id) != other.vocab.text(id))?;
        Some(format!("token {id} is {:?} instead of {:?}", other.vocab.text(id), self.vocab.text(id)))
    }

    /// Returns what a token adds to a text.
    fn piece(&self, id: u32, render_special: bool) -> Cow<'_, [u8]> {
        if id >= self.vocab.n_tokens {
            return Cow::Borrowed(&[]);
        }
        let (attr, text) = (self.vocab.attrs[id as usize], self.vocab.text(id));
        let hidden = Attr::CONTROL.with(Attr::UNKNOWN);
        if !render_special && attr.any(hidden) {
            Cow::Borrowed(&[])
        } else if attr.any(vocab::SPECIAL) {
            Cow::Borrowed(text.as_bytes())
        } else if attr.any(Attr::BYTE) {
            spm::byte_of(text).map_or(Cow::Borrowed(text.as_bytes()), |byte| Cow::Owned(vec![byte]))
        } else if attr.any(Attr::NORMAL) {
            match &self.model {
                Model::Bpe(bpe) if !bpe.sentencepiece() => Cow::Owned(bpe::bytes_of(text)),
                _ => Cow::Owned(text.replace('▁', " ").into_bytes()),
            }
        } else {
            Cow::Borrowed(&[])
        }
    }
}

fn missing_id(name: &str) -> TextError {
    let key = format!("tokenizer.ggml.{name}_token_id");
    model_error(format!("the tokenizer adds a token that '{key}' does not give"))
}

/// Reads `tokenizer.ggml.<name>`, a truth value.
fn flag(metadata: &Metadata, name: &str, default: bool) -> Result<bool, TextError> {
    Ok(metadata.bool(&format!("tokenizer.ggml.{name}")).map_err(gguf_error)?.unwrap_or(default))
}
