//! `tokenizer.json`: the vocabulary, merges and added tokens of a fast tokenizer.

use std::collections::HashMap;

use serde_json::Value as Json;

use crate::error::{ConvertError, shown};
use crate::hf::folder::Folder;

/// The most tokens of a vocabulary.
pub(super) const N_TOKENS_MAX: usize = 1 << 22;

/// A tokenizer.
#[derive(Debug)]
pub(super) struct TokenizerJson {
    json: Json,
    /// Tokens of the model by text.
    pub(super) vocab: Vec<(String, u32)>,
    /// Tokens that are cut out of texts before others.
    pub(super) added: Vec<AddedToken>,
}

/// A token that is cut out of texts before others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AddedToken {
    pub(super) id: u32,
    pub(super) content: String,
    pub(super) is_special: bool,
}

impl TokenizerJson {
    /// Reads the tokenizer of a folder, if it has one; or the older pair of `vocab.json` and `merges.txt`.
    ///
    /// # Errors
    /// It is damaged.
    pub(super) fn read(folder: &Folder) -> Result<Option<TokenizerJson>, ConvertError> {
        let path = folder.path().join("tokenizer.json");
        let json = match folder.json("tokenizer.json")? {
            Some(json) => json,
            None => match older(folder)? {
                Some(json) => json,
                None => return Ok(None),
            },
        };
        TokenizerJson::of(json).map(Some).map_err(|error| error.at(&path))
    }

    /// Reads a tokenizer.
    ///
    /// # Errors
    /// It is damaged.
    pub(super) fn of(json: Json) -> Result<TokenizerJson, ConvertError> {
        let id = |id: &Json| id.as_u64().and_then(usable_id);
        let mut vocab = Vec::new();
        for (token, number) in json["model"]["vocab"].as_object().into_iter().flatten() {
            vocab.push((token.clone(), id(number).ok_or_else(|| bad_id(token))?));
        }
        let mut added = Vec::new();
        for token in json["added_tokens"].as_array().into_iter().flatten() {
            let content = token["content"].as_str().unwrap_or_default();
            added.push(AddedToken {
                id: id(&token["id"]).ok_or_else(|| bad_id(content))?,
                content: content.to_owned(),
                is_special: token["special"].as_bool().unwrap_or(false),
            });
        }
        if vocab.is_empty() && json["model"]["vocab"].as_array().is_none() {
            return Err(ConvertError::invalid("it has no vocabulary"));
        }
        Ok(TokenizerJson { json, vocab, added })
    }

    /// Returns the kind of the model: `BPE`, `WordPiece`, `Unigram`.
    pub(super) fn kind(&self) -> &str {
        let model = &self.json["model"];
        let guess = if model["merges"].is_array() { "BPE" } else { "WordPiece" };
        model["type"].as_str().unwrap_or(guess)
    }

    /// Returns whether it is SentencePiece's byte-pair encoding: characters it does not know become bytes.
    pub(super) fn is_sentencepiece(&self) -> bool {
        let model = &self.json["model"];
        self.kind() == "BPE" && model["byte_fallback"] == true && self.json["decoder"]["type"] == "Sequence"
    }

    /// Returns whether whole words that are tokens are not built by merges.
    pub(super) fn ignores_merges(&self) -> bool {
        self.json["model"]["ignore_merges"] == true
    }

    /// Returns the rules by which texts are changed first.
    pub(super) fn normalizer(&self) -> &Json {
        &self.json["normalizer"]
    }

    /// Returns the rules by which texts are cut.
    pub(super) fn pre_tokenizer(&self) -> &Json {
        &self.json["pre_tokenizer"]
    }

    /// Returns what is added to texts.
    pub(super) fn post_processor(&self) -> &Json {
        &self.json["post_processor"]
    }

    /// Returns the id of an added token.
    pub(super) fn added_id(&self, content: &str) -> Option<u32> {
        self.added.iter().find(|token| token.content == content).map(|token| token.id)
    }

    /// Returns the tokens of the model by text.
    pub(super) fn ids(&self) -> HashMap<&str, u32> {
        self.vocab.iter().map(|(token, id)| (token.as_str(), *id)).collect()
    }

    /// Returns the merges, first ones first. Spaces in tokens are written as GPT-2 writes them.
    ///
    /// # Errors
    /// They are no pairs.
    pub(super) fn merges(&self) -> Result<Vec<String>, ConvertError> {
        let wrong = || ConvertError::invalid("tokenizer.json: a merge is no pair of tokens");
        let whole = |text: &str| text.replace(' ', "\u{120}");
        let one = |merge: &Json| match merge {
            Json::String(pair) => Some(pair.clone()),
            Json::Array(pair) => match pair.as_slice() {
                [Json::String(left), Json::String(right)] => Some(format!("{} {}", whole(left), whole(right))),
                _ => None,
            },
            _ => None,
        };
        self.json["model"]["merges"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|merge| one(merge).ok_or_else(wrong))
            .collect()
    }
}

/// Returns an id if a vocabulary may have it.
pub(super) fn usable_id(id: u64) -> Option<u32> {
    u32::try_from(id).ok().filter(|&id| (id as usize) < N_TOKENS_MAX)
}

/// Returns the error of a token whose id cannot be.
pub(super) fn bad_id(token: &str) -> ConvertError {
    ConvertError::invalid(format!("token '{}' has no usable id", shown(token)))
}

/// Reads the older pair of files of byte-pair encoding.
fn older(folder: &Folder) -> Result<Option<Json>, ConvertError> {
    let (Some(vocab), Some(merges)) = (folder.json("vocab.json")?, folder.text("merges.txt")?) else {
        return Ok(None);
    };
    let lines = merges.lines().enumerate().filter(|(i, line)| !(*i == 0 && line.starts_with('#')));
    let merges: Vec<&str> =
        lines.map(|(_, line)| line.trim()).filter(|line| line.split_whitespace().count() == 2).collect();
    let byte_level = serde_json::json!({ "type": "ByteLevel" });
    Ok(Some(serde_json::json!({
        "model": { "type": "BPE", "vocab": vocab, "merges": merges },
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
    })))
}
